//! Knows when nothing happens any more, so that a test can wait for the cluster to come to rest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::store::Store;

/// A counter of everything that happens, and of work that is under way.
#[derive(Debug, Default)]
pub struct Progress {
    steps: AtomicU64,
    busy: AtomicU64,
}

/// Work that counts as under way until this is dropped.
#[derive(Debug)]
pub struct Busy(std::sync::Arc<Progress>);

impl Progress {
    /// Takes note that something happened.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    /// Marks work as under way: the cluster is not at rest until the guard is dropped.
    pub fn busy(self: &std::sync::Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.step();
        Busy(std::sync::Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
        self.0.step();
    }
}

/// A request that hangs must not make a test wait for ever.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// How long a watch may stay unread on another thread; its reader may be waiting for the clock.
const UNREAD_PATIENCE: Duration = Duration::from_millis(20);

/// How often all tasks get to run without anything happening before the cluster counts as at rest.
const QUIET_ROUNDS: u32 = 64;

/// Waits until no request is under way and nothing happens while all other tasks get to run.
///
/// On a multi-threaded runtime tasks also run elsewhere, so unread watches get some time and the last rounds a few
/// milliseconds.
pub(crate) async fn settle(store: &Store, progress: &Progress, clock: &Clock) {
    let multi_threaded = matches!(
        tokio::runtime::Handle::current().runtime_flavor(),
        tokio::runtime::RuntimeFlavor::MultiThread
    );
    let mut quiet = 0;
    let mut seen = (0, 0);
    let mut since = Instant::now();
    while quiet < QUIET_ROUNDS {
        tokio::task::yield_now().await;
        let now = (progress.steps.load(Ordering::SeqCst), clock.registrations());
        if now != seen {
            seen = now;
            since = Instant::now();
            quiet = 0;
            continue;
        }
        let unread = multi_threaded && !store.is_quiet();
        if progress.busy.load(Ordering::SeqCst) > 0 || unread {
            quiet = 0;
            let patience = if unread { UNREAD_PATIENCE } else { STUCK_AFTER };
            if since.elapsed() > patience {
                return;
            }
            if since.elapsed() > Duration::from_millis(1) {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            continue;
        }
        quiet += 1;
        if multi_threaded && quiet.is_multiple_of(16) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
