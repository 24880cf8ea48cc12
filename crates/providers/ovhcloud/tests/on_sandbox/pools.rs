//! Claims become nodes of pools, and the right ones go.

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::{CloudProvider, Deletion, LaunchEffect};
use karpenter_ovhcloud::{
    names,
    sim::{Delays, Effect, HttpFault, World},
};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, launched, only};

const ZONE: &str = "eu-west-par-a";

async fn terminate(cluster: &Cluster, claim: &NodeClaim) {
    let provider = cluster.provider();
    for _ in 0..400 {
        if Deletion::settle(provider.delete(claim).await).expect("no faults") == Deletion::Gone {
            cluster.forget(claim.metadata.name.as_deref().expect("a name"));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not gone");
}

#[tokio::test]
async fn claims_of_one_kind_become_one_pool_in_few_writes() {
    let cluster = Cluster::start().await;
    let provider = cluster.provider();
    let claims: Vec<NodeClaim> = (0..50)
        .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
        .collect();
    let made = futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await;
    let ids: BTreeSet<String> = made
        .into_iter()
        .map(|made| made.expect("launched").provider_id)
        .collect();
    assert_eq!(ids.len(), 50, "every claim has its own machine");
    cluster.sim(|sim| {
        assert_eq!(sim.pools.len(), 1);
        assert_eq!(sim.pools.values().next().expect("one").desired, 50);
        assert_eq!(sim.requests_of(&Method::POST, "/nodepool").len(), 1);
        // Stored one after the other, on a busy machine in more than one batch.
        assert!(sim.requests_of(&Method::PUT, "/nodepool/").len() <= 25);
    });
}

#[tokio::test]
async fn a_launch_returns_when_the_machine_exists_and_not_when_it_is_ready() {
    let delays = Delays {
        boot: HOUR,
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    cluster.launch(&cluster.claim("a", json!([]))).await;
    assert!(cluster.sim(|sim| sim.nodes.values().all(|node| node.status == "INSTALLING")));
}

#[tokio::test]
async fn a_one_zone_region_is_not_told_a_zone_unless_it_asks() {
    for zone_mandatory in [false, true] {
        let world = World {
            region: "GRA11".into(),
            zones: Vec::new(),
            plan: "free".into(),
            zone_mandatory,
            ..World::default()
        };
        let cluster = Cluster::of(world).await;
        let claim = cluster.launch(&cluster.claim("a", only("b3-8", "nova"))).await;
        assert_eq!(claim.metadata.labels.expect("labels")[labels::ZONE], "nova");
        cluster.launch(&cluster.claim("b", only("b3-16", "nova"))).await;
        let posts = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool"));
        let zones: Vec<_> = posts
            .iter()
            .map(|post| (post.status, post.body.get("availabilityZones").cloned()))
            .collect();
        let named = Some(json!(["gra11"]));
        if zone_mandatory {
            assert_eq!(zones, [(400, None), (200, named.clone()), (200, named)]);
        } else {
            assert_eq!(zones, [(200, None), (200, None)]);
        }
    }
}

#[tokio::test]
async fn the_chosen_node_goes_and_the_newest_stays() {
    let cluster = Cluster::start().await;
    let old = cluster.launch(&cluster.claim("old", only("b3-8", ZONE))).await;
    let new = cluster.launch(&cluster.claim("new", only("b3-8", ZONE))).await;
    terminate(&cluster, &old).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [new.provider_id().expect("launched")]
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_takes_no_second_node() {
    let cluster = Cluster::start().await;
    let doomed = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let kept = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::new(Method::PUT, "/nodepool/", Effect::Reset).once());
    });
    cluster
        .provider()
        .delete(&doomed)
        .await
        .expect_err("the answer is lost");
    terminate(&cluster, &doomed).await;
    cluster.pass(HOUR, 10).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_pool_that_is_not_visible_yet_is_not_made_twice() {
    let delays = Delays {
        visible: Duration::from_millis(1200),
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    assert_eq!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()), 1);
}

#[tokio::test]
async fn stale_reads_neither_lose_nor_double_a_place() {
    let delays = Delays {
        stale: Duration::from_secs(10),
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        cluster.sim(|sim| sim.pools.values().map(|pool| pool.desired).collect::<Vec<_>>()),
        [2]
    );
}

#[tokio::test]
async fn a_machine_out_of_stock_fails_the_claim_and_is_taken_back() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.sold_out.insert(("b3-8".into(), String::new())));
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let error = cluster.provider().create(&claim).await.expect_err("out of stock");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(
        error.to_string().contains("b3-8 is out of stock in eu-west-par-a"),
        "{error}"
    );
    let empty = || cluster.sim(|sim| sim.nodes.is_empty() && sim.pools.values().all(|pool| pool.desired == 0));
    assert!(cluster.until(empty).await, "nothing is left wanted");
    let stored = cluster.stored("a").expect("there");
    let annotations = stored.metadata.annotations.unwrap_or_default();
    assert!(
        !annotations.contains_key(names::POOL_NAME),
        "the reservation is taken back"
    );
    let types = cluster
        .provider()
        .instance_types(&crate::environment::parsed_node_pool())
        .await
        .expect("types");
    let own = types.iter().find(|own| own.name == "b3-8").expect("still listed");
    let available: Vec<bool> = own.offerings.iter().map(|offering| offering.available).collect();
    assert_eq!(available, [false, true, true], "known at once, for this zone");
    let other = cluster
        .launch(&cluster.claim(
            "b",
            json!([
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b3-8", "b3-16"]},
                {"key": labels::ZONE, "operator": "In", "values": [ZONE]},
            ]),
        ))
        .await;
    assert_eq!(other.metadata.labels.expect("labels")[labels::INSTANCE_TYPE], "b3-16");
}

