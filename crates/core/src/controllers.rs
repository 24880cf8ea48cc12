//! Every controller, in one list.

use crate::context::Context;
use crate::runner::Runnable;
use crate::{
    adoption, capacity_buffers, consistency, deletion_cost, disruption, eviction, expiration, garbage_collection,
    hydration, legacy_repair, lifecycle, node_overlays, nodepool, observability, pod_events, pricing, provisioning,
    reboot, static_capacity, termination,
};

/// The controllers, ready to start. Their order does not matter; it is the order of upstream's list.
pub fn all(ctx: &Context) -> Vec<Runnable> {
    let (mut controllers, batcher) = provisioning::controllers(ctx);
    let (evictions, eviction_queue) = eviction::controller(ctx);
    controllers.extend([
        pricing::controller(ctx),
        eviction_queue,
        nodepool::hash::controller(ctx),
        expiration::controller(ctx),
        termination::controller(ctx, evictions.clone()),
        reboot::controller(ctx, evictions),
        nodepool::readiness::controller(ctx),
        nodepool::registration_health::controller(ctx),
        nodepool::counter::controller(ctx),
        nodepool::validation::controller(ctx),
        nodepool::pause::controller(ctx),
        pod_events::controller(ctx),
        consistency::controller(ctx),
        lifecycle::controller(ctx),
        garbage_collection::controller(ctx),
        adoption::controller(ctx),
        hydration::claims(ctx),
        hydration::nodes(ctx),
    ]);
    controllers.extend(disruption::controllers(ctx));
    if !ctx.options.disable_cluster_state_observability {
        controllers.push(observability::pods::controller(ctx));
        controllers.push(observability::nodepools::controller(ctx));
        observability::nodes::register(ctx);
        controllers.extend(observability::status_conditions::controllers(ctx));
    }
    if ctx.options.feature_gates.pod_deletion_cost_management {
        controllers.extend(deletion_cost::controllers(ctx));
    }
    if ctx.options.feature_gates.node_repair && ctx.options.legacy_node_repair {
        controllers.extend(legacy_repair::controller(ctx));
    }
    if ctx.options.feature_gates.static_capacity {
        controllers.push(static_capacity::provisioning::controller(ctx));
        controllers.push(static_capacity::deprovisioning::controller(ctx));
    }
    if let Some(overlays) = &ctx.overlays {
        controllers.push(node_overlays::controller(ctx, overlays));
    }
    if let Some(buffers) = &ctx.buffers {
        controllers.push(capacity_buffers::controller(ctx, buffers, &batcher));
    }
    controllers
}
