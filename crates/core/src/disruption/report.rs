//! Tells users what disruption decided about their nodes, and why it left others alone.

use jiff::SignedDuration;
use karpenter_api::labels::annotations;
use karpenter_engine::disruption::balanced::THRESHOLD;
use karpenter_engine::disruption::{Blocked, Budgets, Candidate, Command, Fleet, Method, RepairAction, pods};
use karpenter_engine::model::{DoNotDisrupt, Pod};
use kube::ResourceExt;

use crate::context::Context;
use crate::events::{self, Regarding};
use crate::state::Machine;
use crate::watch::Key;

/// Node and NodeClaim of a machine, whichever exist.
pub(super) fn objects(machine: &Machine) -> Vec<Regarding> {
    let node = machine.node.as_deref().map(Regarding::of);
    let claim = machine.claim.as_deref().map(Regarding::of);
    node.into_iter().chain(claim).collect()
}

pub(super) fn objects_of(ctx: &Context, candidate: &Candidate) -> Vec<Regarding> {
    let machine = candidate
        .node
        .provider_id
        .as_deref()
        .and_then(|id| ctx.state.machine(id));
    machine.as_ref().map(objects).unwrap_or_default()
}

/// Why a method passed over a node. What rules a node out for every method is `DisruptionBlocked`; what only keeps it
/// from being consolidated is `Unconsolidatable`.
pub(super) fn blocked(ctx: &Context, node: &str, blocked: &Blocked) {
    if !blocked.is_worth_an_event() {
        return;
    }
    let Some(machine) = ctx.state.machine_of_node(node) else {
        return;
    };
    if let Blocked::TooManyUnhealthy { pool, .. } = blocked {
        let pool = ctx.pools.named(pool).map(|pool| Regarding::of(&*pool));
        for object in objects(&machine).into_iter().chain(pool) {
            ctx.events
                .publish(events::node_repair_blocked(object, &blocked.to_string()));
        }
        return;
    }
    for object in objects(&machine) {
        let event = match is_about_consolidation(blocked) {
            true => events::unconsolidatable(object, &blocked.to_string()),
            false => events::disruption_blocked(object, &blocked.to_string()),
        };
        ctx.events.publish(event);
    }
}

fn is_about_consolidation(blocked: &Blocked) -> bool {
    matches!(
        blocked,
        Blocked::ConsolidationDisabled
            | Blocked::BufferPods
            | Blocked::OnlyWhenEmpty
            | Blocked::UnknownInstanceType
            | Blocked::MissingLabel(_)
            | Blocked::TooManyReplacements(_)
            | Blocked::NothingCheaper
            | Blocked::MinValuesUnmet
            | Blocked::SpotToSpotDisabled
            | Blocked::TooFewSpotTypes { .. }
    )
}

/// Tells the owners of pods that are protected for a while until when, and for some time afterwards that it is over.
pub(super) fn protections(ctx: &Context, fleet: &Fleet) {
    const TOLD_FOR: SignedDuration = SignedDuration::from_mins(10);
    let now = fleet.now();
    let managed = fleet.members.iter().filter(|member| member.claim.is_some());
    for pod in managed.flat_map(|member| member.node.pods()) {
        let length = match pod.do_not_disrupt {
            None | Some(DoNotDisrupt::Always) => continue,
            Some(DoNotDisrupt::For(length)) => length,
            Some(DoNotDisrupt::Unreadable) => {
                unreadable_protection(ctx, pod);
                continue;
            }
        };
        let Some(left) = pods::protection_left(pod, length, now) else {
            continue;
        };
        let object = Regarding::pod(&pod.namespace, &pod.name, &pod.uid);
        if left > SignedDuration::ZERO {
            ctx.events.publish(events::do_not_disrupt_until(object, now + left));
        } else if left > -TOLD_FOR {
            ctx.events.publish(events::do_not_disrupt_elapsed(object));
        }
    }
}

/// Tells the owner of a pod that its `karpenter.sh/do-not-disrupt` protects nothing.
fn unreadable_protection(ctx: &Context, pod: &Pod) {
    let Some(object) = ctx.pods.get(&Key::namespaced(&*pod.namespace, &*pod.name)) else {
        return;
    };
    let value = object.annotations().get(annotations::DO_NOT_DISRUPT);
    if let Some(value) = value.filter(|_| karpenter_api::pods::is_active(&object)) {
        ctx.events
            .publish(events::invalid_do_not_disrupt(Regarding::of(&*object), value));
    }
}

