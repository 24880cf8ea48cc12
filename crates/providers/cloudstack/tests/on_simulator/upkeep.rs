//! What is kept tidy beside machines: tokens, hashes, affinity groups, data disks, and what is written on claims.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion, conformance::Environment, garbage_collection::GarbageCollector};
use karpenter_cloudstack::{
    client::{
        Priority, Request,
        model::{Project, Volume},
    },
    settings::OwnershipDetails,
    sim::{Fault, FaultKind, Seed, seed},
    tasks::{self, sweep::Memory},
};
use serde_json::{Value, json};

use crate::environment::{Cloud, STEP, claim, pool};

const JOB: &str = "karpenter.k8s.cloudstack/job-id";
const HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
const HASH_VERSION: &str = "karpenter.k8s.cloudstack/nodeclass-hash-version";

/// A class whose machines join with tokens that Karpenter makes.
fn with_tokens() -> Value {
    json!({"bootstrap": {"mode": "Kubeadm", "apiServerEndpoint": "10.0.0.1:6443", "caCertHashes": ["sha256:00"]}})
}

fn annotation(claim: &NodeClaim, key: &str) -> Option<String> {
    let own = claim.metadata.annotations.as_ref()?;
    own.get(key).cloned()
}

fn read(cloud: &Cloud, claim: &NodeClaim) -> NodeClaim {
    let name = claim.metadata.name.as_deref().expect("a name");
    cloud.sandbox.objects().get("", name).expect("there")
}

async fn collect(cloud: &Cloud, collector: &mut GarbageCollector) {
    cloud.provider.collect_garbage(collector).await.expect("a round");
}

#[tokio::test]
async fn tokens_are_listed_before_the_claims_that_they_are_judged_by() {
    let cloud = Cloud::with(Seed::default(), with_tokens()).await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let paths = seen.clone();
    let provider = cloud.provider_behind(move |_, path| {
        paths.lock().expect("nobody panicked").push(path.to_owned());
        None
    });
    provider.sweep(&mut Memory::default()).await.expect("a sweep");
    let seen = seen.lock().expect("nobody panicked").clone();
    let at = |end: &str| seen.iter().position(|path| path.ends_with(end));
    let (tokens, claims) = (at("/kube-system/secrets"), at("/nodeclaims"));
    assert!(tokens.is_some() && tokens < claims, "{seen:?}");
}

#[tokio::test]
async fn tokens_that_may_not_be_read_do_not_keep_machines_from_being_looked_at() {
    let cloud = Cloud::start().await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.apply_class(with_tokens()).await;
    let id = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| operator.power_off(&id));
    let provider =
        cloud.provider_behind(|_, path| path.ends_with("/kube-system/secrets").then_some(StatusCode::FORBIDDEN));
    let mut memory = Memory::default();
    provider.sweep(&mut memory).await.expect("a sweep");
    cloud.pass(Duration::from_secs(301)).await;
    provider.sweep(&mut memory).await.expect("a sweep");
    assert!(!cloud.claim_exists("default-00001"), "the stopped machine is replaced");
}

#[tokio::test]
async fn a_hash_is_left_alone_while_the_secret_with_the_user_data_cannot_be_read() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}\n";
    cloud.sandbox.apply(namespace).expect("accepted");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": "karpenter"},
        "data": {"script": "IyEvYmluL3NoCg=="},
    });
    cloud.sandbox.apply(&secret.to_string()).expect("accepted");
    let reference = json!({"name": "boot", "namespace": "karpenter", "key": "script"});
    cloud
        .apply_class(json!({"userDataRef": {"secretRef": reference}}))
        .await;
    let marked = |cloud: &Cloud| cloud.class().metadata.annotations.expect("marked")[HASH].clone();
    let right = marked(&cloud);
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut old = read(&cloud, &launched);
    let annotations = old.metadata.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), "123".to_owned());
    annotations.insert(HASH_VERSION.to_owned(), "v1".to_owned());
    cloud.sandbox.objects().update(&old).expect("accepted");

    let blind = cloud.provider_behind(|_, path| path.ends_with("/secrets/boot").then_some(StatusCode::FORBIDDEN));
    blind.reconcile_class("default").await.expect("reconciled");
    assert_eq!(marked(&cloud), right);
    assert_eq!(annotation(&read(&cloud, &launched), HASH).as_deref(), Some("123"));
    let status = cloud.class().status.expect("a status");
    let found = status.conditions.iter().find(|own| own.type_ == "BootstrapReady");
    assert_eq!(
        found.map(|own| own.reason.as_str()),
        Some("SecretNotFound"),
        "users are told"
    );

    cloud.resolve().await;
    let migrated = read(&cloud, &launched);
    assert_eq!(
        annotation(&migrated, HASH),
        Some(right),
        "with the right one, once it is known"
    );
    assert_eq!(cloud.provider.is_drifted(&migrated).await.expect("readable"), None);
}

