//! Provisioners of the earlier product, applied as they are.

use karpenter_api::{NodePool, conditions::StatusConditions};
use karpenter_bizflycloud::{BizflyCloudNodeClass, provisioner::Provisioner};
use karpenter_cloud::{AnnotationNames, CloudProvider};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim, with_provisioners};

fn provisioner(spec: Value) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "default"}, "spec": spec,
    })
}

fn example() -> Value {
    provisioner(json!({
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["4c_8g", "8c_16g", "16c_32g"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN1", "HN2"]},
            {"key": "karpenter.bizflycloud.sh/image-id", "operator": "In", "values": ["ubuntu-20.04"]},
        ],
        "limits": {"resources": {"cpu": 100, "memory": "200Gi"}},
        "providerRef": {"name": "default", "kind": "ProviderConfig", "apiVersion": "bizflycloud.karpenter.sh/v1alpha1"},
        "ttlSecondsAfterEmpty": 30,
        "ttlSecondsUntilExpired": 2592000,
    }))
}

async fn world() -> World {
    World::with(Setting {
        class: None,
        settings: with_provisioners,
        ..Setting::default()
    })
    .await
}

async fn reconcile(world: &World) {
    world.provider.reconcile_classes().await;
    world.provider.reconcile_provisioners().await.expect("listed");
    world.provider.reconcile_classes().await;
}

fn converted(world: &World) -> (bool, String, String) {
    let own: Provisioner = world.sandbox.objects().get("", "default").expect("it exists");
    let condition = own.condition("Converted").cloned().expect("judged");
    (condition.is_true(), condition.reason, condition.message)
}

#[tokio::test]
async fn the_example_leads_to_servers_of_the_asked_types() {
    let world = world().await;
    world.apply(&example());
    reconcile(&world).await;
    assert_eq!(converted(&world), (true, "Converted".to_owned(), String::new()));
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    let pool: NodePool = world.sandbox.objects().get("", "default").expect("made");
    let rules = world.provider.extend_label_rules(Default::default());
    assert_eq!(pool.validate(&rules), [], "the pool is valid");
    let requirements = serde_json::to_value(&pool.spec.template.spec.requirements).expect("plain data");
    let made = world.provider.create(&claim(1, requirements)).await.expect("launched");
    let flavor = &made.labels["node.kubernetes.io/instance-type"];
    assert!(flavor.contains("4c_8g"), "the cheapest of the asked sizes: {flavor}");
    assert_eq!(made.labels["karpenter.bizflycloud.sh/image-id"], "ubuntu-20.04");
    assert_eq!(made.labels["karpenter.sh/provisioner-name"], "default");
}

#[tokio::test]
async fn old_names_of_protective_annotations_count_while_provisioners_are_carried_out() {
    assert_eq!(world().await.provider.annotation_names(), AnnotationNames::AlsoV1alpha5);
    assert_eq!(
        World::start().await.provider.annotation_names(),
        AnnotationNames::Current
    );
}

#[tokio::test]
async fn a_pool_of_that_name_that_is_not_ours_is_left_alone() {
    let world = world().await;
    let mut own = serde_json::to_value(crate::environment::pool(json!([]))).expect("plain data");
    own["spec"]["weight"] = json!(7);
    world.apply(&own);
    world.apply(&example());
    reconcile(&world).await;
    let (is_converted, reason, _) = converted(&world);
    assert_eq!((is_converted, reason.as_str()), (false, "NameConflict"));
    let pool: NodePool = world.sandbox.objects().get("", "default").expect("still there");
    assert_eq!(pool.spec.weight, Some(7));
}

#[tokio::test]
async fn a_broken_edit_keeps_the_last_good_pool() {
    let world = world().await;
    world.apply(&example());
    reconcile(&world).await;
    let mut broken = example();
    broken["spec"]["consolidation"] = json!({"enabled": true});
    broken["spec"]["weight"] = json!(50);
    world.apply(&broken);
    reconcile(&world).await;
    let (is_converted, reason, message) = converted(&world);
    assert_eq!((is_converted, reason.as_str()), (false, "ConversionFailed"));
    assert!(message.contains("ttlSecondsAfterEmpty"), "{message}");
    let pool: NodePool = world.sandbox.objects().get("", "default").expect("still there");
    assert_eq!(pool.spec.weight, None);
}

#[tokio::test]
async fn what_a_provisioner_became_is_owned_by_it() {
    let world = world().await;
    world.apply(&example());
    reconcile(&world).await;
    let own: Provisioner = world.sandbox.objects().get("", "default").expect("it exists");
    let pool: NodePool = world.sandbox.objects().get("", "default").expect("made");
    let class: BizflyCloudNodeClass = world.sandbox.objects().get("", "default").expect("made");
    for owners in [pool.owner_references(), class.owner_references()] {
        assert_eq!(owners[0].uid, own.metadata.uid.clone().expect("a uid"));
        assert_eq!(owners[0].controller, Some(true));
    }
}
