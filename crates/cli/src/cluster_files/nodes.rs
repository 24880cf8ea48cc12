//! Nodes with their NodeClaims and CSINodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node as KubeNode;
use karpenter_api::labels::annotations::DO_NOT_DISRUPT;
use karpenter_engine::{
    convert::{self, NodeObjects},
    model::Node,
};

use super::ClusterFiles;
use crate::manifests::ManifestError;

/// A node without the parts that are long and that no decision reads.
pub(super) fn without_bulk(mut node: KubeNode) -> KubeNode {
    node.metadata.managed_fields = None;
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.retain(|key, _| key == DO_NOT_DISRUPT);
    }
    if let Some(status) = &mut node.status {
        status.images = None;
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
        }
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
    node
}

impl ClusterFiles {
    /// Every node, and every launched claim whose node has not appeared, by name.
    pub(super) fn joined_nodes(&mut self) -> Result<Vec<Node>, ManifestError> {
        let mut by_provider_id: BTreeMap<&str, usize> = BTreeMap::new();
        let mut by_node_name: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, claim) in self.claims.iter().enumerate() {
            if let Some(id) = claim.provider_id() {
                by_provider_id.insert(id, at);
            }
            if let Some(node) = claim.status.as_ref().and_then(|status| status.node_name.as_deref()) {
                by_node_name.insert(node, at);
            }
        }
        let mut joined: BTreeSet<usize> = BTreeSet::new();
        let mut nodes = Vec::new();
        let interner = self.intake.interner();
        for node in &self.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let provider_id = node
                .spec
                .as_ref()
                .and_then(|spec| spec.provider_id.as_deref())
                .unwrap_or_default();
            let claim = by_provider_id.get(provider_id).or_else(|| by_node_name.get(name));
            joined.extend(claim);
            let objects = NodeObjects {
                node: Some(node),
                claim: claim.map(|at| &self.claims[*at]),
                csi: self.csi_nodes.get(name),
            };
            match convert::node(interner, objects) {
                Ok(converted) => nodes.extend(converted),
                Err(error) => self.notes.push(format!("Node {name} is left out: {error}")),
            }
        }
        for (at, claim) in self.claims.iter().enumerate() {
            if joined.contains(&at) {
                continue;
            }
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if claim.provider_id().is_none() {
                self.notes.push(format!(
                    "NodeClaim {name} is left out: it has not been launched (no status.providerID)"
                ));
                continue;
            }
            let objects = NodeObjects {
                claim: Some(claim),
                ..NodeObjects::default()
            };
            match convert::node(interner, objects) {
                Ok(converted) => nodes.extend(converted),
                Err(error) => self.notes.push(format!("NodeClaim {name} is left out: {error}")),
            }
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        self.nodes = Vec::new();
        self.claims = Vec::new();
        Ok(nodes)
    }
}
