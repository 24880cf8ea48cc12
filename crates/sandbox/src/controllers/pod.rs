//! What controllers know of a pod: a digest that ten thousand pods can afford, with the shared parts shared.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self as core, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use rustc_hash::{FxHashMap, FxHasher};

use super::resources::Resources;
use super::selector::{Labels, NodeTerm, NodeTerms, Requirement, Selector};

/// One pod.
#[derive(Debug, Clone)]
pub(crate) struct PodFacts {
    pub(crate) key: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Arc<str>,
    pub(crate) class: Arc<PodClass>,
    pub(crate) controller: Option<Arc<OwnerReference>>,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) phase: Phase,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) created: Timestamp,
    pub(crate) bound_at: Option<Timestamp>,
    pub(crate) deletion: Option<Deletion>,
    pub(crate) finalizers: Box<[Box<str>]>,
    pub(crate) gated: bool,
    pub(crate) deletion_cost: i32,
    pub(crate) restarts: i32,
    pub(crate) generation: i64,
    /// The text of `PodScheduled=False`, so that it is rewritten only when it changes.
    pub(crate) unschedulable: Option<Arc<str>>,
    /// Annotations that steer the simulated kubelet.
    pub(crate) behaviour: Option<Arc<Behaviour>>,
}

/// What pods of one workload share: namespace, labels and the scheduler's view of their spec.
#[derive(Debug, Clone)]
pub(crate) struct PodClass {
    pub(crate) id: u64,
    pub(crate) namespace: Arc<str>,
    pub(crate) labels: Labels,
    pub(crate) spec: SpecFacts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deletion {
    /// When the grace period ends.
    pub(crate) deadline: Timestamp,
    pub(crate) grace_seconds: i64,
}

impl Deletion {
    pub(crate) fn requested_at(self) -> Timestamp {
        let grace = jiff::SignedDuration::from_secs(self.grace_seconds);
        self.deadline.saturating_sub(grace).unwrap_or(self.deadline)
    }
}

/// Per-pod wishes of a test, given as `sandbox.karpenter.sh/…` annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Behaviour {
    pub(crate) start_delay: Option<std::time::Duration>,
    pub(crate) exit_delay: Option<std::time::Duration>,
    pub(crate) never_ready: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) run_time: Option<std::time::Duration>,
}

/// What scheduler and kubelet read of a pod's spec.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpecFacts {
    pub(crate) scheduler: String,
    pub(crate) priority: i32,
    pub(crate) requests: Resources,
    pub(crate) node_selector: Selector,
    pub(crate) node_affinity: Option<NodeTerms>,
    pub(crate) preferred_nodes: Vec<(i64, NodeTerm)>,
    pub(crate) tolerations: Vec<core::Toleration>,
    pub(crate) host_ports: Vec<HostPort>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) affinity: Vec<AffinityTerm>,
    pub(crate) anti_affinity: Vec<AffinityTerm>,
    pub(crate) preferred_affinity: Vec<(i64, AffinityTerm)>,
    pub(crate) volumes: Vec<PodVolume>,
    pub(crate) containers: Vec<ContainerFacts>,
    pub(crate) init_containers: Vec<ContainerFacts>,
    pub(crate) restart_policy: String,
    pub(crate) host_network: bool,
    pub(crate) readiness_gates: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct ContainerFacts {
    pub(crate) name: String,
    pub(crate) image: String,
    /// Keeps running beside the containers (an init container with restartPolicy Always).
    pub(crate) is_sidecar: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) ip: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl HostPort {
    /// The wildcard address clashes with every other one.
    pub(crate) fn clashes(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == "0.0.0.0" || other.ip == "0.0.0.0")
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(crate) key: String,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: i64,
    pub(crate) selector: Option<Selector>,
    pub(crate) required: bool,
    pub(crate) honors_affinity: bool,
    pub(crate) honors_taints: bool,
}

