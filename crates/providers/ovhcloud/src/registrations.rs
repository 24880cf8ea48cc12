//! Flavors whose machines do not join the cluster: after two in a row in a zone, others are tried for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::unavailable::Unavailable;

/// Counts machines that came too late, or never.
#[derive(Debug)]
pub(crate) struct Registrations {
    unavailable: Arc<Unavailable>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many machines in a row did not join, and when the last was given up, by flavor and zone.
    late: BTreeMap<(String, String), (u32, Timestamp)>,
    /// UIDs of the claims that were counted: they are deleted again and again until they are gone.
    counted: BTreeSet<String>,
}

const TOO_MANY: u32 = 2;
/// Claims that are long gone are forgotten now and then.
const MOST_COUNTED: usize = 1000;

impl Registrations {
    pub(crate) fn new(unavailable: Arc<Unavailable>) -> Self {
        Self {
            unavailable,
            state: Mutex::default(),
        }
    }

    pub(crate) fn is_counted(&self, uid: &str) -> bool {
        self.state.lock().counted.contains(uid)
    }

    /// A claim is given up because its machine did not join in time.
    pub(crate) fn late(&self, uid: &str, flavor: &str, zone: &str, now: Timestamp) {
        let mut state = self.state.lock();
        if state.counted.len() >= MOST_COUNTED {
            state.counted.clear();
        }
        if !state.counted.insert(uid.to_owned()) {
            return;
        }
        let row = state
            .late
            .entry((flavor.to_owned(), zone.to_owned()))
            .or_insert((0, now));
        *row = (row.0 + 1, now);
        if row.0 >= TOO_MANY {
            self.unavailable
                .refused(flavor, zone, "machines do not join the cluster");
        }
    }

    /// A machine that was made at this time has joined.
    pub(crate) fn joined(&self, flavor: &str, zone: &str, made_at: Timestamp) {
        let key = (flavor.to_owned(), zone.to_owned());
        let mut state = self.state.lock();
        // Nodes that joined long ago say nothing of those that come now.
        if state.late.get(&key).is_some_and(|(_, last)| *last < made_at) {
            state.late.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::clock::Clock;

    use super::*;
    use crate::{catalogue::flavors, client::model::Flavor};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn flavor() -> Flavor {
        flavors::built_in("b3-8").expect("known")
    }

    #[test]
    fn two_in_a_row_are_too_many_and_each_claim_counts_once() {
        let unavailable = Arc::new(Unavailable::new(&Clock::system()));
        let registrations = Registrations::new(unavailable.clone());
        registrations.late("a", "b3-8", "x", at(10));
        registrations.late("a", "b3-8", "x", at(11));
        registrations.late("b", "b3-8", "y", at(12));
        assert_eq!(unavailable.why(&flavor(), "x"), None);
        registrations.late("c", "b3-8", "x", at(13));
        assert!(unavailable.why(&flavor(), "x").is_some());
        assert_eq!(unavailable.why(&flavor(), "y"), None);
    }

    #[test]
    fn a_new_machine_that_joins_starts_the_count_again_and_an_old_one_does_not() {
        for (made_at, expected) in [(5, true), (20, false)] {
            let unavailable = Arc::new(Unavailable::new(&Clock::system()));
            let registrations = Registrations::new(unavailable.clone());
            registrations.late("a", "b3-8", "x", at(10));
            registrations.joined("b3-8", "x", at(made_at));
            registrations.late("b", "b3-8", "x", at(30));
            assert_eq!(unavailable.why(&flavor(), "x").is_some(), expected, "{made_at}");
        }
    }
}
