//! Launches, deletions and what goes wrong on the way.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use karpenter_api::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use karpenter_bizflycloud::{
    BizflyCloudNodeClass,
    sim::{Fault, Leak, Often, Operation, SimOptions, SimulatedBizfly},
};
use karpenter_cloud::{
    CloudProvider, Deletion, ErrorKind, LaunchEffect,
    garbage_collection::{GarbageCollector, KnownClaims},
};
use serde_json::{Value, json};

use crate::environment::{Setting, World, claim, pool};

/// Every server takes the same time, so that times can be compared.
pub(crate) async fn steady() -> World {
    World::with(Setting {
        options: SimOptions {
            volume_delay: Some(Duration::from_secs(30)),
            build_delay: Some(Duration::from_secs(20)),
            ..SimOptions::default()
        },
        ..Setting::default()
    })
    .await
}

pub(crate) fn only(flavor: &str) -> Value {
    json!([{"key": INSTANCE_TYPE, "operator": "In", "values": [flavor]}])
}

pub(crate) fn orders(world: &World) -> Vec<Value> {
    let requests = world.cloud.requests();
    let posts = requests
        .iter()
        .filter(|request| request.method == "POST" && request.path.ends_with("/servers"));
    posts.map(|request| request.body.clone()).collect()
}

#[tokio::test]
async fn ten_launches_take_the_time_of_one_and_each_claim_gets_its_own_server() {
    let world = steady().await;
    let started = world.clock.now();
    world.provider.create(&claim(1, json!([]))).await.expect("launched");
    let one = world.clock.since(started).as_secs_f64();
    let started = world.clock.now();
    let claims: Vec<_> = (10..20).map(|number| claim(number, json!([]))).collect();
    let made = join_all(claims.iter().map(|claim| world.provider.create(claim))).await;
    let ten = world.clock.since(started).as_secs_f64();
    assert!(ten < one * 1.5, "one took {one} s, ten took {ten} s");
    let mut ids = BTreeSet::new();
    for (claim, made) in claims.iter().zip(made) {
        let made = made.expect("launched");
        assert_eq!(
            made.claim.expect("marked").uid,
            claim.metadata.uid.clone().expect("a uid")
        );
        let server = world
            .cloud
            .servers()
            .into_iter()
            .find(|server| made.provider_id.ends_with(&server.id));
        assert_eq!(
            server.expect("it exists").name,
            claim.metadata.name.clone().expect("a name")
        );
        ids.insert(made.provider_id);
    }
    assert_eq!(ids.len(), 10);
    assert_eq!(orders(&world).len(), 2, "one order for the first, one for the ten");
}

#[tokio::test]
async fn thirty_launches_are_two_orders_of_at_most_twenty() {
    let world = steady().await;
    let claims: Vec<_> = (1..=30).map(|number| claim(number, json!([]))).collect();
    let started = world.clock.now();
    let made = join_all(claims.iter().map(|claim| world.provider.create(claim))).await;
    let ids: BTreeSet<String> = made
        .into_iter()
        .map(|made| made.expect("launched").provider_id)
        .collect();
    assert_eq!(ids.len(), 30);
    let sizes: Vec<usize> = orders(&world)
        .iter()
        .map(|order| order.as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 30);
    assert!(sizes.len() <= 2 && sizes.iter().all(|size| *size <= 20), "{sizes:?}");
    assert!(world.clock.since(started).as_secs() < 3 * 50);
    let reads = world.count("GET", "/servers");
    assert!(reads < 60, "one list serves all that wait: {reads} lists");
}

