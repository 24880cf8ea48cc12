//! Nodes on which nothing would be missed are deleted, all that the budgets allow at once (disruption.md §3.1).

use super::budget::Budgets;
use super::candidate::Candidate;
use super::command::{Command, Method};
use super::consolidation::by_savings;

/// The one command that removes every empty candidate within budget, and whether a budget kept some.
pub fn compute(mut candidates: Vec<Candidate>, budgets: &mut Budgets) -> (Option<Command>, Constrained) {
    candidates.sort_by(by_savings);
    let before = candidates.len();
    candidates.retain(|candidate| budgets.spend(&candidate.pool));
    let constrained = Constrained::from_skipped(before - candidates.len());
    if candidates.is_empty() {
        return (None, constrained);
    }
    let savings = candidates.iter().map(|candidate| candidate.price).sum();
    let command = Command {
        savings,
        ..Command::delete(Method::Emptiness, candidates)
    };
    (Some(command), constrained)
}

/// Whether a budget kept a candidate from being looked at; if so the method must look again next time, even though
/// nothing else in the cluster changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constrained {
    ByBudget,
    No,
}

impl Constrained {
    pub(super) fn from_skipped(skipped: usize) -> Constrained {
        if skipped > 0 {
            Constrained::ByBudget
        } else {
            Constrained::No
        }
    }
}
