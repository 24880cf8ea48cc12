//! Replacing what no longer matches (disruption.md §17, "Drift").

use karpenter_engine::disruption::{Blocked, Method};

use crate::fleet::{Builder, fleet, minutes, now};

fn drifted(built: Builder, minutes_ago: i64) -> Builder {
    built.claim_where(|claim| claim.drifted_since = Some(now() - minutes(minutes_ago)))
}

#[test]
fn a_drifted_node_is_replaced_by_what_its_pods_need() {
    let built = drifted(fleet("d2 d4").node("a", "d4", &["3"]), 5);
    assert_eq!(built.decides(Method::Drift), "replace a by d4");
}

#[test]
fn an_empty_drifted_node_goes_first_and_without_replacement() {
    let built = drifted(fleet("d4").node("a", "d4", &["3"]), 50);
    let built = drifted(built.node("b", "d4", &[]), 5);
    assert_eq!(built.decides(Method::Drift), "delete b");
}

#[test]
fn among_equals_the_one_that_drifted_first_goes_first() {
    let built = drifted(fleet("d4").node("a", "d4", &["3"]), 5);
    let built = drifted(built.node("b", "d4", &["3"]), 50);
    assert_eq!(built.decides(Method::Drift), "replace b by d4");
}

#[test]
fn a_node_whose_pods_fit_nowhere_does_not_hold_up_the_next() {
    let built = drifted(fleet("d2").node("a", "d4", &["4"]), 50);
    let built = drifted(built.node("b", "d2", &["1"]), 5);
    assert_eq!(built.decides(Method::Drift), "replace b by d2");
}

#[test]
fn drift_may_need_several_replacements() {
    let built = drifted(fleet("d2").node("a", "d4", &["1500m", "1500m"]), 5);
    assert_eq!(built.decides(Method::Drift), "replace a by d2 by d2");
}

#[test]
fn consolidation_settings_do_not_stop_drift() {
    let built = fleet("d4").with_policy("default", |policy| policy.consolidate_after = None);
    assert_eq!(
        drifted(built.node("a", "d4", &["3"]), 5).decides(Method::Drift),
        "replace a by d4"
    );
}

#[test]
fn a_budget_of_zero_stops_drift() {
    let built = drifted(fleet("d4").allow("default", "0").node("a", "d4", &["3"]), 5);
    assert!(matches!(
        built.blocked(Method::Drift, "a"),
        Some(Blocked::BudgetUsedUp { .. })
    ));
}

#[test]
fn a_node_of_a_static_pool_is_not_this_methods_business() {
    let built = fleet("d4").fixed("default", 1, 9);
    let built = drifted(built.node("a", "d4", &["3"]), 5);
    assert_eq!(built.blocked(Method::Drift, "a"), Some(Blocked::StaticPool));
}
