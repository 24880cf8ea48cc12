//! Garbage collection, expiration, consistency, pod events and what NodePools show.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::InstancePhase;
use karpenter_cloud::fake::{FakeProvider, Machine};
use karpenter_core::context::Context;
use karpenter_core::metrics::Metrics;
use karpenter_core::nodepool::counter;
use karpenter_core::options::Options;
use karpenter_sandbox::faults::Fault;
use karpenter_sandbox::{DeleteOptions, Sandbox};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::world::{clock, install};

#[tokio::test]
async fn a_claim_whose_machine_vanished_goes_unless_its_node_is_ready() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    let machine = cluster.cloud.machines().remove(0).instance.provider_id;
    cluster.cloud.vanish(&machine);
    cluster.minutes(5).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.set_ready("Unknown").await;
    cluster.minutes(3).await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.disrupted("garbage_collected"), 1.0);
}

#[tokio::test]
async fn a_claim_goes_whose_machine_and_node_have_both_vanished() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    let machine = cluster.cloud.machines().remove(0).instance.provider_id;
    cluster.cloud.vanish(&machine);
    let name = cluster.node_name();
    let released = json!({"metadata": {"finalizers": null}});
    cluster.objects().patch::<Node>("", &name, &released).unwrap();
    cluster
        .objects()
        .delete::<Node>("", &name, &DeleteOptions::default())
        .unwrap();
    cluster.minutes(3).await;
    assert!(cluster.get_claim("a").is_none());
    assert_eq!(cluster.disrupted("garbage_collected"), 1.0);
}

#[tokio::test]
async fn a_terminating_machine_counts_as_vanished() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.set_ready("False").await;
    let mut machine = cluster.cloud.machines().remove(0);
    machine.instance.phase = InstancePhase::Terminating;
    cluster.cloud.add_machine(machine);
    cluster.minutes(3).await;
    assert_eq!(cluster.disrupted("garbage_collected"), 1.0);
}

#[tokio::test]
async fn a_machine_whose_claim_is_gone_is_terminated_and_a_foreign_one_is_not() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    let template = cluster.cloud.machines().remove(0);
    let machine = |name: &str, marked: bool| -> Machine {
        let mut machine = template.clone();
        machine.name = name.to_owned();
        machine.instance.provider_id = format!("fake:///{name}");
        machine.instance.claim = machine.instance.claim.filter(|_| marked).map(|mut mark| {
            mark.name = name.to_owned();
            mark.uid = format!("{name}-uid");
            mark
        });
        machine
    };
    let node = |name: &str, finalizers: &[&str]| -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "finalizers": finalizers, "labels": {"karpenter.test.sh/testnodeclass": "default"}},
            "spec": {"providerID": format!("fake:///{name}")},
        }))
        .unwrap()
    };
    cluster.cloud.add_machine(machine("orphan", true));
    cluster.cloud.add_machine(machine("joining", true));
    cluster.cloud.add_machine(machine("stranger", false));
    for own in [
        node("orphan", &["karpenter.sh/termination"]),
        node("joining", &[]),
        node("stranger", &[]),
    ] {
        cluster.objects().create(&own).unwrap();
    }
    cluster.minutes(15).await;
    let nodes: Vec<Node> = cluster.objects().list("");
    let nodes: Vec<String> = nodes.into_iter().filter_map(|node| node.metadata.name).collect();
    assert_eq!(
        nodes,
        [template.name.clone(), "stranger".to_owned()],
        "a Node goes with its machine, whether it had registered or not"
    );
    let left: Vec<String> = cluster
        .cloud
        .machines()
        .into_iter()
        .map(|machine| machine.name)
        .collect();
    assert_eq!(left, [template.name, "stranger".to_owned()]);
}

/// A machine whose claim is gone beside one that has its, and the Node `orphan` that it registered.
async fn orphaned() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    let mut machine = cluster.cloud.machines().remove(0);
    machine.name = "orphan".to_owned();
    machine.instance.provider_id = "fake:///orphan".to_owned();
    let mark = machine.instance.claim.as_mut().unwrap();
    mark.name = "orphan".to_owned();
    mark.uid = "orphan-uid".to_owned();
    cluster.cloud.add_machine(machine);
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "orphan", "labels": {"karpenter.test.sh/testnodeclass": "default"}},
        "spec": {"providerID": "fake:///orphan"},
    }))
    .unwrap();
    cluster.objects().create(&node).unwrap();
    cluster
}

