//! Builds what the planner looks at from what the controllers know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition;
use karpenter_engine::convert;
use karpenter_engine::disruption::fleet::{DeletionCost, SpotToSpot};
use karpenter_engine::disruption::{Fleet, Gates, Member, PodDisruptionBudgets, PoolPolicy, Standing};
use kube::ResourceExt;

use crate::context::Context;
use crate::nodes;
use crate::state::Machine;

/// One consistent view for one method of a pass. `queued` names the machines that a command already owns.
pub(super) async fn build(ctx: &Context, queued: &BTreeSet<String>) -> Fleet {
    let snapshot = crate::provisioning::snapshot::current(ctx).await;
    let now = ctx.clock.now();
    let members: Vec<Member> = ctx
        .state
        .machines()
        .iter()
        .map(|machine| member(machine, queued, now))
        .collect();
    let pools: BTreeMap<String, PoolPolicy> = ctx
        .pools
        .list()
        .iter()
        .filter(|pool| ctx.managed.pool(pool))
        .map(|pool| {
            let name = pool.name_any();
            let known = snapshot
                .catalog
                .pool(&name)
                .is_some_and(|types| !types.instance_types.is_empty());
            let policy = convert::pool_policy(pool, ctx.state.cost.pool_cost(&name), known);
            (name, policy)
        })
        .collect();
    let budgets = ctx.budgets.list();
    let gates = &ctx.options.feature_gates;
    Fleet {
        snapshot,
        members: members.into(),
        pools: Arc::new(pools),
        pod_budgets: Arc::new(PodDisruptionBudgets::new(
            budgets.iter().map(|budget| convert::pod_disruption_budget(budget)),
        )),
        gates: Gates {
            spot_to_spot: if gates.spot_to_spot_consolidation {
                SpotToSpot::Allowed
            } else {
                SpotToSpot::Refused
            },
            deletion_cost: match gates.pod_deletion_cost_management {
                true => DeletionCost::ByKarpenter,
                false => DeletionCost::ByUsers,
            },
        },
    }
}

fn member(machine: &Machine, queued: &BTreeSet<String>, now: jiff::Timestamp) -> Member {
    let claim = machine.claim.as_deref();
    let is_true = |type_: &str| claim.is_some_and(|claim| claim.is_true(type_));
    let standing = Standing {
        queued: machine.provider_id().is_some_and(|id| queued.contains(id)),
        leaving: machine.is_marked_for_deletion(),
        instance_terminating: is_true(condition::INSTANCE_TERMINATING),
        rebooting: machine.is_rebooting(),
        nominated: machine.is_nominated(now),
        not_ready: machine.node.as_deref().is_some_and(|node| !nodes::is_ready(node)),
        do_not_disrupt: machine.annotation(annotations::DO_NOT_DISRUPT) == Some("true"),
        holds_buffer_pods: false,
    };
    Member {
        node: machine.view.clone(),
        claim: claim.map(|claim| Arc::new(convert::claim_disruption(claim))),
        standing,
    }
}
