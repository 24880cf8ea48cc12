//! How many nodes may go at once (disruption.md §17, "Budgets").

use karpenter_api::budget::{Budget, DisruptionReason, UNLIMITED};
use karpenter_engine::disruption::Budgets;
use karpenter_engine::model::Lifecycle;

use crate::fleet::{Builder, fleet};

fn ten_nodes(budgets: Vec<Budget>) -> Builder {
    let built = fleet("s2").with_policy("default", |policy| policy.budgets = budgets);
    (0..10).fold(built, |fleet, nth| fleet.node(&format!("n{nth}"), "s2", &[]))
}

fn budget(nodes: &str) -> Budget {
    Budget {
        nodes: nodes.to_owned(),
        ..Budget::default()
    }
}

fn remaining(fleet: Builder, reason: DisruptionReason) -> u32 {
    Budgets::of(&fleet.build(), reason).remaining("default")
}

#[test]
fn percentages_round_up() {
    for (nodes, expect) in [("30%", 3), ("5%", 1), ("100%", 10), ("0%", 0), ("4", 4), ("0", 0)] {
        assert_eq!(
            remaining(ten_nodes(vec![budget(nodes)]), DisruptionReason::Empty),
            expect,
            "{nodes}"
        );
    }
}

#[test]
fn nodes_that_are_going_already_count_against_the_budget_of_every_reason() {
    for reason in DisruptionReason::ALL {
        let built = ten_nodes(vec![budget("3")]).standing(|standing| standing.leaving = true);
        assert_eq!(remaining(built, reason), 2, "{reason}");
        let built = ten_nodes(vec![budget("3")]).standing(|standing| standing.rebooting = true);
        assert_eq!(remaining(built, reason), 2, "{reason}");
    }
}

#[test]
fn a_node_that_is_not_ready_does_not_use_up_the_budget_to_repair_it() {
    let built = || ten_nodes(vec![budget("3")]).standing(|standing| standing.not_ready = true);
    assert_eq!(remaining(built(), DisruptionReason::Drifted), 2);
    assert_eq!(remaining(built(), DisruptionReason::Unhealthy), 3);
}

#[test]
fn nodes_that_are_not_up_or_almost_gone_do_not_count() {
    let built = ten_nodes(vec![budget("100%")]).node_where(|node| node.lifecycle = Lifecycle::Registered);
    assert_eq!(remaining(built, DisruptionReason::Empty), 9);
    let built = ten_nodes(vec![budget("100%")]).standing(|standing| {
        standing.leaving = true;
        standing.instance_terminating = true;
    });
    assert_eq!(remaining(built, DisruptionReason::Empty), 9);
}

#[test]
fn more_disruptions_than_allowed_leave_nothing_and_not_less() {
    let built = ten_nodes(vec![budget("1")])
        .standing(|standing| standing.leaving = true)
        .node("x", "s2", &[])
        .standing(|standing| standing.leaving = true);
    assert_eq!(remaining(built, DisruptionReason::Empty), 0);
}

#[test]
fn the_tightest_budget_that_applies_counts() {
    use DisruptionReason::{Drifted, Empty, Underutilized, Unhealthy};
    let for_reasons = |nodes: &str, reasons: &[DisruptionReason]| Budget {
        reasons: Some(reasons.to_vec()),
        ..budget(nodes)
    };
    let budgets = || {
        vec![
            budget("10"),
            for_reasons("15", &[Drifted, Underutilized]),
            for_reasons("5", &[Drifted]),
            for_reasons("4", &[Empty]),
        ]
    };
    for (reason, expect) in [(Empty, 4), (Drifted, 5), (Underutilized, 10), (Unhealthy, 10)] {
        assert_eq!(remaining(ten_nodes(budgets()), reason), expect, "{reason}");
    }
}

#[test]
fn without_budgets_there_is_no_limit() {
    assert_eq!(remaining(ten_nodes(Vec::new()), DisruptionReason::Empty), UNLIMITED);
}

#[test]
fn a_budget_that_cannot_be_read_allows_nothing_whatever_its_reasons() {
    let broken = Budget {
        reasons: Some(vec![DisruptionReason::Empty]),
        schedule: Some("not a schedule at all".to_owned()),
        duration: Some("1h".parse().unwrap()),
        ..budget("10")
    };
    assert_eq!(remaining(ten_nodes(vec![broken]), DisruptionReason::Drifted), 0);
}
