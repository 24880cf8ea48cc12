//! Many nodes into none or one: the longest prefix of the best candidates that can go together.

use std::ops::ControlFlow;

use super::super::balanced::{THRESHOLD, Totals};
use super::super::blocked::Blocked;
use super::super::budget::Budgets;
use super::super::candidate::Candidate;
use super::super::command::{Command, Method};
use super::super::emptiness::Constrained;
use super::super::rehearsal::Rehearsal;
use super::{by_savings, compute, drop_shared_types};

/// More nodes than this are never disturbed by one command.
pub const BATCH: usize = 100;

/// What came of looking for nodes that can go together.
#[derive(Debug)]
pub struct Search {
    pub command: Option<Command>,
    /// The last batch that would have worked but was not worth it to a Balanced pool, when no other was found.
    pub refused: Option<Command>,
    pub constrained: Constrained,
    pub end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Searched,
    /// Time was up; the best batch until then is the answer.
    Late,
}

/// Asks `time` before every step whether to go on; once it breaks, the best prefix so far is the answer.
///
/// Searches by halving the prefix length, as upstream does: the answer is a prefix that works, not always the longest.
pub fn search(
    rehearsal: &mut Rehearsal<'_>,
    mut candidates: Vec<Candidate>,
    totals: &Totals,
    budgets: &mut Budgets,
    time: &mut dyn FnMut() -> ControlFlow<()>,
) -> Search {
    candidates.sort_by(by_savings);
    let before = candidates.len();
    candidates.retain(|candidate| budgets.spend(&candidate.pool));
    let mut search = Search {
        command: None,
        refused: None,
        constrained: Constrained::from_skipped(before - candidates.len()),
        end: End::Searched,
    };
    if candidates.len() < 2 {
        return search;
    }
    let (mut least, mut most) = (2, candidates.len().min(BATCH));
    while least <= most {
        if time().is_break() {
            search.end = End::Late;
            break;
        }
        let count = usize::midpoint(least, most);
        match attempt(rehearsal, &candidates[..count], totals) {
            Ok(command) if is_approved(&command) => {
                search.command = Some(command);
                least = count + 1;
            }
            Ok(command) => {
                search.refused = Some(command);
                most = count - 1;
            }
            Err(_) => most = count - 1,
        }
    }
    if search.command.is_some() {
        search.refused = None;
    }
    search
}

fn attempt(rehearsal: &mut Rehearsal<'_>, candidates: &[Candidate], totals: &Totals) -> Result<Command, Blocked> {
    let fleet = rehearsal.fleet();
    let batch: Vec<&Candidate> = candidates.iter().collect();
    let mut command = compute(rehearsal, &batch, Method::MultiNodeConsolidation)?;
    for replacement in &mut command.replacements {
        drop_shared_types(fleet, &batch, replacement)?;
    }
    command.scores = totals.score(fleet, &batch, command.savings);
    Ok(command)
}

fn is_approved(command: &Command) -> bool {
    command.scores.iter().all(|score| score.value >= THRESHOLD)
}
