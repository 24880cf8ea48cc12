//! Gauges about every node: what it has, what its pods ask for, how old it is; and how full the cluster is.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::LabelRules;
use karpenter_api::resources::CPU;
use karpenter_api::{Quantity, ResourceList};
use karpenter_engine::model::Node as View;
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::error::Result;
use crate::metrics::{AgeStore, GaugeStore, Registry, Series, Since};
use crate::runner::{Controller, Next, Runnable, Singleton};
use crate::state::Machine;

const PERIOD: SignedDuration = SignedDuration::from_secs(5);

/// The `metrics.node` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let metrics = NodeMetrics::register(&ctx.metrics.registry, &ctx.rules);
    Controller::new(&ctx.runner, "metrics.node").runs_singleton(NodeGauges {
        ctx: ctx.clone(),
        metrics,
        shown: Mutex::default(),
    })
}

struct NodeGauges {
    ctx: Context,
    metrics: NodeMetrics,
    /// What each node's gauges were made from.
    shown: Mutex<FxHashMap<String, Facts>>,
}

/// A node, and what state made of it and its pods.
type Facts = (Arc<Node>, Arc<View>);

struct NodeMetrics {
    /// Label keys of nodes and, in step with them, the metric labels they become.
    node_labels: Vec<String>,
    allocatable: GaugeStore,
    requests: GaugeStore,
    daemon_requests: GaugeStore,
    overhead: GaugeStore,
    lifetime: AgeStore,
    utilization: GaugeStore,
}

impl Singleton for NodeGauges {
    async fn reconcile(&self) -> Result<Next> {
        let machines = self.ctx.state.machines();
        let nodes: Vec<(&Machine, &Arc<Node>)> = machines
            .iter()
            .filter_map(|machine| Some((machine, machine.node.as_ref()?)))
            .collect();
        let mut shown = self.shown.lock();
        let mut next = FxHashMap::default();
        let mut changes = false;
        for (machine, node) in &nodes {
            let name = node.name_any();
            let facts = (Arc::clone(node), Arc::clone(&machine.view));
            let known = shown.remove(&name);
            // Most nodes are as they were five seconds ago, down to the last pod.
            let same = known.is_some_and(|known| Arc::ptr_eq(&known.0, &facts.0) && Arc::ptr_eq(&known.1, &facts.1));
            if !same {
                self.metrics.show(&name, machine, node);
                changes = true;
            }
            next.insert(name, facts);
        }
        for vanished in shown.keys() {
            self.metrics.delete(vanished);
            changes = true;
        }
        *shown = next;
        if changes {
            self.show_utilization(&nodes);
        }
        Ok(Next::After(PERIOD))
    }
}

impl NodeGauges {
    fn show_utilization(&self, nodes: &[(&Machine, &Arc<Node>)]) {
        let (mut allocatable, mut requested) = (ResourceList::new(), ResourceList::new());
        for (machine, node) in nodes {
            allocatable.merge(&reported(node, Reported::Allocatable));
            requested.merge(machine.view.requested());
        }
        let series = utilization(&requested, &allocatable)
            .into_iter()
            .map(|(resource, percent)| Series {
                labels: vec![resource_label(&resource)],
                value: percent,
            });
        self.metrics.utilization.update("cluster", series.collect());
    }
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

impl NodeMetrics {
    fn register(registry: &Registry, rules: &LabelRules) -> Self {
        let mut by_metric_label = BTreeMap::new();
        for key in rules.well_known() {
            let Some((_, name)) = key.split_once('/') else { continue };
            by_metric_label
                .entry(name.to_lowercase().replace('-', "_"))
                .or_insert_with(|| key.to_owned());
        }
        let (names, node_labels): (Vec<String>, Vec<String>) = by_metric_label.into_iter().unzip();
        let own = ["node_name", "phase", "managed"].map(str::to_owned);
        let labels: Vec<String> = own.into_iter().chain(names).collect();
        let with_resource: Vec<String> = labels.iter().cloned().chain(["resource_type".to_owned()]).collect();
        let gauge = |name: &str, help: &str| registry.gauge_store(name, help, &with_resource);
        Self {
            node_labels,
            allocatable: gauge("karpenter_nodes_allocatable", "What a node has for pods."),
            requests: gauge("karpenter_nodes_total_pod_requests", "What the pods of a node request."),
            daemon_requests: gauge(
                "karpenter_nodes_total_daemon_requests",
                "What the DaemonSet pods of a node request.",
            ),
            overhead: gauge("karpenter_nodes_system_overhead", "What a node keeps for itself."),
            lifetime: registry.age_store(
                "karpenter_nodes_current_lifetime_seconds",
                "How old a node is.",
                &labels,
            ),
            utilization: registry.gauge_store(
                "karpenter_cluster_utilization_percent",
                "What pods request of what nodes have, in percent.",
                &["resource_type".to_owned()],
            ),
        }
    }

    fn show(&self, name: &str, machine: &Machine, node: &Node) {
        let allocatable = reported(node, Reported::Allocatable);
        let overhead = reported(node, Reported::Capacity).subtract(&allocatable);
        for (gauge, amounts) in [
            (&self.allocatable, &allocatable),
            (&self.requests, machine.view.requested()),
            (&self.daemon_requests, machine.view.daemon_requested()),
            (&self.overhead, &overhead),
        ] {
            gauge.update(name, self.by_resource(machine, node, amounts));
        }
        let labels = self.labels(machine, node);
        let created = node.metadata.creation_timestamp.as_ref();
        let lifetime = created.map(|created| Since {
            labels,
            since: created.0,
        });
        self.lifetime.update(name, lifetime.into_iter().collect());
    }

    fn delete(&self, name: &str) {
        for gauge in [&self.allocatable, &self.requests, &self.daemon_requests, &self.overhead] {
            gauge.delete(name);
        }
        self.lifetime.delete(name);
    }

    fn labels(&self, machine: &Machine, node: &Node) -> Vec<String> {
        let phase = node
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default();
        let own = [node.name_any(), phase, machine.is_managed().to_string()];
        let label = |key: &String| crate::nodes::label(node, key).to_owned();
        own.into_iter().chain(self.node_labels.iter().map(label)).collect()
    }

    fn by_resource(&self, machine: &Machine, node: &Node, amounts: &ResourceList) -> Vec<Series> {
        let labels = self.labels(machine, node);
        let one = |(resource, amount): (&String, &Quantity)| Series {
            labels: labels.iter().cloned().chain([resource_label(resource)]).collect(),
            value: amount_of(resource, *amount),
        };
        amounts.iter().map(one).collect()
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
