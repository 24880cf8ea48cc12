//! What must hold for every cluster, tried on random ones and judged by a checker that shares no code with the engine.

mod clusters;
mod naive;

use clusters::{Cluster, Constraints, cluster, types};
use karpenter_engine::model::{Options, Packing};
use karpenter_engine::{Plan, solve};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn decide(cluster: &Cluster) -> Plan {
    solve(&cluster.snapshot(Options::default()))
}

/// Everything a plan says, in an order that does not depend on how it was found.
fn told(plan: &Plan) -> String {
    let mut lines = Vec::new();
    let pods = |pods: &[std::sync::Arc<karpenter_engine::model::Pod>]| {
        let mut keys: Vec<String> = pods.iter().map(|pod| pod.key()).collect();
        keys.sort();
        keys.join(" ")
    };
    for claim in &plan.claims {
        let types: Vec<&str> = claim.instance_types.iter().map(|t| t.name.as_str()).collect();
        lines.push(format!(
            "claim {} {types:?} {} {:?} {}",
            claim.node_pool.name,
            claim.requirements,
            claim.cheapest,
            pods(&claim.pods)
        ));
    }
    for placement in &plan.existing {
        lines.push(format!("node {} {}", placement.node, pods(&placement.pods)));
    }
    for refused in &plan.unschedulable {
        lines.push(format!("unschedulable {} {}", refused.pod.key(), refused.reason));
    }
    lines.sort();
    lines.join("\n")
}

fn unschedulable(plan: &Plan) -> BTreeSet<String> {
    plan.unschedulable.iter().map(|refused| refused.pod.key()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_placement_is_one_that_kubernetes_would_allow(cluster in cluster(Constraints::All)) {
        let plan = decide(&cluster);
        let violations = naive::violations(&cluster.machines(&plan));
        prop_assert!(violations.is_empty(), "{}\n{}", violations.join("\n"), told(&plan));
    }

    #[test]
    fn every_pod_is_placed_once_or_has_a_reason(cluster in cluster(Constraints::All)) {
        let plan = decide(&cluster);
        let placed = plan.claims.iter().flat_map(|c| &c.pods).chain(plan.existing.iter().flat_map(|n| &n.pods));
        let mut seen: Vec<String> = placed.chain(plan.unschedulable.iter().map(|u| &u.pod)).map(|pod| pod.key()).collect();
        seen.sort();
        let expected: Vec<String> = cluster.pending.iter().map(|pod| format!("default/{}", pod["metadata"]["name"].as_str().unwrap())).collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(cluster in cluster(Constraints::All), turn in 0..24_usize) {
        let mut turned = cluster.clone();
        for list in [&mut turned.pending, &mut turned.nodes, &mut turned.bound, &mut turned.pools, &mut turned.daemons] {
            let length = list.len().max(1);
            list.rotate_left(turn % length);
            list.reverse();
        }
        turned.types.reverse();
        prop_assert_eq!(told(&decide(&cluster)), told(&decide(&turned)));
    }

    #[test]
    fn the_same_input_gives_the_same_plan(cluster in cluster(Constraints::All)) {
        let snapshot = cluster.snapshot(Options::default());
        prop_assert_eq!(told(&solve(&snapshot)), told(&solve(&snapshot)));
    }

    #[test]
    fn a_pod_that_a_new_node_could_hold_alone_is_never_left_over(cluster in cluster(Constraints::Independent)) {
        let plan = decide(&cluster);
        for pod in &unschedulable(&plan) {
            let alone = Cluster {
                pending: cluster.pending.iter().filter(|p| pod.ends_with(p["metadata"]["name"].as_str().unwrap())).cloned().collect(),
                nodes: Vec::new(),
                bound: Vec::new(),
                ..cluster.clone()
            };
            prop_assert_eq!(unschedulable(&decide(&alone)).len(), 1, "{} alone would be placed", pod);
        }
    }

    #[test]
    fn more_instance_types_never_leave_more_pods_over(cluster in cluster(Constraints::Independent), kept in 1..9_usize) {
        let all = Cluster { nodes: Vec::new(), bound: Vec::new(), types: types(1), ..cluster };
        let fewer = Cluster { types: all.types[..kept].to_vec(), ..all.clone() };
        let (all, fewer) = (unschedulable(&decide(&all)), unschedulable(&decide(&fewer)));
        prop_assert!(all.is_subset(&fewer), "{:?} but {:?}", all, fewer);
    }

    #[test]
    fn packing_by_cost_is_never_dearer_and_breaks_no_rule(cluster in cluster(Constraints::All)) {
        let compatible = decide(&cluster);
        let by_cost = solve(&cluster.snapshot(Options { packing: Packing::Cost, ..Options::default() }));
        prop_assert!(by_cost.price() <= compatible.price() + 1e-9, "{} instead of {}", by_cost.price(), compatible.price());
        prop_assert_eq!(unschedulable(&by_cost), unschedulable(&compatible));
        let violations = naive::violations(&cluster.machines(&by_cost));
        prop_assert!(violations.is_empty(), "{}\n{}", violations.join("\n"), told(&by_cost));
    }
}
