//! What OVHcloud refuses, at once or later, ends in another place or a reason, never in an inflated pool.

use http::Method;
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_ovhcloud::{
    names,
    sim::{Delays, World},
};
use serde_json::{Value, json};

use crate::environment::{Cluster, HOUR, MINUTE, SECOND, only, parsed_node_pool};
use crate::launching::{ZONE, sizes};

fn flavors(names: &[&str]) -> Value {
    json!([
        {"key": labels::INSTANCE_TYPE, "operator": "In", "values": names},
        {"key": labels::ZONE, "operator": "In", "values": [ZONE]},
    ])
}

fn flavor_of(claim: &NodeClaim) -> String {
    claim.metadata.labels.as_ref().expect("labels")[labels::INSTANCE_TYPE].clone()
}

async fn available(cluster: &Cluster, flavor: &str) -> Vec<bool> {
    let types = cluster
        .provider()
        .instance_types(&parsed_node_pool())
        .await
        .expect("types");
    let own = types.iter().find(|own| own.name == flavor).expect("listed");
    own.offerings.iter().map(|offering| offering.available).collect()
}

#[tokio::test]
async fn a_machine_out_of_stock_fails_the_claim_is_taken_back_by_name_and_the_next_plan_goes_elsewhere() {
    let mut rules = World::minimal_rules(karpenter_ovhcloud::sim::KUBE_ID);
    rules.push(("GET".into(), "/auth/currentCredential".into()));
    let cluster = Cluster::of(World {
        rules,
        ..World::default()
    })
    .await;
    cluster.sim(|sim| sim.sold_out.insert(("b3-8".into(), ZONE.into())));
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let error = cluster.provider().create(&claim).await.expect_err("out of stock");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(
        error.to_string().contains("b3-8 is out of stock in eu-west-par-a"),
        "{error}"
    );
    assert!(cluster.until(|| cluster.sim(|sim| sim.nodes.is_empty())).await);
    assert_eq!(sizes(&cluster), [0], "nothing stays wanted");
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()), "by name");
    let annotations = cluster.stored("a").expect("there").metadata.annotations;
    assert!(
        !annotations.unwrap_or_default().contains_key(names::POOL_NAME),
        "given back"
    );
    assert!(cluster.was_told("a", "OutOfStock") && cluster.was_told("default", "OutOfStock"));
    assert_eq!(
        available(&cluster, "b3-8").await,
        [false, true, true],
        "known at once, for this zone"
    );
    let other = cluster.launch(&cluster.claim("b", flavors(&["b3-8", "b3-16"]))).await;
    assert_eq!(flavor_of(&other), "b3-16");
    cluster.sim(|sim| sim.sold_out.clear());
    cluster.pass(MINUTE * 3).await;
    assert_eq!(
        available(&cluster, "b3-8").await,
        [true, true, true],
        "tried again after three minutes"
    );
}

#[tokio::test]
async fn a_refusal_at_once_goes_on_with_the_next_flavor_in_the_same_launch() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| {
        sim.sold_out.insert(("b3-8".into(), String::new()));
        sim.sold_out_at_once = true;
    });
    let claim = cluster.launch(&cluster.claim("a", flavors(&["b3-8", "b3-16"]))).await;
    assert_eq!(flavor_of(&claim), "b3-16");
}

#[tokio::test]
async fn of_five_wanted_and_three_made_the_oldest_three_get_them() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.stock.insert(("b3-8".into(), ZONE.into()), 3));
    let claims: Vec<NodeClaim> = (0..5)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    let provider = cluster.provider();
    // Reserved one after the other, written together.
    let mut launches = Vec::new();
    for claim in &claims {
        let (provider, claim) = (provider.clone(), claim.clone());
        launches.push(tokio::spawn(async move { provider.create(&claim).await }));
        cluster.pass(SECOND / 20).await;
    }
    let mut made = Vec::new();
    for launch in launches {
        made.push(launch.await.expect("no panic").is_ok());
    }
    assert_eq!(made, [true, true, true, false, false]);
    cluster.pass(MINUTE).await;
    assert_eq!(sizes(&cluster), [3]);
}

