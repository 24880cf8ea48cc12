//! A machine: a Node, its NodeClaim, or both, with what we decided about it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as kube;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition;
use karpenter_api::{NodeClaim, labels};
use karpenter_engine::model::{Lifecycle, Node};

/// Whether a machine was marked for deletion by a decision of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Kept,
    Deleting,
}

/// One machine as of a moment.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The Node, once it joined.
    pub node: Option<Arc<kube::Node>>,
    /// The NodeClaim, when Karpenter manages the machine.
    pub claim: Option<Arc<NodeClaim>>,
    /// Both merged, with pods, as the engine sees it.
    pub view: Arc<Node>,
    pub(super) mark: Mark,
    pub(super) nominated_until: Option<Timestamp>,
    pub(super) holds_buffer_pods: bool,
}

/// Why a machine must not be disrupted now (lifecycle.md §2.3).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDisruptable {
    /// Not managed by Karpenter.
    #[error("node isn't managed by karpenter")]
    Unmanaged,
    /// Launched, but no Node yet.
    #[error("nodeclaim does not have an associated node")]
    NoNode,
    /// In the middle of a reboot.
    #[error("node is rebooting")]
    Rebooting,
    /// Going away already.
    #[error("node is deleting or marked for deletion")]
    Deleting,
    /// Not registered.
    #[error("node isn't registered")]
    Unregistered,
    /// Registered, not initialized; repair may go on regardless.
    #[error("node isn't initialized")]
    Uninitialized,
    /// Pods are expected on it.
    #[error("node is nominated for a pending pod")]
    Nominated,
    /// Protected by its owner; repair may go on regardless.
    #[error("disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation")]
    DoNotDisrupt,
    /// Without a NodePool there is no budget to disrupt it by.
    #[error("node doesn't have required label \"karpenter.sh/nodepool\"")]
    NoNodePool,
}

impl Machine {
    /// The name that the engine knows the machine by.
    pub fn name(&self) -> &str {
        &self.view.name
    }

    /// The provider ID, if it has one.
    pub fn provider_id(&self) -> Option<&str> {
        self.view.provider_id.as_deref()
    }

    /// Whether a NodeClaim stands behind it.
    pub fn is_managed(&self) -> bool {
        self.claim.is_some()
    }

    /// Going away: by our decision, or because its NodeClaim (or, unmanaged, its Node) is being deleted.
    pub fn is_marked_for_deletion(&self) -> bool {
        self.view.deleting
    }

    /// Whether pods are expected on it.
    pub fn is_nominated(&self, now: Timestamp) -> bool {
        self.nominated_until.is_some_and(|until| until > now)
    }

    /// Whether the last plan put virtual pods of CapacityBuffers on it.
    pub fn holds_buffer_pods(&self) -> bool {
        self.holds_buffer_pods
    }

    /// The name by which decisions about it are kept: its claim's, because a node is called otherwise before it registers.
    pub(super) fn lasting_name(&self) -> &str {
        self.view.node_claim.as_deref().unwrap_or(&self.view.name)
    }

    /// Whether a reboot is under way.
    pub fn is_rebooting(&self) -> bool {
        self.claim
            .as_ref()
            .is_some_and(|claim| claim.is_true(condition::REBOOTING))
    }

    /// Whether its capacity is taken as the node reports it.
    pub fn is_initialized(&self) -> bool {
        self.view.is_initialized()
    }

    /// The NodePool it belongs to.
    pub fn node_pool(&self) -> Option<&str> {
        self.view.node_pool.as_deref()
    }

    /// An annotation of the Node once registered, of the NodeClaim before.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let node = self.node.as_ref().map(|node| &node.metadata);
        let claim = self.claim.as_ref().map(|claim| &claim.metadata);
        let metadata = match self.view.lifecycle {
            Lifecycle::Unmanaged | Lifecycle::Registered | Lifecycle::Initialized => node.or(claim),
            Lifecycle::Launched => claim.or(node),
        };
        metadata?.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether the machine may be disrupted, by what is known of it alone; its pods are another question.
    ///
    /// # Errors
    /// The first reason against it. Being uninitialized is looked at before nominations, because provisioning keeps
    /// nominating nodes that are still coming up.
    pub fn disruptable(&self, now: Timestamp) -> Result<(), NotDisruptable> {
        if self.claim.is_none() {
            return Err(NotDisruptable::Unmanaged);
        }
        if self.node.is_none() {
            return Err(NotDisruptable::NoNode);
        }
        if self.is_rebooting() {
            return Err(NotDisruptable::Rebooting);
        }
        if self.is_marked_for_deletion() {
            return Err(NotDisruptable::Deleting);
        }
        match self.view.lifecycle {
            Lifecycle::Launched => return Err(NotDisruptable::Unregistered),
            Lifecycle::Registered => return Err(NotDisruptable::Uninitialized),
            Lifecycle::Unmanaged | Lifecycle::Initialized => {}
        }
        if self.is_nominated(now) {
            return Err(NotDisruptable::Nominated);
        }
        if self.annotation(annotations::DO_NOT_DISRUPT) == Some("true") {
            return Err(NotDisruptable::DoNotDisrupt);
        }
        if !self.view.labels.contains_key(labels::NODEPOOL) {
            return Err(NotDisruptable::NoNodePool);
        }
        Ok(())
    }
}