/// Whether the Node and the machine called `orphan` are there.
fn orphan(cluster: &Cluster) -> (bool, bool) {
    let node = cluster.objects().get::<Node>("", "orphan");
    let mut machines = cluster.cloud.machines().into_iter();
    (node.is_some(), machines.any(|machine| machine.name == "orphan"))
}

#[tokio::test]
async fn an_orphan_stays_until_its_node_can_be_deleted() {
    for code in [503, 409] {
        let cluster = orphaned().await;
        let fault = Fault::fail(code).verb("delete").resource("nodes");
        cluster.sandbox.faults().inject(fault);
        cluster.minutes(15).await;
        assert_eq!(
            orphan(&cluster),
            (true, true),
            "{code}: its Node is found by nobody else"
        );
        cluster.sandbox.faults().clear();
        cluster.minutes(15).await;
        assert_eq!(orphan(&cluster), (false, false), "{code}");
    }
}

#[tokio::test]
async fn an_orphan_goes_whose_node_may_not_be_deleted() {
    let cluster = orphaned().await;
    let fault = Fault::fail(403).verb("delete").resource("nodes");
    cluster.sandbox.faults().inject(fault);
    cluster.minutes(15).await;
    assert_eq!(orphan(&cluster), (true, false));
}

#[tokio::test]
async fn a_claim_expires_exactly_when_its_time_is_up() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: 30m").await;
    cluster.pod("web", "", "").await;
    cluster.seconds(30 * 60 - 1).await;
    assert!(cluster.get_claim("a").unwrap().metadata.deletion_timestamp.is_none());
    cluster.seconds(1).await;
    assert!(cluster.get_claim("a").unwrap().metadata.deletion_timestamp.is_some());
    assert_eq!(cluster.disrupted("expired"), 1.0);
    let text = cluster.ctx.metrics.registry.encode();
    let mut lines = text.lines();
    let pods = lines
        .find(|line| line.starts_with("karpenter_pods_disruption_initiated_total{"))
        .unwrap();
    assert!(pods.contains("reason=\"expired\"") && pods.ends_with(" 1"), "{pods}");
}

#[tokio::test]
async fn a_node_smaller_than_promised_is_reported() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.minutes(11).await;
    assert_eq!(
        cluster.condition("a", "ConsistentStateFound"),
        "True/ConsistentStateFound"
    );
    let smaller = json!({"status": {"capacity": {"memory": "6Gi"}}});
    cluster
        .objects()
        .patch_status::<Node>("", &cluster.node_name(), &smaller)
        .unwrap();
    cluster.minutes(11).await;
    assert_eq!(
        cluster.condition("a", "ConsistentStateFound"),
        "False/ConsistencyCheckFailed"
    );
    assert!(
        cluster
            .events()
            .contains(&"NodeClaim/FailedConsistencyCheck".to_owned())
    );
}

fn last_pod_event(cluster: &Cluster) -> Option<String> {
    let status = cluster.get_claim("a").unwrap().status.unwrap();
    status.last_pod_event_time.map(|time| time.0.to_string())
}

#[tokio::test]
async fn pods_that_come_and_go_are_noted_on_the_claim() {
    let mut cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    assert_eq!(last_pod_event(&cluster), None);
    cluster.pod("web", "", "").await;
    assert_eq!(last_pod_event(&cluster).as_deref(), Some("2026-01-01T00:00:00Z"));
    cluster.seconds(5).await;
    cluster.pod("soon", "", "").await;
    assert_eq!(last_pod_event(&cluster).as_deref(), Some("2026-01-01T00:00:00Z"));
    cluster.seconds(55).await;
    cluster
        .pod(
            "agent",
            "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]",
            "",
        )
        .await;
    cluster.restart().await;
    assert_eq!(last_pod_event(&cluster).as_deref(), Some("2026-01-01T00:00:00Z"));
    let done = json!({"status": {"phase": "Succeeded"}});
    cluster.objects().patch_status::<Pod>("default", "web", &done).unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(last_pod_event(&cluster).as_deref(), Some("2026-01-01T00:01:00Z"));
}

