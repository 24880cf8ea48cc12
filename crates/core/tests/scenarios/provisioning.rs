//! From pending pods to NodeClaims.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::{NodeClaim, NodePool, Requirement};
use karpenter_cloud::fake::Method;
use karpenter_core::provisioning;
use karpenter_sandbox::faults::Fault;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::{World, vanish};

async fn provisioner() -> World {
    World::start(|ctx| provisioning::controllers(ctx).0).await
}

fn none() -> Value {
    json!({})
}

/// Values of a requirement of the claim.
fn values(claim: &NodeClaim, key: &str) -> Vec<String> {
    let found = claim
        .spec
        .requirements
        .iter()
        .find(|requirement| requirement.key == key);
    found.map(|requirement| requirement.values.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_pending_pod_gets_a_nodeclaim_after_the_batching_window() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("web", "1500m", none());
    world.pass(0).await;
    assert!(world.claims().is_empty(), "the window is still open");
    world.pass(1).await;
    let [claim] = world.claims().try_into().unwrap();
    assert!(claim.name_any().starts_with("default-"));
    assert_eq!(claim.labels()["karpenter.sh/nodepool"], "default");
    assert_eq!(claim.labels()["karpenter.test.sh/testnodeclass"], "default");
    assert_eq!(claim.annotations()["karpenter.sh/nodepool-hash-version"], "v3");
    assert_eq!(claim.finalizers(), ["karpenter.sh/termination"]);
    assert_eq!(
        values(&claim, "node.kubernetes.io/instance-type"),
        ["fake-16x", "fake-2x", "fake-32x", "fake-4x", "fake-8x"]
    );
    assert_eq!(values(&claim, "karpenter.sh/capacity-type"), ["on-demand", "spot"]);
    let requests = claim.spec.resources.requests.clone().unwrap();
    assert_eq!(
        (requests.cpu(), requests.amount("pods")),
        ("1500m".parse().unwrap(), "1".parse().unwrap())
    );
    let owner = &claim.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str(), owner.block_owner_deletion),
        ("NodePool", "default", Some(true))
    );
    let expect = format!("Nominated: Pod should schedule on: nodeclaim/{}", claim.name_any());
    assert_eq!(world.events("web"), [expect]);
    assert!(world.ctx.metrics.registry.encode().contains(
        r#"karpenter_nodeclaims_created_total{min_values_relaxed="false",nodepool="default",reason="provisioned"} 1"#
    ));
}

#[tokio::test]
async fn a_pod_that_waits_for_a_claim_is_not_bought_for_again() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("web", "1", none());
    world.pass(60).await;
    assert_eq!(world.claims().len(), 1, "unlaunched");
    let name = world.claims()[0].name_any();
    world.launch(&name, 2, "test-zone-1");
    world.pass(60).await;
    assert_eq!(world.claims().len(), 1, "launched");
}

#[tokio::test]
async fn a_claim_that_dies_is_replaced() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("web", "1", none());
    world.pass(1).await;
    let name = world.claims()[0].name_any();
    vanish(&world.sandbox.objects(), &name);
    world.pass(2).await;
    let [claim] = world.claims().try_into().unwrap();
    assert_ne!(claim.name_any(), name);
}

#[tokio::test]
async fn one_claim_that_does_not_launch_does_not_stall_the_others() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("first", "1", none());
    world.pass(1).await;
    world.pending_pod("second", "30", none());
    world.pass(2).await;
    assert_eq!(world.claims().len(), 2);
}

