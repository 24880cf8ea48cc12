//! The time that objects and controllers live in: the wall clock, a faster one, or one that a test moves by hand.
//!
//! Timestamps, grace periods and controller timers all read this clock. Request-level time (`timeoutSeconds`,
//! bookmarks) is real time and does not come from here.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// A cheap handle on a source of time; clones share it.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// Runs by itself, `factor` times as fast as the wall clock.
    Running {
        origin: Timestamp,
        started: Instant,
        factor: f64,
    },
    Manual(Mutex<Manual>),
}

#[derive(Debug)]
struct Manual {
    now: Timestamp,
    next_id: u64,
    timers: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
    registrations: u64,
    registered: Arc<Notify>,
}

impl Clock {
    /// The wall clock.
    pub fn real() -> Self {
        Self::scaled(1.0)
    }

    /// Starts at the present and runs `factor` times as fast as the wall clock.
    pub fn scaled(factor: f64) -> Self {
        Self(Arc::new(Source::Running {
            origin: Timestamp::now(),
            started: Instant::now(),
            factor: factor.max(1e-6),
        }))
    }

    /// Stands still at `start` until [`Clock::advance`] is called.
    pub fn manual(start: Timestamp) -> Self {
        Self(Arc::new(Source::Manual(Mutex::new(Manual {
            now: start,
            next_id: 0,
            timers: BTreeMap::new(),
            registrations: 0,
            registered: Arc::default(),
        }))))
    }

    /// Whether tests move this clock by hand.
    pub fn is_manual(&self) -> bool {
        matches!(*self.0, Source::Manual(_))
    }

    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Running {
                origin,
                started,
                factor,
            } => {
                let elapsed = started.elapsed().mul_f64(*factor);
                later(*origin, elapsed)
            }
            Source::Manual(manual) => manual.lock().now,
        }
    }

    /// Completes when `duration` of this clock's time has passed.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(later(self.now(), duration))
    }

    /// Completes when this clock reaches `deadline`; at once if it has.
    pub fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        match &*self.0 {
            Source::Running { factor, .. } => {
                let left = Duration::try_from(deadline.duration_since(self.now())).unwrap_or(Duration::ZERO);
                Sleep(Timer::Running(Box::pin(tokio::time::sleep(left.div_f64(*factor)))))
            }
            Source::Manual(manual) => {
                let mut manual = manual.lock();
                if deadline <= manual.now {
                    return Sleep(Timer::Due);
                }
                let key = (deadline, manual.next_id);
                manual.next_id += 1;
                manual.registrations += 1;
                let (sender, receiver) = oneshot::channel();
                manual.timers.insert(key, sender);
                manual.registered.notify_waiters();
                Sleep(Timer::Manual {
                    clock: self.clone(),
                    key,
                    receiver,
                })
            }
        }
    }

    /// Moves a manual clock forward, firing every timer on the way in order of its deadline.
    ///
    /// Tasks run only when the caller next awaits, so they all see the new time; [`crate::Sandbox::run_for`] steps
    /// from timer to timer instead and lets the cluster settle in between.
    ///
    /// # Panics
    /// On a clock that runs by itself.
    pub fn advance(&self, duration: Duration) {
        let target = later(self.now(), duration);
        self.advance_to(target);
    }

    /// Moves a manual clock to `target` (never backwards), firing the timers on the way.
    ///
    /// # Panics
    /// On a clock that runs by itself.
    pub fn advance_to(&self, target: Timestamp) {
        let mut manual = self.expect_manual().lock();
        while let Some(entry) = manual.timers.first_entry() {
            if entry.key().0 > target {
                break;
            }
            let (deadline, _) = *entry.key();
            let sender = entry.remove();
            manual.now = manual.now.max(deadline);
            // The sleeper may have been dropped in between; nobody waits then.
            let _ = sender.send(());
        }
        manual.now = manual.now.max(target);
    }

    /// When the earliest timer of a manual clock is due; `None` if nobody waits or the clock runs by itself.
    pub fn next_timer(&self) -> Option<Timestamp> {
        match &*self.0 {
            Source::Running { .. } => None,
            Source::Manual(manual) => manual.lock().timers.keys().next().map(|(deadline, _)| *deadline),
        }
    }

    /// Resolves once somebody waits for a moment of a manual clock.
    ///
    /// # Panics
    /// On a clock that runs by itself.
    pub async fn timer_set(&self) {
        let registered = self.expect_manual().lock().registered.clone();
        loop {
            let next = registered.notified();
            tokio::pin!(next);
            // Listening before looking: a timer that is set in between is not missed.
            next.as_mut().enable();
            if self.next_timer().is_some() {
                return;
            }
            next.await;
        }
    }

    /// Moves a manual clock to its next timer and fires it; the new time, or `None` if nobody waits.
    ///
    /// # Panics
    /// On a clock that runs by itself.
    pub fn advance_to_next_timer(&self) -> Option<Timestamp> {
        self.expect_manual();
        let deadline = self.next_timer()?;
        self.advance_to(deadline);
        Some(deadline)
    }

    /// How many timers were ever set: a change means that somebody is still at work.
    pub(crate) fn registrations(&self) -> u64 {
        match &*self.0 {
            Source::Running { .. } => 0,
            Source::Manual(manual) => manual.lock().registrations,
        }
    }

    fn expect_manual(&self) -> &Mutex<Manual> {
        match &*self.0 {
            Source::Manual(manual) => manual,
            Source::Running { .. } => panic!("only a manual clock can be moved by hand"),
        }
    }
}

/// `from` + `duration`, saturating at the end of time.
pub(crate) fn later(from: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    from.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

/// The future of [`Clock::sleep`]; dropping it takes the timer away.
#[derive(Debug)]
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep(Timer);

#[derive(Debug)]
enum Timer {
    Due,
    Running(Pin<Box<tokio::time::Sleep>>),
    Manual {
        clock: Clock,
        key: (Timestamp, u64),
        receiver: oneshot::Receiver<()>,
    },
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Timer::Due => Poll::Ready(()),
            Timer::Running(sleep) => sleep.as_mut().poll(context),
            Timer::Manual { receiver, .. } => Pin::new(receiver).poll(context).map(|_| ()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Timer::Manual { clock, key, .. } = &self.0
            && let Source::Manual(manual) = &*clock.0
        {
            manual.lock().timers.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    #[tokio::test]
    async fn a_timer_fires_when_the_clock_reaches_it() {
        let clock = Clock::manual(noon());
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            let sleep = clock.sleep(Duration::from_secs(60));
            async move {
                sleep.await;
                clock.now()
            }
        });
        clock.advance(Duration::from_secs(59));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        assert_eq!(
            clock.advance_to_next_timer(),
            Some(later(noon(), Duration::from_secs(60)))
        );
        assert_eq!(sleeper.await.unwrap(), later(noon(), Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn a_dropped_sleep_is_no_timer() {
        let clock = Clock::manual(noon());
        drop(clock.sleep(Duration::from_secs(1)));
        assert_eq!(clock.next_timer(), None);
        assert_eq!(clock.advance_to_next_timer(), None);
    }

    #[tokio::test]
    async fn a_deadline_in_the_past_is_due_at_once() {
        let clock = Clock::manual(noon());
        clock.sleep_until(noon()).await;
    }

    #[test]
    fn a_scaled_clock_runs_faster_than_the_wall() {
        let clock = Clock::scaled(1000.0);
        let before = clock.now();
        std::thread::yield_now();
        assert!(clock.now() >= before);
        assert!(!clock.is_manual());
    }
}
