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
        let schedule = Schedule::parse_with_zone(text).map_err(|cause| BudgetError::Schedule {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(nodes: &str, schedule: &str, duration: &str) -> Budget {
        let window = (!schedule.is_empty()).then(|| (schedule.to_owned(), duration.parse().unwrap()));
        let (schedule, duration) = window.unzip();
        Budget {
            reasons: None,
            nodes: nodes.to_owned(),
            schedule,
            duration,
        }
    }

    fn active(schedule: &str, duration: &str, now: &str) -> bool {
        budget("1", schedule, duration).is_active(now.parse().unwrap()).unwrap()
    }

    fn pool(budgets: serde_json::Value) -> NodePool {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "p" },
            "spec": {
                "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" } } },
                "disruption": { "budgets": budgets },
            },
        }))
        .unwrap()
    }

    fn allowed(budgets: serde_json::Value, reason: DisruptionReason) -> Result<u32, BudgetError> {
        pool(budgets).allowed_disruptions("2026-11-15T12:00:00Z".parse().unwrap(), 100, reason)
    }

    #[test]
    fn the_window_includes_the_hit_and_excludes_its_end() {
        assert!(active("@daily", "30m", "2026-11-15T00:00:00Z"));
        assert!(active("@daily", "30m", "2026-11-15T00:29:59.999Z"));
        assert!(!active("@daily", "30m", "2026-11-15T00:30:00Z"));
        assert!(!active("@daily", "30m", "2026-11-14T23:59:59Z"));
    }

    #[test]
    fn schedules_are_in_utc() {
        assert!(!active("@daily", "30m", "2026-11-15T00:00:00+01:00"));
        assert!(!active("30 6 * * SUN", "6h", "2026-11-15T00:00:00Z"));
    }

    #[test]
    fn a_schedule_may_name_its_time_zone() {
        let office_hours = "CRON_TZ=Europe/Paris 0 9 * * mon-fri";
        assert!(active(office_hours, "8h", "2026-11-16T08:00:00Z"));
        assert!(!active(office_hours, "8h", "2026-11-16T16:00:00Z"));
        assert!(active(office_hours, "8h", "2026-07-13T07:00:00Z"), "summer time");
        let unknown = budget("1", "CRON_TZ=Mars/Olympus 0 9 * * *", "8h");
        assert!(unknown.is_active("2026-11-16T08:00:00Z".parse().unwrap()).is_err());
    }

    #[test]
    fn overlapping_windows_never_end() {
        assert!(active("@daily", "48h", "2026-11-15T13:17:00Z"));
    }

    #[test]
    fn a_schedule_that_never_fires_is_always_active() {
        assert!(active("0 0 31 2 *", "1h", "2026-11-15T13:17:00Z"));
    }

    #[test]
    fn a_budget_outside_its_window_allows_everything() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        assert_eq!(
            budget("0", "@daily", "1h").allowed_disruptions(now, 10),
            Ok(2_147_483_647)
        );
        assert_eq!(budget("10%", "", "").allowed_disruptions(now, 5), Ok(1));
        assert_eq!(budget("0", "", "").allowed_disruptions(now, 5), Ok(0));
    }

    #[test]
    fn the_tightest_budget_that_applies_wins() {
        let budgets = json!([{ "nodes": "10" }, { "nodes": "5", "reasons": ["Drifted"] }]);
        assert_eq!(allowed(budgets.clone(), DisruptionReason::Drifted), Ok(5));
        assert_eq!(allowed(budgets, DisruptionReason::Empty), Ok(10));
    }

    #[test]
    fn one_unreadable_budget_fails_the_pool_for_every_reason() {
        let broken = json!([{ "nodes": "10" }, { "nodes": "5", "reasons": ["Drifted"], "schedule": "@dailyfoo", "duration": "1h" }]);
        for reason in DisruptionReason::ALL {
            assert!(
                matches!(allowed(broken.clone(), reason), Err(BudgetError::Schedule { .. })),
                "{reason}"
            );
        }
        assert!(matches!(
            allowed(json!([{ "nodes": "ten" }]), DisruptionReason::Empty),
            Err(BudgetError::Nodes(_))
        ));
    }

    #[test]
    fn no_budget_and_no_reason_mean_no_limit() {
        assert_eq!(allowed(json!([]), DisruptionReason::Empty), Ok(UNLIMITED));
        assert_eq!(
            allowed(json!([{ "nodes": "0", "reasons": [] }]), DisruptionReason::Empty),
            Ok(UNLIMITED)
        );
    }
}
