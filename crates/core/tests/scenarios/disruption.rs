//! The disruption loop, its second look and its queue (disruption.md §17).

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::provider::DriftReason;
use karpenter_sandbox::DeleteOptions;
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::cluster::Cluster;

const TAINT: &str = "karpenter.sh/disrupted";

/// A cluster whose pool lets all its nodes be disrupted, empty or not, at once.
async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster
}

/// Claims with one pod each that fills most of a node.
async fn busy(cluster: &Cluster, names: &[&str]) {
    for name in names {
        cluster.claim(name, "expireAfter: Never").await;
        cluster.pod_on(name, &format!("pod-{name}"), "1500m", "").await;
    }
}

async fn drift(cluster: &Cluster, names: &[&str]) {
    for name in names {
        let id = cluster.get_claim(name).unwrap().status.unwrap().provider_id.unwrap();
        cluster
            .cloud
            .set_drifted(&id, Some(DriftReason("ImageDrifted".to_owned())));
        // Any change of the claim has its drift looked at.
        let touch = json!({"metadata": {"annotations": {"touched": "now"}}});
        cluster.objects().patch::<NodeClaim>("", name, &touch).unwrap();
    }
    cluster.sandbox.settle().await;
}

fn consolidate_empty() -> serde_json::Value {
    json!({"consolidateAfter": "0s", "consolidationPolicy": "WhenEmpty", "budgets": [{"nodes": "100%"}]})
}

fn started(cluster: &Cluster, decision: &str, reason: &str, kind: &str) -> f64 {
    cluster.metric(&format!(
        "karpenter_voluntary_disruption_decisions_total{{consolidation_type=\"{kind}\",decision=\"{decision}\",reason=\"{reason}\"}}"
    ))
}

#[tokio::test]
async fn marks_that_no_command_stands_behind_are_swept() {
    let cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    let node = cluster.node_of("a").metadata.name.unwrap();
    let taints = json!({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}});
    cluster.objects().patch::<Node>("", &node, &taints).unwrap();
    let mut conditions = serde_json::to_value(cluster.get_claim("a").unwrap().status.unwrap().conditions).unwrap();
    conditions.as_array_mut().unwrap().push(
        json!({"type": "DisruptionReason", "status": "True", "reason": "Drifted",
        "message": "Drifted", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
    );
    let status = json!({"status": {"conditions": conditions}});
    cluster.objects().patch_status::<NodeClaim>("", "a", &status).unwrap();
    assert!(cluster.is_tainted("a", TAINT));
    cluster.seconds(11).await;
    assert!(!cluster.is_tainted("a", TAINT));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "");
}

#[tokio::test]
async fn a_conflict_while_sweeping_is_no_error() {
    let cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    let node = cluster.node_of("a").metadata.name.unwrap();
    let taints = json!({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}});
    cluster.objects().patch::<Node>("", &node, &taints).unwrap();
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(409).verb("patch").resource("nodes").times(1));
    cluster.seconds(15).await;
    assert!(!cluster.is_tainted("a", TAINT));
    let errors = "controller_runtime_reconcile_errors_total{controller=\"disruption\"}";
    assert_eq!(cluster.metric(errors), 0.0);
}

#[tokio::test]
async fn a_node_that_termination_owns_keeps_its_taint() {
    let cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    cluster.delete_claim("a").await;
    cluster.seconds(25).await;
    assert!(cluster.is_tainted("a", TAINT));
}

#[tokio::test]
async fn two_drifted_nodes_are_replaced_at_the_same_time_one_command_a_pass() {
    let cluster = cluster().await;
    busy(&cluster, &["a", "b"]).await;
    cluster.cloud.set_boot_delay(Duration::from_secs(60));
    drift(&cluster, &["a", "b"]).await;
    cluster.seconds(12).await;
    assert_eq!(started(&cluster, "replace", "drifted", ""), 2.0);
    assert_eq!(cluster.claims_but(&["a", "b"]).len(), 2);
    assert!(!cluster.is_leaving("a") && !cluster.is_leaving("b"));
    cluster.seconds(75).await;
    assert!(cluster.is_leaving("a") && cluster.is_leaving("b"));
}

