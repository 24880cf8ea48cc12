//! The marks on nodes that are about to go: a taint, so that no pod lands there, and a condition that says why.

use std::collections::BTreeSet;

use karpenter_api::conditions::{ConditionStatus, StatusConditions};
use karpenter_api::node_claim::condition;
use karpenter_api::taint;

use crate::context::Context;
use crate::error::Result;
use crate::nodes;
use crate::patch::Written;
use crate::state::Machine;

/// Taints the node and notes the reason on the claim. An object that is gone needs no mark.
pub(super) async fn set(ctx: &Context, machine: &Machine, reason: &str) -> Result<()> {
    if let Some(node) = &machine.node {
        let mut tainted = (**node).clone();
        nodes::add_taint(&mut tainted, taint::disrupted());
        ctx.node_writer.write(node, &tainted).await?;
    }
    if let Some(claim) = &machine.claim {
        let claim = ctx.claim_writer.newest(claim.clone());
        let mut marked = (*claim).clone();
        let now = ctx.clock.now();
        let _ = marked.set_condition(condition::DISRUPTION_REASON, ConditionStatus::True, reason, reason, now);
        ctx.claim_writer.write(&claim, &marked).await?;
    }
    Ok(())
}

/// Takes both marks back. A node that termination already owns keeps its taint.
pub(super) async fn clear(ctx: &Context, machine: &Machine) -> Result<()> {
    let (Some(node), Some(claim)) = (&machine.node, &machine.claim) else {
        return Ok(());
    };
    if node.metadata.deletion_timestamp.is_none() {
        let mut bare = (**node).clone();
        nodes::remove_taint(&mut bare, &taint::disrupted());
        ctx.node_writer.write(node, &bare).await?;
    }
    let mut unmarked = (**claim).clone();
    let _ = unmarked.clear_condition(condition::DISRUPTION_REASON);
    match ctx.claim_writer.write(claim, &unmarked).await? {
        Written::Changed(_) | Written::Unchanged | Written::Gone => Ok(()),
    }
}

/// Clears marks that no command stands behind: taints last, the queue does not outlive the process.
pub(super) async fn sweep(ctx: &Context, queued: &BTreeSet<String>) -> Result<()> {
    for machine in ctx.state.machines() {
        let is_queued = machine.provider_id().is_some_and(|id| queued.contains(id));
        if is_queued || machine.is_marked_for_deletion() || machine.is_rebooting() || !is_marked(&machine) {
            continue;
        }
        clear(ctx, &machine).await?;
    }
    Ok(())
}

fn is_marked(machine: &Machine) -> bool {
    let tainted = machine
        .node
        .as_deref()
        .is_some_and(|node| nodes::has_taint(node, &taint::disrupted()));
    let noted = machine
        .claim
        .as_deref()
        .is_some_and(|claim| claim.condition(condition::DISRUPTION_REASON).is_some());
    machine.claim.is_some() && (tainted || noted)
}
