//! Warm pools: kept at their size, given to claims that they fit, never leaked and never mistaken for somebody's.

use std::time::Duration;

use karpenter_api::labels::INSTANCE_TYPE;
use karpenter_bizflycloud::{
    BizflyCloudNodeClass,
    sim::{Fault, Often, Operation, SimOptions, SimServer},
};
use karpenter_cloud::{
    CloudProvider, RebootOperation,
    garbage_collection::{GarbageCollector, KnownClaims},
};
use serde_json::{Value, json};

use crate::{
    crashes::Points,
    environment::{Setting, World, claim, pool},
};

fn spec(size: u32, state: &str) -> Value {
    json!({
        "bootstrap": {"mode": "UserData"},
        "userData": "#cloud-config\nbootcmd: [test -e /joined || exit 0]\nruncmd: [kubeadm join]\n",
        "warmPool": {"size": size, "flavor": "nix.4c_8g", "state": state},
    })
}

fn with_disks(mut spec: Value) -> Value {
    spec["dataDisks"] = json!([{"size": 20}, {"size": 30}]);
    spec
}

async fn world(size: u32, state: &str) -> World {
    with_spec(spec(size, state)).await
}

fn steady() -> SimOptions {
    SimOptions {
        volume_delay: Some(Duration::from_secs(30)),
        build_delay: Some(Duration::from_secs(20)),
        ..SimOptions::default()
    }
}

