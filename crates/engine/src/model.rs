//! The engine's immutable input: what a decision needs to know, and nothing that it does not.
//!
//! Kubernetes objects are converted at the edge and dropped. Everything that pods of one workload have in common is
//! behind an `Arc`, so that tens of thousands of running pods cost a few hundred bytes each.

pub mod instance_type;
pub mod node;
pub mod pod;
pub mod pool;
pub mod selector;
pub mod snapshot;
pub mod taint;
pub mod volume;

pub use instance_type::{InstanceType, Offering, OfferingOverrides, Overhead};
pub use node::{Lifecycle, Node};
pub use pod::{
    ControllerRef, DaemonPod, DoNotDisrupt, HostPort, Owner, Pod, PodAffinity, PodAffinityTerm, PodPhase, PodSpec,
    PreferredNodeTerm, Protocol, SpreadConstraint, SpreadPolicy, WeightedPodTerm, WhenUnsatisfiable,
};
pub use pool::{NodeClassRef, NodePool};
pub use selector::{LabelSelector, NamespaceScope, SelectorOperator, SelectorRequirement};
pub use snapshot::{
    MinValuesPolicy, Options, Packing, PreferencePolicy, ReservedCapacity, ReservedMode, Snapshot, WorkloadSelectors,
};
pub use taint::{Effect, Taint, Toleration, TolerationOperator, tolerates};
pub use volume::{ClaimFacts, ClaimTopology, VolumeFacts};

/// Kubernetes labels, ordered so that equal sets compare and print equally.
pub type Labels = std::collections::BTreeMap<String, String>;
