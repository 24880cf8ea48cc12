//! Replacing drifted nodes of static pools (disruption.md §17, "Drift").

use karpenter_engine::disruption::{Blocked, Swap};

use crate::fleet::{Builder, RESERVATION, fleet, minutes, now};

/// Five drifted nodes of a static pool of five.
fn five_drifted(limit: usize) -> Builder {
    drifted("d2", "d2", limit)
}

fn drifted(types: &str, kind: &str, limit: usize) -> Builder {
    let mut built = fleet(types).fixed("default", 5, limit);
    for name in ["a", "b", "c", "d", "e"] {
        built = built
            .node(name, kind, &["1"])
            .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)));
    }
    built
}

fn terminate_first(mut built: Builder) -> Builder {
    built.gates.drift = Swap::TerminateFirst;
    built
}

#[test]
fn as_many_nodes_are_replaced_as_the_limit_has_room_for() {
    let one = five_drifted(6).static_drift();
    assert_eq!(one.0, ["replace a by the template of default"]);
    assert_eq!(five_drifted(usize::MAX).static_drift().0.len(), 5);
}

#[test]
fn a_budget_bounds_how_many_are_replaced_at_once() {
    assert_eq!(five_drifted(usize::MAX).allow("default", "2").static_drift().0.len(), 2);
    let none = five_drifted(usize::MAX).allow("default", "0").static_drift();
    assert!(none.0.is_empty() && matches!(none.1[0], Blocked::BudgetUsedUp { .. }));
}

#[test]
fn a_pool_at_its_limit_waits_unless_nodes_may_go_first() {
    let (commands, blocked) = five_drifted(5).static_drift();
    assert!(commands.is_empty());
    assert_eq!(blocked[0], Blocked::StaticPoolAtLimit("default".to_owned()));
    let (commands, _) = terminate_first(five_drifted(5)).static_drift();
    assert_eq!(commands.len(), 5);
    assert_eq!(commands[0], "terminate-first a");
}

#[test]
fn a_pool_that_would_not_make_up_for_a_node_loses_none() {
    let not_ready = terminate_first(five_drifted(5))
        .with_policy("default", |policy| policy.fixed.as_mut().unwrap().refills = false);
    let (commands, blocked) = not_ready.static_drift();
    assert!(commands.is_empty());
    assert_eq!(blocked.len(), 5);
}

#[test]
fn a_pool_that_is_scaling_down_replaces_nothing() {
    let shrinking = five_drifted(9).with_policy("default", |policy| policy.fixed.as_mut().unwrap().replicas = 4);
    let (commands, blocked) = shrinking.static_drift();
    assert!(commands.is_empty());
    assert_eq!(blocked[0], Blocked::ScalingDown);
}

#[test]
fn the_holder_of_a_full_reservation_goes_first_and_others_stay() {
    let (commands, _) = terminate_first(drifted("r2*0", "r2:reserved", 9)).static_drift();
    assert_eq!(commands.len(), 5);
    assert_eq!(commands[0], "terminate-first a");
    let (commands, blocked) = terminate_first(drifted("r2*0", "r2:on-demand", 9)).static_drift();
    assert!(commands.is_empty());
    assert_eq!(blocked[0], Blocked::ReservationsFull("default".to_owned()));
}

#[test]
fn the_label_of_a_reservation_that_is_not_offered_does_not_count() {
    let stale = terminate_first(drifted("r2*0", "r2:reserved", 9)).node_where(|node| {
        std::sync::Arc::make_mut(&mut node.labels).insert(RESERVATION.to_owned(), "another".to_owned());
    });
    let (commands, blocked) = stale.static_drift();
    assert_eq!((commands.len(), blocked.len()), (4, 1));
}

#[test]
fn a_reservation_with_a_slot_or_another_way_to_buy_means_replacing_first() {
    for types in ["r2*1", "r2*0 d2", "r2*0 d2!"] {
        let (commands, _) = terminate_first(drifted(types, "r2:reserved", 9)).static_drift();
        assert_eq!(commands[0], "replace a by the template of default", "{types}");
    }
}

#[test]
fn a_reservation_label_on_a_node_that_was_bought_otherwise_does_not_count() {
    let demoted = terminate_first(drifted("r2*0", "r2:reserved", 9)).node_where(|node| {
        let labels = std::sync::Arc::make_mut(&mut node.labels);
        labels.insert("karpenter.sh/capacity-type".to_owned(), "on-demand".to_owned());
    });
    let (commands, blocked) = demoted.static_drift();
    assert_eq!((commands.len(), blocked.len()), (4, 1));
}

#[test]
fn a_pool_whose_types_cannot_be_listed_does_not_keep_the_others() {
    let built = fleet("s2")
        .pool("broken")
        .with_policy("broken", |policy| policy.has_instance_types = false)
        .node_in("broken", "x", "s2", &[])
        .claim_where(|claim| claim.drifted_since = Some(now()))
        .fixed("broken", 1, 5)
        .node("a", "s2", &[])
        .claim_where(|claim| claim.drifted_since = Some(now()))
        .fixed("default", 1, 5);
    let (commands, _) = built.static_drift();
    assert_eq!(commands, ["replace a by the template of default"]);
}
