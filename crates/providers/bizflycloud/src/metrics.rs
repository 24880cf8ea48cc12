//! The provider's own metrics, under the names that dashboards of the earlier provider have (§6.1).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use http::StatusCode;
use jiff::Timestamp;
use karpenter_api::labels::CAPACITY_TYPE_SPOT;
use karpenter_cloud::{
    InstanceTypes,
    http::{Attempt, Ending, HttpObserver},
    selection,
};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

use crate::{
    client::{ApiObserver, ErrorClass, tells_all},
    cost::{CostPage, Saving},
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
    termination: Histogram,
    consolidations: IntCounter,
    underutilized: IntGauge,
    node_capacity: GaugeVec,
    node_utilization: GaugeVec,
    remediations: IntCounter,
    remediation_errors: IntCounter,
    remediation: Histogram,
    token_refreshes: IntCounterVec,
    catalog_stale: GaugeVec,
    node_cost: GaugeVec,
    pool_cost: GaugeVec,
    savings: GaugeVec,
    month_to_date: GaugeVec,
}

/// Why a server was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionReason {
    NodeClaim,
    GarbageCollection,
    FailedLaunch,
    SpotInterrupted,
    WarmPool,
}

/// What the fleet's nodes look like at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetReport {
    pub(crate) underutilized: usize,
    /// Node, resource, allocatable, and the part of it that pods ask for.
    pub(crate) nodes: Vec<(String, &'static str, f64, f64)>,
    pub(crate) costs: Vec<NodeCost>,
    pub(crate) savings: Vec<Saving>,
}

