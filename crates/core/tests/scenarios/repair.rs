//! Nodes that their provider's policies call broken (disruption.md §17, "Repair and reboot").

use std::time::Duration;

use karpenter_cloud::fake::FakeProvider;
use karpenter_cloud::repair::{ConditionStatus, RepairAction, RepairPolicy};
use karpenter_core::operator::{Build, Operator, OperatorError, Setup};
use karpenter_core::options::Options;
use karpenter_sandbox::Sandbox;
use serde_json::json;

use crate::cluster::Cluster;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn policy(condition: &str, reason_regex: &str, action: RepairAction) -> RepairPolicy {
    RepairPolicy {
        condition_type: condition.to_owned(),
        condition_status: ConditionStatus::True,
        reason_regex: reason_regex.to_owned(),
        toleration: MINUTE,
        termination_grace_period: None,
        priority: 50,
        action,
    }
}

fn policies(cloud: &FakeProvider) {
    let mut forceful = policy("Dead", "^Power", RepairAction::ReplaceNode);
    forceful.termination_grace_period = Some(Duration::ZERO);
    let mut bounded = policy("Sick", ".*", RepairAction::ReplaceNode);
    bounded.termination_grace_period = Some(20 * MINUTE);
    cloud.set_repair_policies(vec![policy("Broken", "", RepairAction::ReplaceNode), forceful, bounded]);
}

fn with_repair(options: &mut Options) {
    options.feature_gates.node_repair = true;
}

/// A cluster that repairs nodes, with a claim `a` and others that are healthy.
async fn cluster_of(others: usize) -> Cluster {
    let cluster = Cluster::start_tuned(policies, with_repair).await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    for nth in 0..others {
        cluster.claim(&format!("other-{nth}"), "expireAfter: Never").await;
    }
    cluster
}

#[tokio::test]
async fn a_broken_node_goes_once_its_replacement_is_up() {
    let cluster = cluster_of(0).await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.cloud.set_boot_delay(3 * MINUTE);
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.seconds(59).await;
    assert!(cluster.claims_but(&["a"]).is_empty(), "still tolerated");
    cluster.seconds(12).await;
    let replacement = cluster.claims_but(&["a"]).remove(0);
    assert!(!cluster.is_leaving("a"), "the replacement is not up yet");
    assert!(cluster.is_tainted("a", "karpenter.sh/disrupted"));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "True/Unhealthy");
    cluster.minutes(3).await;
    assert!(cluster.is_leaving("a"));
    assert_eq!(
        cluster.condition(&replacement.metadata.name.unwrap(), "Initialized"),
        "True/Initialized"
    );
    assert_eq!(cluster.disrupted("unhealthy"), 1.0);
    let decisions = "karpenter_voluntary_disruption_decisions_total{consolidation_type=\"\",decision=\"replace\",reason=\"unhealthy\"}";
    assert_eq!(cluster.metric(decisions), 1.0);
}

#[tokio::test]
async fn a_broken_empty_node_is_deleted_without_replacement() {
    let cluster = cluster_of(0).await;
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.seconds(72).await;
    assert!(cluster.is_leaving("a"));
    assert!(cluster.claims_but(&["a"]).is_empty());
}

