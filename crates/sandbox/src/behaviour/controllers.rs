//! What controllers, scheduler and kubelets do around the API server, on nodes that KWOK (or the sandbox) runs.

use serde_json::{Value, json};

use super::cluster::PATIENCE;
use super::{Answer, Cluster, behaviours};

behaviours! {
    "5.1" => dependents_go_with_their_owner,
    "5.1" => an_object_with_a_dangling_owner_goes,
    "5.1" => orphans_stay_without_their_owner,
    "5.1" => foreground_deletion_waits_for_dependents,
    "5.2" => a_deleted_namespace_empties_itself,
    "5.3" => a_deployment_rolls_out_and_scales_down,
    "5.4" => a_stateful_set_starts_its_pods_in_order,
    "5.6" => a_job_completes,
    "5.7" => a_budget_lets_one_pod_go_at_a_time,
    "5.8" => a_node_is_tainted_until_it_is_ready,
    "5.8" => a_cordoned_node_gets_a_taint,
    "5.12" => an_unschedulable_pod_says_why_and_lands_when_it_can,
    "5.13" => a_pod_runs_on_a_fake_node,
}

/// A node that KWOK adopts, with a label of the test's own; its name.
async fn node(cluster: &Cluster, name: &str) -> String {
    let name = format!("{name}-{}", cluster.unique);
    let body = json!({
        "metadata": {
            "name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name, "test": cluster.unique, "topology.kubernetes.io/zone": "z1",
                "type": "kwok",
            },
        },
        // Other tests' pods stay away.
        "spec": {"taints": [{"key": "test", "value": cluster.unique, "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "20"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
    });
    cluster.post("/api/v1/nodes", &body).await.expect_code(201);
    cluster
        .wait(&format!("/api/v1/nodes/{name}"), "a ready node", |answer| {
            has_condition(&answer.json(), "Ready", "True") && !has_taint(&answer.json(), "node.kubernetes.io/not-ready")
        })
        .await;
    name
}

/// Cordons a node and waits until the scheduler has heard of it: pods are sent there until one is turned down.
async fn cordon(cluster: &Cluster, node: &str) {
    cluster
        .patch(
            &format!("/api/v1/nodes/{node}"),
            "merge",
            &json!({"spec": {"unschedulable": true}}),
        )
        .await
        .expect_code(200);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for number in 0.. {
        let name = format!("probe-{number}");
        let body = json!({"metadata": {"name": name}, "spec": pod_spec(cluster)});
        cluster.post(&cluster.path("pods"), &body).await.expect_code(201);
        let path = cluster.path(&format!("pods/{name}"));
        let refused = |answer: &Answer| has_condition(&answer.json(), "PodScheduled", "False");
        let decided = |answer: &Answer| refused(answer) || answer.json()["spec"]["nodeName"].is_string();
        let answer = cluster.wait(&path, "the scheduler's decision", decided).await;
        cluster.delete(&path).await.expect_code(200);
        if refused(&answer) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "pods land on a cordoned node");
    }
}

async fn remove_node(cluster: &Cluster, name: &str) {
    cluster.delete(&format!("/api/v1/nodes/{name}")).await.expect_code(200);
}

fn has_condition(object: &Value, kind: &str, status: &str) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == status)
}

fn has_taint(node: &Value, key: &str) -> bool {
    node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|taint| taint["key"] == key)
}

/// A pod spec that only the test's own nodes take.
fn pod_spec(cluster: &Cluster) -> Value {
    json!({
        "nodeSelector": {"test": cluster.unique},
        "tolerations": [{"key": "test", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "example.org/image:1", "resources": {"requests": {"cpu": "100m"}}}],
    })
}

fn workload(cluster: &Cluster, name: &str, replicas: i64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": pod_spec(cluster)}},
    })
}

fn apps(cluster: &Cluster, rest: &str) -> String {
    format!("/apis/apps/v1/namespaces/{}/{rest}", cluster.namespace)
}

fn items(answer: &Answer) -> Vec<Value> {
    answer.json()["items"].as_array().cloned().unwrap_or_default()
}

fn owner(map: &Value) -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": map["metadata"]["name"], "uid": map["metadata"]["uid"]}])
}

