//! When a request may be sent again, and after how long.

use std::{ops::RangeInclusive, time::Duration};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use rand::Rng;

/// Whether sending a request twice is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// Reads, and writes that mean the same when repeated.
    Repeatable,
    /// Everything else: sent again only if the cloud certainly did not act on it.
    Unrepeatable,
}

/// How often and how patiently to try.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Tries in total, the first included.
    pub attempts: u32,
    pub first_delay: Duration,
    pub longest_delay: Duration,
    /// The part of a delay that is waited is drawn from this, so that clients that failed together do not come back together.
    pub spread: RangeInclusive<f64>,
    /// Answers after which a repeatable request is sent again.
    pub transient: Vec<StatusCode>,
    /// Answers that say the request was not acted upon: then even an unrepeatable one is sent again.
    pub refused: Vec<StatusCode>,
}

/// How one attempt ended, as far as retrying is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Answered(StatusCode),
    /// The connection was never made.
    NotSent,
    /// Sent, or partly, without a complete answer.
    Unknown,
}

/// What the cloud asks us to wait is followed up to here.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 4,
            first_delay: Duration::from_millis(200),
            longest_delay: Duration::from_secs(5),
            spread: 0.5..=1.0,
            transient: vec![
                StatusCode::REQUEST_TIMEOUT,
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::BAD_GATEWAY,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::GATEWAY_TIMEOUT,
            ],
            refused: vec![StatusCode::TOO_MANY_REQUESTS],
        }
    }
}

impl RetryPolicy {
    /// Whether another try is allowed after attempt `attempt` (counted from 1) ended so.
    pub fn allows(&self, safety: Safety, attempt: u32, ending: Ending) -> bool {
        if attempt >= self.attempts {
            return false;
        }
        match (safety, ending) {
            (_, Ending::NotSent) => true,
            (Safety::Repeatable, Ending::Unknown) => true,
            (Safety::Unrepeatable, Ending::Unknown) => false,
            (Safety::Repeatable, Ending::Answered(status)) => {
                self.transient.contains(&status) || self.refused.contains(&status)
            }
            (Safety::Unrepeatable, Ending::Answered(status)) => self.refused.contains(&status),
        }
    }

    /// How long to wait before attempt `attempt + 1`: exponential, spread out, and not shorter than what the cloud
    /// asks for.
    pub fn delay(&self, attempt: u32, asked: Option<Duration>, random: &mut impl Rng) -> Duration {
        let doubled = self
            .first_delay
            .saturating_mul(1u32.checked_shl(attempt - 1).unwrap_or(u32::MAX));
        let longest = doubled.min(self.longest_delay);
        let own = longest.mul_f64(random.random_range(self.spread.clone()));
        asked.map_or(own, |asked| own.max(asked.min(LONGEST_RETRY_AFTER)))
    }
}

/// The seconds of a `Retry-After` header; a date is not worth trusting two clocks for.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn allows(safety: Safety, ending: Ending) -> bool {
        RetryPolicy::default().allows(safety, 1, ending)
    }

    #[test]
    fn a_repeatable_request_is_sent_again_after_anything_temporary() {
        use Safety::Repeatable;
        assert!(allows(Repeatable, Ending::Unknown));
        assert!(allows(Repeatable, Ending::NotSent));
        assert!(allows(Repeatable, Ending::Answered(StatusCode::BAD_GATEWAY)));
        assert!(!allows(Repeatable, Ending::Answered(StatusCode::BAD_REQUEST)));
        assert!(!allows(Repeatable, Ending::Answered(StatusCode::OK)));
    }

    #[test]
    fn an_unrepeatable_request_is_sent_again_only_if_nothing_happened() {
        use Safety::Unrepeatable;
        assert!(!allows(Unrepeatable, Ending::Unknown));
        assert!(!allows(Unrepeatable, Ending::Answered(StatusCode::BAD_GATEWAY)));
        assert!(allows(Unrepeatable, Ending::NotSent));
        assert!(allows(Unrepeatable, Ending::Answered(StatusCode::TOO_MANY_REQUESTS)));
    }

    #[test]
    fn the_last_attempt_is_the_last() {
        let policy = RetryPolicy {
            attempts: 2,
            ..RetryPolicy::default()
        };
        assert!(policy.allows(Safety::Repeatable, 1, Ending::NotSent));
        assert!(!policy.allows(Safety::Repeatable, 2, Ending::NotSent));
    }

    #[test]
    fn delays_double_up_to_the_longest_and_respect_the_cloud() {
        let policy = RetryPolicy::default();
        let mut random = rand::rng();
        for (attempt, most) in [(1, 200), (2, 400), (3, 800), (9, 5000), (60, 5000)] {
            let delay = policy.delay(attempt, None, &mut random);
            assert!(
                delay <= Duration::from_millis(most) && delay >= Duration::from_millis(most / 2),
                "{delay:?}"
            );
        }
        assert_eq!(
            policy.delay(1, Some(Duration::from_secs(7)), &mut random),
            Duration::from_secs(7)
        );
        assert_eq!(
            policy.delay(1, Some(Duration::from_secs(700)), &mut random),
            LONGEST_RETRY_AFTER
        );
    }

    #[test]
    fn delays_are_spread_over_the_whole_of_their_range_and_not_beyond() {
        let policy = RetryPolicy {
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(30),
            spread: 0.8..=1.2,
            ..RetryPolicy::default()
        };
        let mut random = StdRng::seed_from_u64(1);
        for (attempt, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (6, 30.0), (9, 30.0)] {
            let drawn: Vec<f64> = (0..200)
                .map(|_| policy.delay(attempt, None, &mut random).as_secs_f64() / seconds)
                .collect();
            assert!(drawn.iter().all(|part| (0.8..=1.2).contains(part)), "{drawn:?}");
            let (least, most) = drawn.iter().fold((f64::MAX, 0.0_f64), |(least, most), part| {
                (least.min(*part), most.max(*part))
            });
            assert!(least < 0.85 && most > 1.15, "from {least} to {most}");
        }
    }

    #[test]
    fn only_seconds_are_read_from_retry_after() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert(RETRY_AFTER, "3".parse().expect("a header value"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(3)));
        headers.insert(
            RETRY_AFTER,
            "Wed, 21 Oct 2026 07:28:00 GMT".parse().expect("a header value"),
        );
        assert_eq!(retry_after(&headers), None);
    }
}