#[tokio::test]
async fn an_order_says_everything_that_the_class_does() {
    let world = World::with(Setting {
        class: Some(json!({
            "sshKeyName": "ops", "securityGroups": [{"securityGroupID": "fw-web"}], "rootDiskSize": 60, "tags": ["team=blue"],
            "publicIP": false, "networkPlans": ["free_bandwidth"],
        })),
        ..Setting::default()
    })
    .await;
    world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect("launched");
    let order = &orders(&world)[0][0];
    assert_eq!(
        (&order["name"], &order["flavor"], &order["type"], &order["quantity"]),
        (
            &json!("default-00001"),
            &json!("nix.4c_8g"),
            &json!("premium"),
            &json!(1)
        )
    );
    assert_eq!(order["rootdisk"], json!({"size": 60, "volume_type": "PREMIUM-SSD1"}));
    assert_eq!(order["firewalls"], json!(["fw-web"]));
    assert_eq!((&order["sshkey"], &order["password"]), (&json!("ops"), &json!(false)));
    assert_eq!(
        (&order["is_created_wan"], &order["network_plan"]),
        (&json!(false), &json!("free_bandwidth"))
    );
    assert_eq!(order["billing_plan"], "on_demand");
    let tags = &order["metadata"];
    assert_eq!(tags["karpenter-managed"], "true");
    assert_eq!(tags["karpenter.bizflycloud.sh/cluster"], "prod");
    assert_eq!(
        tags["karpenter.bizflycloud.sh/nodeclaim-uid"],
        "10000000-0000-4000-8000-000000000001"
    );
    assert_eq!(tags["team"], "blue");
    assert_eq!(tags["bizfly_cloud_service"], "kubernetes_engine");
    assert!(
        order["user_data"]
            .as_str()
            .expect("text")
            .contains("/opt/bizfly-kubernetes-engine/bootstrap.sh")
    );
}

#[tokio::test]
async fn a_flavor_that_is_sold_out_in_one_zone_is_launched_in_the_other() {
    let world = steady().await;
    let sold_out = Fault::SoldOut {
        flavor: Some("nix.4c_8g".to_owned()),
        zone: Some("HN1".to_owned()),
    };
    world.cloud.inject(sold_out, Often::Always);
    let made = world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect("the other zone has it");
    assert_eq!(made.labels[ZONE], "HN2");
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let own = types.iter().find(|own| own.name == "nix.4c_8g").expect("still listed");
    let available =
        |own: &karpenter_cloud::InstanceType| own.offerings.iter().filter(|offering| offering.available).count();
    assert_eq!(available(own), 1, "the refused offering is known to be unavailable");
    world.clock.sleep(Duration::from_secs(181)).await;
    let types = world.provider.instance_types(&pool(json!([]))).await.expect("types");
    let own = types.iter().find(|own| own.name == "nix.4c_8g").expect("still listed");
    assert_eq!(available(own), 2, "after three minutes it is tried again");
}

