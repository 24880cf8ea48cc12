//! What workload controllers report on the way, and the arithmetic of disruption budgets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cluster::Answer;
use super::nodes::condition;
use super::{Cluster, behaviours};

behaviours! {
    "5.3" => a_deployment_rolls_out_and_reports,
    "5.3" => a_new_template_replaces_the_pods,
    "5.3" => a_terminating_pod_is_replaced_at_once,
    "5.5" => a_daemon_runs_on_each_node_it_selects,
    "5.7" => percentages_of_a_budget_round_up,
    "5.1" => an_orphaned_replica_set_stays,
    "5.1" => a_deployment_deleted_in_the_foreground_goes_last,
    "5.3" => a_rollout_keeps_its_pods_available,
    "5.3" => the_cheapest_pod_goes_first,
    "5.4" => claims_outlive_their_stateful_set,
    "5.5" => a_daemon_waits_for_readiness_and_leaves_with_a_taint,
}

impl Cluster {
    fn apps(&self, rest: &str) -> String {
        format!("/apis/apps/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// A pod template for this test's nodes.
    fn template(&self, app: &str, image: &str) -> Value {
        json!({"metadata": {"labels": {"app": app}}, "spec": {
            "nodeSelector": {"behaviour": self.unique},
            "containers": [{"name": "c", "image": format!("example.org/image:{image}")}]}})
    }

    async fn deployment(&self, name: &str, replicas: i32) -> String {
        let body = json!({"metadata": {"name": name}, "spec": {"replicas": replicas,
            "selector": {"matchLabels": {"app": name}}, "template": self.template(name, "1")}});
        self.post(&self.apps("deployments"), &body).await.expect_code(201);
        let path = self.apps(&format!("deployments/{name}"));
        self.wait_available(&path, replicas).await;
        path
    }

    async fn wait_available(&self, path: &str, replicas: i32) -> Value {
        let is_done = |answer: &Answer| {
            let object = answer.json();
            let status = &object["status"];
            let all = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
            status["observedGeneration"] == object["metadata"]["generation"]
                && all.iter().all(|field| status[*field] == replicas)
        };
        self.wait(path, "all replicas", is_done).await.json()
    }

    async fn pods_of(&self, app: &str) -> Vec<Value> {
        let path = self.path(&format!("pods?labelSelector=app%3D{app}"));
        self.get(&path).await.json()["items"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

async fn a_deployment_rolls_out_and_reports(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 3).await;
    let deployment = cluster.get(&path).await.json();
    assert_eq!(
        condition(&deployment, "Available")["reason"],
        "MinimumReplicasAvailable"
    );
    let progressed = |answer: &Answer| condition(&answer.json(), "Progressing")["reason"] == "NewReplicaSetAvailable";
    cluster.wait(&path, "progress", progressed).await;
    assert_eq!(
        deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    let hash = sets["items"][0]["metadata"]["labels"]["pod-template-hash"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(name(&sets["items"][0]), format!("web-{hash}"));
    for pod in cluster.pods_of("web").await {
        assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], hash.as_str());
        assert_eq!(pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], true);
    }
}

async fn a_new_template_replaces_the_pods(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 2).await;
    let change = json!({"spec": {"template": cluster.template("web", "2")}});
    cluster.patch(&path, "merge", &change).await.expect_code(200);
    cluster.wait_available(&path, 2).await;
    let is_new = |pod: &Value| pod["spec"]["containers"][0]["image"] == "example.org/image:2";
    let living: Vec<Value> = cluster.pods_of("web").await;
    let living = living
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    assert!(living.clone().count() == 2 && living.into_iter().all(is_new));
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    assert_eq!(
        sets["items"].as_array().map_or(0, Vec::len),
        2,
        "the old one stays for a rollback"
    );
}

async fn a_terminating_pod_is_replaced_at_once(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 1).await;
    let old = name(&cluster.pods_of("web").await[0]);
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let pod = cluster.path(&format!("pods/{old}"));
    cluster.patch(&pod, "merge", &hold).await.expect_code(200);
    cluster.delete(&pod).await.expect_code(200);
    let list = cluster.path("pods?labelSelector=app%3Dweb");
    let two = |answer: &Answer| answer.json()["items"].as_array().map_or(0, Vec::len) == 2;
    cluster.wait(&list, "a replacement beside the held pod", two).await;
    cluster
        .patch(&pod, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect_code(200);
    cluster.wait_available(&path, 1).await;
}

async fn a_daemon_runs_on_each_node_it_selects(cluster: Cluster) {
    cluster.node("n1", &json!({})).await;
    cluster.node("n2", &json!({})).await;
    let body = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": cluster.template("d", "1")}});
    cluster.post(&cluster.apps("daemonsets"), &body).await.expect_code(201);
    let path = cluster.apps("daemonsets/d");
    let ready = |n: i32| move |answer: &Answer| answer.json()["status"]["numberReady"] == n;
    cluster.wait(&path, "two ready", ready(2)).await;
    let pods = cluster.pods_of("d").await;
    let pins: Vec<&Value> = pods
        .iter()
        .map(|pod| {
            &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
                ["matchFields"][0]["key"]
        })
        .collect();
    assert_eq!(pins, ["metadata.name", "metadata.name"]);
    cluster.node("n3", &json!({})).await;
    cluster.wait(&path, "a third on the new node", ready(3)).await;
}

impl Cluster {
    async fn budget(&self, name: &str, spec: &Value) -> String {
        let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", self.namespace);
        let mut body = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "web"}}}});
        json_patch::merge(&mut body, &json!({"spec": spec}));
        self.post(&budgets, &body).await.expect_code(201);
        format!("{budgets}/{name}")
    }
}

