//! What is offered and chosen: zones, plans, disks, prices, and a catalogue that can't be read.

use std::time::Duration;

use karpenter_api::{
    Requirements,
    labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE},
    requirement::{Operator, Undefined},
};
use karpenter_bizflycloud::{
    BizflyCloudProvider, Settings,
    sim::{self, Fault, Often, Operation},
};
use karpenter_cloud::CloudProvider;
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim, class, pool};

async fn with_class(spec: Value) -> World {
    World::with(Setting {
        class: Some(spec),
        ..Setting::default()
    })
    .await
}

fn last_order(world: &World) -> Value {
    let requests = world.cloud.requests();
    let order = requests
        .iter()
        .rfind(|request| request.method == "POST" && request.path.ends_with("/servers"));
    order.expect("ordered").body[0].clone()
}

#[tokio::test]
async fn a_volume_pins_its_pod_to_a_zone_by_the_csi_drivers_label() {
    let world = World::start().await;
    for (number, key) in [
        (1, "topology.volume.csi.bizflycloud.vn/zone"),
        (2, "topology.fs.csi.bizflycloud.vn/zone"),
    ] {
        let pinned = json!([{"key": key, "operator": "In", "values": ["HN2"]}]);
        let made = world.provider.create(&claim(number, pinned)).await.expect("launched");
        assert_eq!(made.labels[ZONE], "HN2");
    }
}

#[tokio::test]
async fn a_pool_that_wants_hdd_gets_the_volume_type_of_its_tier() {
    let world = with_class(json!({"diskTypes": ["SSD", "HDD"]})).await;
    let wanted = json!([
        {"key": "karpenter.bizflycloud.com/disk-type", "operator": "In", "values": ["HDD"]},
        {"key": "karpenter.bizflycloud.com/node-category", "operator": "In", "values": ["enterprise"]},
    ]);
    let made = world.provider.create(&claim(1, wanted)).await.expect("launched");
    assert_eq!(last_order(&world)["rootdisk"]["volume_type"], "ENTERPRISE-HDD1");
    assert_eq!(made.labels["karpenter.bizflycloud.com/disk-type"], "HDD");
}

#[tokio::test]
async fn a_pool_with_an_old_capacity_type_is_paid_by_subscription_and_does_not_drift() {
    let world = World::start().await;
    let requirements = json!([{"key": CAPACITY_TYPE, "operator": "In", "values": ["saving_plan"]}]);
    let own = pool(requirements.clone());
    world.apply(&serde_json::to_value(&own).expect("plain data"));
    let types = world.provider.instance_types(&own).await.expect("types");
    assert!(
        types
            .iter()
            .any(|own| own.offerings.iter().any(|offering| offering.available))
    );
    let made = world
        .provider
        .create(&claim(1, requirements.clone()))
        .await
        .expect("launched");
    assert_eq!(last_order(&world)["billing_plan"], "saving_plan");
    assert_eq!(made.labels["karpenter.bizflycloud.com/billing-plan"], "saving_plan");
    let rules = world.provider.extend_label_rules(Default::default());
    assert_eq!(made.labels[CAPACITY_TYPE], "saving_plan", "the node keeps the spelling");
    let asked = Requirements::from_wire(&rules, &own.spec.template.spec.requirements);
    let labelled = Requirements::from_labels(&rules, &made.labels);
    assert!(
        labelled.is_compatible(&asked, Undefined::Denied),
        "no requirement drift"
    );
    let types = types.iter().find(|own| own.name == made.labels[INSTANCE_TYPE]);
    let price = karpenter_engine::disruption::price::of_node(&rules, types.expect("listed"), &made.labels);
    assert!(
        price.is_some_and(|price| price > 0.0),
        "consolidation can compare it: {price:?}"
    );
    let advice = world.provider.validate_node_pool(&own).await.expect("judged");
    assert_eq!(advice[0].reason, "DeprecatedCapacityType");
}

