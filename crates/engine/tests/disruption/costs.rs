//! What disturbing pods costs, and which nodes count as empty (disruption.md §17, "Costs, emptiness").

use karpenter_engine::disruption::fleet::DeletionCost;
use karpenter_engine::disruption::{Blocked, Method, cost};
use karpenter_engine::model::{Owner, Pod};

use crate::fleet::{fleet, pod};

fn eviction(change: impl FnOnce(&mut Pod)) -> f64 {
    let mut pod = pod("p", "1");
    change(&mut pod);
    cost::eviction(&pod, DeletionCost::ByUsers)
}

#[test]
fn a_plain_pod_costs_one() {
    assert_eq!(eviction(|_| {}), 1.0);
}

#[test]
fn deletion_cost_and_priority_raise_and_lower_the_cost() {
    assert!(eviction(|pod| pod.deletion_cost = 100) > 1.0);
    assert!(eviction(|pod| pod.deletion_cost = -100) < 1.0);
    assert!(eviction(|pod| pod.priority = 1) > 1.0);
    assert!(eviction(|pod| pod.priority = -1) < 1.0);
}

#[test]
fn the_cost_stays_within_ten() {
    assert_eq!(eviction(|pod| pod.deletion_cost = i32::MAX), 10.0);
    assert_eq!(eviction(|pod| pod.priority = i32::MIN), -10.0);
}

#[test]
fn the_disruption_cost_wins_over_the_deletion_cost() {
    let both = |pod: &mut Pod| {
        pod.deletion_cost = 1_000_000;
        pod.disruption_cost = Some(0);
    };
    assert_eq!(eviction(both), 1.0);
}

#[test]
fn a_deletion_cost_that_karpenter_writes_itself_does_not_count() {
    let mut pod = pod("p", "1");
    pod.deletion_cost = 1_000_000;
    assert_eq!(cost::eviction(&pod, DeletionCost::ByKarpenter), 1.0);
    pod.disruption_cost = Some(1 << 27);
    assert_eq!(cost::eviction(&pod, DeletionCost::ByKarpenter), 2.0);
}

fn check_empty(change: impl Fn(&mut Pod), expect: &str) {
    let built = fleet("s2").node("a", "s2", &["100m"]).pods_where(change);
    assert_eq!(built.decides(Method::Emptiness), expect);
}

#[test]
fn daemon_pods_and_ending_pods_leave_a_node_empty() {
    check_empty(|_| {}, "nothing");
    check_empty(|pod| pod.owner = Owner::DaemonSet, "delete a");
    check_empty(|pod| pod.terminating = true, "delete a");
}

#[test]
fn an_ending_pod_of_a_stateful_set_still_needs_a_home() {
    check_empty(
        |pod| {
            pod.terminating = true;
            pod.owner = Owner::StatefulSet;
        },
        "nothing",
    );
}

#[test]
fn a_node_whose_pods_cost_nothing_to_evict_is_empty() {
    check_empty(|pod| pod.disruption_cost = Some(i32::MIN + 1), "delete a");
}

#[test]
fn all_empty_nodes_go_at_once_as_far_as_the_budget_allows() {
    let ten = |nodes: &str| {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        names.iter().fold(fleet("s2").allow("default", nodes), |fleet, name| {
            fleet.node(name, "s2", &[])
        })
    };
    assert_eq!(ten("3").decides(Method::Emptiness), "delete a, b, c");
    assert_eq!(ten("0").decides(Method::Emptiness), "nothing");
    assert_eq!(ten("30%").decides(Method::Emptiness), "delete a, b, c");
}

#[test]
fn nodes_that_hold_buffer_capacity_or_belong_to_a_static_pool_are_not_emptied() {
    let built = fleet("s2")
        .node("a", "s2", &[])
        .standing(|standing| standing.holds_buffer_pods = true);
    assert_eq!(built.blocked(Method::Emptiness, "a"), Some(Blocked::BufferPods));
    let built = fleet("s2").fixed("default", 1, 9).node("a", "s2", &[]);
    assert_eq!(built.blocked(Method::Emptiness, "a"), Some(Blocked::StaticPool));
}

#[test]
fn consolidate_after_never_keeps_empty_nodes() {
    let built = fleet("s2")
        .with_policy("default", |policy| policy.consolidate_after = None)
        .node("a", "s2", &[]);
    assert_eq!(
        built.blocked(Method::Emptiness, "a"),
        Some(Blocked::ConsolidationDisabled)
    );
}

#[test]
fn a_buffer_keeps_the_node_that_it_sits_on_and_no_other() {
    let built = fleet("s2")
        .node("a", "s2", &[])
        .standing(|standing| standing.holds_buffer_pods = true)
        .node("b", "s2", &[]);
    assert_eq!(built.decides(Method::Emptiness), "delete b");
}