/// Pools with nodes whose budgets allow nothing for the reason at hand.
pub(super) fn exhausted_budgets(ctx: &Context, budgets: &Budgets) {
    for (name, budget) in budgets.iter() {
        if budget.nodes == 0 || budget.allowed > 0 {
            continue;
        }
        if let Some(pool) = ctx.pools.named(name) {
            ctx.events.publish(events::nodepool_disruption_blocked(
                Regarding::of(&*pool),
                budgets.reason.as_str(),
            ));
        }
    }
}

/// Pools with a budget that cannot be read: it allows nothing, for no reason at all.
pub(super) fn unreadable_budgets(ctx: &Context) {
    let now = ctx.clock.now();
    for pool in ctx.pools.list().iter().filter(|pool| ctx.managed.pool(pool)) {
        let mut budgets = pool.spec.disruption.budgets.iter();
        if let Some(error) = budgets.find_map(|budget| budget.allowed_disruptions(now, 1).err()) {
            tracing::error!(NodePool = pool.name_any(), %error, "a budget cannot be read, so no node is disrupted");
        }
    }
}

/// One line that says what a command does: the text of logs and events.
pub(super) fn summary(command: &Command) -> String {
    let nodes: Vec<&str> = command.candidates.iter().map(Candidate::name).collect();
    let pools: std::collections::BTreeSet<&str> = command
        .candidates
        .iter()
        .map(|candidate| candidate.pool.as_str())
        .collect();
    let mut text = format!(
        "{}: {} {} of NodePool {}",
        command.method.reason(),
        command.decision().as_str(),
        nodes.join(", "),
        pools.into_iter().collect::<Vec<_>>().join(", "),
    );
    if command.replacement_count() > 0 {
        text += &format!(", {} replacement(s)", command.replacement_count());
    }
    let is_about_money = !command.method.consolidation_type().is_empty();
    if command.savings != 0.0 && is_about_money {
        text += &format!(", saves ${:.2} per hour", command.savings);
    }
    text
}

/// A consolidation was found for these nodes.
pub(super) fn found(ctx: &Context, command: &Command) {
    let text = summary(command);
    for candidate in &command.candidates {
        for object in objects_of(ctx, candidate) {
            ctx.events.publish(events::consolidation_candidate(object, &text));
        }
    }
}

/// A Balanced pool found the move worth its while; many nodes at once are the pool's news.
pub(super) fn approved(ctx: &Context, command: &Command) {
    for score in &command.scores {
        let text = format!(
            "{}: score {:.2} of at least {THRESHOLD:.2}, saves ${:.2} per hour",
            summary(command),
            score.value,
            command.savings
        );
        let objects = match &command.candidates[..] {
            [only] => objects_of(ctx, only),
            _ => ctx
                .pools
                .named(&score.pool)
                .map(|pool| Regarding::of(&*pool))
                .into_iter()
                .collect(),
        };
        for object in objects {
            ctx.events.publish(events::consolidation_approved(object, &text));
        }
    }
}

/// The consolidation did not pass its second look.
pub(super) fn rejected(ctx: &Context, command: &Command, reason: &str) {
    let text = summary(command);
    for candidate in &command.candidates {
        for object in objects_of(ctx, candidate) {
            ctx.events
                .publish(events::consolidation_rejected(object, &text, reason));
        }
    }
}

/// The candidate's deletion was accepted.
pub(super) fn terminating(ctx: &Context, candidate: &Candidate, method: Method) {
    for object in objects_of(ctx, candidate) {
        ctx.events
            .publish(events::disruption_terminating(object, method.reason().as_str()));
    }
}

pub(super) fn log_start(command: &Command) {
    let describe = |candidate: &Candidate| {
        let kind = candidate
            .instance_type
            .as_ref()
            .map_or("", |instance_type| &instance_type.name);
        format!(
            "{} ({}, {kind}, {})",
            candidate.name(),
            candidate.claim.name,
            candidate.capacity_type().unwrap_or("")
        )
    };
    let nodes: Vec<String> = command.candidates.iter().map(describe).collect();
    let pods: usize = command
        .candidates
        .iter()
        .map(|candidate| candidate.node.pods().len())
        .sum();
    tracing::info!(
        command = summary(command),
        decision = command.decision().as_str(),
        "disrupted-node-count" = nodes.len(),
        "replacement-node-count" = command.replacement_count(),
        "pod-count" = pods,
        "disrupted-nodes" = nodes.join("; "),
        "disrupting node(s)"
    );
    if let Some(ailment) = &command.ailment {
        tracing::info!(
            condition = ailment.condition,
            status = ailment.status,
            reason = ailment.reason,
            fallback = ailment.by_fallback,
            "reboot-escalated" = ailment.action == RepairAction::ReplaceAfterReboots,
            "eligible-at" = %ailment.eligible_at,
            "termination-grace-period" = ailment.drain_bound.map(|bound| bound.to_string()),
            "repairing node"
        );
    }
}
