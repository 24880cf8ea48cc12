//! Nodes and the pods that are placed on them: one pod for every filter of the scheduler that only that filter refuses.

use serde_json::{Value, json};

use super::cluster::{Answer, PATIENCE};
use super::{Cluster, behaviours};

behaviours! {
    "5.13" => a_node_with_the_kwok_annotation_becomes_ready,
    "5.1" => a_deleted_node_takes_what_it_owns,
    "4.2" => a_bound_pod_shows_its_nodes_zone,
    "5.12" => a_gated_pod_waits,
    "5.12" => unschedulable_nodes_are_refused,
    "5.12" => untolerated_taints_are_refused,
    "5.12" => taken_host_ports_are_refused,
    "5.12" => too_large_requests_are_refused,
    "5.12" => a_full_node_is_refused,
    "5.12" => a_node_that_skews_the_spread_is_refused,
    "5.12" => a_node_without_the_spreads_label_is_refused,
    "5.12" => a_node_without_company_is_refused,
    "5.12" => a_node_with_bad_company_is_refused,
    "5.12" => a_node_whose_pods_object_is_refused,
    "5.12" => a_missing_claim_is_named,
    "5.8" => a_node_without_conditions_loses_its_taint,
    "5.12" => a_spread_over_more_domains_than_there_are_stops_at_one_each,
    "5.12" => a_claim_that_waits_learns_the_chosen_node,
}

impl Cluster {
    /// A node that a simulated kubelet runs; `extra` is merged in. Pods choose it by the label `behaviour`.
    pub(super) async fn node(&self, name: &str, extra: &Value) -> String {
        let name = format!("{}-{name}", self.unique);
        let mut node = json!({
            "metadata": {
                "name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"behaviour": self.unique, "kubernetes.io/hostname": name},
            },
            "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        });
        json_patch::merge(&mut node, extra);
        self.post("/api/v1/nodes", &node).await.expect_code(201);
        self.wait(&format!("/api/v1/nodes/{name}"), "readiness", is_ready).await;
        name
    }

    /// A pod for this test's nodes; `extra` is merged in.
    pub(super) async fn guest(&self, name: &str, extra: &Value) -> String {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeSelector": {"behaviour": self.unique}, "containers": [{"name": "c", "image": "example.org/image:1"}]},
        });
        json_patch::merge(&mut pod, extra);
        self.post(&self.path("pods"), &pod).await.expect_code(201);
        self.path(&format!("pods/{name}"))
    }

    /// Waits until the scheduler has turned a pod down for this reason; other nodes may have reasons of their own.
    async fn expect_refusal(&self, pod: &str, reason: &str) {
        let says = |answer: &Answer| refusal(&answer.json()).is_some_and(|message| message.contains(reason));
        self.wait(pod, reason, says).await;
    }

    /// Sends pods until the scheduler turns one down for this reason: it may learn that a node has become unfit a moment after
    /// the API server, and until then pods still land there.
    async fn expect_refusal_of_guests(&self, reason: &str) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        for number in 0.. {
            let pod = self.guest(&format!("p{number}"), &json!({})).await;
            let refused = |answer: &Answer| refusal(&answer.json()).is_some_and(|message| message.contains(reason));
            let decided = |answer: &Answer| refused(answer) || answer.json()["spec"]["nodeName"].is_string();
            if refused(&self.wait(&pod, reason, decided).await) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{pod} landed: not {reason}");
            self.delete(&pod).await.expect_code(200);
        }
    }

    pub(super) async fn wait_running(&self, pod: &str) -> Value {
        self.wait(pod, "running", |answer| answer.json()["status"]["phase"] == "Running")
            .await
            .json()
    }
}

fn is_ready(answer: &Answer) -> bool {
    condition(&answer.json(), "Ready")["status"] == "True" && answer.json()["spec"]["taints"].is_null()
}

/// A condition of an object, or null.
pub(super) fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == kind)
        .unwrap_or_default()
}

fn refusal(pod: &Value) -> Option<String> {
    let scheduled = condition(pod, "PodScheduled");
    (scheduled["reason"] == "Unschedulable").then(|| scheduled["message"].as_str().unwrap_or_default().to_owned())
}

fn requests(resources: &Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "example.org/image:1", "resources": {"requests": resources}}]}})
}

async fn a_node_with_the_kwok_annotation_becomes_ready(cluster: Cluster) {
    let name = cluster.node("n", &json!({"status": null})).await;
    let node = cluster.get(&format!("/api/v1/nodes/{name}")).await.json();
    assert!(node["status"]["allocatable"]["cpu"].is_string());
    assert!(
        node["status"]["addresses"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
    );
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert_eq!(condition(&node, kind)["status"], "False", "{kind}");
    }
}

