//! Behaviour of cluster state, fed with objects as the watches would (lifecycle.md, test cases of cluster state).

mod assignments;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use karpenter_api::labels::LabelRules;
use karpenter_api::{NodeClaim, ResourceList};
use karpenter_cloud::fake::FakeProvider;
use serde_json::{Value, json};

use super::*;
use crate::clock::ManualClock;
use crate::metrics::Registry;

struct World {
    manual: ManualClock,
    watches: Watches,
    state: Arc<Cluster>,
    registry: Registry,
    version: std::cell::Cell<u64>,
}

fn world() -> World {
    let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let registry = Registry::new(manual.clock());
    let managed = Managed::by(&FakeProvider::new(manual.clock()));
    let state = Cluster::new(
        manual.clock(),
        &Options::default(),
        Arc::new(LabelRules::default()),
        managed,
        &registry,
    );
    let watches = Watches::default();
    state.observe(&watches);
    World {
        manual,
        watches,
        state,
        registry,
        version: std::cell::Cell::new(0),
    }
}

fn resources(cpu: &str, gpu: &str) -> Value {
    json!({ "cpu": cpu, "gpu": gpu, "pods": "10" })
}

impl World {
    fn version(&self) -> String {
        self.version.set(self.version.get() + 1);
        self.version.get().to_string()
    }

    fn node(&self, name: &str, provider_id: &str, labels: Value, taints: Value) {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "providerID": provider_id, "taints": taints },
            "status": { "capacity": resources("4", "0"), "allocatable": resources("4", "0") } }))
        .unwrap();
        self.watches.nodes.apply(Key::of(&node), &self.version(), node);
    }

    fn claim(&self, name: &str, provider_id: &str, metadata: Value, conditions: Value) {
        let mut claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": name, "labels": { "karpenter.sh/nodepool": "default" } },
            "spec": { "requirements": [],
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "startupTaints": [{ "key": "boot", "effect": "NoSchedule" }] },
            "status": { "providerID": provider_id, "capacity": resources("4", "2"), "allocatable": resources("4", "2"),
                "conditions": conditions } });
        for (key, value) in metadata.as_object().unwrap() {
            claim["metadata"][key] = value.clone();
        }
        let claim: NodeClaim = serde_json::from_value(claim).unwrap();
        self.watches.claims.apply(Key::of(&claim), &self.version(), claim);
    }

    /// A pod of one cpu; `node` may be empty.
    fn pod(&self, name: &str, uid: &str, node: &str, extra: Value) {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "default", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": if node.is_empty() { "Pending" } else { "Running" } } });
        if !node.is_empty() {
            pod["spec"]["nodeName"] = json!(node);
        } else {
            pod["status"]["conditions"] =
                json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
        }
        for (key, value) in extra.as_object().unwrap() {
            for (field, value) in value.as_object().unwrap() {
                pod[key][field] = value.clone();
            }
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.state.pod_seen(&pod);
        self.watches.pods.apply(Key::of(&pod), &self.version(), pod);
    }

    fn gone(&self, pod: &str) {
        self.watches.pods.remove(&Key::namespaced("default", pod));
    }

    fn used(&self, node: &str) -> i64 {
        self.state
            .machine_of_node(node)
            .map_or(0, |machine| machine.view.requested().cpu().value())
    }

    fn pool(&self, name: &str) -> ResourceList {
        self.state.pool_resources(name)
    }

    fn nodes_in(&self, pool: &str) -> i64 {
        self.pool(pool).amount("nodes").value()
    }

    fn taint_keys(&self, id: &str) -> Vec<String> {
        self.state
            .machine(id)
            .unwrap()
            .view
            .taints
            .iter()
            .map(|taint| taint.key.clone())
            .collect()
    }
}

fn ours(extra: Value) -> Value {
    let mut labels = json!({ "karpenter.sh/nodepool": "default", "karpenter.test.sh/testnodeclass": "default",
        "node.kubernetes.io/instance-type": "fake-4x", "karpenter.sh/registered": "true" });
    for (key, value) in extra.as_object().unwrap() {
        labels[key] = value.clone();
    }
    labels
}

fn initialized() -> Value {
    ours(json!({ "karpenter.sh/initialized": "true" }))
}

