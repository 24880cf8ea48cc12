//! Pools are few, and filled no further than they may be.

use std::time::Duration;

use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_ovhcloud::{catalogue::flavors, sim::World};
use serde_json::json;

use crate::environment::{Cluster, only};

const ZONE: &str = "eu-west-par-a";

fn sizes(cluster: &Cluster) -> Vec<u32> {
    let mut sizes: Vec<u32> = cluster.sim(|sim| sim.pools.values().map(|pool| pool.desired).collect());
    sizes.sort_unstable();
    sizes
}

async fn launch_all(cluster: &Cluster, claims: &[NodeClaim]) -> Vec<String> {
    let provider = cluster.provider();
    let made = futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await;
    let mut ids: Vec<String> = made
        .into_iter()
        .map(|made| made.expect("launched").provider_id)
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_claims_over_thirty_flavors_and_three_zones_fit_in_a_hundred_pools() {
    let patient = |settings: &mut karpenter_ovhcloud::OvhSettings| {
        settings.engine.cadence.poll_soon = Duration::from_secs(1);
        settings.engine.cadence.poll_later = Duration::from_secs(60);
    };
    let cluster = Cluster::with(World::default(), patient, json!({})).await;
    let flavors: Vec<String> = flavors::all().into_iter().map(|own| own.name).take(30).collect();
    let zones = ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"];
    let claims: Vec<NodeClaim> = (0..500)
        .map(|number| {
            let (flavor, zone) = (&flavors[number % 30], zones[(number / 30) % 3]);
            cluster.claim(&format!("c{number:03}"), only(flavor, zone))
        })
        .collect();
    let ids = launch_all(&cluster, &claims).await;
    assert_eq!(ids.len(), 500, "every claim has its own machine");
    cluster.sim(|sim| {
        assert_eq!(sim.pools.len(), 90);
        assert!(sim.peak_pools <= 100, "{} pools at once", sim.peak_pools);
        assert_eq!(sim.nodes.len(), 500);
        assert_eq!(
            sim.requests_of(&Method::POST, "/nodepool").len(),
            90,
            "no pool is made twice or refused"
        );
    });
}

#[tokio::test]
async fn a_full_pool_is_continued_in_the_next() {
    let cluster = Cluster::with(World::default(), |settings| settings.engine.max_nodes = 10, json!({})).await;
    let claims: Vec<NodeClaim> = (0..21)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    assert_eq!(launch_all(&cluster, &claims).await.len(), 21);
    assert_eq!(sizes(&cluster), [1, 10, 10]);
}

#[tokio::test]
async fn pools_with_anti_affinity_hold_five() {
    let cluster = Cluster::with(World::default(), |_| (), json!({"antiAffinity": true})).await;
    let claims: Vec<NodeClaim> = (0..12)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    launch_all(&cluster, &claims).await;
    assert_eq!(sizes(&cluster), [2, 5, 5]);
    assert!(cluster.sim(|sim| sim.pools.values().all(|pool| pool.anti_affinity && pool.max == 5)));
}

#[tokio::test]
async fn at_the_limit_existing_pools_are_used_and_nothing_is_asked_beyond() {
    let world = World {
        max_pools: 3,
        ..World::default()
    };
    let cluster = Cluster::with(world, |settings| settings.engine.max_pools = 3, json!({})).await;
    cluster.sim(|sim| {
        sim.foreign_pool("one", 0);
        sim.foreign_pool("two", 0);
    });
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let refused = cluster
        .provider()
        .create(&cluster.claim("b", only("b3-16", ZONE)))
        .await
        .expect_err("no pool left");
    assert_eq!(refused.launch_effect(), LaunchEffect::DeleteForCapacity, "{refused}");
    let either = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b3-8", "b3-16"]}]);
    cluster.launch(&cluster.claim("c", either)).await;
    assert_eq!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()), 1);
    assert!(cluster.sim(|sim| sim.peak_pools) <= 3);
}

#[tokio::test]
async fn a_limit_that_the_api_tells_of_is_respected() {
    let world = World {
        max_pools: 1,
        ..World::default()
    };
    let cluster = Cluster::of(world).await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    for name in ["b", "c", "d"] {
        let refused = cluster
            .provider()
            .create(&cluster.claim(name, only("b3-16", ZONE)))
            .await
            .expect_err("no pool left");
        assert_eq!(refused.launch_effect(), LaunchEffect::DeleteForCapacity, "{refused}");
    }
    assert_eq!(
        cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()),
        2,
        "refused once, not tried again"
    );
}

#[tokio::test]
async fn the_cheapest_fitting_flavor_is_taken_and_gpus_are_left_to_those_who_ask() {
    let cluster = Cluster::start().await;
    let any =
        json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b3-32", "b3-8", "b3-16"]}]);
    let claim = cluster.launch(&cluster.claim("a", any)).await;
    assert_eq!(
        claim.metadata.labels.expect("labels")["node.kubernetes.io/instance-type"],
        "b3-8"
    );
    let mixed = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["t1-45", "r3-1024"]}]);
    let claim = cluster.launch(&cluster.claim("b", mixed.clone())).await;
    assert_eq!(
        claim.metadata.labels.expect("labels")["node.kubernetes.io/instance-type"],
        "r3-1024"
    );
    let spec = json!({"requirements": mixed, "resources": {"requests": {"nvidia.com/gpu": "1"}}});
    let claim = cluster.launch(&cluster.claim_with("c", spec)).await;
    assert_eq!(
        claim.metadata.labels.expect("labels")["node.kubernetes.io/instance-type"],
        "t1-45"
    );
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