#[tokio::test]
async fn an_empty_drifted_node_goes_as_empty() {
    let cluster = Cluster::start().await;
    cluster.open_pool(consolidate_empty()).await;
    cluster.claim("a", "expireAfter: Never").await;
    drift(&cluster, &["a"]).await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("a"));
    assert_eq!(started(&cluster, "delete", "empty", "empty"), 1.0);
    assert_eq!(started(&cluster, "delete", "drifted", ""), 0.0);
}

#[tokio::test]
async fn a_budget_bounds_what_is_under_way_over_all_passes() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "30%"}]})).await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    busy(&cluster, &names).await;
    cluster.cloud.set_boot_delay(Duration::from_secs(300));
    drift(&cluster, &names[..5]).await;
    cluster.seconds(60).await;
    assert_eq!(cluster.claims_but(&names).len(), 3);
    let allowed = "karpenter_nodepools_allowed_disruptions{nodepool=\"default\",reason=\"Drifted\"}";
    assert_eq!(cluster.metric(allowed), 3.0);
}

#[tokio::test]
async fn a_pool_without_any_allowance_says_so() {
    let cluster = cluster().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    busy(&cluster, &["a"]).await;
    drift(&cluster, &["a"]).await;
    cluster.events();
    cluster.seconds(12).await;
    assert!(cluster.events().contains(&"NodePool/DisruptionBlocked".to_owned()));
    assert!(!cluster.is_tainted("a", TAINT));
}

#[tokio::test]
async fn a_pod_may_protect_its_node_for_a_while() {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster
        .pod_on("a", "web", "1", "annotations: {karpenter.sh/do-not-disrupt: 2m}")
        .await;
    let started = json!({"status": {"startTime": cluster.ctx.clock.now().to_string()}});
    cluster
        .objects()
        .patch_status::<k8s_openapi::api::core::v1::Pod>("default", "web", &started)
        .unwrap();
    drift(&cluster, &["a"]).await;
    cluster.events();
    cluster.seconds(60).await;
    assert!(cluster.claims_but(&["a"]).is_empty());
    assert!(cluster.events().contains(&"Pod/DoNotDisruptUntil".to_owned()));
    cluster.seconds(75).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
    assert!(
        cluster
            .events()
            .contains(&"Pod/DoNotDisruptGracePeriodElapsed".to_owned())
    );
}

// === The second look ===

/// Empty nodes at which the controller has just looked for the first time.
async fn looked_at(names: &[&str]) -> Cluster {
    let mut cluster = Cluster::start().await;
    let kept = json!({"budgets": [{"nodes": "0"}]});
    cluster.open_pool(consolidate_empty()).await;
    cluster.open_pool(kept).await;
    for name in names {
        cluster.claim(name, "expireAfter: Never").await;
    }
    cluster.minutes(1).await;
    cluster.open_pool(consolidate_empty()).await;
    // A controller that has just started has not seen for how long they are empty.
    cluster.restart().await;
    cluster.seconds(5).await;
    assert!(names.iter().all(|name| !cluster.is_leaving(name)));
    cluster
}

#[tokio::test]
async fn a_node_that_gets_a_pod_during_the_second_look_stays_and_the_others_go() {
    let cluster = looked_at(&["a", "b", "c"]).await;
    cluster.pod_on("b", "web", "1", "").await;
    cluster.seconds(20).await;
    assert!(cluster.is_leaving("a") && !cluster.is_leaving("b") && cluster.is_leaving("c"));
}

#[tokio::test]
async fn when_every_node_gets_a_pod_nothing_happens_and_each_counts() {
    let cluster = looked_at(&["a", "b"]).await;
    for name in ["a", "b"] {
        cluster.pod_on(name, &format!("web-{name}"), "1", "").await;
    }
    cluster.seconds(20).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_leaving("b"));
    assert!(!cluster.is_tainted("a", TAINT));
    let failed = "karpenter_voluntary_disruption_failed_validations_total{consolidation_type=\"empty\"}";
    assert_eq!(cluster.metric(failed), 2.0);
}

