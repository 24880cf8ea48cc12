//! What happens to servers behind our back, what nodes are told of it, and what the fleet costs.

use std::time::Duration;

use karpenter_api::{NodeClaim, conditions::StatusConditions, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::sim::{DEFAULT_VPC, FIREWALL, Fault, HN1_VPC, Often, SimOptions};
use karpenter_cloud::{CloudProvider, RebootOperation};
use serde_json::{Value, json};

use crate::environment::{Setting, World, pool};

async fn with_class(spec: Value) -> World {
    World::with(Setting {
        class: Some(spec),
        ..Setting::default()
    })
    .await
}

fn only(flavor: &str) -> Value {
    json!([{"key": INSTANCE_TYPE, "operator": "In", "values": [flavor]}])
}

fn server_of(claim: &NodeClaim) -> String {
    let id = claim.provider_id().expect("launched");
    id.strip_prefix("bizflycloud://").expect("ours").to_owned()
}

fn name_of(claim: &NodeClaim) -> String {
    claim.metadata.name.clone().expect("a name")
}

async fn look(world: &World) {
    // Lists are shared for a moment.
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.look_at_fleet().await.expect("looked at");
}

fn health(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

#[tokio::test]
async fn what_becomes_of_a_server_is_told_on_its_node() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    world.clock.sleep(Duration::from_secs(120)).await;
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("True", "ServerActive"));
    for (status, reason) in [
        ("SHUTOFF", "ServerStopped"),
        ("SUSPENDED", "ServerSuspended"),
        ("ERROR", "ServerError"),
    ] {
        world.cloud.set_status(&server_of(&claim), status);
        look(&world).await;
        assert_eq!(world.server_health(&name_of(&claim)), health("False", reason));
        assert_eq!(world.events(reason).len(), 1, "told once: {reason}");
    }
    world.cloud.set_status(&server_of(&claim), "ACTIVE");
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("True", "ServerActive"));
    world.cloud.vanish(&server_of(&claim));
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("False", "ServerMissing"));
}

#[tokio::test]
async fn a_server_that_a_list_lacks_is_asked_for_before_it_counts_as_missing() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    world.clock.sleep(Duration::from_secs(120)).await;
    world.cloud.inject(Fault::ListOmits(name_of(&claim)), Often::Always);
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("True", "ServerActive"));
}

#[tokio::test]
async fn a_stopped_server_is_started_once_per_operation_and_then_healthy() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    world.clock.sleep(Duration::from_secs(120)).await;
    world.cloud.set_status(&server_of(&claim), "SHUTOFF");
    let operation = RebootOperation("claim-1-boot-1".to_owned());
    for _ in 0..2 {
        world.provider.reboot(&claim, &operation).await.expect("accepted");
    }
    let actions = world
        .cloud
        .requests()
        .into_iter()
        .filter(|request| request.path.ends_with("/action"));
    let bodies: Vec<Value> = actions.map(|request| request.body).collect();
    assert_eq!(bodies, [json!({"action": "start"})]);
    world.clock.sleep(Duration::from_secs(15)).await;
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("True", "ServerActive"));
    let again = RebootOperation("claim-1-boot-2".to_owned());
    world.provider.reboot(&claim, &again).await.expect("accepted");
    let last = world
        .cloud
        .requests()
        .into_iter()
        .rfind(|request| request.path.ends_with("/action"));
    assert_eq!(
        last.expect("asked").body,
        json!({"action": "hard_reboot"}),
        "a running server is rebooted"
    );
}

#[tokio::test]
async fn firewalls_that_an_interface_lacks_are_put_in_place() {
    let world = with_class(json!({"securityGroups": [{"securityGroupID": FIREWALL}]})).await;
    let claim = world.launch(1, json!([])).await;
    let firewalls = |world: &World| world.cloud.firewalls(&server_of(&claim));
    let wan = |all: &[(String, Vec<String>)]| {
        all.iter()
            .find(|(kind, _)| kind == "WAN")
            .expect("a WAN port")
            .1
            .clone()
    };
    assert!(
        wan(&firewalls(&world)).is_empty(),
        "free public interfaces are born open"
    );
    look(&world).await;
    assert_eq!(wan(&firewalls(&world)), [FIREWALL]);
    look(&world).await;
    let actions = world.cloud.requests();
    let count = actions
        .iter()
        .filter(|request| request.path.contains("/network-interfaces/"))
        .count();
    assert_eq!(count, 1, "nothing to do any more");
    assert_eq!(world.provider.is_drifted(&claim).await.expect("readable"), None);
}

