//! A burst that arrives in waves buys no more than the same pods at once would.

use std::time::Duration;

use karpenter_cloud::fake::Method;
use karpenter_core::options::Options;
use karpenter_core::{lifecycle, provisioning};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::world::World;

const WAVES: usize = 10;
const APART: Duration = Duration::from_millis(300);

/// How the pods come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    AtOnce,
    /// Ten waves. Other pods before them hold the batching window open, so that its ten seconds end between two waves.
    AcrossTheWindowsEnd,
    /// Ten waves, and the window closes after each.
    WindowByWindow,
}

async fn world(seed: u64, arrival: Arrival, pool: Value) -> World {
    let mut options = Options::default();
    if arrival == Arrival::WindowByWindow {
        options.batch_idle_duration = APART / 3;
    }
    let world = World::start_with(options, |ctx| {
        let mut controllers = provisioning::controllers(ctx).0;
        controllers.push(lifecycle::controller(ctx));
        controllers
    })
    .await;
    // Some launches are over before the next wave, others outlast all of them.
    let latency = Duration::from_millis(200 + 150 * (seed % 20));
    world.cloud.set_latency(Method::Create, latency);
    world.pool("default", pool);
    world
}

/// What was bought, and in how many passes.
#[derive(Debug)]
struct Bought {
    machines: usize,
    passes: usize,
}

async fn buy(seed: u64, arrival: Arrival, pool: Value, sizes: &[&str]) -> Bought {
    let world = world(seed, arrival, pool).await;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = 0;
    let mut arrives = |random: &mut ChaCha8Rng| {
        let cpu = sizes[random.random_range(0..sizes.len())];
        world.pending_pod(&format!("web-{number}"), cpu, json!({}));
        number += 1;
    };
    // The window is open for so long before the first wave that between one and nine waves come before it closes.
    let mut left = Duration::from_secs(10) - APART * (1 + (seed % 9) as u32);
    while !left.is_zero() {
        arrives(&mut random);
        let pause = left.min(Duration::from_millis(900));
        left -= pause;
        if arrival == Arrival::AcrossTheWindowsEnd {
            world.sandbox.run_for(pause).await;
        }
    }
    for _ in 0..WAVES {
        for _ in 0..random.random_range(1..6) {
            arrives(&mut random);
        }
        if arrival != Arrival::AtOnce {
            world.sandbox.run_for(APART).await;
        }
    }
    world.pass(20).await;
    assert_eq!(world.cloud.machines().len(), world.claims().len(), "seed {seed}");
    Bought {
        machines: world.claims().len(),
        passes: passes(&world),
    }
}

/// Passes that planned something; each is timed as a whole and in its planning.
fn passes(world: &World) -> usize {
    let text = world.ctx.metrics.registry.encode();
    let count = text.lines().find_map(|line| {
        line.strip_prefix("karpenter_scheduler_scheduling_duration_seconds_count{controller=\"provisioner\"} ")
    });
    count.map_or(0, |count| count.parse::<usize>().expect("a number") / 2)
}

async fn check(arrival: Arrival, pool: Value, sizes: &[&str], seeds: u64, passes: usize) {
    for seed in 0..seeds {
        let at_once = buy(seed, Arrival::AtOnce, pool.clone(), sizes).await;
        assert_eq!(at_once.passes, 1, "seed {seed}");
        let in_waves = buy(seed, arrival, pool.clone(), sizes).await;
        assert!(in_waves.passes >= passes, "seed {seed}: {in_waves:?}");
        assert!(
            in_waves.machines <= at_once.machines + 1,
            "seed {seed}: {in_waves:?} instead of {at_once:?}"
        );
    }
}

#[tokio::test]
async fn ten_waves_that_two_passes_plan_for_buy_at_most_one_machine_more_than_one_pass() {
    let sizes = ["100m", "500m", "1", "2500m"];
    check(Arrival::AcrossTheWindowsEnd, json!({}), &sizes, 50, 2).await;
}

/// Where every machine is the same, a pass for each wave needs no more of them either: what one pass bought the next one fills.
#[tokio::test]
async fn ten_waves_with_a_pass_for_each_fill_what_the_ones_before_have_bought() {
    let one_type = json!({ "template": { "spec": { "requirements": [
        { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-4x"] }] } } });
    check(Arrival::WindowByWindow, one_type, &["250m", "500m", "1"], 10, WAVES).await;
}
