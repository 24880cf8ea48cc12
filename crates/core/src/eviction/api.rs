//! The two requests that make a pod leave: an eviction, which budgets may refuse, and a delete, which they may not.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::response::Status;
use serde_json::json;

use crate::error::{Result, ignore_not_found};

/// How the eviction API answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The pod is on its way out.
    Evicted,
    /// The pod is gone, or another pod has its name now.
    Gone { code: u16 },
    /// A PodDisruptionBudget (or two of them on one pod) is in the way; the text says which.
    Refused { code: u16, message: String },
}

/// What Kubernetes answers (with code 500) when two budgets select one pod.
const SEVERAL_BUDGETS: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

/// Asks the API server to evict exactly this pod.
///
/// Written by hand because `Api::evict` sends its options under a key that API servers ignore, so the uid would not be
/// checked and a new pod of the same name could be evicted (sandbox.md §1.10).
///
/// # Errors
/// With what the API server or the way to it says, unless it is one of [`Answer`].
pub async fn evict(client: &Client, pod: &Pod) -> Result<Answer, kube::Error> {
    let (namespace, name) = namespaced_name(pod);
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": name, "namespace": namespace },
        "deleteOptions": { "preconditions": { "uid": pod.metadata.uid } },
    });
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let result: kube::Result<serde_json::Value> = api
        .create_subresource("eviction", name, &PostParams::default(), &body)
        .await;
    match result {
        Ok(_) => Ok(Answer::Evicted),
        Err(kube::Error::Api(status)) => answer(*status),
        Err(error) => Err(error),
    }
}

fn answer(status: Status) -> Result<Answer, kube::Error> {
    match status.code {
        code @ (404 | 409) => Ok(Answer::Gone { code }),
        code if code == 429 || status.message.contains(SEVERAL_BUDGETS) => Ok(Answer::Refused {
            code,
            message: status.message,
        }),
        _ => Err(kube::Error::Api(status.boxed())),
    }
}

/// Deletes exactly this pod, with this much time to end.
///
/// # Errors
/// With what the API server or the way to it says; a pod that is gone, or whose name another has taken, is no error.
pub async fn force_delete(client: &Client, pod: &Pod, grace_period: u32) -> Result<()> {
    let (namespace, name) = namespaced_name(pod);
    let params = DeleteParams {
        grace_period_seconds: Some(grace_period),
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
        result => ignore_not_found(result).map(|_| ()),
    }
}

fn namespaced_name(pod: &Pod) -> (&str, &str) {
    (
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> Status {
        Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        }
    }

    #[test]
    fn a_pod_that_is_gone_or_replaced_needs_no_eviction() {
        assert_eq!(answer(status(404, "not found")).unwrap(), Answer::Gone { code: 404 });
        assert_eq!(
            answer(status(409, "the UID in the precondition differs")).unwrap(),
            Answer::Gone { code: 409 }
        );
    }

    #[test]
    fn a_budget_refuses_with_429_and_two_budgets_with_500() {
        assert!(matches!(
            answer(status(429, "budget web")).unwrap(),
            Answer::Refused { code: 429, .. }
        ));
        assert!(matches!(
            answer(status(500, SEVERAL_BUDGETS)).unwrap(),
            Answer::Refused { code: 500, .. }
        ));
    }

    #[test]
    fn any_other_failure_is_an_error_to_retry() {
        assert!(answer(status(500, "etcd is away")).is_err());
        assert!(answer(status(403, "forbidden")).is_err());
    }
}
