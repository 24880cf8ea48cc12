use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(minute: u64) -> Timestamp {
    later(
        "2026-01-01T00:00:00Z".parse().expect("a valid timestamp"),
        MINUTE * u32::try_from(minute).expect("small"),
    )
}

fn policy(condition_type: &str, reason_regex: &str, minutes: u32) -> RepairPolicy {
    RepairPolicy {
        condition_type: condition_type.into(),
        condition_status: ConditionStatus::False,
        reason_regex: reason_regex.into(),
        toleration: MINUTE * minutes,
        termination_grace_period: None,
        priority: 50,
        action: RepairAction::ReplaceNode,
    }
}

fn condition(condition_type: &str, reason: &str, since: u64) -> NodeCondition {
    NodeCondition {
        condition_type: condition_type.into(),
        status: ConditionStatus::False,
        reason: reason.into(),
        last_transition: at(since),
    }
}

fn policies(list: Vec<RepairPolicy>) -> RepairPolicies {
    RepairPolicies::new(list).expect("valid policies")
}

#[test]
fn validation_collects_everything_that_is_wrong() {
    let mut empty_type = policy("", "x", 1);
    empty_type.priority = 101;
    let mut rebooting_fallback = policy("Ready", "", 1);
    rebooting_fallback.action = RepairAction::RebootNode;
    let errors =
        RepairPolicies::new(vec![empty_type, policy("Disk", "(", 1), rebooting_fallback]).expect_err("invalid");
    assert_eq!(errors[0], RepairPolicyError::EmptyConditionType { index: 0 });
    assert_eq!(
        errors[1],
        RepairPolicyError::PriorityOutOfRange {
            index: 0,
            priority: 101
        }
    );
    assert!(matches!(&errors[2], RepairPolicyError::InvalidRegex { index: 1, .. }));
    assert_eq!(errors[3], RepairPolicyError::FallbackMustReplace { index: 2 });
    assert_eq!(errors.len(), 4);
}

#[test]
fn exactly_one_fallback_is_needed() {
    let none = RepairPolicies::new(vec![policy("Ready", "x", 1)]).expect_err("no fallback");
    assert_eq!(none, [RepairPolicyError::FallbackCount { found: 0 }]);
    let two = RepairPolicies::new(vec![policy("Ready", "", 1), policy("Disk", "", 1)]).expect_err("two fallbacks");
    assert_eq!(two, [RepairPolicyError::FallbackCount { found: 2 }]);
    assert_eq!(
        RepairPolicies::new(vec![]).expect_err("empty"),
        [RepairPolicyError::Empty]
    );
}

#[test]
fn a_condition_that_no_policy_names_is_ignored() {
    let set = policies(vec![policy("Ready", "", 10)]);
    assert!(set.matches(&[condition("DiskPressure", "", 0)], at(0)).is_empty());
    let mut healthy = condition("Ready", "", 0);
    healthy.status = ConditionStatus::True;
    assert!(set.matches(&[healthy], at(0)).is_empty());
}

#[test]
fn the_fallback_applies_to_a_named_pair_whose_reason_nothing_matches() {
    let set = policies(vec![policy("Ready", "", 10), policy("Disk", "Bad.*Sector", 1)]);
    let matches = set.matches(&[condition("Disk", "Odd", 0)], at(0));
    assert_eq!(matches.len(), 1);
    assert!(matches[0].is_fallback);
    assert_eq!(matches[0].eligible_at, at(10));
}

#[test]
fn a_specific_match_suppresses_the_fallback_even_while_tolerated() {
    let set = policies(vec![policy("Ready", "", 1), policy("Ready", "Kubelet", 30)]);
    let matches = set.matches(&[condition("Ready", "TheKubeletStopped", 0)], at(0));
    assert_eq!(RepairPolicies::resolve(&matches, at(29), None), None);
    let repair = RepairPolicies::resolve(&matches, at(30), None).expect("eligible");
    assert!(!repair.is_fallback);
    let any = policies(vec![policy("Ready", "", 1), policy("Ready", ".*", 30)]);
    let matches = any.matches(&[condition("Ready", "Unheard", 0)], at(0));
    assert_eq!(
        RepairPolicies::resolve(&matches, at(29), None),
        None,
        "a pattern that takes every reason is specific too"
    );
}

