//! Builds what the planner looks at from what the controllers know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition;
use karpenter_engine::convert;
use karpenter_engine::disruption::fleet::{DeletionCost, SpotToSpot};
use karpenter_engine::disruption::{Fleet, Gates, Health, Member, PodDisruptionBudgets, PoolPolicy, Standing, Swap};
use kube::ResourceExt;

use super::Memories;
use super::repair::Repairs;
use crate::context::Context;
use crate::nodepool::{pause, rollout};
use crate::nodes;
use crate::state::Machine;

/// One consistent view for one method of a pass. `queued` names the machines that a command already owns.
pub(super) async fn build(ctx: &Context, queued: &BTreeSet<String>, memories: &Memories) -> Fleet {
    let repairs = memories.repairs.as_ref();
    let snapshot = crate::provisioning::snapshot::current(ctx).await;
    let now = ctx.clock.now();
    let members: Vec<Member> = ctx
        .state
        .machines()
        .iter()
        .map(|machine| member(machine, queued, repairs, now))
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
            let mut policy = convert::pool_policy(pool, ctx.state.cost.pool_cost(&name), known);
            if let Some(size) = &mut policy.fixed {
                let counts = ctx.state.slots.counts(&name);
                size.active = counts.active;
                size.pending_disruption = counts.pending_disruption;
                size.deleting = counts.deleting;
                size.reserved = counts.reserved;
            }
            policy.tuning.pause = pause::of(ctx, pool);
            policy.tuning.drift_halted = rollout::is_halted(ctx, pool);
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
            drift: swap(gates.terminate_first_drift),
            repair: swap(gates.terminate_first_repair),
        },
        reservation_label: ctx.cloud.reservation_labels().map(|labels| labels.id),
    }
}

fn swap(gate: bool) -> Swap {
    match gate {
        true => Swap::TerminateFirst,
        false => Swap::ReplaceFirst,
    }
}

fn member(machine: &Machine, queued: &BTreeSet<String>, repairs: Option<&Repairs>, now: jiff::Timestamp) -> Member {
    let claim = machine.claim.as_deref();
    let is_true = |type_: &str| claim.is_some_and(|claim| claim.is_true(type_));
    let standing = Standing {
        queued: machine.provider_id().is_some_and(|id| queued.contains(id)),
        leaving: machine.is_marked_for_deletion(),
        instance_terminating: is_true(condition::INSTANCE_TERMINATING),
        rebooting: machine.is_rebooting() || repairs.is_some_and(|repairs| repairs.is_about_to_reboot(machine, now)),
        nominated: machine.is_nominated(now),
        not_ready: machine.node.as_deref().is_some_and(|node| !nodes::is_ready(node)),
        do_not_disrupt: machine.annotation(annotations::DO_NOT_DISRUPT) == Some("true"),
        holds_buffer_pods: machine.holds_buffer_pods(),
    };
    Member {
        node: machine.view.clone(),
        claim: claim.map(|claim| Arc::new(convert::claim_disruption(claim))),
        standing,
        health: repairs.map_or_else(Health::default, |repairs| repairs.health(machine, now)),
    }
}