#[tokio::test]
async fn firewalls_that_cannot_be_put_in_place_are_drift_after_ten_minutes() {
    let world = with_class(json!({"securityGroups": [{"securityGroupID": FIREWALL}]})).await;
    let claim = world.launch(1, json!([])).await;
    let refused = |world: &World| {
        let fault = Fault::Http {
            operation: karpenter_bizflycloud::sim::Operation::NetworkInterfaceAction,
            status: 400,
            body: "no".to_owned(),
            retry_after: None,
        };
        world.cloud.inject(fault, Often::Always);
    };
    refused(&world);
    look(&world).await;
    assert_eq!(
        world.provider.is_drifted(&claim).await.expect("readable"),
        None,
        "it is tried first"
    );
    world.clock.sleep(Duration::from_secs(601)).await;
    look(&world).await;
    let drift = world.provider.is_drifted(&claim).await.expect("readable");
    assert_eq!(drift.expect("drifted").0, "SecurityGroupDrift");
}

#[tokio::test]
async fn a_server_that_was_unplugged_from_its_network_has_drifted() {
    let world = with_class(json!({"vpcNetworkIds": [DEFAULT_VPC, HN1_VPC]})).await;
    let claim = world.launch(1, json!([])).await;
    world.clock.sleep(Duration::from_secs(3)).await;
    assert_eq!(world.provider.is_drifted(&claim).await.expect("readable"), None);
    world.cloud.unplug(&server_of(&claim), HN1_VPC);
    world.clock.sleep(Duration::from_secs(61)).await;
    let drift = world.provider.is_drifted(&claim).await.expect("readable");
    assert_eq!(drift.expect("drifted").0, "NetworkDrift");
}

