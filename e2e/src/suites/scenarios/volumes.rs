//! Volumes that tie pods to zones: bound ones, and those that wait for their first consumer.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::Api;

use super::SOON;
use crate::suites::manifests::{Pool, deployment};
use crate::world::World;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

async fn zones_of_nodes(world: &World) -> Result<Vec<String>> {
    let label = |node: &std::sync::Arc<k8s_openapi::api::core::v1::Node>| {
        node.labels()
            .get("topology.kubernetes.io/zone")
            .cloned()
            .unwrap_or_default()
    };
    Ok(world.now().await?.nodes.iter().map(label).collect())
}

/// Not the zone that a pod without wishes would come to.
fn last_zone(world: &World) -> Result<&str> {
    let zone = world.source.zones.last();
    zone.map(String::as_str).context("the provider has no zone")
}

fn volume(name: &str, class: &str, zone: &str, claim: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: '{class}'
  claimRef: {{namespace: default, name: {claim}}}
  csi: {{driver: csi.example.com, volumeHandle: {name}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{key: topology.kubernetes.io/zone, operator: In, values: [{zone}]}}]
"
    )
}

fn claim(name: &str, class: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: default}}
spec:
  storageClassName: '{class}'
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 1Gi}}}}{more}
"
    )
}

fn with_claim(name: &str) -> String {
    format!("\n      volumes: [{{name: data, persistentVolumeClaim: {{claimName: {name}}}}}]")
}

pub(super) async fn bound(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    let zone = last_zone(world)?;
    world.apply(&volume("data", "", zone, "data")).await?;
    world.apply(&claim("data", "", "\n  volumeName: data")).await?;
    world
        .apply(&deployment("db", 1, "1", "1Gi", &with_claim("data")))
        .await?;
    world.until("the pod runs", SOON, |view| view.all_run(1)).await?;
    let zones = zones_of_nodes(world).await?;
    ensure!(zones == [zone], "{zones:?}");
    Ok(())
}

pub(super) async fn waiting(world: &World) -> Result<()> {
    // The node is empty until its volume is there, which may take longer than an empty node is usually left.
    let kept = "{consolidationPolicy: WhenEmpty, consolidateAfter: 10m}";
    world.apply_pool(&Pool::new("default").disruption(kept)).await?;
    let zone = last_zone(world)?;
    world
        .apply(&format!(
            "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: zonal}}
provisioner: csi.example.com
volumeBindingMode: WaitForFirstConsumer
allowedTopologies:
- matchLabelExpressions: [{{key: topology.kubernetes.io/zone, values: [{zone}]}}]
"
        ))
        .await?;
    world.apply(&claim("data", "zonal", "")).await?;
    world
        .apply(&deployment("db", 1, "1", "1Gi", &with_claim("data")))
        .await?;
    // Some clouds' nodes have no zone before they are registered.
    world
        .until("a node comes up", SOON, |view| {
            !view.nodes.is_empty() && view.all_initialized()
        })
        .await?;
    let zones = zones_of_nodes(world).await?;
    ensure!(zones == [zone], "{zones:?}");
    // There is no storage driver here: play its part once the scheduler has chosen the node.
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(world.client.clone());
    let chosen = kube::runtime::wait::await_condition(claims, "data", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| claim.annotations().contains_key(SELECTED_NODE))
    });
    tokio::time::timeout(SOON, chosen)
        .await
        .context("the scheduler chose no node")??;
    world.apply(&volume("data", "zonal", zone, "data")).await?;
    world.until("the pod runs", SOON, |view| view.all_run(1)).await?;
    let view = world.now().await?;
    ensure!(view.nodes.len() == 1, "{}", view.summary());
    Ok(())
}
