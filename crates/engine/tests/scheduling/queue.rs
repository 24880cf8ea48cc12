//! The order of things: retries, existing nodes, pools, deadlines, determinism.

use std::ops::ControlFlow;
use std::sync::Arc;

use karpenter_engine::model::{Lifecycle, Snapshot};
use karpenter_engine::{Plan, solve, solve_within};

use crate::support::*;

#[test]
fn a_chain_of_affinities_ends_up_on_one_node_in_any_order() {
    let outcome = cluster()
        .pods(pod("ui").cpu("4").near(HOSTNAME, "cache"))
        .pods(pod("cache").cpu("3").near(HOSTNAME, "web"))
        .pods(pod("web").cpu("2").near(HOSTNAME, "db"))
        .pods(pod("db").cpu("1"))
        .solve();
    assert_eq!(outcome.sizes(), [4]);
}

#[test]
fn pods_that_wait_for_each_other_in_turn_are_all_placed() {
    let spread = |name: &str, zone: &str| {
        let selector = karpenter_engine::model::LabelSelector::labels([("set", "ab")]);
        let shared = karpenter_engine::model::SpreadConstraint {
            selector,
            node_affinity_policy: karpenter_engine::model::SpreadPolicy::Ignore,
            ..constraint(ZONE)
        };
        pods(5, name)
            .label("set", "ab")
            .requires(within(ZONE, &[zone]))
            .spread_with(shared)
    };
    let types = || vec![shape_in("m-16", 16, "64Gi", &["zone-1", "zone-2"])];
    let outcome = Cluster::of(pool("default"), types())
        .pods(spread("a", "zone-1").cpu("2"))
        .pods(spread("b", "zone-2").cpu("1"))
        .solve();
    assert_eq!(outcome.pending(), Vec::<String>::new());
}

#[test]
fn an_affinity_that_nobody_satisfies_ends() {
    let outcome = cluster().pods(pods(10, "web").near(HOSTNAME, "nobody")).solve();
    assert_eq!(outcome.pending().len(), 10);
    assert_eq!(outcome.codes(), ["PodAffinityUnsatisfied"]);
}

#[test]
fn no_node_pool_is_a_reason_of_its_own() {
    let outcome = Cluster::empty().pods(pods(2, "web")).solve();
    assert_eq!((outcome.codes(), outcome.nodes()), (vec!["NoNodePool"], 0));
}

#[test]
fn an_initialized_node_is_filled_first() {
    let mut cluster = cluster();
    for nth in 0..100 {
        let mut starting = node(&format!("a-{nth:03}"), "zone-1");
        starting.lifecycle = Lifecycle::Registered;
        cluster = cluster.node(starting);
    }
    let outcome = cluster.node(node("z", "zone-1")).pods(pod("web")).solve();
    assert_eq!(outcome.on("z"), 1);
}

#[test]
fn pools_of_equal_weight_are_asked_by_name_from_the_end() {
    let outcome = Cluster::of(pool("np-1"), shapes())
        .pool(pool("np-2"), shapes())
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pool_of("web"), Some("np-2"));
}

#[test]
fn the_heavier_pool_is_asked_first() {
    let mut heavy = pool("a");
    heavy.weight = 10;
    let outcome = Cluster::of(pool("z"), shapes())
        .pool(heavy, shapes())
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pool_of("web"), Some("a"));
}

#[test]
fn a_static_pool_launches_nothing_but_its_nodes_are_used() {
    let mut fixed = pool("fixed");
    fixed.seeds_claims = false;
    let outcome = Cluster::of(fixed, shapes())
        .node(node("a", "zone-1"))
        .pods(pods(9, "web"))
        .solve();
    assert_eq!((outcome.on("a"), outcome.nodes(), outcome.pending().len()), (8, 0, 1));
}

#[test]
fn a_small_pod_after_a_large_one_may_open_a_smaller_node() {
    let outcome = cluster()
        .pods(pod("large").cpu("16"))
        .pods(pod("small").cpu("1"))
        .solve();
    assert_eq!(outcome.types(0), ["m-16"]);
    assert_eq!(outcome.types(1).len(), 5);
}

