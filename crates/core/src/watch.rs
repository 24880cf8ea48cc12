//! One watch per kind for the whole process: its objects in memory, and everyone who wants to hear of changes.
//!
//! A [`Cache`] holds a projection of what the API server has. It may be the object itself, or only the few fields
//! that anyone here reads: a cluster has many pods, and whole Pods would dominate our memory. Observers are called in
//! the order in which they were added, after the cache shows the change and before the next one is read, so a
//! controller that is woken by a change already finds it in `core::state` (which observes first).

mod kinds;
mod lean_pod;
mod packed_pod;
mod protection;
mod trim;
mod workloads;

use std::collections::hash_map::Entry;
use std::fmt;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::DeserializeOwned;

pub use kinds::Watches;
pub use workloads::Workloads;

use crate::clock::Clock;

/// Namespace and name of an object; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Arc::from(""),
            name: name.into(),
        }
    }

    /// The key of a namespaced object.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of any object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What happened to one object.
#[derive(Debug)]
pub struct Change<V> {
    /// Which object.
    pub key: Key,
    /// As it was known before; `None` when it is new.
    pub old: Option<Arc<V>>,
    /// As it is now; `None` when it is gone.
    pub new: Option<Arc<V>>,
    /// Whether this is news, or how the world was found at start.
    pub origin: Origin,
}

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The object was already there when the process (or the observer) started.
    InitialList,
    /// Something happened while we watched.
    Watch,
}

/// Someone who hears of every change, in order. Must be quick and must not block.
pub type Observer<V> = Box<dyn Fn(&Change<V>) + Send + Sync>;

/// The objects of one kind.
pub struct Cache<V> {
    kind: &'static str,
    objects: RwLock<FxHashMap<Key, Held<V>>>,
    observers: Mutex<Vec<Observer<V>>>,
    synced: tokio::sync::watch::Sender<bool>,
    packer: Option<Box<dyn Pack<V>>>,
}

/// Makes objects small for the time that nobody looks at them.
pub(crate) trait Pack<V>: Send + Sync {
    /// Leaves `value` as it was; it may take parts out of it meanwhile.
    fn pack(&self, value: &mut V) -> Box<dyn Unpack<V>>;
}

/// An object that was made small.
pub(crate) trait Unpack<V>: Send + Sync {
    fn unpack(&self, key: &Key, resource_version: &str) -> V;
}

struct Held<V> {
    value: Kept<V>,
    resource_version: Box<str>,
}

enum Kept<V> {
    Whole(Arc<V>),
    Packed(Box<dyn Unpack<V>>),
}

impl<V> Held<V> {
    fn value(&self, key: &Key) -> Arc<V> {
        match &self.value {
            Kept::Whole(value) => value.clone(),
            Kept::Packed(packed) => Arc::new(packed.unpack(key, &self.resource_version)),
        }
    }
}

