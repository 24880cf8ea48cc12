//! Steers ReplicaSets that shrink towards the nodes that Karpenter would like to be empty (gate
//! `PodDeletionCostManagement`).
//!
//! Once a minute the engine ranks the nodes; where a node's rank changed, its pods get it as
//! `controller.kubernetes.io/pod-deletion-cost`, written by a [`queue`] at its own pace. Values of users are overwritten.

pub mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels::annotations::POD_DELETION_COST;
use karpenter_engine::disruption::deletion_cost::{Ranking, rank};
use karpenter_engine::model;
use kube::ResourceExt;
use parking_lot::Mutex;

use self::queue::Writes;
use crate::context::Context;
use crate::disruption;
use crate::error::Result;
use crate::metrics::Gauge;
use crate::runner::{Controller, Next, Runnable, Singleton};
use crate::watch::Key;

const PERIOD: SignedDuration = SignedDuration::from_mins(1);
const NOT_SYNCED: SignedDuration = SignedDuration::from_secs(1);

/// The `pod.deletioncost` and `pod.deletioncost.queue` controllers.
pub fn controllers(ctx: &Context) -> Vec<Runnable> {
    let (writes, queue) = queue::controller(ctx);
    let pending = ctx.metrics.registry.gauge(
        "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
        "Nodes whose pods are about to get another deletion cost.",
        ["nodepool"],
    );
    let deletion_cost = DeletionCost {
        ctx: ctx.clone(),
        writes,
        pending,
        ranked_at: Mutex::new(None),
    };
    let controller = Controller::new(&ctx.runner, "pod.deletioncost").runs_singleton(deletion_cost);
    vec![controller, queue]
}

struct DeletionCost {
    ctx: Context,
    writes: Arc<Writes>,
    pending: Gauge<1>,
    /// The consolidation state that the last ranking was made at.
    ranked_at: Mutex<Option<Timestamp>>,
}

impl Singleton for DeletionCost {
    async fn reconcile(&self) -> Result<Next> {
        if !self.ctx.state.synced() {
            return Ok(Next::After(NOT_SYNCED));
        }
        let state = self.ctx.state.consolidation_state();
        if *self.ranked_at.lock() == Some(state) {
            return Ok(Next::After(PERIOD));
        }
        let fleet = disruption::fleet(&self.ctx).await;
        if fleet.members.is_empty() {
            return Ok(Next::After(PERIOD));
        }
        let ranking = rank(&fleet, &|pod| self.is_pinned(pod));
        self.enqueue(&ranking);
        *self.ranked_at.lock() = Some(state);
        Ok(Next::After(PERIOD))
    }
}

impl DeletionCost {
    /// Nothing that scales down would take this pod with it, so its node stays whatever happens to the others. System pods
    /// come and go with their nodes.
    fn is_pinned(&self, pod: &model::Pod) -> bool {
        if &*pod.namespace == "kube-system" {
            return false;
        }
        let key = Key::namespaced(pod.namespace.clone(), &*pod.name);
        let Some(object) = self.ctx.pods.get(&key) else {
            return false;
        };
        let movable = [("apps/v1", "ReplicaSet"), ("batch/v1", "Job"), ("apps/v1", "DaemonSet")];
        !movable
            .iter()
            .any(|(api_version, kind)| is_controlled_by(&object, api_version, kind))
    }

    /// Queues the pods of every node where something changes.
    fn enqueue(&self, ranking: &Ranking) {
        let mut nodes: BTreeMap<String, f64> = BTreeMap::new();
        for (node, cost) in ranking.due(|node, cost| !self.differing(node, cost).is_empty()) {
            for pod in self.differing(&node, cost) {
                self.writes.add(&pod, cost.map(|cost| cost.to_string()));
            }
            *nodes.entry(self.pool_of(&node)).or_default() += 1.0;
        }
        self.pending.clear();
        for (pool, count) in nodes {
            self.pending.set([&pool], count);
        }
    }

    /// Pods of the node that ReplicaSets may choose from and that do not have this cost.
    fn differing(&self, node: &str, cost: Option<i32>) -> Vec<Arc<Pod>> {
        let wanted = cost.map(|cost| cost.to_string());
        let mut pods = self.ctx.relations.pods_on(node);
        pods.retain(|pod| {
            is_controlled_by(pod, "apps/v1", "ReplicaSet")
                && pod.annotations().get(POD_DELETION_COST) != wanted.as_ref()
        });
        pods
    }

    fn pool_of(&self, node: &str) -> String {
        let machine = self.ctx.state.machine_of_node(node);
        machine
            .and_then(|machine| machine.node_pool().map(str::to_owned))
            .unwrap_or_default()
    }
}

fn is_controlled_by(pod: &Pod, api_version: &str, kind: &str) -> bool {
    let controller = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    controller.is_some_and(|owner| owner.api_version == api_version && owner.kind == kind)
}
