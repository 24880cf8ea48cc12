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

#[test]
fn a_node_that_reboots_counts_even_before_it_is_up_again() {
    for reason in DisruptionReason::ALL {
        let built = ten_nodes(vec![budget("3")])
            .node_where(|node| node.lifecycle = Lifecycle::Registered)
            .standing(|standing| standing.rebooting = true);
        assert_eq!(remaining(built, reason), 2, "{reason}");
    }
}

#[test]
fn unmanaged_nodes_do_not_count() {
    let mut fleet = ten_nodes(vec![budget("100%")]).build();
    let mut members = fleet.members.to_vec();
    members[0].claim = None;
    fleet.members = members.into();
    let budgets = Budgets::of(&fleet, DisruptionReason::Empty);
    assert_eq!(budgets.remaining("default"), 9);
}

#[test]
fn every_pool_spends_its_own_budget() {
    use crate::fleet::{decision, minutes, now};
    use karpenter_engine::disruption::Method;
    let mut built = fleet("s2");
    for nth in 0..10 {
        let pool = format!("p{nth}");
        built = built.pool(&pool).allow(&pool, "1");
        for twin in ["x", "y"] {
            built = built
                .node_in(&pool, &format!("{pool}{twin}"), "s2", &["1"])
                .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)));
        }
    }
    let mut fleet = built.build();
    let mut started = Vec::new();
    loop {
        let decided = decision(&fleet, Method::Drift);
        let Some(name) = decided.split(' ').nth(1).map(str::to_owned) else {
            break;
        };
        let mut members = fleet.members.to_vec();
        let chosen = members.iter_mut().find(|member| *member.node.name == *name).unwrap();
        chosen.standing.leaving = true;
        fleet.members = members.into();
        started.push(name);
    }
    started.sort();
    let expected: Vec<String> = (0..10).map(|nth| format!("p{nth}x")).collect();
    assert_eq!(started, expected);
}
