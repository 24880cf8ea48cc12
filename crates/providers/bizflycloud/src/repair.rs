//! Which conditions of a node mean that it is broken (§5.9).

use std::time::Duration;

use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};

const MINUTE: Duration = Duration::from_secs(60);

/// A node that is not ready for half an hour is replaced; so is one whose hardware or system is reported broken.
pub fn policies() -> Vec<RepairPolicy> {
    let replace = |condition_type: &str, condition_status, reason_regex: &str, minutes: u32| RepairPolicy {
        condition_type: condition_type.to_owned(),
        condition_status,
        reason_regex: reason_regex.to_owned(),
        toleration: MINUTE * minutes,
        termination_grace_period: None,
        priority: 0,
        action: RepairAction::ReplaceNode,
    };
    let broken = |condition: &str, minutes| replace(condition, ConditionStatus::False, ".*", minutes);
    vec![
        replace("Ready", ConditionStatus::False, "", 30),
        replace("Ready", ConditionStatus::Unknown, ".*", 30),
        broken("AcceleratedHardwareReady", 10),
        broken("StorageReady", 30),
        broken("NetworkingReady", 30),
        broken("KernelReady", 30),
        broken("ContainerRuntimeReady", 30),
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
