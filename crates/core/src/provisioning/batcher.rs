//! Collects pods for a moment before planning: a Deployment's pods arrive one by one but should share nodes.

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tokio::sync::Notify;

use crate::clock::{Clock, later};
use crate::options::Options;
use crate::runner::Handle;

/// One window for the whole process (scheduling.md §3.1).
#[derive(Debug)]
pub struct Batcher {
    clock: Clock,
    idle: Duration,
    longest: Duration,
    open: Mutex<Open>,
    arrived: Notify,
    provisioner: Handle<()>,
}

#[derive(Debug, Default)]
struct Open {
    seen: FxHashSet<Box<str>>,
    signalled: Signal,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum Signal {
    #[default]
    None,
    /// Somebody needs a pass; the window collects others first.
    Window,
    /// A pass is due now.
    Now,
}

impl Batcher {
    pub(super) fn new(clock: Clock, options: &Options, provisioner: Handle<()>) -> Self {
        Self {
            clock,
            idle: options.batch_idle_duration,
            longest: options.batch_max_duration,
            open: Mutex::default(),
            arrived: Notify::new(),
            provisioner,
        }
    }

    /// Asks for a pass on behalf of `uid`. Asking again within the same window changes nothing, so that a pod that
    /// stays unschedulable does not hold the window open.
    pub fn trigger(&self, uid: &str) {
        let mut open = self.open.lock();
        if open.seen.contains(uid) {
            return;
        }
        open.seen.insert(uid.into());
        self.signal(&mut open);
    }

    /// Asks for a pass on behalf of nobody in particular.
    pub fn trigger_unkeyed(&self) {
        self.signal(&mut self.open.lock());
    }

    fn signal(&self, open: &mut Open) {
        if open.signalled == Signal::None {
            open.signalled = Signal::Window;
        }
        self.arrived.notify_one();
        self.provisioner.trigger();
    }

    /// Has the next [`Batcher::window`] end at once.
    pub(super) fn again(&self) {
        self.open.lock().signalled = Signal::Now;
    }

    /// Waits until the batch is complete; `false` if nobody asked for a pass.
    pub(super) async fn window(&self) -> bool {
        // Only what arrives from here on extends the window.
        let _ = futures::FutureExt::now_or_never(self.arrived.notified());
        let signalled = self.open.lock().signalled;
        match signalled {
            Signal::None => return false,
            Signal::Window => {}
            Signal::Now => return self.close(),
        }
        let latest = later(self.clock.now(), self.longest);
        loop {
            let idle = later(self.clock.now(), self.idle).min(latest);
            tokio::select! {
                // The time first: pods that come all the time must not hold the window open.
                biased;
                () = self.clock.sleep_until(idle) => return self.close(),
                () = self.arrived.notified() => {}
            }
        }
    }

    fn close(&self) -> bool {
        *self.open.lock() = Open::default();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;
    use jiff::Timestamp;

    use super::*;
    use crate::clock::ManualClock;
    use crate::metrics::Registry;
    use crate::runner::{Controller, Runner};

    fn batcher() -> (ManualClock, Arc<Batcher>) {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let runner = Runner::new(manual.clock(), &Registry::new(manual.clock()));
        let handle = Controller::new(&runner, "provisioner").handle();
        let batcher = Arc::new(Batcher::new(manual.clock(), &Options::default(), handle));
        (manual, batcher)
    }

    /// Seconds until the window closes when a pod arrives at each of `arrivals` (seconds, possibly of the same pod).
    fn closes_after(arrivals: &[(f64, &str)]) -> f64 {
        let (manual, batcher) = batcher();
        let mut window = std::pin::pin!(batcher.window());
        let mut arrivals = arrivals.iter().peekable();
        for tenth in 0..200 {
            let now = f64::from(tenth) / 10.0;
            while let Some((_, pod)) = arrivals.next_if(|(at, _)| *at <= now) {
                batcher.trigger(pod);
            }
            if window.as_mut().now_or_never().is_some() {
                return now;
            }
            manual.advance(Duration::from_millis(100));
        }
        panic!("the window never closed");
    }

    #[test]
    fn a_window_closes_after_a_second_without_a_new_pod() {
        assert_eq!(closes_after(&[(0.0, "a")]), 1.0);
        assert_eq!(closes_after(&[(0.0, "a"), (0.5, "b"), (1.2, "c")]), 2.2);
    }

    #[test]
    fn the_same_pod_does_not_hold_the_window_open() {
        assert_eq!(closes_after(&[(0.0, "a"), (0.5, "a"), (0.9, "a")]), 1.0);
    }

    #[test]
    fn a_steady_stream_of_pods_is_planned_after_ten_seconds() {
        let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let stream: Vec<(f64, &str)> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (n as f64 * 0.5, name.as_str()))
            .collect();
        assert_eq!(closes_after(&stream), 10.0);
    }

    #[tokio::test]
    async fn without_a_trigger_there_is_no_window() {
        let (_, batcher) = batcher();
        assert!(!batcher.window().await);
        batcher.trigger("a");
        batcher.again();
        assert!(batcher.window().await);
        assert!(!batcher.window().await);
    }
}
