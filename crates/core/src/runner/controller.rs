//! One controller: what wakes it, how many reconciles run at once, and what happens with their results.

use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Next, Queue, RateLimit, Reconcile, ReconcileKey, Runnable, Runner, Singleton};
use crate::error::Result;
use crate::watch::{Cache, Change, Key};

/// A controller under construction.
pub struct Controller<K> {
    name: &'static str,
    group: &'static str,
    kind: &'static str,
    concurrency: usize,
    limit: RateLimit,
    runner: Runner,
    queue: Option<Arc<Queue<K>>>,
    sources: Vec<Source<K>>,
}

/// Connects the queue to whatever wakes the controller, when the controller starts.
type Source<K> = Box<dyn FnOnce(&Handle<K>) + Send>;

/// Wakes a controller from outside.
#[derive(Debug)]
pub struct Handle<K>(Arc<Queue<K>>);

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Handle<K> {
    /// Has `key` reconciled as soon as there is a free worker.
    pub fn wake(&self, key: K) {
        self.0.add(key);
    }
}

impl Handle<()> {
    /// Has the singleton run once more as soon as it can.
    pub fn trigger(&self) {
        self.0.add(());
    }
}

impl<K> Debug for Controller<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("concurrency", &self.concurrency)
            .finish()
    }
}

/// Keys that can be named in logs.
pub trait WorkKey: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    /// Namespace and name for the log fields.
    fn labels(&self) -> (String, String);
}

impl WorkKey for Key {
    fn labels(&self) -> (String, String) {
        (self.namespace.to_string(), self.name.to_string())
    }
}

impl WorkKey for () {
    fn labels(&self) -> (String, String) {
        (String::new(), String::new())
    }
}

impl WorkKey for String {
    fn labels(&self) -> (String, String) {
        (String::new(), self.clone())
    }
}

impl<K: WorkKey> Controller<K> {
    /// A controller called `name` (api.md §4.7) with one worker and the standard rate limit.
    pub fn new(runner: &Runner, name: &'static str) -> Self {
        Self {
            name,
            group: "",
            kind: "",
            concurrency: 1,
            limit: RateLimit::standard(),
            runner: runner.clone(),
            queue: None,
            sources: Vec::new(),
        }
    }

    /// Names the kind of its objects in the logs.
    pub fn about(mut self, group: &'static str, kind: &'static str) -> Self {
        (self.group, self.kind) = (group, kind);
        self
    }

