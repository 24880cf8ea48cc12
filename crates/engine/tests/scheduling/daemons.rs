//! DaemonSets take their share of every node.

use karpenter_api::labels;
use karpenter_api::requirement::Requirement;
use karpenter_engine::model::{Owner, Pod, Protocol};

use crate::support::*;

#[test]
fn a_daemon_takes_room_on_a_new_node() {
    let outcome = cluster()
        .daemon(pod("agent").cpu("2"))
        .pods(pods(2, "web").cpu("500m"))
        .solve();
    assert_eq!(outcome.types(0)[0], "m-4");
    let requests = &outcome.0.claims[0].requests;
    assert_eq!(requests["cpu"], "3".parse().unwrap());
    assert_eq!(requests["pods"], "3".parse().unwrap());
}

#[test]
fn a_daemon_may_select_the_labels_of_a_ready_node() {
    let agent = pod("agent").cpu("2").selector(labels::INITIALIZED, "true");
    let outcome = cluster().daemon(agent).pods(pod("web")).solve();
    assert_eq!(outcome.types(0)[0], "m-4");
    assert!(!outcome.0.claims[0].requirements.contains_key(labels::INITIALIZED));
}

#[test]
fn a_daemon_that_does_not_run_on_the_pool_takes_nothing() {
    let elsewhere = pod("agent").cpu("2").selector(ZONE, "nowhere");
    assert_eq!(cluster().daemon(elsewhere).pods(pod("web")).solve().types(0)[0], "m-1");
    let other_type = pod("agent").cpu("2").selector(labels::INSTANCE_TYPE, "m-16");
    assert_eq!(cluster().daemon(other_type).pods(pod("web")).solve().types(0)[0], "m-1");
}

#[test]
fn a_daemon_counts_when_any_of_its_terms_matches() {
    let agent = pod("agent")
        .cpu("2")
        .or_requires(within(ZONE, &["nowhere"]))
        .or_requires(within(labels::ARCH, &["amd64"]));
    let outcome = cluster().daemon(agent).pods(pod("web")).solve();
    assert_eq!(outcome.types(0)[0], "m-4");
}

#[test]
fn a_daemon_with_the_host_port_on_every_type_refuses_the_pod() {
    let http = port("0.0.0.0", 8080, Protocol::Tcp);
    let outcome = cluster()
        .daemon(pod("agent").cpu("100m").host_port(http))
        .pods(pod("web").host_port(http))
        .solve();
    assert_eq!(outcome.codes(), ["HostPortConflict"]);
}

#[test]
fn a_daemon_with_the_host_port_on_large_types_leaves_the_small_ones() {
    let http = port("0.0.0.0", 8080, Protocol::Tcp);
    let large = Requirement::within(labels::INSTANCE_TYPE, ["m-8", "m-16"]);
    let agent = pod("agent").cpu("100m").host_port(http).requires(large);
    let outcome = cluster().daemon(agent).pods(pod("web").host_port(http)).solve();
    assert_eq!(outcome.types(0), ["m-1", "m-2", "m-4"]);
}

#[test]
fn a_daemon_that_runs_already_is_not_counted_twice() {
    let mut running = node("a", "zone-1");
    for pod in pod("agent").cpu("2").on("a") {
        running.bind(std::sync::Arc::new(Pod {
            owner: Owner::DaemonSet,
            ..Pod::clone(&pod)
        }));
    }
    let outcome = cluster()
        .node(running)
        .daemon(pod("agent").cpu("2"))
        .pods(pods(6, "web").cpu("1"))
        .solve();
    assert_eq!(outcome.on("a"), 6);
}

#[test]
fn an_unexpected_daemon_pod_never_adds_capacity() {
    let mut running = node("a", "zone-1");
    for pod in pod("stray").cpu("2").on("a") {
        running.bind(std::sync::Arc::new(Pod {
            owner: Owner::DaemonSet,
            ..Pod::clone(&pod)
        }));
    }
    let outcome = Cluster::empty().node(running).pods(pods(8, "web").cpu("1")).solve();
    assert_eq!(outcome.on("a"), 6);
}

#[test]
fn a_daemon_that_has_not_come_yet_keeps_its_room_on_an_existing_node() {
    let outcome = Cluster::empty()
        .node(node("a", "zone-1"))
        .daemon(pod("agent").cpu("2"))
        .pods(pods(8, "web").cpu("1"))
        .solve();
    assert_eq!(outcome.on("a"), 6);
}