#[tokio::test]
async fn certain_room_on_an_unlaunched_claim_is_used_before_another_is_bought() {
    let world = provisioner().await;
    let only = json!({ "template": { "spec": { "requirements": [
        { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-8x"] }] } } });
    world.pool("default", only);
    world.pending_pod("first", "1", none());
    world.pass(1).await;
    world.pending_pod("second", "1", none());
    world.pass(2).await;
    let [claim] = world.claims().try_into().unwrap();
    assert_eq!(world.ctx.state.pods_assigned_to(&claim.name_any()).len(), 2);
}

#[tokio::test]
async fn siblings_of_a_pod_whose_zone_is_open_wait_for_the_launch() {
    let world = provisioner().await;
    world.pool("default", none());
    let spread = json!({ "spec": { "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "web" } } }] } });
    let anti = json!({ "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "topology.kubernetes.io/zone", "labelSelector": { "matchLabels": { "app": "web" } } }] } } } });
    world.pending_pod("first", "1", none());
    world.pass(1).await;
    world.pending_pod("second", "1", spread);
    world.pending_pod("third", "1", anti);
    world.pass(5).await;
    assert_eq!(world.claims().len(), 1, "the zone of the first pod is open");
    let name = world.claims()[0].name_any();
    world.launch(&name, 1, "test-zone-1");
    world.pass(15).await;
    assert!(world.claims().len() > 1, "now it is not");
}

#[tokio::test]
async fn limits_hold_across_passes_with_machines_that_are_coming_up() {
    let world = provisioner().await;
    world.pool("default", json!({ "limits": { "nodes": "2" } }));
    let apart = json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } }] } } } });
    for number in 0..5 {
        world.pending_pod(&format!("web-{number}"), "100m", apart.clone());
    }
    world.pass(30).await;
    assert_eq!(world.claims().len(), 2);
    let told = (0..5)
        .filter(|number| {
            world
                .events(&format!("web-{number}"))
                .iter()
                .any(|event| event.contains("limit of nodes"))
        })
        .count();
    assert_eq!(told, 3);
}

#[tokio::test]
async fn a_pod_that_cannot_be_placed_is_told_why() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("huge", "1000", none());
    world.pass(2).await;
    assert!(world.claims().is_empty());
    let [event] = world.events("huge").try_into().unwrap();
    assert!(
        event.starts_with("FailedScheduling: Failed to schedule pod, NodePool default: none of 6 instance types"),
        "{event}"
    );
    let metrics = world.ctx.metrics.registry.encode();
    assert!(metrics.contains(r#"karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 1"#));
    let by_zone =
        r#"karpenter_scheduler_pending_pods_by_effective_zone_count{controller="provisioner",zone="flexible"} 1"#;
    assert!(metrics.contains(by_zone));
}

#[tokio::test]
async fn an_invalid_pod_is_ignored_with_an_event_and_does_not_disturb_the_others() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod(
        "bad",
        "1",
        json!({ "spec": { "nodeSelector": { "karpenter.sh/custom": "x" } } }),
    );
    world.pending_pod(
        "volume",
        "1",
        json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "missing" } }] } }),
    );
    world.pending_pod("good", "1", none());
    world.pass(2).await;
    assert_eq!(world.claims().len(), 1);
    assert!(
        world.events("bad")[0].starts_with("FailedScheduling: "),
        "{:?}",
        world.events("bad")
    );
    assert!(
        world.events("volume")[0].contains("default/missing"),
        "{:?}",
        world.events("volume")
    );
    assert!(
        world
            .ctx
            .metrics
            .registry
            .encode()
            .contains("karpenter_scheduler_ignored_pods_count 2")
    );
}

#[tokio::test]
async fn a_pod_that_avoids_our_nodes_is_ignored_silently() {
    let world = provisioner().await;
    world.pool("default", none());
    let avoids = json!({ "spec": { "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": "DoesNotExist" }] }] } } } } });
    world.pending_pod("elsewhere", "1", avoids);
    world.pass(2).await;
    assert!(world.claims().is_empty() && world.events("elsewhere").is_empty());
}

#[tokio::test]
async fn room_on_an_existing_node_is_nominated_instead_of_bought() {
    let world = provisioner().await;
    world.pool("default", none());
    world.node(
        "spare",
        "other://spare",
        8,
        json!({ "kubernetes.io/hostname": "spare" }),
    );
    world.pending_pod("web", "1", none());
    world.pass(2).await;
    assert!(world.claims().is_empty());
    assert_eq!(world.events("web"), ["Nominated: Pod should schedule on: node/spare"]);
    let now = world.ctx.clock.now();
    assert!(world.ctx.state.machine_of_node("spare").unwrap().is_nominated(now));
}

#[tokio::test]
async fn pods_on_a_node_that_goes_away_are_bought_for_ahead() {
    let world = provisioner().await;
    world.pool("default", none());
    world.node("old", "other://old", 8, json!({ "kubernetes.io/hostname": "old" }));
    world.pending_pod("web", "1", none());
    world.pass(0).await;
    world.bind("web", "old").await;
    world.pass(2).await;
    assert!(world.claims().is_empty());
    world.ctx.state.mark_for_deletion(["other://old"]);
    world.pending_pod("other", "100m", none());
    world.pass(2).await;
    let [claim] = world.claims().try_into().unwrap();
    assert_eq!(
        claim.spec.resources.requests.unwrap().amount("pods"),
        "2".parse().unwrap()
    );
}

#[tokio::test]
async fn ten_waves_within_the_window_share_nodes() {
    let world = provisioner().await;
    world.pool("default", none());
    for wave in 0..10 {
        for number in 0..8 {
            world.pending_pod(&format!("web-{wave}-{number}"), "900m", none());
        }
        world.sandbox.run_for(Duration::from_millis(300)).await;
    }
    world.pass(2).await;
    let pods: i64 = world
        .claims()
        .iter()
        .map(|claim| claim.spec.resources.requests.as_ref().unwrap().amount("pods").value())
        .sum();
    assert_eq!(pods, 80);
    assert!(world.claims().len() <= 3, "{}", world.claims().len());
}

/// How many pods the queue of the last pass still held at its end.
fn queue_depth(world: &World) -> Option<f64> {
    let text = world.ctx.metrics.registry.encode();
    let mut series = text
        .lines()
        .filter(|line| line.starts_with("karpenter_scheduler_queue_depth{controller=\"provisioner\""));
    let value = series.next()?.rsplit(' ').next()?.parse().ok();
    assert_eq!(series.next(), None, "the series of earlier passes are gone");
    value
}

