//! What is particular to the KWOK provider.

use std::{sync::Arc, time::Duration};

use karpenter_api::{NodeClaim, conditions::StatusConditions};
use karpenter_cloud::{CloudProvider, Deletion, LaunchEffect, RebootOperation, conformance::Environment};
use karpenter_kwok::{KwokNodeClass, KwokProvider};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::environment::KwokEnvironment;

fn claim(name: &str) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c-2x-amd64-linux", "c-1x-amd64-linux", "no-such-type"]},
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
            ],
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        },
    }))
    .expect("a NodeClaim")
}

async fn launch(provider: &KwokProvider, claim: &NodeClaim) -> NodeClaim {
    let mut claim = claim.clone();
    provider.create(&claim).await.expect("launched").apply_to(&mut claim);
    claim
}

/// Starts the provider's own tasks; they end with the token.
fn run_tasks(provider: &KwokProvider) -> CancellationToken {
    let stop = CancellationToken::new();
    for task in provider.background_tasks() {
        tokio::spawn(task.run(stop.clone()));
    }
    stop
}

#[tokio::test]
async fn the_cheapest_of_the_listed_types_is_launched() {
    let environment = KwokEnvironment::start();
    let launched = launch(&environment.new_provider(), &claim("a")).await;
    let labels = launched.metadata.labels.expect("labels");
    assert_eq!(labels["node.kubernetes.io/instance-type"], "c-1x-amd64-linux");
    assert_eq!(labels["karpenter.sh/capacity-type"], "spot");
}

#[tokio::test]
async fn claims_spread_over_equally_cheap_zones() {
    let environment = KwokEnvironment::start();
    let provider = environment.new_provider();
    let mut zones = std::collections::BTreeSet::new();
    for number in 0..20 {
        let launched = launch(&provider, &claim(&format!("c{number}"))).await;
        zones.insert(launched.metadata.labels.expect("labels")["topology.kubernetes.io/zone"].clone());
    }
    assert_eq!(zones.len(), 4, "{zones:?}");
}

#[tokio::test]
async fn a_delayed_node_is_launched_at_once_and_joins_later() {
    let environment = KwokEnvironment::with_class(json!({"nodeRegistrationDelay": "30s"}));
    let provider = environment.new_provider();
    let claim = launch(&provider, &claim("a")).await;
    let id = claim.provider_id().expect("launched");
    assert_eq!(provider.get(id).await.expect("it exists").provider_id, id);
    assert_eq!(provider.list().await.expect("a list").len(), 1);
    environment.pass(Duration::from_secs(29)).await;
    assert!(environment.nodes().is_empty());
    environment.pass(Duration::from_secs(1)).await;
    assert_eq!(environment.machines().await, [id]);
    assert_eq!(provider.list().await.expect("a list").len(), 1);
}

#[tokio::test]
async fn a_node_that_is_deleted_during_its_delay_never_joins() {
    let environment = KwokEnvironment::with_class(json!({"nodeRegistrationDelay": "30s"}));
    let provider = environment.new_provider();
    let claim = launch(&provider, &claim("a")).await;
    assert_eq!(provider.delete(&claim).await.expect("deleted"), Deletion::Gone);
    environment.pass(Duration::from_secs(60)).await;
    assert!(environment.nodes().is_empty());
}

#[tokio::test]
async fn a_process_that_starts_during_the_delay_brings_the_node_to_its_end() {
    let environment = KwokEnvironment::with_class(json!({"nodeRegistrationDelay": "30s"}));
    let crashed = environment.new_provider();
    let mut stored: NodeClaim = claim("a");
    stored = environment.sandbox.objects().create(&stored).expect("accepted");
    let launched = launch(&crashed, &stored).await;
    let labels = json!({"metadata": {"labels": launched.metadata.labels}});
    environment
        .sandbox
        .objects()
        .patch::<NodeClaim>("", "a", &labels)
        .expect("accepted");
    let status = json!({"status": {"providerID": launched.provider_id()}});
    environment
        .sandbox
        .objects()
        .patch_status::<NodeClaim>("", "a", &status)
        .expect("accepted");
    environment.pass(Duration::from_secs(10)).await;
    drop(crashed);

    let restarted = environment.new_provider();
    let stop = run_tasks(&restarted);
    environment.pass(Duration::from_secs(19)).await;
    assert!(
        environment.nodes().is_empty(),
        "the delay counts from the claim's creation"
    );
    environment.pass(Duration::from_secs(1)).await;
    assert_eq!(
        environment.machines().await,
        [launched.provider_id().expect("launched")]
    );
    stop.cancel();
}

