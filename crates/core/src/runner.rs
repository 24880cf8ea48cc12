//! Runs controllers: keys go into a work queue, a bounded number of reconciles take them out, failures come back later.
//!
//! A controller is a [`Controller`] (its name, limits and what wakes it) plus something that implements [`Reconcile`]
//! (works on an object), [`ReconcileKey`] (works on a bare key, so it also sees deletions) or [`Singleton`] (one loop
//! for the whole cluster). [`Controller::runs`] and its siblings turn it into a [`Runnable`], which the operator starts
//! once this process leads.

mod backoff;
mod controller;
mod queue;
mod runtime_metrics;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;

pub use backoff::{Backoff, Bucket, RateLimit, linear};
pub use controller::{Controller, Handle, WorkKey, current_controller};
pub use queue::Queue;
pub use runtime_metrics::RunnerMetrics;

use crate::clock::Clock;
use crate::error::Result;
use crate::metrics::Registry;

/// When to look at the same item again, unless something wakes it earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Not until something changes.
    Wait,
    /// After this time; the item's backoff is forgotten.
    After(SignedDuration),
    /// Soon, through the rate limiter, as after an error but without reporting one.
    Requeue,
}

/// Brings one object closer to how it should be. Called with what the cache holds; a deleted object is not seen.
pub trait Reconcile<V>: Send + Sync + 'static {
    /// One step for `object`; called again with backoff when it fails.
    fn reconcile(&self, object: Arc<V>) -> impl Future<Output = Result<Next>> + Send;
}

/// Like [`Reconcile`], for controllers that care about deletions or whose items are not objects.
pub trait ReconcileKey<K>: Send + Sync + 'static {
    /// One step for `key`; called again with backoff when it fails.
    fn reconcile(&self, key: K) -> impl Future<Output = Result<Next>> + Send;
}

/// A loop that never runs twice in parallel: at start, when triggered, and when its own [`Next`] says so.
pub trait Singleton: Send + Sync + 'static {
    /// One turn of the loop; repeated with backoff when it fails.
    fn reconcile(&self) -> impl Future<Output = Result<Next>> + Send;
}

/// What every controller needs from its surroundings.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The time that queues and backoffs follow.
    pub clock: Clock,
    /// Reconcile and work queue metrics (api.md §5.4).
    pub metrics: Arc<RunnerMetrics>,
}

impl Runner {
    /// A runner that registers its metrics in `registry`.
    pub fn new(clock: Clock, registry: &Registry) -> Self {
        Self {
            clock,
            metrics: Arc::new(RunnerMetrics::register(registry)),
        }
    }
}

/// A controller that is ready to start. It runs until it is cancelled and its reconciles have ended.
pub struct Runnable {
    name: &'static str,
    start: Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>,
}

impl Runnable {
    /// Any long-running task as a runnable; it must end soon after the token is cancelled.
    pub fn new<F>(name: &'static str, start: impl FnOnce(CancellationToken) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            name,
            start: Box::new(move |stop| Box::pin(start(stop))),
        }
    }

    /// The controller's name as in metrics and logs (api.md §4.7).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs until `stop` is cancelled and everything in flight has ended.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        (self.start)(stop)
    }
}

impl fmt::Debug for Runnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runnable").field(&self.name).finish()
    }
}
