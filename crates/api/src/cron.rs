//! Cron schedules in the dialect of disruption budgets (api.md §1.1.4).
//!
//! Five fields or a macro such as `@daily`. Day of month and day of week must both match when either is a bare star, and
//! either may match otherwise. There is no seventh day of the week and no reversed range.

use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// When something recurs, to the minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days_of_month: u64,
    months: u64,
    days_of_week: u64,
    /// Whether day of month or day of week is a bare star.
    any_day: bool,
    zone: TimeZone,
}

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    #[error("\"{0}\" is not a schedule macro; use @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly")]
    UnknownMacro(String),
    #[error("a schedule has 5 fields (minute hour day-of-month month day-of-week), found {0}")]
    FieldCount(usize),
    #[error("\"{text}\" is not valid in the {field} field; it takes {expected}")]
    Field {
        field: &'static str,
        text: String,
        expected: &'static str,
    },
    #[error("\"{0}\" is not a time zone; use an IANA name such as Europe/Paris")]
    UnknownZone(String),
}

impl Schedule {
    /// Reads a schedule that may choose its time zone with a `CRON_TZ=Area/City ` prefix.
    pub fn parse_with_zone(text: &str) -> Result<Self, CronError> {
        let Some(rest) = text.trim_start().strip_prefix("CRON_TZ=") else {
            return text.parse();
        };
        let (name, schedule) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let zone = TimeZone::get(name).map_err(|_| CronError::UnknownZone(name.chars().take(64).collect()))?;
        Ok(Self {
            zone,
            ..schedule.parse()?
        })
    }

    /// The first hit strictly after an instant; nothing when there is none within five years.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        const YEARS_AHEAD: i16 = 5;
        let local = self.zone.to_datetime(after);
        let last_year = local.year().saturating_add(YEARS_AHEAD);
        let mut date = local.date();
        loop {
            if date.year() > last_year {
                return None;
            }
            if self.matches_date(date)
                && let Some(hit) = self.first_hit_on(date, after)
            {
                return Some(hit);
            }
            date = self.next_candidate(date)?;
        }
    }

    /// The day after, or the first of the next month when the whole month can't match.
    fn next_candidate(&self, date: Date) -> Option<Date> {
        if has(self.months, date.month()) {
            return date.tomorrow().ok();
        }
        date.first_of_month().checked_add(1.month()).ok()
    }

    fn matches_date(&self, date: Date) -> bool {
        let of_month = has(self.days_of_month, date.day());
        let of_week = has(self.days_of_week, date.weekday().to_sunday_zero_offset());
        let day = if self.any_day {
            of_month && of_week
        } else {
            of_month || of_week
        };
        has(self.months, date.month()) && day
    }

    fn first_hit_on(&self, date: Date, after: Timestamp) -> Option<Timestamp> {
        for hour in (0..24_i8).filter(|hour| has(self.hours, *hour)) {
            for minute in (0..60_i8).filter(|minute| has(self.minutes, *minute)) {
                let local = DateTime::from_parts(date, jiff::civil::time(hour, minute, 0, 0));
                // A local time that a clock change skips does not happen that day.
                let Ok(hit) = self.zone.to_ambiguous_zoned(local).compatible() else {
                    continue;
                };
                if hit.datetime() == local && hit.timestamp() > after {
                    return Some(hit.timestamp());
                }
            }
        }
        None
    }
}

fn has(set: u64, member: i8) -> bool {
    u32::try_from(member).is_ok_and(|member| set & (1 << member) != 0)
}

impl FromStr for Schedule {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let text = text.trim();
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => return Err(CronError::UnknownMacro(other.chars().take(64).collect())),
            fields => fields,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day_of_month, month, day_of_week] = fields[..] else {
            return Err(CronError::FieldCount(fields.len()));
        };
        let day_of_month = DAY_OF_MONTH.parse(day_of_month)?;
        let day_of_week = DAY_OF_WEEK.parse(day_of_week)?;
        Ok(Self {
            minutes: MINUTE.parse(minute)?.members,
            hours: HOUR.parse(hour)?.members,
            days_of_month: day_of_month.members,
            months: MONTH.parse(month)?.members,
            days_of_week: day_of_week.members,
            any_day: day_of_month.star || day_of_week.star,
            zone: TimeZone::UTC,
        })
    }
}

/// The range and the names of one field.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
    expected: &'static str,
}

struct Members {
    members: u64,
    star: bool,
}

const MINUTE: Field = Field {
    name: "minute",
    min: 0,
    max: 59,
    names: &[],
    expected: "0-59",
};
const HOUR: Field = Field {
    name: "hour",
    min: 0,
    max: 23,
    names: &[],
    expected: "0-23",
};
const DAY_OF_MONTH: Field = Field {
    name: "day-of-month",
    min: 1,
    max: 31,
    names: &[],
    expected: "1-31",
};
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
    expected: "1-12 or jan-dec",
};
const DAY_OF_WEEK: Field = Field {
    name: "day-of-week",
    min: 0,
    max: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    expected: "0-6 or sun-sat, with ranges in ascending order",
};

