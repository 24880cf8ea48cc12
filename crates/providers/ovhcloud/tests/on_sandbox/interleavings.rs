//! Whatever comes in whatever order: exactly the chosen machines go, every claim has its own, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion};
use karpenter_ovhcloud::sim::{Delays, Effect, HttpFault, World};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::environment::{Cluster, MINUTE, SECOND, launched, only};
use crate::launching::ZONE;

fn seconds(random: &mut ChaCha8Rng, most: u64) -> std::time::Duration {
    SECOND * random.random_range(0..=u32::try_from(most).expect("a few"))
}

/// The must-hold of targeted removal: 200 launches and 150 deletions in one pool key, in random order.
#[tokio::test]
async fn exactly_the_chosen_nodes_go_while_others_come() {
    for seed in 0..2 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let delays = Delays {
            schedule: seconds(&mut random, 5),
            vm: seconds(&mut random, 20),
            delete: seconds(&mut random, 60),
            stale: seconds(&mut random, 15),
            ..Delays::default()
        };
        let cluster = Cluster::of(World {
            delays,
            ..World::default()
        })
        .await;
        let mut steps: Vec<Option<usize>> = (0..200).map(Some).chain((0..150).map(|_| None)).collect();
        steps.shuffle(&mut random);
        let (mut running, mut ended, mut doomed) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut deletions = 0;
        for step in steps {
            match step {
                Some(number) => {
                    let claim = cluster.claim(&format!("c{number:03}"), only("b3-8", ZONE));
                    let (provider, made) = (cluster.provider(), claim.clone());
                    running.push((claim, tokio::spawn(async move { provider.create(&made).await })));
                }
                // A deletion before there is anything to delete is made up for at the end.
                None if running.is_empty() => {}
                None => {
                    let index = random.random_range(0..running.len());
                    ended.push(doom(&cluster, &mut doomed, running.remove(index)).await);
                    deletions += 1;
                }
            }
            if random.random_bool(0.3) {
                cluster.pass(seconds(&mut random, 8)).await;
            }
        }
        while deletions < 150 {
            let index = random.random_range(0..running.len());
            ended.push(doom(&cluster, &mut doomed, running.remove(index)).await);
            deletions += 1;
        }
        let mut survivors = BTreeSet::new();
        for (_, launch) in running {
            survivors.insert(launch.await.expect("no panic").expect("launched").provider_id);
        }
        for (claim, deletion) in ended {
            deletion.await.expect("no panic").expect("accepted");
            cluster.terminate(&claim).await;
        }
        assert!(survivors.is_disjoint(&doomed), "seed {seed}: a machine had two claims");
        assert_eq!((survivors.len(), doomed.len()), (50, 150));
        cluster.pass(MINUTE * 15).await;
        let left: BTreeSet<String> = cluster.sim(|sim| sim.machines().into_iter().collect());
        assert_eq!(left, survivors, "seed {seed}: exactly the chosen nodes are gone");
        cluster.sim(|sim| {
            assert!(
                sim.unnamed_removals.is_empty(),
                "seed {seed}: a node went without being named"
            );
            let desired: u32 = sim.pools.values().map(|pool| pool.desired).sum();
            assert_eq!(desired, 50, "seed {seed}");
        });
    }
}

type Launch = tokio::task::JoinHandle<Result<karpenter_cloud::Instance, karpenter_cloud::CloudError>>;
type Ending = tokio::task::JoinHandle<Result<Deletion, karpenter_cloud::CloudError>>;

/// Waits for a launch and starts to delete what it made.
async fn doom(cluster: &Cluster, doomed: &mut BTreeSet<String>, launch: (NodeClaim, Launch)) -> (NodeClaim, Ending) {
    let (claim, launch) = launch;
    let instance = launch.await.expect("no panic").expect("launched");
    let claim = launched(&claim, &instance);
    doomed.insert(instance.provider_id.clone());
    let (provider, gone) = (cluster.provider(), claim.clone());
    let ending = tokio::spawn(async move { provider.delete(&gone).await });
    (claim, ending)
}

/// What a random hand does next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Launch,
    Delete,
    Crash,
    /// MKS replaces a machine.
    Heal,
    /// Some request fails, before or after it took effect.
    Fault,
    /// Somebody turns a pool's size up at the console.
    Raise,
    Wait,
}

