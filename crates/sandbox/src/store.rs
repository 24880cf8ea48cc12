//! Objects in memory with one revision counter, a history per kind, and watches that read it.
//!
//! A watch is a cursor into the history of its kind, not a queue of its own: twenty watchers share the same events,
//! none can lose one, and one that falls behind the history is told so instead of holding writers up.

mod feed;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::bell::{Bell, Heard, Listener};
use crate::object::Object;
use crate::settle::Progress;

use feed::Feeds;
pub use feed::{Feed, FeedEvent};

/// The name under which a resource's objects are kept: its plural, with the group appended where there is one.
pub type CollectionName = Arc<str>;

/// Fewest and most events that a kind's history keeps, and how long it keeps those in between.
const HISTORY_MIN: usize = 10_000;
const HISTORY_MAX: usize = 20_000;
const HISTORY_AGE: Duration = Duration::from_secs(75);

/// All objects of one sandbox.
#[derive(Debug)]
pub struct Store {
    state: RwLock<State>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct State {
    revision: u64,
    collections: FxHashMap<CollectionName, Collection>,
    feeds: Feeds,
}

#[derive(Debug, Default)]
struct Collection {
    objects: BTreeMap<Box<str>, Arc<Object>>,
    history: VecDeque<(Instant, Arc<Event>)>,
    /// Revision of the newest event that the history no longer holds.
    forgotten: u64,
    /// Revision of the newest event.
    latest: u64,
    wake: Bell,
    readers: Vec<std::sync::Weak<Reader>>,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// One entry of a kind's history.
#[derive(Debug)]
pub struct Event {
    pub revision: u64,
    pub change: Change,
    /// For a deletion: the last stored content at the revision of the deletion.
    pub object: Arc<Object>,
    /// The version before, unless it was added.
    pub previous: Option<Arc<Object>>,
}

/// The history no longer reaches back to the revision asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooOld {
    pub requested: u64,
    pub current: u64,
}

/// A consistent view of a collection.
#[derive(Debug)]
pub struct Snapshot {
    pub revision: u64,
    pub objects: Vec<Arc<Object>>,
}

impl Store {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self {
            state: RwLock::new(State {
                revision: 1,
                collections: FxHashMap::default(),
                feeds: Feeds::default(),
            }),
            progress,
        }
    }

    /// The revision of the latest write.
    pub fn revision(&self) -> u64 {
        self.state.read().revision
    }

    pub fn get(&self, collection: &str, key: &str) -> Option<Arc<Object>> {
        self.state.read().collections.get(collection)?.objects.get(key).cloned()
    }

    /// How many objects a collection holds.
    pub fn len(&self, collection: &str) -> usize {
        self.state
            .read()
            .collections
            .get(collection)
            .map_or(0, |collection| collection.objects.len())
    }

    pub fn is_empty(&self, collection: &str) -> bool {
        self.len(collection) == 0
    }

    /// The objects of a namespace (all of them if it is empty), in key order.
    pub fn list(&self, collection: &str, namespace: &str) -> Snapshot {
        let state = self.state.read();
        let objects = match state.collections.get(collection) {
            None => Vec::new(),
            Some(collection) if namespace.is_empty() => collection.objects.values().cloned().collect(),
            Some(collection) => {
                let start: Box<str> = format!("{namespace}/").into();
                let end: Box<str> = format!("{namespace}0").into();
                collection
                    .objects
                    .range(start..end)
                    .map(|(_, object)| Arc::clone(object))
                    .collect()
            }
        };
        Snapshot {
            revision: state.revision,
            objects,
        }
    }

    /// The objects as they were at `revision`, if the history still reaches back that far.
    pub fn list_at(&self, collection: &str, namespace: &str, revision: u64) -> Result<Snapshot, TooOld> {
        let state = self.state.read();
        let Some(collection) = state.collections.get(collection) else {
            return Ok(Snapshot {
                revision,
                objects: Vec::new(),
            });
        };
        if revision < collection.forgotten {
            return Err(TooOld {
                requested: revision,
                current: state.revision,
            });
        }
        let undone: FxHashMap<&str, Option<&Arc<Object>>> = collection
            .history
            .iter()
            .rev()
            .take_while(|(_, event)| event.revision > revision)
            .map(|(_, event)| (&*event.object.key, event.previous.as_ref()))
            .collect();
        let mut objects: Vec<Arc<Object>> = collection
            .objects
            .iter()
            .filter(|(key, _)| !undone.contains_key(&***key))
            .map(|(_, object)| object)
            .chain(undone.values().copied().flatten())
            .filter(|object| namespace.is_empty() || *object.namespace == *namespace)
            .cloned()
            .collect();
        objects.sort_by(|left, right| left.key.cmp(&right.key));
        Ok(Snapshot { revision, objects })
    }