fn condition(type_: &str, status: &str) -> Value {
    json!([{ "type": type_, "status": status, "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }])
}

fn none() -> Value {
    json!({})
}

#[test]
fn a_node_of_ours_is_tracked_once_it_has_a_provider_id() {
    let world = world();
    world.node("n", "", ours(none()), json!([]));
    assert!(world.state.machines().is_empty());
    world.node("n", "p://1", ours(none()), json!([]));
    assert_eq!(world.state.machines().len(), 1);
    assert_eq!(world.nodes_in("default"), 1);
}

#[test]
fn a_foreign_node_without_a_provider_id_is_tracked_by_name_and_moves_when_it_gets_one() {
    let world = world();
    world.node("n", "", none(), json!([]));
    assert!(world.state.machine("n").is_some());
    world.node("n", "p://1", none(), json!([]));
    assert!(world.state.machine("n").is_none() && world.state.machine("p://1").is_some());
}

#[test]
fn a_node_of_ours_without_an_instance_type_is_ignored_until_it_has_one() {
    let world = world();
    let labels = json!({ "karpenter.sh/nodepool": "default", "karpenter.test.sh/testnodeclass": "default" });
    world.node("n", "p://1", labels, json!([]));
    assert!(world.state.machines().is_empty());
    world.node("n", "p://1", ours(none()), json!([]));
    assert_eq!(world.state.machines().len(), 1);
}

#[test]
fn state_is_synced_once_everything_was_listed_whether_claims_are_launched_or_not() {
    let world = world();
    assert!(!world.state.synced());
    world.manual.advance(Duration::from_secs(7));
    assert!(!world.state.synced());
    assert!(
        world
            .registry
            .encode()
            .contains("karpenter_cluster_state_unsynced_time_seconds 7")
    );
    world.claim("c", "", none(), json!([]));
    let none_of = |_: ()| rustc_hash::FxHashSet::default();
    world.watches.nodes.settle(&none_of(()));
    world.watches.claims.settle(&[Key::cluster("c")].into_iter().collect());
    world.watches.pools.settle(&none_of(()));
    world.watches.pods.settle(&none_of(()));
    world.watches.daemon_sets.settle(&none_of(()));
    world.watches.budgets.settle(&none_of(()));
    world.watches.volume_claims.settle(&none_of(()));
    world.watches.volumes.settle(&none_of(()));
    world.watches.storage_classes.settle(&none_of(()));
    world.watches.csi_nodes.settle(&none_of(()));
    world.watches.volume_attachments.settle(&none_of(()));
    assert_eq!(world.watches.unsynced(), ["Namespace"]);
    world.watches.namespaces.settle(&none_of(()));
    assert!(world.state.synced());
    let text = world.registry.encode();
    assert!(text.contains("karpenter_cluster_state_synced 1"));
    assert!(text.contains("karpenter_cluster_state_unsynced_time_seconds 0"));
    assert_eq!(world.state.facts().unlaunched.len(), 1);
    world.node("brand-new", "", ours(none()), json!([]));
    assert!(world.state.synced(), "once complete, newcomers do not matter");
}

#[test]
fn a_pod_recreated_on_another_node_is_charged_there_only() {
    let world = world();
    world.node("a", "p://a", none(), json!([]));
    world.node("b", "p://b", none(), json!([]));
    world.pod("web-0", "1", "a", none());
    assert_eq!((world.used("a"), world.used("b")), (1, 0));
    world.pod("web-0", "2", "b", none());
    assert_eq!((world.used("a"), world.used("b")), (0, 1));
}

#[test]
fn a_bound_pod_waits_for_its_node_and_a_terminal_one_is_not_charged() {
    let world = world();
    world.pod("early", "1", "a", none());
    assert_eq!(world.used("a"), 0);
    world.node("a", "p://a", none(), json!([]));
    assert_eq!(world.used("a"), 1);
    world.pod("early", "1", "a", json!({ "status": { "phase": "Succeeded" } }));
    assert_eq!(world.used("a"), 0);
}

#[test]
fn updating_a_pod_charges_it_once_and_deleting_it_frees_its_room() {
    let world = world();
    world.node("a", "p://a", none(), json!([]));
    let ports = json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }],
        "resources": { "requests": { "cpu": "1" } } }] } });
    for _ in 0..3 {
        world.pod("web", "1", "a", ports.clone());
    }
    assert_eq!(world.used("a"), 1);
    let pods = || world.state.machine("p://a").unwrap().view.pods().len();
    assert_eq!(
        pods(),
        1,
        "its ports and volumes are taken once, so it is not in its own way"
    );
    world.gone("web");
    assert_eq!((world.used("a"), pods()), (0, 0));
}