#[tokio::test]
async fn a_launched_node_is_found_again_after_its_class_went_out_of_service() {
    let environment = KwokEnvironment::start();
    let provider = environment.new_provider();
    let first = launch(&provider, &claim("a")).await;
    assert_eq!(
        environment.unready_node_class().await,
        karpenter_cloud::conformance::Support::Yes
    );
    let again = launch(&environment.new_provider(), &claim("a")).await;
    assert_eq!(first.provider_id(), again.provider_id());
}

#[tokio::test]
async fn a_launch_takes_two_requests() {
    let environment = KwokEnvironment::start();
    let requests = environment.sandbox.requests();
    requests.clear();
    launch(&environment.new_provider(), &claim("a")).await;
    assert_eq!(requests.matching(|_| true).len(), 2);
}

#[tokio::test]
async fn a_missing_class_deletes_the_claim() {
    let environment = KwokEnvironment::start();
    let mut claim = claim("a");
    claim.spec.node_class_ref.name = "missing".to_owned();
    let error = environment
        .new_provider()
        .create(&claim)
        .await
        .expect_err("no such class");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForCapacity);
}

#[tokio::test]
async fn a_deleting_node_is_not_found() {
    let environment = KwokEnvironment::start();
    let provider = environment.new_provider();
    let claim = launch(&provider, &claim("a")).await;
    let id = claim.provider_id().expect("launched");
    let name = id.strip_prefix("kwok://").expect("ours");
    let finalizer = json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}});
    environment
        .sandbox
        .objects()
        .patch::<k8s_openapi::api::core::v1::Node>("", name, &finalizer)
        .expect("accepted");
    assert_eq!(provider.delete(&claim).await.expect("deleted"), Deletion::Gone);
    assert_eq!(environment.nodes().len(), 1, "core's finalizer holds the node");
    assert!(provider.get(id).await.expect_err("deleting").is_not_found());
    assert!(provider.list().await.expect("a list")[0].is_terminating());
}

#[tokio::test]
async fn the_same_reboot_twice_changes_the_boot_id_once() {
    let environment = KwokEnvironment::start();
    let provider = environment.new_provider();
    let claim = launch(&provider, &claim("a")).await;
    let boot_id = || {
        let info = environment.nodes()[0]
            .status
            .clone()
            .and_then(|status| status.node_info);
        info.expect("node info").boot_id
    };
    let before = boot_id();
    let operation = RebootOperation("uid-a-1-x".to_owned());
    provider.reboot(&claim, &operation).await.expect("accepted");
    assert_eq!(boot_id(), "kwok-uid-a-1-x");
    assert_ne!(before, boot_id());
    provider.reboot(&claim, &operation).await.expect("accepted");
    assert_eq!(boot_id(), "kwok-uid-a-1-x");
}

#[tokio::test]
async fn a_class_gets_a_verdict_and_keeps_one_that_was_written() {
    let environment = KwokEnvironment::start();
    let ready = |environment: &KwokEnvironment| {
        let class: KwokNodeClass = environment.sandbox.objects().get("", "default").expect("it exists");
        class
            .conditions()
            .iter()
            .find(|own| own.type_ == "Ready")
            .map(|own| own.is_true())
    };
    let provider = Arc::new(environment.new_provider());
    let stop = run_tasks(&provider);
    environment.sandbox.settle().await;
    assert_eq!(ready(&environment), Some(true));
    assert_eq!(
        environment.unready_node_class().await,
        karpenter_cloud::conformance::Support::Yes
    );
    environment.pass(Duration::from_secs(60)).await;
    assert_eq!(ready(&environment), Some(false), "a written verdict stays");
    stop.cancel();
}
