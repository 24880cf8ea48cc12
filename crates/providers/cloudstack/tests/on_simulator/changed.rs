//! Data disks of machines whose class was changed since: what it said when the machine was made is what counts.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, LaunchEffect, conformance::Environment};
use karpenter_cloudstack::{
    sim::{Fault, FaultKind, Seed},
    tasks::sweep::Memory,
};
use karpenter_sandbox::faults;
use serde_json::{Value, json};

use crate::{
    disks::{HASH, disks, launched_without_tags, old, stored, two_disks},
    environment::{Cloud, claim},
    lifecycle::terminate,
};

const TAGGED: &str = "karpenter.k8s.cloudstack/instance-tagged";

/// Whether the claim is noted as one of which everything bears its tags.
fn is_noted(cloud: &Cloud, claim: &NodeClaim) -> bool {
    let annotations = stored(cloud, claim).metadata.annotations.unwrap_or_default();
    annotations.get(TAGGED).is_some_and(|own| own == "true")
}

async fn sweep(cloud: &Cloud, times: usize) {
    let mut memory = Memory::default();
    for _ in 0..times {
        cloud.provider.sweep(&mut memory).await.expect("a sweep");
        cloud.pass(Duration::from_secs(5)).await;
    }
}

/// A launch that is killed when it sends this for the first time; the claim is as it is stored then.
async fn killed(cloud: &Cloud, command: &str, kind: FaultKind) -> NodeClaim {
    let begun = cloud.stored(&claim(1, "1", json!([])));
    cloud.simulator.inject(Fault::new(command, kind).times(1));
    tokio::select! {
        _ = cloud.provider.create(&begun) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    cloud.simulator.heal();
    stored(cloud, &begun)
}

fn hash(cloud: &Cloud) -> String {
    cloud.class().metadata.annotations.expect("marked")[HASH].clone()
}

fn two_kept_disks() -> Value {
    let kept = json!({"offering": "data-10", "deleteOnTermination": false});
    json!({"dataDisks": [kept, kept]})
}

fn secret(text: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": "default"},
        "stringData": {"user-data": text},
    })
    .to_string()
}

fn with_secret(mut spec: Value) -> Value {
    spec["userDataRef"] = json!({"secretRef": {"name": "boot", "namespace": "default", "key": "user-data"}});
    spec
}

#[tokio::test]
async fn a_claim_is_not_noted_as_tagged_while_nobody_knows_whether_its_disks_go() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    let claim = launched_without_tags(&cloud, 1).await;
    let mut changed = two_disks();
    changed["rootDiskSize"] = json!(50);
    cloud.apply_class(changed).await;
    sweep(&cloud, 3).await;
    assert!(!is_noted(&cloud, &claim), "or its disks would stay without a word");
    // What it was made with is back.
    cloud.apply_class(two_disks()).await;
    sweep(&cloud, 2).await;
    assert!(is_noted(&cloud, &claim));
    terminate(&cloud, &stored(&cloud, &claim)).await;
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn a_class_that_has_no_disks_any_more_settles_nothing_either() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    let claim = launched_without_tags(&cloud, 1).await;
    cloud.apply_class(json!({})).await;
    sweep(&cloud, 3).await;
    assert!(!is_noted(&cloud, &claim));
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_for_a_moment_leaves_no_disk_behind() {
    let cloud = Cloud::start().await;
    cloud.sandbox.apply(&secret("#cloud-config")).expect("accepted");
    cloud.apply_class(with_secret(two_disks())).await;
    let claim = launched_without_tags(&cloud, 1).await;
    let unreadable = faults::Fault::fail(503).verb("get").resource("secrets");
    cloud.sandbox.faults().inject(unreadable);
    sweep(&cloud, 3).await;
    assert!(!is_noted(&cloud, &claim));
    cloud
        .provider
        .delete(&stored(&cloud, &claim))
        .await
        .expect_err("which of its disks go is not known now");
    cloud.sandbox.faults().clear();
    terminate(&cloud, &stored(&cloud, &claim)).await;
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn a_machine_goes_whose_secret_is_gone() {
    let cloud = Cloud::start().await;
    cloud.sandbox.apply(&secret("#cloud-config")).expect("accepted");
    cloud.apply_class(with_secret(two_disks())).await;
    let claim = launched_without_tags(&cloud, 1).await;
    let objects = cloud.sandbox.objects();
    objects
        .delete::<k8s_openapi::api::core::v1::Secret>("default", "boot", &Default::default())
        .expect("deleted");
    terminate(&cloud, &claim).await;
    assert!(cloud.live().is_empty());
    assert_eq!(disks(&cloud).await.len(), 2, "nobody knows any more what they were for");
}

#[tokio::test]
async fn tags_whose_job_fails_are_written_again() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    let claim = launched_without_tags(&cloud, 1).await;
    let failing = FaultKind::FailJob(530, "the database is busy".to_owned());
    cloud.simulator.inject(Fault::new("createTags", failing));
    sweep(&cloud, 3).await;
    assert!(disks(&cloud).await.iter().all(|own| own.tags.is_empty()));
    assert!(!is_noted(&cloud, &claim));
    cloud.simulator.heal();
    sweep(&cloud, 2).await;
    assert!(disks(&cloud).await.iter().all(|own| !own.tags.is_empty()));
    assert!(is_noted(&cloud, &claim));
}

