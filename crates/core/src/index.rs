//! The objects of a cache by something they refer to: nodes by providerID, pods by node, …

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::watch::{Cache, Key};

/// Finds the objects of a [`Cache`] that share a value, without looking at the others.
pub struct Index<V> {
    cache: Arc<Cache<V>>,
    keys: Arc<RwLock<FxHashMap<String, BTreeSet<Key>>>>,
}

/// What a lookup that expects one object may find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<V> {
    /// No object has the value.
    None,
    /// Exactly one has.
    One(Arc<V>),
    /// Several have, so none can be meant.
    Several,
}

impl<V: Send + Sync + 'static> Index<V> {
    /// Indexes `cache`, now and from now on. Objects for which `value` is empty or absent are not found by anything.
    pub fn new(cache: &Arc<Cache<V>>, value: fn(&V) -> Option<&str>) -> Self {
        let keys: Arc<RwLock<FxHashMap<String, BTreeSet<Key>>>> = Arc::default();
        let index = Arc::clone(&keys);
        cache.observe(move |change| {
            let old = change.old.as_deref().and_then(value).filter(|value| !value.is_empty());
            let new = change.new.as_deref().and_then(value).filter(|value| !value.is_empty());
            if old == new {
                return;
            }
            let mut index = index.write();
            if let Some(old) = old
                && let Some(keys) = index.get_mut(old)
            {
                keys.remove(&change.key);
                if keys.is_empty() {
                    index.remove(old);
                }
            }
            if let Some(new) = new {
                index.entry(new.to_owned()).or_default().insert(change.key.clone());
            }
        });
        Self {
            cache: Arc::clone(cache),
            keys,
        }
    }

    /// All objects that have `value`, by key.
    pub fn all(&self, value: &str) -> Vec<Arc<V>> {
        let keys = self.keys(value);
        keys.iter().filter_map(|key| self.cache.get(key)).collect()
    }

    /// The keys of all objects that have `value`.
    pub fn keys(&self, value: &str) -> Vec<Key> {
        self.keys
            .read()
            .get(value)
            .map(|keys| keys.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// The object that has `value`, if there is exactly one.
    pub fn one(&self, value: &str) -> Found<V> {
        Found::among(self.all(value))
    }
}

impl<V> Found<V> {
    /// The one among `all`, if there is exactly one.
    pub fn among(mut all: Vec<Arc<V>>) -> Self {
        match (all.pop(), all.is_empty()) {
            (None, _) => Found::None,
            (Some(only), true) => Found::One(only),
            (Some(_), false) => Found::Several,
        }
    }

    /// The one object; neither none nor several.
    pub fn only(self) -> Option<Arc<V>> {
        match self {
            Found::One(object) => Some(object),
            Found::None | Found::Several => None,
        }
    }
}

impl<V> fmt::Debug for Index<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("cache", &self.cache)
            .field("values", &self.keys.read().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(cache: &Arc<Cache<String>>, index: &Index<String>, value: &str) -> usize {
        assert!(index.all(value).len() <= cache.len());
        index.all(value).len()
    }

    #[test]
    fn an_index_follows_its_cache() {
        let cache = Cache::<String>::new("Text");
        cache.apply(Key::cluster("a"), "1", "x".to_owned());
        let index = Index::new(&cache, |text| Some(text));
        cache.apply(Key::cluster("b"), "2", "x".to_owned());
        assert_eq!(names(&cache, &index, "x"), 2);
        assert_eq!(index.one("x"), Found::Several);
        cache.apply(Key::cluster("b"), "3", "y".to_owned());
        assert_eq!(index.one("x").only().as_deref(), Some(&"x".to_owned()));
        cache.remove(&Key::cluster("a"));
        assert_eq!(index.one("x"), Found::None);
        assert_eq!(names(&cache, &index, "y"), 1);
    }

    #[test]
    fn what_refers_to_nothing_is_not_found_under_nothing() {
        let cache = Cache::<String>::new("Text");
        let index = Index::new(&cache, |text| Some(text));
        cache.apply(Key::cluster("a"), "1", String::new());
        assert_eq!(index.one(""), Found::None);
    }
}
