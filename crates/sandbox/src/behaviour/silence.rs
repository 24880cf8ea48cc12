//! What a cluster does about nodes that fall silent or vanish, which takes it a minute of its time.

use serde_json::{Value, json};

use super::cluster::LONG_PATIENCE;
use super::nodes::condition;
use super::{Answer, Cluster, behaviours};

behaviours! {
    "5.8" => a_silent_node_is_tainted_and_its_pods_evicted_until_it_speaks,
    "5.10" => the_pods_of_a_vanished_node_are_collected,
}

fn taint_keys(node: &Value) -> Vec<String> {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .map(|taint| {
            format!(
                "{}:{}",
                taint["key"].as_str().unwrap_or_default(),
                taint["effect"].as_str().unwrap_or_default()
            )
        })
        .collect()
}

async fn a_silent_node_is_tainted_and_its_pods_evicted_until_it_speaks(cluster: Cluster) {
    let name = format!("silent-{}", cluster.unique);
    let path = format!("/api/v1/nodes/{name}");
    // Without the annotation of a simulated kubelet nobody speaks for this node.
    let node = json!({
        "metadata": {"name": name, "labels": {"behaviour": cluster.unique, "kubernetes.io/hostname": name}},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    });
    cluster.post("/api/v1/nodes", &node).await.expect_code(201);
    // If every node were silent, the cluster would blame itself and evict nothing.
    cluster.node("alive", &json!({})).await;
    let toleration = |seconds: i64| json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    for (pod, seconds) in [("hasty", 1), ("patient", 6000)] {
        let body = json!({
            "metadata": {"name": pod, "labels": {"group": "g"}, "finalizers": ["example.com/hold"]},
            "spec": {"nodeName": name, "tolerations": toleration(seconds),
                "containers": [{"name": "c", "image": "example.org/image:1"}]},
        });
        cluster.post(&cluster.path("pods"), &body).await.expect_code(201);
    }
    // A budget does not hold up what the node's silence evicts.
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", cluster.namespace);
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"group": "g"}}}});
    cluster.post(&budgets, &budget).await.expect_code(201);

    let silent = |answer: &Answer| condition(&answer.json(), "Ready")["status"] == "Unknown";
    let seen = cluster.wait_within(LONG_PATIENCE, &path, "Ready=Unknown", silent).await;
    assert_eq!(condition(&seen.json(), "Ready")["reason"], "NodeStatusUnknown");
    let tainted = |answer: &Answer| {
        let keys = taint_keys(&answer.json());
        ["NoSchedule", "NoExecute"]
            .iter()
            .all(|effect| keys.contains(&format!("node.kubernetes.io/unreachable:{effect}")))
    };
    cluster.wait_within(LONG_PATIENCE, &path, "both taints", tainted).await;
    let hasty = cluster.path("pods/hasty");
    let going = |answer: &Answer| answer.json()["metadata"]["deletionTimestamp"].is_string();
    cluster.wait_within(LONG_PATIENCE, &hasty, "the eviction", going).await;
    let patient = cluster.get(&cluster.path("pods/patient")).await.expect_code(200);
    assert!(patient["metadata"]["deletionTimestamp"].is_null());

    // What counts as speaking is a heartbeat that differs from the last one.
    let awake = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
    cluster
        .patch(&format!("{path}/status"), "strategic-merge", &awake)
        .await
        .expect_code(200);
    let clean = |answer: &Answer| {
        taint_keys(&answer.json())
            .iter()
            .all(|key| !key.starts_with("node.kubernetes.io/unreachable"))
    };
    cluster.wait_within(LONG_PATIENCE, &path, "no taint", clean).await;
    for pod in ["hasty", "patient"] {
        let release = json!({"metadata": {"finalizers": null}});
        let path = cluster.path(&format!("pods/{pod}"));
        cluster.patch(&path, "merge", &release).await.expect_code(200);
        cluster.delete_with(&path, &json!({"gracePeriodSeconds": 0})).await;
    }
}

async fn the_pods_of_a_vanished_node_are_collected(cluster: Cluster) {
    let node = cluster.node("n", &json!({})).await;
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"behaviour": cluster.unique},
            "containers": [{"name": "c", "image": "example.org/image:1"}]}}}});
    let sets = format!("/apis/apps/v1/namespaces/{}/replicasets", cluster.namespace);
    cluster.post(&sets, &set).await.expect_code(201);
    let list = cluster.path("pods");
    let pods = |answer: &Answer| answer.json()["items"].as_array().cloned().unwrap_or_default();
    let running = |answer: &Answer| pods(answer).iter().any(|pod| pod["status"]["phase"] == "Running");
    let first = cluster.wait(&list, "a running pod", running).await;
    let first = pods(&first)[0]["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    cluster.delete(&format!("/api/v1/nodes/{node}")).await.expect_code(200);
    cluster
        .wait_within(LONG_PATIENCE, &list, "a replacement, and the lost pod gone", |answer| {
            let pods = pods(answer);
            pods.len() == 1 && pods[0]["metadata"]["name"] != first.as_str()
        })
        .await;
}
