//! An answer of the API that is read again from time to time, and kept when that fails.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::{Clock, later};
use parking_lot::Mutex;

/// The last good answer, and when to ask again.
#[derive(Debug)]
pub(crate) struct Refreshed<T> {
    clock: Clock,
    ttl: Duration,
    /// After a failure.
    retry: Duration,
    state: Mutex<State<T>>,
    loading: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State<T> {
    value: Option<(Arc<T>, Timestamp)>,
    due_at: Option<Timestamp>,
    error: Option<String>,
}

impl<T> Refreshed<T> {
    pub(crate) fn new(clock: Clock, ttl: Duration, retry: Duration) -> Self {
        Self {
            clock,
            ttl,
            retry,
            state: Mutex::new(State {
                value: None,
                due_at: None,
                error: None,
            }),
            loading: tokio::sync::Mutex::default(),
        }
    }

    /// The last good answer, asked for anew if it is due. `None` if there never was one.
    pub(crate) async fn get<E, F>(&self, load: impl FnOnce() -> F) -> Option<Arc<T>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        if !self.is_due() {
            return self.last();
        }
        let _loading = self.loading.lock().await;
        if !self.is_due() {
            return self.last();
        }
        let loaded = load().await;
        let now = self.clock.now();
        let mut state = self.state.lock();
        match loaded {
            Ok(value) => {
                state.value = Some((Arc::new(value), now));
                state.due_at = Some(later(now, self.ttl));
                state.error = None;
            }
            Err(error) => {
                state.due_at = Some(later(now, self.retry));
                state.error = Some(error.to_string());
            }
        }
        state.value.as_ref().map(|(value, _)| value.clone())
    }

    pub(crate) fn last(&self) -> Option<Arc<T>> {
        self.state.lock().value.as_ref().map(|(value, _)| value.clone())
    }

    pub(crate) fn read_at(&self) -> Option<Timestamp> {
        self.state.lock().value.as_ref().map(|(_, at)| *at)
    }

    /// Why the last attempt failed, if it did.
    pub(crate) fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    fn is_due(&self) -> bool {
        let due_at = self.state.lock().due_at;
        due_at.is_none_or(|due| due <= self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::clock::ManualClock;

    use super::*;

    #[tokio::test]
    async fn a_failure_keeps_the_old_answer_and_is_not_repeated_at_once() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let seconds = Duration::from_secs;
        let own = Refreshed::new(clock.clock(), seconds(100), seconds(10));
        assert_eq!(own.get(|| async { Ok::<_, String>(1) }).await.as_deref(), Some(&1));
        clock.advance(seconds(100));
        assert_eq!(own.get(|| async { Err("down".to_owned()) }).await.as_deref(), Some(&1));
        assert_eq!(own.error().as_deref(), Some("down"));
        assert_eq!(
            own.get(|| async { Ok::<_, String>(2) }).await.as_deref(),
            Some(&1),
            "not yet"
        );
        clock.advance(seconds(10));
        assert_eq!(own.get(|| async { Ok::<_, String>(2) }).await.as_deref(), Some(&2));
        assert_eq!(own.error(), None);
    }
}
