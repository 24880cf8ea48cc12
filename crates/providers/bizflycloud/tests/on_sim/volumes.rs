//! Volumes whose billing plan binds their pods.

use k8s_openapi::api::core::v1::Event;
use karpenter_api::Requirement;
use karpenter_bizflycloud::{Settings, settings::VolumePlanRule};
use karpenter_cloud::CloudProvider;
use serde_json::{Value, json};

use crate::environment::{Setting, World};

const PLAN: &str = "karpenter.bizflycloud.com/billing-plan";

fn volume(name: &str, driver: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": driver, "volumeHandle": handle},
        },
    })
}

/// A cluster with a node, a volume that is attached to its server, and the volume's claim.
async fn world(settings: fn(Settings) -> Settings) -> World {
    let world = World::with(Setting {
        settings,
        ..Setting::default()
    })
    .await;
    let own = world.launch(1, json!([])).await;
    let server = own
        .provider_id()
        .and_then(|id| id.strip_prefix("bizflycloud://"))
        .expect("launched");
    // The cloud makes data disks by subscription.
    let disk = world.cloud.attach_data_disk(server);
    world.apply(&volume("pv-1", "volume.csi.bizflycloud.vn", &disk));
    world.apply(&volume("pv-2", "somebody.else", &disk));
    world.apply(&volume("pv-3", "volume.csi.bizflycloud.vn", "gone"));
    world.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {"volumeName": "pv-1", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }));
    world
}

fn pod(world: &World, name: &str) {
    world.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "default-00001", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }));
}

fn label_node(world: &World, plan: &str) {
    let labels = json!({"metadata": {"labels": {PLAN: plan}}});
    let objects = world.sandbox.objects();
    objects
        .patch::<k8s_openapi::api::core::v1::Node>("", "default-00001", &labels)
        .expect("accepted");
}

#[tokio::test]
async fn a_volumes_plan_binds_its_pods_only_where_that_is_asked_for() {
    for (settings, expected) in [
        ((|own| own) as fn(Settings) -> Settings, None),
        (
            |own| Settings {
                volume_plans: VolumePlanRule::Enforced,
                ..own
            },
            Some(vec![Requirement::within(PLAN, ["saving_plan"])]),
        ),
    ] {
        let world = world(settings).await;
        world.provider.look_at_volumes().await.expect("no faults");
        let required = world.provider.volume_requirements();
        assert_eq!(required.get("pv-1").cloned(), expected);
        assert!(
            !required.contains_key("pv-2") && !required.contains_key("pv-3"),
            "of another driver, and of no plan that is known"
        );
    }
}

#[tokio::test]
async fn plans_of_volumes_are_asked_for_once_an_hour() {
    let world = world(|own| own).await;
    let asked = || world.count("GET", "/volumes");
    world.provider.look_at_volumes().await.expect("no faults");
    let before = asked();
    world.clock.sleep(std::time::Duration::from_secs(60)).await;
    world.provider.look_at_volumes().await.expect("no faults");
    assert_eq!(asked(), before);
    world.clock.sleep(std::time::Duration::from_secs(3600)).await;
    world.provider.look_at_volumes().await.expect("no faults");
    assert_eq!(asked(), before + 1);
}

#[tokio::test]
async fn a_pod_whose_volume_cannot_be_attached_to_its_node_is_told() {
    let world = world(|own| own).await;
    label_node(&world, "saving_plan");
    pod(&world, "db");
    world.provider.look_at_volumes().await.expect("no faults");
    assert_eq!(
        world.events("VolumeBillingPlanMismatch"),
        [""; 0],
        "the plans are the same"
    );
    label_node(&world, "on_demand");
    world.provider.look_at_volumes().await.expect("no faults");
    let told = world.events("VolumeBillingPlanMismatch");
    assert_eq!(told.len(), 1, "{told:?}");
    let sentence = "volume pv-1 of claim data is billed by saving_plan and the pod's node by on_demand";
    assert!(told[0].contains(sentence), "{told:?}");
    let events = world.sandbox.objects().list::<Event>("default").into_iter();
    let about = events.filter(|event| event.reason.as_deref() == Some("VolumeBillingPlanMismatch"));
    let about: Vec<_> = about
        .map(|event| (event.involved_object.kind, event.involved_object.name))
        .collect();
    assert_eq!(about, [(Some("Pod".to_owned()), Some("db".to_owned()))]);
}
