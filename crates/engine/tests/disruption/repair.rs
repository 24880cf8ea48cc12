//! Which broken node is treated first, and how (disruption.md §17, "Repair and reboot").

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_engine::disruption::{Ailment, Blocked, Method, RepairAction, Swap};
use karpenter_engine::model::{DoNotDisrupt, Lifecycle};

use crate::fleet::{Builder, fleet, minutes, now};

fn ailment(action: RepairAction, score: f64) -> Ailment {
    Ailment {
        action,
        condition: "Broken".to_owned(),
        status: "True".to_owned(),
        reason: "Disk".to_owned(),
        by_fallback: false,
        eligible_at: now(),
        drain_bound: None,
        score,
    }
}

/// The node that was added last needs to be replaced.
fn broken(built: Builder) -> Builder {
    broken_with(built, 0.0, None)
}

fn broken_with(built: Builder, score: f64, drain_bound: Option<SignedDuration>) -> Builder {
    built.health(|health| {
        health.is_unhealthy = true;
        health.ailment = Some(Arc::new(Ailment {
            drain_bound,
            ..ailment(RepairAction::Replace, score)
        }));
    })
}

/// As many healthy nodes as the circuit breaker needs for one that is not.
fn healthy(mut built: Builder) -> Builder {
    for name in ["h1", "h2", "h3", "h4"] {
        built = built.node(name, "d2", &["2"]);
    }
    built
}

#[test]
fn a_broken_node_is_replaced_by_what_its_pods_need() {
    let built = broken(fleet("d2 d4").node("a", "d4", &["3"]));
    assert_eq!(built.decides(Method::Repair), "replace a by d4");
}

#[test]
fn a_broken_empty_node_is_deleted() {
    assert_eq!(
        broken(fleet("d4").node("a", "d4", &[])).decides(Method::Repair),
        "delete a"
    );
}

#[test]
fn a_healthy_node_is_left_alone() {
    let built = fleet("d4").node("a", "d4", &["3"]);
    assert_eq!(built.blocked(Method::Repair, "a"), Some(Blocked::Healthy));
}

#[test]
fn the_owners_do_not_disrupt_does_not_stop_a_repair_and_do_not_repair_does() {
    let node = || broken(fleet("d4").node("a", "d4", &["3"])).standing(|standing| standing.do_not_disrupt = true);
    assert_eq!(node().decides(Method::Repair), "replace a by d4");
    let kept = node().health(|health| health.do_not_repair = true);
    assert_eq!(kept.blocked(Method::Repair, "a"), Some(Blocked::DoNotRepair));
    let fine = fleet("d4")
        .node("a", "d4", &[])
        .health(|health| health.do_not_repair = true);
    assert_eq!(
        fine.blocked(Method::Repair, "a"),
        Some(Blocked::Healthy),
        "not reported before it is due"
    );
}

#[test]
fn a_pod_that_must_not_be_disturbed_blocks_a_repair_without_a_bound() {
    let node = |bound| {
        let built = fleet("d2 d4").node("a", "d4", &["3"]);
        broken_with(built, 0.0, bound).pods_where(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always))
    };
    assert!(matches!(
        node(None).blocked(Method::Repair, "a"),
        Some(Blocked::ProtectedPod(_))
    ));
    // The bounded drain will evict it, so the replacement has room for it.
    assert_eq!(node(Some(minutes(5))).decides(Method::Repair), "replace a by d4");
    let bounded = node(None).claim_where(|claim| claim.termination_grace_period = Some(minutes(5)));
    assert_eq!(bounded.decides(Method::Repair), "replace a by d4");
}

