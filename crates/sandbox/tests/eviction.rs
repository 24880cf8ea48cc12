//! Evictions and the arithmetic of disruption budgets, with budget statuses written by hand.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_sandbox::{ApiError, DeleteOptions, Sandbox};
use serde_json::{Value, json};

/// Pods `a`, `b` (ready) and `c` (not ready), all running and labelled `app: x`.
fn cluster() -> Sandbox {
    let sandbox = Sandbox::start();
    for (name, ready) in [("a", "True"), ("b", "True"), ("c", "False")] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "x"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        });
        sandbox.apply(&pod.to_string()).unwrap();
    }
    sandbox
}

fn budget(sandbox: &Sandbox, name: &str, spec: Value, status: Value) {
    let mut full = json!({"selector": {"matchLabels": {"app": "x"}}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let object =
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": full});
    sandbox.apply(&object.to_string()).unwrap();
    sandbox
        .objects()
        .patch_status::<PodDisruptionBudget>("default", name, &json!({"status": status}))
        .unwrap();
}

fn status(allowed: i64, healthy: i64, desired: i64) -> Value {
    json!({
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired,
        "expectedPods": 3, "conditions": [{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    })
}

fn evict(sandbox: &Sandbox, pod: &str) -> Result<(), ApiError> {
    sandbox
        .objects()
        .server()
        .evict("default", pod, &DeleteOptions::default())
}

fn allowed(sandbox: &Sandbox, name: &str) -> Option<i32> {
    let budget = sandbox.objects().get::<PodDisruptionBudget>("default", name).unwrap();
    budget.status.map(|status| status.disruptions_allowed)
}

#[tokio::test]
async fn an_eviction_spends_the_budget_and_says_why_the_pod_goes() {
    let sandbox = cluster();
    budget(&sandbox, "b", json!({"maxUnavailable": 1}), status(1, 2, 1));
    evict(&sandbox, "a").unwrap();
    assert_eq!(allowed(&sandbox, "b"), Some(0));
    let pod = sandbox.objects().get::<Pod>("default", "a").unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30));
    let conditions = pod.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|condition| condition.type_ == "DisruptionTarget"
        && condition.reason.as_deref() == Some("EvictionByEvictionAPI")));
    let error = evict(&sandbox, "b").unwrap_err();
    assert_eq!((error.code, error.reason), (429, "TooManyRequests"));
    assert_eq!(
        error.message,
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(error.details.causes[0].reason, "DisruptionBudget");
    assert_eq!(error.details.retry_after_seconds, 0);
    // A pod that already goes costs nothing.
    evict(&sandbox, "a").unwrap();
}

#[tokio::test]
async fn a_budget_that_was_not_looked_at_yet_asks_to_come_back() {
    let sandbox = cluster();
    let mut unseen = status(1, 2, 1);
    unseen["observedGeneration"] = 0.into();
    budget(&sandbox, "b", json!({"maxUnavailable": 1}), unseen);
    let error = evict(&sandbox, "a").unwrap_err();
    assert_eq!((error.code, error.details.retry_after_seconds), (429, 10));
    assert_eq!(
        error.details.causes[0].message,
        "The disruption budget b is still being processed by the server."
    );
}

#[tokio::test]
async fn two_budgets_are_one_too_many() {
    let sandbox = cluster();
    budget(&sandbox, "b1", json!({"maxUnavailable": 1}), status(1, 2, 1));
    budget(&sandbox, "b2", json!({"maxUnavailable": 1}), status(1, 2, 1));
    let error = evict(&sandbox, "a").unwrap_err();
    assert_eq!((error.code, error.reason), (500, ""));
    assert!(error.message.contains("more than one PodDisruptionBudget"));
}

#[tokio::test]
async fn pods_that_do_not_run_are_not_protected() {
    let sandbox = cluster();
    budget(&sandbox, "b", json!({"maxUnavailable": 0}), status(0, 2, 3));
    for phase in ["Pending", "Succeeded", "Failed"] {
        let objects = sandbox.objects();
        objects
            .patch_status::<Pod>("default", "a", &json!({"status": {"phase": phase}}))
            .unwrap();
        evict(&sandbox, "a").unwrap();
        objects.delete::<Pod>("default", "a", &DeleteOptions::now()).ok();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        sandbox.apply(&pod.to_string()).unwrap();
    }
    assert_eq!(allowed(&sandbox, "b"), Some(0));
}

#[tokio::test]
async fn an_unready_pod_goes_if_the_budget_is_healthy_or_always_allows_it() {
    let sandbox = cluster();
    budget(&sandbox, "b", json!({"minAvailable": 2}), status(0, 1, 2));
    assert_eq!(evict(&sandbox, "c").unwrap_err().code, 429);
    budget(&sandbox, "b", json!({"minAvailable": 2}), status(0, 2, 2));
    evict(&sandbox, "c").unwrap();
    assert_eq!(allowed(&sandbox, "b"), Some(0), "nothing was spent");

    let sandbox = cluster();
    let always = json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"});
    budget(&sandbox, "b", always, status(0, 1, 2));
    evict(&sandbox, "c").unwrap();
    assert_eq!(evict(&sandbox, "a").unwrap_err().code, 429, "ready pods stay protected");
}

#[tokio::test]
async fn a_dry_run_spends_nothing() {
    let sandbox = cluster();
    budget(&sandbox, "b", json!({"maxUnavailable": 1}), status(1, 2, 1));
    let options = DeleteOptions {
        dry_run: true,
        ..DeleteOptions::default()
    };
    sandbox.objects().server().evict("default", "a", &options).unwrap();
    assert_eq!(allowed(&sandbox, "b"), Some(1));
    assert!(
        sandbox
            .objects()
            .get::<Pod>("default", "a")
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
}

#[tokio::test]
async fn the_budgets_are_refreshed_before_each_eviction() {
    let sandbox = cluster();
    budget(&sandbox, "b", json!({"maxUnavailable": 1}), status(0, 2, 2));
    let objects = sandbox.objects();
    objects.server().refresh_budgets_with({
        let objects = objects.clone();
        move |namespace| {
            let status = json!({"status": {"disruptionsAllowed": 1}});
            objects
                .patch_status::<PodDisruptionBudget>(namespace, "b", &status)
                .unwrap();
        }
    });
    evict(&sandbox, "a").unwrap();
}
