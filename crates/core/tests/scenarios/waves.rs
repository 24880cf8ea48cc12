//! A burst that arrives in waves buys no more than the same pods at once would.

use std::time::Duration;

use karpenter_cloud::fake::Method;
use karpenter_core::{lifecycle, provisioning};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::world::World;

const WAVES: usize = 10;

async fn world(seed: u64) -> World {
    let world = World::start(|ctx| {
        let mut controllers = provisioning::controllers(ctx).0;
        controllers.push(lifecycle::controller(ctx));
        controllers
    })
    .await;
    let latency = Duration::from_millis(200 + 150 * (seed % 20));
    world.cloud.set_latency(Method::Create, latency);
    world.pool("default", json!({}));
    world
}

/// How many machines are bought for the pods of `seed` when `pause` passes between waves.
async fn machines(seed: u64, pause: Duration) -> usize {
    let world = world(seed).await;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = 0;
    for _ in 0..WAVES {
        for _ in 0..random.random_range(1..6) {
            let cpu = ["100m", "500m", "1", "2500m"][random.random_range(0..4)];
            world.pending_pod(&format!("web-{number}"), cpu, json!({}));
            number += 1;
        }
        world.sandbox.run_for(pause).await;
    }
    world.pass(60).await;
    assert_eq!(world.cloud.machines().len(), world.claims().len(), "seed {seed}");
    world.claims().len()
}

async fn check(seed: u64) {
    let at_once = machines(seed, Duration::ZERO).await;
    let in_waves = machines(seed, Duration::from_millis(300)).await;
    assert!(in_waves <= at_once + 1, "seed {seed}: {in_waves} instead of {at_once}");
}

#[tokio::test]
async fn ten_waves_buy_at_most_one_machine_more_than_one_burst() {
    for seed in 0..50 {
        check(seed).await;
    }
}