/// How often the controllers have changed the status of NodeClaims since the log was cleared.
fn status_writes(cluster: &Cluster) -> usize {
    let ours = cluster.sandbox.requests().matching(|request| {
        let of = &request.attributes;
        of.agent == cluster.agent() && of.resource == "nodeclaims" && of.subresource == "status" && request.code == 200
    });
    ours.len()
}

#[tokio::test]
async fn a_pod_that_comes_is_noted_with_one_write() {
    let cluster = Cluster::start().await;
    let kept = json!({"consolidateAfter": "30s", "budgets": [{"nodes": "0"}]});
    cluster.open_pool(kept).await;
    cluster.claim("a", "").await;
    cluster.minutes(1).await;
    assert_eq!(cluster.condition("a", "Consolidatable"), "True/Consolidatable");
    cluster.sandbox.requests().clear();
    cluster.pod("web", "", "").await;
    assert!(last_pod_event(&cluster).is_some());
    assert!(cluster.get_claim("a").unwrap().condition("Consolidatable").is_none());
    assert_eq!(status_writes(&cluster), 1);
}

#[tokio::test]
async fn a_claim_that_comes_up_has_its_status_written_twice() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", "").await;
    assert!(claim.is_true("Initialized") && claim.is_true("ConsistentStateFound"));
    // That it is launched; that it is registered, initialized and consistent.
    assert_eq!(status_writes(&cluster), 2);
}

#[tokio::test]
async fn a_pool_is_ready_counted_and_hashed() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    cluster.seconds(10).await;
    let pool = cluster.pool();
    assert!(pool.is_ready(), "{:?}", pool.conditions());
    let status = pool.status.as_ref().unwrap();
    assert_eq!(status.nodes, 1);
    assert_eq!(status.resources.as_ref().unwrap().amount("cpu"), "2".parse().unwrap());
    let annotations = pool.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["karpenter.sh/nodepool-hash"], pool.static_hash());
    assert_eq!(annotations["karpenter.sh/nodepool-hash-version"], "v3");
}

#[tokio::test]
async fn a_pool_without_nodes_counts_zeros() {
    let cluster = Cluster::start().await;
    cluster.seconds(10).await;
    let status = cluster.pool().status.unwrap();
    assert_eq!(status.nodes, 0);
    assert_eq!(status.resources.unwrap().len(), 5);
}

#[tokio::test]
async fn a_pool_is_not_counted_before_everything_is_known() {
    let sandbox = Sandbox::builder().api_server_only().start();
    install(&sandbox);
    let clock = clock(&sandbox);
    let ctx = Context::new(
        sandbox.client_as("karpenter"),
        clock.clone(),
        Arc::new(Options::default()),
        Metrics::new(clock.clone()),
        Arc::new(FakeProvider::new(clock)),
    );
    sandbox
        .apply(
            "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: default}, spec: {template: {spec: {requirements: [], \
             nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}, status: {nodes: 7}}",
        )
        .unwrap();
    let unknown = Fault::fail(503).verb("list").resource("nodes").agent("karpenter");
    sandbox.faults().inject(unknown);
    let _watches = ctx.watch();
    let stop = CancellationToken::new();
    tokio::spawn(counter::controller(&ctx).run(stop.clone()));
    let nodes = || {
        sandbox
            .objects()
            .get::<NodePool>("", "default")
            .unwrap()
            .status
            .unwrap()
            .nodes
    };
    sandbox.run_for(Duration::from_secs(60)).await;
    assert_eq!(nodes(), 7, "as the process before left it");
    sandbox.faults().clear();
    sandbox.run_for(Duration::from_secs(60)).await;
    assert_eq!(nodes(), 0);
    stop.cancel();
}

