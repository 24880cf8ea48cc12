//! Evictions: which pods a disruption budget protects, what it answers, and what it counts.

use serde_json::{Value, json};

use super::{Answer, Cluster, behaviours};

behaviours! {
    "4.3" => a_dry_eviction_spends_nothing,
    "4.3" => two_budgets_for_one_pod_are_an_error,
    "4.3" => pods_that_do_not_run_yet_are_not_protected,
    "4.3" => a_pod_that_goes_already_may_be_evicted_again,
    "4.3" => unready_pods_go_if_the_budget_is_healthy_or_always_allows_it,
    "4.3" => an_eviction_says_why_the_pod_goes,
    "4.3" => an_eviction_must_name_its_pod,
    "5.7" => a_budget_without_pods_allows_nothing,
}

impl Cluster {
    fn budgets(&self) -> String {
        format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", self.namespace)
    }

    /// Creates a budget over the pods with `group: g`, and waits until it has been looked at and expects `pods` of them.
    async fn budget_over(&self, name: &str, spec: &Value, pods: i64) -> String {
        let mut body = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"group": "g"}}}});
        json_patch::merge(&mut body, &json!({"spec": spec}));
        self.post(&self.budgets(), &body).await.expect_code(201);
        let path = format!("{}/{name}", self.budgets());
        let seen = |answer: &Answer| {
            let status = &answer.json()["status"];
            status["observedGeneration"] == 1 && status["expectedPods"] == pods
        };
        self.wait(&path, "a look at the budget", seen).await;
        path
    }

    /// A pod with `group: g` that nobody runs, said to be running and, if `ready`, ready.
    async fn pretended(&self, name: &str, ready: &str) {
        let pod = json!({
            "metadata": {"name": name, "labels": {"group": "g"}},
            "spec": {"schedulerName": "nobody", "nodeName": self.unrun_node().await, "containers": [{"name": "c", "image": "example.org/image:1"}]},
        });
        self.post(&self.path("pods"), &pod).await.expect_code(201);
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        let path = self.path(&format!("pods/{name}/status"));
        self.patch(&path, "merge", &status).await.expect_code(200);
    }

    /// A Node object with nobody behind it: what is bound there stays as it is told.
    async fn unrun_node(&self) -> String {
        let name = format!("{}-unrun", self.unique);
        let node = json!({"metadata": {"name": name, "labels": {"behaviour": self.unique}}});
        let made = self.post("/api/v1/nodes", &node).await;
        assert!(matches!(made.code, 201 | 409), "{}", made.text);
        name
    }

    async fn evict(&self, pod: &str, query: &str) -> Answer {
        let body = json!({"metadata": {"name": pod}});
        self.post(&self.path(&format!("pods/{pod}/eviction{query}")), &body)
            .await
    }
}

async fn a_dry_eviction_spends_nothing(cluster: Cluster) {
    cluster.pretended("a", "True").await;
    let budget = cluster.budget_over("b", &json!({"minAvailable": 0}), 1).await;
    let allows = |answer: &Answer| answer.json()["status"]["disruptionsAllowed"] == 1;
    cluster.wait(&budget, "one allowed", allows).await;
    cluster.evict("a", "?dryRun=All").await.expect_code(201);
    let status = cluster.get(&budget).await.json()["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 1);
    assert!(status["disruptedPods"].is_null(), "{status}");
    let pod = cluster.get(&cluster.path("pods/a")).await.expect_code(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_null());
}

async fn two_budgets_for_one_pod_are_an_error(cluster: Cluster) {
    cluster.pretended("a", "True").await;
    cluster.budget_over("b1", &json!({"minAvailable": 0}), 1).await;
    cluster.budget_over("b2", &json!({"minAvailable": 0}), 1).await;
    let message = cluster.evict("a", "").await.expect_status(500, "");
    assert!(
        message.contains("This pod has more than one PodDisruptionBudget"),
        "{message}"
    );
}

async fn pods_that_do_not_run_yet_are_not_protected(cluster: Cluster) {
    let pod = json!({
        "metadata": {"name": "a", "labels": {"group": "g"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "example.org/image:1"}]},
    });
    cluster.post(&cluster.path("pods"), &pod).await.expect_code(201);
    cluster.budget_over("b", &json!({"minAvailable": 1}), 1).await;
    cluster.evict("a", "").await.expect_code(201);
    cluster.wait_for_code(&cluster.path("pods/a"), 404).await;
}

async fn a_pod_that_goes_already_may_be_evicted_again(cluster: Cluster) {
    cluster.pretended("a", "True").await;
    cluster.budget_over("b", &json!({"minAvailable": 1}), 1).await;
    cluster.evict("a", "").await.expect_status(429, "TooManyRequests");
    cluster.delete(&cluster.path("pods/a")).await.expect_code(200);
    cluster.evict("a", "").await.expect_code(201);
}

async fn unready_pods_go_if_the_budget_is_healthy_or_always_allows_it(cluster: Cluster) {
    cluster.pretended("sick", "False").await;
    cluster.pretended("well", "True").await;
    // One of two is healthy and two should be: the sick one may not go either.
    let budget = cluster.budget_over("b", &json!({"minAvailable": 2}), 2).await;
    cluster.evict("sick", "").await.expect_status(429, "TooManyRequests");
    let relaxed = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    cluster.patch(&budget, "merge", &relaxed).await.expect_code(200);
    cluster.evict("sick", "").await.expect_code(201);

    cluster.pretended("ill", "False").await;
    let enough = json!({"spec": {"minAvailable": 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}});
    cluster.patch(&budget, "merge", &enough).await.expect_code(200);
    let healthy = |answer: &Answer| {
        let object = answer.json();
        let status = &object["status"];
        status["observedGeneration"] == object["metadata"]["generation"]
            && status["currentHealthy"] == 1
            && status["desiredHealthy"] == 1
    };
    cluster.wait(&budget, "a healthy budget", healthy).await;
    cluster.evict("ill", "").await.expect_code(201);
    cluster.evict("well", "").await.expect_status(429, "TooManyRequests");
}

async fn an_eviction_says_why_the_pod_goes(cluster: Cluster) {
    cluster.pretended("a", "True").await;
    let answer = cluster.evict("a", "").await.expect_code(201);
    assert_eq!(
        (&answer["kind"], &answer["status"]),
        (&"Status".into(), &"Success".into())
    );
    let pod = cluster.get(&cluster.path("pods/a")).await.expect_code(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    let target = super::nodes::condition(&pod, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["reason"]),
        (&"True".into(), &"EvictionByEvictionAPI".into())
    );
}

async fn an_eviction_must_name_its_pod(cluster: Cluster) {
    cluster.pod("a", None).await;
    let body = json!({"metadata": {"name": "b"}});
    let message = cluster
        .post(&cluster.path("pods/a/eviction"), &body)
        .await
        .expect_status(400, "BadRequest");
    assert!(
        message.contains("name in URL does not match name in Eviction object"),
        "{message}"
    );
    cluster.evict("nobody", "").await.expect_status(404, "NotFound");
}

async fn a_budget_without_pods_allows_nothing(cluster: Cluster) {
    let budget = cluster.budget_over("b", &json!({"maxUnavailable": 1}), 0).await;
    let status = cluster.get(&budget).await.json()["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 0, "{status}");
}
