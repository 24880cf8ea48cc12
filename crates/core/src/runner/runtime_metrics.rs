//! Reconcile and work queue metrics under the names that controller dashboards know (api.md §5.4).

use std::time::Duration;

use crate::metrics::{Counter, DURATION_BUCKETS, Gauge, Histogram, Registry, exponential_buckets};

/// Metrics shared by all controllers, labelled by controller.
#[derive(Debug)]
pub struct RunnerMetrics {
    reconciles: Counter<2>,
    errors: Counter<1>,
    panics: Counter<1>,
    time: Histogram<1>,
    most_workers: Gauge<1>,
    active_workers: Gauge<1>,
    depth: Gauge<3>,
    adds: Counter<2>,
    retries: Counter<2>,
    queue_time: Histogram<2>,
    work_time: Histogram<2>,
}

impl RunnerMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let up_to_a_minute: Vec<f64> = DURATION_BUCKETS
            .iter()
            .copied()
            .filter(|bucket| *bucket <= 60.0)
            .collect();
        let queue_buckets = exponential_buckets(1e-8, 10.0, 12);
        let by_controller = ["controller"];
        let by_queue = ["name", "controller"];
        Self {
            reconciles: registry.counter(
                "controller_runtime_reconcile_total",
                "Reconciles per controller and result.",
                ["controller", "result"],
            ),
            errors: registry.counter(
                "controller_runtime_reconcile_errors_total",
                "Reconciles that returned an error.",
                by_controller,
            ),
            panics: registry.counter(
                "controller_runtime_reconcile_panics_total",
                "Reconciles that panicked.",
                by_controller,
            ),
            time: registry.histogram(
                "controller_runtime_reconcile_time_seconds",
                "Duration of reconciles.",
                by_controller,
                &up_to_a_minute,
            ),
            most_workers: registry.gauge(
                "controller_runtime_max_concurrent_reconciles",
                "How many reconciles a controller may run at once.",
                by_controller,
            ),
            active_workers: registry.gauge(
                "controller_runtime_active_workers",
                "Reconciles that run now.",
                by_controller,
            ),
            depth: registry.gauge(
                "workqueue_depth",
                "Keys that wait for a worker.",
                ["name", "controller", "priority"],
            ),
            adds: registry.counter("workqueue_adds_total", "Keys taken up by a controller.", by_queue),
            retries: registry.counter(
                "workqueue_retries_total",
                "Keys that came back through the rate limiter.",
                by_queue,
            ),
            queue_time: registry.histogram(
                "workqueue_queue_duration_seconds",
                "How long keys waited for a worker.",
                by_queue,
                &queue_buckets,
            ),
            work_time: registry.histogram(
                "workqueue_work_duration_seconds",
                "How long keys were worked on.",
                by_queue,
                &queue_buckets,
            ),
        }
    }

    /// How many reconciles of a controller returned an error.
    pub fn errors(&self, controller: &str) -> f64 {
        self.errors.get([controller])
    }

    pub(super) fn controller(self: &std::sync::Arc<Self>, name: &'static str, workers: usize) -> ControllerMetrics {
        self.most_workers.set([name], workers as f64);
        self.active_workers.set([name], 0.0);
        for result in ["success", "error", "requeue", "requeue_after"] {
            self.reconciles.add([name, result], 0);
        }
        self.errors.add([name], 0);
        self.panics.add([name], 0);
        ControllerMetrics {
            name,
            all: self.clone(),
        }
    }
}

/// The same, for one controller.
#[derive(Debug)]
pub(super) struct ControllerMetrics {
    name: &'static str,
    all: std::sync::Arc<RunnerMetrics>,
}

impl ControllerMetrics {
    pub(super) fn added(&self, depth: usize) {
        self.all.depth.set([self.name, self.name, ""], depth as f64);
    }

    pub(super) fn started(&self, waited: Duration, depth: usize) {
        self.added(depth);
        self.all.adds.inc([self.name, self.name]);
        self.all
            .queue_time
            .observe([self.name, self.name], waited.as_secs_f64());
        self.all.active_workers.add([self.name], 1.0);
    }

    pub(super) fn ended(&self, worked: Duration) {
        self.all.active_workers.add([self.name], -1.0);
        self.all.time.observe([self.name], worked.as_secs_f64());
        self.all.work_time.observe([self.name, self.name], worked.as_secs_f64());
    }

    pub(super) fn succeeded(&self, result: &'static str) {
        self.all.reconciles.inc([self.name, result]);
        if result == "requeue" {
            self.all.retries.inc([self.name, self.name]);
        }
    }

    pub(super) fn failed(&self) {
        self.all.reconciles.inc([self.name, "error"]);
        self.all.errors.inc([self.name]);
        self.all.retries.inc([self.name, self.name]);
    }

    pub(super) fn panicked(&self) {
        self.all.panics.inc([self.name]);
        self.failed();
    }
}
