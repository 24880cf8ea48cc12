//! A machine: a Node, its NodeClaim, or both, with what we decided about it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as kube;
use karpenter_api::NodeClaim;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition;
use karpenter_engine::disruption::pods::is_reschedulable;
use karpenter_engine::model::{Lifecycle, Node};

/// Whether a machine was marked for deletion by a decision of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Kept,
    Deleting,
}

/// Since when a machine has had no pod that would have to be placed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptySince {
    /// This process saw the last one leave.
    Departure(Timestamp),
    /// This process saw none on it. It can be used since then, or the process runs since then.
    Unused(Timestamp),
}

/// When the last pod left that would have had to be placed elsewhere, of a machine that is empty since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The machine's NodePool.
    pub pool: String,
    /// When the pod left.
    pub at: Timestamp,
    /// Until when other pods are expected there; may be over.
    pub nominated_until: Option<Timestamp>,
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
    /// When this process last saw a pod leave that would have to be placed elsewhere.
    pub(super) last_departure: Option<Timestamp>,
    pub(super) holds_buffer_pods: bool,
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

    /// Since when, as far as this machine's objects tell, no pod has been on it that would have to be placed elsewhere;
    /// `None` while there is one, or while it is not initialized.
    pub(super) fn empty_since(&self) -> Option<EmptySince> {
        if self.view.pods().iter().any(|pod| is_reschedulable(pod)) {
            return None;
        }
        let initialized = self.claim.as_ref()?.condition(condition::INITIALIZED)?;
        let usable_since = initialized.is_true().then(|| initialized.transitioned_at())?;
        Some(match self.last_departure.filter(|left| *left >= usable_since) {
            Some(left) => EmptySince::Departure(left),
            None => EmptySince::Unused(usable_since),
        })
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
}
