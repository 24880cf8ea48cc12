//! Drifted nodes in a full reservation (disruption.md §17, "Drift").

use karpenter_engine::disruption::{Blocked, Method, Swap};

use crate::fleet::{Builder, fleet, minutes, now};

fn drifted(types: &str, pods: &[&str]) -> Builder {
    fleet(types)
        .node("a", "r4:reserved", pods)
        .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)))
}

fn terminate_first(mut built: Builder) -> Builder {
    built.gates.drift = Swap::TerminateFirst;
    built
}

#[test]
fn a_node_whose_reservation_is_full_goes_first_when_that_is_allowed() {
    assert_eq!(
        terminate_first(drifted("r4*0", &["3"])).decides(Method::Drift),
        "terminate-first a"
    );
    assert!(matches!(
        drifted("r4*0", &["3"]).blocked(Method::Drift, "a"),
        Some(Blocked::CannotReschedule(_))
    ));
}

#[test]
fn any_other_place_is_preferred() {
    let spare = terminate_first(drifted("r4*1", &["3"]));
    assert_eq!(spare.decides(Method::Drift), "replace a by r4");
    let on_demand = terminate_first(drifted("r4*0 d4", &["3"]));
    assert_eq!(on_demand.decides(Method::Drift), "replace a by d4 r4");
}

#[test]
fn pods_that_need_more_than_the_one_slot_keep_the_node() {
    let built = terminate_first(drifted("r4*0", &["3", "3"]));
    assert!(matches!(
        built.blocked(Method::Drift, "a"),
        Some(Blocked::CannotReschedule(_))
    ));
}

#[test]
fn a_reservation_that_cannot_be_had_keeps_the_node() {
    let built = terminate_first(drifted("r4!*0", &["3"]));
    assert!(matches!(
        built.blocked(Method::Drift, "a"),
        Some(Blocked::CannotReschedule(_))
    ));
}

#[test]
fn a_node_that_is_in_no_reservation_stays() {
    let built = fleet("r4*0")
        .node("a", "r4:on-demand", &["3"])
        .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)));
    assert!(matches!(
        terminate_first(built).blocked(Method::Drift, "a"),
        Some(Blocked::CannotReschedule(_))
    ));
}

#[test]
fn another_pool_that_has_something_to_sell_is_a_place_too() {
    use karpenter_api::labels;
    use karpenter_api::requirement::Requirement;
    let reserved_only = |name: &str| Requirement::within(labels::CAPACITY_TYPE, [name]);
    let built = |second: &str| {
        fleet("r4*0 d4")
            .pool("spare")
            .weighing("default", 10)
            .with_requirement("default", reserved_only(labels::CAPACITY_TYPE_RESERVED))
            .with_requirement("spare", reserved_only(second))
            .node("a", "r4:reserved", &["3"])
            .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)))
    };
    let spare = terminate_first(built(labels::CAPACITY_TYPE_ON_DEMAND));
    assert_eq!(spare.decides(Method::Drift), "replace a by d4");
    let none = terminate_first(built(labels::CAPACITY_TYPE_RESERVED));
    assert_eq!(none.decides(Method::Drift), "terminate-first a");
}

#[test]
fn two_pods_that_keep_apart_need_two_slots() {
    let built = |change: fn(&mut karpenter_engine::model::Pod)| {
        terminate_first(
            fleet("r4*0")
                .node("a", "r4:reserved", &["1", "1"])
                .pods_where(change)
                .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5))),
        )
    };
    assert_eq!(built(|_| ()).decides(Method::Drift), "terminate-first a");
    assert!(matches!(
        built(crate::fleet::apart).blocked(Method::Drift, "a"),
        Some(Blocked::CannotReschedule(_))
    ));
}
