//! Which conditions of a node mean that it is broken.

use std::time::Duration;

use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};

/// MKS heals nodes by itself from the tenth minute on; whoever is faster acts on the same machine.
const TOLERATION: Duration = Duration::from_secs(30 * 60);

pub fn policies() -> Vec<RepairPolicy> {
    let not_ready = |condition_status, reason_regex: &str| RepairPolicy {
        condition_type: "Ready".to_owned(),
        condition_status,
        reason_regex: reason_regex.to_owned(),
        toleration: TOLERATION,
        termination_grace_period: Some(Duration::ZERO),
        priority: 0,
        action: RepairAction::ReplaceNode,
    };
    vec![
        not_ready(ConditionStatus::False, ""),
        not_ready(ConditionStatus::Unknown, ".*"),
    ]
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::repair::RepairPolicies;

    use super::*;

    #[test]
    fn the_policies_are_valid_and_wait_longer_than_mks_itself() {
        RepairPolicies::new(policies()).expect("valid policies");
        assert!(
            policies()
                .iter()
                .all(|policy| policy.toleration > Duration::from_secs(600))
        );
    }
}
