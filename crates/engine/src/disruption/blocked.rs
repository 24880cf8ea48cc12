//! Why a node stays: the reasons that users read in events, `simulate` and `explain`.

use std::fmt;

use super::pdb::Refusal;

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
    PodBudget {
        pod: String,
        refusal: Refusal,
    },
    // What only some methods mind.
    Healthy,
    DoNotRepair,
    /// Repairing would not help: something else is wrong with the pool.
    TooManyUnhealthy {
        pool: String,
        unhealthy: usize,
        nodes: usize,
    },
    StaticPool,
    DynamicPool,
    ScalingDown,
    StaticPoolAtLimit(String),
    ReservationsFull(String),
    ConsolidationDisabled,
    /// Pods run on it, so emptiness has no say.
    NotEmpty,
    BufferPods,
    OnlyWhenEmpty,
    UnknownInstanceType,
    MissingLabel(&'static str),
    NotConsolidatableYet,
    NotDrifted,
    BudgetUsedUp {
        pool: String,
        reason: &'static str,
    },
    CannotReschedule(String),
    TooManyReplacements(usize),
    PendingPods(usize),
    NothingCheaper,
    MinValuesUnmet,
    SpotToSpotDisabled,
    TooFewSpotTypes {
        needed: usize,
        found: usize,
    },
    Paused(String),
    /// The whole cluster's switch, an annotation of this Namespace.
    AllPaused(String),
    UnreadableAnnotation(String),
    CoolingDown,
    SavingTooSmall {
        saving: f64,
        least: f64,
    },
    RolloutHalted(String),
    NotWorthIt {
        pool: String,
        score: f64,
    },
    /// Not even if nothing had to take its place, so no move was looked for.
    NeverWorthIt {
        pool: String,
        score: f64,
    },
}

impl Blocked {
    /// Whether users get an event about it; the rest is ordinary life.
    pub fn is_worth_an_event(&self) -> bool {
        !matches!(
            self,
            Blocked::AlreadyDisrupting
                | Blocked::Unmanaged
                | Blocked::StaticPool
                | Blocked::NotConsolidatableYet
                | Blocked::NotEmpty
                | Blocked::NotDrifted
                | Blocked::Healthy
                | Blocked::PendingPods(_)
                | Blocked::CoolingDown
                | Blocked::DynamicPool
                | Blocked::ScalingDown
                | Blocked::NotWorthIt { .. }
                | Blocked::NeverWorthIt { .. }
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
            Blocked::Healthy => f.write_str("no repair policy asks for anything"),
            Blocked::DoNotRepair => f.write_str("it needs repair, and has the annotation karpenter.sh/do-not-repair"),
            Blocked::TooManyUnhealthy { pool, unhealthy, nodes } => {
                write!(
                    f,
                    "{unhealthy} of the {nodes} nodes of NodePool {pool} are unhealthy, more than 20 %: something else is wrong, so none is repaired"
                )
            }
            Blocked::DynamicPool => f.write_str("its NodePool is not static"),
            Blocked::ScalingDown => f.write_str("its NodePool has more nodes than replicas and is scaling down"),
            Blocked::StaticPoolAtLimit(pool) => {
                write!(f, "limits.nodes of NodePool {pool} leaves no room for a replacement")
            }
            Blocked::ReservationsFull(pool) => {
                write!(
                    f,
                    "NodePool {pool} can only launch from capacity reservations, and all of them are full"
                )
            }
            Blocked::StaticPool => f.write_str("its NodePool is static"),
            Blocked::ConsolidationDisabled => f.write_str("its NodePool has consolidateAfter: Never"),
            Blocked::NotEmpty => f.write_str("pods run on it"),
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
            Blocked::PendingPods(count) => {
                write!(f, "pending pods need {count} new nodes first")
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
            Blocked::Paused(pool) => {
                write!(
                    f,
                    "disruption of NodePool {pool} is paused by its annotation karpenter.sh/pause-disruption"
                )
            }
            Blocked::AllPaused(namespace) => {
                write!(
                    f,
                    "disruption of all nodes is paused by the annotation karpenter.sh/pause-disruption of Namespace {namespace}"
                )
            }
            Blocked::UnreadableAnnotation(annotation) => {
                write!(f, "its NodePool has an annotation that cannot be read: {annotation}")
            }
            Blocked::CoolingDown => {
                f.write_str("it is younger than its NodePool's karpenter.sh/consolidation-cooldown")
            }
            Blocked::SavingTooSmall { saving, least } => {
                write!(
                    f,
                    "${saving:.4} per hour would be saved, and its NodePool asks for at least ${least:.4}"
                )
            }
            Blocked::RolloutHalted(pool) => {
                write!(
                    f,
                    "new nodes of NodePool {pool} keep failing to register, so drift waits until the NodePool or its NodeClass changes"
                )
            }
            Blocked::NotWorthIt { pool, score } | Blocked::NeverWorthIt { pool, score } => {
                write!(
                    f,
                    "the saving is too small for the pods it would move: score {score:.2} of at least 0.50 (NodePool {pool} is Balanced)"
                )
            }
        }
    }
}
