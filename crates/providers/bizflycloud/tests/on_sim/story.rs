//! The whole of it: core's controllers, this provider and the simulated cloud, from old manifests and pods to the last disk.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_api::{
    NodeClaim,
    labels::{CAPACITY_TYPE, INSTANCE_TYPE},
};
use karpenter_bizflycloud::{
    ProviderConfig, Settings,
    provisioner::Provisioner,
    settings::VolumePlanRule,
    sim::{EMAIL, Fault, Often, PASSWORD},
};
use karpenter_cloud::CloudProvider;
use serde_json::{Value, json};

use crate::{
    cluster::{cluster, cluster_with, nodes, running},
    environment::{World, with_provisioners},
};

#[tokio::test]
async fn old_manifests_and_pods_that_select_by_them_become_nodes_that_go_with_their_provisioner() {
    let cluster = cluster(None).await;
    let world = &cluster.world;
    // The example as it is, Secret and ProviderConfig too, but for the address of the cloud and who we are.
    let text = include_str!("../../../../../examples/bizflycloud/v1alpha5/provisioner.yaml");
    let text = text
        .replace("https://manage.bizflycloud.vn/api", &world.cloud.url())
        .replace("you@example.com", EMAIL)
        .replace("replace-me", PASSWORD);
    world.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpenter"}}));
    world.sandbox.apply(&text).expect("accepted as it is");
    let config: ProviderConfig = world.sandbox.objects().get("", "default").expect("it exists");
    assert_eq!(
        (config.spec.region.as_str(), config.spec.secret_ref.namespace.as_str()),
        ("HN1", "karpenter")
    );
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
        assert!(["HN1", "HN2"].contains(&labels["topology.kubernetes.io/zone"].as_str()));
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

/// What events about a pod say.
fn told(world: &World, pod: &str) -> String {
    let events = world.sandbox.objects().list::<Event>("default").into_iter();
    let about = events.filter(|event| event.involved_object.name.as_deref() == Some(pod));
    about.filter_map(|event| event.message).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn while_everything_is_sold_out_pods_wait_with_the_reason_and_run_once_there_is_stock() {
    let cluster = cluster(Some(json!({}))).await;
    let world = &cluster.world;
    let nothing = Fault::SoldOut {
        flavor: None,
        zone: None,
    };
    world.cloud.inject(nothing, Often::Always);
    let only = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.4c_8g"]}]);
    world.apply(&serde_json::to_value(crate::environment::pool(only)).expect("plain data"));
    cluster.pod("web", json!({}));
    let reason = "Flavor nix.4c_8g is out of stock in HN2";
    cluster
        .until("the pod is told why it waits", |world| {
            told(world, "web").contains(reason)
        })
        .await;
    assert_eq!(running(world), 0);
    assert_eq!(world.live().len(), 0);
    world.cloud.heal();
    let restocked = world.clock.now();
    cluster.until("the pod runs", |world| running(world) == 1).await;
    let took = world.clock.since(restocked).as_secs();
    assert!(took <= 360, "tried again after three minutes: {took} s");
}

#[tokio::test]
async fn pods_that_select_by_an_old_capacity_type_run_on_nodes_that_carry_it() {
    let cluster = cluster(Some(json!({}))).await;
    let world = &cluster.world;
    let old = json!([{"key": CAPACITY_TYPE, "operator": "In", "values": ["saving_plan"]}]);
    let mut pool = serde_json::to_value(crate::environment::pool(old)).expect("plain data");
    pool["spec"]["disruption"] = json!({"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "10s"});
    world.apply(&pool);
    for number in 0..2 {
        cluster.pod(
            &format!("old-{number}"),
            json!({"nodeSelector": {CAPACITY_TYPE: "saving_plan"}}),
        );
    }
    cluster.until("2 pods run", |world| running(world) == 2).await;
    let labels = nodes(world)[0].metadata.labels.clone().expect("labels");
    assert_eq!(labels[CAPACITY_TYPE], "saving_plan");
    assert_eq!(labels["karpenter.bizflycloud.com/billing-plan"], "saving_plan");
    // Neither drifts nor is replaced by its like.
    let before: Vec<String> = world.live();
    world.clock.sleep(Duration::from_secs(900)).await;
    assert_eq!(world.live(), before);
    let objects = world.sandbox.objects();
    for number in 0..2 {
        let gone = objects.delete::<Pod>("default", &format!("old-{number}"), &Default::default());
        gone.expect("deleted");
    }
    cluster
        .until("consolidation removes what nobody needs", |world| {
            nodes(world).is_empty() && world.cloud.leaks().is_empty()
        })
        .await;
}

#[tokio::test]
async fn a_pod_goes_to_a_node_of_its_volumes_billing_plan() {
    let cluster = cluster_with(
        Some(json!({"billingPlans": ["on_demand", "saving_plan"]})),
        |settings| {
            with_provisioners(Settings {
                volume_plans: VolumePlanRule::Enforced,
                ..settings
            })
        },
    )
    .await;
    let world = &cluster.world;
    // A disk that is paid by use: without it the cheaper subscription would be chosen.
    let foreign = world.cloud.add_foreign_server("somebody-elses");
    let disk = world.cloud.attach_data_disk(&foreign);
    world.cloud.set_volume_plan(&disk, "on_demand");
    world.apply(&serde_json::to_value(crate::environment::pool(json!([]))).expect("plain data"));
    bound_volume(world, "data");
    let handle = json!({"spec": {"csi": {"driver": "volume.csi.bizflycloud.vn", "volumeHandle": disk}}});
    let objects = world.sandbox.objects();
    objects
        .patch::<k8s_openapi::api::core::v1::PersistentVolume>("", "data", &handle)
        .expect("accepted");
    cluster
        .until("the volume's plan is known", |world| {
            world.provider.volume_requirements().contains_key("data")
        })
        .await;
    let volume = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.pod("db", json!({ "volumes": volume }));
    cluster.until("the pod runs", |world| running(world) == 1).await;
    let plan = |world: &World| {
        let pod: Pod = world.sandbox.objects().get("default", "db").expect("it exists");
        let node = pod.spec.and_then(|spec| spec.node_name).expect("bound");
        let node: Node = world.sandbox.objects().get("", &node).expect("it exists");
        node.metadata.labels?.remove("karpenter.bizflycloud.com/billing-plan")
    };
    // BKE's nodes join without Karpenter's taint, so a pod may be there before the labels are.
    cluster
        .until("the node is labelled", |world| plan(world).is_some())
        .await;
    assert_eq!(plan(world).as_deref(), Some("on_demand"));
}
