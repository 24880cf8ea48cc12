//! What MKS and people at the console do to pools that are ours.

use std::collections::BTreeSet;

use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion, instance::ADOPT_ANNOTATION};
use karpenter_ovhcloud::{
    names,
    sim::{Delays, World},
};
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, SECOND, launched, only};
use crate::launching::{ZONE, sizes};

fn node_of(claim: &NodeClaim) -> String {
    claim.metadata.annotations.as_ref().expect("annotations")[names::NODE_ID].clone()
}

fn realistic(plan: &str) -> World {
    World {
        delays: Delays::realistic(),
        plan: plan.into(),
        ..World::default()
    }
}

/// Does what core does with machines that are offered for adoption.
async fn adopt_all(cluster: &Cluster) -> Vec<NodeClaim> {
    let mut adopted = Vec::new();
    for (number, adoption) in cluster
        .provider()
        .adoptable()
        .await
        .expect("readable")
        .iter()
        .enumerate()
    {
        assert_eq!(adoption.node_pool, "default");
        let name = format!("adopting-{number}-{}", cluster.clock.now().as_second());
        let mut claim = cluster.claim(&name, json!([]));
        let mark = json!({"metadata": {"annotations": {ADOPT_ANNOTATION: adoption.instance.provider_id}}});
        claim.metadata = cluster
            .sandbox
            .objects()
            .patch::<NodeClaim>("", &name, &mark)
            .expect("accepted")
            .metadata;
        adopted.push(cluster.launch(&claim).await);
    }
    adopted
}

#[tokio::test]
async fn a_machine_that_mks_replaced_is_taken_over_after_a_minute() {
    let cluster = Cluster::of(realistic("standard")).await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.pass(MINUTE * 3).await;
    cluster.sim(|sim| sim.heal(&node_of(&claim)));
    cluster.pass(SECOND * 50).await;
    assert!(
        cluster.provider().adoptable().await.expect("readable").is_empty(),
        "not at once"
    );
    cluster.pass(MINUTE * 3).await;
    let adopted = adopt_all(&cluster).await;
    let [adopted] = adopted.as_slice() else {
        panic!("one machine is offered: {adopted:?}")
    };
    let marks = cluster
        .stored(adopted.metadata.name.as_deref().expect("a name"))
        .expect("there");
    assert_eq!(marks.metadata.annotations.expect("annotations")[names::ADOPTED], "true");
    assert!(cluster.was_told("default", "NodeAdopted"));
    assert!(adopt_all(&cluster).await.is_empty(), "once");
    // The claim that lost its machine ends; the pool keeps its size.
    assert_eq!(cluster.provider().delete(&claim).await.expect("asked"), Deletion::Gone);
    cluster.forget("a");
    cluster.pass(HOUR).await;
    assert_eq!(sizes(&cluster), [1]);
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [adopted.provider_id().expect("adopted")]
    );
    assert!(cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/").is_empty()));
}

#[tokio::test]
async fn a_machine_that_mks_reinstalls_in_place_keeps_its_claim() {
    let mut world = realistic("free");
    world.region = "GRA11".into();
    world.zones = Vec::new();
    let cluster = Cluster::of(world).await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", "nova"))).await;
    cluster.pass(MINUTE * 3).await;
    cluster.sim(|sim| sim.heal(&node_of(&claim)));
    cluster.pass(HOUR).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [claim.provider_id().expect("launched")]
    );
    assert!(cluster.provider().adoptable().await.expect("readable").is_empty());
    assert!(cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/").is_empty()));
}

#[tokio::test]
async fn an_upgrade_in_place_changes_nothing_for_us() {
    let mut world = realistic("free");
    world.region = "GRA11".into();
    world.zones = Vec::new();
    let cluster = Cluster::of(world).await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", "nova"))).await;
    cluster.pass(MINUTE * 3).await;
    cluster.sim(|sim| sim.upgrade("1.35.0"));
    cluster.pass(HOUR).await;
    assert!(!cluster.sim(|sim| sim.is_upgrading()));
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [claim.provider_id().expect("launched")]
    );
}

