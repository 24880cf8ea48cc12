//! One node into none or one, tried in an order that is fair to every pool (disruption.md §3.6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::balanced::{THRESHOLD, Totals};
use super::super::blocked::Blocked;
use super::super::budget::Budgets;
use super::super::candidate::Candidate;
use super::super::command::{Command, Method};
use super::super::rehearsal::Rehearsal;
use super::{by_savings, compute};

/// The best candidate of every pool, then the second best of every pool, and so on; pools that the last run did not
/// get to come first.
pub fn order(candidates: Vec<Candidate>, unseen: &BTreeSet<String>) -> Vec<Candidate> {
    let mut pools: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        pools.entry(candidate.pool.clone()).or_default().push(candidate);
    }
    let (first, then): (Vec<_>, Vec<_>) = pools.into_iter().partition(|(pool, _)| unseen.contains(pool));
    let mut queues: VecDeque<VecDeque<Candidate>> = first
        .into_iter()
        .chain(then)
        .map(|(_, mut candidates)| {
            candidates.sort_by(by_savings);
            candidates.into()
        })
        .collect();
    let mut ordered = Vec::new();
    while let Some(mut queue) = queues.pop_front() {
        if let Some(candidate) = queue.pop_front() {
            ordered.push(candidate);
            queues.push_back(queue);
        }
    }
    ordered
}

/// How a look at one candidate after the other ended.
#[derive(Debug)]
pub struct Search {
    pub end: End,
    /// Candidates that were looked at in vain, and why.
    pub refused: Vec<(Arc<str>, Blocked)>,
}

#[derive(Debug)]
pub enum End {
    Found(Box<Command>),
    Exhausted,
    /// Time was up before every candidate was looked at.
    Late,
}

/// Looks for the first candidate whose removal is worth it. Asks `time` before every one whether to go on.
///
/// `unseen` names the pools that the last search did not get to, and does so again afterwards; a search that finds
/// something leaves it as it was, because the next one begins at once.
pub fn search(
    rehearsal: &mut Rehearsal<'_>,
    candidates: Vec<Candidate>,
    totals: &Totals,
    budgets: &Budgets,
    unseen: &mut BTreeSet<String>,
    time: &mut dyn FnMut() -> ControlFlow<()>,
) -> Search {
    let candidates = order(candidates, unseen);
    let mut left: BTreeSet<String> = candidates.iter().map(|candidate| candidate.pool.clone()).collect();
    let mut refused = Vec::new();
    for candidate in &candidates {
        if time().is_break() {
            *unseen = left;
            return Search {
                end: End::Late,
                refused,
            };
        }
        left.remove(&candidate.pool);
        match attempt(rehearsal, candidate, totals, budgets) {
            Ok(command) => {
                return Search {
                    end: End::Found(Box::new(command)),
                    refused,
                };
            }
            Err(reason) => refused.push((Arc::clone(&candidate.node.name), reason)),
        }
    }
    *unseen = left;
    Search {
        end: End::Exhausted,
        refused,
    }
}

/// What removing this one node would come to.
pub fn attempt(
    rehearsal: &mut Rehearsal<'_>,
    candidate: &Candidate,
    totals: &Totals,
    budgets: &Budgets,
) -> Result<Command, Blocked> {
    let fleet = rehearsal.fleet();
    if budgets.remaining(&candidate.pool) == 0 {
        return Err(Blocked::BudgetUsedUp {
            pool: candidate.pool.clone(),
            reason: budgets.reason.as_str(),
        });
    }
    if let Some(score) = totals.best_score(fleet, candidate).filter(|score| *score < THRESHOLD) {
        let pool = candidate.pool.clone();
        return Err(Blocked::NeverWorthIt { pool, score });
    }
    let mut command = compute(rehearsal, &[candidate], Method::SingleNodeConsolidation)?;
    command.scores = totals.score(fleet, &[candidate], command.savings);
    match command.scores.iter().find(|score| score.value < THRESHOLD) {
        Some(score) => Err(Blocked::NotWorthIt {
            pool: score.pool.clone(),
            score: score.value,
        }),
        None => Ok(command),
    }
}
