//! Two hundred nodes at once against a slow server that throttles.

use std::time::Duration;

use futures::future::join_all;
use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::sim::Seed;
use serde_json::json;

use crate::environment::{Cloud, claim};

const NODES: u32 = 200;
/// The server counts every request twice.
const PER_SECOND: u32 = 50;
const LATENCY: Duration = Duration::from_secs(2);
const START: Duration = Duration::from_secs(5);

#[tokio::test]
async fn two_hundred_nodes_come_up_as_fast_as_the_throttle_allows() {
    let mut seed = Seed::default();
    seed.settings.throttling = Some((Duration::from_secs(1), PER_SECOND * 2));
    seed.settings.latency.start = START;
    let cloud = Cloud::without_class(seed, Duration::from_millis(20), |settings| {
        settings.http.rate.per_second = 1000.0;
        settings.http.rate.burst = 20;
    })
    .await;
    cloud.apply_class(json!({})).await;
    cloud.provider.verify().await.expect("it answers");
    cloud
        .simulator
        .operate(|operator| operator.settings().latency.answer = LATENCY);
    let before = cloud.simulator.calls().len();
    let started = cloud.clock.clock().now();
    let claims: Vec<_> = (1..=NODES).map(|number| claim(number, "1", json!([]))).collect();
    let launched = join_all(claims.iter().map(|claim| cloud.provider.create(claim))).await;
    let took = cloud.clock.clock().since(started).as_secs_f64();
    assert!(
        launched.iter().all(Result::is_ok),
        "{:?}",
        launched.iter().find(|own| own.is_err())
    );
    assert_eq!(cloud.live().len(), NODES as usize);

    let calls = cloud.simulator.calls()[before..].to_vec();
    let throttled = calls.iter().filter(|call| call.status == 429).count();
    assert!(
        throttled <= 20,
        "{throttled} of {} requests were throttled: a storm",
        calls.len()
    );
    // A look, a deploy, tags and the job's end for each machine, and a few sweeps.
    assert!(
        calls.len() <= NODES as usize * 5,
        "{} requests for {NODES} machines",
        calls.len()
    );
    // Requests at the allowed rate, then the last machine's own exchanges: it waits for nobody else.
    let allowed = calls.len() as f64 / f64::from(PER_SECOND) + 4.0 * LATENCY.as_secs_f64() + 2.0 * START.as_secs_f64();
    println!(
        "{NODES} nodes in {took:.1} s with {} requests, {throttled} of them throttled; allowed are {allowed:.1} s",
        calls.len()
    );
    assert!(
        took <= allowed * 1.2,
        "took {took:.1} s, the throttle allows {allowed:.1} s"
    );
}