async fn dependents_go_with_their_owner(cluster: Cluster) {
    let parent = cluster.config_map("parent", &json!({})).await;
    let child = json!({"metadata": {"name": "child", "ownerReferences": owner(&parent)}});
    cluster.post(&cluster.path("configmaps"), &child).await.expect_code(201);
    cluster
        .delete(&cluster.path("configmaps/parent"))
        .await
        .expect_code(200);
    cluster.wait_for_code(&cluster.path("configmaps/child"), 404).await;
}

async fn an_object_with_a_dangling_owner_goes(cluster: Cluster) {
    let mut parent = cluster.config_map("parent", &json!({})).await;
    parent["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    let child = json!({"metadata": {"name": "child", "ownerReferences": owner(&parent)}});
    cluster.post(&cluster.path("configmaps"), &child).await.expect_code(201);
    cluster.wait_for_code(&cluster.path("configmaps/child"), 404).await;
    cluster.get(&cluster.path("configmaps/parent")).await.expect_code(200);
}

async fn orphans_stay_without_their_owner(cluster: Cluster) {
    let parent = cluster.config_map("parent", &json!({})).await;
    let child = json!({"metadata": {"name": "child", "ownerReferences": owner(&parent)}});
    cluster.post(&cluster.path("configmaps"), &child).await.expect_code(201);
    let options = json!({"propagationPolicy": "Orphan"});
    cluster
        .delete_with(&cluster.path("configmaps/parent"), &options)
        .await
        .expect_code(200);
    cluster.wait_for_code(&cluster.path("configmaps/parent"), 404).await;
    let child = cluster.get(&cluster.path("configmaps/child")).await.expect_code(200);
    assert!(child["metadata"]["ownerReferences"].is_null());
}

async fn foreground_deletion_waits_for_dependents(cluster: Cluster) {
    let parent = cluster.config_map("parent", &json!({})).await;
    let mut owners = owner(&parent);
    owners[0]["blockOwnerDeletion"] = true.into();
    let child = json!({"metadata": {"name": "child", "ownerReferences": owners, "finalizers": ["example.com/hold"]}});
    cluster.post(&cluster.path("configmaps"), &child).await.expect_code(201);
    let options = json!({"propagationPolicy": "Foreground"});
    cluster
        .delete_with(&cluster.path("configmaps/parent"), &options)
        .await
        .expect_code(200);
    let going = |answer: &Answer| answer.json()["metadata"]["deletionTimestamp"].is_string();
    cluster
        .wait(&cluster.path("configmaps/child"), "a terminating child", going)
        .await;
    let parent = cluster.get(&cluster.path("configmaps/parent")).await.expect_code(200);
    assert_eq!(parent["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let release = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&cluster.path("configmaps/child"), "merge", &release)
        .await
        .expect_code(200);
    cluster.wait_for_code(&cluster.path("configmaps/parent"), 404).await;
}

async fn a_deleted_namespace_empties_itself(cluster: Cluster) {
    let name = format!("emptied-{}", cluster.unique);
    let path = format!("/api/v1/namespaces/{name}");
    cluster
        .post("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
        .await
        .expect_code(201);
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    cluster
        .post(&format!("{path}/configmaps"), &held)
        .await
        .expect_code(201);
    cluster.delete(&path).await.expect_code(200);
    cluster
        .wait(&path, "remaining finalizers", |answer| {
            has_condition(&answer.json(), "NamespaceFinalizersRemaining", "True")
        })
        .await;
    let release = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{path}/configmaps/a"), "merge", &release)
        .await
        .expect_code(200);
    cluster.wait_for_code(&path, 404).await;
}

async fn a_deployment_rolls_out_and_scales_down(cluster: Cluster) {
    let node = node(&cluster, "n").await;
    cluster
        .post(&apps(&cluster, "deployments"), &workload(&cluster, "web", 3))
        .await
        .expect_code(201);
    let own = apps(&cluster, "deployments/web");
    let available = |count: i64| move |answer: &Answer| answer.json()["status"]["availableReplicas"] == count;
    let deployment = cluster.wait(&own, "three available pods", available(3)).await.json();
    assert!(has_condition(&deployment, "Available", "True"));
    let sets = items(&cluster.get(&apps(&cluster, "replicasets")).await);
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0]["metadata"]["ownerReferences"][0]["kind"], "Deployment");
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "example.org/image:2"}]}}}});
    cluster.patch(&own, "strategic-merge", &image).await.expect_code(200);
    cluster
        .wait(&own, "an updated rollout", |answer| {
            let deployment = answer.json();
            let status = &deployment["status"];
            status["observedGeneration"] == deployment["metadata"]["generation"]
                && ["updatedReplicas", "replicas", "availableReplicas"]
                    .iter()
                    .all(|field| status[*field] == 3)
        })
        .await;
    let scale = json!({"spec": {"replicas": 1}});
    cluster
        .patch(&apps(&cluster, "deployments/web/scale"), "merge", &scale)
        .await
        .expect_code(200);
    cluster
        .wait(&own, "one pod", |answer| answer.json()["status"]["replicas"] == 1)
        .await;
    cluster.delete(&own).await.expect_code(200);
    cluster
        .wait(&cluster.path("pods"), "no pods", |answer| items(answer).is_empty())
        .await;
    remove_node(&cluster, &node).await;
}

