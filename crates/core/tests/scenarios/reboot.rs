//! Nodes that are restarted in place (disruption.md §17, "Repair and reboot").

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{FakeProvider, Method, Moment};
use karpenter_cloud::repair::RepairAction;
use serde_json::json;

use crate::cluster::Cluster;
use crate::repair::policy;

const BOUND: &str = "karpenter.sh/reboot-termination-grace-period";
const PRE_BOOT_ID: &str = "karpenter.sh/reboot-pre-boot-id";
const TAINT: &str = "karpenter.sh/rebooting";

fn policies(cloud: &FakeProvider) {
    let mut hung = policy("Hung", ".*", RepairAction::RebootNode);
    hung.termination_grace_period = Some(Duration::from_secs(60));
    let mut at_once = policy("Frozen", ".*", RepairAction::RebootNode);
    at_once.termination_grace_period = Some(Duration::ZERO);
    let unbounded = policy("Stale", ".*", RepairAction::RebootNode);
    let fallback = policy("Broken", "", RepairAction::ReplaceNode);
    cloud.set_repair_policies(vec![fallback, hung, at_once, unbounded]);
}

/// A cluster with a claim `a` whose node has booted once.
async fn cluster() -> Cluster {
    let cluster = Cluster::start_tuned(policies, |options| options.feature_gates.node_repair = true).await;
    cluster
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster.claim("a", "expireAfter: Never").await;
    boot(&cluster, "boot-1").await;
    cluster
}

/// The kubelet of `a` reports another boot.
async fn boot(cluster: &Cluster, id: &str) {
    let name = cluster.node_of("a").metadata.name.unwrap();
    let info = json!({"bootID": id, "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux",
        "architecture": "amd64"});
    cluster
        .objects()
        .patch_status::<Node>("", &name, &json!({"status": {"nodeInfo": info}}))
        .unwrap();
    cluster.sandbox.settle().await;
}

/// As [`boot`], before anybody else gets to do anything.
fn reboot_now(cluster: &Cluster, id: &str) {
    let name = cluster.node_of("a").metadata.name.unwrap();
    let status = json!({"status": {"nodeInfo": {"bootID": id}}});
    cluster.objects().patch_status::<Node>("", &name, &status).unwrap();
}

/// Until the claim says so, for at most a minute.
async fn until_rebooting(cluster: &Cluster) {
    for _ in 0..60 {
        if !cluster.condition("a", "Rebooting").is_empty() {
            return;
        }
        cluster.seconds(1).await;
    }
    panic!("no reboot was asked for");
}

/// The condition appears, and its toleration passes.
async fn fall_ill(cluster: &Cluster, condition: &str) {
    cluster.set_condition("a", condition, "True", "Any").await;
    cluster.seconds(60 + 20).await;
}

async fn recover(cluster: &Cluster, condition: &str) {
    cluster.set_condition("a", condition, "False", "").await;
}

fn annotation(cluster: &Cluster, key: &str) -> Option<String> {
    cluster.get_claim("a")?.metadata.annotations?.get(key).cloned()
}

