//! Why a pod found no place: values with stable codes, and a sentence only when someone asks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::{Pod, Taint};

/// A pod without a place, and each NodePool's refusal in the order in which they were asked.
#[derive(Debug, Clone)]
pub struct Unschedulable {
    pub pod: Arc<Pod>,
    pub reason: Reason,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// There is no NodePool that could launch anything.
    NoNodePool,
    /// Every NodePool is there but its requirements leave no instance type.
    NoInstanceTypes { pools: Vec<String> },
    /// A volume of the pod could not be resolved.
    VolumeUnresolved { claim: String, problem: String },
    /// The pod uses dynamic resource claims, which are not supported.
    DynamicResources,
    /// What each NodePool said last.
    Refused(Vec<PoolRefusal>),
    /// A claim was given up after packing because too few instance types could be named on it.
    ClaimDiscarded {
        pool: String,
        key: String,
        need: u32,
        have: u32,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct PoolRefusal {
    pub pool: String,
    pub refusal: Refusal,
}

/// The first thing that ruled a NodePool out.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    Taint(Taint),
    /// `spec.limits` leave no room; the resource that ran out, or `nodes`.
    Limit {
        resource: String,
    },
    /// The pod's demand and the pool's requirements on a key exclude each other.
    Requirement {
        key: String,
        wanted: String,
        offered: String,
    },
    /// The pod demands a label that nothing in the pool can put on a node.
    UndefinedLabel {
        key: String,
        hint: Option<String>,
    },
    /// A volume can only be attached where this pool has no nodes.
    VolumeTopology {
        key: String,
    },
    /// Too many volumes of one driver for every instance type.
    VolumeLimit,
    Spread {
        key: String,
    },
    Affinity {
        key: String,
    },
    AntiAffinity {
        key: String,
    },
    HostPort {
        port: u16,
    },
    /// No instance type is left; how many fell to which cause.
    InstanceTypes(Box<TypeCounts>),
    MinValues {
        key: String,
        need: u32,
        have: u32,
    },
    /// Reservations that the pod could use are held by others in this pass, or are full.
    ReservedCapacity,
}

/// Instance types of one NodePool by the first cause that ruled them out, and the one that came closest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TypeCounts {
    pub total: u32,
    /// By label key whose values the type does not have.
    pub requirement: BTreeMap<String, u32>,
    /// By resource of which the type has too little.
    pub resource: BTreeMap<String, u32>,
    /// No offering for the demanded zone, capacity type or reservation.
    pub offering: u32,
    /// Daemon pods take the host port on these.
    pub host_port: u32,
    pub nearest: Option<NearestMiss>,
    /// The request is so large that a unit was probably mistyped (`M` for `m`).
    pub suspicious_unit: bool,
}

/// The instance type that came closest, and what it lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct NearestMiss {
    pub instance_type: String,
    pub resource: String,
    pub requested: String,
    pub allocatable: String,
}

/// Stable names of causes, for machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    NoNodePool,
    NoInstanceTypes,
    VolumeUnresolved,
    DynamicResourcesUnsupported,
    UntoleratedTaint,
    NodePoolLimitReached,
    RequirementsNotMet,
    UndefinedLabel,
    VolumeTopologyConflict,
    VolumeLimitReached,
    TopologySpreadUnsatisfied,
    PodAffinityUnsatisfied,
    PodAntiAffinityUnsatisfied,
    HostPortConflict,
    NoInstanceTypeMatches,
    NoInstanceTypeFits,
    NoOfferingAvailable,
    MinValuesUnmet,
    ReservedCapacityTaken,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Code::NoNodePool => "NoNodePool",
            Code::NoInstanceTypes => "NoInstanceTypes",
            Code::VolumeUnresolved => "VolumeUnresolved",
            Code::DynamicResourcesUnsupported => "DynamicResourcesUnsupported",
            Code::UntoleratedTaint => "UntoleratedTaint",
            Code::NodePoolLimitReached => "NodePoolLimitReached",
            Code::RequirementsNotMet => "RequirementsNotMet",
            Code::UndefinedLabel => "UndefinedLabel",
            Code::VolumeTopologyConflict => "VolumeTopologyConflict",
            Code::VolumeLimitReached => "VolumeLimitReached",
            Code::TopologySpreadUnsatisfied => "TopologySpreadUnsatisfied",
            Code::PodAffinityUnsatisfied => "PodAffinityUnsatisfied",
            Code::PodAntiAffinityUnsatisfied => "PodAntiAffinityUnsatisfied",
            Code::HostPortConflict => "HostPortConflict",
            Code::NoInstanceTypeMatches => "NoInstanceTypeMatches",
            Code::NoInstanceTypeFits => "NoInstanceTypeFits",
            Code::NoOfferingAvailable => "NoOfferingAvailable",
            Code::MinValuesUnmet => "MinValuesUnmet",
            Code::ReservedCapacityTaken => "ReservedCapacityTaken",
        }
    }
}

impl Refusal {
    pub fn code(&self) -> Code {
        match self {
            Refusal::Taint(_) => Code::UntoleratedTaint,
            Refusal::Limit { .. } => Code::NodePoolLimitReached,
            Refusal::Requirement { .. } => Code::RequirementsNotMet,
            Refusal::UndefinedLabel { .. } => Code::UndefinedLabel,
            Refusal::VolumeTopology { .. } => Code::VolumeTopologyConflict,
            Refusal::VolumeLimit => Code::VolumeLimitReached,
            Refusal::Spread { .. } => Code::TopologySpreadUnsatisfied,
            Refusal::Affinity { .. } => Code::PodAffinityUnsatisfied,
            Refusal::AntiAffinity { .. } => Code::PodAntiAffinityUnsatisfied,
            Refusal::HostPort { .. } => Code::HostPortConflict,
            Refusal::InstanceTypes(counts) => counts.code(),
            Refusal::MinValues { .. } => Code::MinValuesUnmet,
            Refusal::ReservedCapacity => Code::ReservedCapacityTaken,
        }
    }
}

