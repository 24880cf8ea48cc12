//! Which nodes may be disrupted at all, and the first reason why a node may not (disruption.md §1.7).

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::node_pool::ConsolidationPolicy;

use super::blocked::Blocked;
use super::fleet::{ClaimFacts, Fleet, Member, PoolPolicy};
use super::repair::Ailment;
use super::tuning::Pause;
use super::{cost, pods, price};
use crate::model::{InstanceType, Lifecycle, Node, Pod};

/// How gently a method must treat pods that stand in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Emptiness and consolidation: any blocking pod keeps the node.
    Graceful,
    /// Drift: a blocking pod keeps the node unless a termination grace period bounds the drain.
    Eventual,
    /// Repair: the node is broken, so what its owner or its pods wish counts less.
    Repair,
}

/// A node that a method may consider.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub node: Arc<Node>,
    pub claim: Arc<ClaimFacts>,
    pub pool: String,
    /// `None` when the type label is missing or names a type that the provider does not list.
    pub instance_type: Option<Arc<InstanceType>>,
    /// Per hour; 0 when unknown.
    pub price: f64,
    /// What moving its pods costs; at most [`cost::NODE`] when there is nothing to move.
    pub rescheduling_cost: f64,
    /// The pod that stands in the way, where the class does not mind.
    pub obstacle: Option<Box<Blocked>>,
    pub ailment: Option<Arc<Ailment>>,
}

impl Candidate {
    /// Builds a candidate of the member, or says what keeps it (rules 1 and 3–12, in that order).
    pub fn of(fleet: &Fleet, member: &Member, class: Class) -> Result<Candidate, Blocked> {
        let standing = &member.standing;
        if standing.queued {
            return Err(Blocked::AlreadyDisrupting);
        }
        if class == Class::Repair && member.claim.is_some() && member.pool().is_none() {
            return Err(Blocked::NoPoolLabel);
        }
        let Some(claim) = &member.claim else {
            return Err(Blocked::Unmanaged);
        };
        if !member.node.has_node {
            return Err(Blocked::NoNode);
        }
        if standing.rebooting {
            return Err(Blocked::Rebooting);
        }
        if standing.leaving || standing.instance_terminating {
            return Err(Blocked::Leaving);
        }
        match (member.node.lifecycle, class) {
            (Lifecycle::Launched, _) => return Err(Blocked::NotRegistered),
            // Provisioning keeps nominating a node that does not come up while pods wait for it: that must not hide it
            // from repair.
            (Lifecycle::Registered, Class::Repair) => {}
            (Lifecycle::Registered, Class::Graceful | Class::Eventual) => return Err(Blocked::NotInitialized),
            (Lifecycle::Unmanaged | Lifecycle::Initialized, _) if standing.nominated => return Err(Blocked::Nominated),
            (Lifecycle::Unmanaged | Lifecycle::Initialized, Class::Repair) => {}
            (Lifecycle::Unmanaged | Lifecycle::Initialized, Class::Graceful | Class::Eventual) => {
                if standing.do_not_disrupt {
                    return Err(Blocked::DoNotDisrupt);
                }
            }
        }
        let Some(pool) = member.pool() else {
            return Err(Blocked::NoPoolLabel);
        };
        match fleet.pools.get(pool) {
            Some(policy) if policy.has_instance_types => match &policy.tuning.pause {
                Pause::Off => {}
                Pause::Pool => return Err(Blocked::Paused(pool.to_owned())),
                Pause::Everything(namespace) => return Err(Blocked::AllPaused(namespace.clone())),
            },
            Some(_) | None => return Err(Blocked::PoolNotFound(pool.to_owned())),
        }
        let obstacle = check_pods(fleet, &member.node).err();
        let minds = match class {
            Class::Graceful => true,
            Class::Eventual => claim.termination_grace_period.is_none(),
            Class::Repair => false,
        };
        if let Some(blocked) = obstacle.as_ref().filter(|_| minds) {
            return Err(blocked.clone());
        }
        let mut candidate = Candidate::build(fleet, &member.node, claim, pool);
        candidate.obstacle = obstacle.map(Box::new);
        candidate.ailment = member.health.ailment.clone();
        Ok(candidate)
    }