async fn percentages_of_a_budget_round_up(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    cluster.deployment("web", 3).await;
    for (number, (spec, desired, allowed)) in [
        (json!({"minAvailable": "50%"}), 2, 1),
        (json!({"maxUnavailable": "50%"}), 1, 2),
        (json!({"minAvailable": "100%"}), 3, 0),
        (json!({"maxUnavailable": 1}), 2, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let path = cluster.budget(&format!("b{number}"), &spec).await;
        let counted = |answer: &Answer| {
            let status = &answer.json()["status"];
            status["observedGeneration"] == 1
                && status["desiredHealthy"] == desired
                && status["disruptionsAllowed"] == allowed
        };
        let what = format!("{desired} desired and {allowed} allowed by {spec}");
        cluster.wait(&path, &what, counted).await;
    }
}

async fn an_orphaned_replica_set_stays(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 1).await;
    cluster
        .delete_with(&path, &json!({"propagationPolicy": "Orphan"}))
        .await
        .expect_code(200);
    cluster.wait_for_code(&path, 404).await;
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    assert!(sets["items"][0]["metadata"]["ownerReferences"].is_null(), "{sets}");
    assert_eq!(cluster.pods_of("web").await.len(), 1);
}

async fn a_deployment_deleted_in_the_foreground_goes_last(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 1).await;
    let pod = cluster.path(&format!("pods/{}", name(&cluster.pods_of("web").await[0])));
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.patch(&pod, "merge", &hold).await.expect_code(200);
    cluster
        .delete_with(&path, &json!({"propagationPolicy": "Foreground"}))
        .await
        .expect_code(200);
    let going = |answer: &Answer| answer.json()["metadata"]["deletionTimestamp"].is_string();
    cluster.wait(&pod, "a pod that goes", going).await;
    let deployment = cluster.get(&path).await.expect_code(200);
    assert_eq!(deployment["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    assert_eq!(
        sets["items"][0]["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    let release = json!({"metadata": {"finalizers": null}});
    cluster.patch(&pod, "merge", &release).await.expect_code(200);
    cluster.wait_for_code(&path, 404).await;
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    assert_eq!(sets["items"], json!([]), "the set went before its Deployment");
}

async fn a_rollout_keeps_its_pods_available(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    let path = cluster.deployment("web", 3).await;
    let start = cluster.get(&path).await.json();
    let query = format!(
        "fieldSelector=metadata.name=web&resourceVersion={}",
        super::cluster::version(&start)
    );
    let mut watch = cluster.watch(&cluster.apps("deployments"), &query).await;
    let sets = cluster.get(&cluster.apps("replicasets")).await.json();
    let query = format!("resourceVersion={}", super::cluster::version(&sets));
    let mut watched_sets = cluster.watch(&cluster.apps("replicasets"), &query).await;
    let change = json!({"spec": {"template": cluster.template("web", "2")}});
    cluster.patch(&path, "merge", &change).await.expect_code(200);
    loop {
        let (_, deployment) = watch.about("web").await;
        let status = &deployment["status"];
        assert!(status["availableReplicas"].as_i64() >= Some(3), "{status}");
        let done = status["observedGeneration"] == deployment["metadata"]["generation"]
            && ["replicas", "updatedReplicas", "availableReplicas"]
                .iter()
                .all(|field| status[*field] == 3);
        if done {
            break;
        }
    }
    // A quarter of three, rounded up, on top. The sets are asked for no more than that, whichever of them is done first.
    let old = name(&sets["items"][0]);
    let mut asked = BTreeMap::from([(old.clone(), 3)]);
    while asked.len() < 2 || asked[&old] > 0 {
        let event = watched_sets.next().await.expect("the watch goes on");
        let replicas = event["object"]["spec"]["replicas"].as_i64().expect("a number");
        asked.insert(name(&event["object"]), replicas);
        assert!(asked.values().sum::<i64>() <= 4, "{asked:?}");
    }
}

impl Cluster {
    /// Waits until the controllers know all that happened to pods so far: a budget counts a pod that came after it.
    async fn wait_for_controllers(&self) {
        self.pod("later", None).await;
        let selector = json!({"minAvailable": 0, "selector": {"matchLabels": {"app": "later"}}});
        let path = self.budget("later", &selector).await;
        let counted = |answer: &Answer| answer.json()["status"]["expectedPods"] == 1;
        self.wait(&path, "the later pod", counted).await;
    }
}

async fn the_cheapest_pod_goes_first(cluster: Cluster) {
    cluster.node("n", &json!({})).await;
    cluster.deployment("web", 3).await;
    let pods = cluster.pods_of("web").await;
    for (pod, cost) in pods.iter().zip(["100", "-5", "100"]) {
        let annotation = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}}});
        let path = cluster.path(&format!("pods/{}", name(pod)));
        cluster.patch(&path, "merge", &annotation).await.expect_code(200);
    }
    cluster.wait_for_controllers().await;
    let scale = cluster.apps("deployments/web/scale");
    cluster
        .patch(&scale, "merge", &json!({"spec": {"replicas": 2}}))
        .await
        .expect_code(200);
    cluster.wait_available(&cluster.apps("deployments/web"), 2).await;
    let gone = cluster.path(&format!("pods/{}", name(&pods[1])));
    cluster
        .wait(&gone, "the cheapest to go", |answer| {
            answer.code == 404 || answer.json()["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    for kept in [&pods[0], &pods[2]] {
        let pod = cluster
            .get(&cluster.path(&format!("pods/{}", name(kept))))
            .await
            .expect_code(200);
        assert!(pod["metadata"]["deletionTimestamp"].is_null());
    }
}

async fn claims_outlive_their_stateful_set(cluster: Cluster) {
    let body = json!({"metadata": {"name": "db"}, "spec": {"replicas": 2, "serviceName": "db",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}}, "template": cluster.template("db", "1"),
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "nobody", "resources": {"requests": {"storage": "1Gi"}}}}]}});
    cluster
        .post(&cluster.apps("statefulsets"), &body)
        .await
        .expect_code(201);
    for ordinal in 0..2 {
        cluster
            .wait_for_code(&cluster.path(&format!("persistentvolumeclaims/data-db-{ordinal}")), 200)
            .await;
        cluster
            .wait_for_code(&cluster.path(&format!("pods/db-{ordinal}")), 200)
            .await;
    }
    cluster.delete(&cluster.apps("statefulsets/db")).await.expect_code(200);
    cluster.wait_for_code(&cluster.path("pods/db-0"), 404).await;
    let claim = cluster
        .get(&cluster.path("persistentvolumeclaims/data-db-0"))
        .await
        .expect_code(200);
    assert!(claim["metadata"]["deletionTimestamp"].is_null());
}

