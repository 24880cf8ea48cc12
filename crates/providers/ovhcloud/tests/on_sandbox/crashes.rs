//! The process dies at every exchange with the API, before the request arrives and after its answer is lost; nothing leaks.

use http::Method;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion};
use karpenter_ovhcloud::{
    names,
    sim::{Cut, Loses},
};
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, launched, only};
use crate::launching::{ZONE, sizes};

const BOTH: [Loses; 2] = [Loses::TheRequest, Loses::TheAnswer];
/// After this, whatever garbage there is has been collected.
const GARBAGE_PERIOD: std::time::Duration = MINUTE.saturating_mul(13);

/// How an operation ended that the process might die in.
enum Ended {
    /// The process died at the cut.
    Died,
    /// The operation needs no more exchanges than were let through.
    Done,
}

/// Runs an operation and kills the process at the exchange with that number; another process starts.
async fn dying<F, T>(cluster: &Cluster, exchange: usize, loses: Loses, operation: F) -> Ended
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    cluster.sim(|sim| sim.cut = Some(Cut { after: exchange, loses }));
    let running = tokio::spawn(operation);
    loop {
        if cluster.sim(|sim| sim.is_cut) {
            running.abort();
            cluster.crash();
            cluster.sim(|sim| sim.mend());
            return Ended::Died;
        }
        if running.is_finished() {
            cluster.sim(|sim| sim.mend());
            return Ended::Done;
        }
        tokio::task::yield_now().await;
    }
}

fn create(cluster: &Cluster, claim: &NodeClaim) -> impl Future<Output = bool> + Send + 'static {
    let (provider, claim) = (cluster.provider(), claim.clone());
    async move { provider.create(&claim).await.is_ok() }
}

/// Nothing is there that was not there before, and nothing was taken without being named.
fn assert_nothing_is_left(cluster: &Cluster, when: &str) {
    cluster.sim(|sim| {
        assert!(sim.nodes.is_empty(), "{when}: {:?}", sim.nodes);
        assert!(
            sim.pools.values().all(|pool| pool.desired == 0),
            "{when}: {:?}",
            sim.pools
        );
        assert!(sim.unnamed_removals.is_empty(), "{when}");
        assert!(sim.unknown_paths.is_empty(), "{when}: {:?}", sim.unknown_paths);
    });
}

#[tokio::test]
async fn a_launch_that_dies_at_any_exchange_ends_with_exactly_one_machine() {
    for loses in BOTH {
        let cluster = Cluster::start().await;
        let mut exchanges = 0;
        for exchange in 0.. {
            let when = format!("died at exchange {exchange}, losing {loses:?}");
            // Every other launch makes its pool anew, the rest grow one.
            if exchange % 2 == 0 {
                cluster.pass(GARBAGE_PERIOD).await;
            }
            let claim = cluster.claim(&format!("c{exchange}"), only("b3-8", ZONE));
            let ended = dying(&cluster, exchange, loses, create(&cluster, &claim)).await;
            let instance = cluster.provider().create(&claim).await.expect("continued");
            cluster.pass(GARBAGE_PERIOD).await;
            cluster.sim(|sim| assert_eq!(sim.machines(), [instance.provider_id.as_str()], "{when}"));
            assert_eq!(sizes(&cluster), [1], "{when}");
            cluster.terminate(&launched(&claim, &instance)).await;
            assert_nothing_is_left(&cluster, &when);
            if matches!(ended, Ended::Done) {
                break;
            }
            exchanges += 1;
        }
        assert!(exchanges >= 4, "a launch has more exchanges than {exchanges}");
    }
}

