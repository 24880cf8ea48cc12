//! When the loop looks again, whom it passes over, and what stops it altogether (disruption.md §17).

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::fake::TypeBuilder;
use karpenter_cloud::provider::DriftReason;
use serde_json::{Value, json};

use crate::cluster::{Cluster, claim_yaml};

const TAINT: &str = "karpenter.sh/disrupted";

fn consolidating() -> Value {
    json!({"consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{"nodes": "100%"}]})
}

fn started(cluster: &Cluster, decision: &str, reason: &str, kind: &str) -> f64 {
    cluster.metric(&format!(
        "karpenter_voluntary_disruption_decisions_total{{consolidation_type=\"{kind}\",decision=\"{decision}\",reason=\"{reason}\"}}"
    ))
}

fn annotate_pool(cluster: &Cluster, annotations: Value) {
    let patch = json!({"metadata": {"annotations": annotations}});
    cluster.objects().patch::<NodePool>("", "default", &patch).unwrap();
}

async fn drift(cluster: &Cluster, name: &str) {
    let id = cluster.get_claim(name).unwrap().status.unwrap().provider_id.unwrap();
    let reason = DriftReason("ImageDrifted".to_owned());
    cluster.cloud.set_drifted(&id, Some(reason));
    let touch = json!({"metadata": {"annotations": {"touched": "now"}}});
    cluster.objects().patch::<NodeClaim>("", name, &touch).unwrap();
    cluster.sandbox.settle().await;
}

// === The marker ===

/// One busy node that cannot be replaced by anything cheaper, looked at already.
async fn looked_at() -> Cluster {
    let only = TypeBuilder::new("fake-2x", 2, 8).capacity_types(&["on-demand"]).build();
    let cluster = Cluster::start_with(move |cloud| cloud.set_types(vec![only])).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "100m", "").await;
    cluster.pod_on("a", "other", "100m", "").await;
    cluster.open_pool(consolidating()).await;
    cluster.seconds(30).await;
    // Prices are nothing that a watch tells.
    let cheap = TypeBuilder::new("fake-1x", 1, 4).capacity_types(&["on-demand"]).build();
    let dear = TypeBuilder::new("fake-2x", 2, 8).capacity_types(&["on-demand"]).build();
    cluster.cloud.set_types(vec![cheap, dear]);
    cluster
}

#[tokio::test]
async fn what_was_found_to_have_no_use_is_not_looked_at_again_for_five_minutes() {
    let cluster = looked_at().await;
    cluster.minutes(4).await;
    assert!(!cluster.is_tainted("a", TAINT), "nothing changed that can be seen");
    cluster.minutes(2).await;
    assert_eq!(started(&cluster, "replace", "underutilized", "single"), 1.0);
}

#[tokio::test]
async fn a_pod_that_goes_makes_the_loop_look_again() {
    let cluster = looked_at().await;
    cluster.finish("other").await;
    cluster.seconds(40).await;
    assert_eq!(started(&cluster, "replace", "underutilized", "single"), 1.0);
}

#[tokio::test]
async fn what_only_a_budget_kept_is_looked_at_every_time() {
    let cluster = Cluster::start().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.open_pool(consolidating()).await;
    // Closed for two minutes of every ten, the first of them now.
    let minute = |text: &str| text[14..16].parse::<u32>().unwrap();
    let now = minute(&cluster.ctx.clock.now().to_string());
    let schedule = format!("{}-59/10 * * * *", now % 10);
    let budgets = json!([{"nodes": "100%"}, {"nodes": "0", "schedule": schedule, "duration": "2m"}]);
    cluster.open_pool(json!({"budgets": budgets})).await;
    cluster.seconds(50).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(125).await;
    assert!(cluster.is_leaving("a"), "the window is over, and nobody told the loop");
}

// === Two methods in one pass ===

#[tokio::test]
async fn when_a_batch_fails_its_second_look_single_nodes_have_their_turn() {
    let cluster = Cluster::start().await;
    for name in ["a", "b", "c"] {
        cluster.claim(name, "expireAfter: Never").await;
        cluster.pod_on(name, &format!("pod-{name}"), "100m", "").await;
    }
    cluster.open_pool(consolidating()).await;
    cluster.seconds(11).await;
    let protected = "annotations: {karpenter.sh/do-not-disrupt: 'true'}";
    cluster.pod_on("a", "late", "100m", protected).await;
    cluster.seconds(35).await;
    assert_eq!(started(&cluster, "delete", "underutilized", "multi"), 0.0);
    assert_eq!(started(&cluster, "delete", "underutilized", "single"), 1.0);
    assert!(!cluster.is_leaving("a"));
    let failed = "karpenter_voluntary_disruption_failed_validations_total{consolidation_type=\"multi\"}";
    assert!(cluster.metric(failed) >= 2.0, "every node of the batch counts");
}

// === What users write ===

#[tokio::test]
async fn only_true_protects_a_node() {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    for (name, value) in [("a", "true"), ("b", "false"), ("c", "1h")] {
        cluster.claim(name, "expireAfter: Never").await;
        let node = cluster.node_of(name).metadata.name.unwrap();
        let annotation = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": value}}});
        cluster.objects().patch::<Node>("", &node, &annotation).unwrap();
        drift(&cluster, name).await;
    }
    cluster.seconds(30).await;
    assert!(!cluster.is_leaving("a"));
    assert!(cluster.is_leaving("b") && cluster.is_leaving("c"));
}

#[tokio::test]
async fn a_protection_that_cannot_be_read_is_reported_and_protects_nothing() {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    for (name, value) in [("one", "abc"), ("two", "0s"), ("three", "-5m")] {
        let annotation = format!("annotations: {{karpenter.sh/do-not-disrupt: '{value}'}}");
        cluster.pod_on("a", name, "100m", &annotation).await;
    }
    cluster.events();
    cluster.seconds(12).await;
    let told = cluster.events();
    let told = told
        .iter()
        .filter(|event| *event == "Pod/InvalidDoNotDisruptAnnotation");
    assert_eq!(told.count(), 3);
    drift(&cluster, "a").await;
    cluster.seconds(12).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}

#[tokio::test]
async fn nodes_of_a_static_pool_are_never_consolidatable() {
    let cluster = Cluster::start().await;
    cluster
        .apply(
            "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: fixed}, spec: {replicas: 1, \
             disruption: {consolidateAfter: 0s}, template: {spec: {requirements: [], \
             nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}}",
        )
        .await;
    cluster.minutes(2).await;
    let claims = cluster.claims_but(&[]);
    assert_eq!(claims.len(), 1);
    assert!(claims[0].is_true("Initialized") && claims[0].condition("Consolidatable").is_none());
}

// === Beyond upstream: pausing ===

async fn annotate_home(cluster: &Cluster, value: Value) {
    let patch = json!({"metadata": {"annotations": {"karpenter.sh/pause-disruption": value}}});
    cluster.objects().patch::<Namespace>("", "default", &patch).unwrap();
    cluster.sandbox.settle().await;
}

#[tokio::test]
async fn one_switch_pauses_every_pool_says_so_and_is_audited() {
    let mut cluster = Cluster::start_tuned(
        |_| (),
        |options| options.leader_election_namespace = "default".to_owned(),
    )
    .await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    cluster.events();
    annotate_home(&cluster, json!("true")).await;
    let paused = cluster.pool();
    let condition = paused.condition("DisruptionPaused").unwrap();
    assert!(condition.is_true());
    assert!(condition.message.contains("Namespace default"), "{}", condition.message);
    assert!(paused.is_ready(), "it still launches nodes");
    drift(&cluster, "a").await;
    cluster.seconds(30).await;
    assert!(cluster.claims_but(&["a"]).is_empty());
    let events = cluster.events();
    let count = |event: &str| events.iter().filter(|published| *published == event).count();
    assert_eq!(count("NodePool/DisruptionPaused"), 1, "{events:?}");
    assert!(count("Node/DisruptionBlocked") > 0, "{events:?}");

    // The switch is an object's, so a restart forgets nothing and tells nothing twice.
    cluster.restart().await;
    cluster.seconds(30).await;
    assert!(cluster.claims_but(&["a"]).is_empty());
    assert!(!cluster.events().contains(&"NodePool/DisruptionPaused".to_owned()));

    annotate_home(&cluster, Value::Null).await;
    cluster.seconds(12).await;
    assert!(cluster.pool().condition("DisruptionPaused").is_none());
    assert!(cluster.events().contains(&"NodePool/DisruptionResumed".to_owned()));
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}

#[tokio::test]
async fn a_pause_drops_what_waits_for_its_second_look() {
    let mut cluster = Cluster::start_tuned(
        |_| (),
        |options| options.leader_election_namespace = "default".to_owned(),
    )
    .await;
    cluster.open_pool(consolidating()).await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.minutes(1).await;
    cluster.open_pool(consolidating()).await;
    // The first look is at once; for how long the node is empty has to be seen anew.
    cluster.restart().await;
    cluster.seconds(5).await;
    annotate_home(&cluster, json!("true")).await;
    cluster.minutes(2).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_tainted("a", TAINT));
}