#[test]
fn sixty_pods_pack_two_large_and_one_small_to_a_node() {
    let types = vec![shape("only", 4, "4Gi")];
    let outcome = Cluster::of(pool("default"), types)
        .pods(pods(40, "large").requests(&[("cpu", "100m"), ("memory", "1800M")]))
        .pods(pods(20, "small").requests(&[("cpu", "100m"), ("memory", "400M")]))
        .solve();
    assert_eq!(outcome.sizes(), [3; 20]);
}

#[test]
fn instance_types_come_cheapest_first() {
    let mut dear = shape("small-but-dear", 2, "8Gi");
    for offering in &mut dear.offerings {
        offering.price = 9.0;
    }
    let outcome = Cluster::of(pool("default"), vec![dear, shape("large", 16, "64Gi")])
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.types(0), ["large", "small-but-dear"]);
    assert_eq!(outcome.0.claims[0].cheapest.as_ref().unwrap().capacity_type, "spot");
}

#[test]
fn a_pod_too_large_for_every_type_is_told_the_nearest_miss() {
    let outcome = cluster().pods(pod("web").cpu("20")).solve();
    assert_eq!(outcome.codes(), ["NoInstanceTypeFits"]);
    assert!(outcome.reason().contains("m-16 has 16 cpu"), "{}", outcome.reason());
}

#[test]
fn when_the_budget_runs_out_what_is_decided_stays_decided() {
    let snapshot = cluster().pods(pods(10, "web").away_from(HOSTNAME, "web")).snapshot();
    let mut attempts = 0;
    let plan = solve_within(&snapshot, &mut |_| {
        attempts += 1;
        if attempts > 4 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(
        (plan.claims.len(), plan.not_reached.len(), plan.unschedulable.len()),
        (4, 6, 0)
    );
}

#[test]
fn the_budget_hears_how_many_pods_are_left() {
    let fits = pods(3, "web").away_from(HOSTNAME, "web");
    let snapshot = cluster().pods(fits).pods(pod("huge").cpu("20")).snapshot();
    let mut left = Vec::new();
    let plan = solve_within(&snapshot, &mut |pods| {
        left.push(pods);
        ControlFlow::Continue(())
    });
    assert_eq!(plan.unschedulable.len(), 1);
    assert_eq!((left.first(), left.last()), (Some(&4), Some(&1)), "{left:?}");
    assert!(left.is_sorted_by(|a, b| a >= b), "{left:?}");
}

#[test]
fn the_order_of_the_input_does_not_matter() {
    let base = cluster()
        .node(node("a", "zone-1"))
        .node(node("b", "zone-2"))
        .pool(pool("other"), shapes())
        .pods(pods(20, "web").spread(ZONE, 1))
        .pods(pods(10, "db").cpu("2").away_from(HOSTNAME, "db"))
        .pods(pods(10, "cache").cpu("3").near(ZONE, "cache"));
    let forwards = base.snapshot();
    let mut backwards = Cluster {
        pools: base.pools.iter().rev().cloned().collect(),
        ..base
    }
    .snapshot();
    backwards.pods = forwards.pods.iter().rev().cloned().collect();
    backwards.nodes = forwards.nodes.iter().rev().cloned().collect();
    assert_eq!(digest(&forwards), digest(&backwards));
}

fn digest(snapshot: &Snapshot) -> Vec<String> {
    let names = |pods: &[Arc<karpenter_engine::model::Pod>]| {
        let mut names: Vec<String> = pods.iter().map(|pod| pod.key()).collect();
        names.sort();
        names.join(" ")
    };
    let Plan {
        claims,
        existing,
        unschedulable,
        ..
    } = solve(snapshot);
    let claims = claims
        .iter()
        .map(|c| format!("{} {} {}", c.node_pool.name, c.requirements, names(&c.pods)));
    let existing = existing
        .iter()
        .map(|placement| format!("{} {}", placement.node, names(&placement.pods)));
    let failed = unschedulable
        .iter()
        .map(|failed| format!("{} {}", failed.pod.key(), failed.reason));
    claims.chain(existing).chain(failed).collect()
}
