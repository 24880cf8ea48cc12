//! The provider's own metrics, under the names that dashboards of the earlier provider have (§6.1).

use std::sync::Arc;

use http::StatusCode;
use karpenter_cloud::http::{Attempt, Ending, HttpObserver};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Every metric of the provider. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    creation: Histogram,
    deletion: Histogram,
    created: IntCounterVec,
    deleted: IntCounterVec,
    drift_check: Histogram,
    drift_detected: IntCounterVec,
    drifted_nodes: IntCounter,
    calls: HistogramVec,
    errors: IntCounterVec,
    types_available: IntGaugeVec,
    type_price: GaugeVec,
    type_selections: IntCounterVec,
    offering_available: IntGaugeVec,
    unavailable_offerings: IntGaugeVec,
    token_expiry: GaugeVec,
    tasks: HistogramVec,
    orphans: IntCounterVec,
    quota_blocked: IntGaugeVec,
    account_balance: GaugeVec,
    billing_ready: IntGaugeVec,
}

/// Why a server was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionReason {
    NodeClaim,
    GarbageCollection,
    FailedLaunch,
}

impl Metrics {
    /// Metrics that nobody reads until they are registered.
    ///
    /// # Panics
    /// Never: the names are constants.
    pub fn new() -> Self {
        Self(Arc::new(Families::new().expect("constant names are valid")))
    }

    /// Makes them readable.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let own = &*self.0;
        for collector in [
            Box::new(own.creation.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(own.deletion.clone()),
            Box::new(own.created.clone()),
            Box::new(own.deleted.clone()),
            Box::new(own.drift_check.clone()),
            Box::new(own.drift_detected.clone()),
            Box::new(own.drifted_nodes.clone()),
            Box::new(own.calls.clone()),
            Box::new(own.errors.clone()),
            Box::new(own.types_available.clone()),
            Box::new(own.type_price.clone()),
            Box::new(own.type_selections.clone()),
            Box::new(own.offering_available.clone()),
            Box::new(own.unavailable_offerings.clone()),
            Box::new(own.token_expiry.clone()),
            Box::new(own.tasks.clone()),
            Box::new(own.orphans.clone()),
            Box::new(own.quota_blocked.clone()),
            Box::new(own.account_balance.clone()),
            Box::new(own.billing_ready.clone()),
        ] {
            registry.register(collector)?;
        }
        Ok(())
    }

    pub(crate) fn observer(&self) -> impl HttpObserver + use<> {
        Observer(self.clone())
    }

    pub(crate) fn created(&self, instance_type: &str, zone: &str, capacity_type: &str, seconds: f64) {
        self.0
            .created
            .with_label_values(&[instance_type, zone, capacity_type])
            .inc();
        self.0.creation.observe(seconds);
        let spot = if capacity_type == "spot" { "true" } else { "false" };
        self.0.type_selections.with_label_values(&[instance_type, spot]).inc();
    }

    pub(crate) fn deletion_took(&self, seconds: f64) {
        self.0.deletion.observe(seconds);
    }

    pub(crate) fn deleted(&self, instance_type: &str, zone: &str, reason: DeletionReason) {
        self.0
            .deleted
            .with_label_values(&[instance_type, zone, reason.label()])
            .inc();
    }

    pub(crate) fn task(&self, result: &str, seconds: f64) {
        self.0
            .tasks
            .with_label_values(&["create_server", result])
            .observe(seconds);
    }

    pub(crate) fn drift_checked(&self, seconds: f64) {
        self.0.drift_check.observe(seconds);
    }

    pub(crate) fn drifted(&self, node: &str, reason: &str) {
        self.0.drift_detected.with_label_values(&[node, reason]).inc();
        self.0.drifted_nodes.inc();
    }

    /// Per-node series end with the node.
    pub(crate) fn forget_node(&self, node: &str, reason: &str) {
        // It may never have been written.
        let _ = self.0.drift_detected.remove_label_values(&[node, reason]);
    }

    pub(crate) fn orphan(&self, kind: &str) {
        self.0.orphans.with_label_values(&[kind]).inc();
    }

    pub(crate) fn token_expires_in(&self, provider_config: &str, seconds: f64) {
        self.0.token_expiry.with_label_values(&[provider_config]).set(seconds);
    }

    pub(crate) fn balance(&self, provider_config: &str, balance: f64, ready: bool) {
        self.0
            .account_balance
            .with_label_values(&[provider_config, "VND"])
            .set(balance);
        self.0
            .billing_ready
            .with_label_values(&[provider_config, "VND"])
            .set(i64::from(ready));
    }