    fn build(fleet: &Fleet, node: &Arc<Node>, claim: &Arc<ClaimFacts>, pool: &str) -> Candidate {
        let instance_type = node
            .labels
            .get(labels::INSTANCE_TYPE)
            .and_then(|name| fleet.snapshot.catalog.instance_type(pool, name))
            .cloned();
        let price = instance_type
            .as_deref()
            .and_then(|instance_type| price::of_node(fleet.snapshot.catalog.label_rules(), instance_type, &node.labels))
            .unwrap_or(0.0);
        Candidate {
            node: Arc::clone(node),
            claim: Arc::clone(claim),
            pool: pool.to_owned(),
            instance_type,
            price,
            rescheduling_cost: cost::rescheduling(node, fleet.gates.deletion_cost),
            obstacle: None,
            ailment: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.node.name
    }

    pub fn capacity_type(&self) -> Option<&str> {
        self.node.labels.get(labels::CAPACITY_TYPE).map(String::as_str)
    }

    /// Nothing on it costs anything to move.
    pub fn is_empty(&self) -> bool {
        self.rescheduling_cost <= cost::NODE
    }

    /// Money saved per unit of disturbance, should the node go away.
    pub fn savings_ratio(&self) -> f64 {
        self.price / self.rescheduling_cost
    }

    /// The pods that must find another place, leaving out those that could not be evicted anyway (disruption.md §10.1).
    pub fn pods_to_move<'a>(&'a self, fleet: &'a Fleet) -> impl Iterator<Item = &'a Arc<Pod>> {
        let now = fleet.now();
        let pods = self.node.pods().iter();
        pods.filter(move |pod| fleet.pod_budgets.let_move(pod, now))
    }

    pub fn policy<'a>(&self, fleet: &'a Fleet) -> &'a PoolPolicy {
        fleet
            .pools
            .get(&self.pool)
            .expect("a candidate's pool is known: Candidate::of checked it")
    }

    /// All pods that would need another place, whether they can be evicted now or not: a bounded drain ends with them gone.
    pub fn reschedulable_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.node.pods().iter().filter(|pod| pods::is_reschedulable(pod))
    }

    /// Whether repair may take it (disruption.md §8.4).
    pub fn check_repair(&self, member: &Member) -> Result<(), Blocked> {
        let Some(ailment) = &self.ailment else {
            return Err(Blocked::Healthy);
        };
        if member.health.do_not_repair {
            return Err(Blocked::DoNotRepair);
        }
        let is_bounded = ailment.drain_bound.is_some() || self.claim.termination_grace_period.is_some();
        match &self.obstacle {
            Some(obstacle) if !is_bounded => Err((**obstacle).clone()),
            _ => Ok(()),
        }
    }

    /// Whether emptiness may take it (disruption.md §3.1).
    pub fn check_emptiness(&self, fleet: &Fleet, member: &Member) -> Result<(), Blocked> {
        let policy = self.policy(fleet);
        if policy.is_static() {
            return Err(Blocked::StaticPool);
        }
        if policy.consolidate_after.is_none() {
            return Err(Blocked::ConsolidationDisabled);
        }
        if member.standing.holds_buffer_pods {
            return Err(Blocked::BufferPods);
        }
        if !self.is_empty() {
            return Err(Blocked::NotEmpty);
        }
        if !self.claim.consolidatable {
            return Err(Blocked::NotConsolidatableYet);
        }
        Ok(())
    }

    /// Whether consolidation may move its pods (disruption.md §3.4). Empty nodes are emptiness's business.
    pub fn check_consolidation(&self, fleet: &Fleet) -> Result<(), Blocked> {
        let policy = self.policy(fleet);
        if policy.is_static() {
            return Err(Blocked::StaticPool);
        }
        if self.instance_type.is_none() {
            return Err(Blocked::UnknownInstanceType);
        }
        for key in [labels::CAPACITY_TYPE, labels::ZONE] {
            if !self.node.labels.contains_key(key) {
                return Err(Blocked::MissingLabel(key));
            }
        }
        if policy.consolidate_after.is_none() {
            return Err(Blocked::ConsolidationDisabled);
        }
        if self.is_empty() {
            // Emptiness's, so that the budget for Empty applies.
            return Err(Blocked::NotConsolidatableYet);
        }
        if policy.consolidation_policy == ConsolidationPolicy::WhenEmpty {
            return Err(Blocked::OnlyWhenEmpty);
        }
        policy.tuning.check_candidate(self.claim.created, fleet.now())?;
        if !self.claim.consolidatable {
            return Err(Blocked::NotConsolidatableYet);
        }
        Ok(())
    }
}

/// The first pod that keeps the node: protected ones before those that a budget covers.
fn check_pods(fleet: &Fleet, node: &Node) -> Result<(), Blocked> {
    let now = fleet.now();
    if let Some(pod) = node.pods().iter().find(|pod| pods::is_protected(pod, now)) {
        return Err(Blocked::ProtectedPod(pod.key()));
    }
    for pod in node.pods() {
        if let Err(refusal) = fleet.pod_budgets.check(pod, now) {
            return Err(Blocked::PodBudget {
                pod: pod.key(),
                refusal,
            });
        }
    }
    Ok(())
}
