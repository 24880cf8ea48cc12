//! Answers of a cloud, kept for a while: loaded once however many ask, and kept past a failed refresh if allowed.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};

use crate::clock::{Clock, later};

/// A cache of one kind of answer, by key.
pub struct TtlCache<K, V> {
    name: &'static str,
    clock: Clock,
    ttl: Duration,
    stale: Stale,
    metrics: CacheMetrics,
    generation: AtomicU64,
    slots: Mutex<HashMap<K, Arc<Slot<V>>>>,
}

/// What happens to an old value when loading a new one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The error is answered.
    Refuse,
    /// The old value is answered until it is this much past its time.
    ServeFor(Duration),
}

struct Slot<V> {
    /// Held while loading, so that concurrent askers wait for the one load.
    loading: tokio::sync::Mutex<()>,
    value: Mutex<Option<Stored<V>>>,
}

struct Stored<V> {
    value: Arc<V>,
    loaded_at: Timestamp,
    generation: u64,
}

/// Counts what the caches of a provider answered: `karpenter_<provider>_cache_requests_total{cache,result}`.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    requests: IntCounterVec,
}

// === impl TtlCache ===

impl<K: Eq + Hash + Clone, V> TtlCache<K, V> {
    pub fn new(name: &'static str, clock: Clock, ttl: Duration, stale: Stale, metrics: CacheMetrics) -> Self {
        Self {
            name,
            clock,
            ttl,
            stale,
            metrics,
            generation: AtomicU64::new(0),
            slots: Mutex::default(),
        }
    }

    /// The value of `key`, from the cache or else by `load`.
    ///
    /// # Errors
    /// That of `load`, unless an old value may be served instead.
    pub async fn get<E, F>(&self, key: &K, load: impl FnOnce() -> F) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<V, E>>,
        E: fmt::Display,
    {
        let slot = self.slots.lock().entry(key.clone()).or_default().clone();
        if let Some(value) = self.fresh(&slot) {
            self.metrics.count(self.name, "hit");
            return Ok(value);
        }
        let _loading = slot.loading.lock().await;
        if let Some(value) = self.fresh(&slot) {
            self.metrics.count(self.name, "hit");
            return Ok(value);
        }
        // Read before loading: a flush during the load makes its result old at once.
        let generation = self.generation();
        match load().await {
            Ok(value) => {
                self.metrics.count(self.name, "miss");
                let value = Arc::new(value);
                let stored = Stored {
                    value: value.clone(),
                    loaded_at: self.clock.now(),
                    generation,
                };
                *slot.value.lock() = Some(stored);
                Ok(value)
            }
            Err(error) => {
                let Some(value) = self.servable(&slot) else {
                    self.metrics.count(self.name, "miss");
                    return Err(error);
                };
                self.metrics.count(self.name, "stale");
                tracing::warn!(cache = self.name, %error, "refresh failed, serving the last known answer");
                Ok(value)
            }
        }
    }

    /// Makes every value old at once; the next `get` loads.
    pub fn flush(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets one key.
    pub fn forget(&self, key: &K) {
        self.slots.lock().remove(key);
    }

    /// Grows with every [`flush`](Self::flush).
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn fresh(&self, slot: &Slot<V>) -> Option<Arc<V>> {
        let stored = slot.value.lock();
        let stored = stored.as_ref()?;
        let is_fresh = stored.generation == self.generation() && self.clock.now() < later(stored.loaded_at, self.ttl);
        is_fresh.then(|| stored.value.clone())
    }

    fn servable(&self, slot: &Slot<V>) -> Option<Arc<V>> {
        let Stale::ServeFor(extra) = self.stale else {
            return None;
        };
        let stored = slot.value.lock();
        let stored = stored.as_ref()?;
        let end = later(later(stored.loaded_at, self.ttl), extra);
        (self.clock.now() < end).then(|| stored.value.clone())
    }
}

impl<V> Default for Slot<V> {
    fn default() -> Self {
        Self {
            loading: tokio::sync::Mutex::default(),
            value: Mutex::new(None),
        }
    }
}

impl<K, V> fmt::Debug for TtlCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtlCache")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

// === impl CacheMetrics ===

impl CacheMetrics {
    /// # Errors
    /// When this provider's cache metrics are registered already.
    pub fn register(registry: &Registry, provider: &str) -> Result<Self, prometheus::Error> {
        let metrics = Self::unregistered(provider)?;
        metrics.register_into(registry)?;
        Ok(metrics)
    }

