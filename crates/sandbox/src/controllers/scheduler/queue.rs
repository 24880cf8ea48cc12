//! Which pod is tried next, and when a refused one is tried again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use crate::clock::later;
use crate::controllers::pod::PodFacts;

/// How long a refused pod rests: doubling from the first to the last value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) initial: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    fn after(self, attempts: u32) -> Duration {
        let doubled = self.initial.saturating_mul(1 << attempts.saturating_sub(1).min(16));
        doubled.min(self.max)
    }
}

/// Most important first, then first come, first served.
type Rank = (Reverse<i32>, u64);

#[derive(Debug)]
pub(super) struct Queue {
    entries: FxHashMap<Arc<str>, Entry>,
    active: BTreeMap<Rank, Arc<str>>,
    resting: BTreeSet<(Timestamp, Arc<str>)>,
    refused: BTreeSet<Arc<str>>,
    arrivals: u64,
    backoff: Backoff,
    /// The state of the cluster that refused pods were last compared with.
    seen: (u64, u64),
}

#[derive(Debug)]
struct Entry {
    rank: Rank,
    attempts: u32,
    /// Placements of other pods can help this one: it wants to be near them, or spread with them.
    cares_for_others: bool,
    generation: i64,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active,
    Resting(Timestamp),
    Refused { until: Timestamp },
    Popped,
}

impl Queue {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            entries: FxHashMap::default(),
            active: BTreeMap::new(),
            resting: BTreeSet::new(),
            refused: BTreeSet::new(),
            arrivals: 0,
            backoff,
            seen: (0, 0),
        }
    }

    /// Adds a pod that is new, or lets a known one try again if its spec changed.
    pub(super) fn add(&mut self, pod: &PodFacts, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&pod.key) {
            if entry.generation == pod.generation && entry.place != Place::Popped {
                return;
            }
            entry.generation = pod.generation;
            self.activate(&pod.key, now);
            return;
        }
        self.arrivals += 1;
        let rank = (Reverse(pod.class.spec.priority), self.arrivals);
        let spec = &pod.class.spec;
        let entry = Entry {
            rank,
            attempts: 0,
            cares_for_others: !spec.affinity.is_empty() || !spec.spread.is_empty(),
            generation: pod.generation,
            place: Place::Active,
        };
        self.entries.insert(Arc::clone(&pod.key), entry);
        self.active.insert(rank, Arc::clone(&pod.key));
    }

    pub(super) fn remove(&mut self, key: &str) {
        if let Some((key, entry)) = self.entries.remove_entry(key) {
            self.take_from(&key, entry.rank, entry.place);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Arc<str>> {
        let (_, key) = self.active.pop_first()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = Place::Popped;
        }
        Some(key)
    }

    /// Puts a popped pod aside until the cluster changes.
    pub(super) fn refuse(&mut self, pod: &PodFacts, improvements: u64, version: u64, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(&pod.key) else {
            return;
        };
        entry.attempts += 1;
        let until = later(now, self.backoff.after(entry.attempts));
        let (rank, place) = (entry.rank, entry.place);
        entry.place = Place::Refused { until };
        self.take_from(&pod.key, rank, place);
        self.refused.insert(Arc::clone(&pod.key));
        if self.refused.len() == 1 {
            self.seen = (improvements, version);
        }
    }

    pub(super) fn wake(&mut self, improvements: u64, version: u64, now: Timestamp) {
        let due: Vec<_> = self
            .resting
            .range(..=(now, Arc::from("\u{10ffff}")))
            .map(|(_, key)| Arc::clone(key))
            .collect();
        for key in due {
            self.activate(&key, now);
        }
        if self.refused.is_empty() || self.seen == (improvements, version) {
            return;
        }
        let improved = self.seen.0 != improvements;
        self.seen = (improvements, version);
        let woken: Vec<Arc<str>> = self
            .refused
            .iter()
            .filter(|key| improved || self.entries.get(*key).is_some_and(|e| e.cares_for_others))
            .cloned()
            .collect();
        for key in woken {
            self.activate(&key, now);
        }
    }

    pub(super) fn flush(&mut self, now: Timestamp) {
        for key in self.refused.clone() {
            self.activate(&key, now);
        }
    }

    pub(super) fn next_backoff(&self) -> Option<Timestamp> {
        self.resting.first().map(|(until, _)| *until)
    }

    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Moves a pod to the active queue, or lets it rest until its backoff ends.
    fn activate(&mut self, key: &Arc<str>, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (rank, place) = (entry.rank, entry.place);
        let rests_until = match place {
            Place::Refused { until } if until > now => Some(until),
            _ => None,
        };
        entry.place = rests_until.map_or(Place::Active, Place::Resting);
        self.take_from(key, rank, place);
        match rests_until {
            Some(until) => {
                self.resting.insert((until, Arc::clone(key)));
            }
            None => {
                self.active.insert(rank, Arc::clone(key));
            }
        }
    }

    fn take_from(&mut self, key: &Arc<str>, rank: Rank, place: Place) {
        match place {
            Place::Active => {
                self.active.remove(&rank);
            }
            Place::Resting(until) => {
                self.resting.remove(&(until, Arc::clone(key)));
            }
            Place::Refused { .. } => {
                self.refused.remove(key);
            }
            Place::Popped => {}
        }
    }
}
