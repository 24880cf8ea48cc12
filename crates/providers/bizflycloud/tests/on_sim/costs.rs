//! What a month costs, what could be saved, and what of it outlives the process.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_api::{NodeClaim, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::{
    BizflyCloudNodeClass, BizflyCloudProvider,
    cost::{CONFIG_MAP, CostPage, PAGE, Recommendation},
    sim::{Fault, Often, SimOptions},
};
use serde_json::{Value, json};

use crate::environment::{Setting, World, pool};

fn one_of(flavors: &[&str]) -> Value {
    json!([{"key": INSTANCE_TYPE, "operator": "In", "values": flavors}])
}

fn price_of(claim: &NodeClaim) -> f64 {
    let notes = claim.metadata.annotations.as_ref().expect("notes");
    notes["karpenter.bizflycloud.com/hourly-price"]
        .parse()
        .expect("a price")
}

/// Prices that the user wrote, and what they are counted in.
async fn priced(world: &World, prices: &Value, currency: &str) {
    world.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": "default"},
        "data": {"prices.json": prices.to_string()},
    }));
    let pricing = json!({
        "source": "ConfigMap", "configMapRef": {"name": "prices", "namespace": "default"}, "currency": currency,
    });
    world.apply(&world.config(json!({"region": "HN", "pricing": pricing})));
    pass(world, 3).await;
}

/// A claim that is deleted, and stays for its finalizer.
fn leave(world: &World, claim: &NodeClaim) {
    let name = claim.metadata.name.as_deref().expect("a name");
    let objects = world.sandbox.objects();
    let kept = json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}});
    objects.patch::<NodeClaim>("", name, &kept).expect("accepted");
    objects
        .delete::<NodeClaim>("", name, &Default::default())
        .expect("accepted");
}

async fn pass(world: &World, seconds: u64) {
    world.clock.sleep(Duration::from_secs(seconds)).await;
}

/// Looks after some time has passed.
async fn look(world: &World, provider: &BizflyCloudProvider, after: u64) {
    pass(world, after).await;
    provider.look_at_fleet().await.expect("looked at");
}

fn ledger(world: &World) -> ConfigMap {
    world.sandbox.objects().get("default", CONFIG_MAP).expect("stored")
}

fn page(world: &World) -> CostPage {
    let pages = ledger(world).data.expect("pages");
    serde_json::from_str(&pages[PAGE]).expect("a page")
}

fn spent(page: &CostPage) -> f64 {
    page.node_pools.iter().map(|own| own.amount).sum()
}

fn check(page: &CostPage, hourly: f64, from: Timestamp, until: Timestamp) {
    let expected = hourly * until.duration_since(from).as_secs_f64() / 3600.0;
    let found = spent(page);
    assert!(
        (found - expected).abs() < 1e-3,
        "{found} instead of {expected}: {page:?}"
    );
}

fn of_kind(page: &CostPage, kind: &str) -> Vec<Recommendation> {
    let own = page.recommendations.iter().filter(|own| own.kind == kind);
    own.cloned().collect()
}

#[tokio::test]
async fn an_hour_of_a_fleet_costs_its_price_and_a_restart_goes_on_from_there() {
    let world = World::start().await;
    let (first, second) = (
        world.launch(1, one_of(&["nix.4c_8g"])).await,
        world.launch(2, one_of(&["nix.8c_16g"])).await,
    );
    let hourly = price_of(&first) + price_of(&second);
    look(&world, &world.provider, 3).await;
    let begin = page(&world);
    assert_eq!(
        (spent(&begin), begin.since),
        (0.0, begin.at),
        "what was before is not known"
    );
    for _ in 0..60 {
        look(&world, &world.provider, 60).await;
    }
    let hour = page(&world);
    assert!(
        hour.at.duration_since(begin.at).as_secs() > 3300,
        "stored every 5 minutes: {hour:?}"
    );
    check(&hour, hourly, begin.at, hour.at);
    let now = world.metric("nodepool_cost_month_to_date", &["default", "VND"]);
    assert!(now >= spent(&hour) && now > 0.95 * hourly, "{now}");
    let kept = ledger(&world).data.expect("pages");
    assert!(kept.contains_key("volumes.json"), "the ledger's other pages stay");

    let restarted = world.new_provider();
    look(&world, &restarted, 300).await;
    let after = page(&world);
    check(&after, hourly, begin.at, after.at);
    assert_eq!((after.since, after.unwatched_seconds), (begin.since, 0));

    look(&world, &restarted, 7200).await;
    let gap = page(&world);
    assert_eq!(spent(&gap), spent(&after), "two hours that nobody watched");
    assert!(gap.unwatched_seconds >= 7200, "{gap:?}");
    assert_eq!(gap.since, begin.since);
}

