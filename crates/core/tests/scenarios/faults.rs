//! API server and cloud fail at random; once they stop, everything is as it should be.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::Moment;
use karpenter_sandbox::faults::{Effect, Fault};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cluster::Cluster;
use crate::whole_cluster::WholeCluster;

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

// === All at once, for long ===

/// Requests of the controllers fail, in every way that an API server has.
fn break_the_server(cluster: &WholeCluster) {
    let agent = cluster.agent();
    let inject = |fault: Fault, verb: &str, probability: f64| {
        let fault = fault.verb(verb).agent(agent).probability(probability);
        cluster.sandbox.faults().inject(fault);
    };
    for code in [409, 429, 500, 504] {
        inject(Fault::fail(code), "write", 0.05);
    }
    inject(Fault::new(Effect::Disconnect), "write", 0.05);
    for code in [410, 503] {
        inject(Fault::fail(code), "watch", 0.1);
        inject(Fault::fail(code), "list", 0.1);
    }
}

/// A quarter of all calls to the cloud fail, in one way or another, before or after they took effect.
fn break_the_cloud(cluster: &WholeCluster, mut random: ChaCha8Rng) {
    cluster.cloud.fail_when(move |_| {
        let errors = [
            CloudError::insufficient_capacity("none of these is left"),
            CloudError::throttled("slow down", Some(Duration::from_secs(3))),
            CloudError::transient("the cloud is having a bad day"),
        ];
        let error = errors.into_iter().nth(random.random_range(0..3))?;
        // A cloud that says it has no capacity has not made the machine.
        let after = random.random_bool(0.5) && !error.is_insufficient_capacity();
        let moment = if after { Moment::After } else { Moment::Before };
        random.random_bool(0.25).then_some((moment, error))
    });
}

/// Twenty minutes in which users scale up and down and nothing can be relied upon, and then peace. What the controllers wrote.
async fn live_through_trouble(seed: u64) -> String {
    let cluster = WholeCluster::start(seed).await;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for app in ["web", "db"] {
        cluster.deploy(app, 1);
    }
    break_the_server(&cluster);
    break_the_cloud(&cluster, ChaCha8Rng::seed_from_u64(seed + 1000));
    for _ in 0..20 {
        let app = if random.random_bool(0.5) { "web" } else { "db" };
        cluster.scale(app, random.random_range(0..4));
        if random.random_bool(0.3) {
            cluster.sandbox.expire_resource_versions();
        }
        cluster.sandbox.faults().drop_watches();
        let pause = Duration::from_secs(random.random_range(1..120));
        cluster.sandbox.run_for(pause).await;
    }
    cluster.sandbox.faults().clear();
    cluster.cloud.stop_failing();
    cluster.scale("web", 3);
    cluster.scale("db", 2);
    // One of each shares a node with one of the other.
    let is_done = |cluster: &WholeCluster| cluster.runs(5, 3);
    assert!(cluster.until(30, is_done).await, "seed {seed}: {}", cluster.summary());
    cluster.sandbox.run_for(Duration::from_secs(120)).await;
    assert!(is_done(&cluster), "seed {seed}: {}", cluster.summary());
    for app in ["web", "db"] {
        cluster.scale(app, 0);
    }
    assert!(cluster.until_empty(30).await, "seed {seed}: {}", cluster.summary());
    cluster.story()
}

#[tokio::test]
async fn a_cluster_that_lived_through_everything_at_once_is_as_its_users_want_it() {
    for seed in 0..2 {
        let story = live_through_trouble(seed).await;
        assert!(story.lines().count() > 100, "seed {seed}");
    }
}

#[tokio::test]
async fn the_same_seed_tells_the_same_story() {
    let (once, again) = (live_through_trouble(7).await, live_through_trouble(7).await);
    let differs = once.lines().zip(again.lines()).position(|(once, again)| once != again);
    assert_eq!(
        differs,
        None,
        "{:?}",
        differs.map(|at| (once.lines().nth(at), again.lines().nth(at)))
    );
    assert_eq!(
        once.lines().count(),
        again.lines().count(),
        "one goes on after the other"
    );
}
