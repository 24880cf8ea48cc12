//! Deleting, listing and collecting: what is ours goes completely, what is not stays.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_bizflycloud::{
    BizflyCloudProvider, Settings,
    sim::{Fault, Often, Operation, SimOptions},
};
use karpenter_cloud::{
    CloudProvider, Deletion, LaunchEffect,
    garbage_collection::{GarbageCollector, KnownClaims},
};
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim, settings};

async fn with_class(spec: Value) -> World {
    World::with(Setting {
        class: Some(spec),
        ..Setting::default()
    })
    .await
}

fn server_of(claim: &NodeClaim) -> String {
    let id = claim.provider_id().expect("launched");
    id.strip_prefix("bizflycloud://").expect("ours").to_owned()
}

/// Three rounds, far enough apart that an orphan of the first is confirmed.
async fn collect(world: &World, provider: &BizflyCloudProvider, claims: &KnownClaims) {
    let mut collector = GarbageCollector::new(provider.caution());
    for _ in 0..3 {
        provider
            .collect_garbage(&mut collector, claims)
            .await
            .expect("no faults");
        world.clock.sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test]
async fn only_disks_that_were_ordered_with_a_server_go_with_it() {
    let world = with_class(json!({"dataDisks": [{"size": 20}, {"size": 30}]})).await;
    let claim = world.launch(1, json!([])).await;
    let notes = claim.metadata.annotations.clone().expect("notes");
    let noted: Vec<&str> = notes["karpenter.bizflycloud.com/data-volume-ids"].split(',').collect();
    assert_eq!(noted.len(), 2);
    let pod_disk = world.cloud.attach_data_disk(&server_of(&claim));
    world.terminate(&world.provider, &claim).await;
    let request = world
        .cloud
        .requests()
        .into_iter()
        .find(|request| request.method == "DELETE" && request.path.ends_with(&server_of(&claim)));
    let listed = request.expect("deleted").body["delete_volume"].clone();
    let root = &notes["karpenter.bizflycloud.com/root-volume-id"];
    assert_eq!(listed, json!([root, noted[0], noted[1]]));
    assert!(world.cloud.volume_exists(&pod_disk), "a pod's disk survives");
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn a_locked_server_is_tried_again_and_told_about_after_three_refusals() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    world.cloud.inject(Fault::Locked, Often::Always);
    for refusals in 1..=4 {
        let error = world.provider.delete(&claim).await.expect_err("locked");
        assert!(error.to_string().contains("is locked or busy"), "{error}");
        assert_eq!(
            world.events("ServerLocked").is_empty(),
            refusals < 3,
            "after {refusals}"
        );
    }
    world.cloud.heal();
    world.terminate(&world.provider, &claim).await;
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn bke_that_cannot_be_told_does_not_hold_a_deletion_back() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let refused = Fault::Http {
        operation: Operation::LeaveCluster,
        status: 400,
        body: "no".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(refused, Often::Always);
    world.terminate(&world.provider, &claim).await;
    assert_eq!(world.events("ClusterLeaveFailed").len(), 1);
    assert_eq!(world.events("ServerDeleted").len(), 1);
}

#[tokio::test]
async fn a_server_is_found_by_its_provider_id_and_by_its_bare_id() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let full = world
        .provider
        .get(claim.provider_id().expect("launched"))
        .await
        .expect("there");
    let bare = world.provider.get(&server_of(&claim)).await.expect("there");
    assert_eq!(full, bare);
    world
        .provider
        .get("aws:///zone/i-123")
        .await
        .expect_err("another cloud's");
    let mut gone = claim.clone();
    world.terminate(&world.provider, &claim).await;
    gone.metadata.annotations = None;
    let again = Deletion::settle(world.provider.delete(&gone).await).expect("no faults");
    assert_eq!(again, Deletion::Gone, "deleting twice is deleting once");
}

#[tokio::test]
async fn two_clusters_of_one_project_do_not_see_each_others_servers() {
    let world = World::start().await;
    world.launch(1, json!([])).await;
    let mut other = settings(&world.in_flight);
    other.cluster_name = "staging".to_owned();
    let other = BizflyCloudProvider::new(world.sandbox.client(), world.clock.clone(), other);
    // The other cluster has no claims, so an empty list is believed there.
    let objects = world.sandbox.objects();
    objects
        .delete::<NodeClaim>("", "default-00001", &Default::default())
        .expect("deleted");
    assert_eq!(other.list().await.expect("a list"), []);
    world.clock.sleep(Duration::from_secs(600)).await;
    collect(&world, &other, &KnownClaims::default()).await;
    assert_eq!(world.live().len(), 1, "the other cluster's server is left alone");
}

#[tokio::test]
async fn an_account_that_cannot_be_read_fails_the_whole_list() {
    let world = World::start().await;
    world.launch(1, json!([])).await;
    let mut broken = world.config(json!({"region": "HN"}));
    broken["metadata"]["name"] = json!("broken");
    broken["spec"]["secretRef"]["name"] = json!("missing");
    world.apply(&broken);
    let error = world.provider.list().await.expect_err("incomplete");
    assert!(error.to_string().contains("missing does not exist"), "{error}");
}

#[tokio::test]
async fn an_orphan_is_collected_after_its_age_and_a_young_one_is_not() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let known = KnownClaims::default();
    let mut collector = GarbageCollector::new(world.provider.caution());
    for _ in 0..2 {
        world
            .provider
            .collect_garbage(&mut collector, &known)
            .await
            .expect("no faults");
        world.clock.sleep(Duration::from_secs(31)).await;
    }
    assert_eq!(world.live(), [server_of(&claim)], "it is too young");
    world.clock.sleep(Duration::from_secs(300)).await;
    collect(&world, &world.provider, &known).await;
    assert_eq!(world.cloud.leaks(), [], "with its root disk");
    assert_eq!(world.events("GarbageCollected").len(), 1);
    assert_eq!(world.metric("instances_deleted_total", &["garbage_collection"]), 1.0);
    assert_eq!(world.metric("orphans_total", &["server"]), 1.0);
}

