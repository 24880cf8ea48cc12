//! Status conditions with a root: `Ready` sums up the conditions that a kind depends on (api.md §1.5.1).

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde::{Deserialize, Serialize};

/// The root condition of every kind that has dependents.
pub const READY: &str = "Ready";
/// Reason of a condition that nobody has looked at yet.
pub const AWAITING_RECONCILIATION: &str = "AwaitingReconciliation";
const UNHEALTHY_DEPENDENTS: &str = "UnhealthyDependents";
const RECONCILING_DEPENDENTS: &str = "ReconcilingDependents";

/// One fact about an object, in the wire form of Kubernetes' own conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: ConditionStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    pub last_transition_time: Time,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl Condition {
    pub fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }

    pub fn is_false(&self) -> bool {
        self.status == ConditionStatus::False
    }

    pub fn is_unknown(&self) -> bool {
        self.status == ConditionStatus::Unknown
    }

    /// When the status last changed.
    pub fn transitioned_at(&self) -> Timestamp {
        self.last_transition_time.0
    }
}

impl ConditionStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a write altered anything; nothing needs to be sent when it did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Change {
    Changed,
    Unchanged,
}

/// Objects whose conditions are kept by this engine.
///
/// A kind says where its conditions live and which of them `Ready` depends on; the rest follows.
pub trait StatusConditions: Resource {
    /// The conditions that `Ready` sums up.
    const DEPENDENTS: &'static [&'static str];

    fn conditions(&self) -> &[Condition];
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions().iter().find(|condition| condition.type_ == type_)
    }

    fn is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(Condition::is_true)
    }

    fn is_false(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(Condition::is_false)
    }

    /// Whether the condition is `Unknown` or was never written.
    fn is_unknown(&self, type_: &str) -> bool {
        self.condition(type_).is_none_or(Condition::is_unknown)
    }

    fn is_ready(&self) -> bool {
        self.is_true(READY)
    }

    /// Adds root and dependents that are missing, as `Unknown` since the object was created.
    fn initialize_conditions(&mut self, now: Timestamp) -> Change {
        let since = self.meta().creation_timestamp.as_ref().map_or(now, |created| created.0);
        let generation = self.meta().generation;
        let mut change = Change::Unchanged;
        for type_ in Self::DEPENDENTS.iter().copied().chain([READY]) {
            if self.condition(type_).is_some() {
                continue;
            }
            change = Change::Changed;
            self.conditions_mut().push(Condition {
                type_: type_.to_owned(),
                status: ConditionStatus::Unknown,
                observed_generation: generation,
                last_transition_time: Time(since),
                reason: AWAITING_RECONCILIATION.to_owned(),
                message: "object is awaiting reconciliation".to_owned(),
            });
        }
        if change == Change::Changed {
            sort_by_transition(self.conditions_mut());
        }
        change
    }

    /// Sets a condition to `True` with its own type as the reason.
    fn set_true(&mut self, type_: &str, now: Timestamp) -> Change {
        self.set_condition(type_, ConditionStatus::True, type_, "", now)
    }

    fn set_false(&mut self, type_: &str, reason: &str, message: &str, now: Timestamp) -> Change {
        self.set_condition(type_, ConditionStatus::False, reason, message, now)
    }

    fn set_unknown(&mut self, type_: &str, reason: &str, message: &str, now: Timestamp) -> Change {
        self.set_condition(type_, ConditionStatus::Unknown, reason, message, now)
    }

    /// Sets a condition at the object's generation and recomputes `Ready`.
    fn set_condition(
        &mut self,
        type_: &str,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> Change {
        let initialized = self.initialize_conditions(now);
        let written = write(self, type_, status, reason, message, now);
        let summed_up = if type_ == READY {
            Change::Unchanged
        } else {
            recompute_root(self, now)
        };
        match (initialized, written, summed_up) {
            (Change::Unchanged, Change::Unchanged, Change::Unchanged) => Change::Unchanged,
            _ => Change::Changed,
        }
    }

    /// Removes a condition. Root and dependents stay: without them `Ready` would have nothing to sum up.
    fn clear_condition(&mut self, type_: &str) -> Change {
        if type_ == READY || Self::DEPENDENTS.contains(&type_) || self.condition(type_).is_none() {
            return Change::Unchanged;
        }
        let conditions = self.conditions_mut();
        conditions.retain(|condition| condition.type_ != type_);
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        Change::Changed
    }
}

fn write<K: StatusConditions + ?Sized>(
    object: &mut K,
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Change {
    let generation = object.meta().generation;
    let deleting = object.meta().deletion_timestamp.is_some();
    let since = match object.condition(type_) {
        Some(present) if present.status == status => present.last_transition_time.clone(),
        _ => Time(now),
    };
    let wanted = Condition {
        type_: type_.to_owned(),
        status,
        observed_generation: generation,
        last_transition_time: since,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    if object.condition(type_) == Some(&wanted) {
        return Change::Unchanged;
    }
    let conditions = object.conditions_mut();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.push(wanted);
    if deleting {
        // Nothing reconciles the other conditions of a dying object any more; they must not hold `Ready` back.
        for condition in conditions.iter_mut() {
            condition.observed_generation = generation;
        }
    }
    sort_by_transition(conditions);
    Change::Changed
}

fn recompute_root<K: StatusConditions + ?Sized>(object: &mut K, now: Timestamp) -> Change {
    let generation = object.meta().generation;
    let mut unhealthy: Vec<&Condition> = K::DEPENDENTS
        .iter()
        .filter_map(|type_| object.condition(type_))
        .filter(|condition| !condition.is_true() || condition.observed_generation != generation)
        .collect();
    if unhealthy.is_empty() {
        return write(object, READY, ConditionStatus::True, READY, "", now);
    }
    unhealthy.sort_by_key(|condition| std::cmp::Reverse(condition.transitioned_at()));
    let listed: Vec<String> = unhealthy
        .iter()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect();
    let message = listed.join(", ");
    let failed = unhealthy
        .iter()
        .any(|condition| condition.is_false() && condition.observed_generation == generation);
    match failed {
        true => write(
            object,
            READY,
            ConditionStatus::False,
            UNHEALTHY_DEPENDENTS,
            &message,
            now,
        ),
        false => write(
            object,
            READY,
            ConditionStatus::Unknown,
            RECONCILING_DEPENDENTS,
            &message,
            now,
        ),
    }
}

/// Oldest transition first, the root last.
fn sort_by_transition(conditions: &mut [Condition]) {
    conditions.sort_by_key(|condition| (condition.type_ == READY, condition.transitioned_at()));
}

#[cfg(test)]
mod tests;