#[tokio::test]
async fn a_budget_that_closes_during_the_second_look_keeps_the_node() {
    let cluster = looked_at(&["a"]).await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.seconds(40).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_tainted("a", TAINT));
    let failed = "karpenter_voluntary_disruption_failed_validations_total{consolidation_type=\"empty\"}";
    assert_eq!(cluster.metric(failed), 1.0);
    cluster.open_pool(consolidate_empty()).await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("a"), "the method did not mark itself done");
}

/// A node of a pool that lets empty nodes go after `consolidate_after`, and the pod that keeps it from being one.
async fn with_a_pod(consolidate_after: &str) -> Cluster {
    let cluster = Cluster::start().await;
    let disruption = json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": consolidate_after, "budgets": [{"nodes": "100%"}]});
    cluster.open_pool(disruption).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.minutes(3).await;
    cluster
}

#[tokio::test]
async fn a_node_that_has_just_emptied_is_looked_at_again_ten_seconds_after_its_last_pod() {
    let cluster = with_a_pod("0s").await;
    cluster.finish("web").await;
    cluster.seconds(9).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_tainted("a", TAINT));
    cluster.seconds(2).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_node_that_has_been_empty_for_long_goes_with_the_next_pass() {
    let cluster = with_a_pod("60s").await;
    cluster.finish("web").await;
    cluster.seconds(59).await;
    assert!(!cluster.is_leaving("a"));
    // Whenever the last pass was: there is one when the node's time is up.
    cluster.seconds(3).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_node_that_empties_while_pods_are_expected_on_it_goes_when_they_no_longer_are() {
    let cluster = with_a_pod("0s").await;
    cluster.ctx.state.nominate([cluster.node_name().as_str()]);
    cluster.finish("web").await;
    cluster.seconds(19).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(3).await;
    assert!(cluster.is_leaving("a"), "it waits for the next of the usual passes");
}

#[tokio::test]
async fn a_node_whose_last_pod_event_was_not_written_is_empty_for_as_long_as_its_pool_asks() {
    let cluster = with_a_pod("20s").await;
    cluster.pod_on("a", "late", "1", "").await;
    // Within the ten seconds in which no second pod event is written.
    cluster.seconds(5).await;
    cluster.finish("web").await;
    cluster.finish("late").await;
    cluster.seconds(19).await;
    assert!(
        !cluster.is_leaving("a"),
        "its claim is consolidatable since four seconds, but it has not been empty for twenty"
    );
    cluster.seconds(3).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_pod_that_comes_and_goes_starts_the_time_of_emptiness_anew() {
    let cluster = with_a_pod("0s").await;
    cluster.finish("web").await;
    cluster.seconds(8).await;
    cluster.pod_on("a", "late", "1", "").await;
    cluster.finish("late").await;
    cluster.seconds(9).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(3).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn what_was_empty_before_a_restart_is_watched_for_ten_seconds_again() {
    let mut cluster = with_a_pod("0s").await;
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.finish("web").await;
    cluster.minutes(5).await;
    cluster.restart().await;
    cluster.open_pool(json!({"budgets": [{"nodes": "100%"}]})).await;
    cluster.seconds(9).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(3).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_restart_neither_begins_a_long_time_of_emptiness_anew_nor_holds_up_anything_else() {
    let mut cluster = with_a_pod("1h").await;
    cluster.claim("b", "expireAfter: Never").await;
    cluster.pod_on("b", "db", "1", "").await;
    cluster
        .objects()
        .delete::<Pod>("default", "web", &DeleteOptions::default())
        .unwrap();
    cluster.seconds(1).await;
    cluster.finish("web").await;
    cluster.minutes(59).await;
    cluster.restart().await;
    drift(&cluster, &["b"]).await;
    cluster.seconds(50).await;
    assert!(!cluster.is_leaving("a"));
    assert!(cluster.is_leaving("b"), "its pod finds room on a");
    cluster.minutes(1).await;
    assert!(
        cluster.is_leaving("a"),
        "its claim knows since when nothing happens on it"
    );
}

#[tokio::test]
async fn a_pod_that_is_gone_without_having_ended_holds_up_nothing_else() {
    let cluster = with_a_pod("1h").await;
    cluster.claim("b", "expireAfter: Never").await;
    cluster.pod_on("b", "db", "1", "").await;
    cluster.minutes(61).await;
    cluster.finish("web").await;
    cluster.seconds(30).await;
    drift(&cluster, &["b"]).await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("b"), "its pod finds room on a");
    assert!(!cluster.is_leaving("a"), "it has been empty for a minute only");
}

#[tokio::test]
async fn an_empty_node_whose_time_has_not_come_leaves_the_budget_to_one_whose_time_has() {
    let cluster = Cluster::start().await;
    cluster
        .open_pool(json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h", "budgets": [{"nodes": "0"}]}))
        .await;
    for name in ["a", "b"] {
        cluster.claim(name, "expireAfter: Never").await;
    }
    let of_stateful_set = "ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: u}]";
    cluster.pod_on("a", "db-0", "1", of_stateful_set).await;
    cluster.seconds(20).await;
    // It takes more than an hour to end, and counts until then. Its end was news when it began.
    let graceful = DeleteOptions::default();
    cluster.objects().delete::<Pod>("default", "db-0", &graceful).unwrap();
    cluster.minutes(62).await;
    cluster.finish("db-0").await;
    assert_eq!(cluster.condition("a", "Consolidatable"), "True/Consolidatable");
    cluster.open_pool(json!({"budgets": [{"nodes": "1"}]})).await;
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("b"), "it has been empty for an hour");
    assert!(!cluster.is_leaving("a"), "it has been empty for half a minute");
    cluster.minutes(60).await;
    assert!(cluster.is_leaving("a"), "nobody took it for settled");
}

#[tokio::test]
async fn nodes_that_emptied_earlier_do_not_wait_for_those_that_emptied_later() {
    let cluster = with_a_pod("0s").await;
    cluster.claim("b", "expireAfter: Never").await;
    cluster.pod_on("b", "db", "1", "").await;
    cluster.finish("web").await;
    cluster.seconds(6).await;
    cluster.finish("db").await;
    cluster.seconds(5).await;
    assert!(cluster.is_leaving("a") && !cluster.is_leaving("b"));
    cluster.seconds(6).await;
    assert!(cluster.is_leaving("b"));
}

#[tokio::test]
async fn a_node_waits_for_the_pods_that_it_was_bought_for_however_busy_the_scheduler_is() {
    let cluster = Cluster::start().await;
    cluster.open_pool(consolidate_empty()).await;
    cluster
        .apply(
            "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: default}, \
              spec: {containers: [{name: c, image: i, resources: {requests: {cpu: '1'}}}]}, \
              status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable}]}}",
        )
        .await;
    cluster.seconds(5).await;
    let bought = cluster.claims_but(&[]);
    assert_eq!(bought.len(), 1);
    for _ in 0..24 {
        cluster.seconds(5).await;
        let name = bought[0].metadata.name.as_deref().unwrap();
        assert!(!cluster.is_leaving(name) && cluster.claims_but(&[name]).is_empty());
    }
}

/// Two nodes that hold one small pod each, in a pool that consolidates.
async fn underused() -> Cluster {
    let cluster = Cluster::start().await;
    let disruption = json!({"consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{"nodes": "100%"}]});
    // Not before both are there.
    cluster.open_pool(json!({"consolidateAfter": "Never"})).await;
    for name in ["a", "b"] {
        cluster.claim(name, "expireAfter: Never").await;
        cluster.pod_on(name, &format!("pod-{name}"), "100m", "").await;
    }
    cluster.open_pool(disruption).await;
    cluster
}

#[tokio::test]
async fn an_underused_node_goes_and_its_pods_fit_elsewhere() {
    let cluster = underused().await;
    cluster.seconds(40).await;
    let leaving = ["a", "b"].iter().filter(|name| cluster.is_leaving(name)).count();
    assert!(leaving > 0);
    assert!(cluster.events().contains(&"Node/DisruptionTerminating".to_owned()));
}

#[tokio::test]
async fn a_protected_pod_that_comes_during_the_second_look_keeps_the_nodes() {
    let cluster = underused().await;
    cluster.seconds(11).await;
    for name in ["a", "b"] {
        let protected = "annotations: {karpenter.sh/do-not-disrupt: 'true'}";
        cluster.pod_on(name, &format!("late-{name}"), "100m", protected).await;
    }
    cluster.seconds(40).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_leaving("b"));
    assert!(!cluster.is_tainted("a", TAINT) && !cluster.is_tainted("b", TAINT));
    assert!(cluster.events().contains(&"Node/ConsolidationRejected".to_owned()));
}

// === The queue ===

#[tokio::test]
async fn a_replacement_that_is_deleted_takes_its_command_back() {
    let cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    cluster.cloud.set_boot_delay(Duration::from_secs(3600));
    drift(&cluster, &["a"]).await;
    cluster.seconds(12).await;
    assert!(cluster.is_tainted("a", TAINT));
    let replacement = cluster.claims_but(&["a"]).remove(0).metadata.name.unwrap();
    // No second try meanwhile.
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.delete_claim(&replacement).await;
    cluster.seconds(30).await;
    assert!(!cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "");
    let failures = "karpenter_voluntary_disruption_queue_failures_total{consolidation_type=\"\",decision=\"replace\",reason=\"drifted\"}";
    assert_eq!(cluster.metric(failures), 1.0);
}

#[tokio::test]
async fn after_a_restart_the_marks_are_gone_and_the_replacement_is_a_node_like_any_other() {
    let mut cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    cluster.cloud.set_boot_delay(Duration::from_secs(30));
    drift(&cluster, &["a"]).await;
    cluster.seconds(12).await;
    let replacement = cluster.claims_but(&["a"]).remove(0).metadata.name.unwrap();
    cluster.open_pool(json!({"budgets": [{"nodes": "0"}]})).await;
    cluster.restart().await;
    cluster.seconds(60).await;
    assert!(!cluster.is_tainted("a", TAINT) && !cluster.is_leaving("a"));
    assert_eq!(cluster.condition(&replacement, "Initialized"), "True/Initialized");
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}

#[tokio::test]
async fn a_node_that_cannot_be_tainted_does_not_keep_the_other_empty_one() {
    let cluster = Cluster::start().await;
    cluster.open_pool(consolidate_empty()).await;
    for name in ["a", "b"] {
        cluster.claim(name, "expireAfter: Never").await;
    }
    let node = cluster.node_of("a").metadata.name.unwrap();
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(500).verb("patch").resource("nodes").name(&node));
    cluster.seconds(28).await;
    assert!(!cluster.is_leaving("a") && cluster.is_leaving("b"));
}

#[tokio::test]
async fn a_replacement_is_not_launched_when_its_candidate_cannot_be_tainted() {
    let cluster = cluster().await;
    busy(&cluster, &["a"]).await;
    let node = cluster.node_of("a").metadata.name.unwrap();
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(500).verb("patch").resource("nodes").name(&node));
    drift(&cluster, &["a"]).await;
    cluster.seconds(20).await;
    assert!(cluster.claims_but(&["a"]).is_empty() && !cluster.is_leaving("a"));
    cluster.sandbox.faults().clear();
    cluster.minutes(1).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}

// === Static pools ===

async fn fixed_pool(cluster: &Cluster, name: &str, extra: &str) {
    cluster
        .apply(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: {name}}}, spec: {{replicas: 2, {extra} \
             disruption: {{consolidateAfter: 0s, budgets: [{{nodes: '100%'}}]}}, \
             template: {{spec: {{requirements: [{{key: node.kubernetes.io/instance-type, operator: In, values: [fake-2x]}}], \
             nodeClassRef: {{group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}}}}}}}"
        ))
        .await;
    cluster.seconds(3).await;
}

