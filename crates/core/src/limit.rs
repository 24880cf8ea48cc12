//! A token bucket: so many per second, with a burst saved up while idle.

use std::time::Duration;

use jiff::Timestamp;

/// Hands out permission at `per_second`, saving up to `burst` of it.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Option<Timestamp>,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(per_second: f64, burst: f64) -> Self {
        Self {
            per_second,
            burst,
            tokens: burst,
            filled_at: None,
        }
    }

    /// Takes a token if one is there.
    pub fn try_take(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// Takes a token in advance and says how long its holder must wait for it.
    pub fn reserve(&mut self, now: Timestamp) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.per_second)
        }
    }

    /// Whether the bucket is full again, that is, as good as new.
    pub fn is_full(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.tokens >= self.burst
    }

    fn refill(&mut self, now: Timestamp) {
        if let Some(filled_at) = self.filled_at {
            let seconds = now.duration_since(filled_at).as_secs_f64().max(0.0);
            self.tokens = (self.tokens + seconds * self.per_second).min(self.burst);
        }
        self.filled_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        let mut bucket = TokenBucket::new(5.0, 10.0);
        assert_eq!((0..20).filter(|_| bucket.try_take(at(0))).count(), 10);
        assert_eq!((0..20).filter(|_| bucket.try_take(at(1))).count(), 5);
    }

    #[test]
    fn nothing_is_there_to_take_while_others_wait_for_what_they_reserved() {
        let mut bucket = TokenBucket::new(1.0, 1.0);
        assert_eq!(bucket.reserve(at(0)), Duration::ZERO);
        assert_eq!(bucket.reserve(at(0)), Duration::from_secs(1));
        assert!(!bucket.try_take(at(1)), "it is theirs");
        assert!(bucket.try_take(at(2)));
    }

    #[test]
    fn reservations_queue_up_behind_each_other() {
        let mut bucket = TokenBucket::new(10.0, 1.0);
        assert_eq!(bucket.reserve(at(0)), Duration::ZERO);
        assert_eq!(bucket.reserve(at(0)), Duration::from_millis(100));
        assert_eq!(bucket.reserve(at(0)), Duration::from_millis(200));
    }
}
