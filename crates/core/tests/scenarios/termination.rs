//! The end of nodes: taint, drain, volumes, machine, finalizers.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::NodeClaim;
use karpenter_cloud::CloudError;
use karpenter_cloud::fake::{Method, Moment};
use karpenter_sandbox::DeleteOptions;
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::cluster::Cluster;

/// A registered node with no pods.
async fn with_node(spec: &str) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.claim("a", spec).await;
    assert_eq!(cluster.condition("a", "Initialized"), "True/Initialized");
    cluster
}

const DAEMON: &str = "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]";
const CRITICAL: &str = "priorityClassName: system-node-critical";
const PROTECTED: &str = "annotations: {karpenter.sh/do-not-disrupt: 'true'}";

#[tokio::test]
async fn deleting_a_node_deletes_its_claim_and_marks_it() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    cluster.delete_node().await;
    assert!(cluster.get_claim("a").unwrap().metadata.deletion_timestamp.is_some());
    let node = cluster.node();
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    assert_eq!(node.metadata.labels.unwrap()[label], "karpenter");
    let taints: Vec<String> = node
        .spec
        .unwrap()
        .taints
        .unwrap()
        .iter()
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect();
    assert!(
        taints.contains(&"karpenter.sh/disrupted:NoSchedule".to_owned()),
        "{taints:?}"
    );
    assert_eq!(cluster.condition("a", "Drained"), "Unknown/Draining");
}

#[tokio::test]
async fn pods_leave_tier_by_tier_and_tolerating_ones_stay() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    cluster.pod("agent", DAEMON, "").await;
    cluster.pod("dns", "", CRITICAL).await;
    cluster.pod("cni", DAEMON, CRITICAL).await;
    cluster.pod("stays", "", "tolerations: [{operator: Exists}]").await;
    cluster.delete_node().await;
    for (leaving, waiting) in [("web", "agent"), ("agent", "dns"), ("dns", "cni"), ("cni", "stays")] {
        cluster.seconds(2).await;
        assert!(cluster.is_terminating(leaving), "{leaving}");
        assert!(!cluster.is_terminating(waiting), "{waiting}");
        cluster.finish(leaving).await;
    }
    cluster.seconds(10).await;
    assert!(cluster.get_claim("a").is_none());
    assert!(cluster.cloud.machines().is_empty());
    assert_eq!(
        cluster.metric("karpenter_pods_eviction_requests_total{code=\"200\"}"),
        4.0
    );
    assert_eq!(
        cluster.metric("karpenter_pods_drained_total{reason=\"Forceful Termination\"}"),
        4.0
    );
}

async fn budget(cluster: &Cluster, name: &str, app: &str, allowed: u32) {
    cluster
        .apply(&format!(
            "{{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {{name: {name}, namespace: default}}, \
             spec: {{minAvailable: 1, selector: {{matchLabels: {{app: {app}}}}}}}, status: {{disruptionsAllowed: {allowed}, \
             currentHealthy: 1, desiredHealthy: 1, expectedPods: 1, observedGeneration: 1}}}}"
        ))
        .await;
}

#[tokio::test]
async fn a_budget_holds_a_pod_until_it_is_relaxed() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    budget(&cluster, "web", "web", 0).await;
    cluster.delete_node().await;
    cluster.minutes(2).await;
    assert!(!cluster.is_terminating("web"));
    assert!(cluster.events().contains(&"Node/FailedDraining".to_owned()));
    assert!(cluster.metric("karpenter_pods_eviction_requests_total{code=\"429\"}") > 10.0);
    let relaxed = json!({"status": {"disruptionsAllowed": 1}});
    cluster
        .objects()
        .patch_status::<PodDisruptionBudget>("default", "web", &relaxed)
        .unwrap();
    cluster.seconds(15).await;
    assert!(cluster.is_terminating("web"));
}

/// A claim that was deleted before anybody could write that its machine is there, on whose Node a pod runs that a budget holds.
async fn deleted_before_its_launch_was_written(cluster: &Cluster) {
    let unwritten = Fault::fail(409).verb("patch").resource("nodeclaims/status");
    cluster.sandbox.faults().inject(unwritten);
    cluster.claim("a", "").await;
    cluster.pod("web", "", "").await;
    budget(cluster, "web", "web", 0).await;
    let status = cluster.get_claim("a").unwrap().status.unwrap_or_default();
    assert_eq!(status.provider_id, None);
    cluster.delete_claim("a").await;
}