#[tokio::test]
async fn do_not_repair_keeps_a_broken_node() {
    let cluster = cluster_of(0).await;
    let name = cluster.node_of("a").metadata.name.unwrap();
    let annotate = |value: &str| {
        let annotations = json!({"metadata": {"annotations": {"karpenter.sh/do-not-repair": value}}});
        cluster
            .objects()
            .patch::<k8s_openapi::api::core::v1::Node>("", &name, &annotations)
            .unwrap();
    };
    annotate("true");
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.events();
    cluster.seconds(59).await;
    assert!(!cluster.events().contains(&"Node/DisruptionBlocked".to_owned()));
    cluster.seconds(30).await;
    assert!(!cluster.is_leaving("a"));
    assert!(cluster.events().contains(&"Node/DisruptionBlocked".to_owned()));
    annotate("false");
    cluster.seconds(12).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_pod_that_must_not_be_disturbed_blocks_until_a_bound_says_otherwise() {
    let cluster = cluster_of(0).await;
    let protected = "annotations: {karpenter.sh/do-not-disrupt: 'true'}";
    cluster.pod_on("a", "web", "1", protected).await;
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.seconds(80).await;
    assert!(cluster.claims_but(&["a"]).is_empty() && !cluster.is_leaving("a"));
    cluster.set_condition("a", "Sick", "True", "Slow").await;
    cluster.seconds(80).await;
    assert_eq!(
        cluster.claims_but(&["a"]).len(),
        1,
        "sized for the pod that will have to leave"
    );
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn the_deadline_is_the_shorter_bound_and_counts_from_the_deletion() {
    let cluster = Cluster::start_tuned(policies, with_repair).await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster
        .claim(
            "a",
            "{expireAfter: Never, terminationGracePeriod: 5m}".trim_matches(['{', '}']),
        )
        .await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.cloud.set_boot_delay(4 * MINUTE);
    cluster.set_condition("a", "Sick", "True", "Slow").await;
    cluster.minutes(1).await;
    for _ in 0..400 {
        if cluster.is_leaving("a") {
            break;
        }
        cluster.seconds(1).await;
    }
    let claim = cluster.get_claim("a").unwrap();
    let deadline = &claim.metadata.annotations.unwrap()["karpenter.sh/nodeclaim-termination-timestamp"];
    let left = deadline
        .parse::<jiff::Timestamp>()
        .unwrap()
        .duration_since(cluster.ctx.clock.now());
    assert!((290..=300).contains(&left.as_secs()), "{left:?}");
    let series = "karpenter_nodeclaims_unhealthy_disrupted_total{capacity_type=\"";
    let text = cluster.ctx.metrics.registry.encode();
    let line = text.lines().find(|line| line.starts_with(series)).unwrap();
    assert!(
        line.contains("condition=\"sick\"") && line.contains("termination_mode=\"eventual\""),
        "{line}"
    );
}

#[tokio::test]
async fn a_specific_policy_that_waits_suppresses_the_fallback_and_an_unknown_reason_takes_it() {
    let cluster = cluster_of(0).await;
    // Reason `Power…` is the specific policy's, so the fallback of `Broken` says nothing about `Dead`.
    cluster.set_condition("a", "Dead", "True", "PowerLoss").await;
    cluster.seconds(59).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(12).await;
    assert!(cluster.is_leaving("a"));
    let other = cluster_of(0).await;
    other.set_condition("a", "Dead", "True", "Unheard").await;
    other.seconds(72).await;
    assert!(
        other.is_leaving("a"),
        "the fallback applies to reasons that nobody knows"
    );
}

#[tokio::test]
async fn too_many_unhealthy_nodes_stop_all_repairs() {
    let cluster = cluster_of(9).await;
    for claim in ["a", "other-0", "other-1"] {
        cluster.set_condition(claim, "Broken", "True", "Disk").await;
    }
    cluster.events();
    cluster.seconds(80).await;
    assert!(!cluster.is_leaving("a"));
    let events = cluster.events();
    for kind in ["Node", "NodeClaim", "NodePool"] {
        assert!(events.contains(&format!("{kind}/NodeRepairBlocked")), "{events:?}");
    }
    // One recovers: two of ten is not too many.
    cluster.set_condition("other-1", "Broken", "False", "").await;
    cluster.seconds(12).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_budget_holds_repairs_back_until_it_is_lifted() {
    let cluster = cluster_of(4).await;
    cluster
        .open_pool(json!({"budgets": [{"nodes": "0", "reasons": ["Unhealthy"]}]}))
        .await;
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.seconds(90).await;
    assert!(!cluster.is_leaving("a"));
    cluster.open_pool(json!({"budgets": [{"nodes": "1"}]})).await;
    cluster.seconds(12).await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_replacement_that_never_comes_up_leaves_the_original_as_it_was() {
    let cluster = cluster_of(0).await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.cloud.set_boot_delay(600 * MINUTE);
    cluster.set_condition("a", "Sick", "True", "Slow").await;
    cluster.seconds(72).await;
    assert_eq!(cluster.claims_but(&["a"]).len(), 1);
    cluster.set_condition("a", "Sick", "False", "").await;
    cluster.minutes(11).await;
    let claim = cluster.get_claim("a").unwrap();
    assert!(!claim.is_terminating() && !cluster.is_tainted("a", "karpenter.sh/disrupted"));
    assert_eq!(cluster.condition("a", "DisruptionReason"), "");
    let stamped = claim.metadata.annotations.unwrap_or_default();
    assert!(!stamped.contains_key("karpenter.sh/nodeclaim-termination-timestamp"));
}

#[tokio::test]
async fn without_the_gate_a_broken_node_is_left_alone() {
    let cluster = Cluster::start_with(policies).await;
    cluster.open_pool(json!({"consolidateAfter": "Never"})).await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.minutes(3).await;
    assert!(!cluster.is_leaving("a"));
}

#[tokio::test]
async fn legacy_repair_deletes_at_once_and_knows_no_budget() {
    let cluster = Cluster::start_tuned(policies, |options| {
        options.feature_gates.node_repair = true;
        options.legacy_node_repair = true;
    })
    .await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}))
        .await;
    cluster
        .claim("a", "expireAfter: Never, terminationGracePeriod: 1h")
        .await;
    cluster
        .pod_on("a", "web", "1", "annotations: {karpenter.sh/do-not-disrupt: 'true'}")
        .await;
    cluster.set_condition("a", "Broken", "True", "Disk").await;
    cluster.seconds(59).await;
    assert!(!cluster.is_leaving("a"));
    cluster.seconds(2).await;
    assert!(cluster.is_leaving("a"));
    assert!(cluster.claims_but(&["a"]).is_empty(), "provisioning comes afterwards");
    let annotations = cluster.get_claim("a").unwrap().metadata.annotations.unwrap();
    let deadline: jiff::Timestamp = annotations["karpenter.sh/nodeclaim-termination-timestamp"]
        .parse()
        .unwrap();
    assert!(deadline <= cluster.ctx.clock.now(), "whatever grace the claim asks for");
    assert_eq!(cluster.disrupted("unhealthy"), 1.0);
    let text = cluster.ctx.metrics.registry.encode();
    let mut lines = text.lines();
    let pods = lines
        .find(|line| line.starts_with("karpenter_pods_disruption_initiated_total{"))
        .unwrap();
    assert!(pods.contains("reason=\"unhealthy\"") && pods.ends_with(" 1"), "{pods}");
}

#[tokio::test]
async fn legacy_repair_stops_when_too_much_is_broken() {
    let cluster = Cluster::start_tuned(policies, |options| {
        options.feature_gates.node_repair = true;
        options.legacy_node_repair = true;
    })
    .await;
    cluster.open_pool(json!({"consolidateAfter": "Never"})).await;
    for claim in ["a", "b", "c"] {
        cluster.claim(claim, "expireAfter: Never").await;
    }
    for claim in ["a", "b"] {
        cluster.set_condition(claim, "Broken", "True", "Disk").await;
    }
    cluster.events();
    cluster.minutes(2).await;
    assert!(!cluster.is_leaving("a") && !cluster.is_leaving("b"));
    let events = cluster.events();
    for kind in ["Node", "NodeClaim", "NodePool"] {
        assert!(events.contains(&format!("{kind}/NodeRepairBlocked")), "{events:?}");
    }
    cluster.set_condition("b", "Broken", "False", "").await;
    cluster.minutes(6).await;
    assert!(cluster.is_leaving("a") && !cluster.is_leaving("b"));
}

#[tokio::test]
async fn the_operator_refuses_to_start_with_policies_that_cannot_be_used() {
    let sandbox = Sandbox::builder().api_server_only().start();
    let cloud = FakeProvider::new(crate::world::clock(&sandbox));
    let start = |policies: Vec<RepairPolicy>, legacy: bool| {
        cloud.set_repair_policies(policies);
        let mut options = Options {
            disable_leader_election: true,
            legacy_node_repair: legacy,
            ..Options::default()
        };
        options.feature_gates.node_repair = true;
        Operator::new(Setup {
            client: sandbox.client(),
            election_client: sandbox.client(),
            clock: crate::world::clock(&sandbox),
            options,
            cloud: std::sync::Arc::new(cloud.clone()),
            build: Build::default(),
        })
    };
    assert!(matches!(
        start(Vec::new(), false),
        Err(OperatorError::RepairPolicies(_))
    ));
    let two = vec![
        policy("A", "", RepairAction::ReplaceNode),
        policy("B", "", RepairAction::ReplaceNode),
    ];
    let error = start(two, false).unwrap_err().to_string();
    assert!(error.contains("exactly one") && error.contains("found 2"), "{error}");
    assert!(
        start(Vec::new(), true).is_ok(),
        "legacy repair is merely off without policies"
    );
}

const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";

fn deadline(cluster: &Cluster) -> Option<jiff::Timestamp> {
    let annotations = cluster.get_claim("a")?.metadata.annotations?;
    annotations.get(DEADLINE)?.parse().ok()
}

/// A broken node whose claim outlives its deletion, with a replacement that takes two minutes.
async fn lingering(condition: &str, reason: &str) -> Cluster {
    let cluster = cluster_of(0).await;
    let finalizers = cluster.get_claim("a").unwrap().metadata.finalizers.unwrap_or_default();
    let finalizers: Vec<String> = finalizers.into_iter().chain(["test.sh/stays".to_owned()]).collect();
    cluster
        .objects()
        .patch::<karpenter_api::NodeClaim>("", "a", &json!({"metadata": {"finalizers": finalizers}}))
        .unwrap();
    cluster.pod_on("a", "web", "1", "").await;
    cluster.cloud.set_boot_delay(2 * MINUTE);
    cluster.set_condition("a", condition, "True", reason).await;
    cluster
}

#[tokio::test]
async fn a_drain_without_any_time_ends_when_the_deletion_was_asked_for() {
    let cluster = lingering("Dead", "PowerLoss").await;
    cluster.minutes(5).await;
    let claim = cluster.get_claim("a").unwrap();
    let deleted = claim.metadata.deletion_timestamp.unwrap().0;
    let off = deadline(&cluster).unwrap().duration_since(deleted).abs();
    assert!(off.as_secs() <= 1, "{off:?}: not when the replacement was ordered");
}

#[tokio::test]
async fn an_earlier_deadline_is_kept() {
    let cluster = lingering("Sick", "Slow").await;
    let early = cluster.ctx.clock.now() + jiff::SignedDuration::from_mins(10);
    let annotation = json!({"metadata": {"annotations": {DEADLINE: early.to_string()}}});
    cluster
        .objects()
        .patch::<karpenter_api::NodeClaim>("", "a", &annotation)
        .unwrap();
    cluster.minutes(5).await;
    assert!(cluster.is_leaving("a"));
    assert_eq!(deadline(&cluster), Some(early));
}

#[tokio::test]
async fn a_node_is_not_deleted_before_its_deadline_is_written() {
    use karpenter_sandbox::faults::Fault;
    let cluster = lingering("Sick", "Slow").await;
    cluster.minutes(2).await;
    assert!(!cluster.is_leaving("a"), "its replacement boots");
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(500).verb("patch").resource("nodeclaims").name("a"));
    cluster.minutes(3).await;
    assert!(!cluster.is_leaving("a"));
    cluster.sandbox.faults().clear();
    cluster.seconds(30).await;
    assert!(cluster.is_leaving("a") && deadline(&cluster).is_some());
}