#[tokio::test]
async fn a_launch_that_dies_at_any_exchange_and_is_given_up_leaves_nothing() {
    for loses in BOTH {
        let cluster = Cluster::start().await;
        for exchange in 0.. {
            let when = format!("died at exchange {exchange}, losing {loses:?}");
            let claim = cluster.claim(&format!("c{exchange}"), only("b3-8", ZONE));
            let ended = dying(&cluster, exchange, loses, create(&cluster, &claim)).await;
            let provider = cluster.provider();
            // The process that comes next finds the claim deleted.
            let stored = cluster.stored(&format!("c{exchange}")).expect("there");
            while provider.abandon(&stored).await.expect("no faults") != Deletion::Gone {
                cluster.pass(MINUTE / 12).await;
            }
            cluster.forget(&format!("c{exchange}"));
            cluster.pass(GARBAGE_PERIOD * 2).await;
            assert_nothing_is_left(&cluster, &when);
            assert!(
                cluster.sim(|sim| sim.pools.is_empty()),
                "{when}: the pool is gone as well"
            );
            if matches!(ended, Ended::Done) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_deletion_that_dies_at_any_exchange_takes_exactly_its_machine() {
    for loses in BOTH {
        let cluster = Cluster::start().await;
        let kept = cluster.launch(&cluster.claim("kept", only("b3-8", ZONE))).await;
        let kept = kept.provider_id().expect("launched").to_owned();
        let mut exchanges = 0;
        for exchange in 0.. {
            let when = format!("died at exchange {exchange}, losing {loses:?}");
            let claim = cluster.claim(&format!("c{exchange}"), only("b3-8", ZONE));
            let claim = cluster.launch(&claim).await;
            let deletion = {
                let (provider, claim) = (cluster.provider(), claim.clone());
                async move { provider.delete(&claim).await.is_ok() }
            };
            let ended = dying(&cluster, exchange, loses, deletion).await;
            cluster.terminate(&claim).await;
            cluster.pass(GARBAGE_PERIOD).await;
            cluster.sim(|sim| {
                assert_eq!(sim.machines(), [kept.as_str()], "{when}");
                assert!(sim.unnamed_removals.is_empty(), "{when}");
            });
            assert_eq!(sizes(&cluster), [1], "{when}");
            if matches!(ended, Ended::Done) {
                break;
            }
            exchanges += 1;
        }
        assert!(exchanges >= 3, "a deletion has more exchanges than {exchanges}");
    }
}

#[tokio::test]
async fn a_pool_whose_deletion_dies_at_any_exchange_is_gone_in_the_end() {
    for loses in BOTH {
        let cluster = Cluster::start().await;
        for exchange in 0..4 {
            let claim = cluster
                .launch(&cluster.claim(&format!("c{exchange}"), only("b3-8", ZONE)))
                .await;
            cluster.terminate(&claim).await;
            // Until just before the pool is due.
            cluster.pass(MINUTE * 9 + MINUTE / 2).await;
            cluster.sim(|sim| sim.cut = Some(Cut { after: exchange, loses }));
            while !cluster.sim(|sim| sim.is_cut) {
                tokio::task::yield_now().await;
            }
            cluster.crash();
            cluster.sim(|sim| sim.mend());
            cluster.pass(GARBAGE_PERIOD).await;
            assert!(
                cluster.sim(|sim| sim.pools.is_empty()),
                "exchange {exchange}, losing {loses:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_crash_between_the_binding_and_the_answer_finds_the_same_machine() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let first = cluster.provider().create(&claim).await.expect("launched");
    // Core never saw the answer.
    let second = cluster.crash().create(&claim).await.expect("found");
    assert_eq!(first.provider_id, second.provider_id);
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn a_leader_that_dies_in_the_middle_of_growing_leaves_the_next_one_nothing_to_undo() {
    for loses in BOTH {
        let cluster = Cluster::start().await;
        let claims: Vec<NodeClaim> = (0..6)
            .map(|number| cluster.claim(&format!("c{number}"), only("b3-8", ZONE)))
            .collect();
        cluster.launch(&claims[0]).await;
        let provider = cluster.provider();
        let launches: Vec<_> = claims[1..]
            .iter()
            .map(|claim| {
                let (provider, claim) = (provider.clone(), claim.clone());
                tokio::spawn(async move { provider.create(&claim).await })
            })
            .collect();
        // The write that grows the pool is the one that is lost.
        let puts = || cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/").len());
        let before = puts();
        loop {
            cluster.sim(|sim| {
                sim.cut = Some(Cut { after: 1, loses });
            });
            tokio::task::yield_now().await;
            if cluster.sim(|sim| sim.is_cut) || puts() > before {
                break;
            }
        }
        for launch in launches {
            launch.abort();
        }
        let next = cluster.crash();
        cluster.sim(|sim| sim.mend());
        let made = futures::future::join_all(claims.iter().map(|claim| next.create(claim))).await;
        let mut ids: Vec<String> = made
            .into_iter()
            .map(|made| made.expect("launched").provider_id)
            .collect();
        ids.sort();
        ids.dedup();
        cluster.pass(GARBAGE_PERIOD).await;
        let mut machines = cluster.sim(|sim| sim.machines());
        machines.sort();
        assert_eq!(ids.len(), 6, "every claim has its own machine");
        assert_eq!(machines, ids, "and there is no other");
        assert_eq!(sizes(&cluster), [6]);
    }
}

#[tokio::test]
async fn a_restart_among_many_pools_writes_nothing_and_matches_every_claim() {
    let cluster = Cluster::start().await;
    let flavors: Vec<String> = karpenter_ovhcloud::catalogue::flavors::all()
        .into_iter()
        .map(|own| own.name)
        .take(10)
        .collect();
    let zones = ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"];
    let claims: Vec<NodeClaim> = (0..400)
        .map(|number| {
            let (flavor, zone) = (&flavors[number % 10], zones[(number / 10) % 3]);
            cluster.claim(&format!("c{number:03}"), only(flavor, zone))
        })
        .collect();
    let provider = cluster.provider();
    for made in futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await {
        made.expect("launched");
    }
    assert_eq!(cluster.sim(|sim| (sim.pools.len(), sim.nodes.len())), (30, 400));
    cluster.sim(|sim| sim.requests.clear());
    let restarted = cluster.crash();
    let listed = restarted.list().await.expect("listed");
    assert_eq!(listed.iter().filter(|own| own.claim.is_some()).count(), 400);
    cluster.pass(MINUTE * 15).await;
    let written = cluster.sim(|sim| sim.requests.iter().filter(|own| own.method != Method::GET).count());
    assert_eq!(written, 0, "there is nothing to put right");
    assert_eq!(cluster.sim(|sim| sim.nodes.len()), 400);
}

#[tokio::test]
async fn an_empty_pool_goes_after_ten_minutes_unless_somebody_comes() {
    let cluster = Cluster::start().await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.terminate(&first).await;
    cluster.pass(MINUTE * 9 + MINUTE / 3).await;
    let second = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    assert_eq!(
        cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len()),
        1,
        "the pool was still there"
    );
    cluster.terminate(&second).await;
    cluster.pass(MINUTE * 12).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty()));
    assert!(cluster.was_told("default", "PoolCreated") && cluster.was_told("default", "PoolDeleted"));
}

#[tokio::test]
async fn a_claim_that_comes_while_its_pool_is_being_deleted_goes_elsewhere() {
    let cluster = Cluster::start().await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let name = first.metadata.annotations.clone().expect("annotations")[names::POOL_NAME].clone();
    // Its last machine takes its time, so the pool stays "deleting".
    cluster.sim(|sim| {
        let pool = sim.pools.keys().next().expect("one").clone();
        sim.world.delays.delete = MINUTE * 3;
        sim.delete_by_hand(&pool);
    });
    let second = cluster.launch(&cluster.claim("b", only("b3-8", ZONE))).await;
    let other = &second.metadata.annotations.expect("annotations")[names::POOL_NAME];
    assert_ne!(*other, name, "a name that is being deleted is not used");
}

#[tokio::test]
async fn pools_of_the_provider_written_in_go_are_served_and_emptied_but_never_grown() {
    let cluster = Cluster::start().await;
    let legacy = cluster.sim(|sim| sim.legacy_pool("b3-8", 2));
    cluster.pass(MINUTE).await;
    let machines = cluster.sim(|sim| {
        let own = sim.nodes.values().filter(|node| node.pool == legacy);
        own.map(|node| (node.id.clone(), node.instance.clone().expect("made"), node.name.clone()))
            .collect::<Vec<_>>()
    });
    // Claims as the other provider left them.
    let mut claims = Vec::new();
    for (number, (node, instance, name)) in machines.iter().enumerate() {
        let claim = cluster.claim(&format!("go-{number}"), only("b3-8", ZONE));
        let marks = json!({"metadata": {"annotations": {
            names::POOL_ID: legacy, names::NODE_ID: node, names::NODE_NAME: name,
        }}});
        let objects = cluster.sandbox.objects();
        objects
            .patch::<NodeClaim>("", &format!("go-{number}"), &marks)
            .expect("accepted");
        let status = json!({"status": {"providerID": format!("openstack:///{instance}")}});
        let stored = objects.patch_status::<NodeClaim>("", &format!("go-{number}"), &status);
        claims.push(stored.expect("accepted"));
        drop(claim);
    }
    let provider = cluster.crash();
    assert_eq!(provider.list().await.expect("listed").len(), 2);
    let id = claims[0].provider_id().expect("set").to_owned();
    assert_eq!(provider.get(&id).await.expect("found").provider_id, id);
    cluster.launch(&cluster.claim("new", only("b3-8", ZONE))).await;
    assert_eq!(cluster.sim(|sim| sim.pools[&legacy].desired), 2, "not grown");
    cluster.terminate(&claims[0]).await;
    assert_eq!(cluster.sim(|sim| sim.pools[&legacy].desired), 1);
    cluster.terminate(&claims[1]).await;
    cluster.pass(HOUR / 4).await;
    assert!(
        cluster.sim(|sim| !sim.pools.contains_key(&legacy)),
        "deleted when empty"
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}
