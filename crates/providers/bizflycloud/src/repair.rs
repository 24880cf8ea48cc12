//! Which conditions of a node mean that it is broken (§5.9).

use std::time::Duration;

use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};

/// The condition of a Node that tells how its server is.
pub const SERVER_HEALTHY: &str = "BizflyCloudServerHealthy";
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
    let of_server =
        |reason_regex: &str, minutes| replace(SERVER_HEALTHY, ConditionStatus::False, reason_regex, minutes);
    vec![
        replace("Ready", ConditionStatus::False, "", 30),
        replace("Ready", ConditionStatus::Unknown, ".*", 30),
        RepairPolicy {
            action: RepairAction::RebootNode,
            ..of_server("^ServerStopped$", 3)
        },
        RepairPolicy {
            // Nothing runs there any more that could be drained.
            termination_grace_period: Some(Duration::ZERO),
            ..of_server("^Server(Error|Missing)$", 1)
        },
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

    #[test]
    fn a_stopped_server_is_started_and_a_broken_one_replaced_at_once() {
        let of = |reason: &str| {
            let all = policies();
            let found = all
                .into_iter()
                .find(|own| own.condition_type == SERVER_HEALTHY && own.reason_regex.contains(reason));
            let found = found.expect("a policy");
            (found.action, found.toleration, found.termination_grace_period)
        };
        assert_eq!(of("ServerStopped"), (RepairAction::RebootNode, MINUTE * 3, None));
        assert_eq!(of("Error"), (RepairAction::ReplaceNode, MINUTE, Some(Duration::ZERO)));
    }
}
