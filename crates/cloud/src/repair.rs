//! Which node conditions mean that a node is broken, and what to do about it.
//!
//! A provider states its [`RepairPolicy`] list once; [`RepairPolicies::new`] checks it at start-up, and core matches
//! nodes against it ([`RepairPolicies::matches`], [`RepairPolicies::resolve`]). The rules are those of
//! lifecycle.md §5.4.

pub mod legacy;

use std::{cmp::Ordering, time::Duration};

use jiff::Timestamp;
use regex::Regex;
use thiserror::Error;

use crate::clock::later;

/// What repairs a node. Ordered by how disruptive it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepairAction {
    RebootNode,
    ReplaceNode,
}

/// The status of a node condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// One rule of a provider: this condition, held for this long, asks for this action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    pub condition_type: String,
    pub condition_status: ConditionStatus,
    /// Searched in the condition's reason. Empty marks the set's one fallback.
    pub reason_regex: String,
    pub toleration: Duration,
    /// `None` inherits the claim's terminationGracePeriod, zero skips the drain, anything else bounds it.
    pub termination_grace_period: Option<Duration>,
    /// 0–100; more urgent is higher.
    pub priority: u8,
    pub action: RepairAction,
}

/// Why a provider's repair policies cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RepairPolicyError {
    #[error("repair policy {index}: the condition type is empty")]
    EmptyConditionType { index: usize },
    #[error("repair policy {index}: priority {priority} is not within 0 and 100")]
    PriorityOutOfRange { index: usize, priority: u8 },
    #[error("repair policy {index}: the reason pattern {pattern:?} is not a regular expression: {error}")]
    InvalidRegex {
        index: usize,
        pattern: String,
        error: String,
    },
    #[error("exactly one repair policy must have an empty reason pattern (the fallback), found {found}")]
    FallbackCount { found: usize },
    #[error("repair policy {index} is the fallback and must replace the node")]
    FallbackMustReplace { index: usize },
    #[error("node repair is on, but the provider has no repair policies")]
    Empty,
}

/// A provider's policies, checked and compiled.
#[derive(Clone, Debug)]
pub struct RepairPolicies {
    specific: Vec<Compiled>,
    fallback: Compiled,
}

#[derive(Clone, Debug)]
struct Compiled {
    policy: RepairPolicy,
    reason: Regex,
    rank: u32,
}

/// A condition of a node, as far as repair looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    pub condition_type: String,
    pub status: ConditionStatus,
    pub reason: String,
    pub last_transition: Timestamp,
}

/// A policy that applies to a node, from `eligible_at` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairMatch {
    pub condition: NodeCondition,
    pub policy: RepairPolicy,
    pub is_fallback: bool,
    pub eligible_at: Timestamp,
    rank: u32,
}

/// What to do with a broken node, merged from all policies that are eligible.
#[derive(Clone, Debug, PartialEq)]
pub struct Repair {
    pub action: RepairAction,
    /// The condition that decided the action.
    pub condition: NodeCondition,
    pub is_fallback: bool,
    pub eligible_at: Timestamp,
    /// The shortest drain bound among the eligible policies; `None` inherits the claim's.
    pub termination_grace_period: Option<Duration>,
    /// Urgency: dense priority rank plus one per half hour of waiting, the highest of all eligible policies.
    pub score: f64,
}

// === impl RepairPolicies ===

impl RepairPolicies {
    /// Checks and compiles a provider's policies.
    ///
    /// # Errors
    /// All that is wrong with them, not only the first.
    pub fn new(policies: Vec<RepairPolicy>) -> Result<Self, Vec<RepairPolicyError>> {
        if policies.is_empty() {
            return Err(vec![RepairPolicyError::Empty]);
        }
        let mut errors = Vec::new();
        let mut compiled = Vec::new();
        let ranks = dense_ranks(&policies);
        for (index, policy) in policies.into_iter().enumerate() {
            errors.extend(field_errors(index, &policy));
            match Regex::new(&policy.reason_regex) {
                Ok(reason) => compiled.push(Compiled {
                    rank: ranks[usize::from(policy.priority)],
                    policy,
                    reason,
                }),
                Err(error) => errors.push(RepairPolicyError::InvalidRegex {
                    index,
                    pattern: policy.reason_regex,
                    error: error.to_string(),
                }),
            }
        }
        let (mut fallbacks, specific): (Vec<_>, Vec<_>) = compiled
            .into_iter()
            .partition(|compiled| compiled.policy.reason_regex.is_empty());
        let found = fallbacks.len();
        match fallbacks.pop() {
            Some(fallback) if found == 1 && errors.is_empty() => Ok(Self { specific, fallback }),
            Some(_) if found == 1 => Err(errors),
            _ => {
                errors.push(RepairPolicyError::FallbackCount { found });
                Err(errors)
            }
        }
    }

