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
