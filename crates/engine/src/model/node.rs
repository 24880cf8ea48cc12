//! Nodes as scheduling sees them: real ones, and launched NodeClaims whose node has not appeared yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::resources::ResourceList;

use super::Labels;
use super::pod::{Owner, Pod};
use super::taint::Taint;

/// A node or launched claim, merged as scheduling.md §8.6 says.
#[derive(Debug, Clone)]
pub struct Node {
    /// The node's name, or its NodeClaim's while no node is registered.
    pub name: Arc<str>,
    pub provider_id: Option<Arc<str>>,
    /// The NodePool label, when Karpenter manages the node.
    pub node_pool: Option<Arc<str>>,
    pub node_claim: Option<Arc<str>>,
    /// The claim's until registered, then the node's.
    pub labels: Arc<Labels>,
    /// Taints that count against pods: startup and ephemeral ones already dropped where scheduling.md §2.1 says so.
    pub taints: Vec<Taint>,
    /// The node object's own taints, which topology spread with `nodeTaintsPolicy: Honor` looks at.
    pub raw_taints: Vec<Taint>,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
    pub lifecycle: Lifecycle,
    /// False while only a NodeClaim exists.
    pub has_node: bool,
    /// Marked for deletion: gives no capacity, and its pods are to be placed elsewhere (scheduling.md §7.2).
    pub deleting: bool,
    /// Attachable volumes per CSI driver; `None` is published without a count, so unbounded. A driver that is missing
    /// falls back to the instance type's limit.
    pub volume_limits: BTreeMap<String, Option<u32>>,
    /// Bound pods that are not terminal, daemons included.
    pods: Vec<Arc<Pod>>,
    /// Sum over `pods`.
    requested: ResourceList,
    /// Sum over those of `pods` that a DaemonSet owns.
    daemon_requested: ResourceList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    /// Not Karpenter's: taken as it is, and counts as initialized.
    Unmanaged,
    /// A claim that was launched, or a node that has not joined.
    Launched,
    Registered,
    Initialized,
}

impl Node {
    /// An empty node; bind its pods with [`Node::bind`].
    pub fn new(
        name: impl Into<Arc<str>>,
        labels: Arc<Labels>,
        capacity: ResourceList,
        allocatable: ResourceList,
    ) -> Node {
        Node {
            name: name.into(),
            provider_id: None,
            node_pool: None,
            node_claim: None,
            labels,
            taints: Vec::new(),
            raw_taints: Vec::new(),
            capacity,
            allocatable,
            lifecycle: Lifecycle::Unmanaged,
            has_node: true,
            deleting: false,
            volume_limits: BTreeMap::new(),
            pods: Vec::new(),
            requested: ResourceList::default(),
            daemon_requested: ResourceList::default(),
        }
    }

    pub fn is_initialized(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Unmanaged | Lifecycle::Initialized)
    }

    /// `kubernetes.io/hostname`, or the node's name where the label is missing.
    pub fn hostname(&self) -> &str {
        self.labels
            .get("kubernetes.io/hostname")
            .map_or(&self.name, String::as_str)
    }

    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// What the bound pods request together.
    pub fn requested(&self) -> &ResourceList {
        &self.requested
    }

    /// What the bound DaemonSet pods request together.
    pub fn daemon_requested(&self) -> &ResourceList {
        &self.daemon_requested
    }

    /// Adds a bound pod. Terminal pods use nothing and are not kept.
    pub fn bind(&mut self, pod: Arc<Pod>) {
        if pod.is_terminal() {
            return;
        }
        self.requested.merge(&pod.requests);
        if pod.owner == Owner::DaemonSet {
            self.daemon_requested.merge(&pod.requests);
        }
        self.pods.push(pod);
    }

    /// Takes a bound pod away again.
    pub fn unbind(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let at = self.pods.iter().position(|pod| &*pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract_from(&pod.requests);
        if pod.owner == Owner::DaemonSet {
            self.daemon_requested.subtract_from(&pod.requests);
        }
        Some(pod)
    }
}