#[test]
fn daemon_pods_are_counted_apart_and_in_total() {
    let world = world();
    world.node("a", "p://a", none(), json!([]));
    let daemon = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "d", "controller": true }] } });
    world.pod("log-1", "1", "a", daemon);
    world.pod("web", "2", "a", none());
    let view = world.state.machine("p://a").unwrap().view;
    assert_eq!(
        (view.requested().cpu().value(), view.daemon_requested().cpu().value()),
        (2, 1)
    );
}

#[test]
fn the_newest_pod_of_a_daemonset_shows_what_the_next_will_ask_for() {
    let world = world();
    let set: DaemonSet = serde_json::from_value(json!({ "metadata": { "name": "log", "namespace": "default" }, "spec": {
        "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "100m" } } }] } } } }))
    .unwrap();
    world.watches.daemon_sets.apply(Key::of(&set), "1", set);
    let asks = || world.state.facts().daemons[0].requests.cpu().milli();
    assert_eq!(asks(), 100);
    let daemon = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "d", "controller": true }] } });
    world.pod("log-1", "1", "a", daemon);
    assert_eq!(asks(), 1000);
    world.watches.daemon_sets.remove(&Key::namespaced("default", "log"));
    assert!(world.state.facts().daemons.is_empty());
}

#[test]
fn devices_that_the_kubelet_does_not_report_yet_are_believed_until_initialized() {
    let world = world();
    world.claim("c", "p://1", none(), json!([]));
    world.node("n", "p://1", ours(none()), json!([]));
    let gpus = || {
        let view = world.state.machine("p://1").unwrap().view;
        (
            view.capacity.amount("gpu").value(),
            view.allocatable.amount("gpu").value(),
        )
    };
    assert_eq!(gpus(), (2, 2));
    world.node("n", "p://1", initialized(), json!([]));
    assert_eq!(gpus(), (0, 0));
}

#[test]
fn startup_and_ephemeral_taints_are_hidden_until_initialized() {
    let world = world();
    let taints = json!([{ "key": "boot", "effect": "NoSchedule" }, { "key": "readiness.k8s.io/x", "effect": "NoSchedule" },
        { "key": "kept", "effect": "NoSchedule" }]);
    world.claim("c", "p://1", none(), json!([]));
    world.node("n", "p://1", ours(none()), taints.clone());
    assert_eq!(world.taint_keys("p://1"), ["kept"]);
    world.node("n", "p://1", initialized(), taints.clone());
    assert_eq!(world.taint_keys("p://1"), ["boot", "readiness.k8s.io/x", "kept"]);
    world.node("foreign", "p://2", none(), taints);
    assert_eq!(world.taint_keys("p://2").len(), 3);
}

#[test]
fn a_rebooting_node_hides_its_taint() {
    let world = world();
    let taints = json!([{ "key": "karpenter.sh/rebooting", "effect": "NoSchedule" }]);
    world.node("n", "p://1", initialized(), taints);
    world.claim("c", "p://1", none(), condition("Rebooting", "True"));
    assert!(world.taint_keys("p://1").is_empty());
    let rebooting = || world.state.machine("p://1").unwrap().is_rebooting();
    assert!(rebooting());
    world.claim("c", "p://1", none(), condition("Rebooting", "False"));
    assert_eq!(world.taint_keys("p://1"), ["karpenter.sh/rebooting"]);
    assert!(!rebooting());
}

#[test]
fn marking_a_node_frees_its_pools_limits_once_and_unmarking_takes_them_back() {
    let world = world();
    world.node("n", "p://1", initialized(), json!([]));
    world.claim("c", "p://1", none(), json!([]));
    assert_eq!((world.nodes_in("default"), world.pool("default").cpu().value()), (1, 4));
    world.state.mark_for_deletion(["p://1", "unknown"]);
    assert_eq!(world.nodes_in("default"), 0);
    assert!(world.state.machine("p://1").unwrap().is_marked_for_deletion());
    world.claim("c", "p://1", none(), json!([]));
    assert_eq!(world.nodes_in("default"), 0, "an update keeps the mark");
    world.state.unmark_for_deletion(["p://1"]);
    assert_eq!(world.nodes_in("default"), 1);
    world.node("other", "p://2", initialized(), json!([]));
    world.state.mark_for_deletion(["p://1"]);
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
    world.claim("c", "p://1", deleted, json!([]));
    assert_eq!(world.nodes_in("default"), 1, "it was taken off already");
    world.watches.nodes.remove(&Key::cluster("n"));
    world.watches.claims.remove(&Key::cluster("c"));
    assert_eq!((world.nodes_in("default"), world.pool("default").cpu().value()), (1, 4));
}