#[tokio::test]
async fn the_hash_follows_the_template_and_nothing_else() {
    let cluster = Cluster::start().await;
    let hash = || cluster.pool().metadata.annotations.unwrap()["karpenter.sh/nodepool-hash"].clone();
    let before = hash();
    let patch = |patch: serde_json::Value| {
        cluster.objects().patch::<NodePool>("", "default", &patch).unwrap();
    };
    patch(json!({"spec": {"weight": 7, "limits": {"cpu": "10"}, "disruption": {"budgets": [{"nodes": "3"}]}}}));
    cluster.sandbox.settle().await;
    assert_eq!(hash(), before);
    patch(json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}}));
    cluster.sandbox.settle().await;
    assert_ne!(hash(), before);
}

#[tokio::test]
async fn a_new_kind_of_hash_drifts_nobody() {
    const HASH: &str = "karpenter.sh/nodepool-hash";
    const VERSION: &str = "karpenter.sh/nodepool-hash-version";
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    let old = json!({"metadata": {"annotations": {HASH: "1", VERSION: "v2"}}});
    cluster.objects().patch::<NodeClaim>("", "a", &old).unwrap();
    cluster.objects().patch::<NodePool>("", "default", &old).unwrap();
    cluster.sandbox.settle().await;
    let hash = cluster.pool().static_hash();
    let annotations = cluster.get_claim("a").unwrap().metadata.annotations.unwrap();
    assert_eq!(
        (annotations[HASH].as_str(), annotations[VERSION].as_str()),
        (hash.as_str(), "v3")
    );
}

#[tokio::test]
async fn a_pool_follows_its_class() {
    let cluster = Cluster::start().await;
    let ready = || {
        let pool = cluster.pool();
        let found = pool.condition("NodeClassReady").unwrap();
        format!("{}/{}", found.status, found.reason)
    };
    assert_eq!(ready(), "True/NodeClassReady");
    cluster
        .apply(
            "{apiVersion: karpenter.test.sh/v1alpha1, kind: TestNodeClass, metadata: {name: default}, status: {conditions: \
             [{type: Ready, status: 'False', reason: NoImage, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}]}}",
        )
        .await;
    assert_eq!(ready(), "False/NoImage");
    let wrong = json!({"spec": {"template": {"spec": {"nodeClassRef": {"name": "missing"}}}}});
    cluster.objects().patch::<NodePool>("", "default", &wrong).unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(ready(), "False/NodeClassNotFound");
    assert!(!cluster.pool().is_ready());
}

#[tokio::test]
async fn a_pool_that_makes_no_sense_says_so() {
    let cluster = Cluster::start().await;
    let restricted = json!({"spec": {"template": {"metadata": {"labels": {"karpenter.test.sh/x": "y"}}}}});
    cluster.objects().patch::<NodePool>("", "default", &restricted).unwrap();
    cluster.sandbox.settle().await;
    let pool = cluster.pool();
    let found = pool.condition("ValidationSucceeded").unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("False", "NodePoolValidationFailed")
    );
    assert!(found.message.contains("karpenter.test.sh/x"), "{}", found.message);
}

#[tokio::test]
async fn objects_from_before_get_the_label_of_their_class() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    let key = "karpenter.test.sh/testnodeclass";
    let without = json!({"metadata": {"labels": {key: null}}});
    cluster.objects().patch::<NodeClaim>("", "a", &without).unwrap();
    cluster
        .objects()
        .patch::<Node>("", &cluster.node_name(), &without)
        .unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(cluster.get_claim("a").unwrap().metadata.labels.unwrap()[key], "default");
    assert_eq!(cluster.node().metadata.labels.unwrap()[key], "default");
}

/// The lines of the metrics page that name a metric and hold all of the texts.
fn series(cluster: &Cluster, metric: &str, texts: &[&str]) -> Vec<String> {
    let page = cluster.ctx.metrics.registry.encode();
    let is_wanted =
        |line: &&str| line.starts_with(&format!("{metric}{{")) && texts.iter().all(|text| line.contains(text));
    page.lines().filter(is_wanted).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_node_shows_what_it_has_until_it_is_gone() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    cluster.pod("web", "", "").await;
    cluster.seconds(6).await;
    let cpu = series(
        &cluster,
        "karpenter_nodes_allocatable",
        &["resource_type=\"cpu\"", "nodepool=\"default\""],
    );
    assert_eq!(cpu.len(), 1, "{cpu:?}");
    let pods = series(
        &cluster,
        "karpenter_nodes_total_pod_requests",
        &["resource_type=\"pods\""],
    );
    assert!(pods[0].ends_with(" 1"), "{pods:?}");
    let lifetime = series(&cluster, "karpenter_nodes_current_lifetime_seconds", &[]);
    assert!(lifetime[0].ends_with(" 6"), "{lifetime:?}");
    cluster.finish("web").await;
    cluster.delete_claim("a").await;
    cluster.seconds(30).await;
    assert!(series(&cluster, "karpenter_nodes_allocatable", &[]).is_empty());
    assert!(series(&cluster, "karpenter_nodes_current_lifetime_seconds", &[]).is_empty());
}