#[test]
fn the_most_urgent_goes_first_then_the_cheapest_to_lose_then_by_name() {
    let urgent = broken_with(healthy(fleet("d2 d4")).node("a", "d4", &["3"]), 3.0, None);
    let urgent = broken_with(urgent.node("b", "d4", &["3"]), 5.0, None);
    assert_eq!(urgent.decides(Method::Repair), "replace b by d4");
    let equal = broken(healthy(fleet("d2 d4")).node("a", "d4", &["1", "1"]));
    let equal = broken(equal.node("b", "d4", &["3"]));
    assert_eq!(equal.decides(Method::Repair), "replace b by d4");
    let alike = broken(healthy(fleet("d2 d4")).node("b", "d4", &["3"]));
    let alike = broken(alike.node("a", "d4", &["3"]));
    assert_eq!(alike.decides(Method::Repair), "replace a by d4");
}

#[test]
fn too_many_unhealthy_nodes_trip_the_breaker_even_while_they_are_tolerated() {
    let mut built = broken(fleet("d2").node("a", "d2", &["1"]));
    for (name, unhealthy) in [("b", true), ("c", true), ("d", false), ("e", false), ("f", false)] {
        built = built
            .node(name, "d2", &["2"])
            .health(|health| health.is_unhealthy = unhealthy);
    }
    for name in ["g", "h", "i", "j"] {
        built = built.node(name, "d2", &["2"]);
    }
    let expected = Blocked::TooManyUnhealthy {
        pool: "default".to_owned(),
        unhealthy: 3,
        nodes: 10,
    };
    assert_eq!(built.blocked(Method::Repair, "a"), Some(expected));
}

#[test]
fn one_of_three_unhealthy_nodes_is_repaired() {
    let built = broken(fleet("d2").node("a", "d2", &["2"]))
        .node("b", "d2", &["2"])
        .node("c", "d2", &["2"]);
    assert_eq!(built.decides(Method::Repair), "replace a by d2");
}

#[test]
fn a_budget_of_zero_stops_the_repair_of_a_node_that_is_up_only() {
    let built = || broken(fleet("d2").allow("default", "0").node("a", "d2", &["2"]));
    assert!(matches!(
        built().blocked(Method::Repair, "a"),
        Some(Blocked::BudgetUsedUp { .. })
    ));
    let coming_up = built()
        .node_where(|node| node.lifecycle = Lifecycle::Registered)
        .standing(|standing| standing.nominated = true);
    assert_eq!(coming_up.decides(Method::Repair), "replace a by d2");
    let not_there = built().node_where(|node| node.lifecycle = Lifecycle::Launched);
    assert_eq!(not_there.blocked(Method::Repair, "a"), Some(Blocked::NotRegistered));
}

#[test]
fn not_ready_nodes_do_not_use_up_the_budget_of_their_own_repair() {
    let built = broken(fleet("d2").allow("default", "1").node("a", "d2", &["2"]));
    let built = built.standing(|standing| standing.not_ready = true);
    assert_eq!(built.decides(Method::Repair), "replace a by d2");
}

#[test]
fn a_node_without_a_pool_label_is_not_repaired() {
    let built = broken(fleet("d2").node("a", "d2", &["2"])).node_where(|node| node.node_pool = None);
    assert_eq!(built.blocked(Method::Repair, "a"), Some(Blocked::NoPoolLabel));
}

#[test]
fn a_reboot_needs_no_replacement() {
    let built = fleet("d2").node("a", "d2", &["2"]).health(|health| {
        health.is_unhealthy = true;
        health.ailment = Some(Arc::new(ailment(RepairAction::Reboot, 0.0)));
    });
    assert_eq!(built.decides(Method::Repair), "reboot a");
}

#[test]
fn a_broken_node_of_a_static_pool_is_replaced_from_its_template() {
    let built = |limit| broken(fleet("d2").fixed("default", 1, limit).node("a", "d2", &["2"]));
    assert_eq!(built(2).decides(Method::Repair), "replace a by the template of default");
    assert_eq!(
        built(1).blocked(Method::Repair, "a"),
        Some(Blocked::StaticPoolAtLimit("default".to_owned()))
    );
    let mut first = built(1);
    first.gates.repair = Swap::TerminateFirst;
    assert_eq!(first.decides(Method::Repair), "terminate-first a");
}
