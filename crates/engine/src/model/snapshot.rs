//! One consistent view of the cluster, cheap to clone, that decisions are made on.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Labels;
use super::node::Node;
use super::pod::{DaemonPod, Pod, SpreadConstraint};
use super::selector::LabelSelector;
use super::volume::VolumeFacts;
use crate::catalog::Catalog;

/// Everything that a pass looks at. All parts are shared: a clone costs a few reference counts.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// NodePools with their instance types, interned.
    pub catalog: Arc<Catalog>,
    /// All nodes; those marked `deleting` give no capacity but their pods still exist.
    pub nodes: Arc<[Arc<Node>]>,
    /// Pods to place: pending ones that passed validation, then those of deleting nodes, then buffer pods.
    pub pods: Arc<[Arc<Pod>]>,
    pub daemons: Arc<[Arc<DaemonPod>]>,
    pub namespaces: Arc<BTreeMap<String, Labels>>,
    pub volumes: Arc<VolumeFacts>,
    pub workloads: Arc<WorkloadSelectors>,
    pub options: Options,
}

impl Snapshot {
    /// A cluster with nothing in it but what the catalogue offers.
    pub fn new(catalog: Arc<Catalog>, options: Options) -> Snapshot {
        Snapshot {
            catalog,
            nodes: Arc::default(),
            pods: Arc::default(),
            daemons: Arc::default(),
            namespaces: Arc::default(),
            volumes: Arc::default(),
            workloads: Arc::default(),
            options,
        }
    }
}

/// What default spread constraints select by (scheduling.md §5.9). Needed only when defaults are configured.
#[derive(Debug, Clone, Default)]
pub struct WorkloadSelectors {
    /// Service selectors by namespace, in name order; Services without a selector are left out.
    pub services: BTreeMap<String, Vec<Labels>>,
    /// Selectors of ReplicationControllers, ReplicaSets and StatefulSets by (namespace, kind, name).
    pub controllers: BTreeMap<(String, String, String), LabelSelector>,
}

/// How to decide.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub now: Timestamp,
    pub seed: u64,
    pub preference_policy: PreferencePolicy,
    pub min_values_policy: MinValuesPolicy,
    pub packing: Packing,
    pub reserved_capacity: ReservedCapacity,
    pub reserved_mode: ReservedMode,
    /// How many instance types a NodeClaim may name.
    pub max_instance_types: usize,
    /// Spread constraints for pods that have none of their own.
    pub default_spread: Arc<[SpreadConstraint]>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            now: Timestamp::UNIX_EPOCH,
            seed: 0,
            preference_policy: PreferencePolicy::Respect,
            min_values_policy: MinValuesPolicy::Strict,
            packing: Packing::Compatible,
            reserved_capacity: ReservedCapacity::Used,
            reserved_mode: ReservedMode::Strict,
            max_instance_types: 600,
            default_spread: Arc::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// Preferences are hard until they are given up one by one.
    Respect,
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinValuesPolicy {
    Strict,
    BestEffort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// What upstream decides.
    Compatible,
    /// Never dearer than `Compatible`, usually cheaper.
    Cost,
}

/// The `ReservedCapacity` feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedCapacity {
    Used,
    Off,
}

/// What happens when reservations exist but are taken (scheduling.md §4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedMode {
    /// Wait for the reservation: provisioning.
    Strict,
    /// Use other capacity: disruption simulations.
    Fallback,
}
