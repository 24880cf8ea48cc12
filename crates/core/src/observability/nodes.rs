//! Gauges about every node: what it has, what its pods ask for, how old it is; and how full the cluster is.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::LabelRules;
use karpenter_api::resources::CPU;
use karpenter_api::{Quantity, ResourceList};
use karpenter_engine::model::Owner;
use kube::ResourceExt;

use crate::context::Context;
use crate::metrics::SeriesWriter;
use crate::state::{Cluster, Machine};

/// Registers the gauges; they are read off cluster state when somebody scrapes.
pub fn register(ctx: &Context) {
    let registry = &ctx.metrics.registry;
    let labels = Arc::new(NodeLabels::of(&ctx.rules));
    let by_resource = labels.with_resource();
    let gauges: [(&str, &str, Amounts); 6] = [
        ("allocatable", "What a node has for pods.", |_, node| {
            reported(node, Reported::Allocatable)
        }),
        (
            "total_pod_requests",
            "What the pods of a node request.",
            |machine, _| machine.view.requested().clone(),
        ),
        (
            "total_pod_limits",
            "What the pods of a node are limited to.",
            |machine, _| limits(machine, |_| true),
        ),
        (
            "total_daemon_requests",
            "What the DaemonSet pods of a node request.",
            |machine, _| machine.view.daemon_requested().clone(),
        ),
        (
            "total_daemon_limits",
            "What the DaemonSet pods of a node are limited to.",
            |machine, _| limits(machine, |owner| owner == Owner::DaemonSet),
        ),
        ("system_overhead", "What a node keeps for itself.", |_, node| {
            reported(node, Reported::Capacity).subtract(&reported(node, Reported::Allocatable))
        }),
    ];
    for (name, help, amounts) in gauges {
        let (state, labels) = (ctx.state.clone(), labels.clone());
        registry.view(&format!("karpenter_nodes_{name}"), help, &by_resource, move |series| {
            for_each_node(&state, |machine, node| {
                labels.write(series, machine, node, &amounts(machine, node));
            });
        });
    }
    let (state, clock, own) = (ctx.state.clone(), ctx.clock.clone(), labels.clone());
    registry.view(
        "karpenter_nodes_current_lifetime_seconds",
        "How old a node is.",
        &labels.names,
        move |series| {
            let now = clock.now();
            for_each_node(&state, |machine, node| {
                if let Some(created) = &node.metadata.creation_timestamp {
                    let values = own.values(machine, node);
                    let age = now.duration_since(created.0).as_secs_f64();
                    series.write(values.iter().map(String::as_str), age);
                }
            });
        },
    );
    let state = ctx.state.clone();
    registry.view(
        "karpenter_cluster_utilization_percent",
        "What pods request of what nodes have, in percent.",
        &["resource_type".to_owned()],
        move |series| {
            let (mut allocatable, mut requested) = (ResourceList::new(), ResourceList::new());
            for_each_node(&state, |machine, node| {
                allocatable.merge(&reported(node, Reported::Allocatable));
                requested.merge(machine.view.requested());
            });
            for (resource, percent) in utilization(&requested, &allocatable) {
                series.write([resource_label(&resource).as_str()], percent);
            }
        },
    );
}

/// What a gauge shows of a node.
type Amounts = fn(&Machine, &Node) -> ResourceList;

fn for_each_node(state: &Cluster, mut each: impl FnMut(&Machine, &Node)) {
    for machine in state.machines() {
        if let Some(node) = &machine.node {
            each(&machine, node);
        }
    }
}

/// The limits of a node's pods together.
fn limits(machine: &Machine, counts: impl Fn(Owner) -> bool) -> ResourceList {
    let mut sum = ResourceList::new();
    for pod in machine.view.pods().iter().filter(|pod| counts(pod.owner)) {
        sum.merge(&pod.limits);
    }
    sum
}