#[tokio::test]
async fn a_paused_pool_says_so_in_its_status() {
    let cluster = Cluster::start().await;
    annotate_pool(&cluster, json!({"karpenter.sh/pause-disruption": "true"}));
    cluster.sandbox.settle().await;
    assert!(cluster.pool().is_true("DisruptionPaused"));
    annotate_pool(&cluster, json!({"karpenter.sh/pause-disruption": "false"}));
    cluster.sandbox.settle().await;
    assert!(cluster.pool().condition("DisruptionPaused").is_none());
}

// === Beyond upstream: rollouts that do not work ===

/// A drifted node in a pool that gives up after two nodes that did not register.
async fn failing_rollout() -> Cluster {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    annotate_pool(&cluster, json!({"karpenter.sh/drift-halt-after": "2"}));
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1500m", "").await;
    // Nothing that is launched from now on comes up.
    cluster.cloud.set_boot_delay(Duration::from_secs(360_000));
    drift(&cluster, "a").await;
    cluster
}

fn failures(cluster: &Cluster) -> Option<String> {
    let annotations = cluster.pool().metadata.annotations.unwrap_or_default();
    annotations.get("karpenter.sh/failed-registrations").cloned()
}

#[tokio::test]
async fn a_rollout_whose_nodes_do_not_register_halts_until_something_changes() {
    let mut cluster = failing_rollout().await;
    cluster.minutes(14).await;
    assert_eq!(failures(&cluster), None, "the first has a minute left");
    cluster.minutes(2).await;
    assert!(
        failures(&cluster).unwrap().starts_with("1 of "),
        "{:?}",
        failures(&cluster)
    );
    cluster.minutes(24).await;
    let halted = started(&cluster, "replace", "drifted", "");
    assert!(cluster.events().contains(&"NodePool/DriftHalted".to_owned()));
    cluster.minutes(25).await;
    assert_eq!(started(&cluster, "replace", "drifted", ""), halted, "no more are tried");
    assert!(
        halted <= 3.0,
        "{halted}: one may have been under way when the second failed"
    );
    assert!(!cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));

    // What was counted outlives the process.
    cluster.restart().await;
    cluster.minutes(12).await;
    assert!(cluster.claims_but(&["a"]).is_empty());

    // Another NodeClass is another rollout.
    cluster.cloud.set_boot_delay(Duration::ZERO);
    cluster
        .apply(
            "{apiVersion: karpenter.test.sh/v1alpha1, kind: TestNodeClass, metadata: {name: default}, \
             spec: {image: better}, status: {conditions: [{type: Ready, status: 'True', reason: Ready, message: '', \
             lastTransitionTime: '2026-01-01T00:00:00Z'}]}}",
        )
        .await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("a"), "the new nodes come up");
    assert_eq!(failures(&cluster), None, "and what failed before is forgotten");
}

