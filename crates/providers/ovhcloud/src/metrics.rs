//! What this provider measures, under the names that dashboards of OVHcloud's own provider use.

use std::sync::Arc;

use karpenter_cloud::http::{Attempt, Ending, HttpObserver};
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, core::Collector,
};

use crate::pool::{engine::PoolCounts, plan::Sets};

/// All metrics. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    provisioning: IntCounterVec,
    provisioning_duration: HistogramVec,
    deletions: IntCounterVec,
    deletion_duration: Histogram,
    operations: IntCounterVec,
    pools_active: IntGauge,
    pools_limit: IntGauge,
    pools_total: IntGaugeVec,
    pool_nodes: IntGaugeVec,
    pool_desired: IntGaugeVec,
    calls: IntCounterVec,
    call_duration: HistogramVec,
    retries: IntCounterVec,
    types_available: IntGauge,
    price_hits: IntCounter,
    price_misses: IntCounter,
    price_refreshes: IntCounter,
    drift: IntCounterVec,
    offering_unavailable: IntGaugeVec,
    bind_wait: Histogram,
    clock_offset: Gauge,
    credential_expiry: Gauge,
    prices: GaugeVec,
    throttled: CounterVec,
    adopted: IntCounter,
    reclaimed: IntCounter,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Success,
    Error,
}

impl Status {
    pub fn of(is_ok: bool) -> Self {
        if is_ok { Self::Success } else { Self::Error }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new().expect("the names and labels of metrics are valid")
    }
}

