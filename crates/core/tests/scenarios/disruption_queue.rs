//! Commands on their way: replacements that are late, and what is taken back (disruption.md §17, "Queue").

use std::time::Duration;

use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{Method, Moment};
use karpenter_cloud::provider::DriftReason;
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::cluster::{Cluster, claim_yaml};

const TAINT: &str = "karpenter.sh/disrupted";

async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster
}

/// A node with one pod that drifts, whose replacement takes `boot` to come up.
async fn drifted(boot: Duration) -> Cluster {
    let cluster = cluster().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    cluster.cloud.set_boot_delay(boot);
    drift(&cluster, "a").await;
    cluster
}

async fn drift(cluster: &Cluster, name: &str) {
    let id = cluster.get_claim(name).unwrap().status.unwrap().provider_id.unwrap();
    let reason = DriftReason("ImageDrifted".to_owned());
    cluster.cloud.set_drifted(&id, Some(reason));
    touch(cluster, name);
    cluster.sandbox.settle().await;
}

/// Any change of the claim has its drift looked at.
fn touch(cluster: &Cluster, name: &str) {
    let now = cluster.ctx.clock.now().to_string();
    let touch = json!({"metadata": {"annotations": {"touched": now}}});
    cluster.objects().patch::<NodeClaim>("", name, &touch).unwrap();
}

fn count(events: &[String], event: &str) -> usize {
    events.iter().filter(|published| *published == event).count()
}

#[tokio::test]
async fn while_its_replacement_boots_a_node_stays_tainted_and_users_hear_of_it_once() {
    let cluster = drifted(Duration::from_secs(300)).await;
    cluster.events();
    cluster.seconds(60).await;
    assert!(cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "True/Drifted");
    let events = cluster.events();
    assert_eq!(count(&events, "NodeClaim/DisruptionLaunching"), 1, "{events:?}");
    assert_eq!(count(&events, "NodeClaim/DisruptionWaitingReadiness"), 1, "{events:?}");
    assert_eq!(count(&events, "NodeClaim/DisruptionTerminating"), 0, "{events:?}");
    cluster.seconds(260).await;
    assert!(cluster.is_leaving("a"));
    let events = cluster.events();
    assert_eq!(count(&events, "Node/DisruptionTerminating"), 1, "{events:?}");
    assert_eq!(count(&events, "NodeClaim/DisruptionTerminating"), 1, "{events:?}");
}

/// The scheduler has known for a minute that nothing may land there.
#[tokio::test]
async fn a_node_that_was_tainted_while_its_replacement_booted_goes_with_its_last_pod() {
    let cluster = drifted(Duration::from_secs(60)).await;
    while !cluster.is_leaving("a") {
        cluster.seconds(1).await;
    }
    cluster.finish("web").await;
    cluster.seconds(1).await;
    assert!(cluster.get_claim("a").is_none());
}