#[tokio::test]
async fn a_launch_whose_deploy_was_never_answered_knows_with_which_class_it_began() {
    let kept = json!({"offering": "data-10", "deleteOnTermination": false});
    let cloud = Cloud::with(Seed::default(), json!({"dataDisks": [kept]})).await;
    let begun = killed(&cloud, "deployVirtualMachine", FaultKind::HangAfter).await;
    let made_with = hash(&cloud);
    cloud.apply_class(json!({"dataDisks": [{"offering": "data-10"}]})).await;
    assert_ne!(hash(&cloud), made_with);
    let restarted = cloud.new_provider().await;
    let instance = restarted.create(&begun).await.expect("continued");
    assert_eq!(instance.annotations[HASH], made_with);
    assert_eq!(cloud.simulator.machines_ever().len(), 1);
}

#[tokio::test]
async fn nothing_is_asked_for_before_the_claim_says_with_which_class() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    let begun = cloud.stored(&claim(1, "1", json!([])));
    let unwritable = faults::Fault::fail(500).verb("patch").resource("nodeclaims");
    cloud.sandbox.faults().inject(unwritable);
    let error = cloud.provider.create(&begun).await.expect_err("it cannot be written");
    assert!(matches!(error.launch_effect(), LaunchEffect::Retry { .. }), "{error}");
    assert_eq!(cloud.calls("deployVirtualMachine"), 0);
    cloud.sandbox.faults().clear();
    cloud.provider.create(&begun).await.expect("launched");
    let annotations = stored(&cloud, &begun).metadata.annotations.expect("written");
    assert_eq!(annotations[HASH], hash(&cloud));
}

#[tokio::test]
async fn a_machine_gets_no_disks_that_its_class_did_not_ask_for_when_it_was_made() {
    let mut seed = old();
    seed.settings.latency.start = Duration::from_secs(600);
    let cloud = Cloud::with(seed, two_disks()).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.apply_class(two_kept_disks()).await;
    cloud.pass(Duration::from_secs(600)).await;
    sweep(&cloud, 2).await;
    assert_eq!(disks(&cloud).await, []);
    assert!(is_noted(&cloud, &claim), "it has none, so nothing is open");
}

#[tokio::test]
async fn a_launch_that_goes_on_after_a_change_of_the_class_gets_none_of_its_disks() {
    let cloud = Cloud::with(old(), two_disks()).await;
    let begun = killed(&cloud, "createVolume", FaultKind::HangBefore).await;
    let made_with = hash(&cloud);
    cloud.apply_class(two_kept_disks()).await;
    let restarted = cloud.new_provider().await;
    let instance = restarted.create(&begun).await.expect("continued");
    assert_eq!(instance.annotations[HASH], made_with, "drift replaces it");
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn the_disks_of_a_failed_launch_go_though_garbage_collection_comes_first() {
    let cloud = Cloud::with(Seed::default(), two_disks()).await;
    let failing = FaultKind::FailJob(530, "Unable to start a VM due to insufficient capacity".to_owned());
    cloud
        .simulator
        .inject(Fault::new("deployVirtualMachine", failing).times(1));
    killed(&cloud, "createTags", FaultKind::HangBefore).await;
    cloud.pass(Duration::from_secs(30)).await;
    assert!(cloud.live().is_empty(), "it failed");
    // Servers that we know take the disks of such a machine away themselves.
    let failed = cloud.simulator.machines_ever()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.attach_foreign_volume(&failed, "DATA-17"));
    assert_eq!(disks(&cloud).await.len(), 1);
    let restarted = cloud.new_provider().await;
    cloud.collect(&restarted, 1).await;
    assert_eq!(disks(&cloud).await, []);
}

#[tokio::test]
async fn a_machine_that_is_given_up_for_its_disks_says_so_if_there_is_no_time_for_another() {
    let cloud = Cloud::with(old(), two_disks()).await;
    let begun = killed(&cloud, "createVolume", FaultKind::HangBefore).await;
    let full = FaultKind::FailJob(533, "no storage pool has room".to_owned());
    cloud.simulator.inject(Fault::new("createVolume", full));
    let mut settings = cloud.settings.clone();
    settings.launch_wait = Duration::ZERO;
    let keys = cloud.simulator.keys(karpenter_cloudstack::sim::seed::ACCOUNT);
    let hurried = cloud.provider_with(keys, settings.http.trust.clone(), settings);
    let error = hurried.create(&begun).await.expect_err("no room for its disks");
    assert!(error.to_string().contains("CloudStack has no capacity"), "{error}");
    assert_eq!(cloud.simulator.machines_ever().len(), 1);
}
