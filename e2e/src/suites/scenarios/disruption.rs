//! Disruption by choice: drift, budgets, pods that object, consolidation, repair.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::NodeClaim;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::{LATER, NEXT_LOOK, SOON};
use crate::suites::manifests::{Pool, deployment};
use crate::world::{View, World};

/// Pods that never share a node, so that there are as many nodes as pods.
pub(super) const APART: &str = "
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}";

fn claim_names(view: &View) -> Vec<String> {
    view.claims.iter().map(|claim| claim.name_any()).collect()
}

fn has_condition(claim: &NodeClaim, kind: &str) -> bool {
    claim.status.as_ref().is_some_and(|status| {
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == kind && condition.status.to_string() == "True")
    })
}

/// None of the claims is one of these any more, and `pods` pods run.
fn replaced(view: &View, old: &[String], pods: usize) -> bool {
    view.all_run(pods) && claim_names(view).iter().all(|name| !old.contains(name))
}

pub(super) async fn drift(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 3, "1", "1Gi", APART)).await?;
    world.until("3 pods run", SOON, |view| view.all_run(3)).await?;
    let old = claim_names(&world.now().await?);
    world.apply_pool(&Pool::new("default").label("team", "blue")).await?;
    world
        .until("all claims are replaced by labelled ones", LATER, |view| {
            let is_labelled = |node: &Arc<Node>| node.labels().get("team").is_some_and(|team| team == "blue");
            replaced(view, &old, 3) && view.nodes.len() == 3 && view.nodes.iter().all(is_labelled)
        })
        .await
}

pub(super) async fn budgets(world: &World) -> Result<()> {
    let frozen = "{consolidationPolicy: WhenEmpty, consolidateAfter: 5s, budgets: [{nodes: \"0\"}]}";
    let one = "{consolidationPolicy: WhenEmpty, consolidateAfter: 5s, budgets: [{nodes: \"1\"}]}";
    world.apply_pool(&Pool::new("default").disruption(frozen)).await?;
    world.apply(&deployment("web", 4, "1", "1Gi", APART)).await?;
    world.until("4 pods run", SOON, |view| view.all_run(4)).await?;
    let old = claim_names(&world.now().await?);
    world
        .apply_pool(&Pool::new("default").disruption(frozen).label("team", "blue"))
        .await?;
    world
        .until("the claims are marked as drifted", SOON, |view| {
            view.claims.len() == 4 && view.claims.iter().all(|claim| has_condition(claim, "Drifted"))
        })
        .await?;
    world
        .throughout("a budget of none keeps them all", Duration::from_secs(12), |view| {
            claim_names(view).iter().filter(|name| old.contains(name)).count() == 4
                && view
                    .claims
                    .iter()
                    .all(|claim| claim.metadata.deletion_timestamp.is_none())
        })
        .await?;
    world
        .apply_pool(&Pool::new("default").disruption(one).label("team", "blue"))
        .await?;
    let replacing = async {
        let mut view = world.now().await?;
        while !replaced(&view, &old, 4) {
            // Claims are read after nodes: one that is drained by now may have been so a moment ago.
            let now = world.now().await?;
            let going = view.nodes.iter().filter(|node| is_disrupted(node));
            let draining: Vec<String> = going
                .map(|node| node.name_any())
                .filter(|name| now.claims.iter().any(|claim| is_draining(claim, name)))
                .collect();
            ensure!(
                draining.len() <= 1,
                "{draining:?} are disrupted at once although the budget is 1: {}",
                now.summary()
            );
            view = now;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    };
    tokio::time::timeout(LATER, replacing)
        .await
        .with_context(|| format!("not all claims are replaced: {}", world.view().summary()))?
}

/// Whether the claim of a node that is to go still counts against budgets: once its machine is told to end, it no longer does.
fn is_draining(claim: &NodeClaim, node: &str) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.node_name.as_deref() == Some(node))
        && !has_condition(claim, "InstanceTerminating")
}

fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    node.metadata.deletion_timestamp.is_some()
        || taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == "karpenter.sh/disrupted"))
}

pub(super) async fn do_not_disrupt(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 1, "1", "1Gi", "")).await?;
    world.until("a pod runs", SOON, |view| view.all_run(1)).await?;
    let view = world.now().await?;
    let old = claim_names(&view);
    let pod = view.pods.first().context("no pod")?.name_any();
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let annotate = |value: serde_json::Value| {
        let pods = pods.clone();
        let pod = pod.clone();
        async move {
            let patch = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": value}}});
            pods.patch(&pod, &PatchParams::default(), &Patch::Merge(&patch)).await
        }
    };
    annotate(json!("true")).await?;
    world.apply_pool(&Pool::new("default").label("team", "blue")).await?;
    world
        .until("the claim is marked as drifted", SOON, |view| {
            claim_names(view) == old && view.claims.iter().all(|claim| has_condition(claim, "Drifted"))
        })
        .await?;
    world
        .throughout("the pod keeps its node", Duration::from_secs(12), |view| {
            claim_names(view) == old && view.nodes.iter().all(|node| !is_disrupted(node))
        })
        .await?;
    annotate(serde_json::Value::Null).await?;
    world
        .until("the claim is replaced once the pod allows it", LATER, |view| {
            replaced(view, &old, 1)
        })
        .await
}

pub(super) async fn consolidation(world: &World) -> Result<()> {
    let policy = "{consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 3s, budgets: [{nodes: \"100%\"}]}";
    world.apply_pool(&Pool::new("default").disruption(policy)).await?;
    world.apply(&deployment("web", 40, "1", "1Gi", "")).await?;
    world.until("40 pods run", SOON, |view| view.all_run(40)).await?;
    let before = world.view().cpus();
    world.scale("web", 4).await?;
    world
        .until("4 pods run on one machine", LATER, |view| {
            view.all_run(4) && view.nodes.len() == 1 && view.is_settled()
        })
        .await
        .with_context(|| format!("it began with {before} cpus"))
}

pub(super) async fn repair(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    world.apply(&deployment("web", 6, "1", "1Gi", APART)).await?;
    world.until("6 pods run", SOON, |view| view.all_run(6)).await?;
    let broken = world.now().await?.nodes.first().context("no node")?.clone();
    let nodes: Api<Node> = Api::all(world.client.clone());
    let sick = json!({"status": {"conditions": [{
        "type": "KWOKUnhealthy", "status": "True", "reason": "Tested", "message": "the test says so",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }]}});
    nodes
        .patch_status(&broken.name_any(), &PatchParams::default(), &Patch::Strategic(&sick))
        .await?;
    world
        .until("the sick node is replaced", NEXT_LOOK, |view| {
            view.all_run(6)
                && view.nodes.len() == 6
                && view.nodes.iter().all(|node| node.metadata.uid != broken.metadata.uid)
        })
        .await
}
