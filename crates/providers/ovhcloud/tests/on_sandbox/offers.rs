//! What can be had and what it costs, as instance types.

use http::Method;
use karpenter_api::labels;
use karpenter_cloud::{CloudProvider, InstanceType, selection};
use karpenter_ovhcloud::{
    names,
    sim::{HttpFault, World},
};
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, parsed_node_pool};

async fn named(cluster: &Cluster, name: &str) -> InstanceType {
    let types = cluster
        .provider()
        .instance_types(&parsed_node_pool())
        .await
        .expect("types");
    let own = types.iter().find(|own| own.name == name).expect("listed");
    InstanceType::clone(own)
}

#[tokio::test]
async fn a_one_zone_region_offers_the_single_zone_nova() {
    let world = World {
        region: "GRA11".into(),
        zones: Vec::new(),
        plan: "free".into(),
        ..World::default()
    };
    let cluster = Cluster::of(world).await;
    let own = named(&cluster, "b3-8").await;
    let zones: Vec<_> = own.offerings.iter().map(selection::zone).collect();
    assert_eq!(zones, [Some("nova")]);
}

#[tokio::test]
async fn memory_is_in_gib_on_the_wire_and_selects_by_number() {
    let cluster = Cluster::start().await;
    let own = named(&cluster, "b3-8").await;
    let gib = own.capacity.memory().to_f64() / f64::from(1 << 30);
    assert!((7.0..8.0).contains(&gib), "{gib}");
    // 16000 MiB are less than what a b3-16 has, and more than a b3-8 has.
    let above = json!([
        {"key": names::MEMORY, "operator": "Gt", "values": ["16000"]},
        {"key": names::FAMILY, "operator": "In", "values": ["b3"]},
    ]);
    let claim = cluster.launch(&cluster.claim("above", above)).await;
    assert_eq!(claim.metadata.labels.expect("labels")[labels::INSTANCE_TYPE], "b3-16");
    let big = json!([
        {"key": names::MEMORY, "operator": "Gt", "values": ["16384"]},
        {"key": names::FAMILY, "operator": "In", "values": ["b3"]},
    ]);
    let claim = cluster.launch(&cluster.claim("a", big)).await;
    let own = claim.metadata.labels.expect("labels");
    assert_eq!(
        (own[labels::INSTANCE_TYPE].as_str(), own[names::FAMILY].as_str()),
        ("b3-32", "b3")
    );
}

#[tokio::test]
async fn the_cheapest_fitting_flavor_is_taken_and_gpus_are_left_to_those_who_ask() {
    let cluster = Cluster::start().await;
    let types = |names: &[&str]| json!([{"key": labels::INSTANCE_TYPE, "operator": "In", "values": names}]);
    let flavor = |claim: &karpenter_api::NodeClaim| {
        claim.metadata.labels.clone().expect("labels")[labels::INSTANCE_TYPE].clone()
    };
    let claim = cluster
        .launch(&cluster.claim("a", types(&["b3-32", "b3-8", "b3-16"])))
        .await;
    assert_eq!(flavor(&claim), "b3-8");
    let claim = cluster.launch(&cluster.claim("b", types(&["t1-45", "r3-1024"]))).await;
    assert_eq!(flavor(&claim), "r3-1024");
    let claim = cluster.launch(&cluster.claim("c", types(&["t1-45", "l4-90"]))).await;
    assert_eq!(flavor(&claim), "t1-45", "where only GPUs are allowed they are taken");
    let spec =
        json!({"requirements": types(&["t1-45", "r3-1024"]), "resources": {"requests": {"nvidia.com/gpu": "1"}}});
    let claim = cluster.launch(&cluster.claim_with("d", spec)).await;
    assert_eq!(flavor(&claim), "t1-45");
}

#[tokio::test]
async fn spot_is_refused_with_the_reason() {
    let cluster = Cluster::start().await;
    let spot = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]);
    let error = cluster
        .provider()
        .create(&cluster.claim("a", spot))
        .await
        .expect_err("no spot");
    assert!(error.to_string().contains("no spot"), "{error}");
}

#[tokio::test]
async fn without_a_catalogue_prices_are_estimated_and_later_ones_are_kept() {
    let cluster = Cluster::unready(World::default(), |_| (), json!({})).await;
    cluster.sim(|sim| sim.faults.push(HttpFault::server_error(Method::GET, "/order/catalog")));
    cluster.until_ready().await;
    assert_eq!(cluster.condition("PricingReady").1, "CatalogUnavailable");
    let source = |cluster: &Cluster| {
        cluster
            .class()
            .status
            .expect("a status")
            .pricing
            .expect("prices")
            .source
    };
    assert_eq!(source(&cluster), "Estimate");
    cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.sim(|sim| sim.faults.clear());
    assert!(cluster.until(|| cluster.condition("PricingReady").0 == "True").await);
    let known = named(&cluster, "b3-8").await.offerings[0].price;
    assert!((known - 0.05).abs() < 1e-9, "{known}");
    // Down again: what was known stays.
    cluster.sim(|sim| sim.faults.push(HttpFault::server_error(Method::GET, "/order/catalog")));
    cluster.pass(HOUR * 7).await;
    assert_eq!(named(&cluster, "b3-8").await.offerings[0].price, known);
    assert_eq!(
        (cluster.condition("PricingReady").0.as_str(), source(&cluster).as_str()),
        ("True", "Catalog")
    );
}

#[tokio::test]
async fn a_month_costs_its_730th_per_hour_and_only_generation_2_has_it() {
    let cluster = Cluster::with(World::default(), |_| (), json!({"monthlyBilled": true})).await;
    let own = named(&cluster, "b2-7").await;
    // The simulated catalogue asks for 365 hours per month.
    assert!(
        (own.offerings[0].price - 0.035).abs() < 1e-9,
        "{}",
        own.offerings[0].price
    );
    assert!(own.offerings[0].available);
    assert!(
        named(&cluster, "b3-8")
            .await
            .offerings
            .iter()
            .all(|offering| !offering.available)
    );
    assert!(
        named(&cluster, "t1-45")
            .await
            .offerings
            .iter()
            .all(|offering| !offering.available)
    );
    assert_eq!(cluster.condition("Ready").0, "True");
    let mut pool = parsed_node_pool();
    let b3 = json!([{"key": labels::INSTANCE_TYPE, "operator": "In", "values": ["b3-8"]}]);
    pool.spec.template.spec.requirements = serde_json::from_value(b3).expect("requirements");
    let findings = cluster.provider().validate_node_pool(&pool).await.expect("read");
    let told: Vec<&str> = findings.iter().map(|own| own.message.as_str()).collect();
    assert!(told.iter().any(|told| told.contains("b2, c2, d2 and r2")), "{told:?}");
}

#[tokio::test]
async fn flavors_that_only_the_region_has_are_listed_as_unavailable() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.cluster_lacks.push("b3-640".into()));
    cluster.pass(MINUTE * 6).await;
    let own = named(&cluster, "b3-640").await;
    assert!(own.offerings.iter().all(|offering| !offering.available));
}

#[tokio::test]
async fn answers_with_fields_and_states_that_nobody_knows_are_understood() {
    let world = World {
        odd: true,
        ..World::default()
    };
    let cluster = Cluster::of(world).await;
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.launch(&cluster.claim("b", json!([]))).await;
    cluster.terminate(&claim).await;
    assert_eq!(cluster.sim(|sim| sim.machines().len()), 1);
}
