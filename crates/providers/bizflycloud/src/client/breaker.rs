//! Leaves an API alone that fails again and again, so that it can recover and nobody waits for it in vain (§5.8).

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::{
    clock::{Clock, later},
    http::{Attempt, Ending, HttpObserver},
};
use parking_lot::Mutex;

use super::error::{ApiError, ErrorClass};

/// Counts failures in a row. Cheap to clone; clones are one.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    failures: u32,
    open_until: Option<Timestamp>,
}

/// Feeds a breaker, and whoever else looks at attempts.
pub(super) struct Watched<O> {
    pub(super) breaker: Breaker,
    pub(super) also: O,
}

const MOST_FAILURES: u32 = 10;
const OPEN: Duration = Duration::from_secs(30);

impl Breaker {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Arc::default(),
        }
    }

    /// Whether a call may go out now. After the pause one failure is enough to begin another.
    pub(super) fn admit(&self, operation: &str) -> Result<(), ApiError> {
        let Some(until) = self.open_until() else { return Ok(()) };
        let message = format!(
            "the API failed {MOST_FAILURES} times in a row and is left alone until {until}; check that it can be reached"
        );
        Err(ApiError::new(operation, ErrorClass::Unreachable, message))
    }

    /// Until when no call goes out, if so.
    pub(super) fn open_until(&self) -> Option<Timestamp> {
        let until = self.state.lock().open_until;
        until.filter(|until| self.clock.now() < *until)
    }

    fn note(&self, ending: Ending) {
        let is_failure = match ending {
            Ending::NotSent | Ending::Unknown => true,
            Ending::Answered(status) => status.is_server_error(),
        };
        let mut state = self.state.lock();
        if !is_failure {
            *state = State::default();
            return;
        }
        state.failures += 1;
        if state.failures >= MOST_FAILURES {
            state.open_until = Some(later(self.clock.now(), OPEN));
        }
    }
}

impl<O: HttpObserver> HttpObserver for Watched<O> {
    fn attempted(&self, attempt: &Attempt<'_>) {
        self.breaker.note(attempt.ending);
        self.also.attempted(attempt);
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use karpenter_cloud::clock::ManualClock;

    use super::*;

    const BUSY: Ending = Ending::Answered(StatusCode::SERVICE_UNAVAILABLE);

    #[test]
    fn ten_failures_in_a_row_close_the_way_for_half_a_minute() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let breaker = Breaker::new(clock.clock());
        (0..9).for_each(|_| breaker.note(BUSY));
        breaker.admit("list_servers").expect("nine are not ten");
        breaker.note(Ending::NotSent);
        let error = breaker.admit("list_servers").expect_err("closed");
        assert!(error.message.contains("10 times in a row"), "{error}");
        clock.advance(OPEN);
        breaker.admit("list_servers").expect("one may try");
        breaker.note(BUSY);
        breaker.admit("list_servers").expect_err("it still fails");
        clock.advance(OPEN);
        breaker.note(Ending::Answered(StatusCode::OK));
        breaker.note(BUSY);
        breaker.admit("list_servers").expect("an answer starts the count anew");
    }

    #[test]
    fn refusals_are_answers() {
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let breaker = Breaker::new(clock.clock());
        (0..20).for_each(|_| breaker.note(Ending::Answered(StatusCode::TOO_MANY_REQUESTS)));
        breaker.admit("list_servers").expect("the API is there");
    }
}