    /// Stores a new version of an object, made by `build` from the revision it gets.
    pub(crate) fn put(&self, collection: &CollectionName, build: impl FnOnce(u64) -> Object) -> Arc<Object> {
        let mut state = self.state.write();
        let name = Arc::clone(collection);
        state.revision += 1;
        let revision = state.revision;
        let object = Arc::new(build(revision));
        let collection = state.collections.entry(Arc::clone(collection)).or_default();
        let previous = collection.objects.insert(object.key.clone(), Arc::clone(&object));
        let change = if previous.is_some() {
            Change::Modified
        } else {
            Change::Added
        };
        let event = collection.record(Event {
            revision,
            change,
            object: Arc::clone(&object),
            previous,
        });
        state.feeds.announce(name, event);
        self.progress.step();
        object
    }

    /// Removes an object; what it was, at the revision of its removal.
    pub(crate) fn remove(&self, collection: &str, key: &str) -> Option<Arc<Object>> {
        let mut state = self.state.write();
        let revision = state.revision + 1;
        let name = state
            .collections
            .get_key_value(collection)
            .map(|(name, _)| Arc::clone(name))?;
        let collection = state.collections.get_mut(collection)?;
        let previous = collection.objects.remove(key)?;
        let object = Arc::new(previous.at_version(revision));
        let event = collection.record(Event {
            revision,
            change: Change::Deleted,
            object: Arc::clone(&object),
            previous: Some(previous),
        });
        state.revision = revision;
        state.feeds.announce(name, event);
        self.progress.step();
        Some(object)
    }

    /// Ends the watches of a collection after what they have not read yet.
    pub(crate) fn end_watches(&self, collection: &str) {
        if let Some(collection) = self.state.write().collections.get_mut(collection) {
            // Readers see the old bell gone once they have read what it announced.
            collection.wake = Bell::default();
        }
        self.progress.step();
    }

    /// Makes room for a kind that is new; nothing happened to it before now.
    pub(crate) fn open(&self, collection: &CollectionName) {
        let mut state = self.state.write();
        let revision = state.revision;
        state
            .collections
            .entry(Arc::clone(collection))
            .or_insert_with(|| Collection {
                forgotten: revision,
                ..Collection::default()
            });
    }

    /// Forgets all history, so that every older resourceVersion is expired.
    pub fn expire_history(&self) {
        let mut state = self.state.write();
        let revision = state.revision;
        for collection in state.collections.values_mut() {
            let pinned = collection.pinned();
            while collection
                .history
                .front()
                .is_some_and(|(_, event)| event.revision <= pinned)
            {
                collection.history.pop_front();
            }
            collection.forgotten = revision.min(pinned);
        }
    }

    /// The events of `collection` after `revision`.
    ///
    /// Fails if the history no longer holds them. [`Backlog::Keep`] makes the history wait for this reader.
    pub fn watch(
        self: &Arc<Self>,
        collection: &CollectionName,
        revision: u64,
        backlog: Backlog,
    ) -> Result<Watch, TooOld> {
        let mut state = self.state.write();
        let current = state.revision;
        let collection_state = state.collections.entry(Arc::clone(collection)).or_default();
        if revision < collection_state.forgotten {
            return Err(TooOld {
                requested: revision,
                current,
            });
        }
        let reader = Arc::new(Reader {
            cursor: AtomicU64::new(revision),
            waiting: AtomicBool::new(false),
            backlog,
        });
        collection_state.readers.retain(|reader| reader.strong_count() > 0);
        collection_state.readers.push(Arc::downgrade(&reader));
        Ok(Watch {
            store: Arc::clone(self),
            collection: Arc::clone(collection),
            wake: collection_state.wake.listen(),
            pending: VecDeque::new(),
            reader,
        })
    }

    /// How far a reader that read up to `read` may resume: the newest revision if it has seen all of its kind.
    pub(crate) fn revision_read_by(&self, collection: &str, read: u64) -> u64 {
        let state = self.state.read();
        match state.collections.get(collection) {
            Some(collection) if collection.latest > read => read,
            _ => state.revision,
        }
    }

