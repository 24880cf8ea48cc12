//! Waits before pods are disturbed to save money, and has the planner look again (disruption.md §5).
//!
//! What the wait is for: pods that were being scheduled when the decision was made get the time to land, and a cluster that is
//! in motion the time to come to rest. A node that we have seen empty all the while has stood that test already: it goes when
//! it has been empty for as long as its pool asks, and before those that emptied later.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use karpenter_engine::disruption::validation::{self, Invalid, Verdict};
use karpenter_engine::disruption::{Budgets, Candidate, Command, Method};
use kube::ResourceExt;

use super::{Memories, fleet, metrics::DisruptionMetrics, report};
use crate::context::Context;
use crate::provisioning::without_blocking;
use crate::state::EmptySince;

/// Long enough for pods that were being scheduled to land, short enough not to hold up savings.
const DELAY: SignedDuration = SignedDuration::from_secs(15);
/// As [`DELAY`], for a node that was seen empty from its first moment on. Upstream's is longer than the ten seconds by which a
/// pod event may be written late; ours counts from the event itself.
const SEEN_EMPTY: SignedDuration = SignedDuration::from_secs(10);

/// Waits, looks again, and leaves in the command what may still be done.
pub(super) async fn validate(
    ctx: &Context,
    metrics: &DisruptionMetrics,
    queued: &BTreeSet<String>,
    memories: &Memories,
    command: &mut Command,
) -> Result<(), Invalid> {
    wait(ctx, command).await;
    let now = fleet::build(ctx, queued, memories).await;
    let budgets = Budgets::of(&now, command.method.reason());
    metrics.budgets(&budgets);
    report::exhausted_budgets(ctx, &budgets);
    let mut verdict = without_blocking(&now.snapshot, || validation::validate(&now, command));
    if verdict.outcome.is_ok() {
        // The simulation took its time; pods may have arrived meanwhile.
        let now = fleet::build(ctx, queued, memories).await;
        let again = validation::revalidate(&now, command);
        verdict = Verdict {
            failed: verdict.failed + again.failed,
            ..again
        };
    }
    metrics.failed_validation(command.method, verdict.failed);
    verdict.outcome
}

/// Waits until the second look may be taken, and leaves empty nodes whose time has not come to a later pass.
async fn wait(ctx: &Context, command: &mut Command) {
    let decided = ctx.clock.now();
    if command.method != Method::Emptiness {
        return ctx.clock.sleep_until(decided + DELAY).await;
    }
    // A node with pods that merely cost nothing to move waits in full.
    let latest = decided + DELAY;
    let dues = command.candidates.iter().map(|candidate| due(ctx, candidate));
    let mut first: Vec<Option<Timestamp>> = dues.collect();
    let is_soon = |due: &Option<Timestamp>| due.is_none_or(|due| due <= latest);
    // Only what emptied anew since the search is left here; see `is_due_soon`.
    let mut of_candidate = first.iter();
    command.candidates.retain(|_| of_candidate.next().is_some_and(is_soon));
    first.retain(is_soon);
    let until = match first.contains(&None) {
        true => latest,
        false => first.iter().flatten().min().copied().unwrap_or(decided),
    };
    ctx.clock.sleep_until(until).await;
    let now = ctx.clock.now();
    let mut first = first.into_iter();
    command.candidates.retain(|candidate| {
        let was_due = first.next().flatten().unwrap_or(latest) <= now;
        // Pods that arrived meanwhile are for the second look to find; those that came and went start the time anew.
        was_due && due(ctx, candidate).is_none_or(|due| due <= now)
    });
}

/// Whether an empty node's time comes within the wait that a decision has anyway.
///
/// What is due later is left to a later pass, before budgets are spent: it would hold up what else the loop does, and keep
/// those whose time has come from their pool's budget.
pub(super) fn is_due_soon(ctx: &Context, candidate: &Candidate) -> bool {
    let latest = ctx.clock.now() + DELAY;
    due(ctx, candidate).is_none_or(|due| due <= latest)
}

/// When a node has been empty for long enough; `None` if it is not empty, or its pool is gone or keeps its nodes.
///
/// That nothing happened on the node for `consolidateAfter` is part of being a candidate. A pod event that followed soon on another
/// is not written, though: if this process saw the last pod leave, it counts for itself.
fn due(ctx: &Context, candidate: &Candidate) -> Option<Timestamp> {
    let since = ctx.state.empty_since(candidate.node.provider_id.as_deref()?)?;
    match since {
        EmptySince::Departure(at) => Some(at + patience(ctx, &candidate.pool)?),
        EmptySince::Unused(at) => Some(at + SEEN_EMPTY),
    }
}

/// How long a node of this pool must have been seen empty; `None` if the pool is gone or keeps its nodes.
fn patience(ctx: &Context, pool: &str) -> Option<SignedDuration> {
    let pool = ctx.pools.named(pool).filter(|pool| !pool.is_static())?;
    let asked = pool.spec.disruption.consolidate_after.as_duration()?;
    Some(asked.max(SEEN_EMPTY))
}

/// When the first of the nodes that were seen to empty may go, if that is soon: between `late` ago and `soon` from now. One on which
/// pods were expected a moment ago may not go before they are no longer.
///
/// A little of the past is part of it: the condition that makes a node a candidate is written by another controller, and seen
/// only when the API server has said so.
pub(super) fn next_due(ctx: &Context, late: SignedDuration, soon: SignedDuration) -> Option<Timestamp> {
    let now = ctx.clock.now();
    let mut patience_of: BTreeMap<String, Option<SignedDuration>> = BTreeMap::new();
    for pool in ctx.pools.list() {
        let name = pool.name_any();
        let patience = patience(ctx, &name);
        patience_of.insert(name, patience);
    }
    let longest = patience_of.values().flatten().max()?;
    let departures = ctx.state.departures(now - *longest - late).into_iter();
    departures
        .filter_map(|left| {
            let rested = left.at + patience_of.get(&left.pool).copied().flatten()?;
            Some(left.nominated_until.map_or(rested, |until| until.max(rested)))
        })
        .filter(|due| now - late < *due && *due <= now + soon)
        .min()
}
