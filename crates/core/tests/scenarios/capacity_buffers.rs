//! CapacityBuffers: what they stand for, the room that is bought for them, and the nodes they keep.

use k8s_openapi::api::apps::v1::Deployment;
use karpenter_api::CapacityBuffer;
use karpenter_core::options::Options;
use karpenter_core::{capacity_buffers, provisioning};
use karpenter_sandbox::DeleteOptions;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::World;

async fn world() -> World {
    let mut options = Options::default();
    options.feature_gates.capacity_buffer = true;
    let world = World::start_with(options, |ctx| {
        let buffers = ctx.buffers.as_ref().expect("the gate is on");
        let (mut controllers, batcher) = provisioning::controllers(ctx);
        controllers.push(capacity_buffers::controller(ctx, buffers, &batcher));
        controllers
    })
    .await;
    world.pool("default", json!({}));
    world
}

fn template(cpu: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } }] } })
}

impl World {
    async fn apply(&self, object: Value) {
        self.sandbox
            .apply(&object.to_string())
            .expect("the test's object is accepted");
        self.sandbox.settle().await;
    }

    async fn pod_template(&self, name: &str, cpu: &str) {
        let object = json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": name, "namespace": "default" }, "template": template(cpu) });
        self.apply(object).await;
    }

    async fn deployment(&self, name: &str, replicas: i32, cpu: &str) {
        let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
            "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template(cpu) } });
        self.apply(object).await;
    }

    async fn buffer_in(&self, namespace: &str, name: &str, spec: Value) {
        let object = json!({ "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
            "metadata": { "name": name, "namespace": namespace }, "spec": spec });
        self.apply(object).await;
    }

    async fn buffer(&self, name: &str, spec: Value) {
        self.buffer_in("default", name, spec).await;
    }

    fn get_buffer(&self, name: &str) -> CapacityBuffer {
        self.sandbox
            .objects()
            .get("default", name)
            .expect("the buffer is there")
    }

    fn buffer_condition(&self, name: &str, condition: &str) -> String {
        let buffer = self.get_buffer(name);
        let found = buffer.condition(condition);
        found.map_or_else(String::new, |found| format!("{}/{}", found.status, found.reason))
    }

    fn replicas(&self, name: &str) -> Option<i32> {
        self.get_buffer(name).status.and_then(|status| status.replicas)
    }

    fn virtual_pods(&self) -> usize {
        self.ctx.buffers.as_ref().expect("the gate is on").pods().len()
    }

    /// Launches every claim and lets its node join, registered and initialized.
    async fn bring_up(&self) {
        for claim in self.claims() {
            let name = claim.name_any();
            self.launch(&name, 4, "test-zone-1");
            let labels = json!({ "karpenter.sh/nodepool": "default", "karpenter.test.sh/testnodeclass": "default",
                "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
                "node.kubernetes.io/instance-type": "fake-4x", "topology.kubernetes.io/zone": "test-zone-1",
                "karpenter.sh/capacity-type": "on-demand" });
            self.node(&format!("node-{name}"), &format!("fake://{name}"), 4, labels);
        }
        self.sandbox.settle().await;
    }
}

#[tokio::test]
async fn room_is_bought_and_then_reported_to_be_there() {
    let world = world().await;
    world.pod_template("web", "1").await;
    world
        .buffer("spare", json!({ "podTemplateRef": { "name": "web" }, "replicas": 3 }))
        .await;
    assert_eq!(world.buffer_condition("spare", "ReadyForProvisioning"), "True/Resolved");
    world.pass(2).await;
    assert_eq!(
        world.buffer_condition("spare", "Provisioning"),
        "False/RequiresNewCapacity"
    );
    assert_eq!((world.virtual_pods(), world.claims().len()), (3, 1));
    world.bring_up().await;
    world.pass(60).await;
    assert_eq!(
        world.buffer_condition("spare", "Provisioning"),
        "True/FitsExistingCapacity"
    );
    assert_eq!(world.claims().len(), 1, "no more is bought for the same room");
    let [machine] = world.ctx.state.machines().try_into().expect("one machine");
    assert!(machine.holds_buffer_pods());
    assert!(
        !machine.is_nominated(world.ctx.clock.now()),
        "or it could never drift or expire"
    );
    let status = world.get_buffer("spare").status.expect("a status");
    assert_eq!(status.pod_template_ref.map(|named| named.name).as_deref(), Some("web"));
    assert_eq!(
        status.provisioning_strategy.as_deref(),
        Some("buffer.x-k8s.io/active-capacity")
    );
}

#[tokio::test]
async fn a_node_is_no_longer_kept_once_the_buffer_is_gone() {
    let world = world().await;
    world.pod_template("web", "1").await;
    world
        .buffer("spare", json!({ "podTemplateRef": { "name": "web" }, "replicas": 1 }))
        .await;
    world.pass(2).await;
    world.bring_up().await;
    world.pass(60).await;
    let kept = || {
        world
            .ctx
            .state
            .machines()
            .iter()
            .any(karpenter_core::state::Machine::holds_buffer_pods)
    };
    assert!(kept());
    world
        .sandbox
        .objects()
        .delete::<CapacityBuffer>("default", "spare", &DeleteOptions::default())
        .expect("deleted");
    world.pass(3).await;
    assert!(!kept());
    assert_eq!(world.virtual_pods(), 0);
}

