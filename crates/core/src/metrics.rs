//! Prometheus metrics: typed registration, so that a label cannot be forgotten and no metric has two owners.
//!
//! A module that owns metrics registers them once in its constructor and keeps the handles. Metrics that several
//! controllers write live in [`shared::SharedMetrics`].

mod description;
mod gauge_store;
mod process;
pub mod shared;
mod summary;
mod view;

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, Opts, TextEncoder};

pub use description::{Description, Kind};
pub use gauge_store::{GaugeStore, Series};
pub use shared::SharedMetrics;
pub use summary::Summary;
pub use view::SeriesWriter;

use self::view::View;
use crate::clock::Clock;

/// Buckets of durations that may be anything from milliseconds to minutes ("DUR" in api.md §5).
pub const DURATION_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    150.0, 300.0, 450.0, 600.0,
];

/// Prometheus' own default buckets ("DEF" in api.md §5).
pub const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// `count` buckets from `start`, each `factor` times the one before.
pub fn exponential_buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    (0..count as i32).map(|power| start * factor.powi(power)).collect()
}

/// All metrics of the process.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: prometheus::Registry,
    views: Arc<Mutex<Vec<View>>>,
    clock: Clock,
    descriptions: Arc<Mutex<Vec<Description>>>,
}

impl Registry {
    /// An empty registry; the clock drives the windows of summaries.
    pub fn new(clock: Clock) -> Self {
        Self {
            inner: prometheus::Registry::new(),
            views: Arc::default(),
            clock,
            descriptions: Arc::default(),
        }
    }

    /// The time that gauges of ages count by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Registers a counter. `name` is the full name, such as `karpenter_nodes_created_total`.
    pub fn counter<const N: usize>(&self, name: &str, help: &str, labels: [&str; N]) -> Counter<N> {
        let counter = CounterVec::new(Opts::new(name, help), &labels).expect("metric and label names are valid");
        self.register(name, counter.clone());
        if N == 0 {
            counter.with_label_values::<&str>(&[]);
        }
        Counter(counter)
    }

    /// Registers a gauge.
    pub fn gauge<const N: usize>(&self, name: &str, help: &str, labels: [&str; N]) -> Gauge<N> {
        let gauge = GaugeVec::new(Opts::new(name, help), &labels).expect("metric and label names are valid");
        self.register(name, gauge.clone());
        Gauge(gauge)
    }

    /// Registers a gauge whose labels are only known at run time, filled through a [`GaugeStore`].
    pub fn gauge_store(&self, name: &str, help: &str, labels: &[String]) -> GaugeStore {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let gauge = GaugeVec::new(Opts::new(name, help), &labels).expect("metric and label names are valid");
        self.register(name, gauge.clone());
        GaugeStore::new(gauge)
    }

    /// Registers a gauge that is not kept anywhere: `read` says what its series are whenever somebody asks.
    pub fn view(
        &self,
        name: &str,
        help: &str,
        labels: &[String],
        read: impl Fn(&mut SeriesWriter<'_>) + Send + Sync + 'static,
    ) {
        let mut views = self.views.lock();
        assert!(
            views.iter().all(|view| view.name != name),
            "metric {name} must have exactly one owner"
        );
        self.descriptions.lock().push(Description {
            name: name.to_owned(),
            kind: Kind::Gauge,
            labels: labels.to_vec(),
            help: help.to_owned(),
        });
        views.push(View::new(name, help, labels, read));
    }

    /// Registers a histogram.
    pub fn histogram<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        buckets: &[f64],
    ) -> Histogram<N> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let histogram = HistogramVec::new(opts, &labels).expect("metric and label names are valid");
        self.register(name, histogram.clone());
        Histogram(histogram)
    }

    /// Registers a summary with the quantiles 0, 0.5, 0.9, 0.99 and 1 over ten minutes ("SUM" in api.md §5).
    pub fn summary<const N: usize>(&self, name: &str, help: &str, labels: [&str; N]) -> Summary<N> {
        let summary = Summary::new(name, help, labels, self.clock.clone());
        self.register(name, summary.clone());
        summary
    }

    /// Registers any other collector under `name`.
    pub fn register(&self, name: &str, collector: impl Collector + 'static) {
        self.descriptions.lock().extend(Description::of(&collector));
        if let Err(error) = self.inner.register(Box::new(collector)) {
            panic!("metric {name} must have exactly one owner: {error}");
        }
    }

    /// The registry underneath, for the metrics that the provider kit owns.
    pub fn prometheus(&self) -> &prometheus::Registry {
        &self.inner
    }

    /// What was registered here so far, by name: the reference of metrics is made from it.
    pub fn descriptions(&self) -> Vec<Description> {
        let mut descriptions = self.descriptions.lock().clone();
        descriptions.sort_by(|a, b| a.name.cmp(&b.name));
        descriptions
    }

    /// Everything in the Prometheus text format.
    pub fn encode(&self) -> String {
        let mut text = TextEncoder::new()
            .encode_to_string(&self.inner.gather())
            .expect("gathered metrics can always be written as text");
        for view in self.views.lock().iter() {
            view.encode(&mut text);
        }
        text
    }

    /// Adds CPU, memory and file descriptor metrics of this process.
    pub fn register_process_metrics(&self) {
        self.register("process_*", process::ProcessCollector::new());
    }
}