#[tokio::test]
async fn too_many_orphans_at_once_suspend_collection() {
    let world = World::start().await;
    let claims: Vec<_> = (1..=12).map(|number| claim(number, json!([]))).collect();
    for made in futures::future::join_all(claims.iter().map(|claim| world.provider.create(claim))).await {
        made.expect("launched");
    }
    world.clock.sleep(Duration::from_secs(600)).await;
    collect(&world, &world.provider, &KnownClaims::default()).await;
    assert_eq!(world.live().len(), 12, "nothing is deleted");
    assert_eq!(world.events("GarbageCollectionSuspended").len(), 1);
}

#[tokio::test]
async fn a_server_that_shows_too_late_is_waited_for_and_collected_once_its_claim_is_gone() {
    let world = World::start().await;
    world
        .cloud
        .inject(Fault::VisibleLate(Duration::from_secs(270)), Often::Times(1));
    let own = claim(1, json!([]));
    let error = world.provider.create(&own).await.expect_err("not visible");
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "InstanceCreationPending");
    assert_eq!(world.count("POST", "/servers"), 1);
    // The claim goes, and with it this controller: only the server's marks are left.
    let restarted = world.new_provider();
    world.clock.sleep(Duration::from_secs(600)).await;
    collect(&world, &restarted, &KnownClaims::default()).await;
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn of_two_servers_of_one_claim_the_older_stays() {
    let world = World::start().await;
    let own = claim(1, json!([]));
    let made = world.provider.create(&own).await.expect("launched");
    let requests = world.cloud.requests();
    let order = requests
        .iter()
        .find(|request| request.method == "POST" && request.path.ends_with("/servers"));
    let body = order.expect("ordered").body.clone();
    // An order that was given up took effect after all.
    world.cloud.order(&body[0]);
    world.clock.sleep(Duration::from_secs(120)).await;
    assert_eq!(world.live().len(), 2);
    let again = world.new_provider().create(&own).await.expect("adopted");
    assert_eq!(again.provider_id, made.provider_id);
    world.clock.sleep(Duration::from_secs(15)).await;
    assert_eq!(world.cloud.leaks().len(), 1, "the second is gone with its disk");
    assert_eq!(world.events("ServerAdopted").len(), 1);
}

