//! Reading a quantity from text, with the same verdicts and rounding as Kubernetes.

use std::str::FromStr;

use num_bigint::BigUint;
use num_traits::{ToPrimitive, Zero};

use super::{NANO, Notation, Quantity};

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("\"{0}\" is not a quantity; write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3")]
    Malformed(String),
    #[error(
        "\"{text}\" has the unknown suffix \"{suffix}\"; use one of n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent such as e3"
    )]
    UnknownSuffix { text: String, suffix: String },
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(shortened(text));
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let Some((scale, notation)) = Scale::from_suffix(suffix) else {
            return Err(QuantityError::UnknownSuffix {
                text: shortened(text),
                suffix: shortened(suffix),
            });
        };
        let magnitude = scale.nanos(whole, fraction);
        let (magnitude, notation) = match notation {
            // Kubernetes caps binary quantities at the largest signed 64-bit number, and prints those below one in decimal.
            Notation::BinarySi if magnitude < NANO && magnitude > 0 => (magnitude, Notation::DecimalSi),
            Notation::BinarySi => (magnitude.min(i128::from(i64::MAX) * NANO), notation),
            Notation::DecimalSi | Notation::DecimalExponent => (magnitude, notation),
        };
        Ok(Self {
            nanos: if negative { -magnitude } else { magnitude },
            notation,
        })
    }
}

/// What a suffix multiplies by.
enum Scale {
    PowerOfTen(i32),
    /// A shift: `Ki` is 10, `Mi` is 20.
    PowerOfTwo(u32),
}

impl Scale {
    fn from_suffix(suffix: &str) -> Option<(Self, Notation)> {
        let decimal = |exponent| Some((Self::PowerOfTen(exponent), Notation::DecimalSi));
        let binary = |shift| Some((Self::PowerOfTwo(shift), Notation::BinarySi));
        match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            _ => {
                let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                // Beyond ±1000 the value saturates (or rounds to one nano unit) whatever its digits are.
                let exponent = i32::try_from(exponent.clamp(-1000, 1000)).ok()?;
                Some((Self::PowerOfTen(exponent), Notation::DecimalExponent))
            }
        }
    }

    /// `whole.fraction` times this scale in nano units, rounded up to the next one, saturating.
    fn nanos(&self, whole: &str, fraction: &str) -> i128 {
        match *self {
            Self::PowerOfTen(exponent) => shifted_digits(whole, fraction, exponent.saturating_add(9)),
            Self::PowerOfTwo(shift) => binary_nanos(whole, fraction, shift),
        }
    }
}

/// `whole.fraction × 10^exponent` rounded up to an integer, saturating.
fn shifted_digits(whole: &str, fraction: &str, exponent: i32) -> i128 {
    let point = i64::try_from(whole.len())
        .unwrap_or(i64::MAX)
        .saturating_add(i64::from(exponent));
    let mut total: i128 = 0;
    let mut round_up = false;
    for (position, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        if i64::try_from(position).unwrap_or(i64::MAX) >= point {
            round_up |= digit != b'0';
            continue;
        }
        total = total.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    let digits = i64::try_from(whole.len() + fraction.len()).unwrap_or(i64::MAX);
    for _ in digits..point {
        if total == 0 || total == i128::MAX {
            break;
        }
        total = total.saturating_mul(10);
    }
    total.saturating_add(i128::from(round_up))
}

/// `whole.fraction × 2^shift` in nano units, rounded up, saturating.
fn binary_nanos(whole: &str, fraction: &str, shift: u32) -> i128 {
    // Digits that far behind the point are below any nano unit; whether there are any still decides the rounding.
    const LONGEST_FRACTION: usize = 200;
    const LONGEST_WHOLE: usize = 40;
    let whole = whole.trim_start_matches('0');
    if whole.len() > LONGEST_WHOLE {
        return i128::MAX;
    }
    let (fraction, rest) = fraction.split_at(fraction.len().min(LONGEST_FRACTION));
    let digits: BigUint = format!("0{whole}{fraction}")
        .parse()
        .expect("only ASCII digits were split off");
    let numerator = (digits << shift) * BigUint::from(NANO.unsigned_abs());
    let denominator = BigUint::from(10_u8).pow(u32::try_from(fraction.len()).expect("at most 200 digits"));
    let (quotient, remainder) = (&numerator / &denominator, &numerator % &denominator);
    let inexact = !remainder.is_zero() || rest.bytes().any(|digit| digit != b'0');
    quotient
        .to_i128()
        .unwrap_or(i128::MAX)
        .saturating_add(i128::from(inexact))
}

/// Keeps error sentences readable when someone feeds a megabyte of text.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 64;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}
