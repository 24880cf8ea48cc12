//! kube-scheduler's filters: whether a pod may be placed on a node, and if not, why not (sandbox.md §5.12).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;

use super::affinity::AffinityNeeds;
use super::spread::SpreadNeeds;
use super::view::{ClusterView, NodeState};
use super::volumes::VolumeNeeds;
use crate::controllers::node::{NodeFacts, repels, tolerates};
use crate::controllers::pod::{PodFacts, SpecFacts};

/// The first filter that turned a node down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    Unschedulable,
    NodeName,
    Taint,
    NodeAffinity,
    Ports,
    /// Every resource that is short, in name order.
    Resources(Vec<Shortage>),
    ExclusiveClaimInUse,
    VolumeLimit,
    VolumeAffinity,
    NoVolume,
    VolumeZone,
    Spread,
    SpreadLabelMissing,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
    Pods,
    Of(String),
}

impl Refusal {
    /// The reasons as they are counted in `0/3 nodes are available: …`.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let text = match self {
            Self::Resources(shortages) => {
                return shortages
                    .iter()
                    .map(|s| match s {
                        Shortage::Pods => "Too many pods".to_owned(),
                        Shortage::Of(name) => format!("Insufficient {name}"),
                    })
                    .collect();
            }
            Self::Unschedulable => "node(s) were unschedulable",
            Self::NodeName => "node(s) didn't match the requested node name",
            Self::Taint => "node(s) had untolerated taint(s)",
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::Ports => "node(s) didn't have free ports for the requested pod ports",
            Self::ExclusiveClaimInUse => {
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod"
            }
            Self::VolumeLimit => "node(s) exceed max volume count",
            Self::VolumeAffinity => "node(s) didn't match PersistentVolume's node affinity",
            Self::NoVolume => "node(s) didn't find available persistent volumes to bind",
            Self::VolumeZone => "node(s) had no available volume zone",
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::SpreadLabelMissing => "node(s) didn't match pod topology spread constraints (missing required label)",
            Self::Affinity => "node(s) didn't match pod affinity rules",
            Self::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Self::ExistingAntiAffinity => "node(s) didn't satisfy existing pods anti-affinity rules",
        };
        vec![text.to_owned()]
    }
}

/// One pod's constraints, worked out against the cluster once and then asked of every node.
#[derive(Debug)]
pub(crate) struct Attempt<'v> {
    pub(super) view: &'v ClusterView,
    pub(super) pod: &'v PodFacts,
    pub(crate) volumes: VolumeNeeds,
    pub(super) spread: SpreadNeeds,
    affinity: AffinityNeeds,
}

impl<'v> Attempt<'v> {
    /// Prepares an attempt; the error is a message that holds for every node.
    pub(crate) fn new(view: &'v ClusterView, pod: &'v PodFacts) -> Result<Self, String> {
        Ok(Self {
            volumes: view.volumes.needs(pod)?,
            spread: SpreadNeeds::new(view, pod),
            affinity: AffinityNeeds::new(view, pod),
            view,
            pod,
        })
    }

    /// Why the pod can't go to `node`; `None` if it can.
    pub(crate) fn refuse(&self, node: &NodeFacts, state: &NodeState) -> Option<Refusal> {
        let spec = &self.pod.class.spec;
        if node.unschedulable && !tolerates(&spec.tolerations, &unschedulable_taint()) {
            return Some(Refusal::Unschedulable);
        }
        if self.pod.node.as_ref().is_some_and(|wanted| **wanted != *node.name) {
            return Some(Refusal::NodeName);
        }
        if has_untolerated_taint(spec, node) {
            return Some(Refusal::Taint);
        }
        if !matches_affinity(spec, node) {
            return Some(Refusal::NodeAffinity);
        }
        if spec
            .host_ports
            .iter()
            .any(|port| state.ports.iter().any(|used| used.clashes(port)))
        {
            return Some(Refusal::Ports);
        }
        let shortages = shortages(spec, node, state);
        if !shortages.is_empty() {
            return Some(Refusal::Resources(shortages));
        }
        self.volumes
            .refuse(self.view, node, state)
            .or_else(|| self.spread.refuse(node))
            .or_else(|| self.affinity.refuse(node))
    }
}

pub(super) fn has_untolerated_taint(spec: &SpecFacts, node: &NodeFacts) -> bool {
    node.taints
        .iter()
        .any(|taint| repels(taint) && !tolerates(&spec.tolerations, taint))
}

/// nodeSelector and required node affinity together.
pub(crate) fn matches_affinity(spec: &SpecFacts, node: &NodeFacts) -> bool {
    spec.node_selector.matches(&node.labels)
        && spec
            .node_affinity
            .as_ref()
            .is_none_or(|terms| terms.matches(&node.name, &node.labels))
}

fn shortages(spec: &SpecFacts, node: &NodeFacts, state: &NodeState) -> Vec<Shortage> {
    let mut short = Vec::new();
    if state.pods + 1 > node.allocatable.get("pods") {
        short.push(Shortage::Pods);
    }
    for (name, amount) in spec.requests.iter().filter(|(_, amount)| *amount > 0) {
        if amount > node.allocatable.get(name) - state.requested.get(name) {
            short.push(Shortage::Of(name.to_owned()));
        }
    }
    short
}

fn unschedulable_taint() -> Taint {
    Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}

/// The verdict on all nodes: those that fit, or the sentence for `PodScheduled=False`.
pub(crate) fn feasible(attempt: &Attempt<'_>, start: usize, enough: usize) -> Result<Vec<Arc<NodeFacts>>, String> {
    let nodes: Vec<_> = attempt.view.existing().collect();
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let mut fitting = Vec::new();
    let mut refusals: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for offset in 0..nodes.len() {
        let (facts, state) = nodes[(start + offset) % nodes.len()];
        match attempt.refuse(facts, state) {
            None => {
                fitting.push(Arc::clone(facts));
                if fitting.len() >= enough {
                    break;
                }
            }
            Some(refusal) => {
                for reason in refusal.reasons() {
                    *refusals.entry(reason).or_default() += 1;
                }
            }
        }
    }
    if fitting.is_empty() {
        Err(unavailable(nodes.len(), &refusals))
    } else {
        Ok(fitting)
    }
}

fn unavailable(total: usize, refusals: &std::collections::BTreeMap<String, usize>) -> String {
    let mut reasons: Vec<String> = refusals
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    reasons.sort();
    format!(
        "0/{total} nodes are available: {}. no new claims to deallocate, preemption: 0/{total} nodes are available: \
         {total} Preemption is not helpful for scheduling.",
        reasons.join(", ")
    )
}
