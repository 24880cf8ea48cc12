//! NodeClass and ProviderConfig: what the API server takes, and what their conditions say.

use std::time::Duration;

use karpenter_api::{conditions::StatusConditions, labels::ZONE};
use karpenter_bizflycloud::{
    BizflyCloudNodeClass, ProviderConfig,
    sim::{self, DEFAULT_VPC, Fault, HN1_VPC, Often, Operation, SimOptions},
};
use karpenter_cloud::CloudProvider;
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim, class, pool, secret};

async fn with_class(spec: Value) -> World {
    World::with(Setting {
        class: Some(spec),
        ..Setting::default()
    })
    .await
}

fn config(world: &World) -> ProviderConfig {
    world.sandbox.objects().get("", "default").expect("it exists")
}

#[tokio::test]
async fn an_empty_class_is_ready_with_the_clusters_network_and_all_open_zones() {
    let world = World::start().await;
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    assert_eq!(world.condition("InstanceReady").0, "True");
    let status = world.class().status.expect("a status");
    assert_eq!(status.zones, ["HN1", "HN2"]);
    assert_eq!(status.vpc_networks[0].id, DEFAULT_VPC);
    assert_eq!(
        status.images[0].id, "worker-36-3",
        "the image for the API server's version"
    );
    assert!(status.instance_types.contains(&"nix.4c_8g".to_owned()));
    let config = config(&world);
    assert!(config.is_ready(), "{:#?}", config.status);
    let status = config.status.expect("a status");
    assert_eq!(
        (status.regions, status.project_id.as_deref()),
        (vec!["HCM".into(), "HN".into()], Some(sim::PROJECT))
    );
}

#[tokio::test]
async fn defaults_of_a_provider_config_are_those_of_its_manifests() {
    let world = World::start().await;
    let bare = json!({
        "apiVersion": "bizflycloud.karpenter.sh/v1alpha1", "kind": "ProviderConfig", "metadata": {"name": "bare"},
        "spec": {"region": "HN1", "secretRef": {"name": "s", "namespace": "karpenter"}},
    });
    world.apply(&bare);
    let stored: ProviderConfig = world.sandbox.objects().get("", "bare").expect("accepted");
    let spec = serde_json::to_value(stored.spec).expect("plain data");
    assert_eq!(
        spec,
        json!({
            "region": "HN1", "secretRef": {"name": "s", "namespace": "karpenter"},
            "tagging": {"enableResourceTags": true, "tagPrefix": "karpenter.bizflycloud.sh/"},
            "cloudConfig": {
                "apiEndpoint": "https://manage.bizflycloud.vn/api", "retryMaxAttempts": 5, "retryInitialDelay": "1s", "timeout": "30s",
                "qps": 10.0, "burst": 20, "authMode": "Token",
            },
            "imageConfig": {"imageID": "ubuntu-20.04", "rootDiskSize": 20, "enableIPv6": false},
            "driftDetection": {"enabled": true, "reconcileInterval": "5m0s", "autoRemediate": true},
        })
    );
}