/// A counter with `N` labels.
#[derive(Clone, Debug)]
pub struct Counter<const N: usize>(CounterVec);

impl<const N: usize> Counter<N> {
    /// Counts one.
    pub fn inc(&self, labels: [&str; N]) {
        self.0.with_label_values(&labels).inc();
    }

    /// Counts `by`; zero makes the series appear.
    pub fn add(&self, labels: [&str; N], by: u64) {
        self.0.with_label_values(&labels).inc_by(by as f64);
    }

    /// What has been counted, for tests and the dashboard.
    pub fn get(&self, labels: [&str; N]) -> f64 {
        self.0.with_label_values(&labels).get()
    }
}

/// A gauge with `N` labels.
#[derive(Clone, Debug)]
pub struct Gauge<const N: usize>(GaugeVec);

impl<const N: usize> Gauge<N> {
    /// Shows `value`.
    pub fn set(&self, labels: [&str; N], value: f64) {
        self.0.with_label_values(&labels).set(value);
    }

    /// Changes the value by `by`.
    pub fn add(&self, labels: [&str; N], by: f64) {
        self.0.with_label_values(&labels).add(by);
    }

    /// One series, for whoever sets it too often to look it up each time.
    pub fn series(&self, labels: [&str; N]) -> SeriesHandle {
        SeriesHandle(self.0.with_label_values(&labels))
    }

    /// Removes a series.
    pub fn remove(&self, labels: [&str; N]) {
        // A series that never existed need not be removed.
        let _ = self.0.remove_label_values(&labels);
    }

    /// Removes all series.
    pub fn clear(&self) {
        self.0.reset();
    }

    /// What is shown, for tests and the dashboard.
    pub fn get(&self, labels: [&str; N]) -> f64 {
        self.0.with_label_values(&labels).get()
    }
}

/// One series of a [`Gauge`].
#[derive(Clone, Debug)]
pub struct SeriesHandle(prometheus::Gauge);

impl SeriesHandle {
    /// Shows `value`.
    pub fn set(&self, value: f64) {
        self.0.set(value);
    }
}

/// A histogram with `N` labels.
#[derive(Clone, Debug)]
pub struct Histogram<const N: usize>(HistogramVec);

impl<const N: usize> Histogram<N> {
    /// Adds an observation.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        self.0.with_label_values(&labels).observe(value);
    }

    /// How many observations there were, for tests.
    pub fn count(&self, labels: [&str; N]) -> u64 {
        self.0.with_label_values(&labels).get_sample_count()
    }
}

/// Registers the build info gauge (its label names are upstream's; `goversion` carries the toolchain).
pub fn register_build_info(registry: &Registry, version: &str, toolchain: &str, commit: &str) {
    let info = registry.gauge(
        "karpenter_build_info",
        "Always 1; the labels say what was built.",
        ["version", "goversion", "goarch", "commit"],
    );
    info.set([version, toolchain, std::env::consts::ARCH, commit], 1.0);
}

/// Everything that measures, in one handle.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Where controllers register metrics of their own.
    pub registry: Registry,
    /// Metrics that several controllers write.
    pub shared: Arc<SharedMetrics>,
}

impl Metrics {
    /// A fresh registry with the shared metrics.
    pub fn new(clock: Clock) -> Self {
        let registry = Registry::new(clock);
        let shared = Arc::new(SharedMetrics::register(&registry));
        Self { registry, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "exactly one owner")]
    fn a_metric_cannot_be_registered_twice() {
        let registry = Registry::new(Clock::system());
        registry.counter("karpenter_x_total", "x", ["a"]);
        registry.counter("karpenter_x_total", "x", ["a"]);
    }

    #[test]
    fn a_label_less_counter_is_visible_before_it_counts() {
        let registry = Registry::new(Clock::system());
        registry.counter("karpenter_x_total", "x", []);
        assert!(registry.encode().contains("karpenter_x_total 0"));
    }
}