#[tokio::test]
async fn a_template_that_comes_later_is_found_by_its_event() {
    let world = world().await;
    world
        .buffer("spare", json!({ "podTemplateRef": { "name": "web" }, "replicas": 2 }))
        .await;
    assert_eq!(
        world.buffer_condition("spare", "ReadyForProvisioning"),
        "False/PodTemplateNotFound"
    );
    world.pass(2).await;
    assert_eq!(
        world.buffer_condition("spare", "Provisioning"),
        "False/NotReadyForProvisioning"
    );
    assert_eq!(world.virtual_pods(), 0);
    world.pod_template("web", "1").await;
    assert_eq!(world.buffer_condition("spare", "ReadyForProvisioning"), "True/Resolved");
    assert_eq!(world.virtual_pods(), 2);
}

#[tokio::test]
async fn a_share_of_a_workload_follows_its_replicas() {
    let world = world().await;
    world.deployment("web", 10, "1").await;
    let reference = json!({ "kind": "Deployment", "name": "web" });
    world
        .buffer(
            "spare",
            json!({ "scalableRef": reference, "replicas": 2, "percentage": 50 }),
        )
        .await;
    assert_eq!(world.replicas("spare"), Some(5));
    world.deployment("web", 20, "1").await;
    assert_eq!(world.replicas("spare"), Some(10));
    let before = world.get_buffer("spare").metadata.resource_version;
    let status = json!({ "status": { "readyReplicas": 3 } });
    world
        .sandbox
        .objects()
        .patch_status::<Deployment>("default", "web", &status)
        .expect("it is there");
    world.sandbox.settle().await;
    assert_eq!(world.get_buffer("spare").metadata.resource_version, before);
    world
        .buffer(
            "spare",
            json!({ "scalableRef": reference, "replicas": 2, "percentage": 50, "limits": { "cpu": "3" } }),
        )
        .await;
    assert_eq!(world.replicas("spare"), Some(3));
}

#[tokio::test]
async fn a_reference_that_cannot_be_resolved_says_why() {
    let world = world().await;
    let reference = |group: &str, kind: &str| json!({ "scalableRef": { "apiGroup": group, "kind": kind, "name": "web" }, "replicas": 1 });
    world.buffer("missing", reference("apps", "StatefulSet")).await;
    world.buffer("foreign", reference("batch", "Job")).await;
    world.buffer("empty", json!({ "replicas": 1 })).await;
    let ready = |name: &str| world.buffer_condition(name, "ReadyForProvisioning");
    assert_eq!(ready("missing"), "False/ScalableRefNotFound");
    assert_eq!(ready("foreign"), "False/ResolutionFailed");
    assert_eq!(ready("empty"), "False/ResolutionFailed");
}

#[tokio::test]
async fn buffers_of_one_name_in_two_namespaces_are_counted_apart() {
    let world = world().await;
    world
        .apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }))
        .await;
    world.pod_template("web", "1").await;
    let template = json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "web", "namespace": "shop" }, "template": template("100") });
    world.apply(template).await;
    let spec = json!({ "podTemplateRef": { "name": "web" }, "replicas": 1 });
    world.buffer("spare", spec.clone()).await;
    world.buffer_in("shop", "spare", spec).await;
    world.pass(2).await;
    world.bring_up().await;
    world.pass(60).await;
    assert_eq!(
        world.buffer_condition("spare", "Provisioning"),
        "True/FitsExistingCapacity"
    );
    let other: CapacityBuffer = world.sandbox.objects().get("shop", "spare").expect("it is there");
    let reason = other.condition("Provisioning").map(|found| found.reason.clone());
    assert_eq!(
        reason.as_deref(),
        Some("RequiresNewCapacity"),
        "no type has a hundred cores"
    );
}

#[tokio::test]
async fn nobody_hears_of_pods_that_do_not_exist() {
    let world = world().await;
    world.pod_template("web", "100").await;
    world
        .buffer("spare", json!({ "podTemplateRef": { "name": "web" }, "replicas": 2 }))
        .await;
    world.pass(5).await;
    assert!(world.events("capacity-buffer-spare-1").is_empty());
    let text = world.ctx.metrics.registry.encode();
    assert!(
        text.contains(r#"karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 0"#),
        "{text}"
    );
}

#[tokio::test]
async fn an_empty_buffer_says_that_it_is_empty() {
    let world = world().await;
    world.deployment("web", 0, "1").await;
    world
        .buffer(
            "spare",
            json!({ "scalableRef": { "kind": "Deployment", "name": "web" }, "percentage": 50 }),
        )
        .await;
    world.pass(2).await;
    assert_eq!(world.replicas("spare"), Some(0));
    assert_eq!(world.buffer_condition("spare", "Provisioning"), "False/BufferEmpty");
}