#[tokio::test]
async fn values_out_of_bounds_are_refused_by_the_api_server() {
    let world = World::start().await;
    for (path, value) in [
        ("/region", json!("HN3")),
        ("/cloudConfig/retryMaxAttempts", json!(11)),
        ("/cloudConfig/retryMaxAttempts", json!(0)),
        ("/cloudConfig/apiEndpoint", json!("http://example.com")),
        ("/tagging/tagPrefix", json!("Not A Prefix")),
        ("/tagging/additionalTags", json!({"nodeclaim-uid": "x"})),
        ("/cloudConfig/retryInitialDelay", json!("61s")),
        ("/cloudConfig/retryInitialDelay", json!("0s")),
        ("/cloudConfig/timeout", json!("6m")),
    ] {
        let mut object = world.config(json!({"region": "HN", "tagging": {}}));
        let (parent, key) = path.rsplit_once('/').expect("a path");
        object["spec"].pointer_mut(parent).expect("a parent")[key] = value.clone();
        object["metadata"]["name"] = json!("refused");
        assert!(world.sandbox.apply(&object.to_string()).is_err(), "{path}: {value}");
    }
    for spec in [
        json!({"osType": ["windows"]}),
        json!({"rootDiskSize": 10}),
        json!({"imageSelectorTerms": [{"id": "a", "name": "b"}]}),
        json!({"bootstrap": {"mode": "UserData", "bke": {}}}),
        json!({"tags": ["novalue"]}),
        json!({"tags": ["karpenter-managed=false"]}),
        json!({"tags": ["bke_cluster_id=x"]}),
        json!({"zones": ["HN1", "HN1"]}),
        json!({"dataDisks": [{"size": 5}]}),
        json!({"dataDisks": [{"size": 20, "type": "TAPE"}]}),
        json!({"warmPool": {"size": 1, "flavor": "nix.4c_8g"}}),
        json!({"zones": ["HN1"], "placementStrategy": {"spread": {"zones": ["HN2"]}}}),
    ] {
        assert!(world.sandbox.apply(&class(spec.clone()).to_string()).is_err(), "{spec}");
    }
}