#[tokio::test]
async fn a_failed_task_is_insufficient_capacity_and_leaves_no_disk() {
    let world = steady().await;
    world
        .cloud
        .inject(Fault::TaskFails("No valid host was found".to_owned()), Often::Always);
    let error = world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect_err("the task fails");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert!(error.to_string().contains("No valid host was found"), "{error}");
    assert_eq!(orders(&world).len(), 2, "in each zone once");
    assert_eq!(world.cloud.leaks(), [], "the root disks of the failed tasks are gone");
    let told = world.events("ServerError");
    assert!(
        !told.is_empty() && told[0].contains("No valid host was found"),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_server_that_goes_into_error_is_deleted_with_its_disk() {
    let world = steady().await;
    world.cloud.inject(Fault::ServerFails, Often::Always);
    let error = world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect_err("ERROR");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert!(error.to_string().contains("went into ERROR"), "{error}");
    world.clock.sleep(Duration::from_secs(15)).await;
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn a_forgotten_task_does_not_lose_the_server() {
    let world = steady().await;
    world.cloud.inject(Fault::TasksForgotten, Often::Always);
    world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect("the list tells");
    assert_eq!(orders(&world).len(), 1);
}

#[tokio::test]
async fn a_token_that_ends_while_a_server_is_ordered_does_not_order_it_twice() {
    let world = steady().await;
    world.provider.list().await.expect("a list");
    let logins = world.count("POST", "/api/token");
    let expired = Fault::Http {
        operation: Operation::CreateServers,
        status: 401,
        body: "token expired".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(expired, Often::Times(1));
    world.provider.create(&claim(1, json!([]))).await.expect("launched");
    let bodies = orders(&world);
    assert_eq!(bodies.len(), 2, "refused, and sent again");
    assert_eq!(bodies[0], bodies[1], "with the same body");
    assert_eq!(world.count("POST", "/api/token") - logins, 1);
    assert_eq!(world.cloud.servers().len(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_not_ordered_again() {
    let world = steady().await;
    world
        .cloud
        .inject(Fault::LoseAnswer(Operation::CreateServers), Often::Times(1));
    world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect("found by its marks");
    assert_eq!(orders(&world).len(), 1);
    assert_eq!(world.cloud.servers().len(), 1);
}

#[tokio::test]
async fn an_order_that_failed_without_effect_is_repeated_by_the_next_launch_only() {
    let world = steady().await;
    let busy = Fault::Http {
        operation: Operation::CreateServers,
        status: 500,
        body: "oops".to_owned(),
        retry_after: None,
    };
    world.cloud.inject(busy, Often::Times(1));
    let started = world.clock.now();
    let error = world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect_err("nothing came of it");
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "APIUnavailable");
    assert!(world.clock.since(started).as_secs() >= 150, "it was looked for");
    assert_eq!(orders(&world).len(), 1);
    world.provider.create(&claim(1, json!([]))).await.expect("launched");
    assert_eq!(orders(&world).len(), 2);
}

#[tokio::test]
async fn a_killed_controller_leaves_one_order_and_one_server() {
    let world = steady().await;
    let own = claim(1, json!([]));
    let first = world.provider.clone();
    let launch = tokio::spawn({
        let own = own.clone();
        async move { first.create(&own).await }
    });
    while orders(&world).is_empty() {
        tokio::task::yield_now().await;
    }
    launch.abort();
    let made = world
        .new_provider()
        .create(&own)
        .await
        .expect("the same server is found");
    assert_eq!(orders(&world).len(), 1);
    assert!(made.provider_id.ends_with(&world.cloud.servers()[0].id));
}

#[tokio::test]
async fn no_disk_is_left_whenever_the_controller_dies_while_deleting() {
    for seconds in [0, 3, 12] {
        let world = steady().await;
        let own = claim(1, json!([]));
        let made = world.provider.create(&own).await.expect("launched");
        let mut launched = own.clone();
        made.apply_to(&mut launched);
        world.provider.delete(&launched).await.expect("begun");
        world.clock.sleep(Duration::from_secs(seconds)).await;
        let restarted = world.new_provider();
        loop {
            match Deletion::settle(restarted.delete(&launched).await).expect("no faults") {
                Deletion::Gone => break,
                Deletion::InProgress => world.clock.sleep(Duration::from_secs(5)).await,
            }
        }
        assert_eq!(world.cloud.leaks(), [], "died after {seconds} s");
    }
}

#[tokio::test]
async fn an_abandoned_launch_leaves_no_disk_whenever_it_is_abandoned() {
    for seconds in [0, 1, 29, 31, 60] {
        let world = steady().await;
        let own = claim(1, json!([]));
        let first = world.provider.clone();
        let launch = tokio::spawn({
            let own = own.clone();
            async move { first.create(&own).await.map(drop) }
        });
        while orders(&world).is_empty() {
            tokio::task::yield_now().await;
        }
        world.clock.sleep(Duration::from_secs(seconds)).await;
        launch.abort();
        let restarted = world.new_provider();
        loop {
            match Deletion::settle(restarted.abandon(&own).await).expect("no faults") {
                Deletion::Gone => break,
                Deletion::InProgress => world.clock.sleep(Duration::from_secs(5)).await,
            }
        }
        assert_eq!(world.cloud.leaks(), Vec::<Leak>::new(), "abandoned after {seconds} s");
    }
}

#[tokio::test]
async fn a_disk_of_a_pod_survives_the_server() {
    let world = steady().await;
    let own = claim(1, json!([]));
    let made = world.provider.create(&own).await.expect("launched");
    let server = made
        .provider_id
        .strip_prefix("bizflycloud://")
        .expect("ours")
        .to_owned();
    let disk = world.cloud.attach_data_disk(&server);
    let mut launched = own.clone();
    made.apply_to(&mut launched);
    while Deletion::settle(world.provider.delete(&launched).await).expect("no faults") == Deletion::InProgress {
        world.clock.sleep(Duration::from_secs(5)).await;
    }
    assert!(world.cloud.volume_exists(&disk));
    assert_eq!(world.cloud.leaks(), []);
    let left = world.client(|_| {}).volume(&disk).await.expect("it is there");
    assert_eq!((left.status.as_str(), left.is_attached()), ("available", false));
    let again = world.provider.delete(&launched).await;
    assert_eq!(Deletion::settle(again).expect("no faults"), Deletion::Gone, "and again");
}

#[tokio::test]
async fn a_foreign_server_of_the_same_name_is_neither_adopted_nor_deleted() {
    let world = steady().await;
    world.cloud.add_foreign_server("default-00001");
    let error = world
        .provider
        .create(&claim(1, json!([])))
        .await
        .expect_err("the name is taken");
    assert_eq!(error.kind(), ErrorKind::Create);
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "NameCollision");
    assert_eq!(world.cloud.servers().len(), 1);
    assert!(!world.cloud.servers()[0].terminating);
    assert_eq!(world.events("NameCollision").len(), 1);
}

#[tokio::test]
async fn an_account_that_must_pay_is_told_so() {
    let world = steady().await;
    world.cloud.inject(Fault::PaymentRequired, Often::Always);
    let error = world.provider.create(&claim(1, json!([]))).await.expect_err("unpaid");
    let LaunchEffect::Retry { reason, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "PaymentRequired");
}

#[tokio::test]
async fn a_changed_cluster_name_does_not_look_like_an_empty_cloud() {
    let world = steady().await;
    let own = claim(1, json!([]));
    let made = world.provider.create(&own).await.expect("launched");
    let object = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "default-00001"},
        "spec": own.spec,
    });
    world.apply(&object);
    let status = json!({"status": {"providerID": made.provider_id}});
    let objects = world.sandbox.objects();
    objects
        .patch_status::<karpenter_api::NodeClaim>("", "default-00001", &status)
        .expect("accepted");
    let mut settings = crate::environment::settings(&world.in_flight);
    settings.cluster_name = "renamed".to_owned();
    let renamed =
        karpenter_bizflycloud::BizflyCloudProvider::new(world.sandbox.client(), world.clock.clone(), settings);
    let error = renamed.list().await.expect_err("the servers are still there");
    assert!(error.to_string().contains("OwnershipTagMismatch"), "{error}");
}

#[tokio::test]
async fn an_externally_resized_server_has_drifted() {
    let world = steady().await;
    let own = claim(1, only("nix.4c_8g"));
    let made = world.provider.create(&own).await.expect("launched");
    let mut launched = own.clone();
    made.apply_to(&mut launched);
    world.cloud.resize(
        made.provider_id.strip_prefix("bizflycloud://").expect("ours"),
        "nix.8c_16g",
    );
    world.clock.sleep(Duration::from_secs(3)).await;
    let drift = world.provider.is_drifted(&launched).await.expect("readable");
    assert_eq!(drift.expect("drifted").0, "FlavorDrift");
    world.apply(&world.config(json!({"region": "HN", "driftDetection": {"autoRemediate": false}})));
    world.clock.sleep(Duration::from_secs(3)).await;
    assert_eq!(world.provider.is_drifted(&launched).await.expect("readable"), None);
}

#[tokio::test]
async fn an_accepted_order_that_shows_nothing_yet_is_not_undone_before_it_shows() {
    for is_restarted in [false, true] {
        let world = steady().await;
        world.cloud.inject(Fault::DisksShowLate, Often::Always);
        let own = world.stored(&claim(1, json!([])));
        let first = world.provider.clone();
        let launch = tokio::spawn({
            let own = own.clone();
            async move { first.create(&own).await.map(drop) }
        });
        // The order is placed, and its task noted on the claim.
        let noted =
            || -> karpenter_api::NodeClaim { world.sandbox.objects().get("", "default-00001").expect("stored") };
        while !noted()
            .metadata
            .annotations
            .is_some_and(|own| own.contains_key("karpenter.bizflycloud.com/task-id"))
        {
            tokio::task::yield_now().await;
        }
        launch.abort();
        let _ = launch.await;
        let own = noted();
        let provider = if is_restarted {
            world.new_provider()
        } else {
            world.provider.clone()
        };
        let mut looks = 0;
        while Deletion::settle(provider.abandon(&own).await).expect("no faults") == Deletion::InProgress {
            looks += 1;
            world.clock.sleep(Duration::from_secs(5)).await;
        }
        assert!(looks > 5, "restarted: {is_restarted}: {looks} looks");
        world.clock.sleep(Duration::from_secs(300)).await;
        assert_eq!(world.cloud.leaks(), [], "restarted: {is_restarted}");
    }
}

#[tokio::test]
async fn after_a_server_in_error_the_claim_is_launched_from_the_next_best_offer() {
    let world = steady().await;
    world.cloud.inject(Fault::ServerFails, Often::Times(1));
    let own = claim(1, only("nix.4c_8g"));
    let made = world.provider.create(&own).await.expect("elsewhere");
    let zones: Vec<Value> = orders(&world)
        .iter()
        .map(|order| order[0]["availability_zone"].clone())
        .collect();
    assert_eq!(zones.len(), 2);
    assert_ne!(zones[0], zones[1]);
    assert_eq!(json!(made.labels[ZONE]), zones[1]);
    assert_eq!(made.claim.expect("marked").uid, own.metadata.uid.expect("a uid"));
    world.clock.sleep(Duration::from_secs(15)).await;
    assert_eq!(world.live().len(), 1, "the failed one is gone");
    let left = world.cloud.leaks();
    assert!(
        left.iter()
            .all(|leak| !format!("{leak:?}").contains("default-00001_rootdisk")),
        "and its disk: {left:?}"
    );
    let deleted = world.metric("instances_deleted_total", &["nix.4c_8g", "failed_launch"]);
    assert_eq!(deleted, 1.0);
    let task = |result: &str| world.metric("task_duration_seconds", &["create_server", result]);
    assert_eq!((task("failure"), task("success")), (1.0, 1.0));
    let created = world.metric(
        "instances_created_total",
        &["nix.4c_8g", &made.labels[ZONE], "on-demand"],
    );
    assert_eq!((created, world.metric("instances_created_total", &[])), (1.0, 1.0));
    assert_eq!(world.metric("unavailable_offerings", &["stock"]), 1.0);
}

#[tokio::test]
async fn where_every_server_fails_the_claim_goes_and_three_minutes_later_it_is_tried_again() {
    let world = steady().await;
    world.cloud.inject(Fault::ServerFails, Often::Always);
    let error = world
        .provider
        .create(&claim(1, only("nix.4c_8g")))
        .await
        .expect_err("in no zone");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert_eq!(orders(&world).len(), 2);
    assert_eq!(world.metric("instances_created_total", &[]), 0.0);
    assert_eq!(world.metric("instance_creation_duration_seconds", &[]), 0.0);
    world.cloud.heal();
    let error = world
        .provider
        .create(&claim(2, only("nix.4c_8g")))
        .await
        .expect_err("nothing is left");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
    assert_eq!(orders(&world).len(), 2, "what failed a moment ago is not ordered");
    world.clock.sleep(Duration::from_secs(181)).await;
    let made = world.provider.create(&claim(3, only("nix.4c_8g"))).await;
    made.expect("tried again after three minutes");
}

#[tokio::test]
async fn refusals_are_counted_by_what_they_mean() {
    let world = steady().await;
    for (number, (fault, class)) in (1..).zip([
        (Fault::VcpuQuota(1), "quota"),
        (
            Fault::SoldOut {
                flavor: None,
                zone: None,
            },
            "stock",
        ),
        (Fault::PaymentRequired, "payment"),
    ]) {
        world.cloud.inject(fault, Often::Always);
        world
            .provider
            .create(&claim(number, json!([])))
            .await
            .expect_err("refused");
        world.cloud.heal();
        let counted = world.metric("api_errors_total", &["create_server", "cloud_server", class]);
        assert!(counted >= 1.0, "{class}: {counted}");
        world.clock.sleep(Duration::from_secs(3700)).await;
        world.provider.reconcile_classes().await;
    }
}

#[tokio::test]
async fn a_task_that_never_ends_does_not_hold_its_claim_for_ever() {
    let world = steady().await;
    world.cloud.inject(Fault::TaskNeverReady, Often::Always);
    world.cloud.inject(Fault::DisksShowLate, Often::Always);
    world
        .cloud
        .inject(Fault::VisibleLate(Duration::from_secs(3600)), Often::Always);
    let mut own = world.stored(&claim(1, only("nix.4c_8g")));
    let error = world.provider.create(&own).await.expect_err("nothing shows");
    assert!(error.to_string().contains("is not visible yet"), "{error}");
    let given_up = world.clock.now();
    own = world.sandbox.objects().get("", "default-00001").expect("stored");
    own.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(given_up));
    let restarted = world.new_provider();
    while Deletion::settle(restarted.abandon(&own).await).expect("no faults") == Deletion::InProgress {
        assert!(world.clock.since(given_up).as_secs() < 1800, "it is waited for still");
        world.clock.sleep(Duration::from_secs(30)).await;
    }
    assert!(world.clock.since(given_up).as_secs() >= 1200, "not given up at once");
    // Should its server come after all, it is garbage.
    world.cloud.heal();
    world.clock.sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(world.live().len(), 1);
    let mut collector = GarbageCollector::new(restarted.caution());
    for _ in 0..3 {
        let collected = restarted.collect_garbage(&mut collector, &KnownClaims::default()).await;
        collected.expect("no faults");
        world.clock.sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(world.cloud.leaks(), []);
}

#[tokio::test]
async fn a_server_is_deleted_where_it_is_although_its_class_names_another_account_by_now() {
    let world = steady().await;
    let own = world.launch(1, only("nix.4c_8g")).await;
    let elsewhere = SimulatedBizfly::start(world.clock.clone(), SimOptions::default())
        .await
        .expect("a free port");
    let mut other = world.config(json!({"region": "HN"}));
    other["metadata"]["name"] = json!("other");
    other["spec"]["cloudConfig"]["apiEndpoint"] = json!(elsewhere.url());
    world.apply(&other);
    let patch = json!({"spec": {"providerConfigRef": {"name": "other"}}});
    let objects = world.sandbox.objects();
    objects
        .patch::<BizflyCloudNodeClass>("", "default", &patch)
        .expect("accepted");
    for provider in [world.provider.clone(), world.new_provider()] {
        world.terminate(&provider, &own).await;
        assert_eq!(world.cloud.leaks(), [], "neither server nor disk is left");
    }
}

#[tokio::test]
async fn a_node_of_a_pool_with_an_old_capacity_type_carries_it() {
    let world = steady().await;
    for (number, (spelling, plan)) in (1..).zip([
        ("saving_plan", "saving_plan"),
        ("subscription", "saving_plan"),
        ("on_demand", "on_demand"),
    ]) {
        let requirements = json!([{"key": CAPACITY_TYPE, "operator": "In", "values": [spelling]}]);
        let own = pool(requirements);
        world.apply(&serde_json::to_value(&own).expect("JSON"));
        // As core writes it: requirements are in today's spelling.
        let asked = json!([{"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]);
        let made = world.provider.create(&claim(number, asked)).await.expect("launched");
        assert_eq!(made.labels[CAPACITY_TYPE], spelling, "pods select by it");
        assert_eq!(made.labels["karpenter.bizflycloud.com/billing-plan"], plan);
    }
}