#[tokio::test]
async fn a_new_month_begins_at_nothing() {
    let world = World::start().await;
    let claim = world.launch(1, one_of(&["nix.4c_8g"])).await;
    look(&world, &world.provider, 60).await;
    look(&world, &world.provider, 600).await;
    assert!(spent(&page(&world)) > 0.0);
    let last = "2026-01-31T23:58:00Z".parse().expect("a time");
    world.clock.sleep_until(last).await;
    world.provider.look_at_fleet().await.expect("looked at");
    assert_eq!(page(&world).month, "2026-01");
    look(&world, &world.provider, 60).await;
    assert_eq!(page(&world).month, "2026-01");
    look(&world, &world.provider, 90).await;
    let first: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
    let page = page(&world);
    assert_eq!(
        (page.month.as_str(), page.since),
        ("2026-02", first),
        "stored at once, and told from its beginning"
    );
    check(&page, price_of(&claim), first, page.at);
    let old = of_kind(&page, "saving-plan");
    assert_eq!(old.len(), 1, "30 days on demand: {page:?}");
    assert_eq!(old[0].node_pool.as_deref(), Some("default"));
    assert!(
        old[0].per_month > 0.0 && old[0].sentence.starts_with("1 node has run on demand"),
        "{old:?}"
    );
}

#[tokio::test]
async fn a_page_that_cannot_be_read_is_begun_anew() {
    let world = World::start().await;
    world.launch(1, json!([])).await;
    look(&world, &world.provider, 3).await;
    let broken = json!({"data": {PAGE: "{not json"}});
    let objects = world.sandbox.objects();
    objects
        .patch::<ConfigMap>("default", CONFIG_MAP, &broken)
        .expect("accepted");
    look(&world, &world.new_provider(), 60).await;
    let page = page(&world);
    assert_eq!((page.since, spent(&page)), (page.at, 0.0));
}

#[tokio::test]
async fn a_cheaper_category_and_a_cheaper_generation_are_recommended() {
    let world = World::start().await;
    let prices = json!([
        {"flavor": "nix.4c_8g", "hour": 100}, {"flavor": "4c_8g_basic", "hour": 60}, {"flavor": "p2.4c_8g", "hour": 10},
    ]);
    priced(&world, &prices, "USD").await;
    for cheap in ["4c_8g_basic", "p2.4c_8g"] {
        let sold_out = Fault::SoldOut {
            flavor: Some(cheap.to_owned()),
            zone: None,
        };
        world.cloud.inject(sold_out, Often::Always);
    }
    let (one, other) = (
        world.launch(1, one_of(&["nix.4c_8g", "4c_8g_basic"])).await,
        world.launch(2, one_of(&["nix.4c_8g", "p2.4c_8g"])).await,
    );
    let flavor = |claim: &NodeClaim| claim.metadata.labels.clone().expect("labels")[INSTANCE_TYPE].clone();
    assert_eq!((flavor(&one), flavor(&other)), ("nix.4c_8g".into(), "nix.4c_8g".into()));
    world.cloud.heal();
    look(&world, &world.provider, 600).await;
    let found = page(&world);
    let (category, generation) = (of_kind(&found, "category"), of_kind(&found, "generation"));
    assert_eq!((category.len(), generation.len()), (1, 1), "{found:?}");
    assert!(
        category[0].sentence.contains("nix.4c_8g could be 4c_8g_basic")
            && generation[0].sentence.contains("nix.4c_8g could be p2.4c_8g"),
        "{found:?}"
    );
    assert_eq!(found.recommendations[0].kind, "generation", "the largest first");
    for (own, hourly) in [(&generation[0], 90.0), (&category[0], 40.0)] {
        assert!((own.per_month - hourly * 720.0).abs() < 1e-6, "{own:?}");
        assert_eq!(own.currency, "USD");
    }
    leave(&world, &one);
    look(&world, &world.provider, 901).await;
    let found = page(&world);
    assert_eq!(of_kind(&found, "category"), [], "what goes anyway is not told of");
    assert_eq!(of_kind(&found, "generation").len(), 1, "{found:?}");
}

