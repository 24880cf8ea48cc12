//! A count of nodes, or a share of them: `5` or `10%`.

use std::fmt;
use std::str::FromStr;

/// Either an absolute count or a percentage of a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PercentOrInt {
    Int(u32),
    Percent(u32),
}

/// Why a text is neither a count nor a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is neither a count nor a percentage; write a whole number such as 5, or a percentage from 0% to 100%")]
pub struct PercentError(String);

impl PercentOrInt {
    /// The count that this allows out of `total`. Percentages round up: 5% of ten nodes must not mean "never".
    pub fn of(self, total: u32) -> u32 {
        match self {
            Self::Int(count) => count,
            Self::Percent(percent) => {
                let share = (u64::from(percent) * u64::from(total)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }
}

impl FromStr for PercentOrInt {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let (digits, percent) = match text.strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PercentError(text.chars().take(64).collect()));
        }
        // A count beyond 32 bits is as good as the largest one.
        let number = digits.parse().unwrap_or(u32::MAX);
        match percent {
            true if number > 100 => Err(PercentError(text.chars().take(64).collect())),
            true => Ok(Self::Percent(number)),
            false => Ok(Self::Int(number)),
        }
    }
}

impl fmt::Display for PercentOrInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_and_counts_stay() {
        for (text, total, expected) in [
            ("10%", 5, 1),
            ("5%", 10, 1),
            ("0%", 100, 0),
            ("100%", 7, 7),
            ("0", 9, 0),
            ("250", 9, 250),
            ("10%", 0, 0),
        ] {
            assert_eq!(
                text.parse::<PercentOrInt>().unwrap().of(total),
                expected,
                "{text} of {total}"
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "%", "-1", "-10%", "1000%", "101%", "1.5", "ten", "10 %"] {
            assert!(text.parse::<PercentOrInt>().is_err(), "{text}");
        }
    }
}