#[tokio::test]
async fn a_disk_that_outlived_its_server_is_collected_by_the_ledger() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let id = server_of(&claim);
    // Somebody deletes the server at the cloud, and the claim goes with its annotations.
    let client = world.client(|_| {});
    client.delete_server(&id, &[]).await.expect("deleted");
    world.clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(world.cloud.leaks().len(), 1, "the root disk stayed");
    let restarted = world.new_provider();
    restarted.collect_disks().await.expect("no faults");
    assert_eq!(world.cloud.leaks().len(), 1, "it is left alone for ten minutes");
    world.clock.sleep(Duration::from_secs(600)).await;
    restarted.collect_disks().await.expect("no faults");
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn disks_of_others_that_look_like_ours_are_left_alone() {
    let world = World::start().await;
    let foreign = world.cloud.add_foreign_server("somebody-elses");
    let client = world.client(|_| {});
    client.delete_server(&foreign, &[]).await.expect("deleted");
    world.clock.sleep(Duration::from_secs(3600)).await;
    world.provider.collect_disks().await.expect("no faults");
    assert_eq!(world.cloud.leaks().len(), 1, "a name proves nothing");
}

#[tokio::test]
async fn what_was_spent_is_what_the_listed_prices_say() {
    let world = World::start().await;
    let mut expected = 0.0;
    for number in 1..=3 {
        let claim = world.launch(number, json!([])).await;
        let price: f64 = claim.metadata.annotations.as_ref().expect("notes")["karpenter.bizflycloud.com/hourly-price"]
            .parse()
            .expect("a number");
        let id = server_of(&claim);
        let servers = world.cloud.servers();
        let since = servers.iter().find(|server| server.id == id).expect("there").created_at;
        world.clock.sleep(Duration::from_secs(600 * u64::from(number))).await;
        world.terminate(&world.provider, &claim).await;
        let requests = world.cloud.requests();
        let deleted = requests
            .iter()
            .find(|request| request.method == "DELETE" && request.path.ends_with(&id));
        let seconds = deleted.expect("deleted").at.duration_since(since).as_secs_f64() + 10.0;
        expected += price * seconds / 3600.0;
    }
    assert_eq!(world.cloud.leaks(), []);
    let spent = world.cloud.spent();
    assert!(
        (spent - expected).abs() < expected * 1e-6,
        "spent {spent}, expected {expected}"
    );
}

#[tokio::test]
async fn a_locked_orphan_does_not_keep_the_others() {
    let world = World::start().await;
    let claims: Vec<_> = (1..=3).map(|number| claim(number, json!([]))).collect();
    for made in futures::future::join_all(claims.iter().map(|claim| world.provider.create(claim))).await {
        made.expect("launched");
    }
    world.clock.sleep(Duration::from_secs(600)).await;
    let mut collector = GarbageCollector::new(world.provider.caution());
    let nobody = KnownClaims::default();
    world
        .provider
        .collect_garbage(&mut collector, &nobody)
        .await
        .expect("seen once");
    world.clock.sleep(Duration::from_secs(60)).await;
    world.cloud.inject(Fault::Locked, Often::Times(1));
    let error = world
        .provider
        .collect_garbage(&mut collector, &nobody)
        .await
        .expect_err("one is locked");
    assert!(error.to_string().contains("is locked or busy"), "{error}");
    assert_eq!(world.live().len(), 1, "the others go");
    assert_eq!(
        world.metric("orphans_total", &["server"]),
        2.0,
        "what is still there was not collected"
    );
    world.clock.sleep(Duration::from_secs(60)).await;
    world
        .provider
        .collect_garbage(&mut collector, &nobody)
        .await
        .expect("unlocked");
    assert_eq!(world.live().len(), 0);
}

#[tokio::test]
async fn bke_is_told_that_a_node_left_although_its_class_is_gone() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let objects = world.sandbox.objects();
    let patch = json!({"metadata": {"finalizers": null}});
    objects
        .patch::<karpenter_bizflycloud::BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    objects
        .delete::<karpenter_bizflycloud::BizflyCloudNodeClass>("", "default", &Default::default())
        .expect("deleted");
    world.terminate(&world.provider, &claim).await;
    assert_eq!(world.count("POST", "/engine/cluster_leave/bke-cluster-1"), 1);
    assert_eq!(world.events("ClusterLeaveFailed"), Vec::<String>::new());
}

