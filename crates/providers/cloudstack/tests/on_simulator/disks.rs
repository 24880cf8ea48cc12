//! Data disks: made with the machine, or one by one where the server cannot; they come once, and they go with the machine.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion, LaunchEffect, conformance::Environment};
use karpenter_cloudstack::{
    client::{Priority, Request, model::Volume},
    settings::{OwnershipDetails, Switch},
    sim::{Fault, FaultKind, Seed, seed},
    tasks::sweep::Memory,
};
use serde_json::{Value, json};

use crate::{
    environment::{Cloud, STEP, claim},
    lifecycle::terminate,
};

pub(crate) const HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
const UID_TAG: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";

/// A server whose deploys take one data disk at most.
pub(crate) fn old() -> Seed {
    let mut seed = Seed::default();
    seed.settings.version = "4.19.1.0".to_owned();
    seed
}

pub(crate) fn two_disks() -> Value {
    json!({"dataDisks": [
        {"offering": "data-custom", "size": 5, "deviceID": 4, "minIOPS": 100, "maxIOPS": 200}, {"offering": "data-10"},
    ]})
}

/// The data disks that exist, attached or not.
pub(crate) async fn disks(cloud: &Cloud) -> Vec<Volume> {
    let request = Request::new("listVolumes")
        .with("type", "DATADISK")
        .with("listall", "true");
    let listed: Vec<Volume> = cloud
        .provider
        .client()
        .list(&request, "volume", Priority::Discovery)
        .await
        .expect("a list");
    let mut listed: Vec<Volume> = listed.into_iter().filter(|own| own.state != "Destroy").collect();
    listed.sort_by_key(|own| own.deviceid);
    listed
}

pub(crate) fn stored(cloud: &Cloud, claim: &NodeClaim) -> NodeClaim {
    let name = claim.metadata.name.as_deref().expect("a name");
    cloud.sandbox.objects().get("", name).expect("there")
}

