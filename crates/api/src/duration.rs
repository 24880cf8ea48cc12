//! Durations in Go's syntax (`1h30m`, `90s`), and the ones that may be `Never`.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::schema;

/// A span of time as Go writes it, to the nanosecond.
///
/// The API's pattern admits values beyond what 64-bit nanoseconds hold (about 292 years). Those saturate instead of failing,
/// so that one such object can't make a whole list unreadable; [`GoDuration::is_out_of_range`] tells, and validation reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a duration; write numbers with units, such as 30s, 5m or 1h30m")]
pub struct DurationError(String);

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    pub const fn nanos(self) -> i64 {
        self.0
    }

    pub const fn as_signed(self) -> SignedDuration {
        SignedDuration::from_nanos(self.0)
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether the text asked for more than 64-bit nanoseconds hold.
    pub const fn is_out_of_range(self) -> bool {
        self.0 == i64::MAX || self.0 == i64::MIN
    }
}

impl From<GoDuration> for SignedDuration {
    fn from(duration: GoDuration) -> Self {
        duration.as_signed()
    }
}

impl From<SignedDuration> for GoDuration {
    fn from(duration: SignedDuration) -> Self {
        let nanos = duration.as_nanos();
        Self(i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX }))
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    /// Go's `time.ParseDuration`, saturating where Go reports an overflow.
    fn from_str(text: &str) -> Result<Self, DurationError> {
        let malformed = || DurationError(text.chars().take(64).collect());
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(malformed());
        }
        let mut total: i128 = 0;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (nanos, after) = leading_term(rest).ok_or_else(malformed)?;
            total = total.saturating_add(nanos);
            rest = after;
        }
        let signed = if negative { -total } else { total };
        Ok(Self(i64::try_from(signed).unwrap_or(if negative {
            i64::MIN
        } else {
            i64::MAX
        })))
    }
}

/// Reads one `number unit` term in nanoseconds, and what follows it.
fn leading_term(text: &str) -> Option<(i128, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number_end);
    let unit_end = rest
        .find(|c: char| c.is_ascii_digit() || c == '.')
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(unit_end);
    let unit_nanos: i128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole = whole.bytes().fold(0_i128, |sum, digit| {
        sum.saturating_mul(10).saturating_add(i128::from(digit - b'0'))
    });
    // Eighteen digits keep the fraction of an hour exact to the nanosecond; Go also drops what lies beyond its precision.
    let (fraction_nanos, _) = fraction
        .bytes()
        .take(18)
        .fold((0_i128, unit_nanos * 1_000_000), |(sum, unit), digit| {
            (sum + i128::from(digit - b'0') * (unit / 10), unit / 10)
        });
    Some((
        whole
            .saturating_mul(unit_nanos)
            .saturating_add(fraction_nanos / 1_000_000),
        after,
    ))
}

impl fmt::Display for GoDuration {
    /// As Go prints durations: `1h0m0s`, `1m30s`, `1.5s`, `200ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write_decimal(f, nanos, 1_000, "µs"),
            1_000_000..1_000_000_000 => write_decimal(f, nanos, 1_000_000, "ms"),
            _ => {
                let seconds = nanos / 1_000_000_000;
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if seconds >= 60 {
                    write!(f, "{minutes}m")?;
                }
                write_decimal(f, nanos % 60_000_000_000, 1_000_000_000, "s")
            }
        }
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, suffix: &str) -> fmt::Result {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return write!(f, "{whole}{suffix}");
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{fraction:0digits$}");
    write!(f, "{whole}.{}{suffix}", fraction.trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": schema::DURATION })
    }
}

/// A duration or `Never`; the user's own text is what is written back (`720h` stays `720h`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NillableDuration {
    text: String,
    duration: Option<GoDuration>,
}

impl NillableDuration {
    pub const NEVER: &'static str = "Never";

    pub fn never() -> Self {
        Self {
            text: Self::NEVER.to_owned(),
            duration: None,
        }
    }

    /// The duration, or nothing for `Never`.
    pub fn as_duration(&self) -> Option<SignedDuration> {
        self.duration.map(GoDuration::as_signed)
    }

    pub fn as_go_duration(&self) -> Option<GoDuration> {
        self.duration
    }

    pub fn is_never(&self) -> bool {
        self.duration.is_none()
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<GoDuration> for NillableDuration {
    fn from(duration: GoDuration) -> Self {
        Self {
            text: duration.to_string(),
            duration: Some(duration),
        }
    }
}

impl From<SignedDuration> for NillableDuration {
    fn from(duration: SignedDuration) -> Self {
        GoDuration::from(duration).into()
    }
}

impl FromStr for NillableDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let duration = match text {
            Self::NEVER => None,
            finite => Some(finite.parse()?),
        };
        Ok(Self {
            text: text.to_owned(),
            duration,
        })
    }
}

impl fmt::Display for NillableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for NillableDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for NillableDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for NillableDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NillableDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": schema::DURATION_OR_NEVER })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (text, expected) in [
            ("0", "0s"),
            ("0s", "0s"),
            ("1h", "1h0m0s"),
            ("20m", "20m0s"),
            ("90s", "1m30s"),
            ("1h30m5s", "1h30m5s"),
            ("5s1h", "1h0m5s"),
            ("1.5s", "1.5s"),
            ("200ms", "200ms"),
            ("1.5ms", "1.5ms"),
            ("3us", "3µs"),
            ("7ns", "7ns"),
            ("-1m", "-1m0s"),
            ("+1m", "1m0s"),
            ("0.5h", "30m0s"),
            (".5m", "30s"),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_duration_are_refused() {
        for text in [
            "", "1", "h", "1hr", "1h 30m", "1d", ".s", "1..5s", "s1", "--1s", "Never",
        ] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_64_bits_cannot_hold_saturates_and_says_so() {
        let duration: GoDuration = "99999999999999999999h".parse().unwrap();
        assert!(duration.is_out_of_range());
        assert!(!"2562047h".parse::<GoDuration>().unwrap().is_out_of_range());
    }

    #[test]
    fn never_and_the_users_own_text_survive() {
        for text in ["Never", "720h", "0s", "5s1h"] {
            let value: NillableDuration = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(&value).unwrap(), text);
        }
        assert!("Never".parse::<NillableDuration>().unwrap().is_never());
        assert!("never".parse::<NillableDuration>().is_err());
        assert_eq!(
            "720h".parse::<NillableDuration>().unwrap().as_duration(),
            Some(SignedDuration::from_hours(720))
        );
    }
}
