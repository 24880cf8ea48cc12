//! The tour: a workload comes, grows, shrinks, its node pool changes, a node breaks, and everything goes again.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodePool;
use karpenter_cloud::repair::{RepairAction, RepairPolicy};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::narrator::Narrator;
use super::world::{Scene, World};
use crate::error::CliError;

const PATIENCE: Duration = Duration::from_secs(300);

/// Plays every step; the first that goes wrong ends the story.
pub(crate) async fn play(world: &World, narrator: &Narrator) -> Result<(), CliError> {
    world.apply(&world.cloud.manifests)?;

    let step = narrator.begin(
        "A workload arrives",
        "12 web servers of 1 CPU and 1 GiB; no node to run them on",
    );
    world.apply(&deployment("web", 12, ""))?;
    step.end(
        world
            .until(PATIENCE, |scene| scene.running == 12 && scene.nodes > 0)
            .await,
    )?;

    let step = narrator.begin(
        "It grows, spread over zones",
        "8 API servers that must spread evenly over the zones",
    );
    world.apply(&deployment("api", 8, SPREAD))?;
    let grown = step.end(
        world
            .until(PATIENCE, |scene| {
                scene.running == 20
                    && scene.pods_by_zone.values().filter(|pods| **pods > 0).count() >= world.cloud.zones.min(3)
            })
            .await,
    )?;

    let step = narrator.begin(
        "It shrinks, and nodes follow",
        "9 of the 12 web servers are no longer needed",
    );
    scale(world, "web", 3).await?;
    step.end(
        world
            .until(PATIENCE, |scene| {
                scene.running == 11 && scene.pending == 0 && scene.cost < grown.cost * 0.95
            })
            .await,
    )?;

    let step = narrator.begin(
        "The node pool changes",
        "a new label in its template: every node drifts and is replaced, two at a time",
    );
    let old = world.scene().await?.node_names;
    label_template(world, "demo", "second-edition").await?;
    step.end(
        world
            .until(PATIENCE * 3, |scene| {
                scene.running == 11 && scene.nodes > 0 && scene.node_names.iter().all(|name| !old.contains(name))
            })
            .await,
    )?;

    if let Some(policy) = fault(world) {
        let step = narrator.begin(
            "A node breaks",
            "its provider's policy calls it unhealthy: a replacement comes, then it goes",
        );
        let broken = world.scene().await?.node_names.into_iter().next().unwrap_or_default();
        match &world.cloud.break_machine {
            Some(break_machine) => break_machine(&broken),
            None => break_node(world, &broken, &policy).await?,
        }
        step.end(
            world
                .until(PATIENCE, |scene| {
                    scene.running == 11 && scene.pending == 0 && !scene.node_names.contains(&broken)
                })
                .await,
        )?;
    }

    let step = narrator.begin(
        "Everything is deleted",
        "no workload, no pool, and in the end no machine",
    );
    delete(world).await?;
    step.end(world.until(PATIENCE, is_empty).await)?;
    Ok(())
}

/// A condition that the provider replaces nodes for. Not readiness: that is the kubelet's to say.
fn fault(world: &World) -> Option<RepairPolicy> {
    let mut policies = world.cloud.provider.repair_policies().into_iter();
    policies.find(|policy| policy.action == RepairAction::ReplaceNode && policy.condition_type != "Ready")
}

async fn break_node(world: &World, name: &str, policy: &RepairPolicy) -> Result<(), CliError> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let condition = json!({ "type": policy.condition_type, "status": policy.condition_status.as_str(), "reason": "Demo",
        "message": "somebody pulled the plug" });
    let patch = json!({ "status": { "conditions": [condition] } });
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch))
        .await
        .map(drop)
        .map_err(failed)
}

fn is_empty(scene: &Scene) -> bool {
    scene.nodes == 0 && scene.claims == 0 && scene.running == 0 && scene.pending == 0
}

const SPREAD: &str = "
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: api}}}";

fn deployment(name: &str, replicas: usize, more: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 5{more}
      containers: [{{name: main, image: demo, resources: {{requests: {{cpu: '1', memory: 1Gi}}}}}}]
"
    )
}

async fn scale(world: &World, name: &str, replicas: i32) -> Result<(), CliError> {
    let deployments: Api<Deployment> = Api::default_namespaced(world.client.clone());
    let patch = json!({ "spec": { "replicas": replicas } });
    deployments
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map(drop)
        .map_err(failed)
}

async fn label_template(world: &World, key: &str, value: &str) -> Result<(), CliError> {
    let pools: Api<NodePool> = Api::all(world.client.clone());
    let patch = json!({ "spec": { "template": { "metadata": { "labels": { key: value } } } } });
    pools
        .patch("default", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map(drop)
        .map_err(failed)
}

async fn delete(world: &World) -> Result<(), CliError> {
    let deployments: Api<Deployment> = Api::default_namespaced(world.client.clone());
    for name in ["web", "api"] {
        deployments
            .delete(name, &DeleteParams::background())
            .await
            .map_err(failed)?;
    }
    let pools: Api<NodePool> = Api::all(world.client.clone());
    pools
        .delete("default", &DeleteParams::default())
        .await
        .map(drop)
        .map_err(failed)
}

fn failed(error: kube::Error) -> CliError {
    CliError::failed(error.to_string())
}
