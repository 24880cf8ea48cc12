//! Pods as scheduling reads them: a small identity, and constraints that a whole workload shares.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::requirement::Requirement;
use karpenter_api::resources::ResourceList;

use super::Labels;
use super::selector::{LabelSelector, NamespaceScope};
use super::taint::Toleration;

/// One pod. Everything behind an `Arc` is meant to be shared among the pods of a workload.
#[derive(Debug, Clone)]
pub struct Pod {
    pub uid: Box<str>,
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub created: Timestamp,
    /// When the kubelet started it; `do-not-disrupt` durations count from here.
    pub started: Option<Timestamp>,
    pub priority: i32,
    pub labels: Arc<Labels>,
    pub spec: Arc<PodSpec>,
    /// Totals of scheduling.md §2.3, `pods: 1` included.
    pub requests: Arc<ResourceList>,
    /// Totals of limits, counted like requests; nothing is decided by them.
    pub limits: Arc<ResourceList>,
    /// PersistentVolumeClaims in volume order, names within the pod's namespace.
    pub volume_claims: Arc<[Box<str>]>,
    /// `spec.nodeName`.
    pub node_name: Option<Arc<str>>,
    pub owner: Owner,
    /// The controller, for default spread constraints (scheduling.md §5.9).
    pub controller: Option<Arc<ControllerRef>>,
    pub phase: PodPhase,
    /// Has a deletion timestamp.
    pub terminating: bool,
    pub ready: bool,
    pub do_not_disrupt: Option<DoNotDisrupt>,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
    /// `karpenter.sh/disruption-cost`; a value that can't be read counts as 0.
    pub disruption_cost: Option<i32>,
    /// The CapacityBuffer this pod stands for; it exists nowhere but here.
    pub buffer: Option<Arc<str>>,
}

impl Pod {
    /// `namespace/name`, as users write it.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Still uses its node's resources.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// Who owns a pod, as far as it matters for moving it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    None,
    DaemonSet,
    /// A static (mirror) pod.
    Node,
    StatefulSet,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ControllerRef {
    pub kind: String,
    pub name: String,
}

/// The `karpenter.sh/do-not-disrupt` annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoNotDisrupt {
    Always,
    /// In force until this long after the pod started.
    For(SignedDuration),
    /// Neither `true` nor a positive duration; without effect.
    Unreadable,
}

/// What a pod asks of the node it runs on and of the pods around it; equal for all pods of a workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodSpec {
    pub node_selector: Labels,
    /// `requiredDuringScheduling` terms (OR), each a conjunction. Empty: no required affinity.
    pub required_node_terms: Vec<Vec<Requirement>>,
    pub preferred_node_terms: Vec<PreferredNodeTerm>,
    pub affinity: PodAffinity,
    pub anti_affinity: PodAffinity,
    pub spread: Vec<SpreadConstraint>,
    pub tolerations: Vec<Toleration>,
    pub host_ports: Vec<HostPort>,
    /// Has resource claims (DRA), which this version does not place.
    pub needs_dynamic_resources: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PreferredNodeTerm {
    pub weight: i32,
    pub expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PodAffinity {
    pub required: Vec<PodAffinityTerm>,
    pub preferred: Vec<WeightedPodTerm>,
}

impl PodAffinity {
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodAffinityTerm {
    pub topology_key: String,
    pub selector: LabelSelector,
    pub namespaces: NamespaceScope,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightedPodTerm {
    pub weight: i32,
    pub term: PodAffinityTerm,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    pub topology_key: String,
    pub max_skew: i32,
    pub min_domains: Option<i32>,
    pub when_unsatisfiable: WhenUnsatisfiable,
    pub selector: LabelSelector,
    /// Keys whose value on the pod narrows the selector; absent ones are ignored.
    pub match_label_keys: Vec<String>,
    /// Default `Honor`.
    pub node_affinity_policy: SpreadPolicy,
    /// Default `Ignore`.
    pub node_taints_policy: SpreadPolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpreadPolicy {
    Honor,
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// Unspecified (`0.0.0.0`, `::`) is every address.
    pub ip: std::net::IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

impl HostPort {
    pub fn conflicts_with(&self, other: &HostPort) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && (self.ip == other.ip || self.ip.is_unspecified() || other.ip.is_unspecified())
    }
}

/// The pod that stands for a DaemonSet when overhead is worked out (scheduling.md §2.6).
#[derive(Debug, Clone)]
pub struct DaemonPod {
    pub namespace: Arc<str>,
    /// The DaemonSet's name.
    pub name: Box<str>,
    /// Only selectors, required terms, tolerations and host ports matter.
    pub spec: Arc<PodSpec>,
    pub requests: Arc<ResourceList>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: (&str, u16, Protocol), b: (&str, u16, Protocol), expect: bool) {
        let port = |(ip, port, protocol): (&str, u16, Protocol)| HostPort {
            ip: ip.parse().unwrap(),
            port,
            protocol,
        };
        assert_eq!(port(a).conflicts_with(&port(b)), expect, "{a:?} {b:?}");
        assert_eq!(port(b).conflicts_with(&port(a)), expect, "{b:?} {a:?}");
    }

    #[test]
    fn host_ports_conflict_by_protocol_port_and_address() {
        check(
            ("0.0.0.0", 8080, Protocol::Tcp),
            ("10.0.0.1", 8080, Protocol::Tcp),
            true,
        );
        check(("::", 8080, Protocol::Tcp), ("10.0.0.1", 8080, Protocol::Tcp), true);
        check(
            ("10.0.0.2", 8080, Protocol::Tcp),
            ("10.0.0.1", 8080, Protocol::Tcp),
            false,
        );
        check(
            ("0.0.0.0", 8080, Protocol::Tcp),
            ("0.0.0.0", 8080, Protocol::Udp),
            false,
        );
        check(
            ("0.0.0.0", 8080, Protocol::Tcp),
            ("0.0.0.0", 8081, Protocol::Tcp),
            false,
        );
    }
}
