//! How repair worked before it was a matter of budgets: the earliest policy that replaces a node decides.

use jiff::Timestamp;
use regex::Regex;

use super::{NodeCondition, RepairAction, RepairPolicy, RepairPolicyError};
use crate::clock::later;

/// A provider's policies as the legacy controller reads them: only those that replace, each by itself.
#[derive(Clone, Debug)]
pub struct LegacyPolicies(Vec<(RepairPolicy, Regex)>);

impl LegacyPolicies {
    /// Takes over what it understands of a provider's policies.
    ///
    /// # Errors
    /// For every pattern that is no regular expression.
    pub fn new(policies: Vec<RepairPolicy>) -> Result<Self, Vec<RepairPolicyError>> {
        let (mut compiled, mut errors) = (Vec::new(), Vec::new());
        for (index, policy) in policies.into_iter().enumerate() {
            match Regex::new(&policy.reason_regex) {
                Ok(reason) if policy.action == RepairAction::ReplaceNode => compiled.push((policy, reason)),
                Ok(_) => {}
                Err(error) => errors.push(RepairPolicyError::InvalidRegex {
                    index,
                    pattern: policy.reason_regex,
                    error: error.to_string(),
                }),
            }
        }
        if errors.is_empty() {
            Ok(Self(compiled))
        } else {
            Err(errors)
        }
    }

    /// There is nothing to repair by.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The condition that is tolerated no longer first, and from when on.
    pub fn earliest<'a>(&self, conditions: &'a [NodeCondition]) -> Option<(&'a NodeCondition, Timestamp)> {
        let due = |condition: &'a NodeCondition| {
            let matching = self
                .0
                .iter()
                .filter(move |(policy, reason)| is_about(policy, condition) && reason.is_match(&condition.reason));
            matching.map(move |(policy, _)| (condition, later(condition.last_transition, policy.toleration)))
        };
        conditions.iter().flat_map(due).min_by_key(|(_, due)| *due)
    }

    /// Some policy matches, tolerated still or not.
    pub fn is_unhealthy(&self, conditions: &[NodeCondition]) -> bool {
        self.earliest(conditions).is_some()
    }
}

fn is_about(policy: &RepairPolicy, condition: &NodeCondition) -> bool {
    policy.condition_type == condition.condition_type && policy.condition_status == condition.status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::ConditionStatus;
    use super::*;

    fn policy(condition_type: &str, minutes: u64, action: RepairAction) -> RepairPolicy {
        RepairPolicy {
            condition_type: condition_type.to_owned(),
            condition_status: ConditionStatus::True,
            reason_regex: String::new(),
            toleration: Duration::from_secs(60 * minutes),
            termination_grace_period: None,
            priority: 0,
            action,
        }
    }

    fn condition(condition_type: &str) -> NodeCondition {
        NodeCondition {
            condition_type: condition_type.to_owned(),
            status: ConditionStatus::True,
            reason: "Any".to_owned(),
            last_transition: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn the_policy_that_is_due_first_decides_and_reboots_are_unknown() {
        let policies = LegacyPolicies::new(vec![
            policy("Slow", 30, RepairAction::ReplaceNode),
            policy("Fast", 10, RepairAction::ReplaceNode),
            policy("Hung", 1, RepairAction::RebootNode),
        ])
        .expect("valid policies");
        let conditions = [condition("Hung"), condition("Slow"), condition("Fast")];
        let (decisive, due) = policies.earliest(&conditions).expect("something is due");
        assert_eq!((decisive.condition_type.as_str(), due.as_second()), ("Fast", 600));
        assert!(!policies.is_unhealthy(&[condition("Hung")]));
    }
}