async fn abandon(cloud: &Cloud, claim: &NodeClaim) {
    for _ in 0..20 {
        if cloud.provider.abandon(claim).await.expect("asked") == Deletion::Gone {
            return;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    panic!("it never went");
}

#[tokio::test]
async fn an_old_server_makes_several_disks_one_by_one_and_they_go_with_the_machine() {
    let cloud = Cloud::with(old(), two_disks()).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.pass(Duration::from_secs(2)).await;
    let machine = cloud.live()[0].clone();
    let found = disks(&cloud).await;
    let places: Vec<(Option<&str>, Option<i64>)> = found
        .iter()
        .map(|own| (own.virtualmachineid.as_deref(), own.deviceid))
        .collect();
    let at = |device: i64| (Some(machine.id.as_str()), Some(device));
    assert_eq!(
        places,
        [at(2), at(4)],
        "the position, and the number that was asked for"
    );
    for disk in &found {
        let uid = disk
            .tags
            .iter()
            .find(|tag| tag.key == UID_TAG)
            .and_then(|tag| tag.value.clone());
        assert_eq!(uid, claim.metadata.uid, "{}", disk.name);
    }
    let calls = cloud.simulator.calls();
    let of = |command: &str| calls.iter().filter(|call| call.command == command).collect::<Vec<_>>();
    assert!(
        !of("deployVirtualMachine")[0]
            .params
            .keys()
            .any(|name| name.contains("disk") && name != "rootdisksize")
    );
    let first = &of("createVolume")[0].params;
    let get = |name: &str| first.get(name).map(String::as_str);
    assert_eq!(
        (get("size"), get("miniops"), get("maxiops")),
        (Some("5"), Some("100"), Some("200"))
    );
    cloud
        .simulator
        .operate(|operator| operator.attach_foreign_volume(&machine.id, "pvc-1"));
    terminate(&cloud, &claim).await;
    let left: Vec<String> = disks(&cloud).await.into_iter().map(|own| own.name).collect();
    assert_eq!(left, ["pvc-1"], "and the volumes of pods stay");
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn a_server_that_hides_its_version_is_taken_for_an_old_one() {
    let mut seed = old();
    seed.settings.version = String::new();
    let cloud = Cloud::with(seed, two_disks()).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    assert_eq!(disks(&cloud).await.len(), 2);
}

#[tokio::test]
async fn a_launch_killed_while_its_disk_is_brought_has_it_once_or_not_at_all() {
    let cloud = Cloud::with(old(), json!({"dataDisks": [{"offering": "data-10", "deviceID": 2}]})).await;
    // Killed before, it is a launch like every other; see `crashes`.
    let points = (8..40).flat_map(|after| [(after, FaultKind::HangBefore), (after, FaultKind::HangAfter)]);
    let mut killed = 0;
    for (number, (after, kind)) in (1..).zip(points) {
        let claim = cloud.stored(&claim(number, "1", json!([])));
        let doomed = cloud.new_provider().await;
        cloud
            .simulator
            .inject(Fault::everything(kind.clone()).after(after).times(1));
        let finished = tokio::select! {
            launched = doomed.create(&claim) => { launched.expect("launched"); true }
            () = cloud.simulator.hung() => false,
        };
        drop(doomed);
        cloud.simulator.heal();
        let claim = stored(&cloud, &claim);
        if number % 2 == 0 && !finished {
            // The claim is still wanted: its launch goes on.
            let restarted = cloud.new_provider().await;
            restarted.create(&claim).await.expect("continued");
            let found = disks(&cloud).await;
            let attached = found.iter().filter(|own| own.virtualmachineid.is_some()).count();
            assert_eq!((attached, found.len()), (1, 1), "killed {kind:?} exchange {after}");
        }
        abandon(&cloud, &claim).await;
        if finished {
            break;
        }
        killed += 1;
        // What no machine had when it went is found by its name, and not spared for long.
        let loose = disks(&cloud).await.len();
        assert!(loose <= 1, "killed {kind:?} exchange {after}: {loose} loose disks");
        if loose > 0 {
            cloud.collect(&cloud.provider, 1).await;
            cloud.pass(Duration::from_secs(620)).await;
            cloud.collect(&cloud.provider, 1).await;
        }
        assert_eq!(disks(&cloud).await, [], "killed {kind:?} exchange {after}");
    }
    assert!(killed >= 10, "only {killed} kills were tried");
    assert!(cloud.live().is_empty());
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn a_disk_whose_answer_was_lost_is_not_made_twice() {
    let cloud = Cloud::with(old(), two_disks()).await;
    for command in ["createVolume", "attachVolume"] {
        cloud
            .simulator
            .inject(Fault::new(command, FaultKind::LoseAnswer).times(1));
    }
    // What was not seen to be attached is asked about again, by whoever launches again.
    let stored = cloud.stored(&claim(1, "1", json!([])));
    let mut launched = cloud.provider.create(&stored).await;
    for _ in 0..3 {
        if launched.is_err() {
            launched = cloud.provider.create(&stored).await;
        }
    }
    launched.expect("launched in the end");
    let found = disks(&cloud).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|own| own.virtualmachineid.is_some()));
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn a_machine_that_started_late_gets_its_disks_by_the_next_look() {
    let mut seed = old();
    seed.settings.latency.start = Duration::from_secs(600);
    let cloud = Cloud::with(seed, two_disks()).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let mut memory = Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert_eq!(disks(&cloud).await, [], "it does not run yet");
    cloud.pass(Duration::from_secs(600)).await;
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert_eq!(disks(&cloud).await.len(), 2);
    let calls = cloud.calls("createVolume");
    for _ in 0..3 {
        cloud.provider.sweep(&mut memory).await.expect("a sweep");
    }
    assert_eq!(cloud.calls("createVolume"), calls, "once");
}

#[tokio::test]
async fn a_machine_whose_disks_are_above_the_quota_is_given_up_without_a_trace() {
    let cloud = Cloud::without_class(old(), STEP, |settings| settings.quota_preflight = Switch::Off).await;
    cloud.apply_class(two_disks()).await;
    // The root disk and one more.
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "volume", 2));
    let claim = claim(1, "1", json!([]));
    let error = cloud.provider.create(&claim).await.expect_err("above the quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(error.to_string().contains("the quota of volume is reached"), "{error}");
    cloud.pass(Duration::from_secs(10)).await;
    assert!(cloud.live().is_empty());
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn a_disk_that_cannot_be_attached_is_told_and_tried_again() {
    let cloud = Cloud::with(old(), two_disks()).await;
    let text = "Failed to attach volume: the host does not answer".to_owned();
    cloud
        .simulator
        .inject(Fault::new("attachVolume", FaultKind::FailJob(530, text)));
    let stored = cloud.stored(&claim(1, "1", json!([])));
    let error = cloud.provider.create(&stored).await.expect_err("no disk");
    let LaunchEffect::Retry { reason, message, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "LaunchFailed");
    assert!(
        message.contains("lacks data disks") && message.contains("the host does not answer"),
        "{message}"
    );
    cloud.simulator.heal();
    cloud.provider.create(&stored).await.expect("the same machine");
    assert_eq!(
        (cloud.simulator.machines_ever().len(), disks(&cloud).await.len()),
        (1, 2)
    );
}

#[tokio::test]
async fn a_disk_that_is_to_stay_stays_and_one_that_never_was_at_a_machine_goes() {
    let kept = json!({"dataDisks": [
        {"offering": "data-10", "deleteOnTermination": false}, {"offering": "data-10"},
    ]});
    let cloud = Cloud::with(old(), kept).await;
    let first = cloud.launch(&claim(1, "1", json!([]))).await;
    terminate(&cloud, &first).await;
    let left: Vec<Volume> = disks(&cloud).await;
    assert_eq!(left.len(), 1);
    assert!(left[0].name.ends_with("-1-kept"), "{}", left[0].name);
    // Killed before the disk was attached: it is empty.
    cloud
        .simulator
        .inject(Fault::new("attachVolume", FaultKind::HangBefore).times(1));
    let second = cloud.stored(&claim(2, "1", json!([])));
    tokio::select! {
        _ = cloud.provider.create(&second) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    cloud.simulator.heal();
    abandon(&cloud, &second).await;
    assert_eq!(disks(&cloud).await.len(), 2);
    cloud.collect(&cloud.provider, 1).await;
    cloud.pass(Duration::from_secs(620)).await;
    cloud.collect(&cloud.provider, 1).await;
    let names: Vec<String> = disks(&cloud).await.into_iter().map(|own| own.name).collect();
    assert_eq!(names, [left[0].name.clone()], "with all that was written to it");
}

#[tokio::test]
async fn disks_that_were_not_tagged_in_time_go_with_their_machine() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    // The machine is tagged, its disks are not.
    let refusal = FaultKind::Refuse(530, "tags are out of order".to_owned());
    cloud.simulator.inject(Fault::new("createTags", refusal).after(1));
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.simulator.heal();
    let found = disks(&cloud).await;
    assert!(
        found.len() == 2 && found.iter().all(|own| own.tags.is_empty()),
        "{found:?}"
    );
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.attach_foreign_volume(&id, "pvc-1"));
    terminate(&cloud, &claim).await;
    let left: Vec<String> = disks(&cloud).await.into_iter().map(|own| own.name).collect();
    assert_eq!(left, ["pvc-1"]);
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn disks_of_a_deploy_that_was_refused_after_all_do_not_stay() {
    let mut spec = two_disks();
    spec["extraConfig"] = json!("%3Cx%2F%3E");
    let cloud = Cloud::with(Seed::default(), spec).await;
    let refused = cloud.provider.create(&claim(1, "1", json!([]))).await;
    refused.expect_err("the account may not");
    cloud.pass(Duration::from_secs(10)).await;
    assert!(cloud.live().is_empty());
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn disks_of_a_machine_that_nobody_wants_go_with_it() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    assert_eq!(disks(&cloud).await.len(), 2);
    cloud.pass(Duration::from_secs(130)).await;
    cloud.collect(&cloud.provider, 3).await;
    assert!(cloud.live().is_empty());
    assert_eq!(disks(&cloud).await, []);
}

/// A machine whose disks were not tagged in time.
pub(crate) async fn launched_without_tags(cloud: &Cloud, number: u32) -> NodeClaim {
    let refusal = FaultKind::Refuse(530, "tags are out of order".to_owned());
    cloud.simulator.inject(Fault::new("createTags", refusal).after(1));
    let claim = cloud.launch(&claim(number, "1", json!([]))).await;
    cloud.simulator.heal();
    claim
}

#[tokio::test]
async fn a_disk_that_was_to_stay_stays_though_the_class_was_changed_since() {
    let kept = json!({"offering": "data-10", "deleteOnTermination": false});
    let cloud = Cloud::with(Seed::default(), json!({"dataDisks": [kept]})).await;
    let launched = launched_without_tags(&cloud, 1).await;
    let swept = launched_without_tags(&cloud, 2).await;
    cloud
        .apply_class(json!({"dataDisks": [{"offering": "data-10"}, kept]}))
        .await;
    terminate(&cloud, &launched).await;
    assert_eq!(
        disks(&cloud).await.len(),
        2,
        "at the same device there is another disk now"
    );
    // The sweep must not tag it as one that goes either.
    let mut memory = Memory::default();
    for _ in 0..3 {
        cloud.provider.sweep(&mut memory).await.expect("a sweep");
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert!(disks(&cloud).await.iter().all(|own| own.tags.is_empty()));
    terminate(&cloud, &stored(&cloud, &swept)).await;
    assert_eq!(disks(&cloud).await.len(), 2);
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn a_disk_of_which_it_is_not_certain_that_it_was_to_go_stays() {
    let cloud = Cloud::with(Seed::default(), json!({"dataDisks": [{"offering": "data-10"}]})).await;
    let launched = launched_without_tags(&cloud, 1).await;
    cloud
        .apply_class(json!({"dataDisks": [{"offering": "data-10"}], "rootDiskSize": 50}))
        .await;
    terminate(&cloud, &launched).await;
    assert_eq!(disks(&cloud).await.len(), 1);
}

#[tokio::test]
async fn a_launch_that_goes_on_after_a_change_of_the_class_has_the_hash_that_it_began_with() {
    let kept = json!({"offering": "data-10", "deleteOnTermination": false});
    let cloud = Cloud::with(Seed::default(), json!({"dataDisks": [kept]})).await;
    let begun = cloud.stored(&claim(1, "1", json!([])));
    cloud
        .simulator
        .inject(Fault::new("createTags", FaultKind::HangBefore).times(1));
    tokio::select! {
        _ = cloud.provider.create(&begun) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    cloud.simulator.heal();
    let hash = cloud.class().metadata.annotations.expect("marked")[HASH].clone();
    cloud
        .apply_class(json!({"dataDisks": [{"offering": "data-10"}, kept]}))
        .await;
    let restarted = cloud.new_provider().await;
    let instance = restarted.create(&stored(&cloud, &begun)).await.expect("continued");
    assert_eq!(instance.annotations[HASH], hash);
    assert_eq!(cloud.simulator.machines_ever().len(), 1);
}

#[tokio::test]
async fn a_launch_that_goes_on_gives_its_machine_up_if_its_disks_are_above_the_quota() {
    let cloud = Cloud::without_class(old(), STEP, |settings| settings.quota_preflight = Switch::Off).await;
    cloud.apply_class(two_disks()).await;
    let begun = cloud.stored(&claim(1, "1", json!([])));
    cloud
        .simulator
        .inject(Fault::new("createVolume", FaultKind::HangBefore).times(1));
    tokio::select! {
        _ = cloud.provider.create(&begun) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    cloud.simulator.heal();
    // The root disk and one more.
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "volume", 2));
    let restarted = cloud.new_provider().await;
    let error = restarted
        .create(&stored(&cloud, &begun))
        .await
        .expect_err("above the quota");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity, "{error}");
    assert!(error.to_string().contains("the quota of volume is reached"), "{error}");
    cloud.pass(Duration::from_secs(10)).await;
    assert!(cloud.live().is_empty());
    assert_eq!(cloud.simulator.machines_ever().len(), 1, "no other one was tried");
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn disks_of_a_machine_without_any_mark_go_with_its_claim() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| {
        settings.ownership_details = OwnershipDetails::Omitted;
    })
    .await;
    cloud.apply_class(two_disks()).await;
    let begun = cloud.stored(&claim(1, "1", json!([])));
    cloud
        .simulator
        .inject(Fault::new("createTags", FaultKind::HangBefore).times(1));
    tokio::select! {
        _ = cloud.provider.create(&begun) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    cloud.simulator.heal();
    assert_eq!(disks(&cloud).await.len(), 2);
    abandon(&cloud, &stored(&cloud, &begun)).await;
    assert!(cloud.live().is_empty());
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn the_third_disk_leaves_the_number_of_the_cd_rom_free() {
    let disk = json!({"offering": "data-10"});
    let cloud = Cloud::with(Seed::default(), json!({"dataDisks": [disk, disk, disk, disk]})).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let devices: Vec<Option<i64>> = disks(&cloud).await.iter().map(|own| own.deviceid).collect();
    assert_eq!(devices, [1, 2, 4, 5].map(Some));
}
