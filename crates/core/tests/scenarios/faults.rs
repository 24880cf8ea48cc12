//! API server and cloud fail at random; once they stop, everything is as it should be.

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::Moment;
use karpenter_sandbox::faults::Fault;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cluster::Cluster;

/// A fifth of all writes fail, watches break, and a third of all calls to the cloud fail before or after they took effect.
fn break_things(cluster: &Cluster, seed: u64) {
    for code in [409, 429, 500] {
        cluster
            .sandbox
            .faults()
            .inject(Fault::fail(code).verb("patch").probability(0.07));
        cluster
            .sandbox
            .faults()
            .inject(Fault::fail(code).verb("delete").probability(0.07));
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    cluster.cloud.fail_when(move |_| {
        let moment = if random.random_bool(0.5) {
            Moment::Before
        } else {
            Moment::After
        };
        random
            .random_bool(0.3)
            .then(|| (moment, CloudError::transient("the cloud is having a bad day")))
    });
    cluster.sandbox.faults().drop_watches();
}

fn mend(cluster: &Cluster) {
    cluster.sandbox.faults().clear();
    cluster.cloud.stop_failing();
}

async fn check(seed: u64) {
    let cluster = Cluster::start().await;
    break_things(&cluster, seed);
    for name in ["a", "b", "c"] {
        cluster.claim(name, "expireAfter: Never").await;
    }
    cluster.minutes(2).await;
    mend(&cluster);
    cluster.minutes(2).await;
    for name in ["a", "b", "c"] {
        assert_eq!(
            cluster.condition(name, "Initialized"),
            "True/Initialized",
            "seed {seed}"
        );
    }
    assert_eq!(cluster.cloud.machines().len(), 3, "seed {seed}");

    break_things(&cluster, seed + 1);
    for name in ["a", "b", "c"] {
        cluster.delete_claim(name).await;
    }
    cluster.minutes(1).await;
    mend(&cluster);
    cluster.minutes(3).await;
    assert!(cluster.objects().list::<NodeClaim>("").is_empty(), "seed {seed}");
    assert!(cluster.objects().list::<Node>("").is_empty(), "seed {seed}");
    assert!(cluster.cloud.machines().is_empty(), "seed {seed}");
}

#[tokio::test]
async fn what_fails_at_random_converges_once_it_stops() {
    for seed in 0..4 {
        check(10 * seed).await;
    }
}
