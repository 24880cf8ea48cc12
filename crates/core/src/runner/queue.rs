//! The work queue of a controller: each key at most once, never handed out twice at a time, delayed keys on the clock.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use tokio::sync::Notify;

use super::backoff::RateLimit;
use crate::clock::{Clock, later};
use crate::limit::TokenBucket;

/// Keys that wait for a reconcile.
#[derive(Debug)]
pub struct Queue<K> {
    clock: Clock,
    limit: RateLimit,
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<(K, Instant)>,
    /// Keys in `ready`, and keys in process that were added again meanwhile.
    dirty: FxHashSet<K>,
    in_process: FxHashSet<K>,
    due: FxHashMap<K, Timestamp>,
    by_time: BTreeSet<(Timestamp, u64)>,
    scheduled: FxHashMap<(Timestamp, u64), K>,
    next_id: u64,
    failures: FxHashMap<K, u32>,
    bucket: TokenBucket,
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// An empty queue.
    pub fn new(clock: Clock, limit: RateLimit) -> Self {
        Self {
            clock,
            limit,
            state: Mutex::new(State {
                ready: VecDeque::new(),
                dirty: FxHashSet::default(),
                in_process: FxHashSet::default(),
                due: FxHashMap::default(),
                by_time: BTreeSet::new(),
                scheduled: FxHashMap::default(),
                next_id: 0,
                failures: FxHashMap::default(),
                bucket: TokenBucket::new(limit.bucket.per_second, limit.bucket.burst),
            }),
            changed: Notify::new(),
        }
    }

    /// Adds a key; one that already waits is not added twice, one in process runs once more afterwards.
    pub fn add(&self, key: K) {
        self.state.lock().add(key);
        self.changed.notify_one();
    }

    /// Adds a key once `delay` has passed; of several delays for one key the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = later(self.clock.now(), delay);
        self.state.lock().add_at(key, at);
        self.changed.notify_one();
    }

    /// Adds a key after its backoff and the controller's rate limit, whichever is longer.
    pub fn add_rate_limited(&self, key: K) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let failures = *state
            .failures
            .entry(key.clone())
            .and_modify(|count| *count += 1)
            .or_insert(1);
        let backoff = self.limit.backoff.jittered(failures, FxBuildHasher.hash_one(&key));
        let delay = backoff.max(state.bucket.reserve(now));
        state.add_at(key, later(now, delay));
        drop(state);
        self.changed.notify_one();
    }

    /// Forgets that a key has failed.
    pub fn forget(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// The next key to work on and when it became ready. It stays "in process" until [`Queue::done`].
    ///
    /// A delayed repetition of the key is dropped: the reconcile that starts now decides afresh.
    pub(super) fn take(&self) -> Option<(K, Instant)> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.promote(now);
        let (key, since) = state.ready.pop_front()?;
        state.dirty.remove(&key);
        state.unschedule(&key);
        state.in_process.insert(key.clone());
        Some((key, since))
    }

    /// Ends the processing of a key; if it was added meanwhile it is ready again.
    pub(super) fn done(&self, key: &K) {
        let mut state = self.state.lock();
        state.in_process.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back((key.clone(), Instant::now()));
            drop(state);
            self.changed.notify_one();
        }
    }

    /// When the next delayed key is due.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.state.lock().by_time.first().map(|(at, _)| *at)
    }

    /// Resolves when something was added since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How many keys could be worked on now.
    pub fn depth(&self) -> usize {
        self.state.lock().ready.len()
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if !self.dirty.insert(key.clone()) || self.in_process.contains(&key) {
            return;
        }
        self.ready.push_back((key, Instant::now()));
    }

    fn add_at(&mut self, key: K, at: Timestamp) {
        if let Some(earlier) = self.due.get(&key)
            && *earlier <= at
        {
            return;
        }
        self.unschedule(&key);
        let slot = (at, self.next_id);
        self.next_id += 1;
        self.by_time.insert(slot);
        self.due.insert(key.clone(), at);
        self.scheduled.insert(slot, key);
    }

    fn unschedule(&mut self, key: &K) {
        let Some(at) = self.due.remove(key) else { return };
        let slot = self
            .by_time
            .range((at, 0)..=(at, u64::MAX))
            .find(|slot| self.scheduled.get(slot) == Some(key))
            .copied();
        if let Some(slot) = slot {
            self.by_time.remove(&slot);
            self.scheduled.remove(&slot);
        }
    }

    fn promote(&mut self, now: Timestamp) {
        while let Some(slot) = self.by_time.first().copied() {
            if slot.0 > now {
                return;
            }
            self.by_time.remove(&slot);
            if let Some(key) = self.scheduled.remove(&slot) {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn queue() -> (ManualClock, Queue<&'static str>) {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let queue = Queue::new(manual.clock(), RateLimit::reasonable());
        (manual, queue)
    }

    fn take(queue: &Queue<&'static str>) -> Option<&'static str> {
        queue.take().map(|(key, _)| key)
    }

    #[test]
    fn a_key_that_waits_is_not_added_twice() {
        let (_, queue) = queue();
        queue.add("a");
        queue.add("a");
        assert_eq!(take(&queue), Some("a"));
        assert_eq!(take(&queue), None);
    }

    #[test]
    fn a_key_in_process_is_handed_out_again_only_when_done() {
        let (_, queue) = queue();
        queue.add("a");
        assert_eq!(take(&queue), Some("a"));
        queue.add("a");
        assert_eq!(take(&queue), None);
        queue.done(&"a");
        assert_eq!(take(&queue), Some("a"));
    }

    #[test]
    fn the_earliest_of_several_delays_counts() {
        let (manual, queue) = queue();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(7));
        manual.advance(Duration::from_secs(5));
        assert_eq!(take(&queue), Some("a"));
        queue.done(&"a");
        manual.advance(Duration::from_secs(60));
        assert_eq!(take(&queue), None);
    }

    #[test]
    fn taking_a_key_drops_its_delayed_repetition() {
        let (manual, queue) = queue();
        queue.add_after("a", Duration::from_secs(10));
        queue.add("a");
        assert_eq!(take(&queue), Some("a"));
        queue.done(&"a");
        manual.advance(Duration::from_secs(60));
        assert_eq!(take(&queue), None);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn failures_wait_longer_each_time_until_forgotten() {
        let (manual, queue) = queue();
        let wait = || {
            queue.add_rate_limited("a");
            let due = queue.next_due().unwrap();
            let wait = due.duration_since(manual.clock().now()).as_millis();
            manual.advance_to(due);
            assert_eq!(take(&queue), Some("a"));
            queue.done(&"a");
            wait
        };
        let (first, second) = (wait(), wait());
        assert!(
            (100..=110).contains(&first) && (200..=220).contains(&second),
            "{first} {second}"
        );
        queue.forget(&"a");
        queue.add_rate_limited("a");
        let again = queue
            .next_due()
            .unwrap()
            .duration_since(manual.clock().now())
            .as_millis();
        assert_eq!(again, first);
    }
}