    /// Every policy that applies to a node with these conditions, eligible already or not.
    ///
    /// A specific match suppresses the fallback even while the specific one is still tolerated.
    pub fn matches(&self, conditions: &[NodeCondition], node_created: Timestamp) -> Vec<RepairMatch> {
        let mut matches = Vec::new();
        for condition in conditions.iter().filter(|condition| self.names(condition)) {
            let before = matches.len();
            let specific = self
                .specific
                .iter()
                .filter(|own| own.is_about(condition) && own.reason.is_match(&condition.reason));
            matches.extend(specific.map(|own| own.matched(condition, node_created, Fallback::No)));
            if matches.len() == before {
                matches.push(self.fallback.matched(condition, node_created, Fallback::Yes));
            }
        }
        matches
    }

    /// Merges what is eligible at `now` into one repair.
    ///
    /// `not_before` restarts every toleration, e.g. after a reboot that was meant to help.
    pub fn resolve(matches: &[RepairMatch], now: Timestamp, not_before: Option<Timestamp>) -> Option<Repair> {
        let eligible: Vec<RepairMatch> = matches
            .iter()
            .cloned()
            .map(|mut matched| {
                if let Some(not_before) = not_before {
                    matched.eligible_at = matched.eligible_at.max(later(not_before, matched.policy.toleration));
                }
                matched
            })
            .filter(|matched| matched.eligible_at <= now)
            .collect();
        let decisive = eligible.iter().min_by(|a, b| more_decisive(a, b))?;
        let bound = eligible
            .iter()
            .filter_map(|matched| matched.policy.termination_grace_period)
            .min();
        let score = eligible
            .iter()
            .map(|matched| f64::from(matched.rank) + now.duration_since(matched.eligible_at).as_secs_f64() / 1800.0)
            .fold(0.0, f64::max);
        Some(Repair {
            action: decisive.policy.action,
            condition: decisive.condition.clone(),
            is_fallback: decisive.is_fallback,
            eligible_at: decisive.eligible_at,
            termination_grace_period: bound,
            score,
        })
    }

    /// A (type, status) pair counts only if some policy names it.
    fn names(&self, condition: &NodeCondition) -> bool {
        self.specific
            .iter()
            .chain([&self.fallback])
            .any(|own| own.is_about(condition))
    }
}

enum Fallback {
    Yes,
    No,
}

impl Compiled {
    fn is_about(&self, condition: &NodeCondition) -> bool {
        self.policy.condition_type == condition.condition_type && self.policy.condition_status == condition.status
    }

    fn matched(&self, condition: &NodeCondition, node_created: Timestamp, fallback: Fallback) -> RepairMatch {
        RepairMatch {
            condition: condition.clone(),
            policy: self.policy.clone(),
            is_fallback: matches!(fallback, Fallback::Yes),
            eligible_at: later(condition.last_transition.max(node_created), self.policy.toleration),
            rank: self.rank,
        }
    }
}

/// Most disruptive first, then higher priority, earlier eligibility, smaller condition type.
fn more_decisive(a: &RepairMatch, b: &RepairMatch) -> Ordering {
    b.policy
        .action
        .cmp(&a.policy.action)
        .then_with(|| b.policy.priority.cmp(&a.policy.priority))
        .then_with(|| a.eligible_at.cmp(&b.eligible_at))
        .then_with(|| a.condition.condition_type.cmp(&b.condition.condition_type))
}

fn field_errors(index: usize, policy: &RepairPolicy) -> Vec<RepairPolicyError> {
    let mut errors = Vec::new();
    if policy.condition_type.is_empty() {
        errors.push(RepairPolicyError::EmptyConditionType { index });
    }
    if policy.priority > 100 {
        errors.push(RepairPolicyError::PriorityOutOfRange {
            index,
            priority: policy.priority,
        });
    }
    if policy.reason_regex.is_empty() && policy.action != RepairAction::ReplaceNode {
        errors.push(RepairPolicyError::FallbackMustReplace { index });
    }
    errors
}

/// The position of each priority among the distinct priorities in use.
fn dense_ranks(policies: &[RepairPolicy]) -> [u32; 256] {
    let mut used = [false; 256];
    for policy in policies {
        used[usize::from(policy.priority)] = true;
    }
    let mut rank = 0;
    std::array::from_fn(|priority| {
        let own = rank;
        rank += u32::from(used[priority]);
        own
    })
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// Reads the status of a Kubernetes condition; anything but True and False is Unknown.
    pub fn parse(status: &str) -> Self {
        match status {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl NodeCondition {
    /// The conditions of a Node; one without a transition time counts from the epoch, so that only the node's own
    /// age tolerates it.
    pub fn of(node: &k8s_openapi::api::core::v1::Node) -> Vec<Self> {
        let conditions = node
            .status
            .iter()
            .filter_map(|status| status.conditions.as_ref())
            .flatten();
        conditions
            .map(|condition| Self {
                condition_type: condition.type_.clone(),
                status: ConditionStatus::parse(&condition.status),
                reason: condition.reason.clone().unwrap_or_default(),
                last_transition: condition
                    .last_transition_time
                    .as_ref()
                    .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
