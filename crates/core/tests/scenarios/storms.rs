//! The cloud runs out of capacity, throttles and fails at random; once it stops, everything is as it should be.

use std::time::Duration;

use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{Method, Moment};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::whole_cluster::WholeCluster;

const PODS: usize = 2;

/// Half of all launches and terminations fail, in one way or another, before or after they took effect.
fn storm(cluster: &WholeCluster, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    cluster.cloud.fail_when(move |method| {
        let errors = [
            CloudError::insufficient_capacity("none of these is left"),
            CloudError::throttled("slow down", Some(Duration::from_secs(3))),
            CloudError::transient("try again"),
            CloudError::quota("no more addresses"),
        ];
        let error = errors.into_iter().nth(random.random_range(0..4))?;
        // A cloud that says it has no capacity has not made the machine.
        let after = random.random_bool(0.5) && !error.is_insufficient_capacity();
        let moment = if after { Moment::After } else { Moment::Before };
        let hit = random.random_bool(0.5);
        (hit && matches!(method, Method::Create | Method::Delete | Method::Get)).then_some((moment, error))
    });
}

async fn check(seed: u64) -> u64 {
    let cluster = WholeCluster::start(seed).await;
    storm(&cluster, seed);
    cluster.deploy("web", PODS);
    cluster.sandbox.run_for(Duration::from_secs(120)).await;
    cluster.cloud.stop_failing();
    assert!(
        cluster.until_running(PODS, 20).await,
        "seed {seed}: {}",
        cluster.summary()
    );
    cluster.sandbox.run_for(Duration::from_secs(120)).await;
    assert_eq!(cluster.counts(), (PODS, PODS, PODS), "seed {seed}");
    let asked = cluster.cloud.calls(Method::Create);

    storm(&cluster, seed + 1000);
    cluster.scale("web", 0);
    cluster.sandbox.run_for(Duration::from_secs(60)).await;
    cluster.cloud.stop_failing();
    assert!(cluster.until_empty(20).await, "seed {seed}: {}", cluster.summary());
    asked
}

#[tokio::test]
async fn a_storm_of_refusals_passes_and_leaves_what_was_asked_for() {
    for seed in 0..3 {
        let asked = check(seed).await;
        assert!(
            asked < 200,
            "seed {seed}: {asked} launches in two minutes is a storm of our own"
        );
    }
}

#[tokio::test]
async fn the_same_seed_makes_the_same_calls() {
    assert_eq!(check(3).await, check(3).await);
}
