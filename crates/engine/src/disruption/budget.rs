//! How many nodes of each pool may be disrupted now, for a reason (disruption.md §4).

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::budget::{BudgetError, DisruptionReason, UNLIMITED};

use super::fleet::{Fleet, Member, PoolPolicy};
use crate::model::Lifecycle;

/// What is left of every pool's budgets for one reason; methods spend it as they choose candidates.
#[derive(Debug, Clone)]
pub struct Budgets {
    pub reason: DisruptionReason,
    pools: BTreeMap<String, PoolBudget>,
}

/// One pool's arithmetic, kept for metrics and explanations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBudget {
    /// Nodes that count for percentages.
    pub nodes: u32,
    /// Of those, the ones that are being disrupted already, by whomever.
    pub disrupting: u32,
    /// What the budgets in force allow; [`UNLIMITED`] when none applies.
    pub allowed: u32,
    /// `allowed − disrupting`, less what was spent since.
    pub remaining: u32,
}

impl Budgets {
    pub fn of(fleet: &Fleet, reason: DisruptionReason) -> Budgets {
        let mut counts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for member in fleet.members.iter() {
            let (Some(pool), true) = (member.pool(), counts_for_budget(member)) else {
                continue;
            };
            let (nodes, disrupting) = counts.entry(pool).or_default();
            *nodes += 1;
            *disrupting += u32::from(is_being_disrupted(member, reason));
        }
        let pools = fleet.pools.iter().map(|(name, policy)| {
            let (nodes, disrupting) = counts.get(name.as_str()).copied().unwrap_or_default();
            // A budget that cannot be read allows nothing: fail closed.
            let allowed = allowed(policy, reason, fleet.now(), nodes).unwrap_or(0);
            let remaining = allowed.saturating_sub(disrupting);
            (
                name.clone(),
                PoolBudget {
                    nodes,
                    disrupting,
                    allowed,
                    remaining,
                },
            )
        });
        Budgets {
            reason,
            pools: pools.collect(),
        }
    }

    pub fn remaining(&self, pool: &str) -> u32 {
        self.pools.get(pool).map_or(0, |budget| budget.remaining)
    }

    /// Takes one node from the pool's budget; false when nothing is left.
    pub fn spend(&mut self, pool: &str) -> bool {
        match self.pools.get_mut(pool) {
            Some(budget) if budget.remaining > 0 => {
                budget.remaining -= 1;
                true
            }
            _ => false,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &PoolBudget)> {
        self.pools.iter().map(|(name, budget)| (name.as_str(), budget))
    }
}

/// The tightest budget that applies; an error in any budget of the pool, whatever its reasons, is an error.
pub fn allowed(policy: &PoolPolicy, reason: DisruptionReason, now: Timestamp, nodes: u32) -> Result<u32, BudgetError> {
    let mut allowed = UNLIMITED;
    for budget in &policy.budgets {
        let limit = budget.allowed_disruptions(now, nodes)?;
        if budget.applies_to(reason) {
            allowed = allowed.min(limit);
        }
    }
    Ok(allowed)
}

/// Replacements that are not up must not inflate percentages, and instances on their way out are as good as gone.
fn counts_for_budget(member: &Member) -> bool {
    let standing = &member.standing;
    member.claim.is_some()
        && (member.node.lifecycle == Lifecycle::Initialized || standing.rebooting)
        && !standing.instance_terminating
}

/// NotReady nodes are repair's trigger: counting them would let a wave of failures use up its own repair budget.
fn is_being_disrupted(member: &Member, reason: DisruptionReason) -> bool {
    let standing = &member.standing;
    standing.leaving || standing.rebooting || (standing.not_ready && reason != DisruptionReason::Unhealthy)
}