#[tokio::test]
async fn a_size_that_somebody_raised_is_given_back_by_name() {
    let cluster = Cluster::start().await;
    let kept = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.sim(|sim| {
        let pool = sim.pools.keys().next().expect("one").clone();
        sim.resize_by_hand(&pool, 4);
    });
    cluster.pass(MINUTE * 9).await;
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 4, "not before ten minutes");
    cluster.pass(MINUTE * 6).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert_eq!(sizes(&cluster), [1]);
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
    assert!(cluster.was_told("default", "SpareNodeReclaimed"));
}

#[tokio::test]
async fn our_pools_are_taken_from_ovhs_own_autoscaler_and_others_left_to_it() {
    let cluster = Cluster::start().await;
    let kept = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let theirs = cluster.sim(|sim| sim.foreign_pool("theirs", 2));
    cluster.sim(|sim| {
        for pool in sim.pools.keys().cloned().collect::<Vec<_>>() {
            let on = karpenter_ovhcloud::client::model::PoolUpdate {
                autoscale: Some(true),
                ..Default::default()
            };
            sim.update_pool(&pool, &on).expect("accepted");
        }
        sim.requests.clear();
    });
    cluster.pass(MINUTE * 9).await;
    let puts = cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/"));
    let bodies: Vec<_> = puts.iter().map(|put| put.body.clone()).collect();
    assert_eq!(bodies, [json!({"autoscale": false})], "once, and its size untouched");
    assert!(cluster.was_told("default", "PoolAutoscaleDisabled"));
    cluster.pass(HOUR).await;
    assert!(cluster.was_told("default", "ForeignAutoscaler"));
    cluster.sim(|sim| {
        assert!(sim.pools[&theirs].autoscale, "not ours to change");
        assert!(sim.requests_of(&Method::PUT, &theirs).is_empty());
        assert!(
            sim.machines()
                .contains(&kept.provider_id().expect("launched").to_owned())
        );
        assert!(!sim.autoscaler_removals.is_empty(), "it works on its own pool");
        let ours = node_of(&kept);
        assert!(!sim.autoscaler_removals.contains(&ours));
    });
}

#[tokio::test]
async fn an_autoscaler_that_is_switched_on_again_and_again_is_not_fought() {
    let cluster = Cluster::start().await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.sim(|sim| sim.requests.clear());
    for _ in 0..30 {
        cluster.sim(|sim| {
            let pool = sim.pools.values_mut().next().expect("one");
            pool.autoscale = true;
        });
        cluster.pass(MINUTE).await;
    }
    let puts = cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/").len());
    assert!((1..=4).contains(&puts), "at most once in ten minutes: {puts}");
}

#[tokio::test]
async fn a_pool_that_somebody_deleted_is_told_of_and_its_claims_are_gone() {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.sim(|sim| {
        let pool = sim.pools.keys().next().expect("one").clone();
        sim.delete_by_hand(&pool);
    });
    assert!(
        cluster
            .until(|| cluster.was_told("default", "PoolDeletedExternally"))
            .await
    );
    assert!(cluster.provider().list().await.expect("readable").is_empty());
    assert_eq!(cluster.provider().delete(&claim).await.expect("asked"), Deletion::Gone);
    let next = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [next.provider_id().expect("launched")]
    );
}

#[tokio::test]
async fn sizes_that_somebody_limits_are_put_right_before_they_matter() {
    let cluster = Cluster::start().await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.sim(|sim| {
        let pool = sim.pools.values_mut().next().expect("one");
        (pool.min, pool.max) = (1, 1);
    });
    cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    cluster.terminate(&first).await;
    assert_eq!(sizes(&cluster), [1]);
    let pool = cluster.sim(|sim| sim.pools.values().next().map(|pool| (pool.min, pool.max)));
    assert_eq!(pool, Some((0, 100)));
}