impl Spread {
    /// An absent or empty selector counts no pods.
    pub(crate) fn counts(&self, labels: &Labels) -> bool {
        self.selector
            .as_ref()
            .is_some_and(|s| !s.is_empty() && s.matches(labels))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct AffinityTerm {
    pub(crate) key: String,
    pub(crate) selector: Option<Selector>,
    pub(crate) namespaces: Vec<String>,
    pub(crate) namespace_selector: Option<Selector>,
}

impl AffinityTerm {
    /// Whether pods with these labels in that namespace are meant; an absent selector means none.
    pub(crate) fn matches(&self, namespace: &str, namespace_labels: Option<&Labels>, labels: &Labels) -> bool {
        let in_scope = self.namespaces.iter().any(|n| n == namespace)
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|s| match namespace_labels {
                    Some(labels) => s.matches(labels),
                    None => s.is_empty(),
                });
        in_scope && self.selector.as_ref().is_some_and(|s| s.matches(labels))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodVolume {
    Claim(String),
    /// A generic ephemeral volume: its claim is named `<pod>-<volume>`.
    Ephemeral(String),
}

impl PodVolume {
    pub(crate) fn claim_name(&self, pod: &str) -> String {
        match self {
            Self::Claim(name) => name.clone(),
            Self::Ephemeral(volume) => format!("{pod}-{volume}"),
        }
    }
}

/// Makes facts out of pods, sharing classes between pods that look alike.
#[derive(Debug, Default)]
pub(crate) struct PodReader {
    classes: FxHashMap<u64, Vec<Weak<PodClass>>>,
    next_id: u64,
    owners: FxHashMap<String, Weak<OwnerReference>>,
}

impl PodReader {
    pub(crate) fn read(&mut self, pod: core::Pod, previous: Option<&PodFacts>) -> PodFacts {
        let meta = pod.metadata;
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let namespace: Arc<str> = meta.namespace.unwrap_or_default().into();
        let name: Arc<str> = meta.name.unwrap_or_default().into();
        let node = spec.node_name.clone().filter(|n| !n.is_empty()).map(Arc::from);
        let generation = meta.generation.unwrap_or(0);
        let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
        let ready = condition("Ready").filter(|c| c.status == "True");
        let scheduled = condition("PodScheduled");
        let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
        let labels = meta.labels.unwrap_or_default();
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        let class = match previous {
            Some(old) if old.generation == generation && old.class.labels == labels => Arc::clone(&old.class),
            _ => self.class(&namespace, labels, &spec),
        };
        let annotations = meta.annotations.unwrap_or_default();
        PodFacts {
            key: format!("{namespace}/{name}").into(),
            uid: meta.uid.unwrap_or_default().into(),
            class,
            controller: meta
                .owner_references
                .into_iter()
                .flatten()
                .find(|o| o.controller == Some(true))
                .map(|owner| self.owner(owner)),
            bound_at: node.as_ref().map(|_| {
                let since = scheduled
                    .filter(|c| c.status == "True")
                    .and_then(|c| c.last_transition_time.as_ref());
                since.map_or(created, |t| t.0)
            }),
            node,
            phase: match status.phase.as_deref() {
                None | Some("" | "Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                Some(_) => Phase::Unknown,
            },
            ready_since: ready.map(|c| c.last_transition_time.as_ref().map_or(created, |t| t.0)),
            created,
            deletion: meta.deletion_timestamp.map(|deadline| Deletion {
                deadline: deadline.0,
                grace_seconds: meta.deletion_grace_period_seconds.unwrap_or(0),
            }),
            finalizers: meta
                .finalizers
                .into_iter()
                .flatten()
                .map(String::into_boxed_str)
                .collect(),
            gated,
            deletion_cost: annotations
                .get("controller.kubernetes.io/pod-deletion-cost")
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0),
            restarts: status
                .container_statuses
                .iter()
                .flatten()
                .map(|c| c.restart_count)
                .max()
                .unwrap_or(0),
            generation,
            unschedulable: scheduled
                .filter(|c| c.status == "False")
                .map(|c| c.message.as_deref().unwrap_or_default().into()),
            behaviour: Behaviour::read(&annotations).map(Arc::new),
            namespace,
            name,
        }
    }

    fn class(&mut self, namespace: &Arc<str>, labels: Labels, spec: &PodSpec) -> Arc<PodClass> {
        let mut spec = spec.clone();
        // Names of single pods and nodes would make every pod a class of its own.
        spec.node_name = None;
        spec.hostname = None;
        let text = serde_json::to_string(&spec).unwrap_or_default();
        let mut hasher = FxHasher::default();
        (namespace, &labels, &text).hash(&mut hasher);
        let bucket = self.classes.entry(hasher.finish()).or_default();
        bucket.retain(|class| class.strong_count() > 0);
        let known = bucket.iter().filter_map(Weak::upgrade);
        if let Some(known) = known
            .into_iter()
            .find(|c| c.namespace == *namespace && c.labels == labels)
        {
            return known;
        }
        self.next_id += 1;
        let spec = SpecFacts::new(&spec, namespace, &labels);
        let class = Arc::new(PodClass {
            id: self.next_id,
            namespace: Arc::clone(namespace),
            labels,
            spec,
        });
        bucket.push(Arc::downgrade(&class));
        class
    }

    fn owner(&mut self, owner: OwnerReference) -> Arc<OwnerReference> {
        if let Some(known) = self
            .owners
            .get(&owner.uid)
            .and_then(Weak::upgrade)
            .filter(|known| **known == owner)
        {
            return known;
        }
        let shared = Arc::new(owner);
        self.owners.insert(shared.uid.clone(), Arc::downgrade(&shared));
        shared
    }
}

impl SpecFacts {
    pub(crate) fn new(spec: &PodSpec, namespace: &str, labels: &Labels) -> Self {
        let affinity = spec.affinity.as_ref();
        let node_affinity = affinity.and_then(|a| a.node_affinity.as_ref());
        let pod_affinity = affinity.and_then(|a| a.pod_affinity.as_ref());
        let pod_anti_affinity = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let terms = |list: Option<&Vec<core::PodAffinityTerm>>| -> Vec<AffinityTerm> {
            list.into_iter()
                .flatten()
                .map(|t| AffinityTerm::new(t, namespace, labels))
                .collect()
        };
        let weighted = |list: Option<&Vec<core::WeightedPodAffinityTerm>>, sign: i64| {
            let list = list.into_iter().flatten();
            let term = |t: &core::WeightedPodAffinityTerm| AffinityTerm::new(&t.pod_affinity_term, namespace, labels);
            list.map(|t| (sign * i64::from(t.weight), term(t))).collect::<Vec<_>>()
        };
        let mut preferred_affinity = weighted(
            pod_affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
            1,
        );
        preferred_affinity.extend(weighted(
            pod_anti_affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
            -1,
        ));
        Self {
            scheduler: spec
                .scheduler_name
                .clone()
                .unwrap_or_else(|| "default-scheduler".to_owned()),
            priority: spec.priority.unwrap_or(0),
            requests: Resources::of_pod(spec),
            node_selector: spec
                .node_selector
                .as_ref()
                .map(Selector::from_labels)
                .unwrap_or_default(),
            node_affinity: node_affinity
                .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
                .map(NodeTerms::new),
            preferred_nodes: node_affinity
                .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())
                .into_iter()
                .flatten()
                .map(|t| (i64::from(t.weight), NodeTerm::new(&t.preference)))
                .collect(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            host_ports: host_ports(spec),
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|c| Spread::new(c, labels))
                .collect(),
            affinity: terms(pod_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            anti_affinity: terms(
                pod_anti_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_affinity,
            volumes: spec.volumes.iter().flatten().filter_map(pod_volume).collect(),
            containers: spec.containers.iter().map(ContainerFacts::new).collect(),
            init_containers: spec.init_containers.iter().flatten().map(ContainerFacts::new).collect(),
            restart_policy: spec.restart_policy.clone().unwrap_or_else(|| "Always".to_owned()),
            host_network: spec.host_network.unwrap_or(false),
            readiness_gates: spec
                .readiness_gates
                .iter()
                .flatten()
                .map(|g| g.condition_type.clone())
                .collect(),
        }
    }
}

impl ContainerFacts {
    fn new(container: &core::Container) -> Self {
        Self {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            is_sidecar: container.restart_policy.as_deref() == Some("Always"),
        }
    }
}

impl Spread {
    fn new(constraint: &core::TopologySpreadConstraint, labels: &Labels) -> Self {
        let selector = constraint.label_selector.as_ref().map(Selector::new);
        Self {
            key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            selector: selector.map(|s| with_label_keys(s, constraint.match_label_keys.as_ref(), labels)),
            required: constraint.when_unsatisfiable == "DoNotSchedule",
            honors_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

impl AffinityTerm {
    fn new(term: &core::PodAffinityTerm, namespace: &str, labels: &Labels) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        let namespace_selector = term.namespace_selector.as_ref().map(Selector::new);
        if namespaces.is_empty() && namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        let selector = term.label_selector.as_ref().map(Selector::new);
        let selector = selector.map(|s| {
            let s = with_label_keys(s, term.match_label_keys.as_ref(), labels);
            let mismatched = term
                .mismatch_label_keys
                .iter()
                .flatten()
                .filter_map(|k| Some((k, labels.get(k)?)));
            mismatched.fold(s, |s, (key, value)| {
                let mut differs = Requirement::equals(key, value);
                differs.operator = super::selector::Operator::NotIn;
                s.with(differs)
            })
        });
        Self {
            key: term.topology_key.clone(),
            selector,
            namespaces,
            namespace_selector,
        }
    }
}

/// `matchLabelKeys`: the pod's own values of these labels must be equal too.
fn with_label_keys(selector: Selector, keys: Option<&Vec<String>>, labels: &Labels) -> Selector {
    let own = keys
        .into_iter()
        .flatten()
        .filter_map(|key| Some((key, labels.get(key)?)));
    own.fold(selector, |selector, (key, value)| {
        selector.with(Requirement::equals(key, value))
    })
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let restartable = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(restartable)
        .flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|p| *p > 0)?;
            Some(HostPort {
                ip: port
                    .host_ip
                    .clone()
                    .filter(|ip| !ip.is_empty())
                    .unwrap_or_else(|| "0.0.0.0".to_owned()),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: number,
            })
        })
        .collect()
}

fn pod_volume(volume: &core::Volume) -> Option<PodVolume> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(PodVolume::Claim(claim.claim_name.clone()));
    }
    volume
        .ephemeral
        .as_ref()
        .map(|_| PodVolume::Ephemeral(volume.name.clone()))
}

impl Behaviour {
    /// Reads the annotations; `None` if the pod has no wishes.
    fn read(annotations: &Labels) -> Option<Self> {
        let text = |name: &str| {
            annotations
                .get(&format!("sandbox.karpenter.sh/{name}"))
                .map(String::as_str)
        };
        let seconds = |name: &str| {
            text(name)
                .and_then(|t| t.parse().ok())
                .map(std::time::Duration::from_secs)
        };
        let behaviour = Self {
            start_delay: seconds("start-delay-seconds"),
            exit_delay: seconds("exit-delay-seconds"),
            never_ready: text("never-ready") == Some("true"),
            exit_code: text("exit-code").and_then(|t| t.parse().ok()),
            run_time: seconds("run-seconds"),
        };
        (behaviour != Self::default()).then_some(behaviour)
    }
}
