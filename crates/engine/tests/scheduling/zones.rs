//! The zone that a pending pod is bound to, as a metric reports it.

use karpenter_engine::model::ClaimTopology;

use crate::support::*;

fn zones(cluster: Cluster) -> Vec<(String, usize)> {
    let counted = cluster.solve().0.pending_by_zone;
    counted
        .iter()
        .map(|(zone, pods)| (zone.label().to_owned(), *pods))
        .collect()
}

fn check(cluster: Cluster, expect: &[(&str, usize)]) {
    let expect: Vec<(String, usize)> = expect.iter().map(|(zone, pods)| ((*zone).to_owned(), *pods)).collect();
    assert_eq!(zones(cluster), expect);
}

fn in_zones(names: &[&str]) -> ClaimTopology {
    ClaimTopology::AnyOf(vec![vec![within(ZONE, names)]])
}

#[test]
fn a_selected_zone_is_the_zone() {
    check(
        cluster().pods(pods(3, "web").selector(ZONE, "zone-2")),
        &[("zone-2", 3)],
    );
}

#[test]
fn nothing_demanded_is_flexible() {
    check(cluster().pods(pod("web")), &[("flexible", 1)]);
    check(
        cluster().pods(pod("web").requires(not_in(ZONE, &["zone-1"]))),
        &[("flexible", 1)],
    );
}

#[test]
fn a_volume_in_two_zones_is_flexible() {
    let cluster = cluster().volume("data", None, in_zones(&["zone-1", "zone-2"]));
    check(cluster.pods(pod("web").claim("data")), &[("flexible", 1)]);
}

#[test]
fn a_volume_outside_the_selected_zone_leaves_none() {
    let cluster = cluster().volume("data", None, in_zones(&["zone-1"]));
    check(
        cluster.pods(pod("web").claim("data").selector(ZONE, "zone-2")),
        &[("none", 1)],
    );
}

#[test]
fn excluded_zones_narrow_what_a_volume_leaves() {
    let cluster = cluster().volume("data", None, in_zones(&["zone-1", "zone-2"]));
    let pod = pod("web").claim("data").requires(not_in(ZONE, &["zone-1"]));
    check(cluster.pods(pod), &[("zone-2", 1)]);
}

#[test]
fn a_preferred_zone_is_flexible() {
    check(
        cluster().pods(pod("web").prefers(1, within(ZONE, &["zone-1"]))),
        &[("flexible", 1)],
    );
}

#[test]
fn affinity_to_pods_that_are_nowhere_leaves_none() {
    check(cluster().pods(pod("web").near(ZONE, "absent")), &[("none", 1)]);
}

#[test]
fn affinity_to_pods_in_one_zone_is_that_zone() {
    let cluster = cluster().node_with(node("a", "zone-3"), &[pod("db").label("app", "db")]);
    check(cluster.pods(pods(2, "web").near(ZONE, "db")), &[("zone-3", 2)]);
}

#[test]
fn a_spread_leaves_the_zones_that_keep_its_skew() {
    let full = |name: &str, zone: &str| (node(name, zone), [pod(name).label("app", "web")]);
    let (a, on_a) = full("a", "zone-1");
    let (b, on_b) = full("b", "zone-2");
    let cluster = cluster().node_with(a, &on_a).node_with(b, &on_b);
    check(cluster.pods(pods(1, "web").spread(ZONE, 1)), &[("zone-3", 1)]);
}

#[test]
fn pods_that_run_are_not_pending() {
    let plan = cluster()
        .node_with(node("a", "zone-1"), &[pod("web")])
        .without(&["a"])
        .0;
    assert!(plan.pending_by_zone.is_empty());
}