async fn with_spec(spec: Value) -> World {
    let world = World::with(Setting {
        options: steady(),
        class: Some(spec),
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
    // Real garbage beside them, so that a collection that does nothing is seen.
    let forgotten = world.provider.create(&claim(9, only("nix.8c_16g"))).await;
    let forgotten = forgotten.expect("launched").provider_id;
    world.clock.sleep(Duration::from_secs(600)).await;
    let mut collector = GarbageCollector::new(world.provider.caution());
    for _ in 0..3 {
        let collected = world
            .provider
            .collect_garbage(&mut collector, &KnownClaims::default())
            .await;
        collected.expect("no faults");
        world.clock.sleep(Duration::from_secs(300)).await;
    }
    let mut left: Vec<String> = world.cloud.servers().into_iter().map(|server| server.id).collect();
    left.sort();
    let mut waiting: Vec<String> = servers.into_iter().map(|server| server.id).collect();
    waiting.sort();
    assert_eq!(left, waiting, "those that wait are not garbage, {forgotten} was");
}

#[tokio::test]
async fn a_claim_gets_a_warm_server_at_once_and_the_pool_is_filled_again() {
    let world = world(1, "Stopped").await;
    fill(&world).await;
    let warm = world.cloud.servers().remove(0);
    let orders = world.count("POST", "/servers");
    let started = world.clock.now();
    let own = claim(1, only("nix.4c_8g"));
    let made = world.provider.create(&own).await.expect("launched");
    assert!(world.clock.since(started).as_secs() < 5, "nothing was built");
    assert_eq!(world.count("POST", "/servers"), orders);
    assert_eq!(made.provider_id, format!("bizflycloud://{}", warm.id));
    // Renamed before it starts: it boots under the name that the cloud controller manager looks for.
    assert_eq!(
        actions(&world).split_off(1),
        [
            json!({"action": "rename", "new_name": "default-00001"}),
            json!({"action": "start"})
        ]
    );
    world.clock.sleep(Duration::from_secs(15)).await;
    let given = world.cloud.servers().remove(0);
    assert_eq!(given.name, "default-00001");
    assert!(given.active_since.is_some(), "it runs");
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
    let left: Vec<String> = world.live();
    assert!(
        left.len() == 1 && left[0] != warm.id,
        "only the one that waits: {left:?}"
    );
}

/// What was done to servers, in order.
fn actions(world: &World) -> Vec<Value> {
    let all = world.cloud.requests().into_iter();
    all.filter(|request| request.path.ends_with("/action"))
        .map(|request| request.body)
        .collect()
}

fn only_one(world: &World) -> SimServer {
    let mut servers = world.cloud.servers();
    assert_eq!(servers.len(), 1, "{servers:?}");
    servers.remove(0)
}

#[tokio::test]
async fn a_hand_over_killed_at_any_exchange_is_completed_by_the_next_process() {
    let world = with_spec(with_disks(spec(1, "Stopped"))).await;
    let (mut points, mut touched, mut number) = (Points::new(), 0, 0);
    while let Some(point) = points.next() {
        number += 1;
        fill(&world).await;
        let warm = only_one(&world);
        let own = claim(number, only("nix.4c_8g"));
        let doomed = world.new_provider();
        let launch = async { drop(doomed.create(&own).await.expect("launched")) };
        if !points.kill(&world, point, launch).await {
            break;
        }
        drop(doomed);
        touched += usize::from(world.cloud.requests().pop().expect("it hung").path.ends_with("/action"));
        let restarted = world.new_provider();
        let made = restarted
            .create(&own)
            .await
            .unwrap_or_else(|error| panic!("{point:?}: {error}"));
        assert_eq!(made.provider_id, format!("bizflycloud://{}", warm.id), "{point:?}");
        world.clock.sleep(Duration::from_secs(15)).await;
        let given = only_one(&world);
        assert_eq!(Some(&given.name), own.metadata.name.as_ref(), "{point:?}");
        assert!(given.active_since.is_some(), "{point:?}: it runs");
        let mut launched = own.clone();
        made.apply_to(&mut launched);
        world.terminate(&restarted, &launched).await;
        assert_eq!(world.cloud.leaks(), [], "{point:?}");
    }
    assert_eq!(
        touched, 4,
        "killed before and after the rename, and before and after the start"
    );
}

#[tokio::test]
async fn disks_of_a_warm_server_go_with_it_although_it_has_another_name() {
    let world = with_spec(with_disks(spec(1, "Running"))).await;
    fill(&world).await;
    let own = claim(1, only("nix.4c_8g"));
    let made = world.provider.create(&own).await.expect("launched");
    let noted = &made.annotations["karpenter.bizflycloud.com/data-volume-ids"];
    assert_eq!(noted.split(',').count(), 2, "{noted}");
    let mut launched = own.clone();
    made.apply_to(&mut launched);
    let pod_disk = world.cloud.attach_data_disk(&only_one(&world).id);
    world.terminate(&world.provider, &launched).await;
    assert_eq!(world.cloud.leaks(), []);
    assert!(world.cloud.volume_exists(&pod_disk));
}

#[tokio::test]
async fn a_warm_server_that_cannot_be_renamed_is_replaced_by_a_new_one() {
    let world = world(1, "Stopped").await;
    fill(&world).await;
    let refused = Fault::Http {
        operation: Operation::ServerAction,
        status: 400,
        body: "no".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(refused, Often::Times(1));
    let warm = only_one(&world).id;
    let made = world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect("a new one");
    assert_ne!(made.provider_id, format!("bizflycloud://{warm}"));
    world.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(only_one(&world).name, "default-00001", "the other one is gone");
}

#[tokio::test]
async fn no_read_after_the_hand_over_can_lead_to_a_second_server() {
    let world = world(1, "Stopped").await;
    fill(&world).await;
    let orders = world.count("POST", "/servers");
    let own = claim(1, only("nix.4c_8g"));
    // Whatever is read first is read; what is read after the changes fails.
    world.provider.list().await.expect("a list");
    world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let warm = only_one(&world).id;
    let renaming = async {
        while actions(&world).len() < 2 {
            tokio::task::yield_now().await;
        }
        let down = Fault::Http {
            operation: Operation::Read,
            status: 400,
            body: "no".to_owned(),
            retry_after: None,
        };
        world.cloud.inject(down, Often::Always);
    };
    let (made, ()) = tokio::join!(world.provider.create(&own), renaming);
    world.cloud.heal();
    let made = match made {
        Ok(made) => made,
        Err(_) => world.provider.create(&own).await.expect("gone on with"),
    };
    assert_eq!(made.provider_id, format!("bizflycloud://{warm}"));
    assert_eq!(world.count("POST", "/servers"), orders);
}

#[tokio::test]
async fn a_warm_server_of_another_disk_or_image_is_not_handed_out() {
    let mut own = spec(1, "Running");
    own["diskTypes"] = json!(["SSD", "HDD"]);
    own["imageSelectorTerms"] = json!([{"alias": "ubuntu-22.04"}]);
    let world = with_spec(own).await;
    fill(&world).await;
    let warm = only_one(&world).id;
    let orders = world.count("POST", "/servers");
    let ssd = json!([
        {"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.4c_8g"]},
        {"key": "karpenter.bizflycloud.com/disk-type", "operator": "In", "values": ["SSD"]},
    ]);
    let made = world.provider.create(&claim(1, ssd)).await.expect("launched");
    assert_eq!(
        world.count("POST", "/servers"),
        orders + 1,
        "the warm one has the cheaper HDD"
    );
    assert_eq!(made.labels["karpenter.bizflycloud.com/disk-type"], "SSD");
    let image = |id: &str| {
        json!([
            {"key": INSTANCE_TYPE, "operator": "In", "values": ["nix.4c_8g"]},
            {"key": "karpenter.bizflycloud.com/disk-type", "operator": "In", "values": ["HDD"]},
            {"key": "karpenter.bizflycloud.sh/image-id", "operator": "In", "values": [id]},
        ])
    };
    world
        .provider
        .create(&claim(2, image("ubuntu-18.04")))
        .await
        .expect_err("no image of the class");
    assert!(world.live().contains(&warm));
    let made = world
        .provider
        .create(&claim(3, image("img-ubuntu-22")))
        .await
        .expect("launched");
    assert_eq!(
        made.provider_id,
        format!("bizflycloud://{warm}"),
        "by its id it is the image"
    );
}

#[tokio::test]
async fn a_warm_spot_server_is_for_claims_that_want_spot() {
    let mut own = spec(1, "Running");
    own["spot"] = json!({"enabled": true});
    own["warmPool"]["flavor"] = json!("p2.4c_8g");
    let world = World::with(Setting {
        options: SimOptions {
            sells_spot: true,
            ..steady()
        },
        class: Some(own),
        ..Setting::default()
    })
    .await;
    fill(&world).await;
    let warm = only_one(&world).id;
    let wanted = |capacity: &str| {
        json!([
            {"key": INSTANCE_TYPE, "operator": "In", "values": ["p2.4c_8g"]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity]},
        ])
    };
    let made = world
        .provider
        .create(&claim(1, wanted("on-demand")))
        .await
        .expect("launched");
    assert_ne!(
        made.provider_id,
        format!("bizflycloud://{warm}"),
        "the cheapest plan of the pool is spot"
    );
    let made = world
        .provider
        .create(&claim(2, wanted("spot")))
        .await
        .expect("launched");
    assert_eq!(made.provider_id, format!("bizflycloud://{warm}"));
}

#[tokio::test]
async fn a_locked_server_of_one_pool_does_not_hold_the_others_back() {
    let world = world(2, "Stopped").await;
    fill(&world).await;
    world.cloud.inject(Fault::Locked, Often::Times(1));
    let patch = json!({"spec": {"warmPool": null}});
    world
        .sandbox
        .objects()
        .patch::<BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    let error = world.provider.keep_warm().await.expect_err("one is locked");
    assert!(error.to_string().contains("is locked or busy"), "{error}");
    assert_eq!(world.live().len(), 1, "the other one goes");
    fill(&world).await;
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn a_warm_server_is_rebooted_by_a_process_that_did_not_hand_it_over() {
    let world = world(1, "Running").await;
    fill(&world).await;
    let mut own = claim(1, only("nix.4c_8g"));
    world.provider.create(&own).await.expect("launched").apply_to(&mut own);
    let operation = RebootOperation("op-1".to_owned());
    world
        .new_provider()
        .reboot(&own, &operation)
        .await
        .expect("it is the claim's");
    assert_eq!(actions(&world).pop(), Some(json!({"action": "hard_reboot"})));
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

#[tokio::test]
async fn warm_servers_are_ordered_within_the_quota_and_pods_are_planned_for_all_the_same() {
    let world = world(3, "Running").await;
    world.apply(&world.config(json!({"region": "HN", "quota": {"vCPU": 8}})));
    world.clock.sleep(Duration::from_secs(3)).await;
    fill(&world).await;
    assert_eq!(world.live().len(), 2, "two of four vCPUs each have room");
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let small = types.iter().find(|own| own.name == "nix.4c_8g").expect("listed");
    assert!(
        small.offerings.iter().any(|offering| offering.available),
        "what a pool may not have is not refused to claims"
    );
}

#[tokio::test]
async fn a_warm_server_is_handed_out_although_the_quota_is_used_up() {
    let world = world(1, "Running").await;
    world.apply(&world.config(json!({"region": "HN", "quota": {"vCPU": 4}})));
    world.clock.sleep(Duration::from_secs(3)).await;
    fill(&world).await;
    let warm = only_one(&world).id;
    let refused = world.provider.create(&claim(1, only("p2.4c_8g"))).await;
    let refused = refused.expect_err("no room").to_string();
    assert!(refused.contains("QuotaExceeded"), "{refused}");
    let made = world.provider.create(&claim(2, only("nix.4c_8g"))).await;
    assert_eq!(
        made.expect("it takes nothing that is not taken already").provider_id,
        format!("bizflycloud://{warm}")
    );
}

#[tokio::test]
async fn a_disk_that_cannot_be_deleted_does_not_hold_back_its_pool() {
    let world = world(1, "Running").await;
    world
        .cloud
        .inject(Fault::TaskFails("No valid host".to_owned()), Often::Times(1));
    world.provider.keep_warm().await.expect("ordered");
    world.clock.sleep(Duration::from_secs(11 * 60)).await;
    assert_eq!(world.live().len(), 0);
    let locked = Fault::Http {
        operation: Operation::DeleteVolume,
        status: 409,
        body: "volume is locked".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(locked, Often::Always);
    let told = world.provider.keep_warm().await.expect_err("the disk stays");
    assert!(told.to_string().contains("volume is locked"), "{told}");
    world.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(world.live().len(), 1, "another one is made");
}