#[tokio::test]
async fn a_quota_stops_bigger_flavors_and_lets_smaller_ones_try() {
    let cluster = Cluster::of(World {
        cores: Some(4),
        ..World::default()
    })
    .await;
    let big = cluster.claim_with("big", json!({"requirements": only("b3-32", ZONE)}));
    // The project lists its quota, so the flavor is not even tried.
    let error = cluster.provider().create(&big).await.expect_err("over quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    cluster.launch(&cluster.claim("small", only("b3-8", ZONE))).await;
}

#[tokio::test]
async fn a_claim_whose_node_never_comes_leaves_nothing() {
    let cluster = Cluster::with(
        World::default(),
        |settings| settings.engine.cadence.create_wait = Duration::from_millis(300),
        json!({}),
    )
    .await;
    cluster.sim(|sim| sim.never_instance = true);
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let provider = cluster.provider();
    let error = provider.create(&claim).await.expect_err("pending");
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "InstancePending");
    provider.create(&claim).await.expect_err("still pending");
    assert_eq!(
        cluster.sim(|sim| sim.pools.values().map(|pool| pool.desired).sum::<u32>()),
        1,
        "asked for once"
    );
    assert_eq!(provider.abandon(&claim).await.expect("given up"), Deletion::Gone);
    cluster.forget("a");
    cluster.pass(MINUTE * 15, 15).await;
    cluster.pass(MINUTE * 15, 15).await;
    let is_empty = || cluster.sim(|sim| sim.nodes.is_empty() && sim.pools.values().all(|pool| pool.desired == 0));
    assert!(
        cluster.until(is_empty).await,
        "{:?}",
        cluster.sim(|sim| format!("{:?}", sim.pools))
    );
    cluster.pass(MINUTE * 15, 15).await;
    assert!(
        cluster.until(|| cluster.sim(|sim| sim.pools.is_empty())).await,
        "the empty pool goes, too"
    );
}

#[tokio::test]
async fn a_late_node_is_given_to_the_next_claim() {
    let cluster = Cluster::with(
        World::default(),
        |settings| settings.engine.cadence.create_wait = Duration::from_millis(300),
        json!({}),
    )
    .await;
    cluster.sim(|sim| sim.world.delays.vm = HOUR);
    let provider = cluster.provider();
    let first = cluster.claim("a", only("b3-8", ZONE));
    provider.create(&first).await.expect_err("pending");
    provider.abandon(&first).await.expect("given up");
    cluster.forget("a");
    let second = cluster.claim("b", only("b3-8", ZONE));
    provider.create(&second).await.expect_err("pending, too");
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 1, "no second machine is asked for");
    cluster.clock.jump(HOUR);
    cluster.launch(&second).await;
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 1);
}

#[tokio::test]
async fn a_crash_at_any_exchange_leaves_exactly_one_machine_per_claim() {
    for point in [0, 1, 2, 4, 6, 8, 10] {
        let cluster = Cluster::start().await;
        let claim = cluster.claim("a", only("b3-8", ZONE));
        let before = cluster.sim(|sim| sim.requests.len());
        let provider = cluster.provider();
        let launch = tokio::spawn({
            let claim = claim.clone();
            async move { provider.create(&claim).await }
        });
        for _ in 0..2000 {
            if launch.is_finished() || cluster.sim(|sim| sim.requests.len()) >= before + point {
                break;
            }
            tokio::task::yield_now().await;
        }
        launch.abort();
        let restarted = cluster.crash();
        let instance = restarted.create(&claim).await.expect("continued");
        tokio::time::sleep(Duration::from_millis(60)).await;
        cluster.sim(|sim| {
            assert_eq!(
                sim.machines(),
                [instance.provider_id.as_str()],
                "crashed after {point} requests"
            );
            assert_eq!(sim.pools.values().map(|pool| pool.desired).sum::<u32>(), 1);
        });
        // And on the way out.
        let claim = launched(&claim, &instance);
        let before = cluster.sim(|sim| sim.requests.len());
        let deletion = tokio::spawn({
            let claim = claim.clone();
            async move { restarted.delete(&claim).await }
        });
        for _ in 0..2000 {
            if deletion.is_finished() || cluster.sim(|sim| sim.requests.len()) >= before + point {
                break;
            }
            tokio::task::yield_now().await;
        }
        deletion.abort();
        cluster.crash();
        cluster.until_ready().await;
        terminate(&cluster, &claim).await;
        cluster.sim(|sim| {
            assert!(sim.nodes.is_empty() && sim.pools.values().all(|pool| pool.desired == 0));
            assert!(sim.unnamed_removals.is_empty());
        });
    }
}