#[test]
fn a_heartbeat_or_another_message_says_nothing_new_and_another_reason_does() {
    let of = |heartbeat: &str, message: &str, reason: &str| {
        let node: k8s_openapi::api::core::v1::Node =
            serde_json::from_value(serde_json::json!({"status": {"conditions": [
            {"type": "Ready", "status": "False", "reason": reason, "message": message,
             "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .expect("a node");
        NodeCondition::of(&node)
    };
    let first = of("2026-01-01T00:00:00Z", "a", "KubeletStopped");
    assert_eq!(of("2026-01-01T00:05:00Z", "b", "KubeletStopped"), first);
    assert_ne!(of("2026-01-01T00:05:00Z", "b", "Other"), first);
}

#[test]
fn toleration_counts_from_the_later_of_transition_and_node_creation() {
    let set = policies(vec![policy("Ready", "", 10)]);
    assert_eq!(set.matches(&[condition("Ready", "", 3)], at(0))[0].eligible_at, at(13));
    assert_eq!(set.matches(&[condition("Ready", "", 3)], at(7))[0].eligible_at, at(17));
}

#[test]
fn not_before_restarts_the_toleration() {
    let set = policies(vec![policy("Ready", "", 10)]);
    let matches = set.matches(&[condition("Ready", "", 0)], at(0));
    assert!(RepairPolicies::resolve(&matches, at(25), Some(at(20))).is_none());
    assert_eq!(
        RepairPolicies::resolve(&matches, at(30), Some(at(20)))
            .expect("eligible")
            .eligible_at,
        at(30)
    );
}

#[test]
fn the_most_disruptive_action_wins_and_the_shortest_bound_of_all_applies() {
    let mut reboot = policy("Net", "Down", 0);
    reboot.action = RepairAction::RebootNode;
    reboot.priority = 100;
    reboot.termination_grace_period = Some(MINUTE);
    let mut replace = policy("Disk", "Bad", 0);
    replace.priority = 0;
    replace.termination_grace_period = Some(MINUTE * 5);
    let set = policies(vec![policy("Ready", "", 10), reboot, replace]);
    let conditions = [condition("Net", "Down", 0), condition("Disk", "Bad", 0)];
    let repair = RepairPolicies::resolve(&set.matches(&conditions, at(0)), at(1), None).expect("eligible");
    assert_eq!(repair.action, RepairAction::ReplaceNode);
    assert_eq!(repair.condition.condition_type, "Disk");
    assert_eq!(repair.termination_grace_period, Some(MINUTE));

    let reversed = [conditions[1].clone(), conditions[0].clone()];
    let again = RepairPolicies::resolve(&set.matches(&reversed, at(0)), at(1), None).expect("eligible");
    assert_eq!(repair, again, "the order of conditions never matters");
}

#[test]
fn equal_actions_are_decided_by_priority_then_eligibility_then_type_name() {
    let mut urgent = policy("Zeta", "x", 0);
    urgent.priority = 60;
    let set = policies(vec![
        policy("Ready", "", 10),
        urgent,
        policy("Beta", "x", 0),
        policy("Alpha", "x", 0),
    ]);
    let decide = |conditions: &[NodeCondition]| {
        let repair = RepairPolicies::resolve(&set.matches(conditions, at(0)), at(9), None).expect("eligible");
        repair.condition.condition_type
    };
    assert_eq!(decide(&[condition("Alpha", "x", 0), condition("Zeta", "x", 5)]), "Zeta");
    assert_eq!(decide(&[condition("Alpha", "x", 5), condition("Beta", "x", 0)]), "Beta");
    assert_eq!(
        decide(&[condition("Beta", "x", 0), condition("Alpha", "x", 0)]),
        "Alpha"
    );
}

#[test]
fn thirty_minutes_of_waiting_equal_one_priority_rank() {
    let mut low = policy("Low", "x", 0);
    low.priority = 10;
    let mut high = policy("High", "x", 0);
    high.priority = 90;
    let set = policies(vec![policy("Ready", "", 10), low, high]);
    let score = |conditions: &[NodeCondition], now| {
        RepairPolicies::resolve(&set.matches(conditions, at(0)), now, None)
            .expect("eligible")
            .score
    };
    assert_eq!(score(&[condition("Low", "x", 0)], at(0)), 0.0);
    assert_eq!(score(&[condition("High", "x", 0)], at(0)), 2.0);
    assert_eq!(score(&[condition("Low", "x", 0)], at(60)), 2.0);
}
