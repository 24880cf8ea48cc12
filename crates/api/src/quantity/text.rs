//! Writing a quantity the way Kubernetes does: the largest suffix that leaves an integer.

use std::fmt;

use super::{NANO, Notation, Quantity};

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        match self.notation {
            Notation::BinarySi if self.nanos.unsigned_abs() >= 1024 * NANO.unsigned_abs() => self.write_binary(f),
            Notation::BinarySi | Notation::DecimalSi => {
                let (mantissa, thousands) = self.decimal_parts();
                write!(f, "{mantissa}")?;
                match DECIMAL_SUFFIXES.get(thousands) {
                    Some(suffix) => f.write_str(suffix),
                    // Past exa there is no letter left; Kubernetes falls back to an exponent too.
                    None => write!(f, "e{}", exponent_of(thousands)),
                }
            }
            Notation::DecimalExponent => {
                let (mantissa, thousands) = self.decimal_parts();
                write!(f, "{mantissa}")?;
                match exponent_of(thousands) {
                    0 => Ok(()),
                    exponent => write!(f, "e{exponent}"),
                }
            }
        }
    }
}

const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// The amount as `mantissa × 1000^thousands` nano units with the smallest integer mantissa.
    fn decimal_parts(self) -> (i128, usize) {
        let (mut mantissa, mut thousands) = (self.nanos, 0);
        while mantissa % 1000 == 0 {
            mantissa /= 1000;
            thousands += 1;
        }
        (mantissa, thousands)
    }

    fn write_binary(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mantissa = super::div_away_from_zero(self.nanos, NANO);
        let mut power = 0;
        while mantissa % 1024 == 0 && power + 1 < BINARY_SUFFIXES.len() {
            mantissa /= 1024;
            power += 1;
        }
        write!(f, "{mantissa}{}", BINARY_SUFFIXES[power])
    }
}

fn exponent_of(thousands: usize) -> i32 {
    i32::try_from(thousands).unwrap_or(i32::MAX / 4) * 3 - 9
}