impl TypeCounts {
    /// The cause that, were it gone, would leave the most types: what to look at first.
    fn code(&self) -> Code {
        if !self.resource.is_empty() {
            Code::NoInstanceTypeFits
        } else if self.offering > 0 {
            Code::NoOfferingAvailable
        } else if self.host_port > 0 {
            Code::HostPortConflict
        } else {
            Code::NoInstanceTypeMatches
        }
    }
}

impl Reason {
    /// Distinct codes, in the order in which they came up.
    pub fn codes(&self) -> Vec<Code> {
        match self {
            Reason::NoNodePool => vec![Code::NoNodePool],
            Reason::NoInstanceTypes { .. } => vec![Code::NoInstanceTypes],
            Reason::VolumeUnresolved { .. } => vec![Code::VolumeUnresolved],
            Reason::DynamicResources => vec![Code::DynamicResourcesUnsupported],
            Reason::ClaimDiscarded { .. } => vec![Code::MinValuesUnmet],
            Reason::Refused(refusals) => {
                let mut codes = Vec::new();
                for refusal in refusals {
                    let code = refusal.refusal.code();
                    if !codes.contains(&code) {
                        codes.push(code);
                    }
                }
                codes
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoNodePool => f.write_str("there is no ready NodePool that could launch a node"),
            Reason::NoInstanceTypes { pools } => {
                write!(
                    f,
                    "the requirements of NodePool {} leave no instance type to launch",
                    pools.join(", ")
                )
            }
            Reason::VolumeUnresolved { claim, problem } => {
                write!(f, "volume claim {claim} cannot be placed: {problem}")
            }
            Reason::DynamicResources => f.write_str("the pod uses resource claims (DRA), which are not supported"),
            Reason::ClaimDiscarded { pool, key, need, have } => write!(
                f,
                "NodePool {pool}: only {have} values of {key} remain among the instance types that a NodeClaim can name, \
                 minValues asks for {need}"
            ),
            Reason::Refused(refusals) => {
                for (nth, refusal) in refusals.iter().enumerate() {
                    let separator = if nth == 0 { "" } else { "; " };
                    write!(f, "{separator}NodePool {}: {}", refusal.pool, refusal.refusal)?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Taint(taint) => write!(f, "the pod does not tolerate taint {taint}"),
            Refusal::Limit { resource } => write!(f, "its limit of {resource} leaves no room for another node"),
            Refusal::Requirement { key, wanted, offered } => {
                write!(f, "the pod wants {wanted} but the pool offers {offered} (label {key})")
            }
            Refusal::UndefinedLabel { key, hint: None } => {
                write!(f, "the pod wants label {key}, which no node of this pool would carry")
            }
            Refusal::UndefinedLabel { key, hint: Some(hint) } => {
                write!(
                    f,
                    "the pod wants label {key}, which no node of this pool would carry (did you mean {hint}?)"
                )
            }
            Refusal::VolumeTopology { key } => {
                write!(
                    f,
                    "a volume of the pod can only be attached where this pool has no nodes (label {key})"
                )
            }
            Refusal::VolumeLimit => f.write_str("no instance type can attach that many volumes"),
            Refusal::Spread { key } => write!(f, "no {key} keeps the pod's topology spread within its skew"),
            Refusal::Affinity { key } => write!(f, "no {key} has the pods that the pod must be near"),
            Refusal::AntiAffinity { key } => write!(f, "every {key} has pods that the pod must stay away from"),
            Refusal::HostPort { port } => write!(f, "host port {port} is taken by daemon pods on every instance type"),
            Refusal::InstanceTypes(counts) => counts.fmt(f),
            Refusal::MinValues { key, need, have } => {
                write!(f, "minValues asks for {need} values of {key} but only {have} remain")
            }
            Refusal::ReservedCapacity => {
                f.write_str("the reservations that the pod could use are taken; it waits for the next pass")
            }
        }
    }
}

impl fmt::Display for TypeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "none of {} instance types can hold the pod: ", self.total)?;
        let mut parts = Vec::new();
        for (resource, count) in &self.resource {
            parts.push(format!("{count} have too little {resource}"));
        }
        for (key, count) in &self.requirement {
            parts.push(format!("{count} do not match on {key}"));
        }
        if self.offering > 0 {
            parts.push(format!(
                "{} have no available offering in the demanded zone and capacity type",
                self.offering
            ));
        }
        if self.host_port > 0 {
            parts.push(format!("{} have a host port taken by a daemon", self.host_port));
        }
        if parts.is_empty() {
            parts.push("there are none".to_owned());
        }
        f.write_str(&parts.join(", "))?;
        if let Some(miss) = &self.nearest {
            write!(
                f,
                " (nearest: {} has {} {}, the pod and its daemons need {})",
                miss.instance_type, miss.allocatable, miss.resource, miss.requested
            )?;
        }
        if self.suspicious_unit {
            f.write_str("; the cpu request is enormous, was `m` meant instead of `M`?")?;
        }
        Ok(())
    }
}