#[tokio::test]
async fn a_claim_whose_launch_could_not_be_written_is_drained_too() {
    let cluster = Cluster::start().await;
    deleted_before_its_launch_was_written(&cluster).await;
    cluster.sandbox.faults().clear();
    cluster.minutes(2).await;
    assert_eq!(cluster.cloud.machines().len(), 1);
    assert_eq!(cluster.condition("a", "Drained"), "Unknown/Draining");
    cluster.finish("web").await;
    cluster.seconds(15).await;
    assert!(cluster.get_claim("a").is_none() && cluster.cloud.machines().is_empty());
}

#[tokio::test]
async fn a_claim_whose_launch_could_not_be_written_is_drained_after_a_restart_too() {
    let mut cluster = Cluster::start().await;
    deleted_before_its_launch_was_written(&cluster).await;
    cluster.restart().await;
    cluster.sandbox.faults().clear();
    cluster.minutes(2).await;
    assert_eq!(cluster.cloud.machines().len(), 1);
    assert_eq!(cluster.condition("a", "Drained"), "Unknown/Draining");
}

#[tokio::test]
async fn two_budgets_on_one_pod_hold_it_too() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    budget(&cluster, "one", "web", 1).await;
    budget(&cluster, "two", "web", 1).await;
    cluster.delete_node().await;
    cluster.minutes(1).await;
    assert!(!cluster.is_terminating("web"));
    cluster
        .objects()
        .delete::<PodDisruptionBudget>("default", "two", &DeleteOptions::default())
        .unwrap();
    cluster.seconds(15).await;
    assert!(cluster.is_terminating("web"));
}

#[tokio::test]
async fn a_protected_pod_without_a_deadline_is_waited_for() {
    let cluster = with_node("").await;
    cluster.pod("db", PROTECTED, "").await;
    cluster.delete_node().await;
    cluster.minutes(5).await;
    assert!(!cluster.is_terminating("db"));
    assert!(cluster.get_claim("a").is_some());
}

#[tokio::test]
async fn a_timed_protection_ends() {
    let cluster = with_node("").await;
    cluster
        .pod("db", "annotations: {karpenter.sh/do-not-disrupt: 5m}", "")
        .await;
    cluster
        .pod("typo", "annotations: {karpenter.sh/do-not-disrupt: abc}", "")
        .await;
    cluster.delete_node().await;
    cluster.seconds(2).await;
    assert!(cluster.is_terminating("typo") && !cluster.is_terminating("db"));
    assert!(
        cluster
            .events()
            .contains(&"Pod/InvalidDoNotDisruptAnnotation".to_owned())
    );
    cluster.minutes(6).await;
    assert!(cluster.is_terminating("db"));
}

#[tokio::test]
async fn a_protected_pod_is_deleted_in_time_for_its_own_grace_period() {
    let cluster = with_node("terminationGracePeriod: 300s").await;
    cluster.pod("db", PROTECTED, "terminationGracePeriodSeconds: 60").await;
    cluster
        .pod("slow", PROTECTED, "terminationGracePeriodSeconds: 300")
        .await;
    cluster.delete_node().await;
    cluster.seconds(90).await;
    assert!(!cluster.is_terminating("db"));
    assert!(cluster.is_terminating("slow"));
    cluster.seconds(155).await;
    assert!(cluster.is_terminating("db"));
    let grace = cluster.get_pod("db").unwrap().metadata.deletion_grace_period_seconds;
    assert!((50..60).contains(&grace.unwrap()), "{grace:?}");
}

#[tokio::test]
async fn a_critical_pod_is_forced_while_a_budget_still_holds_a_plain_one() {
    let cluster = with_node("terminationGracePeriod: 300s").await;
    cluster.pod("web", "", "terminationGracePeriodSeconds: 10").await;
    budget(&cluster, "web", "web", 0).await;
    cluster
        .pod("dns", "", &format!("{CRITICAL}, terminationGracePeriodSeconds: 120"))
        .await;
    cluster.delete_node().await;
    cluster.seconds(185).await;
    assert!(cluster.is_terminating("dns"));
    assert!(!cluster.is_terminating("web"));
    cluster.seconds(110).await;
    assert!(cluster.is_terminating("web"));
}

#[tokio::test]
async fn a_pod_that_is_stuck_terminating_is_left_behind() {
    let cluster = with_node("").await;
    cluster.pod("stuck", "", "terminationGracePeriodSeconds: 10").await;
    cluster.delete_node().await;
    cluster.seconds(60).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.seconds(30).await;
    assert!(cluster.get_claim("a").is_none());
}