impl Metrics {
    fn new() -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(name, help);
        let histogram = |name: &str, help: &str, first: f64, count: usize| {
            let buckets = (0..count).map(|power| first * 2f64.powi(power as i32)).collect();
            HistogramOpts::new(name, help).buckets(buckets)
        };
        let inner = Inner {
            provisioning: IntCounterVec::new(
                opts(
                    "karpenter_ovhcloud_node_provisioning_total",
                    "Launches, by how they ended.",
                ),
                &["flavor", "zone", "status"],
            )?,
            provisioning_duration: HistogramVec::new(
                histogram(
                    "karpenter_ovhcloud_node_provisioning_duration_seconds",
                    "From the start of a launch until its machine exists.",
                    10.0,
                    8,
                ),
                &["flavor", "zone"],
            )?,
            deletions: IntCounterVec::new(
                opts("karpenter_ovhcloud_node_deletion_total", "Requests to end a machine."),
                &["status"],
            )?,
            deletion_duration: Histogram::with_opts(histogram(
                "karpenter_ovhcloud_node_deletion_duration_seconds",
                "From the request to end a machine until it is gone.",
                1.0,
                11,
            ))?,
            operations: IntCounterVec::new(
                opts("karpenter_ovhcloud_pool_operations_total", "Changes of node pools."),
                &["operation", "status"],
            )?,
            pools_active: IntGauge::with_opts(opts(
                "karpenter_ovhcloud_pools_active",
                "Node pools that Karpenter made.",
            ))?,
            pools_limit: IntGauge::with_opts(opts(
                "karpenter_ovhcloud_pools_limit",
                "Node pools that the cluster may have.",
            ))?,
            pools_total: IntGaugeVec::new(
                opts("karpenter_ovhcloud_pools_total", "Node pools of the cluster, by owner."),
                &["owner"],
            )?,
            pool_nodes: IntGaugeVec::new(
                opts(
                    "karpenter_ovhcloud_pool_nodes",
                    "Machines and waiting claims of a node pool, by state.",
                ),
                &["pool", "state"],
            )?,
            pool_desired: IntGaugeVec::new(
                opts(
                    "karpenter_ovhcloud_pool_desired_nodes",
                    "The size that a node pool shall have.",
                ),
                &["pool"],
            )?,
            calls: IntCounterVec::new(
                opts("karpenter_ovhcloud_api_calls_total", "Calls of the OVHcloud API."),
                &["method", "endpoint", "status"],
            )?,
            call_duration: HistogramVec::new(
                histogram(
                    "karpenter_ovhcloud_api_call_duration_seconds",
                    "How long calls of the OVHcloud API take.",
                    0.1,
                    8,
                ),
                &["method", "endpoint"],
            )?,
            retries: IntCounterVec::new(
                opts(
                    "karpenter_ovhcloud_api_retries_total",
                    "Repeated calls of the OVHcloud API.",
                ),
                &["method", "endpoint"],
            )?,
            types_available: IntGauge::with_opts(opts(
                "karpenter_ovhcloud_instance_types_available",
                "Flavors that can be had in at least one zone.",
            ))?,
            price_hits: IntCounter::with_opts(opts(
                "karpenter_ovhcloud_pricing_cache_hits_total",
                "Prices answered from memory.",
            ))?,
            price_misses: IntCounter::with_opts(opts(
                "karpenter_ovhcloud_pricing_cache_misses_total",
                "Prices asked for before the price list was read.",
            ))?,
            price_refreshes: IntCounter::with_opts(opts(
                "karpenter_ovhcloud_pricing_cache_refreshes_total",
                "Times that the price list was read.",
            ))?,
            drift: IntCounterVec::new(
                opts("karpenter_ovhcloud_drift_detection_total", "Claims found drifted."),
                &["reason"],
            )?,
            offering_unavailable: IntGaugeVec::new(
                opts(
                    "karpenter_ovhcloud_offering_unavailable",
                    "Offerings that OVHcloud refused lately.",
                ),
                &["flavor", "zone", "reason"],
            )?,
            bind_wait: Histogram::with_opts(histogram(
                "karpenter_ovhcloud_bind_wait_seconds",
                "From a claim's reservation until it has a machine.",
                10.0,
                8,
            ))?,
            clock_offset: Gauge::with_opts(opts(
                "karpenter_ovhcloud_clock_offset_seconds",
                "How far this process's clock is ahead of the API's.",
            ))?,
            credential_expiry: Gauge::with_opts(opts(
                "karpenter_ovhcloud_credential_expiry_timestamp_seconds",
                "When the API key expires; 0 if that is not known.",
            ))?,
            prices: GaugeVec::new(
                opts("karpenter_ovhcloud_instance_type_price", "Price per hour of a flavor."),
                &["flavor", "zone", "billing"],
            )?,
            throttled: CounterVec::new(
                opts(
                    "karpenter_ovhcloud_api_throttled_seconds_total",
                    "Time that calls waited for the client's own rate limit.",
                ),
                &["endpoint"],
            )?,
            adopted: IntCounter::with_opts(opts(
                "karpenter_ovhcloud_nodes_adopted_total",
                "Machines made by MKS itself that a claim took over.",
            ))?,
            reclaimed: IntCounter::with_opts(opts(
                "karpenter_ovhcloud_spares_reclaimed_total",
                "Machines removed because nobody claimed them.",
            ))?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes the metrics part of what is scraped.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let own = &self.inner;
        let all: [Box<dyn Collector>; 26] = [
            Box::new(own.provisioning.clone()),
            Box::new(own.provisioning_duration.clone()),
            Box::new(own.deletions.clone()),
            Box::new(own.deletion_duration.clone()),
            Box::new(own.operations.clone()),
            Box::new(own.pools_active.clone()),
            Box::new(own.pools_limit.clone()),
            Box::new(own.pools_total.clone()),
            Box::new(own.pool_nodes.clone()),
            Box::new(own.pool_desired.clone()),
            Box::new(own.calls.clone()),
            Box::new(own.call_duration.clone()),
            Box::new(own.retries.clone()),
            Box::new(own.types_available.clone()),
            Box::new(own.price_hits.clone()),
            Box::new(own.price_misses.clone()),
            Box::new(own.price_refreshes.clone()),
            Box::new(own.drift.clone()),
            Box::new(own.offering_unavailable.clone()),
            Box::new(own.bind_wait.clone()),
            Box::new(own.clock_offset.clone()),
            Box::new(own.credential_expiry.clone()),
            Box::new(own.prices.clone()),
            Box::new(own.throttled.clone()),
            Box::new(own.adopted.clone()),
            Box::new(own.reclaimed.clone()),
        ];
        all.into_iter().try_for_each(|collector| registry.register(collector))
    }

    pub fn provisioned(&self, flavor: &str, zone: &str, status: &str) {
        self.inner.provisioning.with_label_values(&[flavor, zone, status]).inc();
    }

    pub fn bound(&self, flavor: &str, zone: &str, seconds: f64) {
        let own = &self.inner;
        own.provisioning_duration
            .with_label_values(&[flavor, zone])
            .observe(seconds);
        own.bind_wait.observe(seconds);
    }

    pub fn deletion(&self, status: Status) {
        self.inner.deletions.with_label_values(&[status.name()]).inc();
    }

    pub fn deleted(&self, seconds: f64) {
        self.inner.deletion_duration.observe(seconds);
    }

