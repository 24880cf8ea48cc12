//! The second look before pods are disturbed to save money: 15 s later, is it still a good idea? (disruption.md §5)

use std::collections::BTreeSet;
use std::time::Duration;

use karpenter_engine::disruption::candidate::Candidate;
use karpenter_engine::disruption::rehearsal::{Destinations, Rehearsal};
use karpenter_engine::disruption::{Budgets, Command, Fleet, Method, forecast};

use super::{Memories, fleet, metrics::DisruptionMetrics};
use crate::context::Context;

/// Long enough for pods that were being scheduled to land, short enough not to hold up savings.
const DELAY: Duration = Duration::from_secs(15);

/// Why a command is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalid {
    /// A candidate is no longer one.
    Churn,
    /// A candidate is expected to take pods, or its pool's budget is used up.
    Budget,
    /// The pods would no longer fit as planned.
    Scheduling,
}

impl Invalid {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Churn => "churn",
            Self::Budget => "budget",
            Self::Scheduling => "scheduling",
        }
    }
}

/// Waits, looks again, and gives back what may still be done.
pub(super) async fn validate(
    ctx: &Context,
    metrics: &DisruptionMetrics,
    queued: &BTreeSet<String>,
    memories: &Memories,
    mut command: Command,
) -> Result<Command, (Command, Invalid)> {
    ctx.clock.sleep(DELAY).await;
    let now = fleet::build(ctx, queued, memories).await;
    let verdict = match command.method {
        Method::Repair | Method::StaticDrift | Method::Drift => Ok(()),
        Method::Emptiness => still_empty(&now, &mut command, metrics),
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => still_consolidates(&now, &command, metrics),
    };
    match verdict {
        Ok(()) => Ok(command),
        Err(invalid) => Err((command, invalid)),
    }
}

/// Emptiness goes on with the nodes that are still empty and within budget.
fn still_empty(fleet: &Fleet, command: &mut Command, metrics: &DisruptionMetrics) -> Result<(), Invalid> {
    let before = command.candidates.len();
    let mut fresh = forecast::candidates(fleet, command.method);
    fresh.retain(|candidate| {
        command
            .candidates
            .iter()
            .any(|chosen| chosen.name() == candidate.name())
    });
    if fresh.is_empty() {
        metrics.failed_validation(command.method, before);
        return Err(Invalid::Churn);
    }
    let mut budgets = Budgets::of(fleet, command.method.reason());
    metrics.budgets(&budgets);
    let found = fresh.len();
    fresh.retain(|candidate| budgets.spend(&candidate.pool));
    metrics.failed_validation(command.method, found - fresh.len());
    if fresh.is_empty() {
        return Err(Invalid::Budget);
    }
    command.savings = fresh.iter().map(|candidate| candidate.price).sum();
    command.candidates = fresh;
    Ok(())
}

/// Consolidation goes on only as a whole: every candidate, and the replacement that was chosen.
fn still_consolidates(fleet: &Fleet, command: &Command, metrics: &DisruptionMetrics) -> Result<(), Invalid> {
    let chosen: BTreeSet<&str> = command.candidates.iter().map(Candidate::name).collect();
    let mut fresh = forecast::candidates(fleet, command.method);
    fresh.retain(|candidate| chosen.contains(candidate.name()));
    if fresh.len() != chosen.len() {
        metrics.failed_validation(command.method, chosen.len());
        return Err(Invalid::Churn);
    }
    let mut budgets = Budgets::of(fleet, command.method.reason());
    metrics.budgets(&budgets);
    if !fresh.iter().all(|candidate| budgets.spend(&candidate.pool)) {
        metrics.failed_validation(command.method, chosen.len());
        return Err(Invalid::Budget);
    }
    let fresh: Vec<&Candidate> = fresh.iter().collect();
    let outcome = Rehearsal::new(fleet).without(&fresh, Destinations::Settled);
    if outcome.stranded().is_some() || outcome.plan.claims.len() != command.replacements.len() {
        return Err(Invalid::Scheduling);
    }
    let still_offered = command
        .replacements
        .iter()
        .zip(&outcome.plan.claims)
        .all(|(planned, now)| {
            let names: BTreeSet<&str> = now.instance_types.iter().map(|kind| kind.name.as_str()).collect();
            planned
                .instance_types
                .iter()
                .all(|kind| names.contains(kind.name.as_str()))
        });
    if still_offered {
        Ok(())
    } else {
        Err(Invalid::Scheduling)
    }
}
