//! Remembers which offerings the cloud refused lately, so that the next plan does not ask for them again.
//!
//! Keys are the provider's own (type × zone × capacity type, a network, a whole quota scope). Every mark, expiry and
//! clearing changes [`UnavailableOfferings::version`], by which cached instance types are known to be out of date.

use std::{borrow::Borrow, collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::clock::{Clock, later};

/// What was refused, until when, and why.
#[derive(Debug)]
pub struct UnavailableOfferings<K> {
    clock: Clock,
    backoff: MarkBackoff,
    state: Mutex<State<K>>,
}

/// How long a mark holds: doubling while an offering keeps failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkBackoff {
    pub first: Duration,
    pub longest: Duration,
    /// A mark within this time after the last one ended counts as a repetition.
    pub memory: Duration,
}

/// One refusal that still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub reason: String,
    pub until: Timestamp,
}

#[derive(Debug)]
struct State<K> {
    version: u64,
    marks: BTreeMap<K, Entry>,
}

#[derive(Debug)]
struct Entry {
    mark: Mark,
    held_for: Duration,
    /// False once the end of the mark was counted into the version.
    holds: bool,
}

impl MarkBackoff {
    /// Always the same time, however often an offering fails.
    pub fn constant(time: Duration) -> Self {
        Self {
            first: time,
            longest: time,
            memory: Duration::ZERO,
        }
    }
}

impl<K: Ord + Clone + fmt::Debug> UnavailableOfferings<K> {
    pub fn new(clock: Clock, backoff: MarkBackoff) -> Self {
        Self {
            clock,
            backoff,
            state: Mutex::new(State {
                version: 0,
                marks: BTreeMap::new(),
            }),
        }
    }

    /// Marks an offering; a mark that still holds is extended, never shortened. Answers until when it holds.
    pub fn mark(&self, key: K, reason: impl Into<String>) -> Timestamp {
        let now = self.clock.now();
        let reason = reason.into();
        let mut state = self.state.lock();
        let hold = match state.marks.get(&key) {
            Some(entry) if entry.holds && now < entry.mark.until => entry.held_for,
            Some(entry) if now <= later(entry.mark.until, self.backoff.memory) => {
                entry.held_for.saturating_mul(2).min(self.backoff.longest)
            }
            Some(_) | None => self.backoff.first,
        };
        Self::insert(&mut state, key, reason, later(now, hold), hold)
    }

    /// Marks an offering for a time of the caller's choosing.
    pub fn mark_for(&self, key: K, reason: impl Into<String>, time: Duration) -> Timestamp {
        let until = later(self.clock.now(), time);
        Self::insert(&mut self.state.lock(), key, reason.into(), until, time)
    }

    /// Why the offering should not be asked for now, if so.
    pub fn get<Q>(&self, key: &Q) -> Option<Mark>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let now = self.clock.now();
        let state = self.state.lock();
        state
            .marks
            .get(key)
            .filter(|entry| entry.holds && now < entry.mark.until)
            .map(|entry| entry.mark.clone())
    }

    /// All marks that hold now.
    pub fn marks(&self) -> Vec<(K, Mark)> {
        let now = self.clock.now();
        let state = self.state.lock();
        let held = state
            .marks
            .iter()
            .filter(|(_, entry)| entry.holds && now < entry.mark.until);
        held.map(|(key, entry)| (key.clone(), entry.mark.clone())).collect()
    }

    /// Forgets the marks that `unwanted` names, e.g. quota marks after a machine was destroyed.
    pub fn clear(&self, mut unwanted: impl FnMut(&K, &Mark) -> bool) {
        let mut state = self.state.lock();
        let before = state.marks.len();
        state.marks.retain(|key, entry| !unwanted(key, &entry.mark));
        if state.marks.len() != before {
            state.version += 1;
        }
    }

    /// Differs from every earlier answer whenever the set of marks that hold differs.
    pub fn version(&self) -> u64 {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let mut ended = 0;
        for entry in state
            .marks
            .values_mut()
            .filter(|entry| entry.holds && entry.mark.until <= now)
        {
            entry.holds = false;
            ended += 1;
        }
        state.version += ended;
        let memory = self.backoff.memory;
        state
            .marks
            .retain(|_, entry| entry.holds || now <= later(entry.mark.until, memory));
        state.version
    }

    fn insert(state: &mut State<K>, key: K, reason: String, until: Timestamp, held_for: Duration) -> Timestamp {
        state.version += 1;
        let until = state.marks.get(&key).map_or(until, |entry| entry.mark.until.max(until));
        state.marks.insert(
            key,
            Entry {
                mark: Mark { reason, until },
                held_for,
                holds: true,
            },
        );
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn cache(backoff: MarkBackoff) -> (ManualClock, UnavailableOfferings<&'static str>) {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let cache = UnavailableOfferings::new(manual.clock(), backoff);
        (manual, cache)
    }

    #[test]
    fn a_mark_holds_for_its_time_and_then_ends() {
        let (clock, cache) = cache(MarkBackoff::constant(MINUTE * 3));
        cache.mark("a", "out of stock");
        assert_eq!(cache.get("a").expect("marked").reason, "out of stock");
        assert!(cache.get("b").is_none());
        clock.advance(MINUTE * 3);
        assert!(cache.get("a").is_none());
    }

    #[test]
    fn the_version_changes_on_every_mark_and_every_expiry() {
        let (clock, cache) = cache(MarkBackoff::constant(MINUTE));
        let mut versions = vec![cache.version()];
        cache.mark("a", "x");
        versions.push(cache.version());
        assert_eq!(cache.version(), versions[1], "nothing changed meanwhile");
        clock.advance(MINUTE);
        versions.push(cache.version());
        cache.mark("a", "x");
        cache.clear(|key, _| *key == "a");
        versions.push(cache.version());
        versions.dedup();
        assert_eq!(versions.len(), 4);
    }

    #[test]
    fn marking_again_extends_a_mark() {
        let (clock, cache) = cache(MarkBackoff::constant(MINUTE));
        cache.mark("a", "x");
        clock.advance(MINUTE / 2);
        cache.mark("a", "x");
        clock.advance(MINUTE / 2);
        assert!(cache.get("a").is_some());
        cache.mark_for("a", "y", Duration::from_secs(1));
        clock.advance(Duration::from_secs(10));
        assert!(cache.get("a").is_some(), "a shorter mark does not shorten a longer one");
    }

    #[test]
    fn an_offering_that_keeps_failing_is_left_alone_for_longer() {
        let (clock, cache) = cache(MarkBackoff {
            first: MINUTE * 3,
            longest: MINUTE * 10,
            memory: MINUTE * 60,
        });
        for minutes in [3, 6, 10, 10] {
            let start = clock.clock().now();
            assert_eq!(cache.mark("a", "x"), later(start, MINUTE * minutes));
            clock.advance(MINUTE * minutes);
            cache.version();
        }
        clock.advance(MINUTE * 61);
        let start = clock.clock().now();
        assert_eq!(
            cache.mark("a", "x"),
            later(start, MINUTE * 3),
            "an old failure is forgotten"
        );
    }
}
