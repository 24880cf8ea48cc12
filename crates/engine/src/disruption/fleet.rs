//! What disruption looks at: nodes with their claims, pool policies, and what is already going on.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::budget::Budget;
use karpenter_api::node_pool::ConsolidationPolicy;

use super::pdb::PodDisruptionBudgets;
use super::repair::Ailment;
use super::tuning::Tuning;
use crate::model::{Node, Snapshot};

/// One consistent view for one pass. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// What simulations run on: every node, the pending pods that passed validation, pools and instance types.
    pub snapshot: Snapshot,
    pub members: Arc<[Member]>,
    pub pools: Arc<BTreeMap<String, PoolPolicy>>,
    pub pod_budgets: Arc<PodDisruptionBudgets>,
    pub gates: Gates,
    /// The node label that names a capacity reservation, where the provider has such.
    pub reservation_label: Option<String>,
}

/// Feature gates that change what disruption may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gates {
    pub spot_to_spot: SpotToSpot,
    pub deletion_cost: DeletionCost,
    /// The `TerminateFirstDrift` gate.
    pub drift: Swap,
    /// The `TerminateFirstRepair` gate.
    pub repair: Swap,
}

/// What may happen to a node whose replacement finds no room beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Swap {
    /// It stays until there is room.
    #[default]
    ReplaceFirst,
    /// It may go first, so that its replacement takes its place.
    TerminateFirst,
}

/// The `SpotToSpotConsolidation` gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpotToSpot {
    #[default]
    Refused,
    Allowed,
}

/// Who writes `controller.kubernetes.io/pod-deletion-cost` (gate `PodDeletionCostManagement`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionCost {
    /// Users do, so it says how dear a pod is to evict.
    #[default]
    ByUsers,
    /// Karpenter does; reading it back would feed the ranking into itself.
    ByKarpenter,
}

/// A node of the cluster, with its claim if Karpenter made it.
#[derive(Debug, Clone)]
pub struct Member {
    pub node: Arc<Node>,
    pub claim: Option<Arc<ClaimFacts>>,
    pub standing: Standing,
    pub health: Health,
}

/// What the provider's repair policies make of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Health {
    /// It has a condition that some policy names, tolerated still or not: what the circuit breaker counts.
    pub is_unhealthy: bool,
    /// What is to be done about it now.
    pub ailment: Option<Arc<Ailment>>,
    /// Annotation `karpenter.sh/do-not-repair: "true"` on the node.
    pub do_not_repair: bool,
}

/// What a NodeClaim says about itself that matters for disruption.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimFacts {
    pub name: String,
    pub uid: String,
    pub created: Timestamp,
    /// `None` is `Never`.
    pub expire_after: Option<SignedDuration>,
    pub termination_grace_period: Option<SignedDuration>,
    /// When `Initialized` became True.
    pub initialized_since: Option<Timestamp>,
    pub last_pod_event: Option<Timestamp>,
    /// Condition `Consolidatable` is True.
    pub consolidatable: bool,
    /// When `Drifted` became True.
    pub drifted_since: Option<Timestamp>,
    /// Why: the drift reason.
    pub drift_reason: Option<String>,
}

/// What is happening to a node right now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// A command that is being carried out owns the node.
    pub queued: bool,
    /// Marked for deletion in memory, deleted through the API, or its instance is terminating.
    pub leaving: bool,
    /// Condition `InstanceTerminating` is True: the node hardly counts any more.
    pub instance_terminating: bool,
    pub rebooting: bool,
    /// Pods that are not bound yet are expected here.
    pub nominated: bool,
    /// The node's Ready condition is not True.
    pub not_ready: bool,
    /// Annotation `karpenter.sh/do-not-disrupt: "true"` on the node.
    pub do_not_disrupt: bool,
    /// Pods of a CapacityBuffer were last placed here.
    pub holds_buffer_pods: bool,
}

/// What a NodePool says about disrupting its nodes. Pools that are not here are unknown or unmanaged.
#[derive(Debug, Clone)]
pub struct PoolPolicy {
    /// Set for a pool with a fixed number of nodes (`spec.replicas`).
    pub fixed: Option<FixedSize>,
    pub consolidation_policy: ConsolidationPolicy,
    /// `None` is `Never`.
    pub consolidate_after: Option<SignedDuration>,
    pub budgets: Vec<Budget>,
    /// Sum of the prices of all its nodes as tracked by state; 0 when not known.
    pub tracked_cost: f64,
    /// False when no instance type of the pool could be listed: its nodes are then left alone.
    pub has_instance_types: bool,
    /// What the pool asks for beyond upstream's rules.
    pub tuning: Tuning,
}

/// How many nodes a static pool has, is losing and is about to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedSize {
    /// `spec.replicas`.
    pub replicas: usize,
    /// `spec.limits.nodes`.
    pub limit: usize,
    /// Here to stay.
    pub active: usize,
    /// Chosen to be replaced; the replacement does not exist yet.
    pub pending_disruption: usize,
    pub deleting: usize,
    /// Slots taken for nodes that are not created yet.
    pub reserved: usize,
    /// Ready and not being deleted: a node that goes is made up for.
    pub refills: bool,
}

// === impl Fleet ===

impl Fleet {
    pub fn now(&self) -> Timestamp {
        self.snapshot.options.now
    }
}

// === impl PoolPolicy ===

impl PoolPolicy {
    pub fn is_static(&self) -> bool {
        self.fixed.is_some()
    }
}

// === impl FixedSize ===

impl FixedSize {
    /// More nodes than replicas: the pool is about to lose some anyway.
    pub fn is_scaling_down(&self) -> bool {
        self.active + self.pending_disruption > self.replicas
    }

    /// How many nodes the limit leaves room for.
    pub fn room(&self) -> usize {
        let taken = self.active + self.pending_disruption + self.deleting + self.reserved;
        self.limit.saturating_sub(taken)
    }
}

// === impl Member ===

impl Member {
    pub fn pool(&self) -> Option<&str> {
        self.node.node_pool.as_deref()
    }
}

// === impl ClaimFacts ===

impl ClaimFacts {
    /// Since when nothing has happened on the node: the last pod event, or its initialization.
    pub fn quiet_since(&self) -> Option<Timestamp> {
        self.last_pod_event.or(self.initialized_since)
    }

    /// What is left of the node's life, from 1 (new, or never expiring) down to 0.
    pub fn lifetime_remaining(&self, now: Timestamp) -> f64 {
        let Some(lifetime) = self.expire_after else { return 1.0 };
        if lifetime <= SignedDuration::ZERO {
            return 0.0;
        }
        let age = now.duration_since(self.created);
        ((lifetime - age).as_secs_f64() / lifetime.as_secs_f64()).clamp(0.0, 1.0)
    }
}
