//! What every scenario stands on: the sandbox and its time, a fake cloud, and the controllers under test.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::fake::FakeProvider;
use karpenter_core::clock::{Clock, TimeSource};
use karpenter_core::context::Context;
use karpenter_core::metrics::Metrics;
use karpenter_core::options::Options;
use karpenter_core::runner::Runnable;
use karpenter_sandbox::{DeleteOptions, Objects, Sandbox};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The sandbox's time as core's.
#[derive(Debug)]
struct SandboxTime(karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline).boxed()
    }
}

/// Takes a claim away as somebody does who removes its finalizer by hand.
pub(crate) fn vanish(objects: &Objects, claim: &str) {
    let released = json!({"metadata": {"finalizers": null}});
    objects.patch::<NodeClaim>("", claim, &released).unwrap();
    objects
        .delete::<NodeClaim>("", claim, &DeleteOptions::default())
        .unwrap();
}

/// The clock to give to core, moved together with the sandbox.
pub(crate) fn clock(sandbox: &Sandbox) -> Clock {
    Clock::from_source(SandboxTime(sandbox.clock().clone()))
}

/// A cluster with Karpenter's kinds, a cloud, and controllers at work.
pub(crate) struct World {
    pub(crate) sandbox: Sandbox,
    pub(crate) cloud: FakeProvider,
    pub(crate) ctx: Context,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

const NODE_CLASS_CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: testnodeclasses.karpenter.test.sh}
spec:
  group: karpenter.test.sh
  scope: Cluster
  names: {kind: TestNodeClass, listKind: TestNodeClassList, plural: testnodeclasses, singular: testnodeclass}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Installs the kinds.
pub(crate) fn install(sandbox: &Sandbox) {
    for crd in karpenter_api::crd::all() {
        sandbox.apply(&crd.to_yaml()).expect("our CRDs are valid");
    }
    sandbox.apply(NODE_CLASS_CRD).expect("the test's CRD is valid");
}

impl World {
    /// A cluster with the kinds installed and nothing in it; `controllers` chooses what runs.
    pub(crate) async fn start(controllers: impl FnOnce(&Context) -> Vec<Runnable>) -> Self {
        Self::start_with(Options::default(), controllers).await
    }

    /// Like [`World::start`], with other options.
    pub(crate) async fn start_with(options: Options, controllers: impl FnOnce(&Context) -> Vec<Runnable>) -> Self {
        let sandbox = Sandbox::builder().api_server_only().start();
        install(&sandbox);
        let clock = clock(&sandbox);
        let cloud = FakeProvider::new(clock.clone());
        let options = Arc::new(Options {
            disable_leader_election: true,
            ..options
        });
        let metrics = Metrics::new(clock.clone());
        let ctx = Context::new(
            sandbox.client_as("karpenter"),
            clock,
            options,
            metrics,
            Arc::new(cloud.clone()),
        );
        let mut world = Self {
            sandbox,
            cloud,
            tasks: ctx.watch(),
            ctx,
            stop: CancellationToken::new(),
        };
        world.ctx.synced().await;
        for controller in controllers(&world.ctx) {
            world.tasks.spawn(controller.run(world.stop.clone()));
        }
        let (events, client, stop) = (world.ctx.events.clone(), world.ctx.client.clone(), world.stop.clone());
        world.tasks.spawn(async move { events.deliver(client, stop).await });
        world.sandbox.settle().await;
        world
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        self.sandbox.run_for(Duration::from_secs(seconds)).await;
    }

