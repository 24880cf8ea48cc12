//! The time, passed in, so that tests decide what time it is.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Where a component gets the time from.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    fn now(&self) -> Timestamp;

    /// Resolves once `duration` has passed on this clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<Mutex<Timestamp>>,
    moved: watch::Sender<()>,
}

impl ManualClock {
    pub fn new(now: Timestamp) -> Self {
        Self { now: Arc::new(Mutex::new(now)), moved: watch::Sender::new(()) }
    }

    /// Moves the time forward and wakes the sleepers whose time has come.
    pub fn advance(&self, duration: Duration) {
        {
            let mut now = self.now.lock();
            *now = after(*now, duration);
        }
        self.moved.send_replace(());
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new("2026-01-01T00:00:00Z".parse().expect("a valid timestamp"))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.lock()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let wake_at = after(self.now(), duration);
        let now = self.now.clone();
        let mut moved = self.moved.subscribe();
        Box::pin(async move {
            while *now.lock() < wake_at {
                if moved.changed().await.is_err() {
                    // Nobody can move this clock any more: the time never comes.
                    std::future::pending::<()>().await;
                }
            }
        })
    }
}

/// `duration` after `time`, at most the end of time.
pub fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// How long ago `time` was, zero if it is still to come.
pub fn since(time: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(time)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_sleeper_wakes_when_the_clock_reaches_its_time() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep(Duration::from_secs(10));
        assert!((&mut sleep).now_or_never().is_none());
        clock.advance(Duration::from_secs(9));
        assert!((&mut sleep).now_or_never().is_none());
        clock.advance(Duration::from_secs(1));
        assert!(sleep.now_or_never().is_some());
    }

    #[test]
    fn time_to_come_is_no_time_ago() {
        let now = ManualClock::default().now();
        assert_eq!(since(after(now, Duration::from_secs(5)), now), Duration::ZERO);
        assert_eq!(since(now, after(now, Duration::from_secs(5))), Duration::from_secs(5));
    }
}