#[tokio::test]
async fn a_node_counts_as_drained_only_after_five_seconds() {
    let cluster = with_node("").await;
    cluster.delete_node().await;
    cluster.seconds(4).await;
    assert_eq!(cluster.condition("a", "Drained"), "Unknown/Draining");
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
    cluster.seconds(10).await;
    assert!(cluster.get_claim("a").is_none());
}

async fn attach(cluster: &Cluster, name: &str) {
    let node = cluster.node_name();
    cluster
        .apply(&format!(
            "{{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {{name: {name}}}, \
             spec: {{attacher: csi, nodeName: {node}, source: {{persistentVolumeName: pv-{name}}}}}}}"
        ))
        .await;
}

#[tokio::test]
async fn the_machine_waits_for_volumes_to_come_off() {
    let cluster = with_node("").await;
    attach(&cluster, "data").await;
    cluster.delete_node().await;
    cluster.minutes(1).await;
    assert_eq!(
        cluster.condition("a", "VolumesDetached"),
        "Unknown/AwaitingVolumeDetachment"
    );
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
    assert!(cluster.events().contains(&"Node/AwaitingVolumeDetachment".to_owned()));
    cluster
        .objects()
        .delete::<VolumeAttachment>("", "data", &DeleteOptions::default())
        .unwrap();
    cluster.seconds(10).await;
    assert!(cluster.get_claim("a").is_none());
}

#[tokio::test]
async fn volumes_are_not_waited_for_beyond_the_deadline() {
    let cluster = with_node("terminationGracePeriod: 60s").await;
    cluster.cloud.set_termination_delay(Duration::from_secs(30));
    attach(&cluster, "data").await;
    cluster.delete_node().await;
    cluster.seconds(55).await;
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
    cluster.seconds(8).await;
    assert_eq!(
        cluster.condition("a", "VolumesDetached"),
        "False/TerminationGracePeriodElapsed"
    );
    cluster.seconds(60).await;
    assert!(cluster.get_claim("a").is_none());
}

#[tokio::test]
async fn a_node_whose_machine_is_gone_is_released_without_a_drain() {
    let cluster = with_node("").await;
    cluster.pod("db", PROTECTED, "").await;
    cluster.set_ready("Unknown").await;
    let machine = cluster.cloud.machines().remove(0).instance.provider_id;
    cluster.cloud.vanish(&machine);
    cluster.delete_node().await;
    assert!(cluster.objects().list::<Node>("").is_empty());
    assert!(!cluster.is_terminating("db"));
}

#[tokio::test]
async fn a_ready_node_is_drained_even_if_the_cloud_has_lost_it() {
    let cluster = with_node("").await;
    cluster.pod("db", PROTECTED, "").await;
    let machine = cluster.cloud.machines().remove(0).instance.provider_id;
    cluster.cloud.vanish(&machine);
    cluster.delete_node().await;
    cluster.minutes(1).await;
    assert_eq!(cluster.objects().list::<Node>("").len(), 1);
}

fn bare_node(name: &str, class_label: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {class_label: "default"}, "finalizers": ["karpenter.sh/termination"]},
        "spec": {"providerID": "fake:///bare"},
    }))
    .unwrap()
}

#[tokio::test]
async fn a_node_without_a_claim_is_drained_and_released() {
    let cluster = Cluster::start().await;
    cluster
        .objects()
        .create(&bare_node("bare", "karpenter.test.sh/testnodeclass"))
        .unwrap();
    cluster.set_ready("True").await;
    cluster.pod("web", "", "").await;
    cluster.delete_node().await;
    cluster.seconds(2).await;
    assert!(cluster.is_terminating("web"));
    cluster.finish("web").await;
    cluster.seconds(2).await;
    assert!(cluster.objects().list::<Node>("").is_empty());
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
}

#[tokio::test]
async fn a_node_with_two_claims_is_drained_and_released_without_touching_its_machine() {
    let cluster = with_node("").await;
    let machine = cluster.get_claim("a").unwrap().status.unwrap().provider_id;
    cluster
        .cloud
        .fail_when(|method| (method == Method::Create).then(|| (Moment::Before, CloudError::transient("later"))));
    cluster.claim("twin", "").await;
    let status = json!({"status": {"providerID": machine}});
    cluster
        .objects()
        .patch_status::<NodeClaim>("", "twin", &status)
        .unwrap();
    cluster.pod("web", "", "").await;
    cluster.delete_node().await;
    cluster.seconds(2).await;
    cluster.finish("web").await;
    assert!(cluster.objects().list::<Node>("").is_empty());
    assert_eq!(cluster.cloud.calls(Method::Delete), 0);
    assert!(!cluster.is_leaving("a") && !cluster.is_leaving("twin"));
}