#[tokio::test]
async fn a_token_that_cannot_be_read_any_more_is_told_instead_of_leaving_in_silence() {
    let world = with_class(json!({"bootstrap": {"mode": "BKE", "bke": {
        "tokenSecretRef": {"name": "join", "namespace": "default", "key": "token"}}}}))
    .await;
    world.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "join", "namespace": "default"},
        "stringData": {"token": karpenter_bizflycloud::sim::BKE_TOKEN},
    }));
    world.provider.reconcile_classes().await;
    let claim = world.launch(1, json!([])).await;
    let objects = world.sandbox.objects();
    objects
        .delete::<k8s_openapi::api::core::v1::Secret>("default", "join", &Default::default())
        .expect("deleted");
    world.terminate(&world.provider, &claim).await;
    let told = world.events("ClusterLeaveFailed");
    assert!(
        told.len() == 1 && told[0].contains("secret default/join does not exist"),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_server_whose_order_is_under_way_is_not_collected() {
    let world = World::with(Setting {
        options: SimOptions {
            volume_delay: Some(Duration::from_secs(5)),
            build_delay: Some(Duration::from_secs(5)),
            ..SimOptions::default()
        },
        settings: |own| Settings {
            create_timeout: Duration::from_secs(60),
            ..own
        },
        ..Setting::default()
    })
    .await;
    world
        .cloud
        .inject(Fault::ListOmits("default-00001".to_owned()), Often::Always);
    world.cloud.inject(Fault::TaskNeverReady, Often::Always);
    let started = world.clock.now();
    let error = world.provider.create(&claim(1, json!([]))).await;
    let error = error.expect_err("not visible").to_string();
    assert!(error.contains("is not visible yet"), "{error}");
    world.cloud.heal();
    world.clock.sleep(Duration::from_secs(40)).await;
    // Old enough by now, and nobody's by what this cluster's claims say; but this process has ordered it.
    let mut collector = GarbageCollector::new(world.provider.caution());
    let nobody = KnownClaims::default();
    for _ in 0..3 {
        let collected = world.provider.collect_garbage(&mut collector, &nobody).await;
        collected.expect("no faults");
        world.clock.sleep(Duration::from_secs(31)).await;
    }
    let passed = world.clock.since(started).as_secs();
    assert!(
        (130..210).contains(&passed),
        "{passed} s: still within the order's time"
    );
    assert_eq!(world.live().len(), 1, "its order is under way");
    world.clock.sleep(Duration::from_secs(60)).await;
    collect(&world, &world.provider, &nobody).await;
    assert_eq!(world.cloud.leaks(), [], "nobody asked about it for too long");
}

#[tokio::test]
async fn a_server_without_the_marks_of_its_claim_is_left_alone_and_told() {
    let world = World::start().await;
    let mut claim = world.launch(1, json!([])).await;
    let foreign = world.cloud.add_foreign_server("somebody-elses");
    claim.status.as_mut().expect("launched").provider_id = Some(format!("bizflycloud://{foreign}"));
    let error = world.provider.delete(&claim).await.expect_err("not its own");
    assert!(error.to_string().contains("OwnershipMismatch"), "{error}");
    assert_eq!(world.events("OwnershipMismatch").len(), 1);
    world.clock.sleep(Duration::from_secs(60)).await;
    assert!(world.live().contains(&foreign), "nothing is deleted");
}

#[tokio::test]
async fn a_root_disk_that_its_server_left_goes_with_the_claim_and_is_told() {
    let world = World::start().await;
    let claim = world.launch(1, json!([])).await;
    let client = world.client(|_| {});
    client.delete_server(&server_of(&claim), &[]).await.expect("deleted");
    world.clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(world.cloud.leaks().len(), 1, "its disk is left");
    world.terminate(&world.provider, &claim).await;
    assert_eq!(world.cloud.leaks(), []);
    assert_eq!(world.events("RootVolumeDeleted").len(), 1);
}

#[tokio::test]
async fn an_order_that_is_refused_as_such_is_told_on_its_claim() {
    let world = World::start().await;
    let refused = Fault::Http {
        operation: Operation::CreateServers,
        status: 400,
        body: "no such image".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(refused, Often::Times(1));
    let own = world.stored(&claim(1, json!([])));
    world.provider.create(&own).await.expect_err("refused");
    let told = world.events("LaunchFailed");
    assert!(told.len() == 1 && told[0].contains("no such image"), "{told:?}");
}