fn of_pool(cluster: &Cluster, pool: &str) -> Vec<String> {
    let claims: Vec<NodeClaim> = cluster.objects().list("");
    let ours = claims
        .into_iter()
        .filter(|claim| claim.node_pool() == Some(pool) && !claim.is_terminating());
    ours.map(|claim| claim.metadata.name.unwrap()).collect()
}

async fn change_template(cluster: &Cluster, pool: &str) {
    let labels = json!({"spec": {"template": {"metadata": {"labels": {"generation": "two"}}}}});
    cluster.objects().patch::<NodePool>("", pool, &labels).unwrap();
    cluster.sandbox.settle().await;
}

#[tokio::test]
async fn a_static_pool_whose_template_changed_is_replaced_one_for_one() {
    let cluster = Cluster::start().await;
    fixed_pool(&cluster, "fixed", "").await;
    let before = of_pool(&cluster, "fixed");
    assert_eq!(before.len(), 2);
    change_template(&cluster, "fixed").await;
    cluster.seconds(60).await;
    let after = of_pool(&cluster, "fixed");
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|name| !before.contains(name)), "{before:?} {after:?}");
    assert_eq!(started(&cluster, "replace", "drifted", ""), 2.0);
}

#[tokio::test]
async fn a_static_pool_at_its_limit_lets_nodes_go_first_when_it_may() {
    let blocked = Cluster::start().await;
    fixed_pool(&blocked, "fixed", "limits: {nodes: '2'},").await;
    let before = of_pool(&blocked, "fixed");
    change_template(&blocked, "fixed").await;
    blocked.events();
    blocked.seconds(60).await;
    assert_eq!(of_pool(&blocked, "fixed"), before);
    assert!(blocked.events().contains(&"Node/DisruptionBlocked".to_owned()));

    let first = Cluster::start_tuned(|_| (), |options| options.feature_gates.terminate_first_drift = true).await;
    fixed_pool(&first, "fixed", "limits: {nodes: '2'},").await;
    let before = of_pool(&first, "fixed");
    change_template(&first, "fixed").await;
    first.minutes(3).await;
    let after = of_pool(&first, "fixed");
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|name| !before.contains(name)), "{before:?} {after:?}");
    let series = "karpenter_voluntary_disruption_terminate_first_decisions_total{nodepool=\"fixed\",reason=\"drifted\",terminate_first_reason=\"static-at-limit\"}";
    assert_eq!(first.metric(series), 2.0);
}