#[tokio::test]
async fn what_a_class_names_and_the_cloud_lacks_is_named_in_its_condition() {
    let world = World::start().await;
    for (number, (spec, condition, reason, named)) in (1..).zip([
        (
            json!({"vpcNetworkIds": ["vpc-x"]}),
            "NetworksReady",
            "VPCNotFound",
            "vpc-x",
        ),
        (
            json!({"sshKeyName": "nobodys"}),
            "SecurityGroupsReady",
            "SSHKeyNotFound",
            "nobodys",
        ),
        (
            json!({"securityGroups": [{"securityGroupID": "fw-x"}]}),
            "SecurityGroupsReady",
            "SecurityGroupNotFound",
            "fw-x",
        ),
        (
            json!({"imageSelectorTerms": [{"alias": "debian-12"}]}),
            "ImagesReady",
            "ImageNotFound",
            "debian-12",
        ),
        (json!({"zones": ["HCM1"]}), "ZonesReady", "ZoneNotFound", "HCM1"),
        (json!({"region": "HCM"}), "ZonesReady", "RegionMismatch", "HCM"),
        (
            json!({"cpuVendors": ["AMD5"]}),
            "InstanceTypesReady",
            "NoInstanceTypes",
            "cpuVendors",
        ),
        (
            json!({"tags": ["karpenter.bizflycloud.sh/cluster=another"]}),
            "ValidationSucceeded",
            "ValidationFailed",
            "is reserved",
        ),
        (
            json!({"bootstrap": {"mode": "UserData"}}),
            "BootstrapReady",
            "BootstrapIncomplete",
            "CLUSTER_ENDPOINT",
        ),
        (
            json!({"bootstrap": {"bke": {"clusterID": "elsewhere"}}}),
            "BootstrapReady",
            "ClusterNotFound",
            "elsewhere",
        ),
    ]) {
        let name = format!("case-{number}");
        let mut object = class(spec.clone());
        object["metadata"]["name"] = json!(name);
        world.apply(&object);
        world.provider.reconcile_classes().await;
        let (status, own_reason, message) = world.condition_of(&name, condition);
        assert_eq!(
            (status.as_str(), own_reason.as_str()),
            ("False", reason),
            "{spec}: {message}"
        );
        assert!(message.contains(named), "{spec}: {message}");
        assert_ne!(world.condition_of(&name, "Ready").0, "True", "{spec}");
        assert_eq!(world.events(reason).len(), 1, "{spec}: told by an event");
        let fields = spec.as_object().expect("fields");
        let unset: serde_json::Map<String, Value> = fields.keys().map(|key| (key.clone(), Value::Null)).collect();
        let objects = world.sandbox.objects();
        let patch = json!({ "spec": unset });
        objects
            .patch::<BizflyCloudNodeClass>("", &name, &patch)
            .expect("accepted");
        world.provider.reconcile_classes().await;
        assert_eq!(
            world.condition_of(&name, "Ready").0,
            "True",
            "{spec}: one look is enough once it is mended"
        );
        let gone = objects.delete::<BizflyCloudNodeClass>("", &name, &Default::default());
        gone.expect("deleted");
        // The same reason of the next case is another event.
        world.clock.sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_network_that_reaches_one_zone_narrows_the_class_with_a_warning() {
    let world = with_class(json!({"vpcNetworkIds": [HN1_VPC], "zones": ["HN1", "HN2"]})).await;
    let status = world.class().status.expect("a status");
    assert_eq!(status.zones, ["HN1"]);
    assert!(
        status.warnings.iter().any(|warning| warning.contains("HN2")),
        "{:?}",
        status.warnings
    );
    assert_eq!(world.condition("Ready").0, "True");
    assert_eq!(offered_zones(&world).await, ["HN1"]);
}

/// The zones that anything can be had in.
async fn offered_zones(world: &World) -> Vec<String> {
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let offerings = types.iter().flat_map(|own| &own.offerings).filter(|own| own.available);
    let zones = offerings.filter_map(|own| own.requirements.get(ZONE)?.single_value().map(str::to_owned));
    zones.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

#[tokio::test]
async fn an_ubuntu_alias_on_bke_means_its_worker_image() {
    let world = with_class(json!({"imageSelectorTerms": [{"alias": "ubuntu-20.04"}]})).await;
    let status = world.class().status.expect("a status");
    assert_eq!(status.images[0].id, "worker-36-3");
    assert_eq!(status.images[0].name, "ubuntu-20.04");
    let mapped = |warning: &String| warning.starts_with("ImageAliasMappedToWorkerImage");
    assert!(status.warnings.iter().any(mapped), "{:?}", status.warnings);
}

#[tokio::test]
async fn a_zone_for_a_region_prefers_and_a_zone_for_a_zone_restricts() {
    let world = World::start().await;
    world.apply(&world.config(json!({"region": "HN2"})));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(world.class().status.expect("a status").zones, ["HN2", "HN1"]);
    assert_eq!(offered_zones(&world).await, ["HN1", "HN2"]);
    world.apply(&world.config(json!({"region": "HN1", "zone": "HN1"})));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(world.class().status.expect("a status").zones, ["HN1"]);
    assert_eq!(offered_zones(&world).await, ["HN1"]);
}

#[tokio::test]
async fn wrong_credentials_are_a_condition_and_recover_without_a_restart() {
    let world = World::start().await;
    world.apply(&secret("wrong-password"));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    let broken = config(&world);
    let condition = broken.condition("CredentialsReady").expect("judged");
    assert_eq!(
        (condition.is_false(), condition.reason.as_str()),
        (true, "Unauthorized")
    );
    assert!(!condition.message.contains("wrong-password"));
    assert_eq!(world.condition("CredentialsReady").0, "False");
    world.apply(&secret(&format!("{}\n", sim::PASSWORD)));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    assert!(config(&world).is_ready(), "a trailing newline does not matter");
    assert_eq!(world.condition("Ready").0, "True");
}

#[tokio::test]
async fn an_account_in_debt_pauses_launches_until_it_is_paid() {
    let world = World::start().await;
    world.cloud.set_balance(-5);
    world.provider.reconcile_classes().await;
    let condition = config(&world).condition("BillingReady").cloned().expect("judged");
    assert_eq!(
        (condition.is_false(), condition.reason.as_str()),
        (true, "NegativeBalance")
    );
    assert_ne!(world.condition("Ready").0, "True");
    let paused = world.provider.create(&claim(1, json!([]))).await;
    paused.expect_err("nothing is launched meanwhile");
    assert_eq!(world.count("POST", "/servers"), 0);
    world.cloud.set_balance(5);
    world.provider.reconcile_classes().await;
    assert_eq!(world.condition("Ready").0, "True");
    world.provider.create(&claim(1, json!([]))).await.expect("launched");
}

#[tokio::test]
async fn a_class_stays_until_its_last_claim_is_gone() {
    let world = World::start().await;
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "user"},
        "spec": {"requirements": [], "nodeClassRef": {
            "group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": "default"}},
    });
    world.apply(&claim);
    let objects = world.sandbox.objects();
    let delete = |name: &str| objects.delete::<BizflyCloudNodeClass>("", name, &Default::default());
    delete("default").expect("accepted");
    world.provider.reconcile_classes().await;
    assert!(
        objects.get::<BizflyCloudNodeClass>("", "default").is_some(),
        "a claim still uses it"
    );
    assert_eq!(world.events("WaitingOnNodeClaimTermination").len(), 1);
    let gone = objects.delete::<karpenter_api::NodeClaim>("", "user", &Default::default());
    gone.expect("deleted");
    world.provider.reconcile_classes().await;
    assert!(objects.get::<BizflyCloudNodeClass>("", "default").is_none());
}

