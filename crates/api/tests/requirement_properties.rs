//! The requirement algebra: intersections mean what they say.

use karpenter_api::labels::LabelRules;
use karpenter_api::{Operator, Requirement, Requirements};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        (-3_i64..6).prop_map(|number| number.to_string()),
        prop::sample::select(vec!["a", "b", ""]).prop_map(str::to_owned)
    ]
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let set = (
        prop::sample::select(vec![
            Operator::In,
            Operator::NotIn,
            Operator::Exists,
            Operator::DoesNotExist,
        ]),
        prop::collection::vec(value(), 0..4),
    )
        .prop_map(|(operator, values)| match operator {
            Operator::Exists | Operator::DoesNotExist => Requirement::new("k", operator, Vec::<String>::new()),
            _ => Requirement::new("k", operator, values),
        });
    let bound = (
        prop::sample::select(vec![Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte]),
        0_i64..5,
    )
        .prop_map(|(operator, number)| Requirement::new("k", operator, [number.to_string()]));
    prop_oneof![set, bound]
}

proptest! {
    #[test]
    fn a_value_is_in_the_intersection_exactly_when_it_is_in_both(a in requirement(), b in requirement(), value in value()) {
        prop_assert_eq!(a.intersection(&b).has(&value), a.has(&value) && b.has(&value), "{} and {}", a, b);
    }

    #[test]
    fn intersection_is_commutative_and_associative_on_membership(a in requirement(), b in requirement(), c in requirement(), value in value()) {
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b).intersection(&c).has(&value), a.intersection(&b.intersection(&c)).has(&value));
    }

    #[test]
    fn what_intersects_has_an_intersection(a in requirement(), b in requirement()) {
        prop_assert_eq!(a.has_intersection(&b), b.has_intersection(&a));
        if !a.intersection(&b).is_empty() {
            prop_assert!(a.has_intersection(&b));
        }
    }

    #[test]
    fn the_value_that_is_chosen_satisfies_the_requirement(a in requirement(), b in requirement()) {
        let both = a.intersection(&b);
        if let Some(value) = both.any_value() {
            prop_assert!(both.has(&value), "{} does not have {}", both, value);
        }
    }

    #[test]
    fn a_requirement_survives_being_written_to_a_claim(a in requirement(), b in requirement(), value in value()) {
        let both = a.intersection(&b);
        let rules = LabelRules::default();
        let again = Requirements::from_wire(&rules, &both.to_wire());
        prop_assert_eq!(again.get_or_exists("k").has(&value), both.has(&value), "{}", both);
    }
}
