//! Many nodes into none or one: the longest prefix of the best candidates that can go together.

use std::ops::ControlFlow;

use super::super::balanced::{THRESHOLD, Totals};
use super::super::budget::Budgets;
use super::super::candidate::Candidate;
use super::super::command::{Command, Method};
use super::super::emptiness::Constrained;
use super::super::rehearsal::Rehearsal;
use super::{by_savings, compute, drop_shared_types};

/// More nodes than this are never disturbed by one command.
pub const BATCH: usize = 100;

/// Asks `budget` before every step whether to go on; once it breaks, the best prefix so far is the answer.
///
/// Searches by halving the prefix length, as upstream does: the answer is a prefix that works, not always the longest.
pub fn search(
    rehearsal: &mut Rehearsal<'_>,
    mut candidates: Vec<Candidate>,
    totals: &Totals,
    budgets: &mut Budgets,
    budget: &mut dyn FnMut() -> ControlFlow<()>,
) -> (Option<Command>, Constrained) {
    candidates.sort_by(by_savings);
    let before = candidates.len();
    candidates.retain(|candidate| budgets.spend(&candidate.pool));
    let constrained = Constrained::from_skipped(before - candidates.len());
    if candidates.len() < 2 {
        return (None, constrained);
    }
    let (mut least, mut most) = (2, candidates.len().min(BATCH));
    let mut best = None;
    while least <= most && budget().is_continue() {
        let count = usize::midpoint(least, most);
        match attempt(rehearsal, &candidates[..count], totals) {
            Some(command) => {
                best = Some(command);
                least = count + 1;
            }
            None => most = count - 1,
        }
    }
    (best, constrained)
}

fn attempt(rehearsal: &mut Rehearsal<'_>, candidates: &[Candidate], totals: &Totals) -> Option<Command> {
    let fleet = rehearsal.fleet();
    let batch: Vec<&Candidate> = candidates.iter().collect();
    let mut command = compute(rehearsal, &batch, Method::MultiNodeConsolidation).ok()?;
    for replacement in &mut command.replacements {
        drop_shared_types(fleet, &batch, replacement).ok()?;
    }
    command.scores = totals.score(fleet, &batch, command.savings);
    let approved = command.scores.iter().all(|score| score.value >= THRESHOLD);
    approved.then_some(command)
}
