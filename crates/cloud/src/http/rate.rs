//! A client-side rate limit: a token bucket that slows down when the cloud says so, and in which urgent calls go first.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::clock::{Clock, later};

/// How many requests per second a client sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    pub per_second: f64,
    pub burst: u32,
}

/// Who goes first. While a call of an earlier lane waits, those of later lanes take nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Deletions and what they wait for, where a provider tells them from launches: machines cost until they are gone.
    Release,
    /// Launches, deletions and what they wait for.
    Urgent,
    /// Refreshes; these also leave a quarter of the burst to others.
    Background,
}

/// A token bucket.
#[derive(Debug)]
pub struct RateLimiter {
    clock: Clock,
    limit: RateLimit,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Timestamp,
    /// The part of the rate in use: 1, or less after the cloud throttled us.
    factor: f64,
    /// No recovery before this.
    slow_until: Timestamp,
    /// Calls that wait, by lane.
    waiting: [usize; Lane::COUNT],
}

/// A call in a lane, for as long as it waits.
struct Waiting<'a> {
    bucket: &'a Mutex<Bucket>,
    lane: Lane,
}

/// After a throttled answer the rate is halved for this long, then recovers.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// Part of the full rate regained per second once recovery starts.
const RECOVERY_PER_SECOND: f64 = 0.1;
/// A call looks again after so many tokens, however many wait ahead of it.
const MOST_AHEAD: usize = 8;
const SLOWEST_FACTOR: f64 = 1.0 / 16.0;

impl RateLimiter {
    pub fn new(clock: Clock, limit: RateLimit) -> Self {
        let now = clock.now();
        let bucket = Bucket {
            tokens: f64::from(limit.burst),
            filled_at: now,
            factor: 1.0,
            slow_until: now,
            waiting: [0; Lane::COUNT],
        };
        Self {
            clock,
            limit,
            bucket: Mutex::new(bucket),
        }
    }

    /// Waits until a request may be sent. Answers how long it waited.
    pub async fn acquire(&self, lane: Lane) -> Duration {
        let started = self.clock.now();
        let mut waiting = None;
        while let Err(wait) = self.try_acquire(lane) {
            waiting.get_or_insert_with(|| Waiting::new(&self.bucket, lane));
            self.clock.sleep(wait).await;
        }
        drop(waiting);
        Duration::try_from(self.clock.since(started)).unwrap_or_default()
    }

    /// The cloud answered that we are too fast.
    pub fn throttled(&self) {
        let now = self.clock.now();
        let mut bucket = self.bucket.lock();
        bucket.fill(now, self.limit);
        // A burst of throttled answers is one reason to slow down, not many.
        if bucket.slow_until > now && bucket.factor < 1.0 {
            return;
        }
        bucket.factor = (bucket.factor / 2.0).max(SLOWEST_FACTOR);
        bucket.tokens = 0.0;
        bucket.slow_until = later(now, SLOW_FOR);
    }

    fn try_acquire(&self, lane: Lane) -> Result<(), Duration> {
        let mut bucket = self.bucket.lock();
        bucket.fill(self.clock.now(), self.limit);
        let reserve = match lane {
            Lane::Release | Lane::Urgent => 0.0,
            Lane::Background => f64::from(self.limit.burst / 4),
        };
        let ahead: usize = bucket.waiting[..lane as usize].iter().sum();
        if ahead == 0 && bucket.tokens >= reserve + 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        // Those ahead take a token each; but they may give up, so the wait is never for many of them.
        let ahead = ahead.min(MOST_AHEAD) as f64;
        let missing = (reserve + 1.0 + ahead - bucket.tokens).max(1.0);
        let seconds = missing / (self.limit.per_second * bucket.factor);
        // A little more than needed, so that rounding does not cost another turn.
        Err(Duration::from_secs_f64(seconds) + Duration::from_micros(1))
    }
}

impl Lane {
    const COUNT: usize = 3;
}

impl<'a> Waiting<'a> {
    fn new(bucket: &'a Mutex<Bucket>, lane: Lane) -> Self {
        bucket.lock().waiting[lane as usize] += 1;
        Self { bucket, lane }
    }
}

/// Also when the call is given up.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.bucket.lock().waiting[self.lane as usize] -= 1;
    }
}

