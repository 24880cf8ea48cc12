//! What a method decided: which nodes go, and what takes their place.

use karpenter_api::budget::DisruptionReason;

use super::balanced::Score;
use super::candidate::Candidate;
use crate::plan::{Plan, PlannedClaim};

#[derive(Debug, Clone)]
pub struct Command {
    pub method: Method,
    pub candidates: Vec<Candidate>,
    /// To be launched and initialized before the candidates go.
    pub replacements: Vec<PlannedClaim>,
    /// Money saved per hour; negative when replacements cost more (drift does not mind).
    pub savings: f64,
    /// How it did in every Balanced pool that it touches.
    pub scores: Vec<Score>,
    /// The simulation behind it: where the moved pods are expected.
    pub plan: Plan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    Emptiness,
    Drift,
    MultiNodeConsolidation,
    SingleNodeConsolidation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    Delete,
    Replace,
}

/// Why a node goes before its replacement is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TerminateFirst {
    NoReservedCapacity,
    StaticAtLimit,
}

// === impl Command ===

impl Command {
    pub fn decision(&self) -> Decision {
        if self.replacements.is_empty() {
            Decision::Delete
        } else {
            Decision::Replace
        }
    }
}

// === impl Method ===

impl Method {
    /// In the order in which a pass tries them: free money first, then upgrades, then savings that move pods, many
    /// nodes at once before one by one (fewer moves).
    pub const ORDER: [Method; 4] = [
        Method::Emptiness,
        Method::Drift,
        Method::MultiNodeConsolidation,
        Method::SingleNodeConsolidation,
    ];

    /// As `simulate` and `explain` print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Emptiness => "emptiness",
            Method::Drift => "drift",
            Method::MultiNodeConsolidation => "multi-node-consolidation",
            Method::SingleNodeConsolidation => "single-node-consolidation",
        }
    }

    /// The reason that budgets, conditions and metrics know it by.
    pub fn reason(self) -> DisruptionReason {
        match self {
            Method::Emptiness => DisruptionReason::Empty,
            Method::Drift => DisruptionReason::Drifted,
            Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => DisruptionReason::Underutilized,
        }
    }

    /// The metric label `consolidation_type`.
    pub fn consolidation_type(self) -> &'static str {
        match self {
            Method::Emptiness => "empty",
            Method::Drift => "",
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
        }
    }
}