#[tokio::test]
async fn two_old_spellings_of_one_plan_are_that_plan_and_a_node_carries_the_pools_first() {
    let world = World::start().await;
    let spelled = |values: &[&str]| json!([{"key": CAPACITY_TYPE, "operator": "In", "values": values}]);
    let own = pool(spelled(&["saving_plan", "subscription"]));
    world.apply(&serde_json::to_value(&own).expect("plain data"));
    let types = world.provider.instance_types(&own).await.expect("types");
    let rules = world.provider.extend_label_rules(Default::default());
    let asked = Requirements::from_wire(&rules, &own.spec.template.spec.requirements);
    let mut available = types
        .iter()
        .flat_map(|own| own.offerings.iter())
        .filter(|own| own.available);
    assert!(
        available.all(|own| own
            .requirements
            .get("karpenter.bizflycloud.com/billing-plan")
            .is_some_and(|own| own.has("saving_plan"))),
        "both mean the one plan"
    );
    // What core makes of it: the current value.
    let made = world.provider.create(&claim(1, spelled(&["on-demand"]))).await;
    let made = made.expect("launched");
    assert_eq!(made.labels[CAPACITY_TYPE], "saving_plan");
    assert_eq!(made.labels["karpenter.bizflycloud.com/billing-plan"], "saving_plan");
    let labelled = Requirements::from_labels(&rules, &made.labels);
    assert!(
        labelled.is_compatible(&asked, Undefined::Denied),
        "no requirement drift: {}",
        made.labels[CAPACITY_TYPE]
    );
    assert_eq!(
        last_order(&world)["billing_plan"],
        "saving_plan",
        "the cloud's own name of it"
    );
    let advice = world.provider.validate_node_pool(&own).await.expect("judged");
    let told: Vec<&str> = advice.iter().map(|own| own.reason.as_str()).collect();
    assert_eq!(
        told,
        [
            "DeprecatedCapacityType",
            "DeprecatedCapacityType",
            "AmbiguousCapacityType"
        ]
    );
}

#[tokio::test]
async fn a_launch_answers_every_label_that_its_type_defines() {
    let world = World::start().await;
    let made = world.provider.create(&claim(1, json!([]))).await.expect("launched");
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let own = types
        .iter()
        .find(|own| own.name == made.labels[INSTANCE_TYPE])
        .expect("listed");
    for requirement in own.requirements.iter() {
        match made.labels.get(requirement.key()) {
            Some(value) => assert!(requirement.has(value), "{}: {value}", requirement.key()),
            None => assert_eq!(
                requirement.operator(),
                Operator::DoesNotExist,
                "{} is missing",
                requirement.key()
            ),
        }
    }
}

#[tokio::test]
async fn prices_of_a_config_map_change_the_choice_and_nonsense_changes_nothing() {
    let world = World::start().await;
    let prices = |text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": "default"},
            "data": {"prices.json": text},
        })
    };
    world.apply(&prices(
        r#"[{"flavor": "nix.16c_32g", "zone": "HN2", "hour": 0.01, "diskGiBHour": {"SSD": 0}}]"#,
    ));
    let pricing = json!({"source": "ConfigMap", "configMapRef": {"name": "prices", "namespace": "default"}});
    world.apply(&world.config(json!({"region": "HN", "pricing": pricing})));
    world.clock.sleep(Duration::from_secs(3)).await;
    let made = world.provider.create(&claim(1, json!([]))).await.expect("launched");
    assert_eq!(
        (made.labels[INSTANCE_TYPE].as_str(), made.labels[ZONE].as_str()),
        ("nix.16c_32g", "HN2")
    );
    world.apply(&prices("{not json"));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    let made = world.provider.create(&claim(2, json!([]))).await.expect("launched");
    assert_eq!(made.labels[INSTANCE_TYPE], "nix.16c_32g", "the previous prices hold");
    assert_eq!(world.events("InvalidPrices").len(), 1);
}

