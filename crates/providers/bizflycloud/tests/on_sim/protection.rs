//! Annotations of v1alpha5 that protect pods and nodes, with core's controllers at work.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, NodePool, labels::INSTANCE_TYPE};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, cluster, cluster_with, nodes, running},
    environment::{World, pool},
};

const DO_NOT_EVICT: &str = "karpenter.sh/do-not-evict";
const DO_NOT_CONSOLIDATE: &str = "karpenter.sh/do-not-consolidate";

/// A Provisioner whose nodes are small or large, and go as soon as cheaper ones would do.
fn provisioner() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "default"},
        "spec": {
            "consolidation": {"enabled": true},
            "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": ["4c_8g", "16c_32g"]}],
            "providerRef": {"apiVersion": "bizflycloud.karpenter.sh/v1alpha1", "kind": "ProviderConfig", "name": "default"},
        },
    })
}

fn annotate(world: &World, pod: &str, value: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {DO_NOT_EVICT: value}}});
    world
        .sandbox
        .objects()
        .patch::<Pod>("default", pod, &patch)
        .expect("accepted");
}

/// Ten pods on one large node, of which one is left: the one with v1alpha5's annotation.
async fn nearly_empty_node(cluster: &Cluster) -> String {
    let world = &cluster.world;
    cluster.pod("keep", json!({}));
    annotate(world, "keep", Some("true"));
    let others: Vec<String> = (0..9).map(|number| format!("goes-{number}")).collect();
    for name in &others {
        cluster.pod(name, json!({}));
    }
    cluster.until("10 pods run", |world| running(world) == 10).await;
    assert_eq!(nodes(world).len(), 1, "10 CPUs fit on one large node");
    for name in &others {
        let objects = world.sandbox.objects();
        objects
            .delete::<Pod>("default", name, &Default::default())
            .expect("deleted");
    }
    let live = world.live();
    assert_eq!(live.len(), 1);
    live[0].clone()
}

async fn is_left_alone(world: &World, server: &str) {
    world.clock.sleep(Duration::from_secs(300)).await;
    assert_eq!(world.live(), [server]);
    assert_eq!(running(world), 1, "the pod is where it was");
}

#[tokio::test]
async fn a_pod_and_a_node_with_old_annotations_are_left_alone_while_provisioners_are_carried_out() {
    let cluster = cluster(None).await;
    let world = &cluster.world;
    world.apply(&provisioner());
    let server = nearly_empty_node(&cluster).await;
    is_left_alone(world, &server).await;
    // A node's own annotation protects it where the pod's does not any more.
    let protect = |value: Option<&str>| {
        let patch = json!({"metadata": {"annotations": {DO_NOT_CONSOLIDATE: value}}});
        let name = nodes(world)[0].metadata.name.clone().expect("a name");
        world
            .sandbox
            .objects()
            .patch::<Node>("", &name, &patch)
            .expect("accepted");
    };
    protect(Some("true"));
    annotate(world, "keep", None);
    is_left_alone(world, &server).await;
    protect(None);
    cluster
        .until("a small node, or none, takes the place of the large one", |world| {
            !world.live().contains(&server)
        })
        .await;
}

#[tokio::test]
async fn a_node_is_not_drained_of_a_pod_with_the_old_annotation() {
    let cluster = cluster(None).await;
    let world = &cluster.world;
    world.apply(&provisioner());
    cluster.pod("keep", json!({}));
    annotate(world, "keep", Some("true"));
    cluster.until("the pod runs", |world| running(world) == 1).await;
    let live = world.live();
    let objects = world.sandbox.objects();
    let claim = objects.list::<NodeClaim>("")[0].metadata.name.clone().expect("a name");
    objects
        .delete::<NodeClaim>("", &claim, &Default::default())
        .expect("accepted");
    is_left_alone(world, &live[0]).await;
    annotate(world, "keep", Some("false"));
    cluster
        .until("the node is drained and goes", |world| !world.live().contains(&live[0]))
        .await;
}

#[tokio::test]
async fn without_provisioners_old_annotations_mean_nothing() {
    let cluster = cluster_with(Some(json!({})), |settings| settings).await;
    let world = &cluster.world;
    let mut own: NodePool = pool(json!([
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.4c_8g", "nix.16c_32g"]},
    ]));
    let soon = json!({"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"});
    own.spec.disruption = serde_json::from_value(soon).expect("a policy");
    world.apply(&serde_json::to_value(&own).expect("plain data"));
    let server = nearly_empty_node(&cluster).await;
    cluster
        .until("the node is consolidated all the same", |world| {
            !world.live().contains(&server)
        })
        .await;
}
