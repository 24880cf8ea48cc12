//! The right machines go, by name, and what is not gone is not said to be.

use http::Method;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudError, CloudProvider, Deletion, LaunchEffect};
use karpenter_ovhcloud::{
    names,
    sim::{Delays, Effect, HttpFault, KUBE_ID, World},
};
use serde_json::{Value, json};

use crate::environment::{Cluster, HOUR, MINUTE, SECOND, only};
use crate::launching::{ZONE, sizes};

async fn two(cluster: &Cluster) -> (NodeClaim, NodeClaim) {
    let old = cluster.launch(&cluster.claim("old", only("b3-8", ZONE))).await;
    let new = cluster.launch(&cluster.claim("new", only("b3-8", ZONE))).await;
    (old, new)
}

fn removals(cluster: &Cluster) -> Vec<Value> {
    let puts = cluster.sim(|sim| sim.requests_of(&Method::PUT, "/nodepool/"));
    let named = puts.into_iter().filter(|put| put.body.get("nodesToRemove").is_some());
    named.map(|put| put.body).collect()
}

#[tokio::test]
async fn the_chosen_node_goes_and_the_newest_stays() {
    let cluster = Cluster::start().await;
    let (old, new) = two(&cluster).await;
    cluster.terminate(&old).await;
    let node = &old.metadata.annotations.expect("annotations")[names::NODE_ID];
    assert_eq!(
        removals(&cluster),
        [json!({"desiredNodes": 1, "nodesToRemove": [node]})]
    );
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [new.provider_id().expect("launched")]
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn two_at_once_empty_the_pool_which_stays_for_a_while() {
    let cluster = Cluster::start().await;
    let (old, new) = two(&cluster).await;
    tokio::join!(cluster.terminate(&old), cluster.terminate(&new));
    assert_eq!(sizes(&cluster), [0], "emptied, not deleted");
    let named: usize = removals(&cluster)
        .iter()
        .map(|body| body["nodesToRemove"].as_array().expect("names").len())
        .sum();
    assert_eq!(named, 2, "each is named once");
    cluster.pass(MINUTE * 12).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty()));
}

#[tokio::test]
async fn a_removal_beside_a_launch_takes_nothing_from_it() {
    let delays = Delays {
        schedule: SECOND * 10,
        vm: SECOND * 20,
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let second = cluster.claim("b", only("b3-8", ZONE));
    let provider = cluster.provider();
    let (launched, ()) = tokio::join!(provider.create(&second), cluster.terminate(&first));
    let launched = launched.expect("it still gets its machine").provider_id;
    cluster.pass(MINUTE * 5).await;
    assert_eq!(cluster.sim(|sim| sim.machines()), [launched]);
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_takes_no_second_node() {
    let cluster = Cluster::start().await;
    let (doomed, kept) = two(&cluster).await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::new(Method::PUT, "/nodepool/", Effect::Reset).once());
    });
    let lost = cluster.provider().delete(&doomed).await;
    lost.expect_err("the answer is lost");
    cluster.terminate(&doomed).await;
    cluster.pass(HOUR).await;
    assert_eq!(removals(&cluster).len(), 1, "the second attempt sends nothing");
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_right_that_is_missing_fails_the_deletion_and_is_named() {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.retain(|(method, _)| method != "PUT");
    let cluster = Cluster::of(World {
        rules,
        ..World::default()
    })
    .await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    let error = cluster.provider().delete(&claim).await.expect_err("not granted");
    assert!(!matches!(error, CloudError::NotFound { .. }), "{error}");
    let right = "PUT /cloud/project/{serviceName}/kube/{kubeId}/nodepool/{id}";
    assert!(error.to_string().contains(right), "{error}");
    assert_eq!(sizes(&cluster), [1], "nothing is lowered");
    assert_eq!(cluster.sim(|sim| sim.machines().len()), 1);
    let told = || cluster.condition("CredentialsReady").1 == "MissingRights";
    assert!(cluster.until(told).await, "{:?}", cluster.condition("CredentialsReady"));
    assert!(cluster.condition("CredentialsReady").2.contains(right));
    // Granted after all: the next removal shows it, once it is asked for again.
    cluster.sim(|sim| sim.world.rules = World::minimal_rules(KUBE_ID));
    cluster.pass(MINUTE).await;
    cluster.terminate(&claim).await;
    cluster.until_ready().await;
}

#[tokio::test]
async fn a_launch_that_is_not_granted_is_a_condition_of_the_class_and_tried_again_seldom() {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.retain(|(method, _)| method != "POST");
    let cluster = Cluster::of(World {
        rules,
        ..World::default()
    })
    .await;
    let claim = cluster.claim("a", only("b3-8", ZONE));
    let error = cluster.provider().create(&claim).await.expect_err("not granted");
    let LaunchEffect::Retry { reason, message, .. } = error.launch_effect() else {
        panic!("{error}")
    };
    assert_eq!(reason, "MissingRights");
    assert!(
        message.contains("POST /cloud/project/{serviceName}/kube/{kubeId}/nodepool"),
        "{message}"
    );
    let told = || cluster.condition("CredentialsReady").1 == "MissingRights";
    assert!(cluster.until(told).await, "{:?}", cluster.condition("CredentialsReady"));
    for _ in 0..60 {
        cluster
            .provider()
            .create(&claim)
            .await
            .expect_err("the class is not ready");
        cluster.pass(MINUTE).await;
    }
    let posts = cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").len());
    assert!((2..=62).contains(&posts), "{posts} in an hour, one a minute at most");
}