#[tokio::test]
async fn each_change_behind_our_back_has_its_drift_reason() {
    let world = World::start().await;
    let claim = world.launch(1, only("nix.4c_8g")).await;
    let drift = async |world: &World| {
        world.clock.sleep(Duration::from_secs(3)).await;
        world
            .provider
            .is_drifted(&claim)
            .await
            .expect("readable")
            .map(|own| own.0)
    };
    assert_eq!(drift(&world).await, None);
    world.cloud.set_billing_plan(&server_of(&claim), "saving_plan");
    assert_eq!(drift(&world).await.as_deref(), Some("BillingPlanDrift"));
    world.cloud.set_billing_plan(&server_of(&claim), "on_demand");
    world.cloud.publish_worker_images("-b");
    world.clock.sleep(Duration::from_secs(61)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(drift(&world).await.as_deref(), Some("ImageDrift"));
    world.apply(&world.config(json!({"region": "HN", "driftDetection": {"enabled": false}})));
    assert_eq!(drift(&world).await, None, "switched off");
    world.cloud.vanish(&server_of(&claim));
    world.apply(&world.config(json!({"region": "HN"})));
    world.clock.sleep(Duration::from_secs(3)).await;
    let missing = world
        .provider
        .is_drifted(&claim)
        .await
        .expect_err("missing is not drift");
    assert!(missing.is_not_found(), "{missing}");
}

#[tokio::test]
async fn drift_without_remedy_is_told_and_counted_but_not_answered() {
    let world = World::start().await;
    let claim = world.launch(1, only("nix.4c_8g")).await;
    world.apply(&world.config(json!({"region": "HN", "driftDetection": {"autoRemediate": false}})));
    world.cloud.resize(&server_of(&claim), "nix.8c_16g");
    for _ in 0..3 {
        world.clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(world.provider.is_drifted(&claim).await.expect("readable"), None);
    }
    let told = world.events("DriftDetected");
    assert!(told.len() == 1 && told[0].starts_with("FlavorDrift"), "{told:?}");
    assert_eq!(
        world.metric("drift_detected_total", &["FlavorDrift"]),
        1.0,
        "once per transition"
    );
    let marked = || -> Option<String> {
        let stored: NodeClaim = world.sandbox.objects().get("", &name_of(&claim)).expect("stored");
        Some(stored.condition("DriftDetected")?.reason.clone())
    };
    assert_eq!(marked().as_deref(), Some("FlavorDrift"), "and on the claim");
    let look = async |detection: Value| {
        world.apply(&world.config(json!({"region": "HN", "driftDetection": detection})));
        world.clock.sleep(Duration::from_secs(3)).await;
        let stored: NodeClaim = world.sandbox.objects().get("", &name_of(&claim)).expect("stored");
        assert_eq!(world.provider.is_drifted(&stored).await.expect("readable"), None);
    };
    look(json!({"enabled": false, "autoRemediate": false})).await;
    assert_eq!(marked(), None, "nobody looks any more");
    look(json!({"autoRemediate": false})).await;
    assert_eq!(marked().as_deref(), Some("FlavorDrift"), "found again");
    world.cloud.resize(&server_of(&claim), "nix.4c_8g");
    world.clock.sleep(Duration::from_secs(3)).await;
    let stored: NodeClaim = world.sandbox.objects().get("", &name_of(&claim)).expect("stored");
    assert_eq!(world.provider.is_drifted(&stored).await.expect("readable"), None);
    assert_eq!(marked(), None, "gone with the drift");
}

#[tokio::test]
async fn memory_that_a_node_really_has_replaces_the_estimate_and_outlives_the_process() {
    let world = World::start().await;
    world.launch(1, only("nix.4c_8g")).await;
    let memory = async |provider: &karpenter_bizflycloud::BizflyCloudProvider| {
        let types = provider.instance_types(&pool(json!([]))).await.expect("types");
        let own = types.iter().find(|own| own.name == "nix.4c_8g").expect("listed");
        own.capacity.memory().value() >> 20
    };
    assert_eq!(memory(&world.provider).await, 8192 * 95 / 100, "an estimate");
    look(&world).await;
    assert_eq!(memory(&world.provider).await, 7900);
    let restarted = world.new_provider();
    restarted.look_at_fleet().await.expect("looked at");
    assert_eq!(memory(&restarted).await, 7900);
}

#[tokio::test]
async fn a_server_that_does_not_become_a_node_is_told_about_with_what_to_check() {
    let world = World::start().await;
    let claim = world.stored(&crate::environment::claim(1, json!([])));
    let made = world.provider.create(&claim).await.expect("launched");
    let now = world.clock.now().to_string();
    let status = json!({"status": {"providerID": made.provider_id, "conditions": [
        {"type": "Launched", "status": "True", "reason": "Launched", "message": "", "lastTransitionTime": now}]}});
    let objects = world.sandbox.objects();
    objects
        .patch_status::<NodeClaim>("", &name_of(&claim), &status)
        .expect("accepted");
    world.clock.sleep(Duration::from_secs(200)).await;
    look(&world).await;
    assert!(world.events("NodeNotRegistered").is_empty(), "it has five minutes");
    world.clock.sleep(Duration::from_secs(120)).await;
    look(&world).await;
    let told = world.events("NodeNotRegistered");
    assert!(
        told.len() == 1 && told[0].contains("10.0.0.") && told[0].contains("mode BKE"),
        "{told:?}"
    );
}

#[tokio::test]
async fn the_fleet_is_counted_and_priced_until_it_is_gone() {
    let world = World::start().await;
    let claim = world.launch(1, only("nix.4c_8g")).await;
    look(&world).await;
    let price = world.metric("instance_type_price", &["nix.4c_8g", "false"]);
    assert!(price > 0.0);
    assert_eq!(
        world.metric("node_cost_hourly", &["nix.4c_8g", "on_demand", "VND"]),
        price
    );
    assert_eq!(world.metric("nodepool_cost_hourly", &["default", "VND"]), price);
    assert_eq!(world.metric("node_capacity", &[&name_of(&claim), "cpu"]), 4.0);
    assert_eq!(
        world.metric("instances_created_total", &["nix.4c_8g", "on-demand"]),
        1.0
    );
    assert!(world.metric("token_refreshes_total", &["success"]) >= 1.0);
    assert_eq!(world.metric("catalog_stale_seconds", &["default/flavors"]), 0.0);
    let cheaper = world.metric("savings_potential_hourly", &["default"]);
    assert_eq!(cheaper, 0.0, "the claim asked for exactly this flavor");
    world.terminate(&world.provider, &claim).await;
    let objects = world.sandbox.objects();
    objects
        .delete::<NodeClaim>("", &name_of(&claim), &Default::default())
        .expect("deleted");
    look(&world).await;
    assert_eq!(world.metric("node_cost_hourly", &[]), 0.0);
    assert_eq!(world.metric("node_capacity", &[]), 0.0, "series end with their node");
    assert_eq!(world.metric("instance_deletion_duration_seconds", &[]), 1.0);
    assert_eq!(world.metric("instances_deleted_total", &["nodeclaim"]), 1.0);
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn a_spot_server_that_is_taken_away_is_missing_and_its_offer_left_alone() {
    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..SimOptions::default()
        },
        class: Some(json!({"spot": {"enabled": true, "taint": true}})),
        ..Setting::default()
    })
    .await;
    let wanted = json!([
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["p2.4c_8g"]},
    ]);
    let claim = world.launch(1, wanted).await;
    let notes = claim.metadata.annotations.clone().expect("notes");
    assert_eq!(notes["karpenter.bizflycloud.sh/instance-spot"], "true");
    world.clock.sleep(Duration::from_secs(120)).await;
    world.cloud.set_status(&server_of(&claim), "SHUTOFF");
    look(&world).await;
    assert_eq!(world.server_health(&name_of(&claim)), health("False", "ServerMissing"));
    look(&world).await;
    assert_eq!(
        world.metric("instances_deleted_total", &["spot_interrupted"]),
        1.0,
        "counted once"
    );
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let own = types.iter().find(|own| own.name == "p2.4c_8g").expect("listed");
    let spot = own.offerings.iter().filter(|offering| {
        let capacity = offering.requirements.get("karpenter.sh/capacity-type");
        capacity.and_then(|own| own.single_value()) == Some("spot")
    });
    assert_eq!(
        spot.filter(|offering| offering.available).count(),
        1,
        "the other zone still has it"
    );
}