async fn a_deleted_node_takes_what_it_owns(cluster: Cluster) {
    let name = cluster.node("n", &json!({})).await;
    let node = cluster.get(&format!("/api/v1/nodes/{name}")).await.json();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]});
    let map = json!({"metadata": {"name": "owned", "ownerReferences": [owner]}});
    cluster.post(&cluster.path("configmaps"), &map).await.expect_code(201);
    cluster.delete(&format!("/api/v1/nodes/{name}")).await.expect_code(200);
    cluster.wait_for_code(&cluster.path("configmaps/owned"), 404).await;
}

async fn a_bound_pod_shows_its_nodes_zone(cluster: Cluster) {
    cluster
        .node(
            "n",
            &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}),
        )
        .await;
    // The server reads the zone in a cache of its own, and what is bound before the node is there goes without.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for number in 0.. {
        let pod = cluster.guest(&format!("p{number}"), &json!({})).await;
        let running = cluster.wait_running(&pod).await;
        let zone = &running["metadata"]["labels"]["topology.kubernetes.io/zone"];
        if zone.is_null() && tokio::time::Instant::now() < deadline {
            cluster.delete(&pod).await.expect_code(200);
            continue;
        }
        assert_eq!(zone, "z");
        return;
    }
}

async fn a_gated_pod_waits(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let gate = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    let pod = cluster.guest("p", &gate).await;
    let gated = cluster.get(&pod).await.json();
    assert_eq!(condition(&gated, "PodScheduled")["reason"], "SchedulingGated");
    cluster
        .patch(&pod, "merge", &json!({"spec": {"schedulingGates": null}}))
        .await
        .expect_code(200);
    cluster.wait_running(&pod).await;
}

async fn unschedulable_nodes_are_refused(cluster: Cluster) {
    let name = cluster.node("n", &json!({})).await;
    let path = format!("/api/v1/nodes/{name}");
    cluster
        .patch(&path, "merge", &json!({"spec": {"unschedulable": true}}))
        .await
        .expect_code(200);
    cluster.expect_refusal_of_guests("node(s) were unschedulable").await;
}

async fn untolerated_taints_are_refused(cluster: Cluster) {
    let name = cluster.node("n", &json!({})).await;
    let taint = json!({"spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}});
    cluster
        .patch(&format!("/api/v1/nodes/{name}"), "merge", &taint)
        .await
        .expect_code(200);
    cluster
        .expect_refusal_of_guests("node(s) had untolerated taint(s)")
        .await;
    let tolerant = json!({"spec": {"tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]}});
    let pod = cluster.guest("q", &tolerant).await;
    cluster.wait_running(&pod).await;
}

async fn taken_host_ports_are_refused(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let port = json!({"spec": {"containers": [{"name": "c", "image": "example.org/image:1",
        "ports": [{"containerPort": 80, "hostPort": 8080}]}]}});
    let first = cluster.guest("first", &port).await;
    cluster.wait_running(&first).await;
    let second = cluster.guest("second", &port).await;
    cluster
        .expect_refusal(&second, "node(s) didn't have free ports for the requested pod ports")
        .await;
}

async fn too_large_requests_are_refused(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let devices = requests(&json!({"example.com/gpu": "1"}));
    let mut pod = json!({"metadata": {"name": "q"}});
    json_patch::merge(&mut pod, &devices);
    let message = cluster
        .post(&cluster.path("pods"), &pod)
        .await
        .expect_status(422, "Invalid");
    assert!(
        message.contains("Limit must be set for non overcommitable resources"),
        "{message}"
    );
    let mut pod = requests(&json!({"cpu": "5", "example.com/gpu": "1"}));
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"example.com/gpu": "1"});
    let pod = cluster.guest("p", &pod).await;
    cluster.expect_refusal(&pod, "Insufficient cpu").await;
    cluster.expect_refusal(&pod, "Insufficient example.com/gpu").await;
}

async fn a_full_node_is_refused(cluster: Cluster) {
    cluster.node("n", &json!({"status": {"capacity": {"pods": "1"}}})).await;
    let first = cluster.guest("first", &json!({})).await;
    cluster.wait_running(&first).await;
    let second = cluster.guest("second", &json!({})).await;
    cluster.expect_refusal(&second, "Too many pods").await;
}

fn spread() -> Value {
    json!({"metadata": {"labels": {"app": "x"}}, "spec": {"topologySpreadConstraints": [{"topologyKey": "example.com/zone",
        "maxSkew": 1, "minDomains": 3, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]}})
}

fn in_zone(zone: &str) -> Value {
    json!({"metadata": {"labels": {"example.com/zone": zone}}})
}

async fn a_node_that_skews_the_spread_is_refused(cluster: Cluster) {
    cluster.node("n", &in_zone("a")).await;
    let first = cluster.guest("first", &spread()).await;
    cluster.wait_running(&first).await;
    let second = cluster.guest("second", &spread()).await;
    cluster
        .expect_refusal(&second, "node(s) didn't match pod topology spread constraints")
        .await;
}

async fn a_node_without_the_spreads_label_is_refused(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let pod = cluster.guest("p", &spread()).await;
    let reason = "node(s) didn't match pod topology spread constraints (missing required label)";
    cluster.expect_refusal(&pod, reason).await;
}

fn company(kind: &str, wanted: &str) -> Value {
    json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "example.com/zone", "labelSelector": {"matchLabels": {"app": wanted}}}]}}}})
}