    /// How many keys may be in process at once.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers.max(1);
        self
    }

    /// How fast failing keys come back. Must be set before [`Controller::handle`].
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.limit = limit;
        self
    }

    /// A handle by which others wake this controller.
    pub fn handle(&mut self) -> Handle<K> {
        let queue = self
            .queue
            .get_or_insert_with(|| Arc::new(Queue::new(self.runner.clock.clone(), self.limit)));
        Handle(queue.clone())
    }

    /// Wakes the keys that `wakes` names for each change in `cache`.
    pub fn watches<V, I>(
        mut self,
        cache: &Arc<Cache<V>>,
        wakes: impl Fn(&Change<V>) -> I + Send + Sync + 'static,
    ) -> Self
    where
        V: Send + Sync + 'static,
        I: IntoIterator<Item = K>,
    {
        let cache = cache.clone();
        self.sources.push(Box::new(move |handle| {
            let handle = handle.clone();
            cache.observe(move |change| wakes(change).into_iter().for_each(|key| handle.wake(key)));
        }));
        self
    }

    /// Wakes by arbitrary means: `connect` gets the handle when the controller starts.
    pub fn connects(mut self, connect: impl FnOnce(&Handle<K>) + Send + 'static) -> Self {
        self.sources.push(Box::new(connect));
        self
    }

    /// The finished controller, reconciling bare keys.
    pub fn runs_keys(mut self, reconciler: impl ReconcileKey<K>) -> Runnable {
        let handle = self.handle();
        let reconciler = Arc::new(reconciler);
        Runnable::new(self.name, move |stop| {
            self.work(handle, stop, move |key| {
                let reconciler = reconciler.clone();
                async move { reconciler.reconcile(key).await }
            })
        })
    }

    async fn work<F>(
        mut self,
        handle: Handle<K>,
        stop: CancellationToken,
        reconcile: impl Fn(K) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Next>> + Send + 'static,
    {
        let metrics = self.runner.metrics.controller(self.name, self.concurrency);
        let clock = self.runner.clock.clone();
        let queue = handle.0.clone();
        for source in std::mem::take(&mut self.sources) {
            source(&handle);
        }
        let mut running = JoinSet::new();
        while !stop.is_cancelled() {
            while running.len() < self.concurrency
                && let Some((key, ready_since)) = queue.take()
            {
                metrics.started(ready_since.elapsed(), queue.depth());
                let span = self.span(&key);
                let work = AssertUnwindSafe(CURRENT.scope(self.name, reconcile(key.clone()))).catch_unwind();
                let started = Instant::now();
                let work = async move { (key, started, work.await) };
                running.spawn(work.instrument(span));
            }
            let due = if running.len() < self.concurrency {
                queue.next_due()
            } else {
                None
            };
            tokio::select! {
                // In this order always: what is random is not to be repeated.
                biased;
                () = stop.cancelled() => break,
                Some(ended) = running.join_next() => {
                    let (key, started, outcome) = ended.expect("reconciles catch their panics and are never aborted here");
                    metrics.ended(started.elapsed());
                    self.settle(&queue, &metrics, key, outcome);
                }
                () = queue.changed() => metrics.added(queue.depth()),
                () = clock.sleep_until(due.unwrap_or(jiff::Timestamp::MAX)), if due.is_some() => {}
            }
        }
        // What has begun may finish; the operator bounds how long that may take.
        while running.join_next().await.is_some() {}
    }

    fn settle(
        &self,
        queue: &Queue<K>,
        metrics: &super::runtime_metrics::ControllerMetrics,
        key: K,
        outcome: std::result::Result<Result<Next>, Box<dyn std::any::Any + Send>>,
    ) {
        match outcome {
            Ok(Ok(Next::Wait)) => {
                queue.forget(&key);
                metrics.succeeded("success");
            }
            Ok(Ok(Next::After(delay))) => {
                queue.forget(&key);
                queue.add_after(key.clone(), Duration::try_from(delay).unwrap_or(Duration::ZERO));
                metrics.succeeded("requeue_after");
            }
            Ok(Ok(Next::Requeue)) => {
                queue.add_rate_limited(key.clone());
                metrics.succeeded("requeue");
            }
            // Somebody wrote first: the watch brings the newer object, nothing is wrong.
            Ok(Err(error)) if error.is_conflict() => {
                self.span(&key)
                    .in_scope(|| tracing::debug!(%error, "conflict, trying again"));
                queue.add_rate_limited(key.clone());
                metrics.succeeded("requeue");
            }
            Ok(Err(error)) => {
                self.span(&key).in_scope(|| tracing::error!(%error, "Reconciler error"));
                queue.add_rate_limited(key.clone());
                metrics.failed();
            }
            Err(panic) => {
                let text = panic_text(&*panic);
                self.span(&key)
                    .in_scope(|| tracing::error!(panic = text, "Reconciler panicked"));
                queue.add_rate_limited(key.clone());
                metrics.panicked();
            }
        }
        queue.done(&key);
        metrics.added(queue.depth());
    }

    fn span(&self, key: &K) -> tracing::Span {
        let (namespace, name) = key.labels();
        tracing::error_span!(
            "reconcile",
            controller = self.name,
            controllerGroup = self.group,
            controllerKind = self.kind,
            namespace,
            name,
            reconcileID = %uuid::Uuid::new_v4(),
        )
    }
}

