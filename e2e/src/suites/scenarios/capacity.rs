//! Ways to ask for capacity: mixed workloads, static pools, and manifests that were written for upstream's KWOK provider.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use karpenter_api::NodePool;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{LATER, SOON};
use crate::suites::manifests::{Pool, deployment};
use crate::world::World;

/// Pods that ask for zones, architectures, company, distance and host ports, beside a Job that ends.
pub(super) async fn mixes(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("default")).await?;
    let zone = world.source.zones.get(1).context("the provider has one zone only")?;
    let zonal = format!("\n      nodeSelector: {{topology.kubernetes.io/zone: {zone}}}");
    for (name, more) in [
        ("plain", ""),
        ("zonal", zonal.as_str()),
        (
            "costly",
            "\n      nodeSelector: {karpenter.sh/capacity-type: on-demand}",
        ),
        (
            "apart",
            "
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: apart}}}",
        ),
        (
            "together",
            "
      affinity:
        podAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: together}}}",
        ),
        (
            "wishful",
            "
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {weight: 1, preference: {matchExpressions: [{key: no.such/label, operator: Exists}]}}",
        ),
    ] {
        world.apply(&deployment(name, 4, "700m", "512Mi", more)).await?;
    }
    world.until("24 pods run", LATER, |view| view.all_run(24)).await?;
    let view = world.now().await?;
    let node_of = |pod: &k8s_openapi::api::core::v1::Pod| {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        view.nodes.iter().find(|node| Some(node.name_any()) == name).cloned()
    };
    let mut homes = std::collections::BTreeSet::new();
    let mut zones = std::collections::BTreeSet::new();
    for pod in &view.pods {
        let node = node_of(pod).context("a running pod has a node")?;
        let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
        match pod.labels().get("app").map(String::as_str) {
            Some("zonal") => ensure!(label("topology.kubernetes.io/zone") == *zone, "wrong zone"),
            Some("costly") => ensure!(
                label("karpenter.sh/capacity-type") == "on-demand",
                "wrong capacity type"
            ),
            Some("apart") => ensure!(homes.insert(node.name_any()), "two that must be apart share a node"),
            Some("together") => drop(zones.insert(label("topology.kubernetes.io/zone"))),
            _ => {}
        }
    }
    ensure!(zones.len() == 1, "those that must be together are in {zones:?}");
    Ok(())
}

pub(super) async fn static_pool(world: &World) -> Result<()> {
    world.apply_pool(&Pool::new("fixed").replicas(3)).await?;
    let of = |count: usize| {
        move |view: &crate::world::View| {
            let all = [view.claims.len(), view.nodes_of("fixed").len(), view.nodes.len()];
            all == [count; 3] && view.all_initialized()
        }
    };
    world.until("3 nodes without any pod", LATER, of(3)).await?;
    let pools: Api<NodePool> = Api::all(world.client.clone());
    for count in [5, 2] {
        let scale = json!({"spec": {"replicas": count}});
        pools
            .patch_scale("fixed", &PatchParams::default(), &Patch::Merge(&scale))
            .await?;
        world.until("as many nodes as asked for", LATER, of(count)).await?;
    }
    Ok(())
}

/// The shape of upstream's own examples: the class comes last and has no spec, values are quoted or not as people write them.
const FOR_UPSTREAM: &str = r#"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: default
spec:
  template:
    spec:
      requirements:
        - key: kubernetes.io/arch
          operator: In
          values: ["amd64"]
        - key: kubernetes.io/os
          operator: In
          values: ["linux"]
        - key: karpenter.sh/capacity-type
          operator: In
          values: ["on-demand", "spot"]
        - key: karpenter.kwok.sh/instance-family
          operator: In
          values: ["c", "m"]
        - key: karpenter.kwok.sh/instance-size
          operator: NotIn
          values: ["1x", "2x"]
        - key: karpenter.kwok.sh/instance-cpu
          operator: Gt
          values: ["3"]
        - key: karpenter.kwok.sh/instance-memory
          operator: Exists
      nodeClassRef:
        name: default
        kind: KWOKNodeClass
        group: karpenter.kwok.sh
      expireAfter: 720h # 30 * 24h = 720h
  limits:
    cpu: 1000
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 1m
---
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata:
  name: default
  annotations:
    kubernetes.io/description: "General purpose class of nodes"
"#;

/// Names that dashboards, alerts and scripts for upstream look for.
const METRICS: [&str; 7] = [
    "karpenter_nodeclaims_created_total",
    "karpenter_nodes_created_total",
    "karpenter_nodes_allocatable",
    "karpenter_pods_state",
    "karpenter_nodepools_limit",
    "karpenter_nodepools_usage",
    "karpenter_cluster_state_node_count",
];

pub(super) async fn manifests_for_upstream(world: &World) -> Result<()> {
    world.apply(FOR_UPSTREAM).await?;
    let selector = "\n      nodeSelector: {karpenter.kwok.sh/instance-family: m}";
    world.apply(&deployment("web", 5, "1", "1Gi", selector)).await?;
    // Pods run as soon as a node takes them, which may be before it is called initialized.
    world
        .until("5 pods run on initialized nodes", SOON, |view| {
            view.all_run(5) && view.all_initialized()
        })
        .await?;
    let view = world.now().await?;
    for node in &view.nodes {
        for key in [
            "karpenter.kwok.sh/instance-cpu",
            "karpenter.kwok.sh/instance-family",
            "karpenter.kwok.sh/instance-memory",
            "karpenter.kwok.sh/instance-size",
            "karpenter.sh/capacity-type",
            "karpenter.sh/initialized",
            "karpenter.sh/nodepool",
            "karpenter.sh/registered",
            "node.kubernetes.io/instance-type",
            "topology.kubernetes.io/zone",
        ] {
            ensure!(node.labels().contains_key(key), "{} lacks {key}", node.name_any());
        }
        let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        ensure!(
            provider_id.as_deref().is_some_and(|id| id.starts_with("kwok://")),
            "{provider_id:?}"
        );
    }
    for claim in &view.claims {
        let status = claim.status.as_ref().context("a claim without status")?;
        for kind in ["Launched", "Registered", "Initialized", "Ready"] {
            ensure!(
                status
                    .conditions
                    .iter()
                    .any(|condition| condition.type_ == kind && condition.status.to_string() == "True"),
                "{} is not {kind}",
                claim.name_any()
            );
        }
    }
    // Events are sent beside the work, and gauges are taken every few seconds.
    let events: Api<Event> = Api::default_namespaced(world.client.clone());
    let deadline = tokio::time::Instant::now() + SOON;
    let mut missing: Vec<&str> = METRICS.to_vec();
    loop {
        let said = events.list(&ListParams::default()).await?.items;
        let nominated = said.iter().any(|event| event.reason.as_deref() == Some("Nominated"));
        let metrics = world.metrics().await?;
        missing.retain(|name| !metrics.contains(*name));
        if nominated && missing.is_empty() {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "a pod was told its node: {nominated}; missing metrics: {missing:?}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