    /// Whether every watch has read all there is and waits for more.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.state.read();
        state.feeds.are_quiet()
            && state.collections.values().all(|collection| {
                collection
                    .readers
                    .iter()
                    .filter_map(std::sync::Weak::upgrade)
                    .all(|reader| {
                        reader.waiting.load(Ordering::SeqCst)
                            && reader.cursor.load(Ordering::SeqCst) >= collection.latest
                    })
            })
    }

    /// Everything there is, as additions in order of revision, and then everything that happens to any kind.
    pub(crate) fn feed(&self) -> Feed {
        let mut state = self.state.write();
        let mut existing: Vec<(CollectionName, Arc<Object>)> = Vec::new();
        for (name, collection) in &state.collections {
            existing.extend(
                collection
                    .objects
                    .values()
                    .map(|object| (Arc::clone(name), Arc::clone(object))),
            );
        }
        existing.sort_by_key(|(_, object)| object.resource_version);
        state.feeds.open(existing, Arc::clone(&self.progress))
    }

    /// How many watches are open.
    pub fn watch_count(&self) -> usize {
        let state = self.state.read();
        state
            .collections
            .values()
            .map(|collection| {
                collection
                    .readers
                    .iter()
                    .filter(|reader| reader.strong_count() > 0)
                    .count()
            })
            .sum()
    }

    fn read_after(&self, watch: &Watch) -> Result<Vec<Arc<Event>>, TooOld> {
        let state = self.state.read();
        let cursor = watch.reader.cursor.load(Ordering::SeqCst);
        let Some(collection) = state.collections.get(&watch.collection) else {
            return Ok(Vec::new());
        };
        if cursor < collection.forgotten {
            return Err(TooOld {
                requested: cursor,
                current: state.revision,
            });
        }
        let start = collection
            .history
            .partition_point(|(_, event)| event.revision <= cursor);
        Ok(collection
            .history
            .range(start..)
            .take(512)
            .map(|(_, event)| Arc::clone(event))
            .collect())
    }
}

impl Collection {
    fn record(&mut self, event: Event) -> Arc<Event> {
        let revision = event.revision;
        let event = Arc::new(event);
        self.latest = revision;
        self.history.push_back((Instant::now(), Arc::clone(&event)));
        if self.history.len() > HISTORY_MIN {
            self.trim();
        }
        self.wake.ring();
        event
    }

    fn trim(&mut self) {
        let pinned = self.pinned();
        while self.history.len() > HISTORY_MIN {
            let Some((at, event)) = self.history.front() else {
                return;
            };
            let young = at.elapsed() < HISTORY_AGE && self.history.len() <= HISTORY_MAX;
            if young || event.revision > pinned {
                return;
            }
            self.forgotten = event.revision;
            self.history.pop_front();
        }
    }

    /// The revision up to which no reader that keeps its backlog needs the history any more.
    fn pinned(&self) -> u64 {
        self.readers
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .filter(|reader| reader.backlog == Backlog::Keep)
            .map(|reader| reader.cursor.load(Ordering::SeqCst))
            .min()
            .unwrap_or(u64::MAX)
    }
}

/// What becomes of events that a slow reader has not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// They may be forgotten; the reader is told and starts over.
    Drop,
    /// They are kept until it reads them: for controllers that live in this process.
    Keep,
}

#[derive(Debug)]
struct Reader {
    cursor: AtomicU64,
    waiting: AtomicBool,
    backlog: Backlog,
}

/// A cursor into the history of one collection.
#[derive(Debug)]
pub struct Watch {
    store: Arc<Store>,
    collection: CollectionName,
    wake: Listener,
    pending: VecDeque<Arc<Event>>,
    reader: Arc<Reader>,
}

impl Watch {
    /// The next event; `None` when the collection is gone (its CRD was deleted).
    pub async fn next(&mut self) -> Option<Result<Arc<Event>, TooOld>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.reader.cursor.store(event.revision, Ordering::SeqCst);
                self.store.progress.step();
                return Some(Ok(event));
            }
            self.wake.catch_up();
            match self.store.read_after(self) {
                Err(error) => return Some(Err(error)),
                Ok(events) if !events.is_empty() => {
                    self.pending.extend(events);
                    continue;
                }
                Ok(_) => {}
            }
            let waiting = Waiting::start(&self.reader.waiting);
            let heard = self.wake.next().await;
            drop(waiting);
            if heard == Heard::Silence {
                // The last events of a dropped collection were recorded before it went.
                return None;
            }
        }
    }

    /// An event that is already there, without waiting.
    pub fn try_next(&mut self) -> Option<Arc<Event>> {
        if self.pending.is_empty() {
            self.pending.extend(self.store.read_after(self).ok()?);
        }
        let event = self.pending.pop_front()?;
        self.reader.cursor.store(event.revision, Ordering::SeqCst);
        self.store.progress.step();
        Some(event)
    }

    /// The revision of the last event read.
    pub fn revision(&self) -> u64 {
        self.reader.cursor.load(Ordering::SeqCst)
    }
}

/// Marks a reader as waiting for as long as it lives, also when the waiting future is dropped half-way.
struct Waiting<'a>(&'a AtomicBool);

impl<'a> Waiting<'a> {
    fn start(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::SeqCst);
        Self(flag)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