#[tokio::test]
async fn a_reboot_drains_restarts_and_comes_back() {
    let cluster = cluster().await;
    fall_ill(&cluster, "Hung").await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
    assert_eq!(cluster.condition("a", "DisruptionReason"), "True/Unhealthy");
    assert_eq!(cluster.condition("a", "Initialized"), "Unknown/Rebooting");
    assert!(cluster.is_tainted("a", TAINT) && !cluster.is_tainted("a", "karpenter.sh/disrupted"));
    assert!(
        cluster.claims_but(&["a"]).is_empty(),
        "it comes back, so nothing replaces it"
    );
    assert_eq!(cluster.cloud.machines()[0].reboots.len(), 1);
    assert_eq!(annotation(&cluster, BOUND).as_deref(), Some("1m0s"));
    assert_eq!(annotation(&cluster, PRE_BOOT_ID).as_deref(), Some("boot-1"));
    let decided = "karpenter_voluntary_disruption_decisions_total{consolidation_type=\"\",decision=\"reboot\",reason=\"unhealthy\"}";
    assert_eq!(cluster.metric(decided), 1.0);

    recover(&cluster, "Hung").await;
    cluster.minutes(1).await;
    assert_eq!(
        cluster.condition("a", "Rebooting"),
        "True/RebootIssued",
        "the boot is still the old one"
    );
    boot(&cluster, "boot-2").await;
    cluster.seconds(30).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
    assert_eq!(cluster.condition("a", "DisruptionReason"), "", "the sweep clears it");
    assert!(!cluster.is_tainted("a", TAINT));
    assert_eq!(annotation(&cluster, PRE_BOOT_ID), None);
    assert_eq!(
        cluster.metric("karpenter_nodes_reboots_total{result=\"succeeded\"}"),
        1.0
    );
}

