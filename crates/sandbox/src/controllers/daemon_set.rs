//! Runs one pod of a DaemonSet on every node that it is meant for (sandbox.md §5.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};

use super::effects::{DAEMON_SETS, EventDraft, EventKind, PODS, reference};
use super::manager::{Manager, Task};
use super::node::{NodeFacts, repels, tolerates};
use super::pod::{PodFacts, SpecFacts};
use super::scheduler::filters::matches_affinity;
use super::workload::{
    Rounding, available_from, controller_reference, count, is_available, pod_from_template, resolve, template_hash,
};
use crate::server::DeleteOptions;

const HASH_LABEL: &str = "controller-revision-hash";

/// What a DaemonSet wants of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A pod should be there.
    Run,
    /// No new pod, but one that is there may stay.
    Tolerate,
    /// A pod that is there must go.
    Leave,
}

/// Whether a DaemonSet's pod belongs on the node.
pub(crate) fn verdict(spec: &SpecFacts, node: &NodeFacts) -> Verdict {
    if !matches_affinity(spec, node) {
        return Verdict::Leave;
    }
    let untolerated = |t: &&k8s_openapi::api::core::v1::Taint| repels(t) && !tolerates(&spec.tolerations, t);
    let mut offending = node.taints.iter().filter(untolerated).peekable();
    if offending.peek().is_none() {
        return Verdict::Run;
    }
    if offending.any(|t| t.effect == "NoExecute") {
        Verdict::Leave
    } else {
        Verdict::Tolerate
    }
}

/// What to do about a DaemonSet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create_on: Vec<Arc<str>>,
    pub(crate) delete: Vec<Arc<PodFacts>>,
    pub(crate) status: DaemonSetStatus,
    pub(crate) look_again: Option<Timestamp>,
}

/// Compares the nodes with the pods that the DaemonSet owns.
pub(crate) fn plan<'p>(
    set: &DaemonSet,
    hash: &str,
    nodes: impl Iterator<Item = &'p Arc<NodeFacts>>,
    pods: impl Iterator<Item = &'p Arc<PodFacts>>,
    now: Timestamp,
) -> Plan {
    let Some(spec) = &set.spec else { return Plan::default() };
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let mut by_node: BTreeMap<Arc<str>, Vec<&Arc<PodFacts>>> = BTreeMap::new();
    let mut plan = Plan::default();
    for pod in pods {
        match target_node(pod) {
            Some(node) => by_node.entry(node).or_default().push(pod),
            None => plan.delete.extend(pod.deletion.is_none().then(|| Arc::clone(pod))),
        }
    }
    let facts = template_facts(set);
    let mut updatable = Vec::new();
    let (mut desired, mut current, mut ready, mut available, mut updated, mut misscheduled) = (0, 0, 0, 0, 0, 0);
    for node in nodes {
        let here = by_node.remove(&node.name).unwrap_or_default();
        let mut living: Vec<_> = here.iter().filter(|p| p.deletion.is_none()).copied().collect();
        living.sort_by_key(|p| (p.created, Arc::clone(&p.key)));
        match verdict(&facts, node) {
            Verdict::Run => {
                desired += 1;
                // A failed daemon pod is replaced.
                let (failed, mut healthy): (Vec<_>, Vec<_>) = living.into_iter().partition(|p| p.phase.is_terminal());
                plan.delete.extend(failed.into_iter().map(Arc::clone));
                if here.is_empty() {
                    plan.create_on.push(Arc::clone(&node.name));
                    continue;
                }
                if healthy.len() > 1 {
                    plan.delete.extend(healthy.drain(1..).map(Arc::clone));
                }
                let Some(pod) = healthy.first() else { continue };
                current += 1;
                ready += i32::from(pod.ready_since.is_some());
                available += i32::from(is_available(pod, min_ready, now));
                let awaited = available_from(pod, min_ready).filter(|at| *at > now);
                plan.look_again = plan.look_again.into_iter().chain(awaited).min();
                if pod.class.labels.get(HASH_LABEL).is_some_and(|h| h == hash) {
                    updated += 1;
                } else {
                    updatable.push(Arc::clone(pod));
                }
            }
            Verdict::Tolerate => misscheduled += count(living.iter()),
            Verdict::Leave => {
                misscheduled += count(living.iter());
                plan.delete.extend(living.into_iter().map(Arc::clone));
            }
        }
    }
    // What is left waits for, or runs on, nodes that are gone.
    let stranded = by_node.into_values().flatten().filter(|p| p.deletion.is_none());
    plan.delete.extend(stranded.map(Arc::clone));
    let strategy = spec.update_strategy.as_ref();
    if strategy.and_then(|s| s.type_.as_deref()) != Some("OnDelete") {
        let limit = strategy.and_then(|s| s.rolling_update.as_ref()?.max_unavailable.clone());
        let limit = limit.map_or(1, |l| resolve(&l, desired, Rounding::Up)).max(1);
        let unavailable = desired - available;
        let room = usize::try_from(limit - unavailable).unwrap_or(0);
        // Pods that don't run anyway cost nothing.
        updatable.sort_by_key(|p| (is_available(p, min_ready, now), Arc::clone(&p.key)));
        let idle = updatable.iter().filter(|p| !is_available(p, min_ready, now)).count();
        plan.delete.extend(updatable.into_iter().take(idle + room));
    }
    plan.status = DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: current,
        number_ready: ready,
        number_available: Some(available).filter(|n| *n > 0),
        number_unavailable: Some(desired - available).filter(|n| *n > 0),
        updated_number_scheduled: Some(updated).filter(|n| *n > 0),
        number_misscheduled: misscheduled,
        observed_generation: set.metadata.generation,
        ..DaemonSetStatus::default()
    };
    plan
}