/// After faults stop: every live claim has its machine, no machine lacks a claim, and none that a claim held was taken by us.
#[tokio::test]
async fn crashes_faults_and_mks_itself_leave_neither_a_claim_nor_a_machine_alone() {
    for seed in 0..3 {
        let mut random = ChaCha8Rng::seed_from_u64(1000 + seed);
        let cluster = Cluster::of(World {
            delays: Delays::realistic(),
            ..World::default()
        })
        .await;
        let mut claims: BTreeMap<String, NodeClaim> = BTreeMap::new();
        let mut healed = 0;
        for number in 0..60 {
            match pick(&mut random) {
                Move::Launch => {
                    let name = format!("c{number:03}");
                    let claim = cluster.claim(&name, only("b3-8", ZONE));
                    let provider = cluster.provider();
                    // Whatever becomes of this call, the claim is tried again below.
                    tokio::spawn({
                        let claim = claim.clone();
                        async move { provider.create(&claim).await.is_ok() }
                    });
                    claims.insert(name, claim);
                }
                Move::Delete => {
                    let names: Vec<&String> = claims.keys().collect();
                    let Some(name) = pick_of(&mut random, &names) else {
                        continue;
                    };
                    let claim = claims.remove(&name).expect("listed a moment ago");
                    end(&cluster, &claim).await;
                }
                Move::Crash => drop(cluster.crash()),
                Move::Heal => {
                    let ready: Vec<String> = cluster.sim(|sim| {
                        let ready = sim.nodes.values().filter(|node| node.status == "READY");
                        ready.map(|node| node.id.clone()).collect()
                    });
                    if let Some(node) = pick_of(&mut random, &ready.iter().collect::<Vec<_>>()) {
                        cluster.sim(|sim| sim.heal(&node));
                        healed += 1;
                    }
                }
                Move::Fault => {
                    let method = [Method::GET, Method::PUT, Method::POST][random.random_range(0..3)].clone();
                    let effect = match random.random_range(0..3) {
                        0 => Effect::Reset,
                        1 => Effect::AnswerAfter(502, String::new()),
                        _ => Effect::Answer(503, "<html></html>".to_owned()),
                    };
                    cluster.sim(|sim| sim.faults.push(HttpFault::new(method, "/nodepool", effect).once()));
                }
                Move::Raise => cluster.sim(|sim| {
                    let pools: Vec<(String, u32)> = sim
                        .pools
                        .values()
                        .filter(|pool| pool.desired < 90 && pool.status == "READY")
                        .map(|pool| (pool.id.clone(), pool.desired))
                        .collect();
                    if let Some((pool, desired)) = pools.first() {
                        sim.resize_by_hand(pool, desired + 1);
                    }
                }),
                Move::Wait => {}
            }
            cluster.pass(seconds(&mut random, 40)).await;
        }
        // Faults stop. Claims whose machine MKS took end, as core's garbage collection has it.
        cluster.sim(|sim| sim.faults.clear());
        cluster.crash();
        let mut held = BTreeMap::new();
        for (name, claim) in &claims {
            // The provider ended it when its machine was gone.
            if cluster.stored(name).is_none() {
                continue;
            }
            match cluster.provider().create(claim).await {
                Ok(instance) => drop(held.insert(name.clone(), instance.provider_id)),
                Err(error) => {
                    assert!(error.is_insufficient_capacity(), "seed {seed}: {name}: {error}");
                    end(&cluster, claim).await;
                }
            }
        }
        cluster.pass(MINUTE * 60).await;
        let machines: BTreeSet<String> = cluster.sim(|sim| sim.machines().into_iter().collect());
        let ids: BTreeSet<String> = held.values().cloned().collect();
        assert_eq!(ids.len(), held.len(), "seed {seed}: every claim has its own machine");
        assert_eq!(
            machines, ids,
            "seed {seed}: {healed} healed; no machine without a claim"
        );
        assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()), "seed {seed}");
    }
}

fn pick(random: &mut ChaCha8Rng) -> Move {
    match random.random_range(0..100) {
        0..35 => Move::Launch,
        35..55 => Move::Delete,
        55..63 => Move::Crash,
        63..71 => Move::Heal,
        71..83 => Move::Fault,
        83..87 => Move::Raise,
        _ => Move::Wait,
    }
}

fn pick_of(random: &mut ChaCha8Rng, from: &[&String]) -> Option<String> {
    (!from.is_empty()).then(|| from[random.random_range(0..from.len())].clone())
}

/// Ends a claim, launched or not, through whatever faults there are.
async fn end(cluster: &Cluster, claim: &NodeClaim) {
    let name = claim.metadata.name.clone().expect("a name");
    for _ in 0..200 {
        let provider = cluster.provider();
        let Some(stored) = cluster.stored(&name) else { return };
        if let Ok(Deletion::Gone) = provider.abandon(&stored).await {
            cluster.forget(&name);
            return;
        }
        cluster.pass(SECOND * 5).await;
    }
    panic!("{name} does not end");
}
