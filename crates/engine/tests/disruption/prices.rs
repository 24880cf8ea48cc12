//! What a replacement may cost: spot, reservations and offerings that cannot be had (disruption.md §17, "Consolidation").

use karpenter_api::labels;
use karpenter_api::requirement::Requirement;
use karpenter_engine::disruption::{Blocked, Method, forecast};
use karpenter_engine::model::{MinValuesPolicy, Offering};

use crate::fleet::{Builder, RESERVATION, decision, fleet, offering, sell};

const SINGLE: Method = Method::SingleNodeConsolidation;
const MULTI: Method = Method::MultiNodeConsolidation;

/// A node for 1.5 on demand, and one type that is sold as spot in three zones.
fn spot_in_three_zones(prices: [f64; 3]) -> Builder {
    let zones = ["zone-a", "zone-b", "zone-c"];
    let offerings = zones
        .iter()
        .zip(prices)
        .map(|(zone, price)| offering(zone, labels::CAPACITY_TYPE_SPOT, price));
    fleet("d4 s2")
        .type_where("d4", |kind| kind.offerings[0].price = 1.5)
        .type_where("s2", |kind| sell(kind, offerings.collect()))
        .node("a", "d4", &["1"])
}

#[test]
fn the_dearest_spot_offering_must_be_cheaper_than_the_node() {
    let built = spot_in_three_zones([1.0, 0.2, 0.4]).build();
    let command = forecast::attempt(&built, SINGLE).unwrap();
    assert_eq!(command.replacements[0].instance_types[0].name, "s2");
    let capacity_type = command.replacements[0].requirements.get(labels::CAPACITY_TYPE).unwrap();
    assert_eq!(capacity_type.single_value(), Some(labels::CAPACITY_TYPE_SPOT));

    let dear = spot_in_three_zones([1.0, 1.6, 0.4]);
    assert_eq!(dear.blocked(SINGLE, "a"), Some(Blocked::NothingCheaper));
}

#[test]
fn a_replacement_may_only_be_launched_as_what_is_cheaper() {
    let built = fleet("d1 d2 d3 d4 d8").node("a", "d4", &["1500m"]).build();
    let command = forecast::attempt(&built, SINGLE).unwrap();
    let types: Vec<&str> = command.replacements[0]
        .instance_types
        .iter()
        .map(|kind| kind.name.as_str())
        .collect();
    assert_eq!(types, ["d2", "d3"], "d4 costs as much as the node, d8 more");
}

#[test]
fn spot_and_on_demand_nodes_together_need_no_gate() {
    let built = fleet("s2 s4")
        .node("a", "s4:spot", &["500m"])
        .node("b", "s4", &["500m"]);
    assert_eq!(built.decides(MULTI), "replace a, b by s2");
}

/// The node's own type can also be had from a reservation with so many slots left.
fn with_reservation(node: &str, slots: u32) -> Builder {
    let mut reserved: Offering = offering("zone-a", labels::CAPACITY_TYPE_RESERVED, 0.001);
    reserved.reservation_capacity = slots;
    reserved.requirements.add(Requirement::within(RESERVATION, ["res-s4"]));
    fleet("s4")
        .type_where("s4", |kind| {
            let mut offerings = kind.offerings.clone();
            offerings.push(reserved);
            sell(kind, offerings);
        })
        .node("a", node, &["3"])
}

#[test]
fn a_node_moves_into_a_reservation_with_room_whatever_it_was_bought_as() {
    for node in ["s4", "s4:spot"] {
        let built = with_reservation(node, 1).build();
        let command = forecast::attempt(&built, SINGLE).unwrap();
        let capacity_type = command.replacements[0].requirements.get(labels::CAPACITY_TYPE).unwrap();
        assert_eq!(
            capacity_type.single_value(),
            Some(labels::CAPACITY_TYPE_RESERVED),
            "{node}"
        );
        assert!(command.savings > 1.9, "{node}: {}", command.savings);
    }
}