    pub(crate) fn quota_blocked(&self, region: &str, plan: &str, blocked: bool) {
        self.0
            .quota_blocked
            .with_label_values(&[region, plan])
            .set(i64::from(blocked));
    }

    /// What is for sale, after the types were computed anew.
    pub(crate) fn offers(&self, region: &str, types: &[Arc<karpenter_cloud::InstanceType>]) {
        use karpenter_cloud::selection;
        let own = &*self.0;
        own.types_available.reset();
        own.type_price.reset();
        own.offering_available.reset();
        for one in types {
            let mut zones = std::collections::BTreeSet::new();
            for offering in &one.offerings {
                let value = |key: &str| {
                    let requirement = offering.requirements.get(key);
                    requirement
                        .and_then(|own| own.single_value())
                        .unwrap_or_default()
                        .to_owned()
                };
                let zone = selection::zone(offering).unwrap_or_default();
                own.offering_available
                    .with_label_values(&[
                        one.name.as_str(),
                        zone,
                        &value(crate::labels::BILLING_PLAN),
                        &value(crate::labels::DISK_TYPE),
                    ])
                    .set(i64::from(offering.available));
                if offering.available {
                    zones.insert(zone.to_owned());
                }
            }
            for zone in zones {
                own.types_available.with_label_values(&[region, &zone]).inc();
            }
            for (spot, is_spot) in [("true", true), ("false", false)] {
                let prices = one.offerings.iter().filter(|offering| {
                    offering.available && (selection::capacity_type(offering) == Some("spot")) == is_spot
                });
                if let Some(price) = prices.map(|offering| offering.price).min_by(f64::total_cmp) {
                    own.type_price.with_label_values(&[one.name.as_str(), spot]).set(price);
                }
            }
        }
    }

