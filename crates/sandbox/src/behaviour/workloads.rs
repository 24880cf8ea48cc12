//! What workload controllers report on the way, and the arithmetic of disruption budgets.

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
        let seen = |answer: &Answer| answer.json()["status"]["observedGeneration"] == 1;
        let budget = cluster.wait(&path, "a look at the budget", seen).await.json();
        let status = &budget["status"];
        assert_eq!(
            (&status["desiredHealthy"], &status["disruptionsAllowed"]),
            (&json!(desired), &json!(allowed)),
            "{spec}"
        );
    }
}