#[test]
fn a_full_reservation_makes_no_move_look_cheap() {
    // Of the spot node nothing is cheaper; the on-demand one would become spot, not reserved.
    assert_eq!(
        with_reservation("s4:spot", 0).blocked(SINGLE, "a"),
        Some(Blocked::SpotToSpotDisabled)
    );
    let built = with_reservation("s4", 0).build();
    let command = forecast::attempt(&built, SINGLE).unwrap();
    let capacity_type = command.replacements[0].requirements.get(labels::CAPACITY_TYPE).unwrap();
    assert_eq!(capacity_type.single_value(), Some(labels::CAPACITY_TYPE_SPOT));
    assert_eq!(command.savings, 2.0);
}

#[test]
fn min_values_must_hold_after_the_price_filter_under_either_policy() {
    for policy in [MinValuesPolicy::Strict, MinValuesPolicy::BestEffort] {
        let wanted = Requirement::exists(labels::INSTANCE_TYPE).with_min_values(Some(3));
        let mut built = fleet("d1 d2 d4 d8")
            .with_requirement("default", wanted)
            .node("a", "d4", &["500m"])
            .node("b", "d4", &["3700m"])
            .build();
        built.snapshot.options.min_values_policy = policy;
        for method in [SINGLE, MULTI] {
            assert_eq!(decision(&built, method), "nothing", "{policy:?} {method:?}");
        }
    }
}

#[test]
fn two_cheap_nodes_do_not_become_one_new_cheap_node() {
    let built = || {
        fleet("d2")
            .node("a", "d2", &["500m", "500m"])
            .node("b", "d2", &["500m"])
    };
    assert_eq!(built().decides(MULTI), "nothing", "one d2 of the two may as well stay");
    assert_eq!(built().decides(SINGLE), "delete b", "it has fewer pods to move");
}

#[test]
fn where_a_type_stands_on_both_sides_only_something_cheaper_than_it_counts() {
    let built = |types: &str| {
        fleet(types)
            .node("a", "d8", &["100m"])
            .node("b", "d8", &["100m"])
            .node("c", "d2", &["600m"])
    };
    assert_eq!(built("d1 d2 d4 d8").decides(MULTI), "replace a, b, c by d1");
    // Without d1 a new d2 would be the c that is there.
    assert_eq!(built("d2 d4 d8").decides(MULTI), "delete a, b");
}

#[test]
fn a_price_that_is_no_number_counts_as_nothing() {
    let built = fleet("d2 d4")
        .type_where("d4", |kind| kind.offerings[0].price = f64::NAN)
        .node("a", "d4", &["1"])
        .node("b", "d2", &["1"])
        .build();
    let survey = forecast::survey(&built, SINGLE);
    let prices: Vec<f64> = survey.all.iter().map(|candidate| candidate.price).collect();
    assert_eq!(prices, [0.0, 2.0]);
    let command = forecast::attempt(&built, SINGLE).unwrap();
    assert!(command.savings.is_finite());
}

#[test]
fn a_running_node_costs_what_its_offering_does_even_if_that_is_sold_out() {
    let built = fleet("d2 d4!").node("a", "d4", &["1"]).build();
    assert_eq!(forecast::survey(&built, SINGLE).all[0].price, 4.0);
    assert_eq!(decision(&built, SINGLE), "replace a by d2");
}

#[test]
fn a_saving_counts_only_what_the_pool_may_buy() {
    let on_demand = Requirement::within(labels::CAPACITY_TYPE, [labels::CAPACITY_TYPE_ON_DEMAND]);
    let built = fleet("s2 s4")
        .with_requirement("default", on_demand)
        .node("a", "s4", &["1"])
        .build();
    assert_eq!(forecast::attempt(&built, SINGLE).unwrap().savings, 2.0);
}

#[test]
fn a_buffers_room_is_kept_when_a_node_shrinks() {
    let shrinks = fleet("d2 d4 d8").node("a", "d8", &["1"]);
    assert_eq!(shrinks.decides(SINGLE), "replace a by d2 d4");
    let buffered = fleet("d2 d4 d8").node("a", "d8", &["1"]).buffered("room", "2");
    assert_eq!(
        buffered.decides(SINGLE),
        "replace a by d4",
        "the buffer's two CPUs count too"
    );
}