/// What one node costs per hour.
#[derive(Clone, Debug)]
pub(crate) struct NodeCost {
    pub(crate) node_pool: String,
    pub(crate) instance_type: String,
    pub(crate) zone: String,
    pub(crate) billing_plan: String,
    pub(crate) currency: String,
    pub(crate) hourly: f64,
    /// When its server was made.
    pub(crate) since: Option<Timestamp>,
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
        for collector in self.collectors() {
            registry.register(collector)?;
        }
        Ok(())
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let own = &*self.0;
        vec![
            Box::new(own.creation.clone()),
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
            Box::new(own.termination.clone()),
            Box::new(own.consolidations.clone()),
            Box::new(own.underutilized.clone()),
            Box::new(own.node_capacity.clone()),
            Box::new(own.node_utilization.clone()),
            Box::new(own.remediations.clone()),
            Box::new(own.remediation_errors.clone()),
            Box::new(own.remediation.clone()),
            Box::new(own.token_refreshes.clone()),
            Box::new(own.catalog_stale.clone()),
            Box::new(own.node_cost.clone()),
            Box::new(own.pool_cost.clone()),
            Box::new(own.savings.clone()),
            Box::new(own.month_to_date.clone()),
        ]
    }

    pub(crate) fn observer(&self) -> impl ApiObserver + Clone + use<> {
        Observer(self.clone())
    }

    pub(crate) fn created(&self, instance_type: &str, zone: &str, capacity_type: &str, seconds: f64) {
        self.0
            .created
            .with_label_values(&[instance_type, zone, capacity_type])
            .inc();
        self.0.creation.observe(seconds);
        let spot = if capacity_type == CAPACITY_TYPE_SPOT {
            "true"
        } else {
            "false"
        };
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

    /// What is for sale to any class, by region, after the types of one were computed anew.
    pub(crate) fn offers(&self, classes: &[(String, InstanceTypes)]) {
        let own = &*self.0;
        own.types_available.reset();
        own.type_price.reset();
        own.offering_available.reset();
        let mut sold: BTreeSet<(&str, String, &str)> = BTreeSet::new();
        let mut cheapest: BTreeMap<[&str; 2], f64> = BTreeMap::new();
        for (region, one) in classes
            .iter()
            .flat_map(|(region, types)| types.iter().map(move |one| (region, one)))
        {
            for offering in &one.offerings {
                let value = |key: &str| {
                    let requirement = offering.requirements.get(key);
                    requirement
                        .and_then(|own| own.single_value())
                        .unwrap_or_default()
                        .to_owned()
                };
                let zone = selection::zone(offering).unwrap_or_default();
                let series = own.offering_available.with_label_values(&[
                    one.name.as_str(),
                    zone,
                    &value(crate::labels::BILLING_PLAN),
                    &value(crate::labels::DISK_TYPE),
                ]);
                // Sold to one class is sold.
                series.set(series.get().max(i64::from(offering.available)));
                if !offering.available {
                    continue;
                }
                sold.insert((region, zone.to_owned(), &one.name));
                let is_spot = selection::capacity_type(offering) == Some(CAPACITY_TYPE_SPOT);
                let price = cheapest
                    .entry([&one.name, if is_spot { "true" } else { "false" }])
                    .or_insert(f64::MAX);
                *price = price.min(offering.price);
            }
        }
        for (region, zone, _) in sold {
            own.types_available.with_label_values(&[region, &zone]).inc();
        }
        for (labels, price) in cheapest {
            own.type_price.with_label_values(&labels).set(price);
        }
    }

    /// From the claim's deletion until its server was gone.
    pub(crate) fn termination_took(&self, seconds: f64) {
        self.0.termination.observe(seconds);
    }

    /// A node that had drifted is gone.
    pub(crate) fn remediated(&self, seconds: f64) {
        self.0.remediations.inc();
        self.0.remediation.observe(seconds);
    }

    /// A node that had drifted could not be deleted.
    pub(crate) fn remediation_failed(&self) {
        self.0.remediation_errors.inc();
    }

    pub(crate) fn consolidated(&self) {
        self.0.consolidations.inc();
    }

    pub(crate) fn catalogue_is_stale_for(&self, provider_config: &str, seconds: f64) {
        let catalogue = format!("{provider_config}/flavors");
        self.0
            .catalog_stale
            .with_label_values(&[catalogue.as_str()])
            .set(seconds);
    }

    /// Everything that is told per node; series of nodes that are gone end.
    pub(crate) fn fleet(&self, report: &FleetReport) {
        let own = &*self.0;
        own.underutilized
            .set(i64::try_from(report.underutilized).unwrap_or(i64::MAX));
        own.node_capacity.reset();
        own.node_utilization.reset();
        for (node, resource, allocatable, used) in &report.nodes {
            let labels = [node.as_str(), resource];
            own.node_capacity.with_label_values(&labels).set(*allocatable);
            own.node_utilization.with_label_values(&labels).set(*used);
        }
        own.node_cost.reset();
        own.pool_cost.reset();
        for cost in &report.costs {
            let NodeCost {
                node_pool,
                instance_type,
                zone,
                billing_plan,
                currency,
                hourly,
                since: _,
            } = cost;
            own.node_cost
                .with_label_values(&[node_pool, instance_type, zone, billing_plan, currency])
                .add(*hourly);
            own.pool_cost.with_label_values(&[node_pool, currency]).add(*hourly);
        }
        own.savings.reset();
        for saving in &report.savings {
            own.savings
                .with_label_values(&[saving.node_pool.as_str(), saving.way.kind(), &saving.currency])
                .add(saving.hourly);
        }
    }

    /// What NodePools have cost this month.
    pub(crate) fn month_to_date(&self, page: &CostPage) {
        let own = &self.0.month_to_date;
        own.reset();
        for spent in &page.node_pools {
            own.with_label_values(&[spent.node_pool.as_str(), &spent.currency])
                .set(spent.amount);
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
            Self::SpotInterrupted => "spot_interrupted",
            Self::WarmPool => "warm_pool",
        }
    }
}

const TOKEN_OPERATION: &str = "token";

/// Feeds calls into the metrics.
#[derive(Clone)]
struct Observer(Metrics);

impl ApiObserver for Observer {
    fn refused(&self, operation: &str, class: ErrorClass) {
        self.0
            .0
            .errors
            .with_label_values(&[operation, service_of(operation), class.label()])
            .inc();
    }
}

impl HttpObserver for Observer {
    fn attempted(&self, attempt: &Attempt<'_>) {
        let labels = [attempt.endpoint, service_of(attempt.endpoint)];
        let own = &*self.0.0;
        own.calls.with_label_values(&labels).observe(attempt.took.as_secs_f64());
        let error = error_type(attempt.endpoint, attempt.ending);
        if let Some(class) = error {
            own.errors.with_label_values(&[labels[0], labels[1], class]).inc();
        }
        if attempt.endpoint == TOKEN_OPERATION {
            let is_success = matches!(attempt.ending, Ending::Answered(status) if status.is_success());
            let result = if is_success { "success" } else { "failure" };
            own.token_refreshes.with_label_values(&[result]).inc();
        }
    }
}

