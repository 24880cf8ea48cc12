//! The contract between core and a cloud: what a provider must be able to do, and what core may rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use karpenter_api::{NodeClaim, NodePool, Requirement, labels::LabelRules};
use karpenter_engine::model::InstanceType;

use crate::{
    background::BackgroundTask,
    diagnosis::Diagnosis,
    error::CloudError,
    instance::{Adoption, Instance},
    node_class::NodeClassKind,
    registration::RegistrationHook,
    repair::RepairPolicy,
};

/// The instance types of a NodePool, shared and immutable.
///
/// A provider answers the same `Arc` for as long as nothing changed, so callers may compare with [`Arc::ptr_eq`] to
/// keep what they derived from it. Core asks on every pass: an offering that became unavailable is seen by the next.
pub type InstanceTypes = Arc<[Arc<InstanceType>]>;

/// What volumes ask of the node that they are attached to, besides their node affinity; by the name of the PersistentVolume.
pub type VolumeRequirements = Arc<BTreeMap<String, Vec<Requirement>>>;

/// Which names of the annotations that protect pods and nodes from disruption count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnnotationNames {
    /// Those of `karpenter.sh/v1`.
    #[default]
    Current,
    /// Those of `karpenter.sh/v1alpha5` too: `do-not-evict` of a pod and `do-not-consolidate` of a node mean `do-not-disrupt`.
    AlsoV1alpha5,
}

/// A cloud that Karpenter can launch machines at.
///
/// Every call may be repeated: after a crash between any two lines, a repetition finds what was made and continues.
/// Reads fail rather than answer with less than everything, because core deletes what a successful read lacks.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// The `provider` label of metrics, and the name users choose the provider by.
    fn name(&self) -> &str;

    /// The NodeClass kinds this provider serves, the default first. Objects that refer to other kinds are not ours.
    fn supported_node_classes(&self) -> Vec<NodeClassKind>;

    /// Adds this provider's well-known labels, restricted domains and aliases (e.g. a CSI driver's name for the zone)
    /// to Karpenter's. Called once at start-up.
    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        rules
    }

    /// The labels that tell capacity reservations apart, if this cloud has them.
    fn reservation_labels(&self) -> Option<ReservationLabels> {
        None
    }

    /// What this cloud knows of volumes that the API server does not, e.g. that some can be attached to certain machines only.
    ///
    /// Asked on every pass, so it answers from memory.
    fn volume_requirements(&self) -> VolumeRequirements {
        VolumeRequirements::default()
    }

    /// Which names of annotations protect pods and nodes. Asked once, before anything is watched.
    fn annotation_names(&self) -> AnnotationNames {
        AnnotationNames::default()
    }

    /// The complete, static set of repair policies.
    fn repair_policies(&self) -> Vec<RepairPolicy> {
        Vec::new()
    }

    /// Checks that hold back the registration of a node.
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        Vec::new()
    }

    /// What this provider does besides answering calls: NodeClass status, garbage collection, refreshes.
    ///
    /// Asked once; core runs the tasks while it leads and cancels them before it stops leading.
    fn background_tasks(&self) -> Vec<BackgroundTask> {
        Vec::new()
    }

    /// Adds this provider's own metrics to those that the operator serves. Called once at start-up.
    ///
    /// # Errors
    /// When a metric of one of the names is there already.
    fn register_metrics(&self, _registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        Ok(())
    }

    /// Launches one instance that satisfies the claim's requirements and resource requests.
    ///
    /// Idempotent per claim UID. May take long and run concurrently for many claims. Core may drop the future at any
    /// await point; whatever was started by then is found by the next `create` with that UID, or undone by
    /// [`abandon`](Self::abandon).
    ///
    /// A claim with the annotation [`ADOPT_ANNOTATION`](crate::instance::ADOPT_ANNOTATION) is bound to that existing
    /// instance instead of launching another.
    ///
    /// # Errors
    /// See [`CloudError::launch_effect`] for what core does with each.
    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError>;

    /// Undoes whatever an unfinished [`create`](Self::create) of this claim left behind.
    ///
    /// Called before core releases a deleted claim that never got a provider ID. `Ok(Deletion::Gone)` when there is
    /// nothing (any more).
    ///
    /// # Errors
    /// When the cloud could not be asked; core repeats the call.
    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError>;

    /// Starts, or continues, the termination of the claim's instance. Repeated by core until it is gone.
    ///
    /// # Errors
    /// When the cloud could not be asked or refused. [`CloudError::NotFound`] means the same as `Ok(Deletion::Gone)`.
    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError>;

    /// The instance with this provider ID.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] if it does not exist, or is not this cluster's.
    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError>;

    /// All instances of this cluster. Terminating ones are left out or say so.
    ///
    /// # Errors
    /// When any part of the inventory could not be read.
    async fn list(&self) -> Result<Vec<Instance>, CloudError>;

    /// Every instance type that the pool's NodeClass allows, also those without an available offering.
    ///
    /// # Errors
    /// The pool is skipped for that pass.
    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError>;

    /// Why the claim's instance is not what its NodeClass asks for now, if so.
    ///
    /// # Errors
    /// A failed read is an error, never "not drifted".
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError>;

    /// Restarts the claim's instance in place; returns on acceptance. Repeating an `operation` restarts only once.
    ///
    /// # Errors
    /// See [`CloudError::reboot_effect`].
    async fn reboot(&self, _claim: &NodeClaim, _operation: &RebootOperation) -> Result<(), CloudError> {
        Err(CloudError::RebootNotImplemented)
    }

    /// How long this claim may take, where this cloud differs from core's defaults.
    async fn launch_hints(&self, _claim: &NodeClaim) -> LaunchHints {
        LaunchHints::default()
    }

    /// What is questionable about using this pool with its NodeClass; core publishes each as a warning event.
    ///
    /// # Errors
    /// When the NodeClass could not be read.
    async fn validate_node_pool(&self, _pool: &NodePool) -> Result<Vec<Finding>, CloudError> {
        Ok(Vec::new())
    }

    /// Running machines that no claim owns and that a claim of a NodePool should take over.
    ///
    /// Core creates the NodeClaims (it is the one place that does), each with
    /// [`ADOPT_ANNOTATION`](crate::instance::ADOPT_ANNOTATION).
    ///
    /// # Errors
    /// When the inventory could not be read.
    async fn adoptable(&self) -> Result<Vec<Adoption>, CloudError> {
        Ok(Vec::new())
    }

    /// Whether the cloud answers, for the process's readiness probe; asked by every replica, also by those that do not lead.
    ///
    /// # Errors
    /// A sentence that says since when it does not.
    async fn readiness(&self) -> Result<(), String> {
        Ok(())
    }

    /// What an administrator should know of credentials (validity, expiry, permission per endpoint), quotas and leftovers that are
    /// no instances, such as volumes and empty pools. Read-only; what can't be asked is a diagnosis too.
    async fn diagnose(&self) -> Vec<Diagnosis> {
        Vec::new()
    }
}