#[tokio::test]
async fn conditions_are_counted_timed_and_told() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "").await;
    cluster.seconds(20).await;
    let of = |metric: &str, status: &str| {
        series(
            &cluster,
            metric,
            &["name=\"a\"", "type=\"Initialized\"", &format!("status=\"{status}\"")],
        )
    };
    assert_eq!(of("operator_nodeclaim_status_condition_count", "True").len(), 1);
    assert_eq!(of("operator_nodeclaim_status_condition_count", "Unknown").len(), 0);
    let since = of("operator_nodeclaim_status_condition_current_status_seconds", "True");
    assert!(since[0].ends_with(" 20"), "{since:?}");
    let mut conditions = serde_json::to_value(cluster.get_claim("a").unwrap().status.unwrap().conditions).unwrap();
    for condition in conditions.as_array_mut().unwrap() {
        if condition["type"] == "Initialized" {
            condition["reason"] = json!("Other");
        }
    }
    let status = json!({"status": {"conditions": conditions}});
    cluster.objects().patch_status::<NodeClaim>("", "a", &status).unwrap();
    cluster.sandbox.settle().await;
    let counted = of("operator_nodeclaim_status_condition_count", "True");
    assert_eq!(counted.len(), 1, "the series of the old reason is gone: {counted:?}");
    assert!(counted[0].contains("reason=\"Other\""), "{counted:?}");
    let left = "operator_nodeclaim_status_condition_transition_seconds_count";
    let texts = ["type=\"Initialized\"", "status=\"Unknown\"", "to_status=\"True\""];
    assert_eq!(series(&cluster, left, &texts).len(), 1);
    assert_eq!(of("operator_status_condition_count", "True").len(), 1);
    let transitions = "operator_nodeclaim_status_condition_transitions_total";
    assert_eq!(
        series(&cluster, transitions, &["type=\"Initialized\"", "status=\"True\""]).len(),
        1
    );
    cluster.delete_claim("a").await;
    cluster.seconds(30).await;
    assert!(series(&cluster, "operator_nodeclaim_status_condition_count", &["name=\"a\""]).is_empty());
    assert!(cluster.events().contains(&"NodeClaim/Finalized".to_owned()));
}

#[tokio::test]
async fn a_pod_that_was_pending_is_measured_until_it_is_ready() {
    let cluster = Cluster::start().await;
    cluster
        .apply(
            "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: default}, \
             spec: {containers: [{name: c, image: i}]}, status: {phase: Pending}}",
        )
        .await;
    cluster.seconds(15).await;
    let unstarted = series(&cluster, "karpenter_pods_unstarted_time_seconds", &["name=\"web\""]);
    assert!(unstarted[0].ends_with(" 15"), "{unstarted:?}");
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:15Z"});
    let running = json!({"status": {"phase": "Running", "conditions": [ready]}});
    cluster
        .objects()
        .patch_status::<Pod>("default", "web", &running)
        .unwrap();
    cluster.sandbox.settle().await;
    assert!(series(&cluster, "karpenter_pods_unstarted_time_seconds", &["name=\"web\""]).is_empty());
    assert_eq!(cluster.metric("karpenter_pods_startup_duration_seconds_count"), 1.0);
    assert_eq!(
        series(
            &cluster,
            "karpenter_pods_state",
            &["phase=\"Running\"", "ready=\"true\""]
        )
        .len(),
        1
    );
    cluster.finish("web").await;
    assert!(series(&cluster, "karpenter_pods_state", &[]).is_empty());
}