#[test]
fn a_node_that_changes_its_pool_is_counted_in_the_new_one() {
    let world = world();
    world.node("n", "p://1", initialized(), json!([]));
    world.node(
        "n",
        "p://1",
        ours(json!({ "karpenter.sh/nodepool": "other" })),
        json!([]),
    );
    assert_eq!((world.nodes_in("default"), world.nodes_in("other")), (0, 1));
    assert!(world.pool("default").is_empty(), "nothing is left to show");
}

#[test]
fn a_claim_that_is_deleted_or_terminating_marks_its_machine() {
    let world = world();
    let marked = || world.state.machine("p://1").unwrap().is_marked_for_deletion();
    world.claim("c", "p://1", none(), json!([]));
    assert!(!marked());
    world.claim("c", "p://1", none(), condition("InstanceTerminating", "True"));
    assert!(marked());
    world.claim(
        "c",
        "p://1",
        json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
        json!([]),
    );
    assert!(marked());
}

#[test]
fn a_nomination_lasts_its_time_and_can_be_renewed() {
    let world = world();
    world.node("n", "p://1", none(), json!([]));
    let nominated = || {
        world
            .state
            .machine("p://1")
            .unwrap()
            .is_nominated(world.manual.clock().now())
    };
    world.state.nominate(["n"]);
    world.manual.advance(Duration::from_secs(19));
    assert!(nominated());
    world.state.nominate(["n"]);
    world.manual.advance(Duration::from_secs(19));
    assert!(nominated());
    world.manual.advance(Duration::from_secs(1));
    assert!(!nominated());
}

#[test]
fn an_update_of_the_claim_keeps_pods_volumes_and_marks() {
    let world = world();
    world.node("n", "p://1", initialized(), json!([]));
    let csi: CSINode = serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": { "drivers": [
        { "name": "counted", "nodeID": "x", "allocatable": { "count": 3 } }, { "name": "unbounded", "nodeID": "x" }] } }))
    .unwrap();
    world.watches.csi_nodes.apply(Key::cluster("n"), "1", csi);
    world.pod("web", "1", "n", none());
    world.state.nominate(["n"]);
    world.claim("c", "p://1", none(), json!([]));
    let machine = world.state.machine("p://1").unwrap();
    assert_eq!(world.used("n"), 1);
    assert_eq!(machine.view.volume_limits.get("counted"), Some(&Some(3)));
    assert_eq!(machine.view.volume_limits.get("unbounded"), Some(&None));
    assert!(machine.is_nominated(world.manual.clock().now()));
}

#[test]
fn nothing_is_left_of_a_deleted_node_and_its_claim_even_with_equal_names() {
    let world = world();
    world.claim("same", "p://1", none(), json!([]));
    world.node("same", "p://1", initialized(), json!([]));
    world.watches.nodes.remove(&Key::cluster("same"));
    world.watches.claims.remove(&Key::cluster("same"));
    assert!(world.state.machines().is_empty());
    assert_eq!(world.nodes_in("default"), 0);
    assert_eq!(world.state.slots.counts("default"), Default::default());
    assert!(world.registry.encode().contains("karpenter_cluster_state_node_count 0"));
}