#[tokio::test]
async fn empty_groups_of_this_cluster_go_once_no_class_manages_any_and_no_others() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let client = cloud.provider.client();
    let projects: Vec<Project> = client
        .list(&Request::new("listProjects"), "project", Priority::Discovery)
        .await
        .expect("a list");
    let make = async |name: &str, description: Option<&str>, project: Option<&str>| {
        let request = Request::new("createAffinityGroup")
            .with("name", name)
            .with("type", "host anti-affinity")
            .with_some("description", description)
            .with_some("projectid", project);
        client.call(&request, Priority::Launch).await.expect("made");
    };
    let (ours, theirs) = (
        Some("made by Karpenter for cluster blue"),
        Some("made by Karpenter for cluster blue-2"),
    );
    make("karpenter-blue-gone", ours, None).await;
    make("karpenter-blue-gone", ours, Some(&projects[0].id)).await;
    make("karpenter-blue-2-workers", theirs, None).await;
    make("karpenter-blue-by-hand", None, None).await;
    let mut collector = GarbageCollector::new(tasks::caution());
    collect(&cloud, &mut collector).await;
    assert_eq!(cloud.simulator.affinity_groups().len(), 5, "a class manages groups");

    cloud.apply_class(json!({})).await;
    collect(&cloud, &mut collector).await;
    cloud.pass(Duration::from_secs(5)).await;
    let mut left = cloud.simulator.affinity_groups();
    left.sort();
    assert_eq!(
        left,
        [
            "karpenter-blue-2-workers",
            "karpenter-blue-by-hand",
            "karpenter-blue-default"
        ],
        "another cluster's, a person's, and one that a machine is in"
    );
}

#[tokio::test]
async fn a_group_counts_as_deleted_when_it_is_and_not_before() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    crate::lifecycle::terminate(&cloud, &launched).await;
    let id = cloud.simulator.machines()[0].id.clone();
    cloud.simulator.operate(|operator| operator.expunge(&id));
    let collected = || {
        let orphans = &cloud.provider.client().metrics().orphans;
        orphans.with_label_values(&["affinity_group"]).get()
    };
    let text = "the group is in use by the database".to_owned();
    cloud
        .simulator
        .inject(Fault::new("deleteAffinityGroup", FaultKind::FailJob(530, text)));
    cloud.apply_class(json!({})).await;
    let mut collector = GarbageCollector::new(tasks::caution());
    let failed = cloud.provider.collect_garbage(&mut collector).await;
    let error = failed.expect_err("it is still there").to_string();
    assert!(error.contains("in use by the database"), "{error}");
    assert_eq!((collected(), cloud.simulator.affinity_groups().len()), (0, 1));
    cloud.simulator.heal();
    collect(&cloud, &mut collector).await;
    assert_eq!(
        (collected(), cloud.simulator.affinity_groups().len()),
        (1, 0),
        "at once, not later"
    );
}

#[tokio::test]
async fn a_group_that_may_not_be_deleted_stays_and_holds_up_nothing() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    crate::lifecycle::terminate(&cloud, &launched).await;
    let id = cloud.simulator.machines()[0].id.clone();
    cloud.simulator.operate(|operator| operator.expunge(&id));
    let text = "The API [deleteAffinityGroup] does not exist or is not available for the account karpenter.";
    let refusal = FaultKind::Refuse(432, text.to_owned());
    cloud.simulator.inject(Fault::new("deleteAffinityGroup", refusal));
    cloud.apply_class(json!({})).await;
    collect(&cloud, &mut GarbageCollector::new(tasks::caution())).await;
    assert_eq!(cloud.simulator.affinity_groups().len(), 1);
}

