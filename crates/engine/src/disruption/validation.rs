//! The second look before pods are disturbed to save money: is a command that was found a while ago still a good idea?
//! (disruption.md §5)

use std::collections::BTreeSet;

use super::budget::Budgets;
use super::candidate::Candidate;
use super::command::{Command, Method};
use super::fleet::Fleet;
use super::forecast;
use super::rehearsal::{Destinations, Rehearsal};

/// Why a command is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// A candidate is no longer one.
    Churn,
    /// A candidate's pool has no budget left.
    Budget,
    /// The pods would no longer fit as planned.
    Scheduling,
}

/// What the second look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub outcome: Result<(), Invalid>,
    /// Candidates that count as failed validations. Pods that no longer fit are nobody's failure.
    pub failed: usize,
}

// === impl Invalid ===

impl Invalid {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Churn => "churn",
            Self::Budget => "budget",
            Self::Scheduling => "scheduling",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    const VALID: Verdict = Verdict {
        outcome: Ok(()),
        failed: 0,
    };

    fn invalid(reason: Invalid, failed: usize) -> Verdict {
        Verdict {
            outcome: Err(reason),
            failed,
        }
    }
}

/// Judges `command` by the fleet of now. Emptiness goes on with the nodes that are still empty and within budget;
/// consolidation goes on as a whole or not at all. Drift and repair need no second look.
pub fn validate(fleet: &Fleet, command: &mut Command) -> Verdict {
    match command.method {
        Method::Repair | Method::StaticDrift | Method::Drift => Verdict::VALID,
        Method::Emptiness => keep_empty(fleet, command),
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => match stands(fleet, command) {
            Ok(fresh) => still_fits(fleet, command, &fresh),
            Err(verdict) => verdict,
        },
    }
}

/// Judges only what changes fastest: whether every candidate still is one, and within budget. Narrows the gap between a
/// simulation that takes its time and the moment when nodes are tainted.
pub fn revalidate(fleet: &Fleet, command: &Command) -> Verdict {
    match command.method {
        Method::Repair | Method::StaticDrift | Method::Drift | Method::Emptiness => Verdict::VALID,
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
            stands(fleet, command).map_or_else(|verdict| verdict, |_| Verdict::VALID)
        }
    }
}

fn keep_empty(fleet: &Fleet, command: &mut Command) -> Verdict {
    let mut fresh = chosen(fleet, command);
    if fresh.is_empty() {
        return Verdict::invalid(Invalid::Churn, command.candidates.len());
    }
    let mut budgets = Budgets::of(fleet, command.method.reason());
    let found = fresh.len();
    fresh.retain(|candidate| budgets.spend(&candidate.pool));
    let failed = found - fresh.len();
    if fresh.is_empty() {
        return Verdict::invalid(Invalid::Budget, failed);
    }
    command.savings = fresh.iter().map(|candidate| candidate.price).sum();
    command.candidates = fresh;
    Verdict {
        outcome: Ok(()),
        failed,
    }
}

/// The command's candidates as they are now.
fn stands(fleet: &Fleet, command: &Command) -> Result<Vec<Candidate>, Verdict> {
    let fresh = chosen(fleet, command);
    if fresh.len() != command.candidates.len() {
        return Err(Verdict::invalid(Invalid::Churn, command.candidates.len()));
    }
    let mut budgets = Budgets::of(fleet, command.method.reason());
    if !fresh.iter().all(|candidate| budgets.spend(&candidate.pool)) {
        return Err(Verdict::invalid(Invalid::Budget, command.candidates.len()));
    }
    Ok(fresh)
}

fn chosen(fleet: &Fleet, command: &Command) -> Vec<Candidate> {
    let names: BTreeSet<&str> = command.candidates.iter().map(Candidate::name).collect();
    let mut fresh = forecast::candidates(fleet, command.method);
    fresh.retain(|candidate| names.contains(candidate.name()));
    fresh
}

/// As many new nodes as were planned, each with at least the types that the command would launch it with. Prices are not
/// compared again: what was cheaper stays cheaper.
fn still_fits(fleet: &Fleet, command: &Command, fresh: &[Candidate]) -> Verdict {
    let fresh: Vec<&Candidate> = fresh.iter().collect();
    let outcome = Rehearsal::new(fleet).without(&fresh, Destinations::Settled);
    let claims = &outcome.plan.claims;
    let offers_all = || {
        command.replacements.iter().zip(claims).all(|(planned, now)| {
            let names: BTreeSet<&str> = now.instance_types.iter().map(|kind| kind.name.as_str()).collect();
            let mut types = planned.instance_types.iter();
            types.all(|kind| names.contains(kind.name.as_str()))
        })
    };
    if outcome.stranded().is_none() && claims.len() == command.replacements.len() && offers_all() {
        Verdict::VALID
    } else {
        Verdict::invalid(Invalid::Scheduling, 0)
    }
}
