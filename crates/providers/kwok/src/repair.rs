//! Which conditions of a simulated node mean that it is broken.

use std::time::Duration;

use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};

const MINUTE: Duration = Duration::from_secs(60);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);

/// Upstream's policies: a node that is not ready for ten minutes is replaced, and two conditions of our own let tests and
/// demos ask for a replacement or a reboot.
pub fn policies() -> Vec<RepairPolicy> {
    let replace = |condition_type: &str, condition_status, reason_regex: &str, toleration, grace| RepairPolicy {
        condition_type: condition_type.to_owned(),
        condition_status,
        reason_regex: reason_regex.to_owned(),
        toleration,
        termination_grace_period: Some(grace),
        priority: 0,
        action: RepairAction::ReplaceNode,
    };
    let reboot = RepairPolicy {
        action: RepairAction::RebootNode,
        ..replace("KWOKRebootRequired", ConditionStatus::True, ".*", HALF_A_MINUTE, MINUTE)
    };
    vec![
        replace("Ready", ConditionStatus::False, "", MINUTE * 10, Duration::ZERO),
        replace("Ready", ConditionStatus::Unknown, ".*", MINUTE * 10, Duration::ZERO),
        replace(
            "KWOKUnhealthy",
            ConditionStatus::True,
            ".*",
            HALF_A_MINUTE,
            Duration::from_secs(45),
        ),
        reboot,
    ]
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::repair::RepairPolicies;

    use super::*;

    #[test]
    fn the_policies_are_valid() {
        RepairPolicies::new(policies()).expect("valid policies");
    }
}