#[tokio::test]
async fn launches_do_not_wait_for_the_list_of_empty_groups_and_theirs_is_not_deleted_under_them() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let client = cloud.provider.client();
    let make = Request::new("createAffinityGroup")
        .with("name", "karpenter-blue-default")
        .with("type", "host anti-affinity")
        .with("description", "made by Karpenter for cluster blue");
    client.call(&make, Priority::Launch).await.expect("made");
    // Another class that manages groups goes, without ever having had a machine.
    let mut other = crate::environment::class(json!({"affinityGroups": {"managed": {}}}));
    other["metadata"]["name"] = json!("other");
    cloud.sandbox.apply(&other.to_string()).expect("accepted");
    cloud.provider.reconcile_class("other").await.expect("reconciled");
    let objects = cloud.sandbox.objects();
    objects
        .delete::<karpenter_cloudstack::CloudStackNodeClass>("", "other", &Default::default())
        .expect("accepted");
    // The list shows the group empty, and is on its way for a quarter of an hour.
    let slow = FaultKind::SlowBody(Duration::from_secs(900));
    cloud.simulator.inject(Fault::new("listAffinityGroups", slow).times(1));
    let before = cloud.calls("listAffinityGroups");
    let provider = cloud.provider.clone();
    let removal = tokio::spawn(async move { provider.reconcile_class("other").await });
    while cloud.calls("listAffinityGroups") == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let launched = cloud.provider.create(&claim(1, "1", json!([]))).await;
    launched.expect("launched");
    assert!(!removal.is_finished(), "the list is still on its way");
    removal.await.expect("no panic").expect("reconciled");
    assert_eq!(cloud.simulator.affinity_groups(), ["karpenter-blue-default"]);
    assert_eq!(cloud.calls("deleteAffinityGroup"), 0, "a machine is in it now");
    assert_eq!(cloud.live()[0].affinity_groups.len(), 1);
}

#[tokio::test]
async fn a_group_takes_new_machines_where_old_ones_left() {
    let managed = json!({"affinityGroups": {"managed": {"maxSize": 2}}});
    let cloud = Cloud::with(Seed::default(), managed).await;
    for number in 1..=2 {
        let claim = claim(number, "1", json!([]));
        cloud.provider.create(&claim).await.expect("launched");
    }
    let first = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| operator.expunge(&first));
    cloud
        .provider
        .create(&claim(3, "1", json!([])))
        .await
        .expect("launched");
    assert_eq!(cloud.simulator.affinity_groups(), ["karpenter-blue-default"]);
}

#[tokio::test]
async fn a_disk_that_was_attached_again_is_not_old_when_it_is_loose_once_more() {
    let disks = json!({"dataDisks": [{"offering": "data-10"}]});
    let cloud = Cloud::with(Seed::default(), disks).await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    cloud.pass(Duration::from_secs(5)).await;
    cloud.apply_class(json!({})).await;
    cloud.launch(&claim(2, "1", json!([]))).await;
    let with_disk = cloud.live().into_iter().find(|own| own.name.ends_with("00001"));
    let other = cloud.live().into_iter().find(|own| own.name.ends_with("00002"));
    let (with_disk, other) = (with_disk.expect("there").id, other.expect("there").id);
    let client = cloud.provider.client();
    let request = Request::new("listVolumes")
        .with("virtualmachineid", with_disk.clone())
        .with("type", "DATADISK");
    let listed: Vec<Volume> = client
        .list(&request, "volume", Priority::Discovery)
        .await
        .expect("a list");
    let data = || {
        let all = cloud.simulator.volumes().into_iter();
        all.filter(|(name, _)| name.starts_with("DATA")).count()
    };
    let mut collector = GarbageCollector::new(tasks::caution());

    cloud.simulator.operate(|operator| operator.expunge(&with_disk));
    collect(&cloud, &mut collector).await;
    let attach = Request::new("attachVolume")
        .with("id", listed[0].id.clone())
        .with("virtualmachineid", other.clone());
    client.call(&attach, Priority::Launch).await.expect("accepted");
    cloud.pass(Duration::from_secs(700)).await;
    collect(&cloud, &mut collector).await;
    cloud.simulator.operate(|operator| operator.expunge(&other));
    collect(&cloud, &mut collector).await;
    assert_eq!(data(), 1, "it is loose only now");
    cloud.pass(Duration::from_secs(700)).await;
    collect(&cloud, &mut collector).await;
    assert_eq!(data(), 0, "and goes ten minutes later");
}