#[tokio::test]
async fn a_spot_server_that_vanished_holds_its_offer_back_and_is_counted_once() {
    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..SimOptions::default()
        },
        class: Some(json!({"spot": {"enabled": true}})),
        ..Setting::default()
    })
    .await;
    let wanted = json!([
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["p2.4c_8g"]},
    ]);
    let (vanished, stopped) = (world.launch(1, wanted.clone()).await, world.launch(2, wanted).await);
    world.clock.sleep(Duration::from_secs(120)).await;
    world.cloud.vanish(&server_of(&vanished));
    world.cloud.set_status(&server_of(&stopped), "SHUTOFF");
    look(&world).await;
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let own = types.iter().find(|own| own.name == "p2.4c_8g").expect("listed");
    let spot = own.offerings.iter().filter(|offering| {
        let capacity = offering.requirements.get("karpenter.sh/capacity-type");
        capacity.and_then(|own| own.single_value()) == Some("spot")
    });
    assert_eq!(
        spot.filter(|offering| offering.available).count(),
        0,
        "each was in another zone"
    );
    for claim in [&vanished, &stopped] {
        world.terminate(&world.provider, claim).await;
    }
    assert_eq!(world.metric("instances_deleted_total", &["spot_interrupted"]), 2.0);
    assert_eq!(world.metric("instances_deleted_total", &[]), 2.0, "each once");
}

#[tokio::test]
async fn a_reboot_that_an_earlier_process_sent_is_not_sent_again() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    world.clock.sleep(Duration::from_secs(120)).await;
    let operation = RebootOperation("claim-1-boot-1".to_owned());
    world.provider.reboot(&claim, &operation).await.expect("accepted");
    let noted: NodeClaim = world.sandbox.objects().get("", &name_of(&claim)).expect("stored");
    world.clock.sleep(Duration::from_secs(30)).await;
    world.new_provider().reboot(&noted, &operation).await.expect("known");
    assert_eq!(world.count("POST", "/action"), 1);
    let another = RebootOperation("claim-1-boot-2".to_owned());
    world.new_provider().reboot(&noted, &another).await.expect("accepted");
    assert_eq!(world.count("POST", "/action"), 2);
}