/// The labels of reserved offerings. Every other offering defines them as `DoesNotExist`; all must be well known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationLabels {
    pub id: String,
    pub others: BTreeSet<String>,
}

/// How far the termination of an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The cloud accepted it; the Node keeps its finalizer meanwhile.
    InProgress,
    /// The instance does not exist any more.
    Gone,
}

/// A provider's word for what drifted, e.g. `ImageDrifted`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriftReason(pub String);

/// Identifies one reboot: `<claim UID>-<request unix nanos>-<boot ID before>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RebootOperation(pub String);

/// How long the phases of a launch may take, and what to expect of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchHints {
    /// From the claim's creation until its instance exists.
    pub launch_timeout: Duration,
    /// From the claim's creation until its Node has registered.
    pub registration_timeout: Duration,
    pub unregistered_taint: UnregisteredTaint,
}

/// Whether Nodes of this provider join with `karpenter.sh/unregistered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnregisteredTaint {
    /// A Node without it is worth a warning event.
    Expected,
    /// The cloud makes the Node and cannot set it.
    NotExpected,
}

/// A sentence about a NodePool that its owner should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// CamelCase, the event's reason.
    pub reason: String,
    pub message: String,
    pub weight: Weight,
}

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The NodePool works, and its owner may want something else.
    Advice,
    /// Nothing can be launched for the NodePool as it is: its pods are told, too.
    NothingToLaunch,
}

impl Default for LaunchHints {
    fn default() -> Self {
        Self {
            launch_timeout: Duration::from_secs(5 * 60),
            registration_timeout: Duration::from_secs(15 * 60),
            unregistered_taint: UnregisteredTaint::Expected,
        }
    }
}

impl Deletion {
    /// Folds the two ways of saying that an instance is gone into one.
    ///
    /// # Errors
    /// Every error but not-found.
    pub fn settle(answer: Result<Self, CloudError>) -> Result<Self, CloudError> {
        match answer {
            Err(error) if error.is_not_found() => Ok(Self::Gone),
            answer => answer,
        }
    }
}

impl std::fmt::Display for DriftReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for dyn CloudProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudProvider")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
