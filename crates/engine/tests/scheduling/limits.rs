//! NodePool limits.

use crate::support::*;

fn limited(list: &[(&str, &str)]) -> karpenter_engine::model::NodePool {
    let mut default = pool("default");
    default.limits = resources(list);
    default
}

#[test]
fn a_cpu_limit_counts_the_largest_type_that_a_node_could_become() {
    let types = || vec![shape("m-2", 2, "8Gi")];
    let outcome = Cluster::of(limited(&[("cpu", "3")]), types())
        .pods(pods(2, "web").cpu("1500m").away_from(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.pending().len()), (1, 1));
    assert_eq!(outcome.codes(), ["NodePoolLimitReached"]);
}

#[test]
fn a_limit_that_is_met_exactly_is_met() {
    let outcome = Cluster::of(limited(&[("cpu", "2")]), vec![shape("m-2", 2, "8Gi")])
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.nodes(), 1);
}

#[test]
fn usage_above_the_limit_refuses_new_nodes() {
    let full = pods(1, "big").cpu("8");
    let outcome = Cluster::of(limited(&[("cpu", "4")]), shapes())
        .node_with(node("a", "zone-1"), &[full])
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.codes(), ["NodePoolLimitReached"]);
}

#[test]
fn a_limit_on_nodes_holds_within_one_pass() {
    // Upstream counts only nodes that exist.
    let outcome = Cluster::of(limited(&[("nodes", "2")]), shapes())
        .pods(pods(3, "web").away_from(HOSTNAME, "web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.pending().len()), (2, 1));
}

#[test]
fn a_limit_does_not_keep_pods_off_nodes_that_exist() {
    let outcome = Cluster::of(limited(&[("cpu", "0")]), shapes())
        .node(node("a", "zone-1"))
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.on("a"), 1);
}

#[test]
fn a_limit_beyond_what_machines_have_is_no_limit() {
    let outcome = Cluster::of(
        limited(&[("memory", "10000000000Gi")]),
        vec![shape("vast", 4, "900000Gi")],
    )
    .pods(pods(2000, "web").cpu("1").away_from(HOSTNAME, "web"))
    .solve();
    assert_eq!(outcome.nodes(), 2000);
}