async fn a_stateful_set_starts_its_pods_in_order(cluster: Cluster) {
    let node = node(&cluster, "n").await;
    let mut set = workload(&cluster, "db", 2);
    set["spec"]["serviceName"] = "db".into();
    cluster
        .post(&apps(&cluster, "statefulsets"), &set)
        .await
        .expect_code(201);
    let own = apps(&cluster, "statefulsets/db");
    cluster
        .wait(&own, "two ready pods", |answer| {
            answer.json()["status"]["readyReplicas"] == 2
        })
        .await;
    let first = cluster.get(&cluster.path("pods/db-0")).await.expect_code(200);
    let second = cluster.get(&cluster.path("pods/db-1")).await.expect_code(200);
    let time = |pod: &Value| {
        pod["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(time(&first) <= time(&second));
    assert_eq!(first["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "0");
    cluster.delete(&cluster.path("pods/db-0")).await.expect_code(200);
    let uid = first["metadata"]["uid"].clone();
    cluster
        .wait(&cluster.path("pods/db-0"), "a new pod of the same name", |answer| {
            answer.code == 200 && answer.json()["metadata"]["uid"] != uid
        })
        .await;
    cluster.delete(&own).await.expect_code(200);
    remove_node(&cluster, &node).await;
}

async fn a_job_completes(cluster: Cluster) {
    let node = node(&cluster, "n").await;
    let mut spec = pod_spec(&cluster);
    spec["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}});
    let path = format!("/apis/batch/v1/namespaces/{}/jobs", cluster.namespace);
    cluster.post(&path, &job).await.expect_code(201);
    let done = |answer: &Answer| has_condition(&answer.json(), "Complete", "True");
    let job = cluster.wait(&format!("{path}/j"), "completion", done).await.json();
    assert_eq!(job["status"]["succeeded"], 1);
    remove_node(&cluster, &node).await;
}

async fn a_budget_lets_one_pod_go_at_a_time(cluster: Cluster) {
    let node = node(&cluster, "n").await;
    cluster
        .post(&apps(&cluster, "replicasets"), &workload(&cluster, "web", 2))
        .await
        .expect_code(201);
    let ready = |answer: &Answer| answer.json()["status"]["readyReplicas"] == 2;
    cluster
        .wait(&apps(&cluster, "replicasets/web"), "two ready pods", ready)
        .await;
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", cluster.namespace);
    let selector = json!({"matchLabels": {"app": "web"}});
    let budget = json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1, "selector": selector}});
    cluster.post(&budgets, &budget).await.expect_code(201);
    let own = format!("{budgets}/b");
    let budget = cluster
        .wait(&own, "one allowed", |answer| {
            answer.json()["status"]["disruptionsAllowed"] == 1
        })
        .await;
    let status = &budget.json()["status"];
    assert_eq!(
        (&status["expectedPods"], &status["desiredHealthy"]),
        (&2.into(), &1.into())
    );
    // No room for a replacement: the second eviction must wait.
    cordon(&cluster, &node).await;
    let pods = items(&cluster.get(&cluster.path("pods?labelSelector=app%3Dweb")).await);
    let names: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    let eviction = |name: &str| json!({"metadata": {"name": name}});
    let path = |name: &str| cluster.path(&format!("pods/{name}/eviction"));
    let first = cluster
        .post(&path(names[0]), &eviction(names[0]))
        .await
        .expect_code(201);
    assert_eq!(first["status"], "Success");
    let second = cluster.post(&path(names[1]), &eviction(names[1])).await;
    let message = second.expect_status(429, "TooManyRequests");
    assert_eq!(
        message,
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(second.json()["details"]["causes"][0]["reason"], "DisruptionBudget");
    cluster
        .patch(
            &format!("/api/v1/nodes/{node}"),
            "merge",
            &json!({"spec": {"unschedulable": null}}),
        )
        .await
        .expect_code(200);
    cluster
        .wait(&own, "one allowed again", |answer| {
            answer.json()["status"]["disruptionsAllowed"] == 1
        })
        .await;
    cluster
        .post(&path(names[1]), &eviction(names[1]))
        .await
        .expect_code(201);
    cluster
        .delete(&apps(&cluster, "replicasets/web"))
        .await
        .expect_code(200);
    remove_node(&cluster, &node).await;
}

async fn a_node_is_tainted_until_it_is_ready(cluster: Cluster) {
    let name = format!("slow-{}", cluster.unique);
    let path = format!("/api/v1/nodes/{name}");
    let body = json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let created = cluster.post("/api/v1/nodes", &body).await.expect_code(201);
    assert!(has_taint(&created, "node.kubernetes.io/not-ready"));
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    cluster
        .patch(&format!("{path}/status"), "strategic-merge", &ready)
        .await
        .expect_code(200);
    let untainted = |answer: &Answer| !has_taint(&answer.json(), "node.kubernetes.io/not-ready");
    cluster.wait(&path, "no taint", untainted).await;
    remove_node(&cluster, &name).await;
}

async fn a_cordoned_node_gets_a_taint(cluster: Cluster) {
    let name = node(&cluster, "n").await;
    let path = format!("/api/v1/nodes/{name}");
    cluster
        .patch(&path, "merge", &json!({"spec": {"unschedulable": true}}))
        .await
        .expect_code(200);
    let tainted = |answer: &Answer| has_taint(&answer.json(), "node.kubernetes.io/unschedulable");
    cluster.wait(&path, "the taint", tainted).await;
    cluster
        .patch(&path, "merge", &json!({"spec": {"unschedulable": null}}))
        .await
        .expect_code(200);
    cluster.wait(&path, "no taint", |answer| !tainted(answer)).await;
    remove_node(&cluster, &name).await;
}

async fn an_unschedulable_pod_says_why_and_lands_when_it_can(cluster: Cluster) {
    let body = json!({"metadata": {"name": "p"}, "spec": pod_spec(&cluster)});
    cluster.post(&cluster.path("pods"), &body).await.expect_code(201);
    let path = cluster.path("pods/p");
    let refused = |answer: &Answer| has_condition(&answer.json(), "PodScheduled", "False");
    let pod = cluster.wait(&path, "PodScheduled=False", refused).await.json();
    let condition = pod["status"]["conditions"].as_array().into_iter().flatten();
    let condition = condition
        .into_iter()
        .find(|condition| condition["type"] == "PodScheduled")
        .expect("the condition");
    assert_eq!(condition["reason"], "Unschedulable");
    let events = cluster.path("events?fieldSelector=involvedObject.name=p,reason=FailedScheduling");
    cluster
        .wait(&events, "the event", |answer| !items(answer).is_empty())
        .await;
    let node = node(&cluster, "n").await;
    let landed = |answer: &Answer| answer.json()["spec"]["nodeName"] == node.as_str();
    cluster.wait(&path, "the node", landed).await;
    cluster.delete(&path).await.expect_code(200);
    remove_node(&cluster, &node).await;
}

async fn a_pod_runs_on_a_fake_node(cluster: Cluster) {
    let node = node(&cluster, "n").await;
    let body = json!({"metadata": {"name": "p"}, "spec": pod_spec(&cluster)});
    cluster.post(&cluster.path("pods"), &body).await.expect_code(201);
    let path = cluster.path("pods/p");
    let runs = |answer: &Answer| has_condition(&answer.json(), "Ready", "True");
    let pod = cluster.wait(&path, "a ready pod", runs).await.json();
    assert_eq!(pod["status"]["phase"], "Running");
    assert!(pod["status"]["podIP"].is_string());
    cluster.delete(&path).await.expect_code(200);
    cluster.wait_for_code(&path, 404).await;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    cluster.wait_for_code(&lease, 200).await;
    remove_node(&cluster, &node).await;
    cluster.wait_for_code(&lease, 404).await;
}