/// As the earlier provider's samples have it: every field that its CRD knew.
fn old_class() -> Value {
    class(json!({
        "region": "HN", "zones": ["HN1", "HN2"], "template": "Ubuntu 24.04 LTS", "osType": ["ubuntu"],
        "nodeCategories": ["premium", "enterprise"], "cpuVendors": ["Intel2", "AMD4"], "diskTypes": ["SSD", "HDD"],
        "networkPlans": ["free_datatransfer", "free_bandwidth"], "rootDiskSize": 40, "vpcNetworkIds": [DEFAULT_VPC],
        "sshKeyName": "ops", "tags": ["env=prod"], "metadataOptions": {"type": "template"},
        "placementStrategy": {"spread": {"zones": ["HN1", "HN2"]}},
    }))
}

/// As the earlier provider's samples have it, with one of its capacity types.
fn old_pool(capacity_type: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "sample"},
        "spec": {
            "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s"},
            "limits": {"cpu": "1000"},
            "template": {"spec": {
                "nodeClassRef": {"group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": "default"},
                "startupTaints": [
                    {"key": "karpenter.sh/disrupted", "effect": "NoExecute"},
                    {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
                ],
                "terminationGracePeriod": "30s",
                "requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
                    {"key": "karpenter.bizflycloud.com/node-category", "operator": "In", "values": ["premium"]},
                    {"key": "karpenter.bizflycloud.com/disk-type", "operator": "In", "values": ["SSD"]},
                    {"key": "karpenter.bizflycloud.com/cpu-vendor", "operator": "In", "values": ["AMD4"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HN1", "HN2"]},
                ],
            }},
        },
    })
}

#[tokio::test]
async fn samples_of_the_earlier_provider_apply_and_a_capacity_type_that_is_no_label_is_refused() {
    let world = World::start().await;
    world.apply(&old_class());
    world.provider.reconcile_classes().await;
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    let rules = world.provider.extend_label_rules(Default::default());
    for capacity_type in ["on_demand", "saving_plan"] {
        world.apply(&old_pool(capacity_type));
        let pool: karpenter_api::NodePool = world.sandbox.objects().get("", "sample").expect("accepted");
        assert_eq!(pool.validate(&rules), [], "{capacity_type}");
        let advice = world.provider.validate_node_pool(&pool).await.expect("judged");
        assert!(
            advice.iter().any(|own| own.reason == "DeprecatedCapacityType"),
            "{advice:?}"
        );
    }
    let broken = old_pool("subscription ");
    let told = match world.sandbox.apply(&broken.to_string()) {
        Err(error) => error.to_string(),
        Ok(_) => {
            let pool: karpenter_api::NodePool = world.sandbox.objects().get("", "sample").expect("there");
            pool.validate(&rules).iter().map(ToString::to_string).collect()
        }
    };
    assert!(told.contains("values[0]"), "its place is named: {told}");
    assert!(
        told.contains("must consist of letters, digits") && told.contains("begin and end with a letter or digit"),
        "and what is wrong with it: {told}"
    );
}

