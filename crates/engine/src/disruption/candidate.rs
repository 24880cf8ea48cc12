//! Which nodes may be disrupted at all, and the first reason why a node may not (disruption.md §1.7).

use std::fmt;
use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::node_pool::ConsolidationPolicy;

use super::fleet::{ClaimFacts, Fleet, Member, PoolPolicy};
use super::pdb::Refusal;
use super::{cost, pods, price};
use crate::model::{InstanceType, Lifecycle, Node, Pod};

/// How gently a method must treat pods that stand in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Emptiness and consolidation: any blocking pod keeps the node.
    Graceful,
    /// Drift: a blocking pod keeps the node unless a termination grace period bounds the drain.
    Eventual,
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
}

/// Why a node stays. The sentence is what users read in events, `simulate` and `explain`.
#[derive(Debug, Clone, PartialEq)]
pub enum Blocked {
    AlreadyDisrupting,
    Unmanaged,
    NoNode,
    Rebooting,
    Leaving,
    NotRegistered,
    NotInitialized,
    Nominated,
    DoNotDisrupt,
    NoPoolLabel,
    PoolNotFound(String),
    ProtectedPod(String),
    PodBudget { pod: String, refusal: Refusal },
    // What only some methods mind.
    StaticPool,
    ConsolidationDisabled,
    BufferPods,
    OnlyWhenEmpty,
    UnknownInstanceType,
    MissingLabel(&'static str),
    NotConsolidatableYet,
    NotDrifted,
    BudgetUsedUp { pool: String, reason: &'static str },
    CannotReschedule(String),
    TooManyReplacements(usize),
    NothingCheaper,
    MinValuesUnmet,
    SpotToSpotDisabled,
    TooFewSpotTypes { needed: usize, found: usize },
    NotWorthIt { pool: String, score: f64 },
}

impl Candidate {
    /// Builds a candidate of the member, or says what keeps it (rules 1 and 3–12, in that order).
    pub fn of(fleet: &Fleet, member: &Member, class: Class) -> Result<Candidate, Blocked> {
        let standing = &member.standing;
        if standing.queued {
            return Err(Blocked::AlreadyDisrupting);
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
        match member.node.lifecycle {
            Lifecycle::Unmanaged | Lifecycle::Initialized => {}
            Lifecycle::Launched => return Err(Blocked::NotRegistered),
            Lifecycle::Registered => return Err(Blocked::NotInitialized),
        }
        if standing.nominated {
            return Err(Blocked::Nominated);
        }
        if standing.do_not_disrupt {
            return Err(Blocked::DoNotDisrupt);
        }
        let Some(pool) = member.pool() else {
            return Err(Blocked::NoPoolLabel);
        };
        match fleet.pools.get(pool) {
            Some(policy) if policy.has_instance_types => {}
            _ => return Err(Blocked::PoolNotFound(pool.to_owned())),
        }
        if let Err(blocked) = check_pods(fleet, &member.node)
            && (class == Class::Graceful || claim.termination_grace_period.is_none())
        {
            return Err(blocked);
        }
        Ok(Candidate::build(fleet, &member.node, claim, pool))
    }

    fn build(fleet: &Fleet, node: &Arc<Node>, claim: &Arc<ClaimFacts>, pool: &str) -> Candidate {
        let instance_type = node
            .labels
            .get(labels::INSTANCE_TYPE)
            .and_then(|name| fleet.snapshot.catalog.instance_type(pool, name))
            .cloned();
        let price = instance_type
            .as_deref()
            .and_then(|instance_type| price::of_node(instance_type, &node.labels))
            .unwrap_or(0.0);
        Candidate {
            node: Arc::clone(node),
            claim: Arc::clone(claim),
            pool: pool.to_owned(),
            instance_type,
            price,
            rescheduling_cost: cost::rescheduling(node, fleet.gates.deletion_cost),
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
        self.node.pods().iter().filter(move |pod| {
            pods::is_reschedulable(pod)
                && !pods::is_protected(pod, now)
                && fleet.pod_budgets.check_ever(pod, now).is_ok()
        })
    }

    pub fn policy<'a>(&self, fleet: &'a Fleet) -> &'a PoolPolicy {
        fleet
            .pools
            .get(&self.pool)
            .expect("a candidate's pool is known: Candidate::of checked it")
    }

    /// Whether emptiness may take it (disruption.md §3.1).
    pub fn check_emptiness(&self, fleet: &Fleet, member: &Member) -> Result<(), Blocked> {
        let policy = self.policy(fleet);
        if policy.is_static {
            return Err(Blocked::StaticPool);
        }
        if policy.consolidate_after.is_none() {
            return Err(Blocked::ConsolidationDisabled);
        }
        if member.standing.holds_buffer_pods {
            return Err(Blocked::BufferPods);
        }
        if !self.is_empty() {
            return Err(Blocked::OnlyWhenEmpty);
        }
        if !self.claim.consolidatable {
            return Err(Blocked::NotConsolidatableYet);
        }
        Ok(())
    }

    /// Whether consolidation may move its pods (disruption.md §3.4). Empty nodes are emptiness's business.
    pub fn check_consolidation(&self, fleet: &Fleet) -> Result<(), Blocked> {
        let policy = self.policy(fleet);
        if policy.is_static {
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
        if policy.consolidation_policy == ConsolidationPolicy::WhenEmpty {
            return Err(Blocked::OnlyWhenEmpty);
        }
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

// === impl Blocked ===

impl Blocked {
    /// Whether users get an event about it; the rest is ordinary life.
    pub fn is_worth_an_event(&self) -> bool {
        !matches!(
            self,
            Blocked::AlreadyDisrupting
                | Blocked::Unmanaged
                | Blocked::StaticPool
                | Blocked::NotConsolidatableYet
                | Blocked::NotDrifted
                | Blocked::NotWorthIt { .. }
                | Blocked::BudgetUsedUp { .. }
        )
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::AlreadyDisrupting => f.write_str("a disruption of this node is under way"),
            Blocked::Unmanaged => f.write_str("Karpenter does not manage this node: it has no NodeClaim"),
            Blocked::NoNode => f.write_str("the NodeClaim has no Node yet"),
            Blocked::Rebooting => f.write_str("the node is rebooting"),
            Blocked::Leaving => f.write_str("the node is already being deleted"),
            Blocked::NotRegistered => f.write_str("the node has not registered yet"),
            Blocked::NotInitialized => f.write_str("the node is not initialized yet"),
            Blocked::Nominated => f.write_str("the node is nominated for a pending pod"),
            Blocked::DoNotDisrupt => f.write_str("the node has the annotation karpenter.sh/do-not-disrupt"),
            Blocked::NoPoolLabel => f.write_str("the node has no karpenter.sh/nodepool label"),
            Blocked::PoolNotFound(pool) => {
                write!(
                    f,
                    "NodePool {pool} does not exist, or no instance types are known for it"
                )
            }
            Blocked::ProtectedPod(pod) => write!(f, "pod {pod} has do-not-disrupt"),
            Blocked::PodBudget {
                pod,
                refusal: Refusal::Exhausted(budget),
            } => {
                write!(f, "PodDisruptionBudget {budget} allows no eviction of pod {pod}")
            }
            Blocked::PodBudget {
                pod,
                refusal: Refusal::Several(budgets),
            } => {
                write!(
                    f,
                    "pod {pod} is covered by several PodDisruptionBudgets ({}), so it cannot be evicted",
                    budgets.join(", ")
                )
            }
            Blocked::StaticPool => f.write_str("its NodePool is static"),
            Blocked::ConsolidationDisabled => f.write_str("its NodePool has consolidateAfter: Never"),
            Blocked::BufferPods => f.write_str("it holds capacity for a CapacityBuffer"),
            Blocked::OnlyWhenEmpty => f.write_str("its NodePool consolidates only empty nodes, and pods run on it"),
            Blocked::UnknownInstanceType => {
                f.write_str("its instance type is not known, so nothing cheaper can be looked for")
            }
            Blocked::MissingLabel(key) => write!(f, "it has no label {key}, so its price is not known"),
            Blocked::NotConsolidatableYet => f.write_str("pods came or went less than consolidateAfter ago"),
            Blocked::NotDrifted => f.write_str("it has not drifted"),
            Blocked::BudgetUsedUp { pool, reason } => {
                write!(
                    f,
                    "the disruption budget of NodePool {pool} allows no more nodes for reason {reason} now"
                )
            }
            Blocked::CannotReschedule(why) => write!(f, "its pods would not fit elsewhere: {why}"),
            Blocked::TooManyReplacements(count) => {
                write!(
                    f,
                    "its pods would need {count} new nodes, and one node is replaced by at most one"
                )
            }
            Blocked::NothingCheaper => f.write_str("no cheaper instance type holds its pods"),
            Blocked::MinValuesUnmet => {
                f.write_str("too few cheaper instance types are left for the NodePool's minValues")
            }
            Blocked::SpotToSpotDisabled => {
                f.write_str("replacing spot by cheaper spot needs the feature gate SpotToSpotConsolidation")
            }
            Blocked::TooFewSpotTypes { needed, found } => {
                write!(
                    f,
                    "replacing spot by spot needs {needed} cheaper instance types, and there are {found}"
                )
            }
            Blocked::NotWorthIt { pool, score } => {
                write!(
                    f,
                    "the saving is too small for the pods it would move: score {score:.2} of at least 0.50 (NodePool {pool} is Balanced)"
                )
            }
        }
    }
}
