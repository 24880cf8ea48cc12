//! Metrics of planning passes (scheduling.md §8.5).

use std::collections::BTreeMap;
use std::time::Duration;

use karpenter_engine::plan::EffectiveZone;

use crate::metrics::{DURATION_BUCKETS, Gauge, Histogram, Registry, SeriesHandle};

const CONTROLLER: &str = "provisioner";

/// How passes go. Disruption simulations report under their own controller name.
#[derive(Debug)]
pub(super) struct SchedulerMetrics {
    duration: Histogram<1>,
    queue_depth: Gauge<2>,
    unfinished: Gauge<2>,
    ignored: Gauge<0>,
    unschedulable: Gauge<1>,
    pending_by_zone: Gauge<2>,
}

/// Where the current pass shows how far it is.
#[derive(Debug)]
pub(super) struct Progress {
    queue_depth: SeriesHandle,
    unfinished: SeriesHandle,
}

impl Progress {
    /// Before a pod is taken from the queue: how many are in it, and how long the pass has been at work.
    pub(super) fn is_at(&self, left: usize, elapsed: Duration) {
        self.queue_depth.set(left as f64);
        self.unfinished.set(elapsed.as_secs_f64());
    }
}

impl SchedulerMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let by_run = ["controller", "scheduling_id"];
        Self {
            duration: registry.histogram(
                "karpenter_scheduler_scheduling_duration_seconds",
                "How long planning took.",
                ["controller"],
                DURATION_BUCKETS,
            ),
            queue_depth: registry.gauge(
                "karpenter_scheduler_queue_depth",
                "Pods in the queue of the current or last pass, each time before one is taken from it.",
                by_run,
            ),
            unfinished: registry.gauge(
                "karpenter_scheduler_unfinished_work_seconds",
                "How long the current pass has been planning.",
                by_run,
            ),
            ignored: registry.gauge(
                "karpenter_scheduler_ignored_pods_count",
                "Pending pods that failed validation in the last pass.",
                [],
            ),
            unschedulable: registry.gauge(
                "karpenter_scheduler_unschedulable_pods_count",
                "Pods that found no place in the last pass.",
                ["controller"],
            ),
            pending_by_zone: registry.gauge(
                "karpenter_scheduler_pending_pods_by_effective_zone_count",
                "Pending pods of the last pass by the zone that they are bound to: its name, `flexible` or `none`.",
                ["controller", "zone"],
            ),
        }
    }

    pub(super) fn took(&self, duration: Duration) {
        self.duration.observe([CONTROLLER], duration.as_secs_f64());
    }

    /// Begins the series of a pass; those of the pass before end.
    pub(super) fn started(&self, id: &str) -> Progress {
        self.queue_depth.clear();
        let labels = [CONTROLLER, id];
        Progress {
            queue_depth: self.queue_depth.series(labels),
            unfinished: self.unfinished.series(labels),
        }
    }

    pub(super) fn ended(&self, id: &str, unschedulable: usize) {
        self.unfinished.remove([CONTROLLER, id]);
        self.unschedulable.set([CONTROLLER], unschedulable as f64);
    }

    pub(super) fn pending_by_zone(&self, pods: &BTreeMap<EffectiveZone, usize>) {
        self.pending_by_zone.clear();
        for (zone, count) in pods {
            self.pending_by_zone.set([CONTROLLER, zone.label()], *count as f64);
        }
    }

    pub(super) fn ignored(&self, pods: usize) {
        self.ignored.set([], pods as f64);
    }
}
