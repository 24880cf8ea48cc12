//! The answer: nodes to launch, pods placed on nodes that exist, and why the rest found no place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::{Requirement, Requirements, Undefined};
use karpenter_api::resources::ResourceList;

use crate::model::{InstanceType, Labels, NodePool, Pod};
use crate::reason::Unschedulable;

#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// In the order in which they were opened.
    pub claims: Vec<PlannedClaim>,
    /// Existing nodes that take at least one pod, in scheduling order.
    pub existing: Vec<NodePlacement>,
    pub unschedulable: Vec<Unschedulable>,
    /// Pods that wait for a reservation which others hold in this pass; not a failure (scheduling.md §3.12).
    pub deferred: Vec<Unschedulable>,
    /// Pods that were not decided on when the budget ran out; neither placed nor failed.
    pub not_reached: Vec<Arc<Pod>>,
    /// Soft constraints that were given up, per placed pod.
    pub relaxations: Vec<Relaxed>,
    /// NodePools whose requirements leave no instance type, with the sentence for the event on the NodePool.
    pub empty_pools: Vec<EmptyPool>,
    /// How many pending pods can go to which zone, whether they found a place or not. Empty for a "what if" question.
    pub pending_by_zone: BTreeMap<EffectiveZone, usize>,
}

/// Where a pod's node selector, required affinity, volumes and topology rules let it go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectiveZone {
    Only(Arc<str>),
    /// To several zones, or to any.
    Flexible,
    Nowhere,
}

impl EffectiveZone {
    /// As metrics name it.
    pub fn label(&self) -> &str {
        match self {
            EffectiveZone::Only(zone) => zone,
            EffectiveZone::Flexible => "flexible",
            EffectiveZone::Nowhere => "none",
        }
    }
}

impl Plan {
    /// Price per hour of the cheapest offering of every new claim.
    pub fn price(&self) -> f64 {
        self.claims
            .iter()
            .filter_map(|claim| claim.cheapest.as_ref())
            .map(|cheapest| cheapest.price)
            .sum()
    }

    /// Every pod found a place.
    pub fn is_complete(&self) -> bool {
        self.unschedulable.is_empty() && self.deferred.is_empty() && self.not_reached.is_empty()
    }
}

/// A node to launch.
#[derive(Debug, Clone)]
pub struct PlannedClaim {
    pub node_pool: Arc<NodePool>,
    /// Ascending by the price of the cheapest launchable compatible offering, then by name; cut as for a NodeClaim.
    pub instance_types: Arc<[Arc<InstanceType>]>,
    /// Final: the placeholder hostname is gone, reservations and simulation-only keys are settled. Does not yet name the
    /// instance types.
    pub requirements: Arc<Requirements>,
    /// What the node will carry: template labels and one concrete value per custom requirement.
    pub labels: Arc<Labels>,
    pub pods: Vec<Arc<Pod>>,
    /// Pods and the least daemon overhead among the instance types.
    pub requests: ResourceList,
    /// `None` only when no launchable offering is left (a full reservation).
    pub cheapest: Option<LaunchOffering>,
    /// Reservations that this claim holds.
    pub reservations: Vec<String>,
    /// minValues were lowered to what the catalogue has (BestEffort).
    pub min_values_relaxed: bool,
    pub price_overlaid: bool,
    pub capacity_overlaid: bool,
}

impl PlannedClaim {
    /// The requirements of the NodeClaim: those of the plan, with the instance types by name and the capacity types narrowed
    /// to what can be bought of them now (scheduling.md §4.8).
    pub fn launch_requirements(&self, rules: &LabelRules) -> Requirements {
        let mut requirements = (*self.requirements).clone();
        let names = self
            .instance_types
            .iter()
            .map(|instance_type| instance_type.name.as_str());
        let min_values = requirements
            .get(labels::INSTANCE_TYPE)
            .and_then(Requirement::min_values);
        requirements.replace(Requirement::within(labels::INSTANCE_TYPE, names).with_min_values(min_values));
        let bought = self
            .instance_types
            .iter()
            .flat_map(|instance_type| &instance_type.offerings);
        let bought = bought.filter(|offering| offering.is_launchable()).filter(|offering| {
            self.requirements
                .is_compatible(&offering.requirements, Undefined::WellKnown(rules))
        });
        let capacity_types: BTreeSet<&str> = bought
            .filter_map(|offering| offering.requirements.get(labels::CAPACITY_TYPE)?.single_value())
            .collect();
        if !capacity_types.is_empty() {
            requirements.add(Requirement::within(labels::CAPACITY_TYPE, capacity_types));
        }
        requirements
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct LaunchOffering {
    pub instance_type: String,
    pub zone: String,
    pub capacity_type: String,
    pub price: f64,
}

#[derive(Debug, Clone)]
pub struct NodePlacement {
    pub node: Arc<str>,
    pub pods: Vec<Arc<Pod>>,
}

#[derive(Debug, Clone)]
pub struct Relaxed {
    pub pod: Arc<Pod>,
    pub steps: Arc<[Relaxation]>,
}

/// One soft constraint that was given up (scheduling.md §6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relaxation {
    /// Moved on to the next of several required node-affinity terms.
    RequiredNodeTerm {
        remaining: usize,
    },
    PreferredPodAffinity {
        topology_key: String,
    },
    PreferredPodAntiAffinity {
        topology_key: String,
    },
    PreferredNodeTerm {
        weight: i32,
    },
    ScheduleAnywaySpread {
        topology_key: String,
    },
    ToleratePreferNoSchedule,
}

#[derive(Debug, Clone)]
pub struct EmptyPool {
    pub node_pool: Arc<NodePool>,
    pub min_values_unmet: bool,
}
