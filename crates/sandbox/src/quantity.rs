//! Quantities in the canonical form in which an API server stores them.

/// The canonical text of a quantity (`1024Mi` → `1Gi`, `0.5` → `500m`, `1.5Gi` → `1536Mi`); `None` if it is not one.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let quantity = parse(text)?;
    Some(match quantity.format {
        Format::Binary => binary(quantity.nanos),
        Format::Decimal => decimal(quantity.nanos),
        Format::Exponent => exponent(quantity.nanos),
    })
}

/// A quantity in billionths; `None` if it is not one.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    parse(text).map(|quantity| quantity.nanos)
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

struct Quantity {
    /// Billionths, rounded away from zero.
    nanos: i128,
    format: Format,
}

const NANO: i128 = 1_000_000_000;

fn parse(text: &str) -> Option<Quantity> {
    let digits_end = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let (negative, number) = match number.strip_prefix(['-', '+']) {
        Some(rest) => (number.starts_with('-'), rest),
        None => (false, number),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let (numerator, denominator, format) = scale(suffix)?;
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let fraction_scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = mantissa.checked_mul(numerator)?.checked_mul(NANO)?;
    let divisor = fraction_scale.checked_mul(denominator)?;
    // Upstream rounds up what is finer than a nano.
    let nanos = scaled / divisor + i128::from(scaled % divisor != 0);
    // Binary suffixes that do not come out whole fall back to decimal, as do small binary numbers.
    let format = if format == Format::Binary && (nanos % NANO != 0 || nanos < 1024 * NANO) {
        Format::Decimal
    } else {
        format
    };
    Some(Quantity {
        nanos: if negative { -nanos } else { nanos },
        format,
    })
}

fn scale(suffix: &str) -> Option<(i128, i128, Format)> {
    const KI: i128 = 1024;
    Some(match suffix {
        "n" => (1, NANO, Format::Decimal),
        "u" => (1, 1_000_000, Format::Decimal),
        "m" => (1, 1000, Format::Decimal),
        "" => (1, 1, Format::Decimal),
        "k" => (1000, 1, Format::Decimal),
        "M" => (1_000_000, 1, Format::Decimal),
        "G" => (NANO, 1, Format::Decimal),
        "T" => (NANO * 1000, 1, Format::Decimal),
        "P" => (NANO * 1_000_000, 1, Format::Decimal),
        "E" => (NANO * NANO, 1, Format::Decimal),
        "Ki" => (KI, 1, Format::Binary),
        "Mi" => (KI.pow(2), 1, Format::Binary),
        "Gi" => (KI.pow(3), 1, Format::Binary),
        "Ti" => (KI.pow(4), 1, Format::Binary),
        "Pi" => (KI.pow(5), 1, Format::Binary),
        "Ei" => (KI.pow(6), 1, Format::Binary),
        other => {
            let power: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(power.unsigned_abs())?;
            if power >= 0 {
                (factor, 1, Format::Exponent)
            } else {
                (1, factor, Format::Exponent)
            }
        }
    })
}

fn decimal(nanos: i128) -> String {
    if nanos == 0 {
        return "0".into();
    }
    let suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let (value, index) = shrink(nanos, 1000, suffixes.len() - 1);
    format!("{value}{}", suffixes[index])
}

fn binary(nanos: i128) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (value, index) = shrink(nanos / NANO, 1024, suffixes.len() - 1);
    format!("{value}{}", suffixes[index])
}

fn exponent(nanos: i128) -> String {
    if nanos == 0 {
        return "0".into();
    }
    let (value, index) = shrink(nanos, 1000, 12);
    match i32::try_from(index).unwrap_or(0) * 3 - 9 {
        0 => value.to_string(),
        power => format!("{value}e{power}"),
    }
}

/// Divides by `base` as long as nothing is lost, at most `limit` times.
fn shrink(mut value: i128, base: i128, limit: usize) -> (i128, usize) {
    let mut steps = 0;
    while steps < limit && value != 0 && value % base == 0 {
        value /= base;
        steps += 1;
    }
    (value, steps)
}

#[cfg(test)]
mod tests {
    use super::canonical;

    fn check(text: &str, expected: &str) {
        assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
    }

    #[test]
    fn quantities_are_written_with_the_largest_suffix_that_loses_nothing() {
        check("1", "1");
        check("0.5", "500m");
        check("1024Mi", "1Gi");
        check("4000m", "4");
        check("1.5Gi", "1536Mi");
        check("100Mi", "100Mi");
        check("134217728", "134217728");
        check("1000", "1k");
        check("-1", "-1");
        check("0", "0");
        check("1e3", "1e3");
        check("0.1m", "100u");
        check("1k", "1k");
    }

    #[test]
    fn what_is_no_quantity_is_left_alone() {
        for text in [
            "",
            "x",
            "1x",
            "1.2.3",
            "1 Gi",
            ".",
            "99999999999999999999999999999999999999999Ei",
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
