//! The cluster as the scheduler sees it: nodes with what is placed on them, counted per class of pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::volumes::VolumeFacts;
use crate::controllers::node::NodeFacts;
use crate::controllers::pod::{HostPort, PodClass, PodFacts};
use crate::controllers::resources::Resources;
use crate::controllers::selector::Labels;

/// Nodes, placements, volumes and namespaces; kept up to date by events, read by one scheduling attempt at a time.
#[derive(Debug, Default)]
pub(crate) struct ClusterView {
    pub(super) nodes: BTreeMap<Arc<str>, NodeState>,
    pub(super) classes: FxHashMap<u64, ClassState>,
    placed: FxHashMap<Arc<str>, Placed>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) volumes: VolumeFacts,
    /// Grows with every change.
    version: u64,
    /// Grows with every change that makes room: nodes, pods that leave, volumes.
    improvements: u64,
}

/// A node, or a name that pods are bound to although no such node exists.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    pub(crate) facts: Option<Arc<NodeFacts>>,
    pub(super) requested: Resources,
    pub(super) pods: i64,
    pub(super) ports: Vec<HostPort>,
    /// Claims in use, as `namespace/name`, with the number of pods that use each.
    pub(super) claims: BTreeMap<String, usize>,
}

/// Where the pods of one class are.
#[derive(Debug)]
pub(super) struct ClassState {
    pub(super) class: Arc<PodClass>,
    pub(super) nodes: BTreeMap<Arc<str>, Placements>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Placements {
    pub(super) living: i64,
    pub(super) terminating: i64,
}

impl Placements {
    pub(super) fn all(self) -> i64 {
        self.living + self.terminating
    }
}

#[derive(Debug)]
struct Placed {
    node: Arc<str>,
    class: Arc<PodClass>,
    terminating: bool,
    claims: Vec<String>,
}

impl ClusterView {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn improvements(&self) -> u64 {
        self.improvements
    }

    /// Takes note that there may be room now where there was none.
    pub(crate) fn improve(&mut self) {
        self.version += 1;
        self.improvements += 1;
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Arc<NodeFacts>> {
        self.nodes.get(name)?.facts.as_ref()
    }

    pub(crate) fn set_node(&mut self, facts: Arc<NodeFacts>) {
        let state = self.nodes.entry(Arc::clone(&facts.name)).or_default();
        let same = state.facts.as_ref().is_some_and(|old| {
            old.labels == facts.labels
                && old.taints == facts.taints
                && old.unschedulable == facts.unschedulable
                && old.allocatable == facts.allocatable
        });
        state.facts = Some(facts);
        if !same {
            self.improve();
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(state) = self.nodes.get_mut(name) {
            state.facts = None;
            if state.pods == 0 {
                self.nodes.remove(name);
            }
        }
        self.improve();
    }

    /// Takes note of a pod: it is placed if it has a node and has not ended.
    pub(crate) fn set_pod(&mut self, pod: &PodFacts) {
        match &pod.node {
            Some(node) if !pod.phase.is_terminal() => self.place(pod, node),
            _ => self.remove_pod(&pod.key),
        }
    }

    /// Counts `pod` on `node`, before or after it is bound there.
    pub(crate) fn place(&mut self, pod: &PodFacts, node: &Arc<str>) {
        let terminating = pod.deletion.is_some();
        if let Some(placed) = self.placed.get(&pod.key)
            && placed.node == *node
            && placed.class.id == pod.class.id
            && placed.terminating == terminating
        {
            return;
        }
        self.take_away(&pod.key);
        let claims: Vec<String> = pod
            .class
            .spec
            .volumes
            .iter()
            .map(|v| format!("{}/{}", pod.namespace, v.claim_name(&pod.name)))
            .collect();
        let state = self.nodes.entry(Arc::clone(node)).or_default();
        state.requested.add(&pod.class.spec.requests);
        state.pods += 1;
        state.ports.extend(pod.class.spec.host_ports.iter().cloned());
        for claim in &claims {
            *state.claims.entry(claim.clone()).or_default() += 1;
        }
        let class = self.classes.entry(pod.class.id).or_insert_with(|| ClassState {
            class: Arc::clone(&pod.class),
            nodes: BTreeMap::new(),
        });
        let count = class.nodes.entry(Arc::clone(node)).or_default();
        if terminating {
            count.terminating += 1;
        } else {
            count.living += 1;
        }
        let placed = Placed {
            node: Arc::clone(node),
            class: Arc::clone(&pod.class),
            terminating,
            claims,
        };
        self.placed.insert(Arc::clone(&pod.key), placed);
        self.version += 1;
    }

    pub(crate) fn remove_pod(&mut self, key: &str) {
        if self.take_away(key) {
            self.improve();
        }
    }

    fn take_away(&mut self, key: &str) -> bool {
        let Some(placed) = self.placed.remove(key) else {
            return false;
        };
        if let Some(state) = self.nodes.get_mut(&placed.node) {
            state.requested.subtract(&placed.class.spec.requests);
            state.pods -= 1;
            for port in &placed.class.spec.host_ports {
                if let Some(at) = state.ports.iter().position(|p| p == port) {
                    state.ports.swap_remove(at);
                }
            }
            for claim in &placed.claims {
                if let Some(users) = state.claims.get_mut(claim) {
                    *users -= 1;
                    if *users == 0 {
                        state.claims.remove(claim);
                    }
                }
            }
            if state.facts.is_none() && state.pods == 0 {
                self.nodes.remove(&placed.node);
            }
        }
        if let Some(class) = self.classes.get_mut(&placed.class.id) {
            if let Some(count) = class.nodes.get_mut(&placed.node) {
                if placed.terminating {
                    count.terminating -= 1;
                } else {
                    count.living -= 1;
                }
                if count.all() == 0 {
                    class.nodes.remove(&placed.node);
                }
            }
            if class.nodes.is_empty() {
                self.classes.remove(&placed.class.id);
            }
        }
        true
    }

    /// Nodes that exist, in name order.
    pub(super) fn existing(&self) -> impl Iterator<Item = (&Arc<NodeFacts>, &NodeState)> {
        self.nodes
            .values()
            .filter_map(|state| Some((state.facts.as_ref()?, state)))
    }

    /// Whether any pod on another node than through this placement uses the claim.
    pub(super) fn claim_is_used(&self, claim: &str) -> bool {
        self.nodes.values().any(|state| state.claims.contains_key(claim))
    }

    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }
}
