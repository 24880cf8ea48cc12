//! Nodes that no longer match what was asked for are replaced, empty ones first (disruption.md §3.2).

use super::blocked::Blocked;
use super::budget::Budgets;
use super::candidate::Candidate;
use super::command::{Command, Method};
use super::rehearsal::{Moving, Rehearsal};
use super::terminate_first;

/// Empty nodes first (else pods of one drifted node would move to the next), then whoever drifted first.
pub fn order(candidates: &mut [Candidate]) {
    candidates.sort_by(|a, b| {
        let busy = |candidate: &Candidate| !candidate.is_empty();
        busy(a)
            .cmp(&busy(b))
            .then_with(|| a.claim.drifted_since.cmp(&b.claim.drifted_since))
            .then_with(|| a.name().cmp(b.name()))
    });
}

/// What replacing this one drifted node would come to: as many replacements as its pods need, at whatever price.
pub fn attempt(rehearsal: &mut Rehearsal<'_>, candidate: &Candidate, budgets: &Budgets) -> Result<Command, Blocked> {
    if budgets.remaining(&candidate.pool) == 0 {
        return Err(Blocked::BudgetUsedUp {
            pool: candidate.pool.clone(),
            reason: budgets.reason.as_str(),
        });
    }
    swap(rehearsal, candidate, Method::Drift)
}

/// Replaces one node by whatever its pods need, however many nodes and at whatever price.
pub(super) fn swap(rehearsal: &mut Rehearsal<'_>, candidate: &Candidate, method: Method) -> Result<Command, Blocked> {
    let (moving, gate) = match method {
        Method::Repair => (Moving::All, rehearsal.fleet().gates.repair),
        _ => (Moving::CanLeave, rehearsal.fleet().gates.drift),
    };
    let (mut plan, terminate_first) = terminate_first::rehearse(rehearsal, candidate, moving, gate)?;
    let replacements = match terminate_first {
        None => std::mem::take(&mut plan.claims),
        // Provisioning launches what is needed once the slot is free.
        Some(_) => Vec::new(),
    };
    let price: f64 = replacements
        .iter()
        .filter_map(|claim| claim.cheapest.as_ref())
        .map(|cheapest| cheapest.price)
        .sum();
    Ok(Command {
        replacements,
        terminate_first,
        savings: candidate.price - price,
        plan,
        ..Command::delete(method, vec![candidate.clone()])
    })
}