    /// Makes counts readable that were made before there was a registry.
    ///
    /// # Errors
    /// When this provider's cache metrics are registered already.
    pub fn register_into(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.requests.clone()))
    }

    /// Counts that nobody reads, for tests and tools.
    ///
    /// # Errors
    /// When the provider's name cannot be part of a metric name.
    pub fn unregistered(provider: &str) -> Result<Self, prometheus::Error> {
        let name = format!("karpenter_{provider}_cache_requests_total");
        let help = "Requests to the provider's caches, by whether the answer was there.";
        Ok(Self {
            requests: IntCounterVec::new(Opts::new(name, help), &["cache", "result"])?,
        })
    }

    fn count(&self, cache: &str, result: &str) {
        self.requests.with_label_values(&[cache, result]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::join_all;

    use super::*;
    use crate::clock::ManualClock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn cache(stale: Stale) -> (ManualClock, CacheMetrics, TtlCache<&'static str, usize>) {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let metrics = CacheMetrics::register(&Registry::new(), "test").expect("a new registry");
        let cache = TtlCache::new("zones", manual.clock(), MINUTE, stale, metrics.clone());
        (manual, metrics, cache)
    }

    async fn ok(cache: &TtlCache<&'static str, usize>, value: usize) -> usize {
        *cache
            .get::<String, _>(&"k", || async move { Ok(value) })
            .await
            .expect("a value")
    }

    #[tokio::test]
    async fn a_value_is_loaded_again_after_its_time() {
        let (clock, metrics, cache) = cache(Stale::Refuse);
        assert_eq!(ok(&cache, 1).await, 1);
        assert_eq!(ok(&cache, 2).await, 1);
        clock.advance(MINUTE);
        assert_eq!(ok(&cache, 3).await, 3);
        assert_eq!(metrics.requests.with_label_values(&["zones", "hit"]).get(), 1);
        assert_eq!(metrics.requests.with_label_values(&["zones", "miss"]).get(), 2);
    }

    #[tokio::test]
    async fn concurrent_askers_share_one_load() {
        let (_, _, cache) = cache(Stale::Refuse);
        let loads = AtomicUsize::new(0);
        let ask = || {
            cache.get::<String, _>(&"k", || async {
                tokio::task::yield_now().await;
                Ok(loads.fetch_add(1, Ordering::Relaxed) + 1)
            })
        };
        let answers = join_all((0..20).map(|_| ask())).await;
        assert!(answers.into_iter().all(|answer| *answer.expect("a value") == 1));
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_last_good_answer_outlives_a_failed_refresh_for_a_while() {
        let (clock, metrics, cache) = cache(Stale::ServeFor(MINUTE));
        assert_eq!(ok(&cache, 1).await, 1);
        clock.advance(MINUTE);
        let fail = || async { Err::<usize, _>("down") };
        assert_eq!(*cache.get(&"k", fail).await.expect("stale"), 1);
        assert_eq!(metrics.requests.with_label_values(&["zones", "stale"]).get(), 1);
        clock.advance(MINUTE);
        assert_eq!(cache.get(&"k", fail).await.expect_err("too old"), "down");
    }

    #[tokio::test]
    async fn a_failed_load_without_an_old_value_is_an_error_and_not_remembered() {
        let (_, _, cache) = cache(Stale::Refuse);
        let failed = cache.get(&"k", || async { Err::<usize, _>("down") }).await;
        assert_eq!(failed.expect_err("an error"), "down");
        assert_eq!(ok(&cache, 5).await, 5);
    }

    #[tokio::test]
    async fn a_flush_makes_the_next_ask_load() {
        let (_, _, cache) = cache(Stale::Refuse);
        assert_eq!(ok(&cache, 1).await, 1);
        cache.flush();
        assert_eq!(ok(&cache, 2).await, 2);
        cache.forget(&"k");
        assert_eq!(ok(&cache, 3).await, 3);
    }
}