#[tokio::test]
async fn a_node_goes_when_both_of_its_replacements_are_up_and_not_before() {
    let cluster = cluster().await;
    let large = claim_yaml("a", &cluster.pool_uid(), "expireAfter: Never").replace("fake-2x", "fake-8x");
    cluster.apply(&large).await;
    for pod in ["one", "two"] {
        cluster.pod_on("a", pod, "1500m", "").await;
    }
    cluster.cloud.set_boot_delay(Duration::from_secs(60));
    // Only the first of the two launches succeeds for now.
    let mut asked = 0;
    cluster.cloud.fail_when(move |method| {
        asked += usize::from(method == Method::Create);
        (method == Method::Create && asked > 1).then(|| (Moment::Before, CloudError::transient("try again")))
    });
    let small = json!({"spec": {"template": {"spec": {"requirements": [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-2x"]}]}}}});
    cluster.objects().patch::<NodePool>("", "default", &small).unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/RequirementsDrifted");
    cluster.seconds(12).await;
    assert_eq!(cluster.cloud.launches(), 2, "the old one and one of its replacements");
    cluster.cloud.stop_failing();
    cluster.cloud.set_boot_delay(Duration::from_secs(300));
    cluster.seconds(120).await;
    let replacements = cluster.claims_but(&["a"]);
    assert_eq!(replacements.len(), 2);
    let up = replacements.iter().filter(|claim| {
        cluster.condition(claim.metadata.name.as_deref().unwrap(), "Initialized") == "True/Initialized"
    });
    assert_eq!(up.count(), 1);
    assert!(!cluster.is_leaving("a") && cluster.is_tainted("a", TAINT));
    cluster.seconds(240).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_taken_back() {
    let cluster = drifted(Duration::from_secs(36_000)).await;
    cluster.seconds(15).await;
    assert!(cluster.is_tainted("a", TAINT));
    // No second try.
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.minutes(9).await;
    assert!(cluster.is_tainted("a", TAINT), "ten minutes are not over");
    cluster.minutes(2).await;
    assert!(!cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "");
    let failures = "karpenter_voluntary_disruption_queue_failures_total{consolidation_type=\"\",decision=\"replace\",reason=\"drifted\"}";
    assert_eq!(cluster.metric(failures), 1.0);
}

#[tokio::test]
async fn a_node_is_not_given_up_before_its_replacement_exists() {
    let cluster = cluster().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(500).verb("create").resource("nodeclaims"));
    drift(&cluster, "a").await;
    let id = cluster.get_claim("a").unwrap().status.unwrap().provider_id.unwrap();
    for _ in 0..30 {
        cluster.seconds(1).await;
        let machine = cluster.ctx.state.machine(&id).unwrap();
        // Provisioning plans for the pods of nodes that are marked: it would launch a second replacement.
        assert!(!machine.is_marked_for_deletion());
    }
    cluster.sandbox.faults().clear();
    cluster.seconds(30).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}

#[tokio::test]
async fn a_launch_that_takes_its_time_does_not_hold_up_the_loop() {
    let cluster = cluster().await;
    for name in ["a", "b"] {
        cluster.claim(name, "expireAfter: Never").await;
        cluster.pod_on(name, &format!("pod-{name}"), "1500m", "").await;
    }
    cluster.cloud.set_latency(Method::Create, Duration::from_secs(120));
    drift(&cluster, "a").await;
    cluster.seconds(15).await;
    assert!(cluster.is_tainted("a", TAINT));
    drift(&cluster, "b").await;
    cluster.seconds(15).await;
    assert!(
        cluster.is_tainted("b", TAINT),
        "although the first replacement has no provider ID yet"
    );
    assert_eq!(cluster.claims_but(&["a", "b"]).len(), 2);
}

#[tokio::test]
async fn a_pass_follows_at_once_when_something_was_done_and_after_ten_seconds_when_not() {
    let cluster = cluster().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    let passes = || {
        cluster.metric(
            "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count{consolidation_type=\"empty\",reason=\"empty\"}",
        )
    };
    cluster.seconds(10).await;
    let before = passes();
    cluster.seconds(60).await;
    assert_eq!(passes() - before, 6.0);
}

// === Why nodes drift ===

#[tokio::test]
async fn a_type_that_is_no_longer_listed_drifts_its_nodes_after_an_hour() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    let types = karpenter_cloud::fake::default_types();
    let without: Vec<_> = types.iter().filter(|kind| kind.name != "fake-2x").cloned().collect();
    cluster.cloud.set_types(without);
    cluster.minutes(59).await;
    touch(&cluster, "a");
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Drifted"), "");
    cluster.minutes(2).await;
    touch(&cluster, "a");
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/InstanceTypeNotFound");
    cluster.cloud.set_types(types);
    cluster.minutes(6).await;
    assert_eq!(cluster.condition("a", "Drifted"), "", "it is back");
}

#[tokio::test]
async fn what_the_pool_says_counts_before_what_the_cloud_says() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    drift(&cluster, "a").await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/ImageDrifted");
    let since = |cluster: &Cluster| {
        use karpenter_api::conditions::StatusConditions;
        cluster
            .get_claim("a")
            .unwrap()
            .condition("Drifted")
            .unwrap()
            .transitioned_at()
    };
    let first = since(&cluster);
    cluster.seconds(30).await;
    let other_team = json!({"spec": {"template": {"spec": {"requirements": [
        {"key": "team", "operator": "In", "values": ["b"]}]}}}});
    cluster.objects().patch::<NodePool>("", "default", &other_team).unwrap();
    cluster.sandbox.settle().await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/RequirementsDrifted");
    assert_eq!(since(&cluster), first, "it has been drifted all the time");
}

#[tokio::test]
async fn a_cloud_that_cannot_say_leaves_the_condition_as_it_is() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    drift(&cluster, "a").await;
    let id = cluster.get_claim("a").unwrap().status.unwrap().provider_id.unwrap();
    cluster.cloud.set_drifted(&id, None);
    cluster
        .cloud
        .fail_when(|method| (method == Method::IsDrifted).then(|| (Moment::Before, CloudError::transient("later"))));
    cluster.minutes(6).await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/ImageDrifted");
    cluster.cloud.stop_failing();
    cluster.minutes(20).await;
    assert_eq!(cluster.condition("a", "Drifted"), "");
}

#[tokio::test]
async fn a_claim_that_has_not_launched_has_not_drifted() {
    let cluster = cluster().await;
    cluster
        .cloud
        .fail_when(|method| (method == Method::Create).then(|| (Moment::Before, CloudError::transient("later"))));
    cluster.claim("a", "expireAfter: Never").await;
    let mut conditions = serde_json::to_value(cluster.get_claim("a").unwrap().status.unwrap().conditions).unwrap();
    conditions.as_array_mut().unwrap().push(
        json!({"type": "Drifted", "status": "True", "reason": "Old", "message": "Old", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
    );
    let status = json!({"status": {"conditions": conditions}});
    cluster.objects().patch_status::<NodeClaim>("", "a", &status).unwrap();
    cluster.seconds(2).await;
    assert_eq!(cluster.condition("a", "Drifted"), "");
}

#[tokio::test]
async fn a_claim_whose_pool_is_not_there_keeps_its_conditions() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    drift(&cluster, "a").await;
    let nowhere = json!({"metadata": {"labels": {"karpenter.sh/nodepool": "nowhere"}}});
    cluster.objects().patch::<NodeClaim>("", "a", &nowhere).unwrap();
    let id = cluster.get_claim("a").unwrap().status.unwrap().provider_id.unwrap();
    cluster.cloud.set_drifted(&id, None);
    cluster.minutes(6).await;
    assert_eq!(cluster.condition("a", "Drifted"), "True/ImageDrifted");
}

#[tokio::test]
async fn a_replacement_that_the_watch_has_not_shown_yet_is_waited_for() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    drift(&cluster, "a").await;
    for verb in ["watch", "list"] {
        let blind = Fault::fail(503)
            .verb(verb)
            .resource("nodeclaims")
            .agent(cluster.agent());
        cluster.sandbox.faults().inject(blind);
    }
    cluster.sandbox.faults().drop_watches();
    cluster.open_pool(json!({"budgets": [{"nodes": "100%"}]})).await;
    cluster.seconds(12).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
    assert!(cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));
    let failures = "karpenter_voluntary_disruption_queue_failures_total{consolidation_type=\"\",decision=\"replace\",reason=\"drifted\"}";
    assert_eq!(cluster.metric(failures), 0.0, "it is not known to be gone");
    cluster.sandbox.faults().clear();
    cluster.minutes(2).await;
    assert!(cluster.is_leaving("a"));
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}
