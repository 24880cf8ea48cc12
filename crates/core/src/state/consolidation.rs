//! When the cluster last changed in a way that matters to consolidation (lifecycle.md §2.9).

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Prices and availability change without an event, so an unchanged cluster is looked at again after this.
const RENEW_AFTER: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug)]
pub(super) struct Consolidation(Mutex<Timestamp>);

impl Consolidation {
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    pub(super) fn mark_unconsolidated(&self, now: Timestamp) {
        *self.0.lock() = now;
    }

    pub(super) fn state(&self, now: Timestamp) -> Timestamp {
        let mut stamp = self.0.lock();
        if now.duration_since(*stamp) >= RENEW_AFTER {
            *stamp = now;
        }
        *stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_renews_itself_after_five_minutes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let consolidation = Consolidation::new(at(0));
        assert_eq!(consolidation.state(at(299)), at(0));
        assert_eq!(consolidation.state(at(300)), at(300));
        consolidation.mark_unconsolidated(at(310));
        assert_eq!(consolidation.state(at(311)), at(310));
    }
}