#[tokio::test]
async fn a_command_that_cannot_start_does_not_keep_another_pools() {
    let cluster = Cluster::start().await;
    fixed_pool(&cluster, "one", "").await;
    fixed_pool(&cluster, "two", "").await;
    let (one, two) = (of_pool(&cluster, "one"), of_pool(&cluster, "two"));
    for name in &one {
        let node = cluster.node_of(name).metadata.name.unwrap();
        cluster
            .sandbox
            .faults()
            .inject(Fault::fail(500).verb("patch").resource("nodes").name(&node));
    }
    change_template(&cluster, "one").await;
    change_template(&cluster, "two").await;
    cluster.minutes(1).await;
    assert_eq!(of_pool(&cluster, "one"), one);
    assert!(of_pool(&cluster, "two").iter().all(|name| !two.contains(name)));
    let errors = "controller_runtime_reconcile_errors_total{controller=\"disruption\"}";
    assert!(cluster.metric(errors) > 0.0, "the pass says that something failed");
    // A slot that was taken for a command that did not start is free again.
    assert_eq!(cluster.ctx.state.slots.counts("one").reserved, 0);
}

// === Beyond upstream ===

#[tokio::test]
async fn a_paused_pool_keeps_its_nodes() {
    let cluster = cluster().await;
    let pause = |value: serde_json::Value| {
        let annotations = json!({"metadata": {"annotations": {"karpenter.sh/pause-disruption": value}}});
        cluster
            .objects()
            .patch::<NodePool>("", "default", &annotations)
            .unwrap();
    };
    pause(json!("true"));
    busy(&cluster, &["a"]).await;
    drift(&cluster, &["a"]).await;
    cluster.events();
    cluster.seconds(30).await;
    assert!(cluster.claims_but(&["a"]).is_empty());
    assert!(cluster.events().contains(&"Node/DisruptionBlocked".to_owned()));
    pause(serde_json::Value::Null);
    cluster.seconds(12).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
}