#[tokio::test]
async fn what_stays_in_the_queue_is_what_found_no_place() {
    let world = provisioner().await;
    world.pool("default", none());
    world.pending_pod("web", "1", none());
    world.pass(2).await;
    assert_eq!(queue_depth(&world), Some(0.0));
    for name in ["huge", "vast"] {
        world.pending_pod(name, "1000", none());
    }
    world.pass(2).await;
    assert_eq!(queue_depth(&world), Some(2.0));
}

#[tokio::test]
async fn without_a_pool_every_pod_is_decided_on_and_none_gets_a_node() {
    let world = provisioner().await;
    world.pending_pod("web", "1", none());
    world.pass(2).await;
    assert!(world.claims().is_empty());
    let text = world.ctx.metrics.registry.encode();
    let decided = "karpenter_pods_scheduling_decision_duration_seconds_count 1";
    assert!(text.contains(decided));
    assert!(text.contains(r#"karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 1"#));
}

#[tokio::test]
async fn a_static_pool_gets_no_nodes_for_pods() {
    let world = provisioner().await;
    world.pool("default", json!({"replicas": 1}));
    world.pending_pod("web", "1", none());
    world.pass(30).await;
    assert!(world.claims().is_empty());
}

#[tokio::test]
async fn a_claim_that_is_gone_before_the_watch_showed_it_is_bought_again() {
    let world = provisioner().await;
    world.pool("default", none());
    for verb in ["watch", "list"] {
        let blind = Fault::fail(503).verb(verb).resource("nodeclaims").agent("karpenter");
        world.sandbox.faults().inject(blind);
    }
    world.sandbox.faults().drop_watches();
    world.pending_pod("web", "1", none());
    world.pass(2).await;
    let [lost] = world.claims().try_into().unwrap();
    vanish(&world.sandbox.objects(), &lost.name_any());
    world.pass(10).await;
    assert!(world.claims().is_empty(), "it may still show up");
    world.pass(20).await;
    let [again] = world.claims().try_into().unwrap();
    assert_ne!(again.name_any(), lost.name_any());
}

#[tokio::test]
async fn a_pod_goes_where_the_cloud_says_that_its_volume_can_be_attached() {
    let world = provisioner().await;
    world.pool("default", none());
    world
        .sandbox
        .apply(
            "
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-1}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: disks.test.sh, volumeHandle: disk-1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}
spec: {volumeName: pv-1, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
",
        )
        .expect("accepted");
    let asked = vec![Requirement::within("karpenter.sh/capacity-type", ["on-demand"])];
    let with_volume = json!({"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}});
    world.pending_pod("before", "15", with_volume.clone());
    world.pass(11).await;
    // Learnt after the volume was looked at for the first time.
    world
        .cloud
        .set_volume_requirements(Arc::new([("pv-1".to_owned(), asked)].into()));
    world.pending_pod("after", "15", with_volume);
    world.pass(11).await;
    let mut found: Vec<Vec<String>> = world
        .claims()
        .iter()
        .map(|claim| values(claim, "karpenter.sh/capacity-type"))
        .collect();
    found.sort();
    assert_eq!(found, [vec!["on-demand"], vec!["on-demand", "spot"]]);
}

#[tokio::test]
async fn a_claim_carries_the_hash_of_its_pool_as_it_was_planned_with() {
    const HASH: &str = "karpenter.sh/nodepool-hash";
    let world = provisioner().await;
    world.pool("default", none());
    let pool = || world.sandbox.objects().get::<NodePool>("", "default").unwrap();
    let planned = pool().static_hash();
    world.cloud.set_latency(Method::InstanceTypes, Duration::from_secs(5));
    world.pending_pod("web", "1", none());
    world.pass(3).await;
    // The pass has read the pool and waits for its instance types.
    let edited = json!({ "spec": { "template": { "metadata": { "labels": { "team": "b" } } } } });
    world
        .sandbox
        .objects()
        .patch::<NodePool>("", "default", &edited)
        .unwrap();
    world.pass(10).await;
    assert_ne!(pool().static_hash(), planned);
    let claim = world.claims().remove(0);
    assert_eq!(claim.annotations()[HASH], planned, "so that it counts as drifted");
}

#[tokio::test]
async fn a_pod_with_resource_claims_is_refused_and_the_others_are_not() {
    let world = provisioner().await;
    world.pool("default", none());
    let claims = json!({ "spec": { "resourceClaims": [{ "name": "gpu", "resourceClaimName": "gpu" }] } });
    world.pending_pod("device", "1", claims);
    world.pending_pod("web", "1", none());
    world.pass(2).await;
    let [claim] = world.claims().try_into().unwrap();
    assert_eq!(
        claim.spec.resources.requests.unwrap().amount("pods"),
        "1".parse().unwrap()
    );
    let [event] = world.events("device").try_into().unwrap();
    assert!(
        event.starts_with("FailedScheduling: ") && event.contains("resource claims (DRA)"),
        "{event}"
    );
}
