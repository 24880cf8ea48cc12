//! When scheduling first saw a pod, first tried it and first found it a place (lifecycle.md §2.8).

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::PoolRegistration;
use crate::metrics::{DURATION_BUCKETS, Histogram, Registry};
use crate::watch::Key;

/// The moments of one pod, each the first of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodTimes {
    /// Seen to need a node.
    pub acknowledged: Option<Timestamp>,
    /// Part of a planning pass.
    pub attempted: Option<Timestamp>,
    /// A place was found, and has been found by every pass since.
    pub schedulable: Option<Timestamp>,
    /// The same, with a NodePool whose nodes register.
    pub schedulable_on_healthy_pool: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct SchedulingTimes {
    pods: Mutex<FxHashMap<Key, PodTimes>>,
    decision: Histogram<0>,
}

impl SchedulingTimes {
    pub(super) fn new(registry: &Registry) -> Self {
        let decision = registry.histogram(
            "karpenter_pods_scheduling_decision_duration_seconds",
            "From first seeing a pod to the first decision about it.",
            [],
            DURATION_BUCKETS,
        );
        Self {
            pods: Mutex::default(),
            decision,
        }
    }

    pub(super) fn get(&self, pod: &Key) -> PodTimes {
        self.pods.lock().get(pod).copied().unwrap_or_default()
    }

    pub(super) fn acknowledge(&self, pod: &Key, now: Timestamp) {
        self.pods
            .lock()
            .entry(pod.clone())
            .or_default()
            .acknowledged
            .get_or_insert(now);
    }

    pub(super) fn failed(&self, pod: &Key, now: Timestamp) {
        let mut pods = self.pods.lock();
        let times = pods.entry(pod.clone()).or_default();
        times.schedulable = None;
        times.schedulable_on_healthy_pool = None;
        self.attempted(times, now);
    }

    pub(super) fn placed(&self, pod: &Key, pool: PoolRegistration, now: Timestamp) {
        let mut pods = self.pods.lock();
        let times = pods.entry(pod.clone()).or_default();
        times.schedulable.get_or_insert(now);
        match pool {
            PoolRegistration::Healthy => {
                times.schedulable_on_healthy_pool.get_or_insert(now);
            }
            PoolRegistration::Unproven => times.schedulable_on_healthy_pool = None,
        }
        self.attempted(times, now);
    }

    fn attempted(&self, times: &mut PodTimes, now: Timestamp) {
        if times.attempted.is_some() {
            return;
        }
        times.attempted = Some(now);
        if let Some(acknowledged) = times.acknowledged {
            self.decision
                .observe([], now.duration_since(acknowledged).as_secs_f64());
        }
    }

    pub(super) fn forget(&self, pod: &Key) {
        self.pods.lock().remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn only_the_first_decision_is_observed_and_an_error_clears_the_success() {
        let times = SchedulingTimes::new(&Registry::new(Clock::system()));
        let pod = Key::namespaced("a", "web");
        let at = |second| Timestamp::from_second(second).unwrap();
        times.acknowledge(&pod, at(1));
        times.acknowledge(&pod, at(2));
        times.placed(&pod, PoolRegistration::Healthy, at(3));
        times.failed(&pod, at(4));
        let expect = PodTimes {
            acknowledged: Some(at(1)),
            attempted: Some(at(3)),
            ..PodTimes::default()
        };
        assert_eq!(times.get(&pod), expect);
        times.placed(&pod, PoolRegistration::Unproven, at(5));
        assert_eq!(times.get(&pod).schedulable, Some(at(5)));
        assert_eq!(times.get(&pod).schedulable_on_healthy_pool, None);
        assert_eq!(times.decision.count([]), 1);
    }
}
