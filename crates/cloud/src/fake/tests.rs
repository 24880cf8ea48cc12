use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::clock::ManualClock;

fn cloud() -> (ManualClock, FakeProvider) {
    let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let provider = FakeProvider::new(manual.clock());
    (manual, provider)
}

fn claim(name: &str) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "requirements": [{"key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
            "resources": {"requests": {"cpu": "1500m"}},
            "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
        },
    }))
    .expect("a NodeClaim")
}

fn pool() -> NodePool {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {
            "requirements": [],
            "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
        }}},
    }))
    .expect("a NodePool")
}

#[tokio::test]
async fn a_lost_answer_leaves_a_machine_that_the_next_create_finds() {
    let (_, cloud) = cloud();
    cloud.fail_next(Method::Create, Moment::After, CloudError::transient("reset"));
    assert!(cloud.create(&claim("a")).await.is_err());
    let instance = cloud.create(&claim("a")).await.expect("launched");
    assert_eq!(instance.labels[labels::INSTANCE_TYPE], "fake-2x");
    assert_eq!(cloud.launches(), 1);
}

#[tokio::test]
async fn a_sold_out_offering_is_found_out_by_launching_and_avoided_for_a_while() {
    let (clock, cloud) = cloud();
    let before = cloud.instance_types(&pool()).await.expect("types");
    for zone in ZONES {
        cloud.sell_out("fake-2x", zone, "on-demand");
    }
    let instance = cloud.create(&claim("a")).await.expect("launched");
    assert_eq!(instance.labels[labels::INSTANCE_TYPE], "fake-4x");
    let after = cloud.instance_types(&pool()).await.expect("types");
    assert!(!Arc::ptr_eq(&before, &after), "the marks show at once");
    let fallen = after
        .iter()
        .flat_map(|own| &own.offerings)
        .filter(|offering| !offering.available)
        .count();
    assert_eq!(fallen, 3);
    clock.advance(Duration::from_secs(180));
    let later = cloud.instance_types(&pool()).await.expect("types");
    assert!(
        later
            .iter()
            .flat_map(|own| &own.offerings)
            .all(|offering| offering.available)
    );
}

#[tokio::test]
async fn types_are_the_same_arc_until_something_changes() {
    let (_, cloud) = cloud();
    let first = cloud.instance_types(&pool()).await.expect("types");
    let second = cloud.instance_types(&pool()).await.expect("types");
    assert!(Arc::ptr_eq(&first, &second));
}

#[tokio::test]
async fn a_machine_boots_once_after_its_delay_unless_it_is_terminated_first() {
    let (clock, cloud) = cloud();
    let booted = Arc::new(AtomicUsize::new(0));
    let seen = booted.clone();
    cloud.on_boot(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    cloud.set_boot_delay(Duration::from_secs(30));
    cloud.create(&claim("a")).await.expect("launched");
    let mut doomed = claim("b");
    cloud.create(&doomed).await.expect("launched").apply_to(&mut doomed);
    tokio::task::yield_now().await;
    cloud.delete(&doomed).await.expect("accepted");
    clock.advance(Duration::from_secs(30));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(booted.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn termination_is_in_progress_until_its_time_has_passed() {
    let (clock, cloud) = cloud();
    cloud.set_termination_delay(Duration::from_secs(10));
    let mut claim = claim("a");
    cloud.create(&claim).await.expect("launched").apply_to(&mut claim);
    assert_eq!(cloud.delete(&claim).await.expect("accepted"), Deletion::InProgress);
    assert!(cloud.list().await.expect("a list")[0].is_terminating());
    clock.advance(Duration::from_secs(10));
    assert_eq!(cloud.delete(&claim).await.expect("gone"), Deletion::Gone);
    assert!(
        cloud
            .get(claim.provider_id().expect("launched"))
            .await
            .expect_err("gone")
            .is_not_found()
    );
}

#[tokio::test]
async fn a_class_that_is_not_ready_launches_nothing() {
    let (_, cloud) = cloud();
    cloud.set_readiness(Readiness::NotReady {
        reason: "NoImage".into(),
        message: "no image".into(),
    });
    let error = cloud.create(&claim("a")).await.expect_err("not ready");
    assert_eq!(error.to_string(), "node class default is not ready: no image");
    assert!(cloud.machines().is_empty());
}

#[tokio::test]
async fn an_offered_machine_is_adopted_by_the_claim_that_names_it() {
    let (_, cloud) = cloud();
    let instance = Instance {
        provider_id: "fake:///spare".into(),
        ..Instance::default()
    };
    cloud.add_machine(Machine {
        name: "spare".into(),
        instance: instance.clone(),
        boot_id: "0".into(),
        reboots: BTreeSet::new(),
        gone_at: None,
    });
    cloud.offer_for_adoption(Adoption {
        node_pool: "default".into(),
        instance,
    });
    assert_eq!(cloud.adoptable().await.expect("a list").len(), 1);
    let mut adopting = claim("a");
    adopting.metadata.annotations = Some([(ADOPT_ANNOTATION.to_owned(), "fake:///spare".to_owned())].into());
    let bound = cloud.create(&adopting).await.expect("adopted");
    assert_eq!(
        bound.claim,
        Some(ClaimMark {
            name: "a".into(),
            uid: "uid-a".into()
        })
    );
    assert_eq!(cloud.launches(), 0);
    assert!(cloud.adoptable().await.expect("a list").is_empty());
}

#[tokio::test]
async fn calls_take_their_latency_on_the_clock() {
    let (clock, cloud) = cloud();
    cloud.set_latency(Method::List, Duration::from_secs(5));
    let list = tokio::spawn({
        let cloud = cloud.clone();
        async move { cloud.list().await.map(|list| list.len()) }
    });
    tokio::task::yield_now().await;
    assert!(!list.is_finished());
    clock.advance(Duration::from_secs(5));
    assert_eq!(list.await.expect("no panic").expect("a list"), 0);
}
