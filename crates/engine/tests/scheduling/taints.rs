//! Taints of pools and nodes.

use karpenter_engine::model::{Effect, Lifecycle, Protocol};

use crate::support::*;

#[test]
fn a_pool_with_a_taint_takes_only_pods_that_tolerate_it() {
    let mut gpu = pool("gpu");
    gpu.taints.push(taint("gpu", Effect::NoSchedule));
    let cluster = || Cluster::of(gpu.clone(), shapes());
    assert_eq!(cluster().pods(pod("web")).solve().codes(), ["UntoleratedTaint"]);
    assert_eq!(cluster().pods(pod("web").tolerates("gpu")).solve().scheduled(), 1);
}

#[test]
fn a_planned_node_with_a_taint_takes_only_pods_that_tolerate_it() {
    let mut gpu = pool("gpu");
    gpu.taints.push(taint("gpu", Effect::NoSchedule));
    let outcome = Cluster::of(gpu, shapes())
        .pods(pod("gpu").cpu("2").tolerates("gpu"))
        .pods(pod("web"))
        .solve();
    assert_eq!((outcome.sizes(), outcome.pending()), (vec![1], vec!["web".to_owned()]));
}

#[test]
fn startup_taints_do_not_keep_pods_off_a_new_node() {
    let mut default = pool("default");
    default.startup_taints.push(taint("starting", Effect::NoSchedule));
    assert_eq!(Cluster::of(default, shapes()).pods(pod("web")).solve().scheduled(), 1);
}

#[test]
fn a_pool_without_a_soft_taint_is_used_first() {
    let mut soft = pool("soft");
    soft.taints.push(taint("soft", Effect::PreferNoSchedule));
    let outcome = Cluster::of(soft, shapes())
        .pool(pool("clean"), shapes())
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pool_of("web"), Some("clean"));
}

#[test]
fn a_soft_taint_is_tolerated_when_nothing_else_is_left() {
    let mut soft = pool("soft");
    soft.taints.push(taint("soft", Effect::PreferNoSchedule));
    let outcome = Cluster::of(soft, shapes())
        .pods(pod("web").prefers(1, within(ZONE, &["nowhere"])))
        .solve();
    assert_eq!(outcome.pool_of("web"), Some("soft"));
    assert_eq!(outcome.0.relaxations[0].steps.len(), 2);
}

#[test]
fn a_soft_taint_on_an_existing_node_is_tolerated_too() {
    // Upstream relaxes only when a NodePool has such a taint.
    let mut soft = node("soft", "zone-1");
    soft.taints.push(taint("soft", Effect::PreferNoSchedule));
    let outcome = Cluster::empty().node(soft).pods(pod("web")).solve();
    assert_eq!(outcome.on("soft"), 1);
}

#[test]
fn taints_that_count_keep_pods_off_an_existing_node() {
    let mut starting = node("starting", "zone-1");
    starting.lifecycle = Lifecycle::Registered;
    let mut tainted = starting.clone();
    tainted.taints.push(taint("example.com/custom", Effect::NoExecute));
    assert_eq!(cluster().node(starting).pods(pod("web")).solve().on("starting"), 1);
    assert_eq!(cluster().node(tainted).pods(pod("web")).solve().nodes(), 1);
}

#[test]
fn two_pods_with_one_host_port_need_two_nodes() {
    let outcome = cluster()
        .pods(pods(2, "web").host_port(port("0.0.0.0", 8080, Protocol::Tcp)))
        .solve();
    assert_eq!(outcome.sizes(), [1, 1]);
}

#[test]
fn host_ports_differ_by_protocol_but_not_from_the_unspecified_address() {
    let tcp = |ip: &str| port(ip, 8080, Protocol::Tcp);
    let two = |a, b| {
        cluster()
            .pods(pod("a").host_port(a))
            .pods(pod("b").host_port(b))
            .solve()
            .nodes()
    };
    assert_eq!(two(tcp("0.0.0.0"), tcp("10.0.0.1")), 2);
    assert_eq!(two(tcp("10.0.0.2"), tcp("10.0.0.1")), 1);
    assert_eq!(two(tcp("0.0.0.0"), port("0.0.0.0", 8080, Protocol::Udp)), 1);
}

#[test]
fn a_bound_pod_holds_its_host_port() {
    let holder = pod("holder").host_port(port("0.0.0.0", 80, Protocol::Tcp));
    let outcome = cluster()
        .node_with(node("a", "zone-1"), std::slice::from_ref(&holder))
        .pods(holder.clone())
        .solve();
    assert_eq!((outcome.on("a"), outcome.nodes()), (0, 1));
}
