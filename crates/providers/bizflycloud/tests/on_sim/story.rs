//! The whole of it: core's controllers, this provider and the simulated cloud, from old manifests and pods to the last disk.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::{
    provisioner::Provisioner,
    sim::{SimOptions, run_nodes},
};
use karpenter_cloud::CloudProvider;
use karpenter_core::{context::Context, controllers, metrics::Metrics, options::Options};
use karpenter_sandbox::{Sandbox, Timing};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::environment::{Setting, World, with_provisioners};

/// A cluster in which everything is at work.
struct Cluster {
    world: World,
    _tasks: JoinSet<()>,
}

async fn cluster(class: Option<Value>) -> Cluster {
    let world = World::with(Setting {
        options: SimOptions {
            volume_delay: Some(Duration::from_secs(3)),
            build_delay: Some(Duration::from_secs(3)),
            boot_delay: Duration::from_secs(5),
            deletion_delay: Duration::from_secs(3),
            ..SimOptions::default()
        },
        class,
        settings: with_provisioners,
        sandbox: || Sandbox::builder().timing(Timing::instant()).start(),
    })
    .await;
    for crd in karpenter_api::crd::all() {
        // Those that are there already stay as they are.
        let _ = world.sandbox.apply(&crd.to_yaml());
    }
    let (clock, client) = (world.clock.clone(), world.sandbox.client_as("karpenter"));
    let ctx = Context::new(
        client.clone(),
        clock.clone(),
        Arc::new(Options::default()),
        Metrics::new(clock.clone()),
        Arc::new(world.provider.clone()),
    );
    let mut tasks = ctx.watch();
    ctx.synced().await;
    let stop = CancellationToken::new();
    for controller in controllers::all(&ctx) {
        tasks.spawn(controller.run(stop.clone()));
    }
    for task in world.provider.background_tasks() {
        tasks.spawn(task.run(stop.clone()));
    }
    tasks.spawn(run_nodes(world.cloud.clone(), client, clock, stop));
    Cluster { world, _tasks: tasks }
}

impl Cluster {
    /// Lets time pass until something holds, for at most half an hour of the cluster's time.
    async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..900 {
            if holds(&self.world) {
                return;
            }
            self.world.clock.sleep(Duration::from_secs(2)).await;
        }
        let pods = self.world.sandbox.objects().list::<Pod>("default");
        let claims = self.world.sandbox.objects().list::<NodeClaim>("");
        panic!("never: {what}\n{pods:#?}\n{claims:#?}\n{:?}", self.world.cloud.leaks());
    }

    fn pod(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["containers"] =
            json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        });
        self.world.apply(&pod);
    }
}

fn running(world: &World) -> usize {
    let pods = world.sandbox.objects().list::<Pod>("default").into_iter();
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    pods.filter(runs).count()
}

fn nodes(world: &World) -> Vec<Node> {
    world.sandbox.objects().list("")
}

#[tokio::test]
async fn old_manifests_and_pods_that_select_by_them_become_nodes_that_go_with_their_provisioner() {
    let cluster = cluster(None).await;
    let world = &cluster.world;
    // The example as it is, but for the address of the cloud and its credentials.
    let text = include_str!("../../../../../examples/bizflycloud/v1alpha5/provisioner.yaml");
    let text = text.split("---").last().expect("the Provisioner is the last");
    world.sandbox.apply(text).expect("accepted as it is");
    for number in 0..3 {
        cluster.pod(
            &format!("old-{number}"),
            json!({"nodeSelector": {"karpenter.sh/provisioner-name": "default"}}),
        );
    }
    cluster.until("3 pods run", |world| running(world) == 3).await;
    for node in nodes(world) {
        let labels = node.metadata.labels.expect("labels");
        assert_eq!(labels["karpenter.sh/provisioner-name"], "default");
        assert_eq!(labels["karpenter.sh/nodepool"], "default");
        let flavor = &labels[INSTANCE_TYPE];
        assert!(
            ["4c_8g", "8c_16g", "16c_32g"].iter().any(|size| flavor.contains(size)),
            "{flavor}"
        );
    }
    let objects = world.sandbox.objects();
    let own: Provisioner = objects.get("", "default").expect("it exists");
    assert!(
        own.status.expect("a status").resources.is_some(),
        "what its nodes have is told on it"
    );
    objects
        .delete::<Provisioner>("", "default", &Default::default())
        .expect("deleted");
    cluster
        .until("its nodes go", |world| {
            nodes(world).is_empty() && world.cloud.leaks().is_empty() && objects.list::<NodeClaim>("").is_empty()
        })
        .await;
}

#[tokio::test]
async fn more_volumes_than_one_server_holds_are_spread_over_two() {
    let cluster = cluster(Some(json!({}))).await;
    let world = &cluster.world;
    let mut pool = serde_json::to_value(crate::environment::pool(json!([
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.24c_64g"]},
    ])))
    .expect("plain data");
    pool["spec"]["disruption"] = json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"});
    world.apply(&pool);
    world.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "block"},
        "provisioner": "volume.csi.bizflycloud.vn", "volumeBindingMode": "WaitForFirstConsumer",
    }));
    // Three pods of seven volumes each, all of one zone: cpu and memory would fit on one server.
    for pod in 0..3 {
        let volumes: Vec<Value> = (0..7)
            .map(|number| {
                let name = format!("data-{pod}-{number}");
                bound_volume(world, &name);
                json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": name}})
            })
            .collect();
        cluster.pod(&format!("db-{pod}"), json!({ "volumes": volumes }));
    }
    cluster.until("3 pods run", |world| running(world) == 3).await;
    assert_eq!(nodes(world).len(), 2, "20 volumes are the most for one server");
    for node in nodes(world) {
        let labels = node.metadata.labels.expect("labels");
        assert_eq!(labels["topology.kubernetes.io/zone"], "HN2", "where the volumes are");
    }
}

/// A claim that is bound to a volume of the vendor's driver in HN2.
fn bound_volume(world: &World, name: &str) {
    world.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "block",
            "csi": {"driver": "volume.csi.bizflycloud.vn", "volumeHandle": name},
            "claimRef": {"namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.volume.csi.bizflycloud.vn/zone", "operator": "In", "values": ["HN2"]}]}]}},
        },
    }));
    world.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "block", "volumeName": name,
            "resources": {"requests": {"storage": "10Gi"}},
        },
        "status": {"phase": "Bound"},
    }));
}