#[tokio::test]
async fn a_catalogue_that_cannot_be_read_is_served_for_an_hour_and_then_no_more() {
    let world = World::start().await;
    let own = pool(json!([]));
    let before = world.provider.instance_types(&own).await.expect("types").len();
    let down = Fault::Http {
        operation: Operation::Any,
        status: 503,
        body: String::new(),
        retry_after: None,
    };
    world.cloud.inject(down, Often::Always);
    world.clock.sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(
        world.provider.instance_types(&own).await.expect("old ones").len(),
        before
    );
    let stale = world.metric("catalog_stale_seconds", &["default/flavors"]);
    assert!((800.0..1300.0).contains(&stale), "{stale}");
    world.clock.sleep(Duration::from_secs(2 * 3600)).await;
    world.provider.instance_types(&own).await.expect_err("too old");
    world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect_err("nothing is launched");
}

#[tokio::test]
async fn a_class_other_than_default_is_honoured() {
    let world = World::start().await;
    let mut other = class(json!({"rootDiskSize": 100, "nodeCategories": ["enterprise"]}));
    other["metadata"]["name"] = json!("other");
    world.apply(&other);
    world.provider.reconcile_classes().await;
    let mut own = claim(1, json!([]));
    own.spec.node_class_ref.name = "other".to_owned();
    let made = world.provider.create(&own).await.expect("launched");
    assert_eq!(last_order(&world)["rootdisk"]["size"], 100);
    assert_eq!(made.labels["karpenter.bizflycloud.com/node-category"], "enterprise");
}

#[tokio::test]
async fn servers_of_a_pool_spread_over_zones_of_equal_price() {
    let world = World::start().await;
    let wanted = json!([{"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.4c_8g"]}]);
    let mut zones = Vec::new();
    for number in 1..=4 {
        let made = world
            .provider
            .create(&claim(number, wanted.clone()))
            .await
            .expect("launched");
        zones.push(made.labels[ZONE].clone());
    }
    zones.sort();
    assert_eq!(zones, ["HN1", "HN1", "HN2", "HN2"]);
}

#[tokio::test]
async fn the_environment_stands_in_for_a_missing_provider_config() {
    let world = World::with(Setting {
        class: None,
        ..Setting::default()
    })
    .await;
    let objects = world.sandbox.objects();
    objects
        .delete::<karpenter_bizflycloud::ProviderConfig>("", "default", &Default::default())
        .expect("deleted");
    let base = crate::environment::settings(&world.in_flight);
    let url = world.cloud.url();
    let variables = [
        ("BIZFLY_CLOUD_EMAIL", sim::EMAIL),
        ("BIZFLY_CLOUD_PASSWORD", sim::PASSWORD),
        ("BIZFLY_CLOUD_REGION", "HN1"),
        ("BIZFLY_CLOUD_API_URL", url.as_str()),
    ];
    let environment = Settings::from_lookup(|name| {
        let found = variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    })
    .environment;
    let provider = BizflyCloudProvider::new(
        world.sandbox.client(),
        world.clock.clone(),
        Settings { environment, ..base },
    );
    world.apply(&class(json!({})));
    provider.reconcile_classes().await;
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    assert_eq!(world.class().status.expect("a status").zones, ["HN1", "HN2"]);
    provider.create(&claim(1, json!([]))).await.expect("launched");
}