#[tokio::test]
async fn another_plan_or_disk_is_not_another_flavor() {
    let world = World::start().await;
    let prices = json!([{"plan": "on_demand", "hour": 100}, {"plan": "saving_plan", "hour": 50}]);
    priced(&world, &prices, "VND").await;
    world.launch(1, one_of(&["nix.4c_8g", "p2.4c_8g"])).await;
    for wider in [
        json!({"billingPlans": ["on_demand", "saving_plan"]}),
        json!({"diskTypes": ["SSD", "HDD"]}),
    ] {
        let objects = world.sandbox.objects();
        objects
            .patch::<BizflyCloudNodeClass>("", "default", &json!({"spec": wider}))
            .expect("accepted");
        look(&world, &world.provider, 901).await;
        assert_eq!(page(&world).recommendations, [], "both flavors cost the same");
    }
}

#[tokio::test]
async fn a_node_costs_what_it_did_in_the_currency_that_it_was_launched_in() {
    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..SimOptions::default()
        },
        ..Setting::default()
    })
    .await;
    world.apply(&serde_json::to_value(pool(json!([]))).expect("JSON"));
    let prices = |nix: f64| {
        json!([
            {"flavor": "p2.4c_8g", "plan": "on_demand", "hour": 1000}, {"flavor": "nix.4c_8g", "plan": "on_demand", "hour": nix},
        ])
    };
    priced(&world, &prices(2000.0), "VND").await;
    let claim = world.launch(1, one_of(&["nix.4c_8g", "p2.4c_8g"])).await;
    let notes = claim.metadata.annotations.as_ref().expect("notes");
    assert_eq!(notes["karpenter.bizflycloud.com/hourly-currency"], "VND");
    priced(&world, &prices(10.0), "USD").await;
    look(&world, &world.provider, 60).await;
    look(&world, &world.provider, 600).await;
    let found = page(&world);
    let currencies: Vec<&str> = found.node_pools.iter().map(|own| own.currency.as_str()).collect();
    assert_eq!((currencies, found.recommendations), (vec!["VND"], Vec::new()));
    let told = ["VND", "USD"].map(|currency| world.metric("nodepool_cost_hourly", &["default", currency]));
    assert_eq!(told, [price_of(&claim), 0.0]);
    priced(&world, &prices(10.0), "VND").await;
    look(&world, &world.provider, 901).await;
    let found = page(&world);
    assert_eq!(
        (of_kind(&found, "generation").len(), of_kind(&found, "spot").len()),
        (1, 1),
        "now they can be compared: {found:?}"
    );
}