#[tokio::test]
async fn offerings_whose_hosts_cannot_run_the_template_are_left_out() {
    let mut seed = Seed::default();
    for template in &mut seed.catalogue.templates {
        template["templatetag"] = json!("fast");
    }
    for host in &mut seed.hosts {
        host.tags = vec!["fast".to_owned()];
    }
    let tagged = |name: &str, tags: &str| {
        let mut offering = seed::offering(name, 1, 1024);
        offering["hosttags"] = json!(tags);
        offering
    };
    seed.catalogue.offerings = vec![
        tagged("on-slow-hosts", "slow"),
        tagged("on-fast-hosts", "fast"),
        seed::offering("anywhere", 2, 2048),
    ];
    let cloud = Cloud::with(seed, json!({})).await;
    let types = cloud.provider.instance_types(&pool()).await.expect("types");
    let names: Vec<&str> = types.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["anywhere", "on-fast-hosts"]);
    cloud.launch(&claim(1, "500m", json!([]))).await;
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn a_claim_tells_which_job_makes_its_machine() {
    let cloud = Cloud::start().await;
    let stored = cloud.stored(&claim(1, "1", json!([])));
    cloud.provider.create(&stored).await.expect("launched");
    let job = annotation(&read(&cloud, &stored), JOB).expect("written");
    let made = cloud
        .provider
        .client()
        .job(&job, Priority::Launch)
        .await
        .expect("a job of the server");
    assert_eq!(made.jobinstanceid, Some(cloud.live()[0].id.clone()));
}

/// A cloud whose machines carry no details, and a claim whose launch was killed before its machine was tagged.
async fn killed_before_tags() -> (Cloud, NodeClaim) {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| {
        settings.ownership_details = OwnershipDetails::Omitted;
    })
    .await;
    cloud.apply_class(json!({})).await;
    let stored = cloud.stored(&claim(1, "1", json!([])));
    cloud
        .simulator
        .inject(Fault::new("createTags", FaultKind::HangBefore).times(1));
    tokio::select! {
        _ = cloud.provider.create(&stored) => panic!("it was to be killed"),
        () = cloud.simulator.hung() => {}
    }
    let stored = read(&cloud, &stored);
    (cloud, stored)
}

#[tokio::test]
async fn a_machine_without_any_mark_is_found_again_by_what_is_written_on_its_claim() {
    let (cloud, stored) = killed_before_tags().await;
    let restarted = cloud.new_provider().await;
    let instance = restarted.create(&stored).await.expect("continued");
    cloud.pass(Duration::from_secs(5)).await;
    assert_eq!(cloud.simulator.machines_ever().len(), 1, "nothing is made twice");
    restarted
        .get(&instance.provider_id)
        .await
        .expect("tagged, so it is ours");
}

#[tokio::test]
async fn a_machine_without_any_mark_goes_with_its_claim() {
    let (cloud, stored) = killed_before_tags().await;
    let restarted = cloud.new_provider().await;
    for _ in 0..20 {
        if restarted.abandon(&stored).await.expect("asked") == Deletion::Gone {
            break;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn of_two_machines_the_one_that_is_written_on_the_claim_stays() {
    let cloud = Cloud::start().await;
    let stored = cloud.stored(&claim(1, "1", json!([])));
    cloud.provider.create(&stored).await.expect("launched");
    let recorded = cloud.live()[0].clone();
    let mut twin = recorded.clone();
    twin.id = "33333333-2222-4333-8444-555555555555".to_owned();
    twin.created -= jiff::SignedDuration::from_secs(60);
    cloud.simulator.operate(|operator| operator.add_machine(twin));
    cloud.collect(&cloud.provider, 3).await;
    let left: Vec<String> = cloud.live().into_iter().map(|own| own.id).collect();
    assert_eq!(left, [recorded.id], "although the other is older");
}

#[tokio::test]
async fn a_launch_whose_machine_cannot_be_read_at_the_deadline_is_not_begun_anew() {
    let mut seed = Seed::default();
    seed.settings.latency.start = Duration::from_secs(900);
    let cloud = Cloud::with(seed, json!({})).await;
    let stored = cloud.stored(&claim(1, "1", json!([])));
    let (error, ()) = tokio::join!(cloud.provider.create(&stored), async {
        while cloud.live().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cloud.simulator.inject(Fault::everything(FaultKind::Page(503)));
    });
    error.expect_err("nobody knows");
    cloud.simulator.heal();
    assert_eq!(cloud.simulator.machines_ever().len(), 1);
    assert_eq!(
        cloud.live().len(),
        1,
        "it is still starting, and the next look adopts it"
    );
}
