//! String and number formats that the API server checks; unknown formats are accepted.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

/// Whether `text` is a valid instance of string format `name`.
pub(super) fn accepts(name: &str, text: &str) -> bool {
    match name {
        "date-time" => is_date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => is_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uuid" => uuid::Uuid::try_parse(text).is_ok(),
        "byte" => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        "uri" => url::Url::parse(text).is_ok() || text.starts_with('/'),
        "mac" => is_mac(text),
        _ => true,
    }
}

/// Whether an integer fits `int32` or `int64`.
pub(super) fn holds_integer(name: &str, value: &Value) -> bool {
    match name {
        "int32" => value
            .as_f64()
            .is_some_and(|n| n >= f64::from(i32::MIN) && n <= f64::from(i32::MAX)),
        _ => value.is_i64() || value.is_f64(),
    }
}

fn is_date_time(text: &str) -> bool {
    let has_time = text.as_bytes().get(10).is_some_and(|c| matches!(c, b'T' | b't' | b' '));
    has_time && text.parse::<jiff::Timestamp>().is_ok()
}

/// Go durations (`1h30m`, `-1.5s`) and the spelled-out ones of the strfmt package (`3 days`).
fn is_duration(text: &str) -> bool {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    if body == "0" {
        return true;
    }
    go_duration(body) || spelled_duration(body)
}

fn go_duration(body: &str) -> bool {
    let mut rest = body;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.parse::<f64>().is_err() {
            return false;
        }
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h"]
            .into_iter()
            .filter(|u| tail.starts_with(u))
            .max_by_key(|u| u.len())
        else {
            return false;
        };
        rest = &tail[unit.len()..];
        parts += 1;
    }
    parts > 0
}

fn spelled_duration(body: &str) -> bool {
    let digits = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let (number, unit) = body.split_at(digits);
    let units = [
        "ns", "nano", "us", "micro", "ms", "milli", "s", "sec", "second", "m", "min", "minute", "h", "hr", "hour", "d",
        "day", "w", "wk", "week",
    ];
    let unit = unit.trim().trim_end_matches('s');
    !number.is_empty() && (units.contains(&unit) || body.ends_with('s') && unit.is_empty() && body.len() > digits)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => bits <= 32,
        Ok(std::net::IpAddr::V6(_)) => bits <= 128,
        Err(_) => false,
    }
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    parts.len() == 6
        && parts
            .iter()
            .all(|p| p.len() == 2 && p.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Whether `text` is a resource quantity such as `100m`, `1.5Gi` or `2e3`.
pub(super) fn accepts_quantity(text: &str) -> bool {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = body
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(body.len());
    let (number, suffix) = body.split_at(digits);
    if number.is_empty() || number == "." || number.matches('.').count() > 1 {
        return false;
    }
    let exponent = |s: &str| s.strip_prefix(['e', 'E']).is_some_and(|e| e.parse::<i32>().is_ok());
    matches!(
        suffix,
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei"
    ) || exponent(suffix)
}