impl Controller<Key> {
    /// The finished controller, reconciling the objects of `cache` that `manages` accepts whenever they change.
    /// A key whose object is gone is done without a call.
    pub fn runs<V: Send + Sync + 'static>(
        self,
        cache: &Arc<Cache<V>>,
        manages: impl Fn(&V) -> bool + Clone + Send + Sync + 'static,
        reconciler: impl Reconcile<V>,
    ) -> Runnable {
        let wanted = manages.clone();
        self.watches(cache, move |change| {
            change
                .new
                .as_deref()
                .filter(|new| wanted(new))
                .map(|_| change.key.clone())
        })
        .runs_woken(cache, manages, reconciler)
    }

    /// Like [`Controller::runs`], woken only by the sources that were added, not by every change of its objects.
    pub fn runs_woken<V: Send + Sync + 'static>(
        self,
        cache: &Arc<Cache<V>>,
        manages: impl Fn(&V) -> bool + Send + Sync + 'static,
        reconciler: impl Reconcile<V>,
    ) -> Runnable {
        self.runs_keys(FromCache {
            cache: cache.clone(),
            manages,
            reconciler,
        })
    }
}

impl Controller<()> {
    /// The finished controller as a single loop that starts at once.
    pub fn runs_singleton(self, singleton: impl Singleton) -> Runnable {
        self.connects(Handle::trigger).runs_keys(OneKey(singleton))
    }
}

struct FromCache<V, M, R> {
    cache: Arc<Cache<V>>,
    manages: M,
    reconciler: R,
}

impl<V, M, R> ReconcileKey<Key> for FromCache<V, M, R>
where
    V: Send + Sync + 'static,
    M: Fn(&V) -> bool + Send + Sync + 'static,
    R: Reconcile<V>,
{
    async fn reconcile(&self, key: Key) -> Result<Next> {
        match self.cache.get(&key) {
            Some(object) if (self.manages)(&object) => self.reconciler.reconcile(object).await,
            Some(_) | None => Ok(Next::Wait),
        }
    }
}

struct OneKey<S>(S);

impl<S: Singleton> ReconcileKey<()> for OneKey<S> {
    async fn reconcile(&self, (): ()) -> Result<Next> {
        self.0.reconcile().await
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without text"
    }
}

tokio::task_local! {
    static CURRENT: &'static str;
}

