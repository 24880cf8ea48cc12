//! What controllers know of a node.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self as core, Taint, Toleration};

use super::resources::Resources;
use super::selector::Labels;

/// One node.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeFacts {
    pub(crate) name: Arc<str>,
    pub(crate) uid: Arc<str>,
    pub(crate) created: Timestamp,
    pub(crate) labels: Labels,
    pub(crate) annotations: Labels,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Resources,
    pub(crate) conditions: Vec<NodeCondition>,
    pub(crate) has_capacity: bool,
    pub(crate) addresses: usize,
    pub(crate) internal_ip: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCondition {
    pub(crate) kind: String,
    pub(crate) status: Tristate,
    pub(crate) reason: String,
    pub(crate) heartbeat: Timestamp,
    pub(crate) transition: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tristate {
    True,
    False,
    Unknown,
}

impl Tristate {
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl NodeFacts {
    pub(crate) fn new(node: core::Node) -> Self {
        let meta = node.metadata;
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
        let conditions = status.conditions.iter().flatten().map(|c| NodeCondition {
            kind: c.type_.clone(),
            status: Tristate::parse(&c.status),
            reason: c.reason.clone().unwrap_or_default(),
            heartbeat: c.last_heartbeat_time.as_ref().map_or(created, |t| t.0),
            transition: c.last_transition_time.as_ref().map_or(created, |t| t.0),
        });
        let addresses = status.addresses.unwrap_or_default();
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.unwrap_or_default().into(),
            created,
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or(false),
            allocatable: Resources::new(status.allocatable.as_ref().or(status.capacity.as_ref())),
            conditions: conditions.collect(),
            has_capacity: status.capacity.is_some_and(|c| !c.is_empty()),
            addresses: addresses.len(),
            internal_ip: addresses
                .into_iter()
                .find(|a| a.type_ == "InternalIP")
                .map(|a| a.address),
        }
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| c.status == Tristate::True)
    }

    pub(crate) fn zone(&self) -> Option<&str> {
        self.labels.get("topology.kubernetes.io/zone").map(String::as_str)
    }
}

/// The effects that keep a pod from being placed.
pub(crate) fn repels(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

/// Whether one of the tolerations covers the taint.
pub(crate) fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| covers(t, taint))
}

pub(crate) fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.as_deref().filter(|t| !t.is_empty()).map(str::to_owned);
    if given(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    let exists = toleration.operator.as_deref() == Some("Exists");
    match given(&toleration.key) {
        None => exists,
        Some(key) if key != taint.key => false,
        Some(_) if exists => true,
        Some(_) => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
    }
}