    pub fn operation(&self, operation: &str, status: Status) {
        self.inner
            .operations
            .with_label_values(&[operation, status.name()])
            .inc();
    }

    pub fn pools(&self, counts: &PoolCounts) {
        let own = &self.inner;
        own.pools_active.set(i64::from(counts.owned));
        own.pools_limit.set(i64::from(counts.limit));
        for (owner, count) in [
            ("owned", counts.owned),
            ("legacy", counts.legacy),
            ("foreign", counts.foreign),
        ] {
            own.pools_total.with_label_values(&[owner]).set(i64::from(count));
        }
    }

    pub fn pool(&self, pool: &str, sets: &Sets) {
        let own = &self.inner;
        for (state, count) in states(sets) {
            own.pool_nodes.with_label_values(&[pool, state]).set(count as i64);
        }
        own.pool_desired.with_label_values(&[pool]).set(i64::from(sets.desired));
    }

    pub fn forget_pool(&self, pool: &str) {
        let own = &self.inner;
        for (state, _) in states(&Sets::default()) {
            // A pool that was never measured has nothing to forget.
            let _ = own.pool_nodes.remove_label_values(&[pool, state]);
        }
        let _ = own.pool_desired.remove_label_values(&[pool]);
    }

    pub fn types_available(&self, count: usize) {
        self.inner.types_available.set(count as i64);
    }

    pub fn priced(&self, known: bool) {
        if known {
            self.inner.price_hits.inc();
        } else {
            self.inner.price_misses.inc();
        }
    }

    pub fn prices_read(&self) {
        self.inner.price_refreshes.inc();
    }

    pub fn price(&self, flavor: &str, zone: &str, billing: &str, hourly: f64) {
        self.inner
            .prices
            .with_label_values(&[flavor, zone, billing])
            .set(hourly);
    }

    pub fn drifted(&self, reason: &str) {
        self.inner.drift.with_label_values(&[reason]).inc();
    }

    pub fn unavailable(&self, marks: &[(String, String, String)]) {
        self.inner.offering_unavailable.reset();
        for (flavor, zone, reason) in marks {
            self.inner
                .offering_unavailable
                .with_label_values(&[flavor, zone, reason])
                .set(1);
        }
    }

    pub fn adopted(&self) {
        self.inner.adopted.inc();
    }

    pub fn reclaimed(&self, machines: usize) {
        self.inner.reclaimed.inc_by(machines as u64);
    }

    pub fn clock_offset(&self, seconds: i64) {
        self.inner.clock_offset.set(seconds as f64);
    }

    pub fn credential_expiry(&self, second: i64) {
        self.inner.credential_expiry.set(second as f64);
    }

    /// How many calls of an endpoint were made, of all statuses; for tests.
    pub fn calls(&self, method: &str, endpoint: &str, status: &str) -> u64 {
        self.inner.calls.with_label_values(&[method, endpoint, status]).get()
    }
}

fn states(sets: &Sets) -> [(&'static str, usize); 5] {
    [
        ("bound", sets.bound),
        ("waiting", sets.waiting),
        ("spare", sets.spare),
        ("failed", sets.failed),
        ("going", sets.going),
    ]
}

impl HttpObserver for Metrics {
    fn attempted(&self, attempt: &Attempt<'_>) {
        let own = &self.inner;
        let method = attempt.method.as_str();
        let status = match attempt.ending {
            Ending::Answered(status) => status.as_u16().to_string(),
            Ending::NotSent | Ending::Unknown => "error".to_owned(),
        };
        own.calls.with_label_values(&[method, attempt.endpoint, &status]).inc();
        own.call_duration
            .with_label_values(&[method, attempt.endpoint])
            .observe(attempt.took.as_secs_f64());
        own.throttled
            .with_label_values(&[attempt.endpoint])
            .inc_by(attempt.throttled.as_secs_f64());
        if attempt.number > 1 {
            own.retries.with_label_values(&[method, attempt.endpoint]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_metrics_can_be_registered_once() {
        let registry = Registry::new();
        let metrics = Metrics::default();
        metrics.register(&registry).expect("registered");
        metrics.register(&registry).expect_err("registered already");
        metrics.operation("create", Status::Success);
        let names: Vec<String> = registry
            .gather()
            .iter()
            .map(|family| family.name().to_owned())
            .collect();
        assert!(
            names.iter().all(|name| name.starts_with("karpenter_ovhcloud")),
            "{names:?}"
        );
    }
}
