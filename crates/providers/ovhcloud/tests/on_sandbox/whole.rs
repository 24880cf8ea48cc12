//! A whole cluster: scheduler, workloads and kubelets, the simulated OVHcloud whose machines join it, the provider, and core.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_core::{context::Context, controllers, metrics::Metrics, options::Options};
use karpenter_ovhcloud::sim::{World, join_nodes};
use karpenter_sandbox::{Sandbox, Timing};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::environment::Cluster;

/// Everything, with the NodePool `default`.
pub(crate) struct Whole {
    pub(crate) cluster: Cluster,
    _tasks: JoinSet<()>,
    _stop: DropGuard,
}

pub(crate) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub(crate) const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

impl Whole {
    /// With a NodePool of these flavors (any, if none is named) whose empty nodes go after half a minute.
    pub(crate) async fn start(world: World, flavors: &[&str]) -> Self {
        Self::with(world, flavors, json!({}), Options::default()).await
    }

    /// The same with a class and options of its own.
    pub(crate) async fn with(world: World, flavors: &[&str], class: Value, options: Options) -> Self {
        let sandbox = Sandbox::builder().timing(Timing::instant()).start();
        let cluster = Cluster::on(sandbox, world, |_| (), class).await;
        let mut requirements = Vec::new();
        if !flavors.is_empty() {
            requirements.push(json!({"key": INSTANCE_TYPE, "operator": "In", "values": flavors}));
        }
        let pool = json!({"spec": {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]},
            "template": {"spec": {"expireAfter": "Never", "requirements": requirements}},
        }});
        cluster
            .sandbox
            .objects()
            .patch::<NodePool>("", "default", &pool)
            .expect("accepted");
        cluster.until_ready().await;
        let mut tasks = JoinSet::new();
        let stop = CancellationToken::new();
        tasks.spawn(join_nodes(cluster.sim.clone(), cluster.sandbox.client(), stop.clone()));
        let ctx = Context::new(
            cluster.sandbox.client_as("karpenter"),
            cluster.clock.clone(),
            Arc::new(options),
            Metrics::new(cluster.clock.clone()),
            Arc::new(cluster.provider()),
        );
        let mut watches = ctx.watch();
        ctx.synced().await;
        tasks.spawn(async move { while watches.join_next().await.is_some() {} });
        let (recorder, client) = (ctx.events.clone(), ctx.client.clone());
        let until = stop.clone();
        tasks.spawn(async move { recorder.deliver(client, until).await });
        for controller in controllers::all(&ctx) {
            tasks.spawn(controller.run(stop.clone()));
        }
        Self {
            cluster,
            _tasks: tasks,
            _stop: stop.drop_guard(),
        }
    }

    /// A Deployment of pods with these requests; `spec` is more of the pods' spec.
    pub(crate) fn deploy(&self, name: &str, replicas: u32, requests: Value, spec: Value) {
        let mut pod = json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": requests, "limits": {}}}],
        });
        for (key, value) in spec.as_object().expect("an object") {
            pod[key] = value.clone();
        }
        // Kubernetes wants extended resources in the limits as well.
        let gpus = pod["containers"][0]["resources"]["requests"]["nvidia.com/gpu"].clone();
        if !gpus.is_null() {
            pod["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": gpus});
        }
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
            },
        });
        self.cluster
            .sandbox
            .apply(&deployment.to_string())
            .expect("the Deployment is accepted");
    }

    pub(crate) fn scale(&self, name: &str, replicas: u32) {
        let patch = json!({"spec": {"replicas": replicas}});
        let objects = self.cluster.sandbox.objects();
        objects
            .patch::<Deployment>("default", name, &patch)
            .expect("it is there");
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        self.cluster.sandbox.objects().list("")
    }

    /// The one node there is.
    pub(crate) fn node(&self) -> Node {
        let mut nodes = self.nodes();
        assert_eq!(nodes.len(), 1, "one node is expected");
        nodes.remove(0)
    }

    pub(crate) fn claims(&self) -> Vec<NodeClaim> {
        self.cluster.sandbox.objects().list("")
    }

    pub(crate) fn pods(&self) -> Vec<Pod> {
        self.cluster.sandbox.objects().list("default")
    }

    /// Running pods, and the nodes that they are on.
    pub(crate) fn running(&self) -> Vec<(String, String)> {
        let pods = self.pods();
        let is_running = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.iter()
            .filter(is_running)
            .filter_map(|pod| Some((pod.name_any(), pod.spec.as_ref()?.node_name.clone()?)))
            .collect()
    }

    pub(crate) async fn until_running(&self, pods: usize) {
        let reached = self.cluster.until(|| self.running().len() == pods).await;
        assert!(reached, "{} of {pods} pods run", self.running().len());
    }

    pub(crate) async fn until_no_node(&self) {
        let gone = || self.nodes().is_empty() && self.claims().is_empty();
        assert!(self.cluster.until(gone).await, "{} nodes stay", self.nodes().len());
    }

    /// How many running pods there are by a label of their nodes.
    pub(crate) fn running_by(&self, label: &str) -> BTreeMap<String, usize> {
        let labels: BTreeMap<String, String> = self
            .nodes()
            .iter()
            .map(|node| (node.name_any(), node.labels().get(label).cloned().unwrap_or_default()))
            .collect();
        let mut counts = BTreeMap::new();
        for (_, node) in self.running() {
            let value = labels.get(&node).cloned().unwrap_or_default();
            *counts.entry(value).or_insert(0) += 1;
        }
        counts
    }

    /// Flavor, size and zones of every request for a pool.
    pub(crate) fn asked_for(&self) -> Vec<(String, u64, Value)> {
        let posts = self
            .cluster
            .sim(|sim| sim.requests_of(&http::Method::POST, "/nodepool"));
        posts
            .iter()
            .map(|post| {
                let flavor = post.body["flavorName"].as_str().unwrap_or_default().to_owned();
                let size = post.body["desiredNodes"].as_u64().unwrap_or_default();
                (flavor, size, post.body["availabilityZones"].clone())
            })
            .collect()
    }
}