async fn a_daemon_waits_for_readiness_and_leaves_with_a_taint(cluster: Cluster) {
    cluster.node("n1", &json!({})).await;
    let slow = format!("{}-slow", cluster.unique);
    let unready = json!({"metadata": {"name": slow, "labels": {"behaviour": cluster.unique}},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    cluster.post("/api/v1/nodes", &unready).await.expect_code(201);
    let body = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": cluster.template("d", "1")}});
    cluster.post(&cluster.apps("daemonsets"), &body).await.expect_code(201);
    let path = cluster.apps("daemonsets/d");
    let desired = |n: i32| {
        move |answer: &Answer| {
            let status = &answer.json()["status"];
            status["observedGeneration"] == 1 && status["desiredNumberScheduled"] == n
        }
    };
    cluster.wait(&path, "one, on the ready node", desired(1)).await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    cluster
        .patch(&format!("/api/v1/nodes/{slow}/status"), "strategic-merge", &ready)
        .await
        .expect_code(200);
    cluster.wait(&path, "one on each node", desired(2)).await;
    let taint = json!({"spec": {"taints": [{"key": "example.com/away", "effect": "NoExecute"}]}});
    cluster
        .patch(&format!("/api/v1/nodes/{slow}"), "merge", &taint)
        .await
        .expect_code(200);
    cluster.wait(&path, "one again", desired(1)).await;
}