impl Bucket {
    fn fill(&mut self, now: Timestamp, limit: RateLimit) {
        let seconds = now.duration_since(self.filled_at).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + seconds * limit.per_second * self.factor).min(f64::from(limit.burst));
        let recovering = now
            .duration_since(self.slow_until.max(self.filled_at))
            .as_secs_f64()
            .max(0.0);
        self.factor = (self.factor + recovering * RECOVERY_PER_SECOND).min(1.0);
        self.filled_at = now;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::clock::ManualClock;

    fn limiter(per_second: f64, burst: u32) -> (ManualClock, RateLimiter) {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let limiter = RateLimiter::new(manual.clock(), RateLimit { per_second, burst });
        (manual, limiter)
    }

    fn take(limiter: &RateLimiter, lane: Lane) -> bool {
        limiter.acquire(lane).now_or_never().is_some()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let (clock, limiter) = limiter(10.0, 3);
        assert!((0..3).all(|_| take(&limiter, Lane::Urgent)));
        assert!(!take(&limiter, Lane::Urgent));
        clock.advance(Duration::from_millis(101));
        assert!(take(&limiter, Lane::Urgent));
        assert!(!take(&limiter, Lane::Urgent));
    }

    #[test]
    fn background_calls_leave_room_for_urgent_ones() {
        let (_, limiter) = limiter(1.0, 8);
        let background = (0..8).filter(|_| take(&limiter, Lane::Background)).count();
        assert_eq!(background, 6);
        assert!(take(&limiter, Lane::Urgent));
        assert!(take(&limiter, Lane::Urgent));
        assert!(!take(&limiter, Lane::Urgent));
    }

    #[test]
    fn a_token_goes_to_the_most_urgent_that_waits_whoever_came_first() {
        let (clock, limiter) = limiter(1.0, 1);
        assert!(take(&limiter, Lane::Urgent));
        let mut waits: Vec<_> = [Lane::Background, Lane::Urgent, Lane::Release]
            .map(|lane| Box::pin(limiter.acquire(lane)))
            .into();
        assert!(waits.iter_mut().all(|call| call.now_or_never().is_none()));
        for first in [2, 1, 0] {
            clock.advance(Duration::from_millis(1100));
            let done: Vec<bool> = waits.iter_mut().map(|call| call.now_or_never().is_some()).collect();
            let expected: Vec<bool> = (0..waits.len()).map(|place| place == first).collect();
            assert_eq!(done, expected);
            waits.truncate(first);
        }
    }

    #[test]
    fn a_call_that_is_given_up_holds_nobody_back() {
        let (clock, limiter) = limiter(1.0, 1);
        assert!(take(&limiter, Lane::Urgent));
        let mut given_up = Box::pin(limiter.acquire(Lane::Release));
        assert!((&mut given_up).now_or_never().is_none());
        clock.advance(Duration::from_secs(2));
        assert!(!take(&limiter, Lane::Background), "somebody more urgent waits");
        drop(given_up);
        assert!(take(&limiter, Lane::Background));
    }

    #[test]
    fn a_throttled_answer_halves_the_rate_once_and_it_recovers_after_a_minute() {
        let (clock, limiter) = limiter(10.0, 1);
        assert!(take(&limiter, Lane::Urgent));
        limiter.throttled();
        limiter.throttled();
        clock.advance(Duration::from_millis(150));
        assert!(!take(&limiter, Lane::Urgent), "half the rate: a token every 200 ms");
        clock.advance(Duration::from_millis(60));
        assert!(take(&limiter, Lane::Urgent));
        clock.advance(Duration::from_secs(70));
        assert!(take(&limiter, Lane::Urgent));
        clock.advance(Duration::from_millis(101));
        assert!(take(&limiter, Lane::Urgent), "the full rate is back");
    }

    #[tokio::test]
    async fn a_waiting_call_goes_on_when_its_token_arrives() {
        let (clock, limiter) = limiter(1.0, 1);
        assert_eq!(limiter.acquire(Lane::Urgent).await, Duration::ZERO);
        let waits = limiter.acquire(Lane::Urgent);
        futures::pin_mut!(waits);
        assert!((&mut waits).now_or_never().is_none());
        clock.advance(Duration::from_secs(2));
        assert_eq!(waits.await, Duration::from_secs(2));
    }
}