async fn a_node_without_company_is_refused(cluster: Cluster) {
    cluster.node("n", &in_zone("a")).await;
    let lonely = cluster.guest("lonely", &company("podAffinity", "friend")).await;
    cluster
        .expect_refusal(&lonely, "node(s) didn't match pod affinity rules")
        .await;
    let first = cluster.guest("self", &company("podAffinity", "self")).await;
    cluster.wait_running(&first).await;
}

async fn a_node_with_bad_company_is_refused(cluster: Cluster) {
    cluster.node("n", &in_zone("a")).await;
    let first = cluster.guest("first", &json!({})).await;
    cluster.wait_running(&first).await;
    let second = cluster.guest("second", &company("podAntiAffinity", "first")).await;
    cluster
        .expect_refusal(&second, "node(s) didn't match pod anti-affinity rules")
        .await;
}

async fn a_node_whose_pods_object_is_refused(cluster: Cluster) {
    cluster.node("n", &in_zone("a")).await;
    let hermit = cluster.guest("hermit", &company("podAntiAffinity", "visitor")).await;
    cluster.wait_running(&hermit).await;
    let visitor = cluster.guest("visitor", &json!({})).await;
    cluster
        .expect_refusal(&visitor, "node(s) didn't satisfy existing pods anti-affinity rules")
        .await;
}

async fn a_missing_claim_is_named(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let volume = json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let pod = cluster.guest("p", &volume).await;
    let says = |answer: &Answer| {
        refusal(&answer.json()).is_some_and(|m| m.contains("persistentvolumeclaim \"data\" not found"))
    };
    cluster.wait(&pod, "the claim's name", says).await;
}

async fn a_node_without_conditions_loses_its_taint(cluster: Cluster) {
    let name = format!("bare-{}", cluster.unique);
    let body = json!({"metadata": {"name": name, "labels": {"behaviour": cluster.unique}}});
    let created = cluster.post("/api/v1/nodes", &body).await.expect_code(201);
    assert_eq!(created["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready");
    let clean = |answer: &Answer| answer.json()["spec"]["taints"].is_null();
    cluster.wait(&format!("/api/v1/nodes/{name}"), "no taint", clean).await;
}

async fn a_spread_over_more_domains_than_there_are_stops_at_one_each(cluster: Cluster) {
    cluster.node("n1", &in_zone("a")).await;
    cluster.node("n2", &in_zone("b")).await;
    let mut zones = Vec::new();
    for name in ["first", "second"] {
        let pod = cluster.guest(name, &spread()).await;
        let running = cluster.wait_running(&pod).await;
        zones.push(running["spec"]["nodeName"].clone());
    }
    assert_ne!(zones[0], zones[1]);
    let third = cluster.guest("third", &spread()).await;
    cluster
        .expect_refusal(&third, "node(s) didn't match pod topology spread constraints")
        .await;
}

async fn a_claim_that_waits_learns_the_chosen_node(cluster: Cluster) {
    let node = cluster.node("n", &json!({})).await;
    let class = format!("class-{}", cluster.unique);
    let body = json!({"metadata": {"name": class}, "provisioner": "example.com/nobody", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster
        .post("/apis/storage.k8s.io/v1/storageclasses", &body)
        .await
        .expect_code(201);
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    cluster
        .post(&cluster.path("persistentvolumeclaims"), &claim)
        .await
        .expect_code(201);
    let path = cluster.path("persistentvolumeclaims/data");
    let pending = cluster.get(&path).await.expect_code(200);
    assert!(pending["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null());
    let volume = json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    cluster.guest("p", &volume).await;
    let chosen = |answer: &Answer| {
        answer.json()["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == node.as_str()
    };
    cluster.wait(&path, "the chosen node", chosen).await;
    cluster
        .delete(&format!("/apis/storage.k8s.io/v1/storageclasses/{class}"))
        .await
        .expect_code(200);
}
