//! Pods that the scheduler has not come to yet are planned for with those of their workload that it refused.

use k8s_openapi::api::core::v1::Pod;
use karpenter_core::provisioning;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::World;

async fn provisioner() -> World {
    let world = World::start(|ctx| provisioning::controllers(ctx).0).await;
    world.pool("default", json!({}));
    world
}

/// A pod of the ReplicaSet `set`.
fn of(set: &str) -> Value {
    json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set, "controller": true }] } })
}

/// How many pods NodeClaims were created for.
fn planned(world: &World) -> i64 {
    let pods =
        |claim: &karpenter_api::NodeClaim| claim.spec.resources.requests.clone().unwrap_or_default().amount("pods");
    world.claims().iter().map(|claim| pods(claim).value()).sum()
}

/// Ten pods of a ReplicaSet, of which the scheduler has refused one.
async fn one_of_ten_refused(world: &World) {
    for number in 0..10 {
        world.new_pod(&format!("web-{number}"), "1", of("web"));
    }
    world.refuse("web-3");
}

#[tokio::test]
async fn one_refusal_is_enough_for_all_pods_of_a_workload() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    world.pass(1).await;
    assert_eq!(planned(&world), 10);
}

#[tokio::test]
async fn the_time_to_a_decision_is_taken_of_every_pod_that_was_decided_on() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    world.pass(1).await;
    let metrics = world.ctx.metrics.registry.encode();
    assert!(metrics.contains("karpenter_pods_scheduling_decision_duration_seconds_count 10"));
}

#[tokio::test]
async fn refusals_that_were_expected_buy_nothing_more() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    world.pass(1).await;
    let claims = world.claims().len();
    for number in 0..10 {
        world.refuse(&format!("web-{number}"));
        world.pass(2).await;
    }
    assert_eq!((world.claims().len(), planned(&world)), (claims, 10));
}

#[tokio::test]
async fn expected_refusals_do_not_hold_the_window_open() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    for number in 4..7 {
        world.sandbox.run_for(std::time::Duration::from_millis(400)).await;
        world.refuse(&format!("web-{number}"));
    }
    assert_eq!(planned(&world), 10, "a second after the first refusal");
}

#[tokio::test]
async fn a_pod_that_comes_later_holds_the_window_open() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    world.sandbox.run_for(std::time::Duration::from_millis(700)).await;
    world.new_pod("web-10", "1", of("web"));
    world.sandbox.run_for(std::time::Duration::from_millis(700)).await;
    assert_eq!(planned(&world), 0);
    world.pass(1).await;
    assert_eq!(planned(&world), 11);
}

#[tokio::test]
async fn pods_that_nobody_refused_are_left_to_the_scheduler() {
    let world = provisioner().await;
    for number in 0..10 {
        world.new_pod(&format!("web-{number}"), "1", of("web"));
    }
    world.new_pod("single", "1", json!({}));
    world.pass(30).await;
    assert_eq!(planned(&world), 0);
}

#[tokio::test]
async fn pods_that_differ_from_the_refused_one_are_left_to_the_scheduler() {
    let world = provisioner().await;
    world.pending_pod("web-0", "1", of("web"));
    world.new_pod("other-workload", "1", of("other"));
    world.new_pod("smaller", "500m", of("web"));
    let mut labelled = of("web");
    labelled["metadata"]["labels"] = json!({ "pod-index": "1" });
    world.new_pod("other-labels", "1", labelled);
    let mut pinned = of("web");
    pinned["spec"] = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "test-zone-1" } });
    world.new_pod("other-constraints", "1", pinned);
    let mut stateful = of("web");
    stateful["spec"] = json!({ "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }] });
    world.new_pod("own-volume", "1", stateful);
    world.pass(30).await;
    assert_eq!(planned(&world), 1);
}

#[tokio::test]
async fn a_gated_pod_is_not_expected_to_need_a_node() {
    let world = provisioner().await;
    world.pending_pod("web-0", "1", of("web"));
    world.new_pod("web-1", "1", of("web"));
    let gated = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] } });
    world
        .sandbox
        .objects()
        .patch_status::<Pod>("default", "web-1", &gated)
        .unwrap();
    world.pass(30).await;
    assert_eq!(planned(&world), 1);
}

#[tokio::test]
async fn where_one_preempts_others_the_scheduler_is_awaited() {
    let world = provisioner().await;
    one_of_ten_refused(&world).await;
    let nominated = json!({ "status": { "nominatedNodeName": "node" } });
    world
        .sandbox
        .objects()
        .patch_status::<Pod>("default", "web-5", &nominated)
        .unwrap();
    world.pass(30).await;
    assert_eq!(planned(&world), 1);
}

#[tokio::test]
async fn a_pod_whose_place_was_taken_gets_another_at_once() {
    let world = provisioner().await;
    let only = json!({ "template": { "spec": { "requirements": [
        { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-2x"] }] } } });
    world.pool("default", only);
    world.pending_pod("web", "1500m", json!({}));
    world.pass(1).await;
    let name = world.claims()[0].name_any();
    world.launch(&name, 2, "test-zone-1");
    let labels = json!({ "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
        "node.kubernetes.io/instance-type": "fake-2x" });
    world.node("node-0", &format!("fake://{name}"), 2, labels);
    world.new_pod("faster", "1500m", json!({}));
    world.bind("faster", "node-0").await;
    world.refuse("web");
    // Sooner than patience with a ready node ends.
    world.pass(12).await;
    assert_eq!(world.claims().len(), 2);
}