/// How much of each resource is asked for, in percent. Resources that no node has are left out.
fn utilization(requested: &ResourceList, allocatable: &ResourceList) -> BTreeMap<String, f64> {
    let there = allocatable.iter().filter(|(_, amount)| !amount.is_zero());
    there
        .map(|(name, amount)| (name.clone(), 100.0 * requested.amount(name).to_f64() / amount.to_f64()))
        .collect()
}

enum Reported {
    Capacity,
    Allocatable,
}

fn reported(node: &Node, what: Reported) -> ResourceList {
    let amounts = node.status.as_ref().and_then(|status| match what {
        Reported::Capacity => status.capacity.as_ref(),
        Reported::Allocatable => status.allocatable.as_ref(),
    });
    let readable = |(name, amount): (&String, _)| Some((name.clone(), Quantity::try_from(amount).ok()?));
    amounts.into_iter().flatten().filter_map(readable).collect()
}

/// The labels that every node's series have.
struct NodeLabels {
    /// Of the metric.
    names: Vec<String>,
    /// The labels of nodes that the metric's labels after the first three come from.
    keys: Vec<String>,
}

impl NodeLabels {
    fn of(rules: &LabelRules) -> Self {
        let mut by_metric_label = BTreeMap::new();
        for key in rules.well_known() {
            let Some((_, name)) = key.split_once('/') else { continue };
            by_metric_label
                .entry(name.to_lowercase().replace('-', "_"))
                .or_insert_with(|| key.to_owned());
        }
        let (names, keys): (Vec<String>, Vec<String>) = by_metric_label.into_iter().unzip();
        let own = ["node_name", "phase", "managed"].map(str::to_owned);
        Self {
            names: own.into_iter().chain(names).collect(),
            keys,
        }
    }

    fn with_resource(&self) -> Vec<String> {
        self.names.iter().cloned().chain(["resource_type".to_owned()]).collect()
    }

    fn values(&self, machine: &Machine, node: &Node) -> Vec<String> {
        let phase = node
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default();
        let own = [node.name_any(), phase, machine.is_managed().to_string()];
        let label = |key: &String| crate::nodes::label(node, key).to_owned();
        own.into_iter().chain(self.keys.iter().map(label)).collect()
    }

    fn write(&self, series: &mut SeriesWriter<'_>, machine: &Machine, node: &Node, amounts: &ResourceList) {
        let values = self.values(machine, node);
        for (resource, amount) in amounts {
            let resource_label = resource_label(resource);
            let values = values.iter().map(String::as_str).chain([resource_label.as_str()]);
            series.write(values, amount_of(resource, *amount));
        }
    }
}

/// The value of the label `resource_type`.
pub(super) fn resource_label(resource: &str) -> String {
    resource.to_lowercase().replace('-', "_")
}

/// Cores for cpu, the base unit for everything else.
pub(super) fn amount_of(resource: &str, amount: Quantity) -> f64 {
    if resource == CPU {
        amount.to_f64()
    } else {
        amount.value() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_shown_in_cores_and_the_rest_in_base_units() {
        assert_eq!(amount_of("cpu", "1500m".parse().unwrap()), 1.5);
        assert_eq!(amount_of("memory", "1Ki".parse().unwrap()), 1024.0);
        assert_eq!(resource_label("ephemeral-storage"), "ephemeral_storage");
        assert_eq!(resource_label("nvidia.com/gpu"), "nvidia.com/gpu");
    }

    #[test]
    fn utilization_leaves_out_what_no_node_has() {
        let list = |text: &str| -> ResourceList { serde_norway::from_str(text).unwrap() };
        let percent = utilization(
            &list("{cpu: '1', gpu: '1'}"),
            &list("{cpu: '4', gpu: '0', memory: 1Gi}"),
        );
        assert_eq!(percent, [("cpu".to_owned(), 25.0), ("memory".to_owned(), 0.0)].into());
    }
}
