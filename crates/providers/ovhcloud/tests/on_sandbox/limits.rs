//! Pools are few, and filled no further than they may be.

use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_ovhcloud::{catalogue::flavors, sim::World};
use serde_json::json;

use crate::environment::{Cluster, MINUTE, only};
use crate::launching::{ZONE, sizes};

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

#[tokio::test]
async fn five_hundred_claims_over_thirty_flavors_and_three_zones_fit_in_a_hundred_pools() {
    let cluster = Cluster::start().await;
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
    let cluster = Cluster::start().await;
    let claims: Vec<NodeClaim> = (0..101)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    assert_eq!(launch_all(&cluster, &claims).await.len(), 101);
    assert_eq!(sizes(&cluster), [1, 100]);
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
async fn two_hundred_and_fifty_nodes_over_three_zones_take_three_pools() {
    let cluster = Cluster::start().await;
    let zones = ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"];
    let claims: Vec<NodeClaim> = (0..250)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", zones[number % 3])))
        .collect();
    assert_eq!(launch_all(&cluster, &claims).await.len(), 250);
    assert_eq!(sizes(&cluster), [83, 83, 84]);
}

#[tokio::test]
async fn four_node_pools_of_the_same_spread_stop_at_the_limit() {
    let cluster = Cluster::with(World::default(), |settings| settings.engine.max_pools = 20, json!({})).await;
    let flavors: Vec<String> = flavors::all().into_iter().map(|own| own.name).take(6).collect();
    let mut made = 0;
    let mut refused = 0;
    for node_pool in ["default", "second", "third", "fourth"] {
        let mut pool = crate::environment::node_pool();
        pool["metadata"]["name"] = json!(node_pool);
        cluster.sandbox.apply(&pool.to_string()).expect("accepted");
        let claims: Vec<NodeClaim> = flavors
            .iter()
            .map(|flavor| cluster.claim_of(node_pool, &format!("{node_pool}-{flavor}"), only(flavor, ZONE)))
            .collect();
        let provider = cluster.provider();
        for outcome in futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await {
            match outcome {
                Ok(_) => made += 1,
                Err(error) => {
                    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((made, refused), (20, 4));
    // Those that may go elsewhere find room in pools that are there.
    let any = cluster.claim_of("fourth", "flexible", json!([]));
    cluster.launch(&any).await;
    cluster.sim(|sim| {
        assert_eq!((sim.pools.len(), sim.peak_pools), (20, 20));
        assert_eq!(
            sim.requests_of(&Method::POST, "/nodepool").len(),
            20,
            "nothing is asked beyond the limit"
        );
    });
    cluster.pass(MINUTE * 6).await;
    assert_eq!(cluster.condition("PoolCapacityAvailable").1, "PoolLimitReached");
}