#[tokio::test]
async fn stopped_servers_and_orphan_disks_are_recommended_and_left_alone() {
    let world = World::with(Setting {
        class: Some(json!({"rootDiskSize": 40})),
        ..Setting::default()
    })
    .await;
    let prices = json!([{"hour": 100, "diskGiBHour": {"SSD": 1}}]);
    priced(&world, &prices, "VND").await;
    // The same account once more.
    let mut second = world.config(json!({"region": "HN"}));
    second["metadata"]["name"] = json!("second");
    world.apply(&second);
    let claim = world.launch(1, json!([])).await;
    let left = world.cloud.add_foreign_server("left");
    look(&world, &world.provider, 120).await;
    assert_eq!(page(&world).recommendations, []);
    let server = claim.provider_id().expect("launched");
    let server = server.strip_prefix("bizflycloud://").expect("ours");
    world.cloud.set_status(server, "SHUTOFF");
    let client = world.client(|_| {});
    client.delete_server(&left, &[]).await.expect("deleted");
    look(&world, &world.provider, 660).await;
    let before = page(&world);
    assert_eq!(before.recommendations, [], "only every 15 minutes");
    look(&world, &world.provider, 300).await;
    let page = page(&world);
    let (stopped, orphans) = (of_kind(&page, "stopped-server"), of_kind(&page, "orphan-volume"));
    assert_eq!((stopped.len(), orphans.len()), (1, 1), "{page:?}");
    assert_eq!(stopped[0].resource.as_deref(), Some(server));
    // 40 for the disk, and of 100 for the rest what 0.3 is of 1.5.
    assert_eq!(price_of(&claim), 140.0);
    assert!((stopped[0].per_month - 60.0 * 720.0).abs() < 1e-6, "{stopped:?}");
    let hourly = world.metric("nodepool_cost_hourly", &["default"]);
    assert!((hourly - 60.0).abs() < 1e-6, "{hourly}");
    let counted = (spent(&page) - spent(&before)) / page.at.duration_since(before.at).as_secs_f64() * 3600.0;
    assert!((counted - 60.0).abs() < 1e-3, "{counted}");
    assert!(
        orphans[0]
            .sentence
            .contains("left_rootdisk (20 GB, ProviderConfig default)"),
        "{orphans:?}"
    );
    let disk = orphans[0].resource.clone().expect("a volume");
    assert!(world.cloud.volume_exists(&disk), "nothing is done by itself");
    let hourly = world.metric("savings_potential_hourly", &["orphan-volume"]);
    assert!((orphans[0].per_month - hourly * 720.0).abs() < 1e-6, "{hourly}");
}

#[tokio::test]
async fn spot_is_recommended_where_it_is_sold_and_allowed_but_off() {
    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..SimOptions::default()
        },
        class: Some(json!({"billingPlans": ["on_demand", "saving_plan"]})),
        ..Setting::default()
    })
    .await;
    let stored = |requirements: Value| {
        let own = serde_json::to_value(pool(requirements)).expect("JSON");
        world.apply(&own);
    };
    stored(json!([]));
    let mut claims = Vec::new();
    for (number, flavor, plan) in [
        (1, "p2.4c_8g", "on_demand"),
        (2, "p2.4c_8g", "on_demand"),
        (3, "nix.4c_8g", "on_demand"),
        (4, "p2.4c_8g", "saving_plan"),
    ] {
        let mut wanted = one_of(&[flavor]);
        wanted
            .as_array_mut()
            .expect("a list")
            .push(json!({"key": "karpenter.bizflycloud.com/billing-plan", "operator": "In", "values": [plan]}));
        claims.push(world.launch(number, wanted).await);
    }
    look(&world, &world.provider, 3).await;
    let found = of_kind(&page(&world), "spot");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].node_pool.as_deref(), Some("default"));
    assert!(
        found[0]
            .sentence
            .starts_with("2 nodes of flavors that are sold as spot"),
        "{found:?}"
    );
    leave(&world, &claims[0]);
    look(&world, &world.provider, 901).await;
    let found = of_kind(&page(&world), "spot");
    assert!(found[0].sentence.starts_with("1 node of"), "{found:?}");
    stored(json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]));
    look(&world, &world.provider, 901).await;
    assert_eq!(of_kind(&page(&world), "spot"), [], "the NodePool does not want it");
}