impl Field {
    fn parse(&self, text: &str) -> Result<Members, CronError> {
        let mut all = Members {
            members: 0,
            star: false,
        };
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let item = self.item(item).ok_or_else(|| CronError::Field {
                field: self.name,
                text: item.chars().take(64).collect(),
                expected: self.expected,
            })?;
            all.members |= item.members;
            all.star |= item.star;
        }
        Ok(all)
    }

    /// One of `*`, `n`, `n-m`, each with an optional `/step`; `n/step` runs to the end of the field.
    fn item(&self, text: &str) -> Option<Members> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step.parse::<u32>().ok().filter(|step| *step > 0)?)),
            None => (text, None),
        };
        let star = matches!(range, "*" | "?");
        let (start, end) = match range.split_once('-') {
            _ if star => (self.min, self.max),
            Some((start, end)) => (self.number(start)?, self.number(end)?),
            None => {
                let start = self.number(range)?;
                (start, if step.is_some() { self.max } else { start })
            }
        };
        if start < self.min || end > self.max || start > end {
            return None;
        }
        let step = step.unwrap_or(1);
        let members = (start..=end)
            .step_by(step as usize)
            .fold(0, |members, member| members | 1 << member);
        Some(Members {
            members,
            star: star && step == 1,
        })
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        match named {
            Some(position) => Some(self.min + u32::try_from(position).ok()?),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule = Schedule::parse_with_zone(schedule).unwrap();
        schedule
            .next_after(after.parse().unwrap())
            .map_or_else(|| "never".to_owned(), |hit| hit.to_string())
    }

    #[test]
    fn schedules_hit_when_cron_says() {
        for (schedule, after, expected) in [
            ("@daily", "2026-11-15T18:00:00Z", "2026-11-16T00:00:00Z"),
            ("@midnight", "2026-11-16T00:00:00Z", "2026-11-17T00:00:00Z"),
            ("@hourly", "2026-11-15T18:00:00.5Z", "2026-11-15T19:00:00Z"),
            ("@weekly", "2026-11-15T18:00:00Z", "2026-11-22T00:00:00Z"),
            ("@monthly", "2026-11-15T18:00:00Z", "2026-12-01T00:00:00Z"),
            ("@yearly", "2026-11-15T18:00:00Z", "2027-01-01T00:00:00Z"),
            ("*/15 * * * *", "2026-11-15T18:01:00Z", "2026-11-15T18:15:00Z"),
            ("50/5 * * * *", "2026-11-15T18:01:00Z", "2026-11-15T18:50:00Z"),
            ("30 6 * * SUN", "2026-11-15T18:00:00Z", "2026-11-22T06:30:00Z"),
            ("0 9 * * Mon-Fri", "2026-11-13T09:00:00Z", "2026-11-16T09:00:00Z"),
            ("0 0 29 feb *", "2026-11-15T18:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 ? jan,mar *", "2026-11-15T18:00:00Z", "2027-01-01T00:00:00Z"),
            // Either day may match when neither is a bare star …
            ("0 0 13 * 5", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"),
            ("0 0 13 * */2", "2026-11-15T00:00:00Z", "2026-11-17T00:00:00Z"),
            // … and both must when one is.
            ("0 0 */1 * 5", "2026-11-14T00:00:00Z", "2026-11-20T00:00:00Z"),
            ("0 0 31 2 *", "2026-11-15T00:00:00Z", "never"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn texts_that_are_no_schedule_are_refused() {
        for text in [
            "",
            "*",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * * * 7",
            "0 0 * * tue-mon",
            "*/0 * * * *",
            "5-1 * * * *",
            "a * * * *",
            "1- * * * *",
            "-1 * * * *",
            "@dailyfoo",
            "@every 1h",
            "@Daily",
            "TZ=UTC 0 0 * * *",
            "CRON_TZ=UTC 0 0 * * *",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_zone_can_be_chosen_where_it_is_allowed() {
        assert_eq!(
            next("CRON_TZ=Europe/Paris 0 9 * * *", "2026-11-15T00:00:00Z"),
            "2026-11-15T08:00:00Z"
        );
        assert!(matches!(
            Schedule::parse_with_zone("CRON_TZ=Mars/Olympus 0 9 * * *"),
            Err(CronError::UnknownZone(_))
        ));
        assert!(Schedule::parse_with_zone("CRON_TZ=").is_err());
    }

    #[test]
    fn a_local_time_that_the_clock_skips_does_not_hit_that_day() {
        // Clocks in Paris go from 02:00 to 03:00 on 28 March 2027.
        assert_eq!(
            next("CRON_TZ=Europe/Paris 30 2 * * *", "2027-03-27T12:00:00Z"),
            "2027-03-29T00:30:00Z"
        );
    }
}
