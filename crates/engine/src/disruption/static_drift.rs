//! Drifted nodes of static NodePools are replaced one for one, as their template says (disruption.md §3.3).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocked::Blocked;
use super::budget::Budgets;
use super::candidate::Candidate;
use super::command::{Command, Method, TerminateFirst};
use super::fleet::{FixedSize, Fleet, Swap};
use super::terminate_first::Reservations;

/// Every swap that budgets, limits and reservations allow, and why the other drifted nodes stay.
///
/// Nothing is simulated: a static pool keeps its number of nodes whatever pods there are.
pub fn compute(
    fleet: &Fleet,
    candidates: Vec<Candidate>,
    budgets: &Budgets,
) -> (Vec<Command>, Vec<(Arc<str>, Blocked)>) {
    let mut pools: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        pools.entry(candidate.pool.clone()).or_default().push(candidate);
    }
    let (mut commands, mut blocked) = (Vec::new(), Vec::new());
    for (pool, mut candidates) in pools {
        candidates.sort_by(|a, b| a.name().cmp(b.name()));
        let Some(size) = candidates[0].policy(fleet).fixed else {
            continue;
        };
        for (candidate, verdict) in swaps(fleet, &pool, size, candidates, budgets) {
            match verdict {
                Ok(swap) => commands.push(command(Method::StaticDrift, candidate, swap)),
                Err(reason) => blocked.push((Arc::clone(&candidate.node.name), reason)),
            }
        }
    }
    (commands, blocked)
}

/// How a node of a static pool is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    ReplaceFirst,
    TerminateFirst(TerminateFirst),
}

fn swaps(
    fleet: &Fleet,
    pool: &str,
    size: FixedSize,
    mut candidates: Vec<Candidate>,
    budgets: &Budgets,
) -> Vec<(Candidate, Result<Exchange, Blocked>)> {
    let allowed = budgets.remaining(pool) as usize;
    if allowed == 0 {
        let reason = budgets.reason.as_str();
        return refuse_all(
            candidates,
            &Blocked::BudgetUsedUp {
                pool: pool.to_owned(),
                reason,
            },
        );
    }
    if size.is_scaling_down() {
        return refuse_all(candidates, &Blocked::ScalingDown);
    }
    if fleet.gates.drift == Swap::TerminateFirst {
        let reservations = Reservations::of(fleet, pool);
        if reservations.full {
            candidates.sort_by_key(|candidate| !reservations.is_held_by(fleet, candidate));
            candidates.truncate(allowed);
            let judge = |candidate: &Candidate| {
                let holds = reservations.is_held_by(fleet, candidate) && size.refills;
                holds
                    .then_some(Exchange::TerminateFirst(TerminateFirst::NoReservedCapacity))
                    .ok_or_else(|| Blocked::ReservationsFull(pool.to_owned()))
            };
            return judged(candidates, judge);
        }
    }
    let room = size.room();
    if room == 0 {
        candidates.truncate(allowed);
        return judged(candidates, |_| at_limit(fleet.gates.drift, size, pool));
    }
    candidates.truncate(allowed.min(room));
    judged(candidates, |_| Ok(Exchange::ReplaceFirst))
}

/// What happens to one node of a static pool whose limit leaves no room for another.
pub(super) fn at_limit(gate: Swap, size: FixedSize, pool: &str) -> Result<Exchange, Blocked> {
    match gate {
        Swap::TerminateFirst if size.refills => Ok(Exchange::TerminateFirst(TerminateFirst::StaticAtLimit)),
        Swap::TerminateFirst | Swap::ReplaceFirst => Err(Blocked::StaticPoolAtLimit(pool.to_owned())),
    }
}

/// The command that exchanges one node of a static pool.
pub(super) fn command(method: Method, candidate: Candidate, exchange: Exchange) -> Command {
    let pool = candidate.pool.clone();
    let delete = Command::delete(method, vec![candidate]);
    match exchange {
        Exchange::ReplaceFirst => Command {
            from_template: vec![pool],
            ..delete
        },
        Exchange::TerminateFirst(reason) => Command {
            terminate_first: Some(reason),
            ..delete
        },
    }
}

fn refuse_all(candidates: Vec<Candidate>, reason: &Blocked) -> Vec<(Candidate, Result<Exchange, Blocked>)> {
    judged(candidates, |_| Err(reason.clone()))
}

fn judged(
    candidates: Vec<Candidate>,
    judge: impl Fn(&Candidate) -> Result<Exchange, Blocked>,
) -> Vec<(Candidate, Result<Exchange, Blocked>)> {
    candidates
        .into_iter()
        .map(|candidate| {
            let verdict = judge(&candidate);
            (candidate, verdict)
        })
        .collect()
}
