//! What if nodes were gone.

use crate::support::*;

fn two_nodes() -> Cluster {
    cluster()
        .node_with(node("a", "zone-1"), &[pods(3, "web").cpu("1")])
        .node_with(node("b", "zone-2"), &[pods(2, "web").cpu("1")])
}

#[test]
fn pods_of_a_removed_node_move_to_the_others() {
    let outcome = two_nodes().without(&["a"]);
    assert_eq!((outcome.on("b"), outcome.nodes()), (3, 0));
}

#[test]
fn pods_of_all_removed_nodes_need_a_new_one() {
    let outcome = two_nodes().without(&["a", "b"]);
    assert_eq!(outcome.sizes(), [5]);
}

#[test]
fn moved_pods_are_not_counted_where_they_were() {
    let spread = |count| pods(count, "web").cpu("1").spread(ZONE, 1);
    let outcome = cluster()
        .node_with(node("a", "zone-1"), &[spread(1)])
        .node_with(node("b", "zone-2"), &[spread(1)])
        .node_with(node("c", "zone-3"), &[spread(1)])
        .node(node("d", "zone-1"))
        .without(&["a"]);
    assert_eq!((outcome.on("d"), outcome.nodes()), (1, 0));
}

#[test]
fn moved_pods_do_not_block_themselves() {
    let outcome = cluster()
        .node_with(node("a", "zone-1"), &[pod("web").away_from(ZONE, "web")])
        .node(node("b", "zone-1"))
        .without(&["a"]);
    assert_eq!(outcome.on("b"), 1);
}

#[test]
fn questions_do_not_influence_each_other() {
    let snapshot = cluster()
        .node_with(node("a", "zone-1"), &[pods(2, "web").away_from(HOSTNAME, "db")])
        .node_with(node("b", "zone-2"), &[pods(2, "db").spread(ZONE, 1)])
        .node_with(node("c", "zone-3"), &[pods(4, "cache").near(HOSTNAME, "cache")])
        .snapshot();
    let question = |name: &str| {
        let node = snapshot.nodes.iter().find(|node| &*node.name == name).unwrap();
        karpenter_engine::WhatIf::without_nodes([&**node], node.pods().to_vec())
    };
    let mut shared = karpenter_engine::Simulator::new(&snapshot);
    for name in ["a", "b", "c", "a", "c", "b"] {
        let fresh = karpenter_engine::Simulator::new(&snapshot).run(&question(name));
        let again = shared.run(&question(name));
        let text = |plan: &karpenter_engine::Plan| {
            let existing: Vec<_> = plan.existing.iter().map(|p| (p.node.clone(), p.pods.len())).collect();
            let claims: Vec<_> = plan
                .claims
                .iter()
                .map(|c| (c.requirements.to_string(), c.pods.len()))
                .collect();
            format!("{existing:?} {claims:?}")
        };
        assert_eq!(text(&fresh), text(&again), "{name}");
    }
}

#[test]
fn a_resource_that_nobody_has_heard_of_fits_nowhere() {
    let snapshot = two_nodes().snapshot();
    let strange = pod("strange")
        .requests(&[("cpu", "1"), ("example.com/strange", "1")])
        .build();
    let question = karpenter_engine::WhatIf {
        pods: strange,
        ..Default::default()
    };
    let outcome = Outcome(karpenter_engine::Simulator::new(&snapshot).run(&question));
    assert_eq!(outcome.pending(), ["strange"]);
}