impl<V> Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("kind", &self.kind)
            .field("objects", &self.objects.read().len())
            .finish()
    }
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// An empty cache of `kind`, which nothing feeds yet.
    pub fn new(kind: &'static str) -> Arc<Self> {
        Arc::new(Self::empty(kind, None))
    }

    /// Like [`Cache::new`], for a kind with so many objects that it pays to unpack one each time it is asked for.
    pub(crate) fn packing(kind: &'static str, packer: impl Pack<V> + 'static) -> Arc<Self> {
        Arc::new(Self::empty(kind, Some(Box::new(packer))))
    }

    fn empty(kind: &'static str, packer: Option<Box<dyn Pack<V>>>) -> Self {
        Self {
            kind,
            objects: RwLock::default(),
            observers: Mutex::default(),
            synced: tokio::sync::watch::Sender::new(false),
            packer,
        }
    }

    /// The kind's name, for logs.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The object under `key`.
    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.objects.read().get(key).map(|held| held.value(key))
    }

    /// The cluster-scoped object called `name`.
    pub fn named(&self, name: &str) -> Option<Arc<V>> {
        self.get(&Key::cluster(name))
    }

    /// Every object, in no particular order.
    pub fn list(&self) -> Vec<Arc<V>> {
        let objects = self.objects.read();
        objects.iter().map(|(key, held)| held.value(key)).collect()
    }

    /// Every object with its key, in no particular order.
    pub fn entries(&self) -> Vec<(Key, Arc<V>)> {
        let objects = self.objects.read();
        objects
            .iter()
            .map(|(key, held)| (key.clone(), held.value(key)))
            .collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.read().len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.objects.read().is_empty()
    }

    /// Whether the first list has arrived completely.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Resolves once the first list has arrived completely.
    pub async fn synced(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Calls `observer` for every object there is and for every change from now on.
    pub fn observe(&self, observer: impl Fn(&Change<V>) + Send + Sync + 'static) {
        // Holding the list of observers keeps changes back while the present is replayed.
        let mut observers = self.observers.lock();
        let present: Vec<Key> = self.objects.read().keys().cloned().collect();
        for key in present {
            let Some(value) = self.get(&key) else { continue };
            observer(&Change {
                key,
                old: None,
                new: Some(value),
                origin: Origin::InitialList,
            });
        }
        observers.push(Box::new(observer));
    }

    /// Records that the object under `key` now is `value`.
    pub fn apply(&self, key: Key, resource_version: &str, mut value: V) {
        let observers = self.observers.lock();
        let packed = self.packer.as_ref().map(|packer| packer.pack(&mut value));
        let value = Arc::new(value);
        let old = {
            let kept = match packed {
                Some(packed) => Kept::Packed(packed),
                None => Kept::Whole(value.clone()),
            };
            let mut objects = self.objects.write();
            let held = Held {
                value: kept,
                resource_version: resource_version.into(),
            };
            match objects.entry(key.clone()) {
                Entry::Occupied(entry)
                    if !resource_version.is_empty() && *entry.get().resource_version == *resource_version =>
                {
                    return;
                }
                Entry::Occupied(mut entry) => Some(entry.insert(held).value(&key)),
                Entry::Vacant(entry) => {
                    entry.insert(held);
                    None
                }
            }
        };
        let change = Change {
            key,
            old,
            new: Some(value),
            origin: self.origin(),
        };
        observers.iter().for_each(|observer| observer(&change));
    }

    /// Records that the object under `key` is gone.
    pub fn remove(&self, key: &Key) {
        let observers = self.observers.lock();
        let Some(held) = self.objects.write().remove(key) else {
            return;
        };
        let change = Change {
            key: key.clone(),
            old: Some(held.value(key)),
            new: None,
            origin: self.origin(),
        };
        observers.iter().for_each(|observer| observer(&change));
    }

    /// Records that a complete list held exactly the objects of `listed`; what is not in it is gone.
    pub fn settle(&self, listed: &FxHashSet<Key>) {
        let gone: Vec<Key> = self
            .objects
            .read()
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        gone.iter().for_each(|key| self.remove(key));
        self.synced.send_replace(true);
    }

    fn origin(&self) -> Origin {
        if self.is_synced() {
            Origin::Watch
        } else {
            Origin::InitialList
        }
    }

    /// Watches `api` and keeps the cache in step with it, for ever. `project` keeps what is worth remembering.
    ///
    /// Failures are logged and retried with backoff; a `410 Gone` that arrives as the answer to the request (and not
    /// inside the stream) makes kube's watcher repeat the same stale version for ever, so the watcher is then made
    /// anew (sandbox.md §1.10, rule 3).
    pub async fn feed<K>(
        self: Arc<Self>,
        api: Api<K>,
        config: watcher::Config,
        clock: Clock,
        project: impl Fn(K) -> V + Send + Sync,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut failures = 0;
        loop {
            let mut listed = FxHashSet::default();
            let mut stream = std::pin::pin!(watcher(api.clone(), config.clone()));
            while let Some(event) = stream.next().await {
                match event {
                    Ok(watcher::Event::Init) => listed.clear(),
                    Ok(watcher::Event::InitApply(object)) => {
                        listed.insert(Key::of(&object));
                        self.apply_object(object, &project);
                    }
                    Ok(watcher::Event::InitDone) => {
                        failures = 0;
                        self.settle(&listed);
                        listed = FxHashSet::default();
                    }
                    Ok(watcher::Event::Apply(object)) => {
                        failures = 0;
                        self.apply_object(object, &project);
                    }
                    Ok(watcher::Event::Delete(object)) => self.remove(&Key::of(&object)),
                    Err(error) => {
                        failures += 1;
                        let wait = watch_backoff(failures);
                        if failures > 1 {
                            tracing::warn!(kind = self.kind, %error, retry = ?wait, "watch failed");
                        } else {
                            tracing::debug!(kind = self.kind, %error, "watch interrupted");
                        }
                        clock.sleep(wait).await;
                        if is_gone(&error) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn apply_object<K: Resource>(&self, object: K, project: &impl Fn(K) -> V) {
        let key = Key::of(&object);
        let version = object.resource_version().unwrap_or_default();
        self.apply(key, &version, project(object));
    }
}

fn watch_backoff(failures: u32) -> Duration {
    let exponent = failures.saturating_sub(1).min(9);
    Duration::from_millis(100 << exponent).min(Duration::from_secs(30))
}

fn is_gone(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    status.code == 410
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(cache: &Cache<u32>) -> Arc<Mutex<Vec<String>>> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = log.clone();
        cache.observe(move |change| {
            let show = |value: &Option<Arc<u32>>| value.as_ref().map_or("-".to_owned(), ToString::to_string);
            sink.lock().push(format!(
                "{} {}→{} {:?}",
                change.key,
                show(&change.old),
                show(&change.new),
                change.origin
            ));
        });
        log
    }

    #[test]
    fn observers_hear_of_what_is_there_and_of_what_changes() {
        let cache = Cache::new("Number");
        cache.apply(Key::cluster("a"), "1", 1);
        cache.settle(&[Key::cluster("a")].into_iter().collect());
        let log = recorded(&cache);
        cache.apply(Key::cluster("a"), "2", 2);
        cache.remove(&Key::cluster("a"));
        assert_eq!(*log.lock(), ["a -→1 InitialList", "a 1→2 Watch", "a 2→- Watch"]);
    }

    #[test]
    fn a_relist_reports_only_what_differs() {
        let cache = Cache::new("Number");
        cache.apply(Key::cluster("same"), "1", 1);
        cache.apply(Key::cluster("gone"), "2", 2);
        cache.settle(&[Key::cluster("same"), Key::cluster("gone")].into_iter().collect());
        let log = recorded(&cache);
        log.lock().clear();
        cache.apply(Key::cluster("same"), "1", 1);
        cache.apply(Key::cluster("new"), "3", 3);
        cache.settle(&[Key::cluster("same"), Key::cluster("new")].into_iter().collect());
        assert_eq!(*log.lock(), ["new -→3 Watch", "gone 2→- Watch"]);
    }
}