#[tokio::test]
async fn pools_of_others_are_never_touched() {
    let cluster = Cluster::start().await;
    let (full, empty) = cluster.sim(|sim| (sim.foreign_pool("karpenter-system", 2), sim.foreign_pool("batch", 0)));
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.terminate(&claim).await;
    cluster.pass(HOUR).await;
    cluster.sim(|sim| {
        assert_eq!(sim.pools.len(), 2, "ours is gone");
        assert!(sim.pools.contains_key(&full) && sim.pools.contains_key(&empty));
        assert_eq!(sim.nodes.len(), 2);
        let writes = sim.requests.iter().filter(|own| own.method != Method::GET);
        for write in writes {
            assert!(
                !write.path.contains(&full) && !write.path.contains(&empty),
                "{}",
                write.path
            );
        }
    });
    assert!(
        cluster.provider().list().await.expect("readable").is_empty(),
        "nor listed"
    );
}

#[tokio::test]
async fn a_cluster_that_is_suspended_is_told_and_not_written_to() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| {
        sim.cluster_status = "SUSPENDED".into();
        sim.requests.clear();
    });
    assert!(
        cluster
            .until(|| cluster.condition("ClusterReady").1 == "ClusterSuspended")
            .await
    );
    cluster
        .provider()
        .create(&cluster.claim("a", json!([])))
        .await
        .expect_err("not ready");
    assert!(cluster.sim(|sim| sim.requests.iter().all(|own| own.method == Method::GET)));
}

#[tokio::test]
async fn a_rolling_upgrade_of_ten_nodes_is_followed_and_nothing_is_reclaimed_meanwhile() {
    let cluster = Cluster::of(realistic("standard")).await;
    let provider = cluster.provider();
    let wanted: Vec<NodeClaim> = (0..10)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    let made = futures::future::join_all(wanted.iter().map(|claim| provider.create(claim))).await;
    let mut claims: Vec<NodeClaim> = wanted
        .iter()
        .zip(made)
        .map(|(claim, made)| launched(claim, &made.expect("launched")))
        .collect();
    cluster.pass(MINUTE * 3).await;
    cluster.sim(|sim| {
        sim.requests.clear();
        sim.upgrade("1.35.0");
    });
    let (mut most, mut rounds) = (0, 0);
    while cluster.sim(|sim| sim.is_upgrading()) || claims.len() != 10 || rounds < 10 {
        cluster.pass(SECOND * 30).await;
        let live = cluster.sim(|sim| sim.nodes.values().filter(|node| node.status != "DELETING").count());
        most = most.max(live);
        claims.extend(adopt_all(&cluster).await);
        // Claims whose machine is gone end, as core ends them.
        let listed = provider.list().await.expect("readable");
        claims.retain(|claim| {
            let id = claim.provider_id().expect("launched");
            let is_there = listed.iter().any(|machine| machine.provider_id == id);
            if !is_there {
                cluster.forget(claim.metadata.name.as_deref().expect("a name"));
            }
            is_there
        });
        rounds += 1;
        assert!(rounds < 200, "the upgrade does not end: {} claims", claims.len());
    }
    assert_eq!(most, 11, "never more than one node beyond the size");
    cluster.pass(HOUR).await;
    assert!(adopt_all(&cluster).await.is_empty());
    let written = cluster.sim(|sim| {
        let written = sim.requests.iter().filter(|own| own.method != Method::GET);
        written.map(|own| own.body.to_string()).collect::<Vec<_>>()
    });
    assert!(written.is_empty(), "nothing of ours gets in the way: {written:?}");
    let held: BTreeSet<String> = claims
        .iter()
        .map(|claim| claim.provider_id().expect("launched").to_owned())
        .collect();
    assert_eq!(
        held,
        cluster.sim(|sim| sim.machines().into_iter().collect::<BTreeSet<_>>())
    );
    assert_eq!((held.len(), sizes(&cluster)), (10, vec![10]));
    assert!(cluster.sim(|sim| sim.nodes.values().all(|node| node.version == "1.35.0")));
}
