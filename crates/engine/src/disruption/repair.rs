//! Nodes that their provider's policies call broken are rebooted or replaced, the most urgent first (disruption.md §8).
//!
//! Which conditions mean what is the provider's word: whoever builds the fleet matches its policies and gives every node
//! its [`Ailment`]. Here it is decided which of them is treated now, and how.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::blocked::Blocked;
use super::budget::Budgets;
use super::candidate::Candidate;
use super::command::{Command, Method};
use super::fleet::{FixedSize, Fleet, Swap};
use super::rehearsal::Rehearsal;
use super::static_drift::{self, Exchange};
use super::terminate_first::Reservations;
use super::{cost, drift};
use crate::model::Lifecycle;

/// What is wrong with a node, and what its provider's policies ask for now.
#[derive(Debug, Clone, PartialEq)]
pub struct Ailment {
    pub action: RepairAction,
    /// The node condition that decided the action.
    pub condition: String,
    pub status: String,
    pub reason: String,
    /// The policy that matched was the provider's fallback for reasons it does not know.
    pub by_fallback: bool,
    pub eligible_at: Timestamp,
    /// How long the drain may take by the shortest of all policies that apply; `None` leaves it to the claim.
    pub drain_bound: Option<SignedDuration>,
    /// How urgent it is; grows while it waits.
    pub score: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairAction {
    Reboot,
    Replace,
    /// A reboot was asked for, but reboots have not helped this node before.
    ReplaceAfterReboots,
}

/// The most urgent first, then what costs least to lose, then by name.
pub fn order(fleet: &Fleet, candidates: &mut [Candidate]) {
    let now = fleet.now();
    let loss =
        |candidate: &Candidate| cost::disruption(&candidate.node, &candidate.claim, fleet.gates.deletion_cost, now);
    candidates.sort_by(|a, b| {
        score(b)
            .total_cmp(&score(a))
            .then_with(|| loss(a).total_cmp(&loss(b)))
            .then_with(|| a.name().cmp(b.name()))
    });
}

fn score(candidate: &Candidate) -> f64 {
    candidate.ailment.as_ref().map_or(0.0, |ailment| ailment.score)
}

/// Stops repairs of a pool of which too much is unhealthy: then the cause is not the nodes.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    pools: BTreeMap<Arc<str>, (usize, usize)>,
}

impl Breaker {
    pub fn of(fleet: &Fleet) -> Breaker {
        let mut pools: BTreeMap<Arc<str>, (usize, usize)> = BTreeMap::new();
        for member in fleet.members.iter().filter(|member| member.node.has_node) {
            let Some(pool) = &member.node.node_pool else { continue };
            let (nodes, unhealthy) = pools.entry(Arc::clone(pool)).or_default();
            *nodes += 1;
            *unhealthy += usize::from(member.health.is_unhealthy);
        }
        Breaker { pools }
    }

    fn check(&self, pool: &str) -> Result<(), Blocked> {
        let (nodes, unhealthy) = self.pools.get(pool).copied().unwrap_or_default();
        if trips(nodes, unhealthy) {
            return Err(Blocked::TooManyUnhealthy {
                pool: pool.to_owned(),
                unhealthy,
                nodes,
            });
        }
        Ok(())
    }
}

/// More than a fifth, rounded up.
pub fn trips(nodes: usize, unhealthy: usize) -> bool {
    unhealthy > nodes.div_ceil(5)
}

/// What treating this one node would come to.
pub fn attempt(
    rehearsal: &mut Rehearsal<'_>,
    candidate: &Candidate,
    breaker: &Breaker,
    budgets: &Budgets,
) -> Result<Command, Blocked> {
    breaker.check(&candidate.pool)?;
    // A node that never came up is no loss: it neither needs nor uses budget.
    let is_up = candidate.node.lifecycle == Lifecycle::Initialized;
    if is_up && budgets.remaining(&candidate.pool) == 0 {
        return Err(Blocked::BudgetUsedUp {
            pool: candidate.pool.clone(),
            reason: budgets.reason.as_str(),
        });
    }
    let Some(ailment) = candidate.ailment.clone() else {
        return Err(Blocked::Healthy);
    };
    let fleet = rehearsal.fleet();
    let command = match (ailment.action, candidate.policy(fleet).fixed) {
        (RepairAction::Reboot, _) => Command::delete(Method::Repair, vec![candidate.clone()]),
        (RepairAction::Replace | RepairAction::ReplaceAfterReboots, Some(size)) => {
            let exchange = exchange(fleet, candidate, size)?;
            static_drift::command(Method::Repair, candidate.clone(), exchange)
        }
        (RepairAction::Replace | RepairAction::ReplaceAfterReboots, None) => {
            drift::swap(rehearsal, candidate, Method::Repair)?
        }
    };
    Ok(Command {
        ailment: Some(ailment),
        ..command
    })
}

/// How a broken node of a static pool is exchanged.
fn exchange(fleet: &Fleet, candidate: &Candidate, size: FixedSize) -> Result<Exchange, Blocked> {
    if size.is_scaling_down() {
        return Err(Blocked::ScalingDown);
    }
    let gate = fleet.gates.repair;
    if gate == Swap::TerminateFirst {
        let reservations = Reservations::of(fleet, &candidate.pool);
        if reservations.full {
            let holds = reservations.is_held_by(fleet, candidate) && size.refills;
            return holds
                .then_some(Exchange::TerminateFirst(super::TerminateFirst::NoReservedCapacity))
                .ok_or_else(|| Blocked::ReservationsFull(candidate.pool.clone()));
        }
    }
    match size.room() {
        0 => static_drift::at_limit(gate, size, &candidate.pool),
        _ => Ok(Exchange::ReplaceFirst),
    }
}