#[test]
fn consolidation_looks_again_when_something_changed() {
    let world = world();
    let stamp = || world.state.consolidation_state();
    world.node("n", "p://1", initialized(), json!([]));
    let before = stamp();
    world.manual.advance(Duration::from_secs(1));
    world.node(
        "n",
        "p://1",
        initialized(),
        json!([{ "key": "x", "effect": "NoSchedule" }]),
    );
    assert_eq!(stamp(), before, "a taint changes nothing");
    world.pod("web", "1", "n", none());
    assert_ne!(stamp(), before, "a new binding does");
    let bound = stamp();
    world.manual.advance(Duration::from_secs(1));
    world.pod("web", "1", "n", none());
    assert_eq!(stamp(), bound);
    world.gone("web");
    assert_ne!(stamp(), bound);
    let pool = |generation: i64, labels: Value| {
        let pool: karpenter_api::NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "default", "generation": generation, "labels": labels },
            "spec": { "template": { "spec": { "requirements": [],
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" } } } } }))
        .unwrap();
        world.watches.pools.apply(Key::of(&pool), &world.version(), pool);
    };
    pool(1, none());
    let known = stamp();
    world.manual.advance(Duration::from_secs(1));
    pool(1, json!({ "team": "a" }));
    assert_eq!(stamp(), known, "its spec is the same");
    pool(2, none());
    assert_ne!(stamp(), known);
}

#[test]
fn pods_of_a_machine_that_goes_away_are_leaving() {
    let world = world();
    world.node("n", "p://1", none(), json!([]));
    world.pod("web", "1", "n", none());
    assert!(world.state.facts().leaving.is_empty());
    world.state.mark_for_deletion(["p://1"]);
    assert_eq!(world.state.facts().leaving.len(), 1);
}

#[test]
fn a_pool_costs_what_its_launched_claims_cost() {
    let world = world();
    let types = karpenter_cloud::fake::default_types();
    world.state.cost.update_prices("default", &types);
    assert_eq!(world.state.cost.pool_cost("default"), 0.0);
    let labels = json!({ "labels": { "karpenter.sh/nodepool": "default", "node.kubernetes.io/instance-type": "fake-4x",
        "topology.kubernetes.io/zone": "test-zone-1", "karpenter.sh/capacity-type": "on-demand" } });
    world.claim("a", "p://1", labels.clone(), json!([]));
    let one = world.state.cost.pool_cost("default");
    assert!(one > 0.0);
    world.claim("b", "p://2", labels, json!([]));
    assert_eq!(world.state.cost.pool_cost("default"), 2.0 * one);
    world.watches.claims.remove(&Key::cluster("a"));
    assert_eq!(world.state.cost.pool_cost("default"), one);
}

#[test]
fn a_machine_is_empty_since_the_last_pod_that_would_have_to_move_has_left() {
    let world = world();
    let at = |second| Timestamp::from_second(second).unwrap();
    let left = |second| Some(EmptySince::Departure(at(second)));
    let tick = || world.manual.advance(Duration::from_secs(10));
    let conditions = json!([{ "type": "Initialized", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "1970-01-01T00:00:05Z" }]);
    world.node("n", "p://1", initialized(), json!([]));
    world.claim("c", "p://1", none(), conditions.clone());
    let empty_since = || world.state.empty_since("p://1");
    assert_eq!(empty_since(), Some(EmptySince::Unused(at(5))), "since it can be used");
    tick();
    world.pod("web", "1", "n", none());
    assert_eq!(empty_since(), None);
    tick();
    let leaving = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:20Z" } });
    world.pod("web", "1", "n", leaving);
    assert_eq!(empty_since(), left(20));
    let departure = |nominated_until| Departure {
        pool: "default".to_owned(),
        at: at(20),
        nominated_until,
    };
    assert_eq!(world.state.departures(at(19)), [departure(None)]);
    assert!(world.state.departures(at(20)).is_empty());
    world.state.nominate(["n"]);
    assert_eq!(world.state.departures(at(20)), [departure(Some(at(40)))]);
    tick();
    world.gone("web");
    let daemon = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": true }] } });
    world.pod("agent", "2", "n", daemon);
    world.gone("agent");
    world.claim("c", "p://1", none(), conditions);
    assert_eq!(
        empty_since(),
        left(20),
        "neither matters, and an update of the claim forgets nothing"
    );
    world.pod("done", "3", "n", none());
    world.pod("done", "3", "n", json!({ "status": { "phase": "Succeeded" } }));
    assert_eq!(empty_since(), left(30));
    world.state.mark_for_deletion(["p://1"]);
    assert!(world.state.departures(at(0)).is_empty(), "it goes already");
}

#[test]
fn a_pod_that_was_bound_while_it_was_planned_for_is_not_timed_and_a_failure_forgets_its_claim() {
    let world = world();
    let key = |name: &str| Key::namespaced("default", name);
    world.node("n", "p://1", none(), json!([]));
    world.pod("bound", "1", "n", none());
    world.state.found_place(&key("bound"), PoolRegistration::Healthy);
    assert_eq!(world.state.pod_times(&key("bound")), PodTimes::default());

    world.pod("waits", "2", "", none());
    world.claim("c", "", none(), json!([]));
    let pod = world.state.facts().pending[0].entry.pod.clone();
    world.state.assign("c", &[pod]);
    world.state.found_place(&key("waits"), PoolRegistration::Healthy);
    assert!(world.state.pod_times(&key("waits")).schedulable.is_some());
    assert_eq!(world.state.claim_of(&key("waits")).as_deref(), Some("c"));
    world.state.failed_to_schedule(&key("waits"));
    let times = world.state.pod_times(&key("waits"));
    assert_eq!((times.schedulable, times.schedulable_on_healthy_pool), (None, None));
    assert_eq!(world.state.claim_of(&key("waits")), None);
}
