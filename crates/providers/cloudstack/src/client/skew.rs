//! How far the server's clock is from ours, and whether requests can carry an expiry (cloudstack.md §2.2).

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// What is known about the server's clock.
#[derive(Debug, Default)]
pub(super) struct Skew {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    offset: SignedDuration,
    /// What the `Date` header of the last answer says, if a proxy sent one.
    seen: Option<SignedDuration>,
    without_expiry: bool,
}

/// How a request says until when it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Version 3 with an expiry, by our clock plus this.
    Signed { offset: SignedDuration },
    /// Without expiry: the server's time is not known.
    Unsigned,
}

/// Smaller differences do not matter to an expiry of ten minutes.
const NOTICEABLE: SignedDuration = SignedDuration::from_secs(60);

impl Skew {
    pub(super) fn freshness(&self) -> Freshness {
        let state = self.state.lock();
        if state.without_expiry {
            Freshness::Unsigned
        } else {
            Freshness::Signed { offset: state.offset }
        }
    }

    pub(super) fn note_date(&self, headers: &HeaderMap, now: Timestamp) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) else {
            return;
        };
        self.state.lock().seen = Some(date.timestamp().duration_since(now));
    }

    /// Takes over what the last `Date` header said. True if that changes anything.
    pub(super) fn learn_from_date(&self) -> bool {
        let mut state = self.state.lock();
        let Some(seen) = state.seen else { return false };
        if (seen - state.offset).abs() < NOTICEABLE {
            return false;
        }
        tracing::warn!(
            offset_seconds = seen.as_secs(),
            "the clock of this machine differs from CloudStack's"
        );
        state.offset = seen;
        true
    }

    /// Requests go without expiry from now on.
    pub(super) fn give_up_expiry(&self) {
        self.state.lock().without_expiry = true;
    }

    /// A moment that the server wrote just now ends the time without expiry.
    pub(super) fn learn_from(&self, server: Option<Timestamp>, now: Timestamp) {
        let Some(server) = server else { return };
        let mut state = self.state.lock();
        if !state.without_expiry {
            return;
        }
        state.offset = server.duration_since(now);
        state.without_expiry = false;
        tracing::info!(offset_seconds = state.offset.as_secs(), "learned CloudStack's time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_learned_from_a_date_header_once() {
        let skew = Skew::default();
        assert!(!skew.learn_from_date());
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Thu, 01 Jan 1970 00:20:00 GMT".parse().expect("a header"));
        skew.note_date(&headers, Timestamp::UNIX_EPOCH);
        assert!(skew.learn_from_date());
        let offset = SignedDuration::from_mins(20);
        assert_eq!(skew.freshness(), Freshness::Signed { offset });
        assert!(!skew.learn_from_date());
    }

    #[test]
    fn a_job_ends_the_time_without_expiry() {
        let skew = Skew::default();
        skew.give_up_expiry();
        assert_eq!(skew.freshness(), Freshness::Unsigned);
        let hour = SignedDuration::from_hours(1);
        skew.learn_from(Some(Timestamp::UNIX_EPOCH + hour), Timestamp::UNIX_EPOCH);
        assert_eq!(skew.freshness(), Freshness::Signed { offset: hour });
    }
}