    /// A ready NodePool; `extra` is merged into its spec.
    pub(crate) fn pool(&self, name: &str, extra: Value) {
        let mut spec = json!({ "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
            "requirements": [],
        } } });
        json_merge(&mut spec, extra);
        let pool =
            json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name }, "spec": spec });
        self.sandbox
            .apply(&pool.to_string())
            .expect("the test's NodePool is valid");
        let ready = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": kind, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 })
        };
        let status = json!({ "status": { "conditions": [ready("ValidationSucceeded"), ready("NodeClassReady"), ready("Ready")] } });
        self.sandbox
            .objects()
            .patch_status::<NodePool>("", name, &status)
            .expect("the NodePool is there");
    }

    /// A pod that no node has room for; `extra` is merged into the object.
    pub(crate) fn pending_pod(&self, name: &str, cpu: &str, extra: Value) {
        self.new_pod(name, cpu, extra);
        self.refuse(name);
    }

    /// A pod that the scheduler has not come to yet; `extra` is merged into the object.
    pub(crate) fn new_pod(&self, name: &str, cpu: &str, extra: Value) {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } }] } });
        json_merge(&mut pod, extra);
        let pod: Pod = serde_json::from_value(pod).expect("the test's pod is valid");
        self.sandbox.objects().create(&pod).expect("the test's pod is accepted");
    }

    /// The scheduler finds no node for a pod.
    pub(crate) fn refuse(&self, name: &str) {
        let status = json!({ "status": { "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes" }] } });
        self.sandbox
            .objects()
            .patch_status::<Pod>("default", name, &status)
            .expect("the pod is there");
    }

    /// Binds a pod as the scheduler would.
    pub(crate) async fn bind(&self, pod: &str, node: &str) {
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": { "kind": "Node", "name": node } });
        let pods: Api<Pod> = Api::default_namespaced(self.sandbox.client());
        let _: Value = pods
            .create_subresource("binding", pod, &PostParams::default(), &binding)
            .await
            .expect("the pod is there");
        let status = json!({ "status": { "phase": "Running" } });
        self.sandbox
            .objects()
            .patch_status::<Pod>("default", pod, &status)
            .expect("the pod is there");
    }

    pub(crate) fn claims(&self) -> Vec<NodeClaim> {
        self.sandbox.objects().list("")
    }

    /// Launches a NodeClaim as its lifecycle would: provider ID, labels and resources of `cpu` cores in `zone`.
    pub(crate) fn launch(&self, claim: &str, cpu: i64, zone: &str) {
        let labels = json!({ "metadata": { "labels": {
            "node.kubernetes.io/instance-type": format!("fake-{cpu}x"), "topology.kubernetes.io/zone": zone,
            "karpenter.sh/capacity-type": "on-demand" } } });
        self.sandbox
            .objects()
            .patch::<NodeClaim>("", claim, &labels)
            .expect("the claim is there");
        let resources = json!({ "cpu": cpu.to_string(), "memory": format!("{}Gi", 4 * cpu), "pods": "110" });
        let status = json!({ "status": { "providerID": format!("fake://{claim}"), "capacity": resources, "allocatable": resources } });
        self.sandbox
            .objects()
            .patch_status::<NodeClaim>("", claim, &status)
            .expect("the claim is there");
    }

    /// A node; `labels` are its labels.
    pub(crate) fn node(&self, name: &str, provider_id: &str, cpu: i64, labels: Value) {
        let resources = json!({ "cpu": cpu.to_string(), "memory": format!("{}Gi", 4 * cpu), "pods": "110" });
        let node: Node = serde_json::from_value(json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": labels }, "spec": { "providerID": provider_id } }))
        .expect("valid");
        self.sandbox
            .objects()
            .create(&node)
            .expect("the test's node is accepted");
        // Admission taints new nodes until they are ready.
        let untainted = json!({ "spec": { "taints": null } });
        self.sandbox
            .objects()
            .patch::<Node>("", name, &untainted)
            .expect("the node is there");
        let status = json!({ "status": { "capacity": resources, "allocatable": resources } });
        self.sandbox
            .objects()
            .patch_status::<Node>("", name, &status)
            .expect("the node is there");
    }

    /// Reasons and messages of the events about an object.
    pub(crate) fn events(&self, name: &str) -> Vec<String> {
        let events = self.sandbox.objects().list::<Event>("").into_iter();
        let about = events.filter(|event| event.involved_object.name.as_deref() == Some(name));
        about
            .map(|event| {
                format!(
                    "{}: {}",
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default()
                )
            })
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn json_merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                json_merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch,
    }
}
