//! Reserved capacity.

use karpenter_api::labels;
use karpenter_engine::model::{InstanceType, ReservedMode};
use karpenter_engine::{Simulator, WhatIf};

use crate::support::*;

/// A type with a reservation of some slots besides its on-demand and spot offerings.
fn with_reservation(name: &str, cpu: u32, id: &str, slots: u32) -> InstanceType {
    let mut reserving = shape(name, cpu, "16Gi");
    reserving.offerings.push(reserved("zone-1", id, slots));
    reserving
        .requirements
        .replace(within(labels::CAPACITY_TYPE, &["on-demand", "spot", "reserved"]));
    reserving.requirements.add(within(RESERVATION, &[id]));
    reserving
}

fn only_reserved() -> karpenter_engine::model::NodePool {
    let mut pool = pool("default");
    pool.requirements.add(within(labels::CAPACITY_TYPE, &["reserved"]));
    pool
}

#[test]
fn a_node_that_could_use_a_reservation_holds_it() {
    let outcome = Cluster::of(pool("default"), vec![with_reservation("m-4", 4, "r-1", 1)])
        .pods(pod("web"))
        .solve();
    let claim = &outcome.0.claims[0];
    assert_eq!(claim.reservations, ["r-1"]);
    assert_eq!(
        claim.requirements.get(labels::CAPACITY_TYPE).unwrap().single_value(),
        Some("reserved")
    );
    assert_eq!(claim.requirements.get(RESERVATION).unwrap().single_value(), Some("r-1"));
}

#[test]
fn pods_that_could_use_either_reservation_wait_for_the_next_pass() {
    let types = vec![
        with_reservation("a-4", 4, "r-1", 1),
        with_reservation("b-4", 4, "r-2", 1),
    ];
    let outcome = Cluster::of(pool("default"), types)
        .pods(pods(3, "web").cpu("3").away_from(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.0.deferred.len()), (1, 2));
    assert_eq!(outcome.codes(), ["ReservedCapacityTaken"]);
}

#[test]
fn a_taken_reservation_does_not_send_the_pod_to_a_lighter_pool() {
    let mut heavy = pool("heavy");
    heavy.weight = 10;
    let outcome = Cluster::of(heavy, vec![with_reservation("m-4", 4, "r-1", 1)])
        .pool(pool("light"), shapes())
        .pods(pods(2, "web").cpu("3").away_from(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.0.deferred.len()), (1, 1));
}

#[test]
fn a_full_reservation_falls_back_where_the_pool_allows_it() {
    let full = || vec![with_reservation("m-4", 4, "r-1", 0)];
    let mixed = Cluster::of(pool("default"), full()).pods(pod("web")).solve();
    assert_eq!(mixed.nodes(), 1);
    assert!(mixed.0.claims[0].reservations.is_empty());
    assert_ne!(mixed.0.claims[0].cheapest.as_ref().unwrap().capacity_type, "reserved");
    assert_eq!(
        Cluster::of(only_reserved(), full())
            .pods(pod("web"))
            .solve()
            .0
            .deferred
            .len(),
        1
    );
}

#[test]
fn fallback_mode_turns_to_lighter_pools() {
    let mut heavy = only_reserved();
    heavy.weight = 10;
    let outcome = Cluster::of(heavy, vec![with_reservation("m-4", 4, "r-1", 0)])
        .pool(pool("light"), shapes())
        .options(|options| options.reserved_mode = ReservedMode::Fallback)
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pool_of("web"), Some("light"));
}

#[test]
fn an_unavailable_reservation_is_ignored() {
    let mut gone = with_reservation("m-4", 4, "r-1", 5);
    gone.offerings.last_mut().unwrap().available = false;
    let outcome = Cluster::of(pool("default"), vec![gone]).pods(pod("web")).solve();
    assert!(outcome.0.claims[0].reservations.is_empty());
}

#[test]
fn a_reservation_shared_by_pools_has_one_slot_count() {
    let outcome = Cluster::of(only_reserved(), vec![with_reservation("m-4", 4, "r-1", 1)])
        .pool(
            {
                let mut other = only_reserved();
                other.name = "other".to_owned();
                other
            },
            vec![with_reservation("m-4", 4, "r-1", 1)],
        )
        .pods(pods(2, "web").cpu("3").away_from(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.0.deferred.len()), (1, 1));
}

#[test]
fn three_pods_and_two_reservations_take_three_passes_and_the_last_pays() {
    let mut slots = [1, 1];
    let mut bought = Vec::new();
    for pass in 0..3 {
        let types = vec![
            with_reservation("a-4", 4, "r-1", slots[0]),
            with_reservation("b-4", 4, "r-2", slots[1]),
        ];
        let outcome = Cluster::of(pool("default"), types)
            .pods(pods(3 - pass, "web").cpu("3").away_from(HOSTNAME, "web"))
            .solve();
        assert_eq!(outcome.nodes(), 1, "pass {pass}");
        let claim = &outcome.0.claims[0];
        let cheapest = claim.cheapest.as_ref().unwrap();
        bought.push(cheapest.capacity_type.clone());
        // The provider takes one of the slots that the claim held.
        if let Some(id) = claim.reservations.first() {
            slots[usize::from(id == "r-2")] -= 1;
        }
    }
    assert_eq!(bought[..2], ["reserved", "reserved"]);
    assert_ne!(bought[2], "reserved");
}

#[test]
fn reservations_with_ids_of_their_own_are_used_in_one_pass() {
    let of = |name: &str, id: &str| {
        let mut pool = only_reserved();
        pool.name = name.to_owned();
        pool.requirements.add(within(RESERVATION, &[id]));
        pool
    };
    let outcome = Cluster::of(of("x", "r-1"), vec![with_reservation("a-4", 4, "r-1", 1)])
        .pool(of("y", "r-2"), vec![with_reservation("b-4", 4, "r-2", 1)])
        .pods(pod("web").cpu("3").selector(labels::NODEPOOL, "x"))
        .pods(pod("api").cpu("3").selector(labels::NODEPOOL, "y"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.pending().len()), (2, 0));
}

#[test]
fn a_slot_that_comes_back_places_one_pod() {
    let snapshot = Cluster::of(only_reserved(), vec![with_reservation("m-4", 4, "r-1", 0)])
        .pods(pods(2, "web").cpu("3").away_from(HOSTNAME, "web"))
        .snapshot();
    let placed_with = |id: &str| {
        let question = WhatIf {
            reserved_mode: Some(ReservedMode::Strict),
            reservation_credits: vec![(id.to_owned(), 1)],
            ..WhatIf::default()
        };
        Outcome(Simulator::new(&snapshot).run(&question)).scheduled()
    };
    assert_eq!((placed_with("r-1"), placed_with("unknown")), (1, 0));
}

#[test]
fn the_price_of_a_full_reservation_does_not_order_types() {
    let full = with_reservation("large-8", 8, "r-1", 0);
    let outcome = Cluster::of(pool("default"), vec![full, shape("small-4", 4, "16Gi")])
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.types(0), ["small-4", "large-8"]);
}
