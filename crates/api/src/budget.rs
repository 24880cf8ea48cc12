//! How many nodes of a NodePool may be disrupted at a time (api.md §1.1.4).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cron::{CronError, Schedule};
use crate::duration::GoDuration;
use crate::node_pool::NodePool;
use crate::percent::{PercentError, PercentOrInt};
use crate::schema;

/// What a budget that does not apply allows: everything.
pub const UNLIMITED: u32 = i32::MAX as u32;

/// A limit on voluntary disruption, for some reasons and at some times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("required" = ["nodes"]))]
pub struct Budget {
    /// The reasons that the budget limits. Without the field it limits all of them; an empty list limits none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "set"))]
    pub reasons: Option<Vec<DisruptionReason>>,
    /// How many nodes may be disrupted at once: a count, or a percentage of the pool's nodes, rounded up.
    #[serde(default = "Budget::default_nodes")]
    #[schemars(regex(pattern = schema::BUDGET_NODES))]
    pub nodes: String,
    /// When the budget begins to hold, as a cron expression or a macro such as @daily, in UTC. Needs a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::CRON))]
    pub schedule: Option<String>,
    /// How long the budget holds from each hit of its schedule, in hours and minutes. Needs a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::BUDGET_DURATION))]
    pub duration: Option<GoDuration>,
}

/// Why a node is disrupted voluntarily, as budgets name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DisruptionReason {
    Underutilized,
    Empty,
    Drifted,
    Unhealthy,
}

/// Why a budget can't be evaluated. Such a budget allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    #[error("schedule \"{schedule}\" can't be read: {cause}")]
    Schedule { schedule: String, cause: CronError },
    #[error(transparent)]
    Nodes(#[from] PercentError),
}

impl Budget {
    fn default_nodes() -> String {
        "10%".to_owned()
    }

    /// How many disruptions the budget allows now in a pool of so many nodes; [`UNLIMITED`] while it is not active.
    pub fn allowed_disruptions(&self, now: Timestamp, nodes: u32) -> Result<u32, BudgetError> {
        if !self.is_active(now)? {
            return Ok(UNLIMITED);
        }
        Ok(self.nodes.parse::<PercentOrInt>()?.of(nodes).min(UNLIMITED))
    }

    /// Whether a hit of the schedule lies in `(now − duration, now]`.
    ///
    /// A schedule that never fires counts as always active: a budget that was meant to protect must not vanish.
    pub fn is_active(&self, now: Timestamp) -> Result<bool, BudgetError> {
        let (Some(text), Some(duration)) = (&self.schedule, self.duration) else {
            // One without the other is refused by the API server; should it arrive, it holds all the time.
            return Ok(true);
        };
        let schedule: Schedule = text.parse().map_err(|cause| BudgetError::Schedule {
            schedule: text.clone(),
            cause,
        })?;
        let window_start = now.checked_sub(duration.as_signed()).unwrap_or(Timestamp::MIN);
        Ok(schedule.next_after(window_start).is_none_or(|hit| hit <= now))
    }

    pub fn applies_to(&self, reason: DisruptionReason) -> bool {
        self.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason))
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            reasons: None,
            nodes: Self::default_nodes(),
            schedule: None,
            duration: None,
        }
    }
}

impl DisruptionReason {
    pub const ALL: [Self; 4] = [Self::Underutilized, Self::Empty, Self::Drifted, Self::Unhealthy];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Underutilized => "Underutilized",
            Self::Empty => "Empty",
            Self::Drifted => "Drifted",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

impl std::fmt::Display for DisruptionReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl NodePool {
    /// How many nodes of the pool may be disrupted now for a reason: the tightest budget that applies.
    ///
    /// Fails closed: when any budget of the pool can't be evaluated, whatever its reasons, callers must allow 0. The error
    /// says which one it was.
    pub fn allowed_disruptions(
        &self,
        now: Timestamp,
        nodes: u32,
        reason: DisruptionReason,
    ) -> Result<u32, BudgetError> {
        let mut allowed = UNLIMITED;
        for budget in &self.spec.disruption.budgets {
            let limit = budget.allowed_disruptions(now, nodes)?;
            if budget.applies_to(reason) {
                allowed = allowed.min(limit);
            }
        }
        Ok(allowed)
    }
}