#[tokio::test]
async fn prices_of_the_billing_api_decide_where_the_user_wrote_none() {
    let world = World::start().await;
    let pricing = |more: Value| {
        let mut pricing =
            json!({"source": "BillingAPI", "billingEndpoint": format!("{}/api/v4/plans", world.cloud.url())});
        pricing
            .as_object_mut()
            .expect("fields")
            .extend(more.as_object().expect("fields").clone());
        world.config(json!({"region": "HN", "pricing": pricing}))
    };
    let price = async |name: &str| {
        let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
        let own = types.iter().find(|own| own.name == name).expect("listed");
        own.offerings[0].price
    };
    world.apply(&pricing(json!({})));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    // A month of a premium vCPU is 7,200 and of a GiB 3,600; on demand half as much again; 20 GB of disk.
    let disk = 20.0 * 1.3;
    assert!((price("nix.4c_8g").await - (4.0 * 15.0 + 8.0 * 7.5 + disk)).abs() < 1e-9);
    assert!(
        (price("nix.8c_16g").await - (5.0 + disk)).abs() < 1e-9,
        "this one is listed itself"
    );
    assert!(
        price("4c_8g_basic").await > price("nix.4c_8g").await,
        "the list has it so"
    );
    world.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": "default"},
        "data": {"prices.json": r#"[{"flavor": "nix.8c_16g", "hour": 1}]"#},
    }));
    world.apply(&pricing(
        json!({"configMapRef": {"name": "prices", "namespace": "default"}}),
    ));
    world.clock.sleep(Duration::from_secs(3)).await;
    assert!(
        (price("nix.8c_16g").await - (1.0 + disk)).abs() < 1e-9,
        "what the user wrote comes first"
    );
    assert!(world.events("BillingAPIUnavailable").is_empty());
}

#[tokio::test]
async fn a_billing_api_that_cannot_be_read_leaves_what_was_known_and_is_told() {
    let world = World::start().await;
    let answer = |status: u16, body: &str| Fault::Http {
        operation: Operation::Billing,
        status,
        body: body.to_owned(),
        retry_after: None,
    };
    let price = async || {
        let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
        types
            .iter()
            .find(|own| own.name == "nix.8c_16g")
            .expect("listed")
            .offerings[0]
            .price
    };
    let estimated = price().await;
    world.cloud.inject(answer(503, "busy"), Often::Times(1));
    let pricing = json!({"source": "BillingAPI", "billingEndpoint": format!("{}/api/v4/plans", world.cloud.url())});
    world.apply(&world.config(json!({"region": "HN", "pricing": pricing})));
    world.clock.sleep(Duration::from_secs(3)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(price().await, estimated, "estimates, as long as nothing was read");
    assert_eq!(world.events("BillingAPIUnavailable").len(), 1);
    world.clock.sleep(Duration::from_secs(61)).await;
    world.provider.reconcile_classes().await;
    let listed = price().await;
    assert!(listed < estimated);
    world.cloud.inject(answer(200, "[]"), Often::Always);
    world.clock.sleep(Duration::from_secs(3601)).await;
    world.provider.reconcile_classes().await;
    assert_eq!(price().await, listed, "what was read before stays");
    let told = world.events("BillingAPIUnavailable");
    assert!(told.iter().any(|own| own.contains("none of its 0 plans")), "{told:?}");
}

#[tokio::test]
async fn static_prices_are_estimates_and_take_no_config_map() {
    let world = World::start().await;
    let reference = json!({"name": "prices", "namespace": "default"});
    let object = world.config(json!({"region": "HN", "pricing": {"source": "Static", "configMapRef": reference}}));
    let error = world
        .sandbox
        .apply(&object.to_string())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("source Static uses no configMapRef"), "{error}");
}

#[tokio::test]
async fn what_two_classes_are_offered_is_counted_together() {
    let world = World::start().await;
    let mut other = class(json!({"nodeCategories": ["enterprise"], "billingPlans": ["saving_plan"]}));
    other["metadata"]["name"] = json!("other");
    world.apply(&other);
    world.provider.reconcile_classes().await;
    let mut own = pool(json!([]));
    world.provider.instance_types(&own).await.expect("types");
    let before = world.metric("offering_available", &["nix.4c_8g", "HN1", "on_demand", "SSD"]);
    own.spec.template.spec.node_class_ref.name = "other".to_owned();
    world.provider.instance_types(&own).await.expect("types");
    assert_eq!(before, 1.0);
    assert_eq!(
        world.metric("offering_available", &["nix.4c_8g", "HN1", "on_demand", "SSD"]),
        1.0,
        "still there"
    );
    assert_eq!(
        world.metric("offering_available", &["e2.4c_8g", "HN1", "saving_plan", "SSD"]),
        1.0
    );
    assert!(world.metric("instance_types_available", &["HN", "HN1"]) > 10.0);
}