/// The node that a daemon pod is on or meant for.
fn target_node(pod: &PodFacts) -> Option<Arc<str>> {
    if let Some(node) = &pod.node {
        return Some(Arc::clone(node));
    }
    let terms = pod.class.spec.node_affinity.as_ref()?;
    let name = terms.0.first()?.pinned_names()?.first()?;
    Some(Arc::from(name.as_str()))
}

fn template_facts(set: &DaemonSet) -> SpecFacts {
    let Some(spec) = &set.spec else {
        return SpecFacts::default();
    };
    let mut pod = spec.template.spec.clone().unwrap_or_default();
    add_tolerations(&mut pod);
    SpecFacts::new(&pod, "", &BTreeMap::new())
}

/// Daemon pods put up with a node's troubles, but not with one that never became ready.
fn add_tolerations(spec: &mut PodSpec) {
    let mut keys = vec![
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    if spec.host_network == Some(true) {
        keys.push(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    }
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in keys {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}

fn daemon_pod(set: &DaemonSet, hash: &str, node: &str) -> Option<Pod> {
    let spec = set.spec.as_ref()?;
    let owner = controller_reference("apps/v1", "DaemonSet", &set.metadata);
    let namespace = set.metadata.namespace.clone().unwrap_or_default();
    let mut pod = pod_from_template(&spec.template, &namespace, owner);
    pod.metadata
        .labels
        .get_or_insert_default()
        .insert(HASH_LABEL.to_owned(), hash.to_owned());
    let pod_spec = pod.spec.get_or_insert_default();
    add_tolerations(pod_spec);
    let pin = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let affinity = pod_spec.affinity.get_or_insert_default();
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![pin],
    });
    Some(pod)
}

impl Manager {
    pub(crate) fn sync_daemon_set(&mut self, key: &Arc<str>) {
        let Some(set) = self.world.daemon_sets.get(key).cloned() else {
            return;
        };
        if set.metadata.deletion_timestamp.is_some() {
            return;
        }
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let name = set.metadata.name.clone().unwrap_or_default();
        let hash = set
            .spec
            .as_ref()
            .map(|s| template_hash(&s.template))
            .unwrap_or_default();
        let now = self.effects.now();
        let plan = plan(
            &set,
            &hash,
            self.world.nodes.values(),
            self.world.pods_owned_by(&uid),
            now,
        );
        let announce = |reason: &'static str, message: String| EventDraft {
            regarding: reference("apps/v1", "DaemonSet", &namespace, &name, &uid),
            kind: EventKind::Normal,
            reason,
            action: "",
            component: "daemonset-controller",
            message,
        };
        for node in &plan.create_on {
            let Some(pod) = daemon_pod(&set, &hash, node) else {
                break;
            };
            match self.effects.create(PODS, &namespace, &pod) {
                Ok(pod) => {
                    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
                    self.effects
                        .event(&announce("SuccessfulCreate", format!("Created pod: {pod_name}")));
                }
                Err(error) => {
                    self.effects.report("create a daemon pod", Err(error));
                    break;
                }
            }
        }
        for pod in &plan.delete {
            let deleted = self
                .effects
                .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::default());
            self.effects.report("delete a daemon pod", deleted);
            self.effects
                .event(&announce("SuccessfulDelete", format!("Deleted pod: {}", pod.name)));
        }
        let written = self.effects.set_status(DAEMON_SETS, &namespace, &name, &plan.status);
        self.effects.report("write a DaemonSet's status", written);
        if let Some(at) = plan.look_again {
            self.arm(Task::DaemonSet(Arc::clone(key)), at);
        }
    }
}