#[tokio::test]
async fn memory_that_was_seen_too_long_ago_is_an_estimate_again() {
    let world = World::start().await;
    let claim = world.launch(1, only("nix.4c_8g")).await;
    let memory = async || {
        let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
        let own = types.iter().find(|own| own.name == "nix.4c_8g").expect("listed");
        own.capacity.memory().value() >> 20
    };
    look(&world).await;
    assert_eq!(memory().await, 7900);
    world.terminate(&world.provider, &claim).await;
    let objects = world.sandbox.objects();
    objects
        .delete::<NodeClaim>("", &name_of(&claim), &Default::default())
        .expect("deleted");
    world.clock.sleep(Duration::from_secs(61 * 24 * 3600)).await;
    look(&world).await;
    assert_eq!(memory().await, 8192 * 95 / 100);
}

#[tokio::test]
async fn a_hash_of_another_version_is_stamped_anew_instead_of_being_drift() {
    const HASH: &str = "karpenter.bizflycloud.com/bizflycloudnodeclass-hash";
    const VERSION: &str = "karpenter.bizflycloud.com/bizflycloudnodeclass-hash-version";
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let objects = world.sandbox.objects();
    let old = json!({"metadata": {"annotations": {HASH: "of-another-time", VERSION: "v0"}}});
    objects
        .patch::<NodeClaim>("", &name_of(&claim), &old)
        .expect("accepted");
    let stored = || -> NodeClaim { objects.get("", &name_of(&claim)).expect("stored") };
    assert_eq!(world.provider.is_drifted(&stored()).await.expect("readable"), None);
    let notes = stored().metadata.annotations.expect("notes");
    let made = claim.metadata.annotations.clone().expect("notes");
    assert_eq!((&notes[HASH], &notes[VERSION]), (&made[HASH], &made[VERSION]));
    let patch = json!({"spec": {"rootDiskSize": 80}});
    objects
        .patch::<karpenter_bizflycloud::BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    let drift = world.provider.is_drifted(&stored()).await.expect("readable");
    assert_eq!(drift.expect("drifted").0, "NodeClassDrifted", "from then on it counts");
}

#[tokio::test]
async fn a_zone_that_is_taken_out_of_the_class_is_drift_of_its_nodes() {
    let world = with_class(json!({"zones": ["HN1", "HN2"]})).await;
    let in_hn1 = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN1"]}]);
    let in_hn2 = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN2"]}]);
    let (first, second) = (world.launch(1, in_hn1).await, world.launch(2, in_hn2).await);
    let patch = json!({"spec": {"zones": ["HN2"]}});
    let objects = world.sandbox.objects();
    objects
        .patch::<karpenter_bizflycloud::BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    world.provider.reconcile_classes().await;
    let drift = async |claim: &NodeClaim| {
        let found = world.provider.is_drifted(claim).await.expect("readable");
        found.map(|own| own.0)
    };
    assert_eq!(drift(&first).await.as_deref(), Some("NodeClassRequirementsDrift"));
    assert_eq!(drift(&second).await, None);
}

#[tokio::test]
async fn what_a_node_turned_out_to_lack_is_not_planned_with_any_more() {
    let world = World::start().await;
    let claim = world.launch(1, only("nix.4c_8g")).await;
    let mut hungry = crate::environment::claim(2, only("nix.4c_8g"));
    hungry.spec.resources.requests = Some(serde_json::from_value(json!({"memory": "6500Mi"})).expect("requests"));
    let status = json!({"status": {"capacity": {"cpu": "4", "memory": "6600Mi", "pods": "110"}}});
    let objects = world.sandbox.objects();
    objects
        .patch_status::<k8s_openapi::api::core::v1::Node>("", &name_of(&claim), &status)
        .expect("accepted");
    look(&world).await;
    let error = world.provider.create(&hungry).await.expect_err("it would not fit");
    assert!(error.to_string().contains("no flavor"), "{error}");
    // Nobody learnt that: the estimate says that it fits.
    let wiped = world.sandbox.objects();
    wiped
        .delete::<k8s_openapi::api::core::v1::ConfigMap>("default", "karpenter-bizflycloud-ledger", &Default::default())
        .expect("deleted");
    world.new_provider().create(&hungry).await.expect("by the estimate");
}
