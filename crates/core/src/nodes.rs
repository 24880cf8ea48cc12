//! The one place that changes and deletes Nodes, and so the one that writes taints.

use k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::{labels, taint};
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, ResourceExt};

use crate::error::{Result, ignore_not_found};
use crate::patch::{self, Written};

/// Keeps load balancers from sending traffic to a node that is being drained.
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Writes Nodes.
#[derive(Debug, Clone)]
pub struct Nodes {
    api: Api<Node>,
}

impl Nodes {
    /// A writer.
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Writes what differs between `before` and `after`, status aside.
    ///
    /// # Errors
    /// With a conflict if the node has changed since `before` was read.
    pub async fn write(&self, before: &Node, after: &Node) -> Result<Written<Node>> {
        patch::object(&self.api, before, after).await
    }

    /// Asks for the node's deletion; termination drains it first.
    ///
    /// # Errors
    /// With what the API server says; a node that is gone is no error.
    pub async fn delete(&self, node: &Node) -> Result<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: node.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        ignore_not_found(self.api.delete(&node.name_any(), &params).await)?;
        Ok(())
    }
}

/// Marks a node as going away: no new pods, no traffic from load balancers.
pub fn mark_disrupted(node: &mut Node) {
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    if !taints.iter().any(|present| taint::same(present, &taint::disrupted())) {
        taints.retain(|present| present.key != taint::DISRUPTED_KEY);
        taints.push(taint::disrupted());
    }
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(EXCLUDE_FROM_LOAD_BALANCERS.to_owned(), "karpenter".to_owned());
}

/// Whether the node has this taint; its value does not matter.
pub fn has_taint(node: &Node, wanted: &Taint) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|present| taint::same(present, wanted))
}

/// Adds the taint unless one with its key and effect is there.
pub fn add_taint(node: &mut Node, wanted: Taint) {
    if !has_taint(node, &wanted) {
        node.spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default()
            .push(wanted);
    }
}

/// Removes the taint, whatever its value.
pub fn remove_taint(node: &mut Node, unwanted: &Taint) {
    if let Some(taints) = node.spec.as_mut().and_then(|spec| spec.taints.as_mut()) {
        taints.retain(|present| !taint::same(present, unwanted));
    }
}

/// Lets the node go.
pub fn release(node: &mut Node) {
    if let Some(finalizers) = &mut node.metadata.finalizers {
        finalizers.retain(|finalizer| finalizer != labels::TERMINATION_FINALIZER);
    }
}

/// Whether the node waits for us before it may go.
pub fn is_held(node: &Node) -> bool {
    node.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == labels::TERMINATION_FINALIZER)
}

/// Whether the kubelet reports Ready.
pub fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The provider's identifier of the machine; `None` until it is known.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// A label of the node; empty when it has none.
pub fn label<'a>(node: &'a Node, key: &str) -> &'a str {
    node.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(key))
        .map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taints_after_marking(taints: &str) -> Vec<String> {
        let mut node: Node = serde_norway::from_str(&format!("{{spec: {{taints: {taints}}}}}")).unwrap();
        mark_disrupted(&mut node);
        let taints = node.spec.unwrap().taints.unwrap();
        taints
            .iter()
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect()
    }

    #[test]
    fn a_disrupted_taint_of_another_effect_is_replaced() {
        assert_eq!(taints_after_marking("[]"), ["karpenter.sh/disrupted:NoSchedule"]);
        assert_eq!(
            taints_after_marking("[{key: karpenter.sh/disrupted, effect: NoExecute}, {key: a, effect: NoSchedule}]"),
            ["a:NoSchedule", "karpenter.sh/disrupted:NoSchedule"],
        );
    }

    #[test]
    fn marking_twice_changes_nothing() {
        let mut node = Node::default();
        mark_disrupted(&mut node);
        let once = node.clone();
        mark_disrupted(&mut node);
        assert_eq!(node, once);
    }
}
