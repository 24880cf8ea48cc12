//! Time as providers and controllers see it: the wall clock in production, a hand-moved one in tests.
//!
//! Everything that compares, waits for or records a moment goes through [`Clock`]. A test owns a [`ManualClock`] (or
//! bridges another source by implementing [`TimeSource`]) and moves it; nothing sleeps on its own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A shared handle to a source of time.
#[derive(Clone, Debug)]
pub struct Clock(Arc<dyn TimeSource>);

/// Where time comes from.
pub trait TimeSource: Debug + Send + Sync + 'static {
    /// The current moment.
    fn now(&self) -> Timestamp;
    /// Resolves once `now()` has reached `deadline`.
    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()>;
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::from_source(SystemTime)
    }

    /// A clock over any source, such as the sandbox's.
    pub fn from_source(source: impl TimeSource) -> Self {
        Self(Arc::new(source))
    }

    /// The current moment.
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Resolves once `duration` has passed on this clock.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(later(self.now(), duration))
    }

    /// Resolves once the clock has reached `deadline`.
    pub fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline)
    }

    /// How long ago `moment` was; negative while it lies ahead.
    pub fn since(&self, moment: Timestamp) -> SignedDuration {
        self.now().duration_since(moment)
    }
}

/// `from + by`, at the end of time if that overflows.
pub fn later(from: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| from.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

#[derive(Debug)]
struct SystemTime;

impl TimeSource for SystemTime {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        let left = Duration::try_from(deadline.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
        tokio::time::sleep(left).boxed()
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<ManualTime>>);

#[derive(Debug)]
struct ManualTime {
    now: Timestamp,
    next_sleeper: u64,
    sleepers: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(ManualTime {
            now: start,
            next_sleeper: 0,
            sleepers: BTreeMap::new(),
        })))
    }

    /// The handle to give to the code under test.
    pub fn clock(&self) -> Clock {
        Clock::from_source(self.clone())
    }

    /// Moves time forward and wakes whoever waited for a moment that is now past.
    pub fn advance(&self, by: Duration) {
        let target = later(self.0.lock().now, by);
        self.advance_to(target);
    }

    /// Moves time to `target`; a target in the past changes nothing.
    pub fn advance_to(&self, target: Timestamp) {
        let due = {
            let mut time = self.0.lock();
            if target > time.now {
                time.now = target;
            }
            let after_now = (time.now, u64::MAX);
            let later = time.sleepers.split_off(&after_now);
            std::mem::replace(&mut time.sleepers, later)
        };
        for sleeper in due.into_values() {
            // A sleeper that was dropped meanwhile no longer cares.
            let _ = sleeper.send(());
        }
    }

    /// The earliest moment that someone still waits for.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let mut time = self.0.lock();
        time.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        time.sleepers.keys().next().map(|(deadline, _)| *deadline)
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        let mut time = self.0.lock();
        if deadline <= time.now {
            return futures::future::ready(()).boxed();
        }
        let (wake, woken) = oneshot::channel();
        let id = time.next_sleeper;
        time.next_sleeper += 1;
        time.sleepers.insert((deadline, id), wake);
        woken.map(|_| ()).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_exactly_the_sleepers_whose_time_has_come() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let clock = manual.clock();
        let early = clock.sleep(Duration::from_secs(5));
        let mut late = clock.sleep(Duration::from_secs(10));
        manual.advance(Duration::from_secs(5));
        early.await;
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(manual.next_deadline(), Some(Timestamp::from_second(10).unwrap()));
        manual.advance(Duration::from_secs(5));
        late.await;
        assert_eq!(manual.next_deadline(), None);
    }

    #[tokio::test]
    async fn a_deadline_in_the_past_does_not_wait() {
        let clock = ManualClock::starting_at(Timestamp::from_second(100).unwrap()).clock();
        clock.sleep_until(Timestamp::from_second(99).unwrap()).await;
    }
}
