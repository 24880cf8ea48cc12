//! What a method decided: which nodes go, and what takes their place.

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::budget::DisruptionReason;

use super::balanced::Score;
use super::candidate::Candidate;
use super::repair::{Ailment, RepairAction};
use crate::plan::{Plan, PlannedClaim};

#[derive(Debug, Clone)]
pub struct Command {
    pub method: Method,
    pub candidates: Vec<Candidate>,
    /// To be launched and initialized before the candidates go.
    pub replacements: Vec<PlannedClaim>,
    /// Static pools of which one more node each is launched as their template says, likewise before the candidates go.
    pub from_template: Vec<String>,
    /// Set when the candidates go first, although something is to take their place.
    pub terminate_first: Option<TerminateFirst>,
    /// Set when this is a repair.
    pub ailment: Option<Arc<Ailment>>,
    /// Money saved per hour; negative when replacements cost more (drift does not mind).
    pub savings: f64,
    /// How it did in every Balanced pool that it touches.
    pub scores: Vec<Score>,
    /// The simulation behind it: where the moved pods are expected.
    pub plan: Plan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    Repair,
    Emptiness,
    StaticDrift,
    Drift,
    MultiNodeConsolidation,
    SingleNodeConsolidation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    Delete,
    Replace,
    /// The candidates go, and what takes their place is launched afterwards.
    TerminateFirst,
    /// The candidate is restarted in place.
    Reboot,
}

/// Why a node goes before its replacement is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TerminateFirst {
    NoReservedCapacity,
    StaticAtLimit,
}

// === impl Command ===

impl Command {
    /// Removes candidates, with nothing in their place.
    pub fn delete(method: Method, candidates: Vec<Candidate>) -> Command {
        Command {
            method,
            candidates,
            replacements: Vec::new(),
            from_template: Vec::new(),
            terminate_first: None,
            ailment: None,
            savings: 0.0,
            scores: Vec::new(),
            plan: Plan::default(),
        }
    }

    pub fn decision(&self) -> Decision {
        if self
            .ailment
            .as_ref()
            .is_some_and(|ailment| ailment.action == RepairAction::Reboot)
        {
            Decision::Reboot
        } else if self.replacement_count() > 0 {
            Decision::Replace
        } else if self.terminate_first.is_some() {
            Decision::TerminateFirst
        } else {
            Decision::Delete
        }
    }

    /// Nodes that are launched before the candidates go.
    pub fn replacement_count(&self) -> usize {
        self.replacements.len() + self.from_template.len()
    }

    /// How long a repaired node may drain: what the repair policies say, but no longer than the claim allows. `None` leaves
    /// it to the claim.
    pub fn drain_bound(&self, candidate: &Candidate) -> Option<SignedDuration> {
        let bound = self.ailment.as_ref()?.drain_bound?;
        Some(
            candidate
                .claim
                .termination_grace_period
                .map_or(bound, |own| own.min(bound)),
        )
    }
}

// === impl TerminateFirst ===

impl TerminateFirst {
    /// The metric label `terminate_first_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            TerminateFirst::NoReservedCapacity => "no-reserved-capacity",
            TerminateFirst::StaticAtLimit => "static-at-limit",
        }
    }
}

// === impl Method ===

impl Method {
    /// In the order in which a pass tries them: what is broken, then free money, then upgrades, then savings that move
    /// pods, many nodes at once before one by one (fewer moves).
    pub const ORDER: [Method; 6] = [
        Method::Repair,
        Method::Emptiness,
        Method::StaticDrift,
        Method::Drift,
        Method::MultiNodeConsolidation,
        Method::SingleNodeConsolidation,
    ];

    /// As `simulate` and `explain` print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Repair => "repair",
            Method::Emptiness => "emptiness",
            Method::StaticDrift => "static-drift",
            Method::Drift => "drift",
            Method::MultiNodeConsolidation => "multi-node-consolidation",
            Method::SingleNodeConsolidation => "single-node-consolidation",
        }
    }

    /// The reason that budgets, conditions and metrics know it by.
    pub fn reason(self) -> DisruptionReason {
        match self {
            Method::Repair => DisruptionReason::Unhealthy,
            Method::Emptiness => DisruptionReason::Empty,
            Method::StaticDrift | Method::Drift => DisruptionReason::Drifted,
            Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => DisruptionReason::Underutilized,
        }
    }

    /// The metric label `consolidation_type`.
    pub fn consolidation_type(self) -> &'static str {
        match self {
            Method::Emptiness => "empty",
            Method::Repair | Method::StaticDrift | Method::Drift => "",
            Method::MultiNodeConsolidation => "multi",
            Method::SingleNodeConsolidation => "single",
        }
    }
}

// === impl Decision ===

impl Decision {
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Delete => "delete",
            Decision::Replace => "replace",
            Decision::TerminateFirst => "terminate-first",
            Decision::Reboot => "reboot",
        }
    }
}
