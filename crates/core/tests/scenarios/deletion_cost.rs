//! Deletion costs on pods (disruption.md §17, "Deletion cost").

use k8s_openapi::api::core::v1::Pod;
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::cluster::Cluster;

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const REPLICA_SET: &str =
    "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: rs, uid: rs, controller: true}]";

async fn cluster() -> Cluster {
    let cluster = Cluster::start_tuned(
        |_| (),
        |options| options.feature_gates.pod_deletion_cost_management = true,
    )
    .await;
    cluster
        .open_pool(json!({"consolidateAfter": "1h", "budgets": [{"nodes": "100%"}]}))
        .await;
    cluster
}

fn cost(cluster: &Cluster, pod: &str) -> Option<String> {
    cluster.get_pod(pod)?.metadata.annotations?.get(COST).cloned()
}

fn writes(cluster: &Cluster, result: &str) -> f64 {
    cluster.metric(&format!(
        "karpenter_pod_deletion_cost_pod_annotation_writes_total{{result=\"{result}\"}}"
    ))
}

#[tokio::test]
async fn pods_of_the_node_to_empty_first_get_the_lowest_cost() {
    let cluster = cluster().await;
    for (name, pods) in [("a", 3), ("b", 1), ("c", 2)] {
        cluster.claim(name, "expireAfter: Never").await;
        for nth in 0..pods {
            cluster
                .pod_on(name, &format!("{name}-{nth}"), "100m", REPLICA_SET)
                .await;
        }
    }
    cluster.seconds(61).await;
    assert_eq!(cost(&cluster, "b-0").as_deref(), Some("-3"));
    assert_eq!(cost(&cluster, "c-1").as_deref(), Some("-2"));
    assert_eq!(cost(&cluster, "a-2").as_deref(), Some("-1"));
    let written = writes(&cluster, "updated");
    cluster.seconds(120).await;
    assert_eq!(
        writes(&cluster, "updated"),
        written,
        "nothing changed, nothing is written"
    );
}

#[tokio::test]
async fn only_pods_of_replica_sets_are_written_and_a_bare_pod_pins_its_node() {
    let cluster = cluster().await;
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "100m", REPLICA_SET).await;
    let job = "ownerReferences: [{apiVersion: batch/v1, kind: Job, name: j, uid: j, controller: true}]";
    cluster.pod_on("a", "job", "100m", job).await;
    cluster.claim("b", "expireAfter: Never").await;
    let user = format!("annotations: {{{COST}: '7', keep: me}}, {REPLICA_SET}");
    cluster.pod_on("b", "pinned", "100m", &user).await;
    cluster.pod_on("b", "bare", "100m", "").await;
    cluster.seconds(61).await;
    assert_eq!(cost(&cluster, "web").as_deref(), Some("-1"));
    assert_eq!(cost(&cluster, "job"), None);
    assert_eq!(cost(&cluster, "pinned"), None);
    let annotations = cluster.get_pod("pinned").unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations["keep"], "me");
}

#[tokio::test]
async fn pods_of_a_node_that_goes_cost_least() {
    let cluster = cluster().await;
    cluster.claim("a", "expireAfter: Never").await;
    let protected = format!("annotations: {{karpenter.sh/do-not-disrupt: 'true'}}, {REPLICA_SET}");
    cluster.pod_on("a", "web", "100m", &protected).await;
    cluster.seconds(61).await;
    assert_eq!(cost(&cluster, "web"), None);
    cluster.delete_claim("a").await;
    cluster.seconds(61).await;
    assert_eq!(cost(&cluster, "web").as_deref(), Some("-2147483648"));
}

#[tokio::test]
async fn a_conflict_is_left_to_the_next_cycle_and_too_many_requests_are_tried_again() {
    let cluster = cluster().await;
    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(429).verb("patch").resource("pods").times(1));
    cluster.claim("a", "expireAfter: Never").await;
    cluster.pod_on("a", "web", "100m", REPLICA_SET).await;
    cluster.seconds(65).await;
    assert_eq!(cost(&cluster, "web").as_deref(), Some("-1"));
    assert_eq!((writes(&cluster, "error"), writes(&cluster, "updated")), (1.0, 1.0));

    cluster
        .sandbox
        .faults()
        .inject(Fault::fail(409).verb("patch").resource("pods").times(1));
    cluster
        .objects()
        .patch::<Pod>("default", "web", &json!({"metadata": {"annotations": {COST: "5"}}}))
        .unwrap();
    cluster.pod_on("a", "more", "100m", REPLICA_SET).await;
    cluster.seconds(61).await;
    assert_eq!(writes(&cluster, "skipped_conflict"), 1.0);
}
