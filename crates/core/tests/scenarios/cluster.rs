//! The controllers of claims, nodes and pools on a sandbox, with a fake cloud whose machines become Nodes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool, crd};
use karpenter_cloud::CloudProvider;
use karpenter_cloud::fake::{FakeProvider, Machine};
use karpenter_core::context::Context;
use karpenter_core::controllers;
use karpenter_core::metrics::Metrics;
use karpenter_core::options::Options;
use karpenter_sandbox::{DeleteOptions, Objects, Sandbox};
use serde_json::json;
use tokio::task::JoinSet;

use crate::world::clock;

/// Everything a scenario needs at hand.
pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
    pub(crate) cloud: FakeProvider,
    pub(crate) ctx: Context,
    agent: String,
    tune: fn(&mut Options),
    tasks: JoinSet<()>,
}

const NODE_CLASS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: testnodeclasses.karpenter.test.sh}
spec:
  group: karpenter.test.sh
  scope: Cluster
  names: {kind: TestNodeClass, plural: testnodeclasses, singular: testnodeclass, listKind: TestNodeClassList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

const DEFAULTS: &str = "
apiVersion: karpenter.test.sh/v1alpha1
kind: TestNodeClass
metadata: {name: default}
status: {conditions: [{type: Ready, status: 'True', reason: Ready, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  limits: {nodes: '0'}
  disruption: {consolidateAfter: Never}
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}
";

impl Cluster {
    /// A cluster with a NodePool `default`, whose machines join as Ready nodes at once. Its limit keeps provisioning from
    /// buying nodes of its own, and disruption lets idle ones be: scenarios make and end their claims by hand.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    /// Like [`Cluster::start`], with a cloud that is prepared before anything runs.
    pub(crate) async fn start_with(prepare: impl FnOnce(&FakeProvider)) -> Self {
        Self::start_tuned(prepare, |_| ()).await
    }

    /// Like [`Cluster::start_with`], with options that differ from the defaults.
    pub(crate) async fn start_tuned(prepare: impl FnOnce(&FakeProvider), tune: fn(&mut Options)) -> Self {
        let sandbox = Sandbox::builder().api_server_only().start();
        for crd in crd::all() {
            sandbox.apply(&crd.to_yaml()).unwrap();
        }
        sandbox.apply(NODE_CLASS).unwrap();
        sandbox.apply(DEFAULTS).unwrap();
        let cloud = FakeProvider::new(clock(&sandbox));
        let objects = sandbox.objects();
        cloud.on_boot(move |machine| join(&objects, machine));
        prepare(&cloud);
        let ctx = context(&sandbox, &cloud, "karpenter-0", tune);
        let mut cluster = Self {
            sandbox,
            cloud,
            ctx,
            agent: "karpenter-0".to_owned(),
            tune,
            tasks: JoinSet::new(),
        };
        cluster.run().await;
        cluster
    }

    async fn run(&mut self) {
        let mut watches = self.ctx.watch();
        self.ctx.synced().await;
        self.tasks
            .spawn(async move { while watches.join_next().await.is_some() {} });
        for controller in controllers::all(&self.ctx) {
            self.tasks
                .spawn(controller.run(tokio_util::sync::CancellationToken::new()));
        }
        self.sandbox.settle().await;
    }

    /// The user agent of the controllers that run now.
    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    /// The controllers die where they stand, and others take over with an empty memory.
    pub(crate) async fn restart(&mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        self.agent.push('\'');
        self.ctx = context(&self.sandbox, &self.cloud, &self.agent, self.tune);
        self.run().await;
    }

    pub(crate) fn objects(&self) -> Objects {
        self.sandbox.objects()
    }

    pub(crate) async fn seconds(&self, seconds: u64) {
        self.sandbox.run_for(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn minutes(&self, minutes: u64) {
        self.seconds(60 * minutes).await;
    }

    /// Applies YAML and lets the cluster settle.
    pub(crate) async fn apply(&self, yaml: &str) {
        self.sandbox.apply(yaml).unwrap();
        self.sandbox.settle().await;
    }

    /// Creates a claim of the default pool with additional fields of its spec.
    pub(crate) async fn claim(&self, name: &str, spec: &str) -> NodeClaim {
        self.apply(&claim_yaml(name, &self.pool_uid(), spec)).await;
        self.get_claim(name).expect("the claim was just created")
    }

    pub(crate) fn pool_uid(&self) -> String {
        self.pool().metadata.uid.unwrap()
    }

    pub(crate) fn pool(&self) -> NodePool {
        self.objects().get("", "default").unwrap()
    }

    pub(crate) fn get_claim(&self, name: &str) -> Option<NodeClaim> {
        self.objects().get("", name)
    }

    /// The one node there is.
    pub(crate) fn node(&self) -> Node {
        let mut nodes: Vec<Node> = self.objects().list("");
        assert_eq!(nodes.len(), 1, "one node is expected");
        nodes.remove(0)
    }

    pub(crate) fn node_name(&self) -> String {
        self.node().metadata.name.unwrap()
    }

    /// A condition of a claim as `Status/Reason`.
    pub(crate) fn condition(&self, claim: &str, condition: &str) -> String {
        let claim = self.get_claim(claim).unwrap();
        let found = claim.condition(condition);
        found.map_or_else(String::new, |found| format!("{}/{}", found.status, found.reason))
    }

    /// A running pod on the one node, with more fields of metadata and spec.
    pub(crate) async fn pod(&self, name: &str, metadata: &str, spec: &str) {
        let node = self.node_name();
        self.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default, labels: {{app: {name}}}, {metadata}}}, \
             spec: {{nodeName: {node}, containers: [{{name: c, image: i}}], {spec}}}, \
             status: {{phase: Running, startTime: '2026-01-01T00:00:00Z', conditions: [{{type: Ready, status: 'True'}}]}}}}"
        ))
        .await;
    }

    /// Lets the pool `default` launch nodes, with these fields of `spec.disruption`.
    pub(crate) async fn open_pool(&self, disruption: serde_json::Value) {
        let spec = json!({"spec": {"limits": null, "disruption": disruption}});
        self.objects().patch::<NodePool>("", "default", &spec).unwrap();
        self.sandbox.settle().await;
    }

    /// The Node of a claim.
    pub(crate) fn node_of(&self, claim: &str) -> Node {
        let status = self.get_claim(claim).unwrap().status.unwrap();
        self.objects().get("", &status.node_name.unwrap()).unwrap()
    }

    /// A running pod on the node of a claim that asks for `cpu`, with more fields of metadata.
    pub(crate) async fn pod_on(&self, claim: &str, name: &str, cpu: &str, metadata: &str) {
        let node = self.node_of(claim).metadata.name.unwrap();
        self.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: default, labels: {{app: {name}}}, {metadata}}}, \
             spec: {{nodeName: {node}, containers: [{{name: c, image: i, resources: {{requests: {{cpu: '{cpu}'}}}}}}]}}, \
             status: {{phase: Running, startTime: '2026-01-01T00:00:00Z', conditions: [{{type: Ready, status: 'True'}}]}}}}"
        ))
        .await;
    }

    /// Every claim that there is, except those named.
    pub(crate) fn claims_but(&self, known: &[&str]) -> Vec<NodeClaim> {
        let mut claims: Vec<NodeClaim> = self.objects().list("");
        claims.retain(|claim| !known.contains(&claim.metadata.name.as_deref().unwrap()));
        claims
    }

    /// The node of a claim is Ready, and has one more condition since now.
    pub(crate) async fn set_condition(&self, claim: &str, condition: &str, status: &str, reason: &str) {
        let name = self.node_of(claim).metadata.name.unwrap();
        let now = self.ctx.clock.now().to_string();
        let conditions = json!([
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""},
            {"type": condition, "status": status, "reason": reason, "message": "", "lastTransitionTime": now},
        ]);
        self.objects()
            .patch_status::<Node>("", &name, &json!({"status": {"conditions": conditions}}))
            .unwrap();
        self.sandbox.settle().await;
    }

    pub(crate) fn is_leaving(&self, claim: &str) -> bool {
        self.get_claim(claim).is_none_or(|claim| claim.is_terminating())
    }

    /// Whether the node of a claim carries a taint.
    pub(crate) fn is_tainted(&self, claim: &str, key: &str) -> bool {
        let spec = self.node_of(claim).spec.unwrap_or_default();
        spec.taints.iter().flatten().any(|taint| taint.key == key)
    }

    pub(crate) fn get_pod(&self, name: &str) -> Option<Pod> {
        self.objects().get("default", name)
    }

    pub(crate) fn is_terminating(&self, pod: &str) -> bool {
        self.get_pod(pod)
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    /// What a kubelet does when a terminating pod's containers have ended.
    pub(crate) async fn finish(&self, pod: &str) {
        self.objects()
            .delete::<Pod>("default", pod, &DeleteOptions::now())
            .unwrap();
        self.sandbox.settle().await;
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        self.objects()
            .delete::<NodeClaim>("", name, &DeleteOptions::default())
            .unwrap();
        self.sandbox.settle().await;
    }

    pub(crate) async fn delete_node(&self) {
        self.objects()
            .delete::<Node>("", &self.node_name(), &DeleteOptions::default())
            .unwrap();
        self.sandbox.settle().await;
    }

    pub(crate) async fn set_ready(&self, status: &str) {
        let name = self.node_name();
        let condition = json!({"type": "Ready", "status": status, "reason": "Test", "message": ""});
        self.objects()
            .patch_status::<Node>("", &name, &json!({"status": {"conditions": [condition]}}))
            .unwrap();
        self.sandbox.settle().await;
    }

    /// The reasons of the events that were published since the last look.
    pub(crate) fn events(&self) -> Vec<String> {
        self.ctx
            .events
            .drain()
            .into_iter()
            .map(|event| format!("{}/{}", event.regarding.kind, event.reason))
            .collect()
    }

    /// The value of a series, `0` while it does not exist.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.ctx.metrics.registry.encode();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// How often claims were deleted for `reason`.
    pub(crate) fn disrupted(&self, reason: &str) -> f64 {
        let text = self.ctx.metrics.registry.encode();
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with("karpenter_nodeclaims_disrupted_total{"));
        let line = lines.find(|line| line.contains(&format!("reason=\"{reason}\"")));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

fn context(sandbox: &Sandbox, cloud: &FakeProvider, agent: &str, tune: fn(&mut Options)) -> Context {
    let clock = clock(sandbox);
    let cloud: Arc<dyn CloudProvider> = Arc::new(cloud.clone());
    let mut options = Options::default();
    options.feature_gates.static_capacity = true;
    tune(&mut options);
    Context::new(
        sandbox.client_as(agent),
        clock.clone(),
        Arc::new(options),
        Metrics::new(clock),
        cloud,
    )
}

pub(crate) fn claim_yaml(name: &str, pool_uid: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: {name}, \
           labels: {{karpenter.sh/nodepool: default, team: a}}, ownerReferences: \
           [{{apiVersion: karpenter.sh/v1, kind: NodePool, name: default, uid: {pool_uid}, blockOwnerDeletion: true}}]}}, \
         spec: {{nodeClassRef: {{group: karpenter.test.sh, kind: TestNodeClass, name: default}}, \
           requirements: [{{key: node.kubernetes.io/instance-type, operator: In, values: [fake-2x]}}], \
           resources: {{requests: {{cpu: '1', memory: 1Gi}}}}, {spec}}}}}"
    )
}

/// The machine's kubelet registers its Node, Ready, with the taint that keeps pods away.
fn join(objects: &Objects, machine: &Machine) {
    let instance = &machine.instance;
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": machine.name, "labels": {"kubernetes.io/hostname": machine.name}},
        "spec": {"providerID": instance.provider_id},
    }))
    .unwrap();
    objects.create(&node).unwrap();
    // A real cluster's node lifecycle controller takes the not-ready taint away once the kubelet reports Ready.
    let taints = json!([{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]);
    objects
        .patch::<Node>("", &machine.name, &json!({"spec": {"taints": taints}}))
        .unwrap();
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        "capacity": instance.capacity.to_kube(),
        "allocatable": instance.allocatable.to_kube(),
    });
    objects
        .patch_status::<Node>("", &machine.name, &json!({"status": status}))
        .unwrap();
}