#[tokio::test]
async fn a_machine_that_takes_its_time_is_asked_for_again_and_counted_once() {
    let cluster = with_node("").await;
    cluster.cloud.set_termination_delay(Duration::from_secs(30));
    cluster.delete_node().await;
    cluster.seconds(6).await;
    assert_eq!(
        cluster.condition("a", "InstanceTerminating"),
        "True/InstanceTerminating"
    );
    cluster.seconds(28).await;
    assert!(cluster.get_claim("a").is_some());
    cluster.seconds(8).await;
    assert!(cluster.get_claim("a").is_none() && cluster.cloud.machines().is_empty());
    let asked = cluster.cloud.calls(Method::Delete);
    assert!((5..15).contains(&asked), "{asked}");
    let zone = cluster.ctx.metrics.registry.encode();
    let terminated = zone
        .lines()
        .find(|line| line.starts_with("karpenter_nodes_terminated_total{"));
    assert!(terminated.is_some_and(|line| line.ends_with(" 1")), "{terminated:?}");
}

#[tokio::test]
async fn the_last_pod_to_leave_a_draining_node_is_noticed_at_once() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    cluster.delete_node().await;
    // Between two polls.
    cluster.sandbox.run_for(Duration::from_millis(7300)).await;
    assert_eq!(cluster.condition("a", "Drained"), "Unknown/Draining");
    cluster.finish("web").await;
    assert_eq!(cluster.condition("a", "Drained"), "True/Drained");
}

#[tokio::test]
async fn a_node_of_another_provider_is_left_alone() {
    let cluster = Cluster::start().await;
    cluster
        .objects()
        .create(&bare_node("bare", "example.com/othernodeclass"))
        .unwrap();
    cluster.delete_node().await;
    cluster.minutes(1).await;
    let taints = cluster.node().spec.unwrap().taints.unwrap_or_default();
    assert!(taints.iter().all(|taint| taint.key != "karpenter.sh/disrupted"));
}

#[tokio::test]
async fn an_eviction_names_the_pod_that_was_meant() {
    let cluster = with_node("").await;
    cluster.pod("web", "", "").await;
    let uid = cluster.get_pod("web").unwrap().metadata.uid;
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(500).verb("create").resource("pods").times(3));
    cluster.delete_node().await;
    // The pod is replaced by another of its name before an eviction succeeds.
    cluster.finish("web").await;
    cluster.apply("{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: default}, spec: {nodeName: elsewhere, containers: [{name: c, image: i}]}}").await;
    assert_ne!(cluster.get_pod("web").unwrap().metadata.uid, uid);
    cluster.minutes(1).await;
    assert!(!cluster.is_terminating("web"));
    assert!(cluster.get_claim("a").is_none());
}

/// Kills the controllers right after their `writes`-th write of a scale-down and lets others carry on.
async fn crash_after(writes: usize) -> usize {
    let mut cluster = with_node("").await;
    cluster.pod("web", "", "terminationGracePeriodSeconds: 0").await;
    let before = cluster.sandbox.requests().writes(cluster.agent());
    let (sandbox, agent) = (cluster.sandbox.clone(), cluster.agent().to_owned());
    cluster
        .sandbox
        .faults()
        .after_writes(&agent.clone(), writes, move || sandbox.faults().cut_off(&agent));
    cluster.delete_claim("a").await;
    let finish = async |cluster: &Cluster| {
        cluster.seconds(2).await;
        if cluster.is_terminating("web") {
            cluster.finish("web").await;
        }
        cluster.seconds(30).await;
    };
    finish(&cluster).await;
    let made = cluster.sandbox.requests().writes(cluster.agent()) - before;
    cluster.restart().await;
    finish(&cluster).await;
    assert!(cluster.get_claim("a").is_none(), "after write {writes}");
    assert!(cluster.objects().list::<Node>("").is_empty(), "after write {writes}");
    assert!(cluster.cloud.machines().is_empty(), "after write {writes}");
    made
}

#[tokio::test]
async fn a_crash_after_any_write_of_a_scale_down_leaks_nothing() {
    let mut writes = 1;
    // Once the scale-down needs fewer writes than the crash waits for, every write has been tried.
    while crash_after(writes).await >= writes {
        writes += 1;
        assert!(writes < 50, "a scale-down of one node needs no fifty writes");
    }
    assert!(writes > 5, "{writes}");
}