    /// How many refusals hold, by zone and reason.
    pub(crate) fn refusals(&self, counts: impl IntoIterator<Item = (String, &'static str)>) {
        self.0.unavailable_offerings.reset();
        for (zone, reason) in counts {
            self.0
                .unavailable_offerings
                .with_label_values(&[zone.as_str(), reason])
                .inc();
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl DeletionReason {
    const fn label(self) -> &'static str {
        match self {
            Self::NodeClaim => "nodeclaim",
            Self::GarbageCollection => "garbage_collection",
            Self::FailedLaunch => "failed_launch",
        }
    }
}

/// Feeds calls into the metrics.
struct Observer(Metrics);

impl HttpObserver for Observer {
    fn attempted(&self, attempt: &Attempt<'_>) {
        let labels = [attempt.endpoint, service_of(attempt.endpoint)];
        let own = &*self.0.0;
        own.calls.with_label_values(&labels).observe(attempt.took.as_secs_f64());
        if let Some(class) = error_type(attempt.ending) {
            own.errors.with_label_values(&[labels[0], labels[1], class]).inc();
        }
    }
}

/// What the status alone says; texts refine it only where decisions are made.
fn error_type(ending: Ending) -> Option<&'static str> {
    let status = match ending {
        Ending::NotSent | Ending::Unknown => return Some("timeout"),
        Ending::Answered(status) => status,
    };
    match status {
        status if status.is_success() => None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some("auth"),
        StatusCode::PAYMENT_REQUIRED => Some("payment"),
        StatusCode::NOT_FOUND => Some("not_found"),
        StatusCode::CONFLICT => Some("conflict"),
        StatusCode::TOO_MANY_REQUESTS => Some("rate_limited"),
        status if status.is_server_error() => Some("server_error"),
        _ => Some("invalid"),
    }
}

fn service_of(operation: &str) -> &'static str {
    match operation {
        "token" | "service_catalogue" => "auth",
        "list_regions" | "get_user" => "bizfly_account",
        "list_k8s_versions" | "get_cluster" | "cluster_leave" => "kubernetes_engine",
        _ => "cloud_server",
    }
}

impl Families {
    fn new() -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(name, help);
        let slow: Vec<f64> = (0..10).map(|power| f64::from(1 << power)).collect();
        let quick: Vec<f64> = slow.iter().map(|bound| bound / 10.0).collect();
        let histogram = |name: &str, help: &str, buckets: &[f64]| HistogramOpts {
            common_opts: opts(name, help),
            buckets: buckets.to_vec(),
        };
        Ok(Self {
            creation: Histogram::with_opts(histogram(
                "karpenter_bizflycloud_instance_creation_duration_seconds",
                "From the accepted order to the known server.",
                &slow,
            ))?,
            deletion: Histogram::with_opts(histogram(
                "karpenter_bizflycloud_instance_deletion_duration_seconds",
                "From the first deletion request until the server is gone.",
                &slow,
            ))?,
            created: IntCounterVec::new(
                opts("karpenter_bizflycloud_instances_created_total", "Servers launched."),
                &["instance_type", "zone", "capacity_type"],
            )?,
            deleted: IntCounterVec::new(
                opts("karpenter_bizflycloud_instances_deleted_total", "Servers deleted."),
                &["instance_type", "zone", "reason"],
            )?,
            drift_check: Histogram::with_opts(histogram(
                "karpenter_bizflycloud_drift_check_duration_seconds",
                "How long a comparison of a server with its NodeClass took.",
                &quick,
            ))?,
            drift_detected: IntCounterVec::new(
                opts("karpenter_bizflycloud_drift_detected_total", "Drift found, by node."),
                &["node_name", "drift_reason"],
            )?,
            drifted_nodes: IntCounter::with_opts(opts("karpenter_bizflycloud_drifted_nodes_total", "Drift found."))?,
            calls: HistogramVec::new(
                histogram(
                    "karpenter_bizflycloud_api_call_duration_seconds",
                    "Calls of the cloud's API.",
                    &quick,
                ),
                &["operation", "service"],
            )?,
            errors: IntCounterVec::new(
                opts(
                    "karpenter_bizflycloud_api_errors_total",
                    "Failed calls of the cloud's API.",
                ),
                &["operation", "service", "error_type"],
            )?,
            types_available: IntGaugeVec::new(
                opts(
                    "karpenter_bizflycloud_instance_types_available",
                    "Flavors that can be had.",
                ),
                &["region", "zone"],
            )?,
            type_price: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_instance_type_price",
                    "The cheapest price of a flavor per hour.",
                ),
                &["instance_type", "spot"],
            )?,
            type_selections: IntCounterVec::new(
                opts(
                    "karpenter_bizflycloud_instance_type_selections_total",
                    "How often a flavor was chosen.",
                ),
                &["instance_type", "spot"],
            )?,
            offering_available: IntGaugeVec::new(
                opts(
                    "karpenter_bizflycloud_offering_available",
                    "Whether an offering can be had.",
                ),
                &["instance_type", "zone", "billing_plan", "disk_type"],
            )?,
            unavailable_offerings: IntGaugeVec::new(
                opts(
                    "karpenter_bizflycloud_unavailable_offerings",
                    "Refusals that are remembered.",
                ),
                &["zone", "reason"],
            )?,
            token_expiry: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_token_expiry_seconds",
                    "Seconds until the token ends.",
                ),
                &["provider_config"],
            )?,
            tasks: HistogramVec::new(
                histogram(
                    "karpenter_bizflycloud_task_duration_seconds",
                    "How long tasks of the cloud took.",
                    &slow,
                ),
                &["action", "result"],
            )?,
            orphans: IntCounterVec::new(
                opts(
                    "karpenter_bizflycloud_orphans_total",
                    "Things without an owner that were found.",
                ),
                &["kind"],
            )?,
            quota_blocked: IntGaugeVec::new(
                opts(
                    "karpenter_bizflycloud_quota_blocked",
                    "Whether a quota holds launches back.",
                ),
                &["region", "plan"],
            )?,
            account_balance: GaugeVec::new(
                opts("karpenter_bizflycloud_account_balance", "The account's balance."),
                &["provider_config", "currency"],
            )?,
            billing_ready: IntGaugeVec::new(
                opts("karpenter_bizflycloud_billing_ready", "Whether the account is paid up."),
                &["provider_config", "currency"],
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_can_be_registered_once() {
        let registry = Registry::new();
        let metrics = Metrics::new();
        metrics.register(&registry).expect("new names");
        assert!(metrics.register(&registry).is_err());
    }

    #[test]
    fn a_launch_counts_once_with_its_labels() {
        let registry = Registry::new();
        let metrics = Metrics::new();
        metrics.register(&registry).expect("new names");
        metrics.created("nix.4c_8g", "HN1", "on-demand", 40.0);
        let families = registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == "karpenter_bizflycloud_instances_created_total")
            .expect("counted");
        let metric = &family.get_metric()[0];
        assert_eq!(metric.get_counter().get_value(), 1.0);
        assert!(metric.get_label().iter().all(|label| !label.value().is_empty()));
    }
}