/// The name of the controller whose reconcile is running; empty outside of one. Spawned tasks do not inherit it.
pub fn current_controller() -> &'static str {
    CURRENT.try_with(|name| *name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::{SignedDuration, Timestamp};
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock::ManualClock;
    use crate::error::Error;
    use crate::metrics::Registry;

    /// Reports each call and answers with the next of the given results.
    struct Scripted {
        calls: mpsc::UnboundedSender<Key>,
        answers: parking_lot::Mutex<Vec<Result<Next>>>,
    }

    impl ReconcileKey<Key> for Scripted {
        async fn reconcile(&self, key: Key) -> Result<Next> {
            self.calls.send(key).expect("the test listens");
            self.answers.lock().pop().unwrap_or(Ok(Next::Wait))
        }
    }

    struct Harness {
        manual: ManualClock,
        runner: Runner,
        calls: mpsc::UnboundedReceiver<Key>,
        handle: Handle<Key>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    fn start(mut answers: Vec<Result<Next>>) -> Harness {
        answers.reverse();
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let runner = Runner::new(manual.clock(), &Registry::new(manual.clock()));
        let (sender, calls) = mpsc::unbounded_channel();
        let mut controller = Controller::new(&runner, "test").rate_limit(RateLimit::reasonable());
        let handle = controller.handle();
        let runnable = controller.runs_keys(Scripted {
            calls: sender,
            answers: parking_lot::Mutex::new(answers),
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(runnable.run(stop.clone()));
        Harness {
            manual,
            runner,
            calls,
            handle,
            stop,
            task,
        }
    }

    impl Harness {
        /// Waits until the controller sleeps on the clock, then moves it to that moment.
        async fn pass_time(&self) -> Timestamp {
            loop {
                if let Some(deadline) = self.manual.next_deadline() {
                    self.manual.advance_to(deadline);
                    return deadline;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_failing_key_comes_back_after_its_backoff() {
        let mut harness = start(vec![Err(Error::failed("no")), Err(Error::failed("no")), Ok(Next::Wait)]);
        harness.handle.wake(Key::cluster("a"));
        harness.calls.recv().await.unwrap();
        let first = harness
            .pass_time()
            .await
            .duration_since(Timestamp::UNIX_EPOCH)
            .as_millis();
        harness.calls.recv().await.unwrap();
        let second = harness
            .pass_time()
            .await
            .duration_since(Timestamp::UNIX_EPOCH)
            .as_millis()
            - first;
        harness.calls.recv().await.unwrap();
        assert!(
            (100..=110).contains(&first) && (200..=220).contains(&second),
            "{first} {second}"
        );
        harness.stop.cancel();
        harness.task.await.unwrap();
        assert_eq!(harness.runner.metrics.errors("test"), 2.0);
    }

    #[tokio::test]
    async fn a_key_comes_back_when_it_asked_to() {
        let mut harness = start(vec![Ok(Next::After(SignedDuration::from_secs(30))), Ok(Next::Wait)]);
        harness.handle.wake(Key::cluster("a"));
        harness.calls.recv().await.unwrap();
        assert_eq!(harness.pass_time().await, Timestamp::from_second(30).unwrap());
        harness.calls.recv().await.unwrap();
    }

    struct Panics(Arc<AtomicUsize>, mpsc::UnboundedSender<()>);

    impl Singleton for Panics {
        async fn reconcile(&self) -> Result<Next> {
            if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                panic!("boom");
            }
            assert_eq!(current_controller(), "loop");
            self.1.send(()).expect("the test listens");
            Ok(Next::Wait)
        }
    }

    #[tokio::test]
    async fn a_singleton_starts_by_itself_and_survives_a_panic() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let runner = Runner::new(manual.clock(), &Registry::new(manual.clock()));
        let (sender, mut calls) = mpsc::unbounded_channel();
        let runnable = Controller::new(&runner, "loop").runs_singleton(Panics(Arc::default(), sender));
        let stop = CancellationToken::new();
        let task = tokio::spawn(runnable.run(stop.clone()));
        while calls.is_empty() {
            manual.advance(Duration::from_millis(10));
            tokio::task::yield_now().await;
        }
        calls.recv().await.unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn objects_of_a_cache_wake_their_controller_until_they_are_gone() {
        struct Sends(mpsc::UnboundedSender<u32>);
        impl Reconcile<u32> for Sends {
            async fn reconcile(&self, object: Arc<u32>) -> Result<Next> {
                self.0.send(*object).expect("the test listens");
                Ok(Next::Wait)
            }
        }
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let runner = Runner::new(manual.clock(), &Registry::new(manual.clock()));
        let cache = Cache::new("Number");
        cache.apply(Key::cluster("even"), "1", 2);
        cache.apply(Key::cluster("odd"), "1", 3);
        let (sender, mut calls) = mpsc::unbounded_channel();
        let runnable = Controller::new(&runner, "numbers").runs(&cache, |number| number % 2 == 0, Sends(sender));
        let stop = CancellationToken::new();
        let task = tokio::spawn(runnable.run(stop.clone()));
        assert_eq!(calls.recv().await, Some(2));
        cache.remove(&Key::cluster("even"));
        cache.apply(Key::cluster("odd"), "2", 4);
        assert_eq!(calls.recv().await, Some(4));
        stop.cancel();
        task.await.unwrap();
        assert!(calls.recv().await.is_none());
    }
}