/// Calls that no account makes, so that nobody reads what a refusal of them says.
const UNREAD: [&str; 3] = [TOKEN_OPERATION, "service_catalogue", "list_billing_plans"];

/// What the status alone says. Refusals of which the text says more are counted where it is read.
fn error_type(operation: &str, ending: Ending) -> Option<&'static str> {
    let status = match ending {
        Ending::NotSent | Ending::Unknown => return Some("timeout"),
        Ending::Answered(status) => status,
    };
    match status {
        status if status.is_success() => None,
        status if !tells_all(status) && !UNREAD.contains(&operation) => None,
        StatusCode::UNAUTHORIZED => Some("auth"),
        StatusCode::PAYMENT_REQUIRED => Some("payment"),
        StatusCode::NOT_FOUND => Some("not_found"),
        StatusCode::REQUEST_TIMEOUT => Some("timeout"),
        StatusCode::TOO_MANY_REQUESTS => Some("rate_limited"),
        StatusCode::FORBIDDEN => Some("auth"),
        StatusCode::CONFLICT => Some("conflict"),
        status if status.is_client_error() => Some("invalid"),
        _ => Some("server_error"),
    }
}

fn service_of(operation: &str) -> &'static str {
    match operation {
        TOKEN_OPERATION | "service_catalogue" => "auth",
        "list_regions" | "get_user" => "bizfly_account",
        "list_billing_plans" => "billing",
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
            termination: Histogram::with_opts(histogram(
                "karpenter_bizflycloud_node_termination_duration_seconds",
                "From the deletion of a NodeClaim until its server is gone.",
                &slow,
            ))?,
            consolidations: IntCounter::with_opts(opts(
                "karpenter_bizflycloud_node_consolidation_events_total",
                "Nodes that consolidation chose to remove.",
            ))?,
            underutilized: IntGauge::with_opts(opts(
                "karpenter_bizflycloud_underutilized_nodes",
                "Nodes that consolidation may remove now.",
            ))?,
            node_capacity: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_node_capacity",
                    "What a node has for pods: cores and bytes.",
                ),
                &["node_name", "resource_type"],
            )?,
            node_utilization: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_node_utilization",
                    "The part of a node's allocatable that its pods ask for.",
                ),
                &["node_name", "resource_type"],
            )?,
            remediations: IntCounter::with_opts(opts(
                "karpenter_bizflycloud_drift_remediations_total",
                "Nodes with drift that are gone.",
            ))?,
            remediation_errors: IntCounter::with_opts(opts(
                "karpenter_bizflycloud_drift_remediation_errors_total",
                "Failed attempts to delete nodes with drift.",
            ))?,
            remediation: Histogram::with_opts(histogram(
                "karpenter_bizflycloud_drift_remediation_duration_seconds",
                "From the finding of drift until the node is gone.",
                &slow,
            ))?,
            token_refreshes: IntCounterVec::new(
                opts("karpenter_bizflycloud_token_refreshes_total", "Requests for a token."),
                &["result"],
            )?,
            catalog_stale: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_catalog_stale_seconds",
                    "How long a catalogue has been in use past its time because it can't be read.",
                ),
                &["catalog"],
            )?,
            node_cost: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_node_cost_hourly",
                    "What nodes cost per hour, disks included.",
                ),
                &["nodepool", "instance_type", "zone", "billing_plan", "currency"],
            )?,
            pool_cost: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_nodepool_cost_hourly",
                    "What a NodePool's nodes cost per hour.",
                ),
                &["nodepool", "currency"],
            )?,
            savings: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_savings_potential_hourly",
                    "What could be saved per hour, by how.",
                ),
                &["nodepool", "kind", "currency"],
            )?,
            month_to_date: GaugeVec::new(
                opts(
                    "karpenter_bizflycloud_nodepool_cost_month_to_date",
                    "What a NodePool's nodes have cost since the 1st of the month (UTC), as far as somebody watched.",
                ),
                &["nodepool", "currency"],
            )?,
            billing_ready: IntGaugeVec::new(
                opts("karpenter_bizflycloud_billing_ready", "Whether the account is paid up."),
                &["provider_config", "currency"],
            )?,
        })
    }
}

#[cfg(test)]
mod tests;