#[tokio::test]
async fn without_a_policys_bound_the_claims_grace_period_bounds_the_drain_or_nothing_does() {
    let cluster = cluster().await;
    fall_ill(&cluster, "Stale").await;
    assert_eq!(annotation(&cluster, BOUND), None);

    let bounded = Cluster::start_tuned(policies, |options| options.feature_gates.node_repair = true).await;
    bounded
        .open_pool(json!({"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}))
        .await;
    bounded
        .claim("a", "expireAfter: Never, terminationGracePeriod: 7m")
        .await;
    fall_ill(&bounded, "Stale").await;
    assert_eq!(annotation(&bounded, BOUND).as_deref(), Some("7m0s"));
}

#[tokio::test]
async fn pods_that_refuse_to_leave_ride_along_after_the_bound() {
    let cluster = cluster().await;
    cluster
        .pod_on("a", "web", "1", "annotations: {karpenter.sh/do-not-disrupt: 'true'}")
        .await;
    cluster.set_condition("a", "Hung", "True", "Any").await;
    cluster.seconds(60 + 30).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootRequested");
    cluster.minutes(1).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
    assert!(cluster.get_pod("web").is_some() && !cluster.is_terminating("web"));
}

#[tokio::test]
async fn a_bound_of_zero_restarts_at_once_and_leaves_the_pods() {
    let cluster = cluster().await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.set_condition("a", "Frozen", "True", "Any").await;
    cluster.minutes(1).await;
    until_rebooting(&cluster).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
    assert!(!cluster.is_terminating("web"));
}

#[tokio::test]
async fn a_node_without_pods_is_restarted_after_five_seconds_and_not_before() {
    let cluster = cluster().await;
    cluster.set_condition("a", "Hung", "True", "Any").await;
    cluster.minutes(1).await;
    until_rebooting(&cluster).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootRequested");
    cluster.seconds(3).await;
    assert_eq!(cluster.cloud.calls(Method::Reboot), 0, "a pod may still be on its way");
    cluster.seconds(3).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
}

#[tokio::test]
async fn without_a_bound_a_pod_that_refuses_to_leave_is_waited_for() {
    let cluster = cluster().await;
    cluster.set_condition("a", "Stale", "True", "Any").await;
    cluster.minutes(1).await;
    until_rebooting(&cluster).await;
    cluster
        .pod_on("a", "web", "1", "annotations: {karpenter.sh/do-not-disrupt: 'true'}")
        .await;
    cluster.minutes(10).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootRequested");
    assert_eq!(cluster.cloud.calls(Method::Reboot), 0);
    assert!(!cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_new_boot_admits_pods_and_only_a_ready_node_ends_the_reboot() {
    let cluster = cluster().await;
    fall_ill(&cluster, "Hung").await;
    cluster.set_ready("False").await;
    boot(&cluster, "boot-2").await;
    cluster.seconds(30).await;
    assert!(!cluster.is_tainted("a", TAINT));
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
    assert_eq!(annotation(&cluster, PRE_BOOT_ID).as_deref(), Some("boot-1"));
    cluster.set_ready("True").await;
    cluster.seconds(20).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
}

#[tokio::test]
async fn a_failed_reboot_tightens_a_deadline_and_never_loosens_it() {
    const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    let check = async |condition: &str, known: Option<&str>, expected: Option<&str>| {
        let cluster = cluster().await;
        cluster
            .cloud
            .fail_when(|method| (method == Method::Reboot).then(|| (Moment::Before, CloudError::RebootNotImplemented)));
        if let Some(known) = known {
            let annotation = json!({"metadata": {"annotations": {DEADLINE: known}}});
            cluster.objects().patch::<NodeClaim>("", "a", &annotation).unwrap();
        }
        // Keeps the claim after its deletion.
        let finalizers = json!({"metadata": {"finalizers": ["karpenter.sh/termination", "test.sh/stays"]}});
        cluster.objects().patch::<NodeClaim>("", "a", &finalizers).unwrap();
        fall_ill(&cluster, condition).await;
        assert!(cluster.is_leaving("a"), "{condition}");
        assert_eq!(annotation(&cluster, DEADLINE).as_deref(), expected, "{condition}");
    };
    check("Hung", Some("2026-01-01T00:01:30Z"), Some("2026-01-01T00:01:30Z")).await;
    check("Stale", None, None).await;
}

#[tokio::test]
async fn an_evictable_pod_leaves_before_the_restart() {
    let cluster = cluster().await;
    cluster.pod_on("a", "web", "1", "").await;
    cluster.set_condition("a", "Hung", "True", "Any").await;
    cluster.seconds(60 + 12).await;
    assert!(cluster.is_terminating("web"));
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootRequested");
    cluster.finish("web").await;
    cluster.seconds(7).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
}

#[tokio::test]
async fn a_cloud_that_fails_for_a_while_is_asked_again() {
    let cluster = cluster().await;
    for _ in 0..3 {
        cluster
            .cloud
            .fail_next(Method::Reboot, Moment::Before, CloudError::transient("502"));
    }
    fall_ill(&cluster, "Hung").await;
    cluster.seconds(10).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
    assert_eq!(cluster.cloud.machines()[0].reboots.len(), 1);
}

#[tokio::test]
async fn a_cloud_that_keeps_failing_or_refuses_gets_the_node_replaced() {
    let refusing = cluster().await;
    refusing
        .cloud
        .fail_when(|method| (method == Method::Reboot).then(|| (Moment::Before, CloudError::RebootNotImplemented)));
    fall_ill(&refusing, "Hung").await;
    assert!(refusing.is_leaving("a"));
    assert!(refusing.events().contains(&"NodeClaim/RebootFailed".to_owned()));
    assert_eq!(
        refusing.metric("karpenter_nodes_reboots_total{result=\"provider_error\"}"),
        1.0
    );

    let failing = cluster().await;
    failing
        .cloud
        .fail_when(|method| (method == Method::Reboot).then(|| (Moment::Before, CloudError::transient("502"))));
    fall_ill(&failing, "Hung").await;
    failing.minutes(4).await;
    assert!(!failing.is_leaving("a"));
    failing.minutes(3).await;
    assert!(failing.is_leaving("a"));
}

#[tokio::test]
async fn a_machine_that_does_not_come_back_is_replaced_within_the_bound() {
    let cluster = cluster().await;
    fall_ill(&cluster, "Hung").await;
    cluster.minutes(19).await;
    assert!(!cluster.is_leaving("a"));
    // A pod that would keep the drain waiting, so that the claim can be looked at.
    cluster.pod_on("a", "web", "1", "").await;
    cluster.minutes(2).await;
    assert!(cluster.is_leaving("a"));
    let deadline = annotation(&cluster, "karpenter.sh/nodeclaim-termination-timestamp").unwrap();
    let left = deadline
        .parse::<jiff::Timestamp>()
        .unwrap()
        .duration_since(cluster.ctx.clock.now());
    assert!(left.as_secs() <= 60, "{left:?}");
    assert_eq!(
        cluster.metric("karpenter_nodes_reboots_total{result=\"recovery_timeout\"}"),
        1.0
    );
}

#[tokio::test]
async fn a_request_that_cannot_be_read_fails_without_touching_the_node() {
    let cluster = cluster().await;
    let request = json!({"metadata": {"annotations": {BOUND: "soon"}}});
    cluster.objects().patch::<NodeClaim>("", "a", &request).unwrap();
    let now = cluster.ctx.clock.now().to_string();
    let mut conditions = serde_json::to_value(cluster.get_claim("a").unwrap().status.unwrap().conditions).unwrap();
    conditions.as_array_mut().unwrap().push(
        json!({"type": "Rebooting", "status": "True", "reason": "RebootRequested", "message": "", "lastTransitionTime": now}),
    );
    cluster
        .objects()
        .patch_status::<NodeClaim>("", "a", &json!({"status": {"conditions": conditions}}))
        .unwrap();
    cluster.seconds(5).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootFailed");
    assert!(!cluster.is_leaving("a") && !cluster.is_tainted("a", TAINT));
    assert_eq!(cluster.cloud.machines()[0].reboots.len(), 0);
    assert_eq!(
        cluster.metric("karpenter_nodes_reboots_total{result=\"invalid_request\"}"),
        1.0
    );
}

#[tokio::test]
async fn the_third_time_within_a_day_the_node_is_replaced() {
    let cluster = cluster().await;
    for boot_id in ["boot-2", "boot-3"] {
        fall_ill(&cluster, "Hung").await;
        assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
        recover(&cluster, "Hung").await;
        boot(&cluster, boot_id).await;
        cluster.minutes(1).await;
        assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    }
    assert_eq!(cluster.cloud.machines()[0].reboots.len(), 2, "one operation each");
    fall_ill(&cluster, "Hung").await;
    assert!(cluster.is_leaving("a"));
}

#[tokio::test]
async fn a_condition_that_outlives_the_reboot_is_tolerated_as_long_again() {
    let cluster = cluster().await;
    fall_ill(&cluster, "Hung").await;
    boot(&cluster, "boot-2").await;
    cluster.seconds(30).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    cluster.seconds(25).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    cluster.minutes(1).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootIssued");
}

#[tokio::test]
async fn a_restart_of_the_controller_finishes_the_reboot_without_a_second_one() {
    let mut cluster = cluster().await;
    cluster.cloud.fail_next(
        Method::Reboot,
        Moment::After,
        CloudError::transient("the answer was lost"),
    );
    cluster.set_condition("a", "Frozen", "True", "Any").await;
    cluster.seconds(60 + 11).await;
    cluster.restart().await;
    boot(&cluster, "boot-2").await;
    cluster.seconds(30).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    assert_eq!(cluster.cloud.machines()[0].reboots.len(), 1);
}

#[tokio::test]
async fn a_machine_that_has_rebooted_meanwhile_is_not_asked_to_again() {
    let mut cluster = cluster().await;
    cluster.cloud.fail_when(|method| {
        (method == Method::Reboot).then(|| (Moment::After, CloudError::transient("the answer was lost")))
    });
    cluster.set_condition("a", "Frozen", "True", "Any").await;
    cluster.seconds(60 + 11).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "True/RebootRequested");
    let asked = cluster.cloud.calls(Method::Reboot);
    assert!(asked >= 1);
    cluster.cloud.stop_failing();
    reboot_now(&cluster, "boot-2");
    cluster.restart().await;
    cluster.set_condition("a", "Frozen", "False", "").await;
    cluster.seconds(30).await;
    assert_eq!(cluster.condition("a", "Rebooting"), "False/RebootSucceeded");
    assert_eq!(cluster.cloud.calls(Method::Reboot), asked);
}