#[tokio::test]
async fn a_node_that_registers_ends_the_count() {
    let cluster = failing_rollout().await;
    cluster.minutes(16).await;
    assert!(failures(&cluster).is_some());
    cluster.cloud.set_boot_delay(Duration::ZERO);
    cluster.claim("fresh", "expireAfter: Never").await;
    cluster.seconds(5).await;
    assert_eq!(failures(&cluster), None);
}

#[tokio::test]
async fn a_pool_that_does_not_ask_for_it_is_not_halted() {
    let cluster = failing_rollout().await;
    annotate_pool(&cluster, json!({"karpenter.sh/drift-halt-after": null}));
    cluster.minutes(35).await;
    assert!(started(&cluster, "replace", "drifted", "") > 3.0);
    assert_eq!(failures(&cluster), None);
    // Nobody noted anything about pods either.
    assert!(cluster.objects().get::<Pod>("default", "web").is_some());
}

// === What users are told ===

#[tokio::test]
async fn a_move_that_a_balanced_pool_refuses_is_counted_and_nobody_is_told() {
    let cluster = Cluster::start().await;
    let on_demand = "requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}, ";
    let claim = claim_yaml("a", &cluster.pool_uid(), "expireAfter: Never").replace("requirements: [", on_demand);
    cluster.apply(&claim).await;
    cluster.pod_on("a", "web", "1500m", "").await;
    cluster.events();
    // As spot the same node costs 30 % less, for all of the pool's pods.
    cluster
        .open_pool(json!({"consolidateAfter": "0s", "consolidationPolicy": "Balanced", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.seconds(12).await;
    let rejected = "{decision=\"rejected\",nodepool=\"default\",policy=\"Balanced\"}";
    assert_eq!(
        cluster.metric(&format!("karpenter_consolidation_moves_total{rejected}")),
        1.0
    );
    assert_eq!(
        cluster.metric(&format!("karpenter_consolidation_score_count{rejected}")),
        1.0
    );
    let events = cluster.events();
    assert!(events.iter().all(|event| !event.contains("onsolidat")), "{events:?}");
    assert!(!cluster.is_tainted("a", TAINT));
}

#[tokio::test]
async fn a_closed_budget_of_a_pool_without_nodes_is_nothing_to_tell() {
    let cluster = Cluster::start().await;
    cluster
        .apply(
            "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: idle}, spec: {limits: {nodes: '0'}, \
             disruption: {consolidateAfter: 0s, budgets: [{nodes: '0'}]}, template: {spec: {requirements: [], \
             nodeClassRef: {group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}}",
        )
        .await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.events();
    drift(&cluster, "a").await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("a"));
    let events = cluster.events();
    assert!(!events.contains(&"NodePool/DisruptionBlocked".to_owned()), "{events:?}");
}
