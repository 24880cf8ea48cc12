//! One node into none or one, tried in an order that is fair to every pool (disruption.md §3.6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
        return Err(Blocked::NotWorthIt { pool, score });
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
