//! What a month costs, what could be saved, and what of it outlives the process.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_api::{NodeClaim, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::{
    BizflyCloudProvider,
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
    let last = "2026-01-31T23:55:00Z".parse().expect("a time");
    world.clock.sleep_until(last).await;
    world.provider.look_at_fleet().await.expect("looked at");
    assert_eq!(page(&world).month, "2026-01");
    look(&world, &world.provider, 600).await;
    let page = page(&world);
    let first: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
    assert_eq!((page.month.as_str(), page.since), ("2026-02", first));
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
    for cheap in ["4c_8g_basic", "p2.4c_8g"] {
        let sold_out = Fault::SoldOut {
            flavor: Some(cheap.to_owned()),
            zone: None,
        };
        world.cloud.inject(sold_out, Often::Always);
    }
    let (category, generation) = (
        world.launch(1, one_of(&["nix.4c_8g", "4c_8g_basic"])).await,
        world.launch(2, one_of(&["nix.4c_8g", "p2.4c_8g"])).await,
    );
    let flavor = |claim: &NodeClaim| claim.metadata.labels.clone().expect("labels")[INSTANCE_TYPE].clone();
    assert_eq!(
        (flavor(&category), flavor(&generation)),
        ("nix.4c_8g".into(), "nix.4c_8g".into())
    );
    world.cloud.heal();
    world.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices", "namespace": "default"},
        "data": {"prices.json": r#"[{"flavor": "p2.4c_8g", "hour": 10}]"#},
    }));
    let pricing = json!({
        "source": "ConfigMap", "configMapRef": {"name": "prices", "namespace": "default"}, "currency": "USD",
    });
    world.apply(&world.config(json!({"region": "HN", "pricing": pricing})));
    look(&world, &world.provider, 600).await;
    let page = page(&world);
    let (category, generation) = (of_kind(&page, "category"), of_kind(&page, "generation"));
    assert_eq!((category.len(), generation.len()), (1, 1), "{page:?}");
    assert!(
        category[0].sentence.contains("nix.4c_8g could be 4c_8g_basic")
            && generation[0].sentence.contains("nix.4c_8g could be p2.4c_8g"),
        "{page:?}"
    );
    assert_eq!(page.recommendations[0].kind, "generation", "the largest first");
    assert_eq!(page.recommendations[0].currency, "USD");
}

#[tokio::test]
async fn stopped_servers_and_orphan_disks_are_recommended_and_left_alone() {
    let world = World::start().await;
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
    assert_eq!(page(&world).recommendations, [], "only every 15 minutes");
    look(&world, &world.provider, 300).await;
    let page = page(&world);
    let (stopped, orphans) = (of_kind(&page, "stopped-server"), of_kind(&page, "orphan-volume"));
    assert_eq!((stopped.len(), orphans.len()), (1, 1), "{page:?}");
    assert_eq!(stopped[0].resource.as_deref(), Some(server));
    let month = price_of(&claim) * 0.3 * 720.0;
    assert!((stopped[0].per_month - month).abs() < 1e-6, "{stopped:?}");
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
        ..Setting::default()
    })
    .await;
    let stored = |requirements: Value| {
        let own = serde_json::to_value(pool(requirements)).expect("JSON");
        world.apply(&own);
    };
    stored(json!([]));
    for (number, flavor) in [(1, "p2.4c_8g"), (2, "p2.4c_8g"), (3, "nix.4c_8g")] {
        world.launch(number, one_of(&[flavor])).await;
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
    stored(json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]));
    look(&world, &world.provider, 901).await;
    assert_eq!(of_kind(&page(&world), "spot"), [], "the NodePool does not want it");
}
