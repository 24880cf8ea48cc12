//! Which conditions of a node mean that its machine is broken.

use std::time::Duration;

use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};

const TOLERATION: Duration = Duration::from_secs(30 * 60);

/// A node that is not ready, or not heard of, for half an hour is replaced.
pub fn policies() -> Vec<RepairPolicy> {
    let replace = |condition_status, reason_regex: &str| RepairPolicy {
        condition_type: "Ready".to_owned(),
        condition_status,
        reason_regex: reason_regex.to_owned(),
        toleration: TOLERATION,
        termination_grace_period: Some(Duration::ZERO),
        priority: 0,
        action: RepairAction::ReplaceNode,
    };
    // An empty pattern is the fallback, of which there is exactly one.
    vec![
        replace(ConditionStatus::False, ""),
        replace(ConditionStatus::Unknown, ".*"),
    ]
}
