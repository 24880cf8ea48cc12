//! What pools may ask for beyond upstream's rules.

use jiff::SignedDuration;
use karpenter_engine::disruption::{Blocked, Method, Pause, Saving, Tuning};

use crate::fleet::{Builder, fleet, minutes, now};

fn tuned(types: &str, tune: impl FnOnce(&mut Tuning)) -> Builder {
    fleet(types).with_policy("default", |policy| tune(&mut policy.tuning))
}

#[test]
fn a_paused_pool_is_left_alone_by_every_method() {
    let built = || tuned("d4", |tuning| tuning.pause = Pause::Pool).node("a", "d4", &[]);
    for method in Method::ORDER {
        let drifted = built().claim_where(|claim| claim.drifted_since = Some(now()));
        assert_eq!(
            drifted.blocked(method, "a"),
            Some(Blocked::Paused("default".to_owned())),
            "{method:?}"
        );
    }
}

#[test]
fn one_node_may_be_split_into_several_that_are_cheaper_together() {
    let built = |most: usize, kinds: &str| {
        let built = tuned(kinds, |tuning| tuning.max_replacements = Some(most));
        // Pods that exclude each other, so that one node cannot hold both.
        built.node("a", "d8", &["2", "2"]).pods_where(crate::fleet::apart)
    };
    assert_eq!(
        built(1, "d2 d8").blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::TooManyReplacements(2))
    );
    assert_eq!(
        built(2, "d2 d8").decides(Method::SingleNodeConsolidation),
        "replace a by d2 by d2"
    );
    assert_eq!(
        built(2, "d4 d8").blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::NothingCheaper),
        "4 + 4 is not less than 8"
    );
}

#[test]
fn a_saving_below_the_minimum_is_not_worth_a_move() {
    let built = |saving| tuned("d2 d4", |tuning| tuning.minimum_saving = saving).node("a", "d4", &["1"]);
    assert_eq!(
        built(Some(Saving::PerHour(2.0))).decides(Method::SingleNodeConsolidation),
        "replace a by d2"
    );
    assert_eq!(
        built(Some(Saving::PerHour(2.5))).blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::SavingTooSmall {
            saving: 2.0,
            least: 2.5
        })
    );
    assert_eq!(
        built(Some(Saving::Percent(50.0))).decides(Method::SingleNodeConsolidation),
        "replace a by d2"
    );
    assert!(
        built(Some(Saving::Percent(60.0)))
            .blocked(Method::SingleNodeConsolidation, "a")
            .is_some()
    );
}

#[test]
fn moving_pods_may_count_as_a_cost() {
    let built = |cost| tuned("d2 d4", |tuning| tuning.pod_cost = cost).node("a", "d4", &["1", "1"]);
    assert_eq!(built(0.9).decides(Method::SingleNodeConsolidation), "replace a by d2");
    assert!(matches!(
        built(1.1).blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::SavingTooSmall { .. })
    ));
}

#[test]
fn a_young_node_is_not_consolidated_and_none_is_replaced_by_its_own_type() {
    let built = |age| {
        let built = tuned("s4", |tuning| tuning.cooldown = Some(SignedDuration::from_hours(1)));
        built
            .node("a", "s4", &["3"])
            .claim_where(move |claim| claim.created = now() - minutes(age))
    };
    assert_eq!(
        built(59).blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::CoolingDown)
    );
    assert_eq!(
        built(61).blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::NothingCheaper),
        "the same type as spot would be cheaper"
    );
    let upstream = fleet("s4").node("a", "s4", &["3"]);
    assert_eq!(upstream.decides(Method::SingleNodeConsolidation), "replace a by s4");
}

#[test]
fn an_annotation_that_cannot_be_read_stops_consolidation_only() {
    let built = || tuned("d2 d4", |tuning| tuning.unreadable = Some("x".to_owned()));
    assert_eq!(
        built()
            .node("a", "d4", &["1"])
            .blocked(Method::SingleNodeConsolidation, "a"),
        Some(Blocked::UnreadableAnnotation("x".to_owned()))
    );
    assert_eq!(built().node("a", "d4", &[]).decides(Method::Emptiness), "delete a");
}

#[test]
fn a_halted_rollout_keeps_drifted_nodes() {
    let built = tuned("d4", |tuning| tuning.drift_halted = true)
        .node("a", "d4", &["3"])
        .claim_where(|claim| claim.drifted_since = Some(now()));
    assert_eq!(
        built.blocked(Method::Drift, "a"),
        Some(Blocked::RolloutHalted("default".to_owned()))
    );
}
