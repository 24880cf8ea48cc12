//! What a disruption costs in moved pods (disruption.md §2).

use jiff::Timestamp;

use super::fleet::{ClaimFacts, DeletionCost};
use super::pods;
use crate::model::{Node, Pod};

/// Every node costs this much to disturb, however few pods run on it.
pub const NODE: f64 = 1.0;

const DELETION_COST_DIVISOR: f64 = (1_u64 << 27) as f64;
const PRIORITY_DIVISOR: f64 = (1_u64 << 25) as f64;

/// What evicting one pod costs: 1 for a plain one, more with priority or a deletion cost, within ±10.
pub fn eviction(pod: &Pod, deletion_cost: DeletionCost) -> f64 {
    let annotated = match (pod.disruption_cost, deletion_cost) {
        (Some(cost), _) => cost,
        (None, DeletionCost::ByUsers) => pod.deletion_cost,
        (None, DeletionCost::ByKarpenter) => 0,
    };
    let cost = 1.0 + f64::from(annotated) / DELETION_COST_DIVISOR + f64::from(pod.priority) / PRIORITY_DIVISOR;
    cost.clamp(-10.0, 10.0)
}

/// What moving the node's pods costs; at most [`NODE`] when nothing on it needs a new place.
pub fn rescheduling(node: &Node, deletion_cost: DeletionCost) -> f64 {
    let pods = node.pods().iter().filter(|pod| pods::is_reschedulable(pod));
    NODE + pods.map(|pod| eviction(pod, deletion_cost).max(0.0)).sum::<f64>()
}

/// What losing the node now costs, less the shorter it had to live anyway.
pub fn disruption(node: &Node, claim: &ClaimFacts, deletion_cost: DeletionCost, now: Timestamp) -> f64 {
    let pods: f64 = node.pods().iter().map(|pod| eviction(pod, deletion_cost)).sum();
    pods * claim.lifetime_remaining(now)
}