/// The must-hold of targeted removal: under concurrent launches exactly the chosen nodes go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_chosen_nodes_go_while_others_come() {
    for seed in 0..3 {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let delays = Delays {
            vm: Duration::from_millis(random.random_range(0..30)),
            delete: Duration::from_millis(random.random_range(0..40)),
            stale: Duration::from_millis(random.random_range(0..60)),
            ..Delays::default()
        };
        let cluster = Cluster::of(World {
            delays,
            ..World::default()
        })
        .await;
        let mut steps: Vec<Option<usize>> = (0..40).map(Some).chain((0..20).map(|_| None)).collect();
        steps.shuffle(&mut random);
        let (mut running, mut doomed) = (Vec::new(), BTreeSet::new());
        let mut ended = Vec::new();
        for step in steps {
            match step {
                Some(number) => {
                    let claim = cluster.claim(&format!("c{number:02}"), only("b3-8", ZONE));
                    let provider = cluster.provider();
                    let made = claim.clone();
                    running.push((claim, tokio::spawn(async move { provider.create(&made).await })));
                }
                None if running.is_empty() => {}
                None => {
                    let index = random.random_range(0..running.len());
                    let (claim, launch) = running.remove(index);
                    let instance = launch.await.expect("no panic").expect("launched");
                    let claim = launched(&claim, &instance);
                    doomed.insert(instance.provider_id.clone());
                    let provider = cluster.provider();
                    ended.push((
                        claim.clone(),
                        tokio::spawn(async move { provider.delete(&claim).await }),
                    ));
                }
            }
            if random.random_bool(0.4) {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..15))).await;
            }
        }
        let mut survivors = BTreeSet::new();
        for (_, launch) in running {
            survivors.insert(launch.await.expect("no panic").expect("launched").provider_id);
        }
        for (claim, deletion) in ended {
            deletion.await.expect("no panic").expect("accepted");
            terminate(&cluster, &claim).await;
        }
        assert!(
            survivors.is_disjoint(&doomed),
            "seed {seed}: a machine was given to two claims"
        );
        let left: BTreeSet<String> = cluster.sim(|sim| sim.machines().into_iter().collect());
        assert_eq!(left, survivors, "seed {seed}: exactly the chosen nodes are gone");
        assert!(
            cluster.sim(|sim| sim.unnamed_removals.is_empty()),
            "seed {seed}: a node went without being named"
        );
    }
}

#[tokio::test]
async fn pools_of_others_are_never_touched() {
    let cluster = Cluster::with(
        World::default(),
        |settings| settings.engine.empty_ttl = MINUTE,
        json!({}),
    )
    .await;
    let (full, empty) = cluster.sim(|sim| (sim.foreign_pool("karpenter-system", 2), sim.foreign_pool("batch", 0)));
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    terminate(&cluster, &claim).await;
    cluster.pass(HOUR, 10).await;
    assert!(
        cluster.until(|| cluster.sim(|sim| sim.pools.len() == 2)).await,
        "ours is gone"
    );
    cluster.sim(|sim| {
        assert!(sim.pools.contains_key(&full) && sim.pools.contains_key(&empty));
        assert_eq!(sim.nodes.len(), 2);
        for write in sim
            .requests
            .iter()
            .filter(|own| own.method == Method::PUT || own.method == Method::DELETE)
        {
            assert!(
                !write.path.contains(&full) && !write.path.contains(&empty),
                "{}",
                write.path
            );
        }
    });
}

#[tokio::test]
async fn a_size_that_somebody_raised_is_given_back_by_name() {
    let cluster = Cluster::start().await;
    let kept = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let pool = cluster.sim(|sim| sim.pools.keys().next().expect("one").clone());
    let raised = karpenter_ovhcloud::client::model::PoolUpdate {
        desired_nodes: Some(4),
        ..Default::default()
    };
    cluster.sim(|sim| sim.update_pool(&pool, &raised).expect("accepted"));
    cluster.pass(MINUTE, 4).await;
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 4, "not before ten minutes");
    for _ in 0..20 {
        cluster.pass(MINUTE * 2, 2).await;
    }
    assert!(cluster.until(|| cluster.sim(|sim| sim.nodes.len() == 1)).await);
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_claim_that_is_deleted_before_its_reservation_asks_nothing_of_the_cloud() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", json!([]));
    cluster.forget("a");
    cluster.provider().create(&claim).await.expect_err("the claim is gone");
    assert!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").is_empty()));
}
