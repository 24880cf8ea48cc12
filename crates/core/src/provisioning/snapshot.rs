//! What a plan looks at: the cluster's facts with instance types, volumes and the pods that need a place.

use std::sync::Arc;

use karpenter_engine::Catalog;
use karpenter_engine::convert;
use karpenter_engine::disruption::PodDisruptionBudgets;
use karpenter_engine::model::{self, Node, Pod, ReservedCapacity, Snapshot, VolumeFacts};

use super::in_flight;
use crate::context::Context;
use crate::state::Facts;

/// The cluster as it is, with every pod that needs a place now. For decisions that are not about those pods first.
pub(crate) async fn current(ctx: &Context) -> Snapshot {
    let facts = ctx.state.facts();
    let volumes = ctx.state.volume_facts(&ctx.cloud.volume_requirements());
    let is_valid = |pod: &Pod| convert::volume_problems(pod, &volumes).is_empty();
    let pending = facts
        .pending
        .iter()
        .filter(|pending| pending.entry.problems.is_empty() && is_valid(&pending.entry.pod));
    let mut pods: Vec<Arc<Pod>> = pending.map(|pending| pending.entry.pod.clone()).collect();
    pods.extend(movable_pods(ctx, &facts.leaving));
    pods.extend(buffer_pods(ctx));
    let catalog = ctx.catalogs.current().await;
    let in_flight = in_flight(ctx, &facts, &catalog);
    assemble(ctx, facts, volumes, catalog, in_flight, pods)
}

/// NodeClaims that are not launched yet, as the nodes that they will be.
pub(super) fn in_flight(ctx: &Context, facts: &Facts, catalog: &Catalog) -> Vec<Arc<Node>> {
    let nodes = facts
        .unlaunched
        .iter()
        .map(|(claim, pods)| in_flight::node(claim, pods, catalog, &ctx.rules));
    nodes.map(Arc::new).collect()
}

pub(super) fn assemble(
    ctx: &Context,
    facts: Facts,
    volumes: Arc<VolumeFacts>,
    catalog: Arc<Catalog>,
    in_flight: Vec<Arc<Node>>,
    pods: Vec<Arc<Pod>>,
) -> Snapshot {
    let mut nodes = facts.nodes;
    nodes.extend(in_flight);
    let mut snapshot = Snapshot::new(catalog, options(ctx));
    snapshot.nodes = nodes.into();
    snapshot.pods = pods.into();
    snapshot.daemons = facts.daemons;
    snapshot.namespaces = facts.namespaces;
    snapshot.volumes = volumes;
    if ctx.has_default_spread() {
        snapshot.workloads = Arc::new(ctx.watches.workloads.selectors());
    }
    snapshot
}

/// Pods that exist nowhere: room to be kept for pods to come.
pub(super) fn buffer_pods(ctx: &Context) -> Vec<Arc<Pod>> {
    ctx.buffers.as_ref().map(|buffers| buffers.pods()).unwrap_or_default()
}

fn options(ctx: &Context) -> model::Options {
    let options = &ctx.options;
    model::Options {
        now: ctx.clock.now(),
        preference_policy: options.preference_policy,
        min_values_policy: options.min_values_policy,
        reserved_capacity: match options.feature_gates.reserved_capacity {
            true => ReservedCapacity::Used,
            false => ReservedCapacity::Off,
        },
        default_spread: options.scheduler_config.spread_constraints().into(),
        ..model::Options::default()
    }
}

/// Pods of nodes that go away, as far as they can leave now (scheduling.md §7.2).
pub(super) fn movable_pods(ctx: &Context, leaving: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    if leaving.is_empty() {
        return Vec::new();
    }
    let budgets = PodDisruptionBudgets::new(
        ctx.budgets
            .list()
            .iter()
            .map(|budget| convert::pod_disruption_budget(budget)),
    );
    let now = ctx.clock.now();
    let can_leave = |pod: &&Arc<Pod>| budgets.let_move(pod, now);
    leaving.iter().filter(can_leave).cloned().collect()
}
