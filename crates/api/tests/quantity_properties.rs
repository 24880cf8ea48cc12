//! Quantities agree with exact rationals, whatever is written and however it is combined.

use karpenter_api::Quantity;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};
use proptest::prelude::*;

const SUFFIXES: [(&str, i32, u32); 16] = [
    ("n", 10, 0),
    ("u", 10, 3),
    ("m", 10, 6),
    ("", 10, 9),
    ("k", 10, 12),
    ("M", 10, 15),
    ("G", 10, 18),
    ("T", 10, 21),
    ("P", 10, 24),
    ("E", 10, 27),
    ("Ki", 2, 10),
    ("Mi", 2, 20),
    ("Gi", 2, 30),
    ("Ti", 2, 40),
    ("Pi", 2, 50),
    ("Ei", 2, 60),
];

/// A quantity's text with its exact amount in nano units. Kept below where binary quantities are capped.
fn written() -> impl Strategy<Value = (String, BigRational)> {
    let sign = prop_oneof![Just(""), Just("-"), Just("+")];
    (sign, 0_u32..8, "[0-9]{0,12}", prop::sample::select(&SUFFIXES[..])).prop_map(|(sign, whole, fraction, suffix)| {
        let (name, base, power) = suffix;
        let digits: BigInt = format!("{whole}{fraction}").parse().unwrap();
        let amount = BigRational::new(digits, BigInt::from(10).pow(u32::try_from(fraction.len()).unwrap()));
        let nanos = match base {
            10 => amount * BigInt::from(10).pow(power),
            _ => amount * (BigInt::from(1) << power) * BigInt::from(1_000_000_000),
        };
        let nanos = if sign == "-" { -nanos } else { nanos };
        (format!("{sign}{whole}.{fraction}{name}"), nanos)
    })
}

/// Rounded away from zero to a whole number.
fn away_from_zero(exact: &BigRational) -> BigInt {
    let magnitude = exact.abs().ceil().to_integer();
    if exact.is_negative() { -magnitude } else { magnitude }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in ".*") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn parsing_what_looks_like_a_quantity_never_panics(text in "[-+]?[0-9]{0,60}\\.?[0-9]{0,60}([eE][-+]?[0-9]{0,20}|[numkMGTPE]i?)?") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn a_parsed_quantity_is_the_exact_amount_rounded_to_a_nano_unit((text, exact) in written()) {
        let quantity: Quantity = text.parse().unwrap();
        prop_assert_eq!(BigInt::from(quantity.nanos()), away_from_zero(&exact), "{}", text);
    }

    #[test]
    fn writing_and_reading_again_changes_nothing((text, _) in written()) {
        let quantity: Quantity = text.parse().unwrap();
        let canonical = quantity.to_string();
        let again: Quantity = canonical.parse().unwrap();
        // Binary notation shows whole units only, as in Kubernetes, and what it shows without a suffix reads as decimal.
        if quantity.nanos() % 1_000_000_000 == 0 {
            prop_assert_eq!(again, quantity, "{}", text);
        }
        prop_assert_eq!(again.to_string().parse::<Quantity>().unwrap(), again, "{}", text);
    }

    #[test]
    fn arithmetic_and_order_agree_with_rationals((a_text, _) in written(), (b_text, _) in written(), count in -1000_i64..1000) {
        let (a, b): (Quantity, Quantity) = (a_text.parse().unwrap(), b_text.parse().unwrap());
        let exact = |quantity: Quantity| BigRational::from_integer(quantity.nanos().into());
        prop_assert_eq!(exact(a + b), exact(a) + exact(b));
        prop_assert_eq!(exact(a - b), exact(a) - exact(b));
        prop_assert_eq!(exact(-a), -exact(a));
        prop_assert_eq!(exact(a.times(count)), exact(a) * BigInt::from(count));
        prop_assert_eq!(a.cmp(&b), exact(a).cmp(&exact(b)));
    }

    #[test]
    fn accessors_round_away_from_zero_and_saturate((text, _) in written()) {
        let quantity: Quantity = text.parse().unwrap();
        let expected = |unit: i64| {
            let exact = BigRational::new(quantity.nanos().into(), unit.into());
            away_from_zero(&exact).to_i64().unwrap_or(if exact.is_negative() { i64::MIN } else { i64::MAX })
        };
        prop_assert_eq!(quantity.value(), expected(1_000_000_000));
        prop_assert_eq!(quantity.milli(), expected(1_000_000));
    }

    #[test]
    fn whole_times_is_the_floor_of_the_quotient((a_text, _) in written(), (b_text, _) in written()) {
        let (a, b): (Quantity, Quantity) = (a_text.parse().unwrap(), b_text.parse().unwrap());
        match a.whole_times(b) {
            None => prop_assert!(!b.is_positive()),
            Some(times) => {
                let quotient = BigRational::new(a.nanos().into(), b.nanos().into()).floor().to_integer();
                let expected = quotient.to_i64().unwrap_or(if quotient.is_negative() { i64::MIN } else { i64::MAX });
                prop_assert_eq!(times, expected);
            }
        }
    }
}
