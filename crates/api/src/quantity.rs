//! Kubernetes resource quantities: exact, totally ordered, and cheap to copy.
//!
//! A quantity is a whole number of billionths (nano units), the finest step that Kubernetes keeps, in an `i128`. That
//! holds every quantity an API server can store with a margin of ten orders of magnitude; what would go beyond saturates
//! instead of wrapping. No float is ever involved.

mod parse;
mod text;

pub use parse::QuantityError;

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANO: i128 = 1_000_000_000;
const NANO_PER_MILLI: i128 = 1_000_000;

/// An amount of a resource, such as `100m`, `1.5Gi` or `3`.
///
/// Equality, order and hash follow the amount alone: `1000m == 1`. The notation (`Gi` or `G`) is kept only for printing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

/// How a quantity is written; kept so that `1Gi` does not come back as `1073741824`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Notation {
    /// Powers of ten with a letter: `n u m k M G T P E`.
    #[default]
    DecimalSi,
    /// Powers of 1024: `Ki Mi Gi Ti Pi Ei`.
    BinarySi,
    /// Powers of ten with an exponent: `1e3`.
    DecimalExponent,
}

impl Quantity {
    pub const ZERO: Self = Self::from_nanos(0);
    /// One unit; what a pod or a node counts for.
    pub const ONE: Self = Self::from_nanos(NANO);
    pub const MAX: Self = Self::from_nanos(i128::MAX);

    pub const fn from_nanos(nanos: i128) -> Self {
        Self {
            nanos,
            notation: Notation::DecimalSi,
        }
    }

    pub const fn from_milli(milli: i64) -> Self {
        Self::from_nanos(milli as i128 * NANO_PER_MILLI)
    }

    pub const fn from_units(units: i64) -> Self {
        Self::from_nanos(units as i128 * NANO)
    }

    /// A number of bytes, written with binary suffixes.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self {
            nanos: bytes as i128 * NANO,
            notation: Notation::BinarySi,
        }
    }

    pub const fn with_notation(self, notation: Notation) -> Self {
        Self {
            nanos: self.nanos,
            notation,
        }
    }

    pub const fn notation(self) -> Notation {
        self.notation
    }

    /// The exact amount in billionths.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// The amount in thousandths, rounded away from zero, saturating at the bounds of `i64`.
    pub fn milli(self) -> i64 {
        saturate(div_away_from_zero(self.nanos, NANO_PER_MILLI))
    }

    /// The amount in whole units, rounded away from zero, saturating at the bounds of `i64`.
    pub fn value(self) -> i64 {
        saturate(div_away_from_zero(self.nanos, NANO))
    }

    /// The nearest float, for metrics and display only; decisions use the exact value.
    pub fn to_f64(self) -> f64 {
        let whole = self.nanos / NANO;
        let rest = self.nanos % NANO;
        whole as f64 + rest as f64 / NANO as f64
    }

    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub const fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// How many whole times `part` fits; `None` when `part` is not positive.
    pub fn whole_times(self, part: Self) -> Option<i64> {
        (part.nanos > 0).then(|| saturate(self.nanos.div_euclid(part.nanos)))
    }

    /// The amount times a whole number, saturating.
    pub fn times(self, count: i64) -> Self {
        Self {
            nanos: self.nanos.saturating_mul(i128::from(count)),
            notation: self.notation,
        }
    }

    /// As Kubernetes does it: zero has no notation of its own, so the sum takes the other side's.
    fn combined(self, other: Self, nanos: i128) -> Self {
        let notation = if self.is_zero() { other.notation } else { self.notation };
        Self { nanos, notation }
    }
}

fn div_away_from_zero(nanos: i128, unit: i128) -> i128 {
    let quotient = nanos / unit;
    match nanos % unit {
        0 => quotient,
        rest => quotient + rest.signum(),
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combined(other, self.nanos.saturating_add(other.nanos))
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combined(other, self.nanos.saturating_sub(other.nanos))
    }
}

impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            nanos: self.nanos.saturating_neg(),
            notation: self.notation,
        }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        quantities.fold(Self::ZERO, Add::add)
    }
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = QuantityError;

    fn try_from(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Result<Self, QuantityError> {
        quantity.0.parse()
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a quantity such as \"500m\", \"2Gi\" or 3")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, units: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(units))
            }

            fn visit_u64<E: de::Error>(self, units: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_nanos(i128::from(units) * NANO))
            }

            // YAML and JSON write `cpu: 0.5` as a float; its shortest decimal text is what the user typed.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl schemars::JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": crate::schema::QUANTITY,
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>()
            .map_or_else(|error| format!("error: {error}"), |quantity| quantity.to_string())
    }

    #[test]
    fn quantities_print_as_kubernetes_prints_them() {
        for (text, expected) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1000m", "1"),
            ("0.1", "100m"),
            (".5", "500m"),
            ("5.", "5"),
            ("+5", "5"),
            ("-5", "-5"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("0.0001Ki", "102400u"),
            ("1e3", "1e3"),
            ("1500e0", "1500"),
            ("12E", "12E"),
            ("12e5", "1200e3"),
            ("1E3", "1e3"),
            ("100n", "100n"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("16Ei", "9223372036854775807"),
            ("1000E", "1e21"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_quantity_are_refused() {
        for text in [
            "", " ", ".", "1.2.3", "1 Gi", "Gi", "1gi", "1KI", "0x1", "1e", "1e1.5", "--1", "1ee3", "ten", "1Gi ",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn accessors_round_away_from_zero() {
        let quantity: Quantity = "1.0001".parse().unwrap();
        assert_eq!((quantity.value(), quantity.milli()), (2, 1001));
        let quantity: Quantity = "-1.0001".parse().unwrap();
        assert_eq!((quantity.value(), quantity.milli()), (-2, -1001));
    }

    #[test]
    fn a_sum_with_zero_takes_the_notation_of_the_other_side() {
        let gibi: Quantity = "1Gi".parse().unwrap();
        assert_eq!((Quantity::ZERO + gibi).to_string(), "1Gi");
        assert_eq!((gibi + Quantity::from_units(0)).to_string(), "1Gi");
    }

    #[test]
    fn huge_values_saturate() {
        let huge: Quantity = "1e999999999999".parse().unwrap();
        assert_eq!(huge, Quantity::MAX);
        assert_eq!(huge + huge, Quantity::MAX);
        assert_eq!(huge.value(), i64::MAX);
    }
}