#[tokio::test]
async fn a_quota_on_the_machine_stops_bigger_flavors_and_lets_smaller_ones_try() {
    // The key may not read the quota, so only the machine tells.
    let rules = World::minimal_rules(karpenter_ovhcloud::sim::KUBE_ID);
    let cluster = Cluster::of(World {
        cores: Some(4),
        rules,
        ..World::default()
    })
    .await;
    let big = cluster.claim("big", only("b3-32", ZONE));
    let error = cluster.provider().create(&big).await.expect_err("over quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(error.to_string().contains("quota"), "{error}");
    assert!(cluster.was_told("big", "QuotaExhausted") && cluster.was_told("default", "QuotaExhausted"));
    assert_eq!(
        available(&cluster, "b3-64").await,
        [false, false, false],
        "bigger ones are not tried"
    );
    cluster.launch(&cluster.claim("small", only("b3-8", ZONE))).await;
    cluster.pass(MINUTE * 5).await;
    assert_eq!(
        available(&cluster, "b3-64").await,
        [true, true, true],
        "for five minutes"
    );
}

#[tokio::test]
async fn a_quota_that_can_be_read_is_respected_before_it_is_hit_and_told_with_numbers() {
    let cluster = Cluster::of(World {
        cores: Some(4),
        ..World::default()
    })
    .await;
    let big = cluster.claim("big", only("b3-32", ZONE));
    cluster.provider().create(&big).await.expect_err("over quota");
    assert!(
        cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").is_empty()),
        "not even tried"
    );
    cluster.launch(&cluster.claim("one", only("b3-8", ZONE))).await;
    cluster.launch(&cluster.claim("two", only("b3-8", ZONE))).await;
    let third = cluster.claim("three", only("b3-8", ZONE));
    cluster
        .provider()
        .create(&third)
        .await
        .expect_err("four cores are used");
    let told = cluster.events("three").join("\n");
    assert!(told.contains("of 4 cores"), "{told}");
}

#[tokio::test]
async fn a_quota_that_is_told_at_once_is_quota_and_not_a_missing_right() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.over_quota_at_once = true);
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let error = cluster.provider().create(&claim).await.expect_err("over quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert_eq!(cluster.condition("Ready").0, "True", "the class is not to blame");
}

#[tokio::test]
async fn a_webhook_that_blocks_mks_is_told_of_and_waited_for() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.webhook_blocks = true);
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let provider = cluster.provider();
    let launch = tokio::spawn(async move { provider.create(&claim).await });
    assert!(cluster.until(|| cluster.was_told("a", "WebhookBlocksMKS")).await);
    assert!(!launch.is_finished(), "it keeps waiting");
    cluster.sim(|sim| sim.webhook_blocks = false);
    launch.await.expect("no panic").expect("launched");
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn a_machine_that_breaks_before_it_exists_is_taken_back() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.broken = true);
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let error = cluster.provider().create(&claim).await.expect_err("broken");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    cluster.pass(MINUTE).await;
    assert_eq!(sizes(&cluster), [0]);
    assert!(cluster.sim(|sim| sim.nodes.is_empty() && sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_machine_that_breaks_after_it_was_given_out_is_left_to_repair() {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let node = claim.metadata.annotations.expect("annotations")[names::NODE_ID].clone();
    cluster.sim(|sim| sim.set_status(&node, "ERROR"));
    cluster.pass(HOUR).await;
    assert_eq!(sizes(&cluster), [1]);
    let policies = cluster.provider().repair_policies();
    assert!(policies.iter().all(|policy| policy.toleration.as_secs() == 30 * 60));
}

#[tokio::test]
async fn a_full_house_uses_what_is_there_says_so_and_makes_room_where_it_can() {
    let cluster = Cluster::with(World::default(), |settings| settings.engine.max_pools = 10, json!({})).await;
    let empty = cluster.launch(&cluster.claim("empty", only("c3-8", ZONE))).await;
    cluster.terminate(&empty).await;
    let used = cluster.launch(&cluster.claim("used", only("b3-8", ZONE))).await;
    cluster.sim(|sim| {
        for number in 0..8 {
            sim.foreign_pool(&format!("theirs-{number}"), 0);
        }
    });
    // Near the limit the empty pool goes at once.
    cluster.pass(MINUTE * 2).await;
    assert_eq!(cluster.sim(|sim| sim.pools.len()), 9, "the empty one of ours is gone");
    cluster.sim(|sim| sim.foreign_pool("theirs-8", 0));
    cluster.pass(MINUTE * 6).await;
    assert_eq!(cluster.condition("PoolCapacityAvailable").1, "PoolLimitReached");
    assert!(cluster.was_told("default", "PoolLimitReached"));
    let posts = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len());
    let either = cluster
        .launch(&cluster.claim("either", flavors(&["b3-8", "b3-16"])))
        .await;
    assert_eq!(flavor_of(&either), flavor_of(&used));
    let new = cluster.claim("new", only("b3-16", ZONE));
    let error = cluster.provider().create(&new).await.expect_err("no pool left");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert_eq!(
        cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()),
        posts
    );
}

