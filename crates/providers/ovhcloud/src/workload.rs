//! Whether a Node is worth keeping: up, and with pods on it that would have to move.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, api::ListParams};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Reads Nodes and the pods on them.
#[derive(Clone, Debug)]
pub(crate) struct Workloads {
    nodes: Api<Node>,
    pods: Api<Pod>,
}

impl Workloads {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            pods: Api::all(client),
        }
    }

    /// A Node by its name; `None` if there is none. Listed, because that right is there anyway.
    pub(crate) async fn node(&self, name: &str) -> Result<Option<Node>, kube::Error> {
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        Ok(self.nodes.list(&named).await?.items.into_iter().next())
    }

    /// Whether a ready Node runs a pod that is neither a daemon's nor the Node's own.
    pub(crate) async fn run_on(&self, name: &str) -> Result<bool, kube::Error> {
        if !self.node(name).await?.is_some_and(|node| is_ready(&node)) {
            return Ok(false);
        }
        let here = ListParams::default().fields(&format!("spec.nodeName={name}"));
        Ok(self.pods.list(&here).await?.iter().any(would_move))
    }
}

/// Whether a Node is known to be ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn would_move(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some();
    let is_mirror = pod
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|own| own.contains_key(MIRROR));
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.into_iter();
    let stays = owners.any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"));
    !(is_over || is_mirror || stays)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(metadata: Value, phase: &str, expected: bool) {
        let mut pod = json!({"metadata": {"name": "p"}, "status": {"phase": phase}});
        for (key, value) in metadata.as_object().expect("an object") {
            pod["metadata"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(would_move(&pod), expected, "{metadata} {phase}");
    }

    #[test]
    fn daemons_and_static_and_finished_pods_do_not_count() {
        let owner =
            |kind: &str| json!({"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u"}]});
        check(owner("ReplicaSet"), "Running", true);
        check(json!({}), "Pending", true);
        check(owner("DaemonSet"), "Running", false);
        check(owner("Node"), "Running", false);
        check(
            json!({"annotations": {"kubernetes.io/config.mirror": "x"}}),
            "Running",
            false,
        );
        check(owner("Job"), "Succeeded", false);
    }
}
