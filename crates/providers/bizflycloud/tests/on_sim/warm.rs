//! Warm pools: kept at their size, given to claims that they fit, never leaked and never mistaken for somebody's.

use std::time::Duration;

use karpenter_api::labels::INSTANCE_TYPE;
use karpenter_bizflycloud::{BizflyCloudNodeClass, sim::SimOptions};
use karpenter_cloud::{
    CloudProvider,
    garbage_collection::{GarbageCollector, KnownClaims},
};
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim};

fn spec(size: u32, state: &str) -> Value {
    json!({
        "bootstrap": {"mode": "UserData"},
        "userData": "#cloud-config\nbootcmd: [test -e /joined || exit 0]\nruncmd: [kubeadm join]\n",
        "warmPool": {"size": size, "flavor": "nix.4c_8g", "state": state},
    })
}

async fn world(size: u32, state: &str) -> World {
    let world = World::with(Setting {
        options: SimOptions {
            volume_delay: Some(Duration::from_secs(30)),
            build_delay: Some(Duration::from_secs(20)),
            ..SimOptions::default()
        },
        class: Some(spec(size, state)),
        ..Setting::default()
    })
    .await;
    assert_eq!(world.condition("Ready").0, "True", "{:#?}", world.class().status);
    world
}

/// Enough looks for a pool to be ordered, built and stopped.
async fn fill(world: &World) {
    for _ in 0..4 {
        world.provider.keep_warm().await.expect("kept");
        world.clock.sleep(Duration::from_secs(60)).await;
    }
}

fn only(flavor: &str) -> Value {
    json!([{"key": INSTANCE_TYPE, "operator": "In", "values": [flavor]}])
}

#[tokio::test]
async fn a_pool_is_filled_once_and_its_servers_wait_stopped() {
    let world = world(2, "Stopped").await;
    fill(&world).await;
    let servers = world.cloud.servers();
    assert_eq!(servers.len(), 2, "neither too few nor too many");
    assert!(
        servers
            .iter()
            .all(|server| server.active_since.is_none() && server.name.starts_with("warm-default-"))
    );
    assert_eq!(world.provider.list().await.expect("a list"), [], "they are nobody's");
    let mut collector = GarbageCollector::new(world.provider.caution());
    for _ in 0..3 {
        let collected = world
            .provider
            .collect_garbage(&mut collector, &KnownClaims::default())
            .await;
        collected.expect("no faults");
        world.clock.sleep(Duration::from_secs(300)).await;
    }
    assert_eq!(world.live().len(), 2, "and are not garbage");
}

#[tokio::test]
async fn a_claim_gets_a_warm_server_at_once_and_the_pool_is_filled_again() {
    let world = world(1, "Stopped").await;
    fill(&world).await;
    let orders = world.count("POST", "/servers");
    let started = world.clock.now();
    let own = claim(1, only("nix.4c_8g"));
    let made = world.provider.create(&own).await.expect("launched");
    assert!(world.clock.since(started).as_secs() < 5, "nothing was built");
    assert_eq!(world.count("POST", "/servers"), orders);
    let servers = world.cloud.servers();
    assert_eq!(
        servers[0].name, "default-00001",
        "it is renamed for the cloud controller manager"
    );
    // Another process knows whose it is.
    let restarted = world.new_provider();
    let listed = restarted.list().await.expect("a list");
    assert_eq!(listed.len(), 1);
    assert_eq!(
        listed[0].claim.clone().expect("marked").uid,
        own.metadata.uid.clone().expect("a uid")
    );
    assert_eq!(
        restarted.create(&own).await.expect("the same").provider_id,
        made.provider_id
    );
    fill(&world).await;
    assert_eq!(world.live().len(), 2, "the pool has its size again");
    let mut launched = own.clone();
    made.apply_to(&mut launched);
    world.terminate(&restarted, &launched).await;
    assert_eq!(world.live().len(), 1, "only the one that waits");
}

#[tokio::test]
async fn a_claim_that_no_warm_server_fits_is_launched_as_ever() {
    let world = world(1, "Running").await;
    fill(&world).await;
    let made = world
        .provider
        .create(&claim(1, only("nix.8c_16g")))
        .await
        .expect("launched");
    assert_eq!(made.labels[INSTANCE_TYPE], "nix.8c_16g");
    assert_eq!(world.live().len(), 2);
    let warm = world
        .provider
        .create(&claim(2, only("nix.4c_8g")))
        .await
        .expect("launched");
    assert_eq!(warm.labels[INSTANCE_TYPE], "nix.4c_8g");
    assert_eq!(world.live().len(), 2, "the warm one was taken");
}

#[tokio::test]
async fn a_pool_that_is_no_longer_wanted_leaves_nothing() {
    let world = world(2, "Stopped").await;
    fill(&world).await;
    let objects = world.sandbox.objects();
    let patch = json!({"spec": {"warmPool": null}});
    objects
        .patch::<BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    fill(&world).await;
    assert_eq!(world.cloud.leaks(), []);
}