#[tokio::test]
async fn a_flavor_whose_machines_did_not_join_twice_is_left_alone_for_ten_minutes() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        assert_eq!(available(&cluster, "b3-8").await, [true, true, true], "{name}");
        let claim = cluster.launch(&cluster.claim(name, only("b3-8", ZONE))).await;
        cluster.pass(MINUTE * 15).await;
        let mut claim = serde_json::to_value(&claim).expect("plain data");
        claim["metadata"]["deletionTimestamp"] = json!(cluster.clock.now().to_string());
        let claim: NodeClaim = serde_json::from_value(claim).expect("a claim");
        cluster.terminate(&claim).await;
    }
    assert_eq!(available(&cluster, "b3-8").await, [false, true, true]);
    cluster.pass(MINUTE * 11).await;
    assert_eq!(available(&cluster, "b3-8").await, [true, true, true]);
}

#[tokio::test]
async fn machines_that_were_given_up_before_their_time_or_had_joined_say_nothing_of_their_flavor() {
    let cluster = Cluster::start().await;
    let joined = json!([{
        "type": "Registered", "status": "True", "reason": "Registered", "message": "",
        "lastTransitionTime": cluster.clock.now().to_string(),
    }]);
    for (name, minutes, conditions) in [
        ("a", 14, json!([])),
        ("b", 14, json!([])),
        ("c", 60, joined.clone()),
        ("d", 60, joined),
    ] {
        let claim = cluster.launch(&cluster.claim(name, only("b3-8", ZONE))).await;
        cluster.pass(MINUTE * minutes).await;
        let mut claim = serde_json::to_value(&claim).expect("plain data");
        claim["metadata"]["deletionTimestamp"] = json!(cluster.clock.now().to_string());
        claim["status"]["conditions"] = conditions;
        // Its end takes its time, which is not the machine's fault.
        cluster.pass(MINUTE * 5).await;
        let claim: NodeClaim = serde_json::from_value(claim).expect("a claim");
        cluster.terminate(&claim).await;
    }
    assert_eq!(available(&cluster, "b3-8").await, [true, true, true]);
}

#[tokio::test]
async fn a_machine_that_needs_hours_is_not_asked_for_twice() {
    let delays = Delays {
        vm: MINUTE * 90,
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    let claim = cluster.claim("a", only("t1-45", ZONE));
    let provider = cluster.provider();
    let hints = provider.launch_hints(&claim).await;
    assert_eq!(hints.launch_timeout, MINUTE * 10);
    for _ in 0..25 {
        if provider.create(&claim).await.is_ok() {
            break;
        }
    }
    assert_eq!(sizes(&cluster), [1]);
    assert_eq!(cluster.sim(|sim| sim.machines().len()), 1);
}