#[tokio::test]
async fn a_list_whose_second_page_fails_is_an_error_and_nothing_is_gone() {
    let cluster = Cluster::of(World {
        rules: World::minimal_rules(KUBE_ID),
        page: 2,
        ..World::default()
    })
    .await;
    let (_, last) = two(&cluster).await;
    cluster.launch(&cluster.claim("third", only("b3-8", ZONE))).await;
    assert_eq!(cluster.provider().list().await.expect("both pages").len(), 3);
    cluster.pass(SECOND * 15).await;
    let broken = HttpFault::new(Method::GET, "/nodes", Effect::Answer(500, String::new())).after(1);
    cluster.sim(|sim| sim.faults.push(broken));
    let provider = cluster.provider();
    let id = last.provider_id().expect("launched");
    for error in [
        provider.list().await.expect_err("half a list is none"),
        provider.get(id).await.expect_err("it may be on the other page"),
        provider.delete(&last).await.expect_err("it may be on the other page"),
    ] {
        assert!(!matches!(error, CloudError::NotFound { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_read_that_fails_is_an_error_and_never_gone() {
    let cluster = Cluster::of(World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    })
    .await;
    let (claim, other) = two(&cluster).await;
    let pool = cluster.sim(|sim| sim.pools.keys().next().expect("one").clone());
    // One that is not read from memory.
    cluster.pass(MINUTE).await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::server_error(Method::GET, &format!("/nodepool/{pool}")));
    });
    let provider = cluster.provider();
    let id = other.provider_id().expect("launched");
    for error in [
        provider.delete(&claim).await.expect_err("unreadable"),
        provider.get(id).await.expect_err("unreadable"),
        provider.list().await.expect_err("unreadable"),
        provider.is_drifted(&claim).await.expect_err("unreadable"),
    ] {
        assert!(!matches!(error, CloudError::NotFound { .. }), "{error}");
    }
    cluster.sim(|sim| sim.faults.clear());
    assert_eq!(provider.list().await.expect("readable again").len(), 2);
}

#[tokio::test]
async fn a_list_in_which_one_pool_cannot_be_read_is_an_error() {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.push(("GET".into(), "/auth/currentCredential".into()));
    let cluster = Cluster::of(World {
        rules,
        ..World::default()
    })
    .await;
    cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    cluster.launch(&cluster.claim("b", only("b3-16", ZONE))).await;
    let pool = cluster.sim(|sim| sim.pools.keys().next_back().expect("two").clone());
    let broken = format!("/nodepool/{pool}/nodes");
    cluster.sim(|sim| sim.faults.push(HttpFault::server_error(Method::GET, &broken)));
    cluster.provider().list().await.expect_err("half a list is none");
}

#[tokio::test]
async fn provider_ids_that_are_not_ours_are_not_found_without_asking() {
    let cluster = Cluster::start().await;
    let before = cluster.sim(|sim| sim.requests.len());
    for id in ["openstack:///", "aws:///eu-west-1a/i-1", "openstack://x", ""] {
        let error = cluster.provider().get(id).await.expect_err("not found");
        assert!(matches!(error, CloudError::NotFound { .. }), "{id}: {error}");
    }
    assert_eq!(cluster.sim(|sim| sim.requests.len()), before);
}

/// A Node of a machine, ready or not.
fn node(cluster: &Cluster, claim: &NodeClaim, ready: &str) {
    let name = claim.metadata.annotations.clone().expect("annotations")[names::NODE_NAME].clone();
    let node: Node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"providerID": claim.provider_id()},
    }))
    .expect("a Node");
    cluster.sandbox.objects().create(&node).expect("accepted");
    let status = json!({"status": {"conditions": [{
        "type": "Ready", "status": ready, "reason": "x", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let written = cluster.sandbox.objects().patch_status::<Node>("", &name, &status);
    written.expect("accepted");
}

#[tokio::test]
async fn a_machine_on_its_way_out_whose_node_is_down_is_let_go_after_two_minutes() {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", ZONE))).await;
    node(&cluster, &claim, "False");
    cluster.sim(|sim| sim.never_gone = true);
    let provider = cluster.provider();
    assert_eq!(provider.delete(&claim).await.expect("accepted"), Deletion::InProgress);
    cluster.pass(MINUTE + SECOND * 30).await;
    assert_eq!(provider.delete(&claim).await.expect("asked"), Deletion::InProgress);
    cluster.pass(MINUTE + SECOND * 30).await;
    assert_eq!(provider.delete(&claim).await.expect("asked"), Deletion::Gone);
}

#[tokio::test]
async fn a_deletion_that_is_stuck_is_told_of_and_a_machine_that_comes_back_goes_again() {
    let cluster = Cluster::start().await;
    let (claim, kept) = two(&cluster).await;
    node(&cluster, &claim, "True");
    cluster.sim(|sim| sim.never_gone = true);
    let provider = cluster.provider();
    assert_eq!(provider.delete(&claim).await.expect("accepted"), Deletion::InProgress);
    cluster.pass(MINUTE * 14).await;
    assert_eq!(provider.delete(&claim).await.expect("asked"), Deletion::InProgress);
    cluster.pass(MINUTE * 2).await;
    assert_eq!(provider.delete(&claim).await.expect("asked"), Deletion::Gone);
    assert!(
        cluster.was_told("old", "NodeDeletionStuck"),
        "{:?}",
        cluster.events("old")
    );
    cluster.forget("old");
    let machine = claim.metadata.annotations.expect("annotations")[names::NODE_ID].clone();
    cluster.sim(|sim| {
        sim.never_gone = false;
        sim.resurrect(&machine);
    });
    cluster.pass(MINUTE * 3).await;
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert_eq!(sizes(&cluster), [1]);
    assert!(cluster.sim(|sim| sim.unnamed_removals.is_empty()));
}

#[tokio::test]
async fn a_drain_that_takes_ten_minutes_is_waited_for_and_takes_no_second_victim() {
    let delays = Delays {
        delete: MINUTE * 10,
        ..Delays::default()
    };
    let cluster = Cluster::of(World {
        delays,
        ..World::default()
    })
    .await;
    let (claim, kept) = two(&cluster).await;
    node(&cluster, &claim, "True");
    let asked_at = cluster.clock.now();
    cluster.terminate(&claim).await;
    let took = cluster.clock.since(asked_at).as_secs();
    assert!((600..=620).contains(&took), "{took} s");
    assert_eq!(removals(&cluster).len(), 1);
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
}

/// An API that does not know `nodesToRemove`, and a key that may delete machines.
fn nameless() -> World {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.push(("GET".into(), "/auth/currentCredential".into()));
    rules.push(("DELETE".into(), format!("{}/node/*", kube())));
    World {
        rules,
        removes_by_name: false,
        ..World::default()
    }
}

fn kube() -> String {
    let project = karpenter_ovhcloud::sim::SERVICE_NAME;
    format!("/cloud/project/{project}/kube/{KUBE_ID}")
}

#[tokio::test]
async fn an_api_that_cannot_be_told_names_is_asked_machine_by_machine_if_the_key_may() {
    let cluster = Cluster::of(nameless()).await;
    let (doomed, kept) = two(&cluster).await;
    cluster.terminate(&doomed).await;
    cluster.pass(MINUTE * 5).await;
    let node = doomed.metadata.annotations.expect("annotations")[names::NODE_ID].clone();
    let deletes = cluster.sim(|sim| sim.requests_of(&Method::DELETE, "/node/"));
    assert_eq!(deletes.len(), 1);
    assert_eq!(deletes[0].path, format!("/1.0{}/node/{node}", kube()));
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn what_was_deleted_before_a_refusal_is_not_deleted_again() {
    let cluster = Cluster::of(nameless()).await;
    let (first, second) = two(&cluster).await;
    let kept = cluster.launch(&cluster.claim("kept", only("b3-8", ZONE))).await;
    let refusal = r#"{"class": "Client::Forbidden", "message": "not now"}"#;
    cluster.sim(|sim| {
        let fault = HttpFault::new(Method::DELETE, "/node/", Effect::Answer(403, refusal.into()));
        sim.faults.push(fault.after(1).once());
    });
    let provider = cluster.provider();
    let (one, other) = futures::join!(provider.delete(&first), provider.delete(&second));
    assert_eq!(one.expect("accepted"), Deletion::InProgress);
    other.expect_err("refused");
    assert_eq!(sizes(&cluster), [2], "one place went with its machine");
    cluster.terminate(&second).await;
    cluster.terminate(&first).await;
    cluster.pass(MINUTE * 5).await;
    let deletes = cluster.sim(|sim| sim.requests_of(&Method::DELETE, "/node/"));
    let asked: Vec<&str> = deletes.iter().filter_map(|own| own.path.rsplit('/').next()).collect();
    let node = |claim: &NodeClaim| claim.metadata.annotations.as_ref().expect("annotations")[names::NODE_ID].clone();
    assert_eq!(asked, [node(&first), node(&second), node(&second)]);
    assert_eq!(
        cluster.sim(|sim| sim.machines()),
        [kept.provider_id().expect("launched")]
    );
    assert_eq!(sizes(&cluster), [1]);
}

#[tokio::test]
async fn an_api_that_cannot_be_told_names_takes_nothing_from_a_key_that_may_not() {
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        removes_by_name: false,
        ..World::default()
    };
    let cluster = Cluster::of(world).await;
    let (doomed, _) = two(&cluster).await;
    cluster.provider().delete(&doomed).await.expect_err("refused");
    assert_eq!(sizes(&cluster), [2], "never a decrement without a name");
}
