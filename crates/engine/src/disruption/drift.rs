//! Nodes that no longer match what was asked for are replaced, empty ones first (disruption.md §3.2).

use super::budget::Budgets;
use super::candidate::{Blocked, Candidate};
use super::command::{Command, Method};
use super::rehearsal::{Destinations, Rehearsal};

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
    let outcome = rehearsal.without(&[candidate], Destinations::Any);
    if let Some(stranded) = outcome.stranded() {
        return Err(Blocked::CannotReschedule(stranded));
    }
    let mut plan = outcome.plan;
    let replacements = std::mem::take(&mut plan.claims);
    let price: f64 = replacements
        .iter()
        .filter_map(|claim| claim.cheapest.as_ref())
        .map(|cheapest| cheapest.price)
        .sum();
    Ok(Command {
        method: Method::Drift,
        candidates: vec![candidate.clone()],
        replacements,
        savings: candidate.price - price,
        scores: Vec::new(),
        plan,
    })
}
