//! In which order nodes should lose pods when a ReplicaSet shrinks, so that scale-downs empty the nodes that are to go anyway
//! (disruption.md §9).

use std::sync::Arc;

use karpenter_api::budget::DisruptionReason;
use karpenter_api::labels;
use karpenter_api::taint::DISRUPTED_KEY;

use super::budget::Budgets;
use super::candidate::{Candidate, Class};
use super::fleet::{Fleet, Member};
use super::{cost, price};
use crate::model::{Effect, Pod};

/// What the pods of each node should cost to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranking {
    /// Nodes on their way out: their pods go first.
    pub going: Vec<Arc<str>>,
    /// Nodes that may be disrupted, the ones to empty first with the lowest rank; all below 0, so that pods on nodes that are
    /// not ranked live longest.
    pub ranked: Vec<(Arc<str>, i32)>,
    /// Nodes about which nothing is to be said.
    pub cleared: Vec<Arc<str>>,
}

/// How many nodes' pods are written in one cycle, those on their way out not counted.
pub const NODES_PER_CYCLE: usize = 50;

impl Ranking {
    /// The nodes whose pods are to be written in one cycle, and what those should cost; `None` is nothing at all. Only nodes
    /// where something `differs` from that are due, and only they count: all that are going, and as many of the others as
    /// one cycle may take, ranked ones first.
    pub fn due(&self, differs: impl Fn(&str, Option<i32>) -> bool) -> Vec<(Arc<str>, Option<i32>)> {
        let going = self.going.iter().map(|node| (node, Some(i32::MIN)));
        let ranked = self.ranked.iter().map(|(node, rank)| (node, Some(*rank)));
        let cleared = self.cleared.iter().map(|node| (node, None));
        let is_due = |(node, cost): &(&Arc<str>, Option<i32>)| differs(node, *cost);
        going
            .filter(is_due)
            .chain(ranked.chain(cleared).filter(is_due).take(NODES_PER_CYCLE))
            .map(|(node, cost)| (Arc::clone(node), cost))
            .collect()
    }
}

/// Ranks the nodes that Karpenter manages. `is_pinned` tells pods that no ReplicaSet, Job or DaemonSet would make anew
/// elsewhere: their node will not be emptied by scaling something down.
pub fn rank(fleet: &Fleet, is_pinned: &dyn Fn(&Pod) -> bool) -> Ranking {
    let mut members: Vec<(&Member, f64)> = fleet
        .members
        .iter()
        .filter(|member| member.claim.is_some())
        .map(|member| (member, savings_ratio(fleet, member)))
        .collect();
    members
        .sort_by(|(a, ratio_a), (b, ratio_b)| ratio_b.total_cmp(ratio_a).then_with(|| a.node.name.cmp(&b.node.name)));
    let mut drifted_budget = Budgets::of(fleet, DisruptionReason::Drifted);
    let mut other_budget = Budgets::of(fleet, DisruptionReason::Underutilized);
    let mut ranking = Ranking::default();
    let (mut drifted, mut others) = (Vec::new(), Vec::new());
    for (member, _) in members {
        let name = Arc::clone(&member.node.name);
        let pool = member.pool().unwrap_or_default();
        match group(fleet, member, is_pinned) {
            Group::Going => ranking.going.push(name),
            Group::Drifted if drifted_budget.spend(pool) => drifted.push(name),
            Group::Other if other_budget.spend(pool) => others.push(name),
            Group::Drifted | Group::Other | Group::Cleared => ranking.cleared.push(name),
        }
    }
    let count = i32::try_from(drifted.len() + others.len()).unwrap_or(i32::MAX);
    ranking.ranked = drifted.into_iter().chain(others).zip(-count..0).collect();
    ranking
}

enum Group {
    Going,
    Drifted,
    Other,
    Cleared,
}

fn group(fleet: &Fleet, member: &Member, is_pinned: &dyn Fn(&Pod) -> bool) -> Group {
    let is_tainted = |member: &Member| {
        let mut taints = member.node.raw_taints.iter();
        taints.any(|taint| taint.key == DISRUPTED_KEY && taint.effect == Effect::NoSchedule)
    };
    if member.standing.leaving || is_tainted(member) {
        return Group::Going;
    }
    let Ok(candidate) = Candidate::of(fleet, member, Class::Graceful) else {
        return Group::Cleared;
    };
    let is_unpriceable = candidate.instance_type.is_none() && candidate.node.labels.contains_key(labels::INSTANCE_TYPE);
    if is_unpriceable || member.node.pods().iter().any(|pod| is_pinned(pod)) {
        return Group::Cleared;
    }
    let policy = candidate.policy(fleet);
    if !policy.is_static() && candidate.claim.drifted_since.is_some() {
        return Group::Drifted;
    }
    match policy.consolidate_after {
        Some(_) => Group::Other,
        None => Group::Cleared,
    }
}

fn savings_ratio(fleet: &Fleet, member: &Member) -> f64 {
    let kind = member.node.labels.get(labels::INSTANCE_TYPE);
    let kind = kind.and_then(|kind| fleet.snapshot.catalog.instance_type(member.pool()?, kind));
    let price = kind
        .and_then(|kind| price::of_node(fleet.snapshot.catalog.label_rules(), kind, &member.node.labels))
        .unwrap_or(0.0);
    price / cost::rescheduling(&member.node, fleet.gates.deletion_cost)
}