#[tokio::test]
async fn an_image_that_is_named_by_its_id_is_booted_on_bke_too() {
    let world = with_class(json!({"imageSelectorTerms": [{"id": sim::CUSTOM_IMAGE}]})).await;
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    let made = world.provider.create(&claim(1, json!([]))).await.expect("launched");
    let mut posts = world.cloud.requests().into_iter();
    let order = posts.rfind(|request| request.method == "POST" && request.path.ends_with("/servers"));
    let order = order.expect("ordered").body[0].clone();
    assert_eq!(order["os"], json!({"id": sim::CUSTOM_IMAGE, "type": "image"}));
    assert_eq!(made.image_id.as_deref(), Some(sim::CUSTOM_IMAGE));
    let mut launched = claim(1, json!([]));
    made.apply_to(&mut launched);
    assert_eq!(world.provider.is_drifted(&launched).await.expect("readable"), None);
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_told_while_it_still_serves() {
    let world = World::with(Setting {
        options: SimOptions {
            token_lifetime: Duration::from_secs(3600),
            ..SimOptions::default()
        },
        ..Setting::default()
    })
    .await;
    world.clock.sleep(Duration::from_secs(50 * 60)).await;
    let fault = Fault::Http {
        operation: Operation::Token,
        status: 503,
        body: "busy".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(fault, Often::Always);
    world.provider.reconcile_classes().await;
    let told = world.events("TokenRefreshFailed");
    assert!(told.len() == 1 && told[0].contains("busy"), "{told:?}");
    assert_eq!(world.condition("CredentialsReady").0, "True", "the old one serves");
    world.cloud.heal();
    world.clock.sleep(Duration::from_secs(660)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(world.events("TokenRefreshFailed").len(), 1, "renewed");
}

#[tokio::test]
async fn a_region_that_the_account_may_not_use_is_a_condition_and_an_event() {
    let world = World::start().await;
    world.cloud.inject(Fault::RegionDisabled, Often::Always);
    world.provider.reconcile_classes().await;
    let config = config(&world);
    let region = config.condition("RegionReady").expect("judged");
    assert_eq!((region.is_false(), region.reason.as_str()), (true, "RegionNotAllowed"));
    assert!(region.message.contains("may not use region HN"), "{}", region.message);
    assert_eq!(world.events("RegionNotAllowed").len(), 1);
}

#[tokio::test]
async fn what_may_go_wrong_with_a_class_is_an_event_of_its_own() {
    let world = with_class(json!({"publicIP": false, "vpcNetworkIds": [HN1_VPC]})).await;
    world.cloud.add_scaled_pool("workers");
    world.clock.sleep(Duration::from_secs(3700)).await;
    world.provider.reconcile_classes().await;
    let warnings = world.class().status.expect("judged").warnings;
    let told = |reason: &str| warnings.iter().any(|own| own.starts_with(reason)) && !world.events(reason).is_empty();
    assert!(!told("NoEgress"), "the network has a gateway: {warnings:?}");
    assert!(told("ClusterAutoscalerActive"), "{warnings:?}");
    let other = with_class(json!({"publicIP": false, "vpcNetworkIds": [DEFAULT_VPC]})).await;
    let warnings = other.class().status.expect("judged").warnings;
    assert!(warnings.iter().any(|own| own.starts_with("NoEgress")), "{warnings:?}");
    assert!(!other.events("NoEgress").is_empty());
}
