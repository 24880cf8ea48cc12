//! A cluster of everyday size at the rate that one account may have (cloudstack.md §16): four claims for each machine,
//! ten requests a second.

use std::time::Duration;

use futures::future::join_all;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion};
use karpenter_cloudstack::{
    sim::{Machine, Seed},
    tasks::sweep::Memory,
};
use serde_json::json;

use crate::{
    environment::{Cloud, claim},
    lifecycle::terminate,
};

/// A quarter of the profile's 500 machines and 2,000 claims, which keep to the same bounds but take ten seconds of a debug
/// build (a fifth of a millisecond for each claim that is stored, listed and read, and for each machine that is shown and
/// read); still more than fit into one batch of reads.
const MACHINES: u32 = 125;
const CLAIMS: u32 = 500;
/// Launched and deleted at the same time.
const CHANGED: u32 = 20;
const PER_SECOND: f64 = 10.0;
/// What the server bears, in its own count of two for each request: a little more than we send, because requests that
/// leave evenly do not arrive evenly.
const WINDOW: (Duration, u32) = (Duration::from_secs(10), 2 * 150);
const STEP: Duration = Duration::from_millis(100);

/// The machine of another claim, as the same launch would have made it.
fn machine_of(first: &Machine, number: u32) -> Machine {
    let mut machine = first.clone();
    machine.id = format!("00000000-0000-4000-9000-{number:012}");
    let rename = |text: &mut String| {
        *text = text
            .replace("default-00001", &format!("default-{number:05}"))
            .replace("-000000000001", &format!("-{number:012}"));
    };
    rename(&mut machine.name);
    machine.details.values_mut().for_each(rename);
    machine.tags.iter_mut().for_each(|(_, value)| rename(value));
    machine
}

#[tokio::test]
async fn many_machines_are_kept_with_few_requests_and_never_above_the_limit() {
    let mut seed = Seed::default();
    seed.settings.throttling = Some(WINDOW);
    let cloud = Cloud::without_class(seed, STEP, |settings| {
        settings.http.rate.per_second = PER_SECOND;
        settings.http.rate.burst = 10;
    })
    .await;
    cloud.apply_class(json!({})).await;
    let claims: Vec<NodeClaim> = (1..=CLAIMS).map(|number| claim(number, "1", json!([]))).collect();
    claims.iter().for_each(|claim| cloud.store(claim));
    cloud.provider.create(&claims[0]).await.expect("launched");
    let first = cloud.live()[0].clone();
    cloud.simulator.operate(|operator| {
        for number in 2..=MACHINES {
            operator.add_machine(machine_of(&first, number));
        }
    });

    let listed = cloud.provider.list().await.expect("a list");
    assert_eq!(listed.len(), MACHINES as usize);
    let before = cloud.simulator.calls().len();
    let read = join_all(listed.iter().map(|own| cloud.provider.get(&own.provider_id))).await;
    assert!(read.iter().all(Result::is_ok));
    let reads = cloud.simulator.calls().len() - before;
    assert!(
        reads <= 6,
        "{reads} requests to read {MACHINES} machines, a hundred at once"
    );

    let before = cloud.simulator.calls().len();
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    cloud.collect(&cloud.provider, 3).await;
    cloud.provider.identify_nodes().await.expect("a look");
    let upkeep = cloud.simulator.calls().len() - before;
    assert!(
        upkeep <= 30,
        "{upkeep} requests for a look at each machine, and three for garbage"
    );
    assert_eq!(cloud.live().len(), MACHINES as usize, "every machine has its claim");

    let launches = &claims[MACHINES as usize..][..CHANGED as usize];
    let launches = join_all(launches.iter().map(|claim| cloud.provider.create(claim)));
    let leaving: Vec<NodeClaim> = (2..2 + CHANGED)
        .map(|number| {
            let id = machine_of(&first, number).id;
            let instance = listed.iter().find(|own| own.provider_id.ends_with(&id));
            let mut own = claims[number as usize - 1].clone();
            instance.expect("it is listed").apply_to(&mut own);
            own
        })
        .collect();
    let deletions = join_all(leaving.iter().map(|claim| cloud.provider.delete(claim)));
    let (launched, deleted) = futures::join!(launches, deletions);
    assert!(launched.iter().all(Result::is_ok), "{launched:?}");
    assert!(
        deleted.iter().all(|own| matches!(own, Ok(Deletion::InProgress))),
        "{deleted:?}"
    );
    for claim in &leaving {
        terminate(&cloud, claim).await;
    }
    assert_eq!(cloud.live().len(), MACHINES as usize);
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}
