//! Who belongs to whom: claims and nodes by the machine they stand for, pods and volumes by the node they are on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::{NodeClaim, pods};

use crate::context::Managed;
use crate::index::{Found, Index};
use crate::nodes;
use crate::watch::{Cache, Change, Key, Watches};

/// Lookups across kinds, kept up to date by the watches.
#[derive(Debug)]
pub struct Relations {
    managed: Managed,
    nodes: Index<Node>,
    claims: Index<NodeClaim>,
    pods: Index<Pod>,
    attachments: Index<VolumeAttachment>,
    volume_claims: Arc<Cache<PersistentVolumeClaim>>,
}

impl Relations {
    /// Indexes what `watches` hold, now and from now on.
    pub fn new(watches: &Watches, managed: Managed) -> Self {
        Self {
            managed,
            nodes: Index::new(&watches.nodes, nodes::provider_id),
            claims: Index::new(&watches.claims, NodeClaim::provider_id),
            pods: Index::new(&watches.pods, pods::node_name),
            attachments: Index::new(&watches.volume_attachments, |attachment| {
                Some(&attachment.spec.node_name)
            }),
            volume_claims: watches.volume_claims.clone(),
        }
    }

    /// The node of a machine.
    pub fn node_of(&self, provider_id: &str) -> Found<Node> {
        self.nodes.one(provider_id)
    }

    /// All nodes that claim to be one machine.
    pub fn nodes_of(&self, provider_id: &str) -> Vec<Arc<Node>> {
        self.nodes.all(provider_id)
    }

    /// Our claim for the machine of a node.
    pub fn claim_of(&self, node: &Node) -> Found<NodeClaim> {
        let Some(provider_id) = nodes::provider_id(node) else {
            return Found::None;
        };
        let mut claims = self.claims.all(provider_id);
        claims.retain(|claim| self.managed.claim(claim));
        Found::among(claims)
    }

    /// The claims that a change of a node concerns: those of the machine that it is, and of the one that it was.
    pub fn claims_of_change(&self, change: &Change<Node>) -> Vec<Key> {
        let machine = |node: &Option<Arc<Node>>| node.as_deref().and_then(nodes::provider_id).map(str::to_owned);
        let (old, new) = (machine(&change.old), machine(&change.new));
        let other = old.filter(|old| new.as_ref() != Some(old));
        new.iter()
            .chain(&other)
            .flat_map(|provider_id| self.claims.keys(provider_id))
            .collect()
    }

    /// The pods that are bound to a node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.pods.all(node)
    }

    /// The volumes that are attached to a node, or on their way.
    pub fn attachments_on(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.all(node)
    }

    /// A PersistentVolumeClaim.
    pub fn volume_claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.volume_claims.get(&Key::namespaced(namespace, name))
    }
}
