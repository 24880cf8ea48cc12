//! Keeps as many pods of a ReplicaSet running as it wants (sandbox.md §5.3).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use serde_json::json;

use super::effects::{EventDraft, EventKind, PODS, REPLICA_SETS, reference};
use super::manager::Manager;
use super::pod::{Phase, PodFacts};
use super::selector::Selector;
use super::workload::{available_from, controller_reference, count, is_active, is_available, pod_from_template};
use crate::server::{DeleteOptions, Endpoint};

/// No more pods than this are made or deleted in one go.
const BURST: usize = 500;

/// What to do about a ReplicaSet.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) create: usize,
    pub(crate) delete: Vec<Arc<str>>,
    pub(crate) status: ReplicaSetStatus,
    /// When a ready pod becomes available.
    pub(crate) look_again: Option<Timestamp>,
}

/// Compares what a ReplicaSet wants with the pods that it owns.
pub(crate) fn plan(set: &ReplicaSet, pods: &[&Arc<PodFacts>], now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let active: Vec<&Arc<PodFacts>> = pods.iter().copied().filter(|p| is_active(p)).collect();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let is_terminating = set.metadata.deletion_timestamp.is_some();
    let (create, delete) = match active.len() {
        _ if is_terminating => (0, Vec::new()),
        have if have < wanted => ((wanted - have).min(BURST), Vec::new()),
        have => (0, surplus(&active, (have - wanted).min(BURST))),
    };
    let status = ReplicaSetStatus {
        replicas: count(active.iter()),
        fully_labeled_replicas: Some(count(active.iter())).filter(|n| *n > 0),
        ready_replicas: Some(count(active.iter().filter(|p| p.ready_since.is_some()))).filter(|n| *n > 0),
        available_replicas: Some(count(active.iter().filter(|p| is_available(p, min_ready, now)))).filter(|n| *n > 0),
        terminating_replicas: Some(count(
            pods.iter().filter(|p| p.deletion.is_some() && !p.phase.is_terminal()),
        )),
        observed_generation: set.metadata.generation,
        conditions: set.status.as_ref().and_then(|s| s.conditions.clone()),
    };
    let look_again = active
        .iter()
        .filter_map(|p| available_from(p, min_ready))
        .filter(|at| *at > now)
        .min();
    Plan {
        create,
        delete,
        status,
        look_again,
    }
}

/// The pods that are missed least.
fn surplus(active: &[&Arc<PodFacts>], number: usize) -> Vec<Arc<str>> {
    let mut siblings: BTreeMap<&str, usize> = BTreeMap::new();
    for node in active
        .iter()
        .filter(|p| p.ready_since.is_some())
        .filter_map(|p| p.node.as_deref())
    {
        *siblings.entry(node).or_default() += 1;
    }
    let mut ranked: Vec<&Arc<PodFacts>> = active.to_vec();
    ranked.sort_by_cached_key(|pod| {
        let phase = match pod.phase {
            Phase::Pending => 0,
            Phase::Unknown => 1,
            Phase::Running | Phase::Succeeded | Phase::Failed => 2,
        };
        let crowd = pod.node.as_deref().and_then(|n| siblings.get(n)).copied().unwrap_or(0);
        (
            pod.node.is_some(),
            phase,
            pod.ready_since.is_some(),
            pod.deletion_cost,
            Reverse(crowd),
            Reverse(pod.ready_since),
            Reverse(pod.restarts),
            Reverse(pod.created),
            Arc::clone(&pod.key),
        )
    });
    ranked.into_iter().take(number).map(|p| Arc::clone(&p.key)).collect()
}

impl Manager {
    /// Adopts orphans that look like this set's pods and lets go of pods that no longer do; whether there were any.
    fn claim_pods(&self, set: &ReplicaSet, uid: &str) -> bool {
        let (Some(spec), None) = (&set.spec, &set.metadata.deletion_timestamp) else {
            return false;
        };
        let selector = Selector::new(&spec.selector);
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let fits = |pod: &PodFacts| !selector.is_empty() && selector.matches(&pod.class.labels);
        let mut changed = false;
        for pod in self.world.orphans_in(namespace).filter(|p| is_active(p) && fits(p)) {
            let owner = controller_reference("apps/v1", "ReplicaSet", &set.metadata);
            let adopted = self
                .effects
                .modify(PODS, &pod.namespace, &pod.name, Endpoint::Main, |object| {
                    let owners = &mut object["metadata"]["ownerReferences"];
                    match owners.as_array_mut() {
                        Some(list) => list.push(json!(owner)),
                        None => *owners = json!([owner]),
                    }
                    true
                });
            changed |= adopted.is_ok();
            self.effects.report("adopt a pod", adopted);
        }
        for pod in self
            .world
            .pods_owned_by(uid)
            .filter(|p| p.deletion.is_none() && !fits(p))
        {
            let released = self
                .effects
                .modify(PODS, &pod.namespace, &pod.name, Endpoint::Main, |object| {
                    let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() else {
                        return false;
                    };
                    owners.retain(|o| o["uid"] != uid);
                    true
                });
            changed |= released.is_ok();
            self.effects.report("release a pod", released);
        }
        changed
    }

    pub(crate) fn sync_replica_set(&mut self, key: &Arc<str>) {
        let Some(set) = self.world.replica_sets.get(key).cloned() else {
            return;
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        if self.claim_pods(&set, &uid) {
            // Who belongs to whom has changed; the change comes back as an event and is counted then.
            return;
        }
        let pods: Vec<&Arc<PodFacts>> = self.world.pods_owned_by(&uid).collect();
        let plan = plan(&set, &pods, self.effects.now());
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let name = set.metadata.name.clone().unwrap_or_default();
        let subject = || reference("apps/v1", "ReplicaSet", &namespace, &name, &uid);
        let announce = |reason: &'static str, message: String| EventDraft {
            regarding: subject(),
            kind: EventKind::Normal,
            reason,
            action: "",
            component: "replicaset-controller",
            message,
        };
        if let Some(template) = set.spec.as_ref().and_then(|s| s.template.as_ref()) {
            let owner = controller_reference("apps/v1", "ReplicaSet", &set.metadata);
            for _ in 0..plan.create {
                let pod = pod_from_template(template, &namespace, owner.clone());
                match self.effects.create(PODS, &namespace, &pod) {
                    Ok(pod) => {
                        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                        self.effects
                            .event(&announce("SuccessfulCreate", format!("Created pod: {name}")));
                    }
                    Err(error) => {
                        self.effects.event(&EventDraft {
                            kind: EventKind::Warning,
                            ..announce("FailedCreate", format!("Error creating: {}", error.message))
                        });
                        break;
                    }
                }
            }
        }
        for key in &plan.delete {
            let Some(pod) = self.world.pods.get(key).cloned() else {
                continue;
            };
            let deleted = self
                .effects
                .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::default());
            self.effects.report("scale a ReplicaSet down", deleted);
            self.effects
                .event(&announce("SuccessfulDelete", format!("Deleted pod: {}", pod.name)));
        }
        let written = self.effects.set_status(REPLICA_SETS, &namespace, &name, &plan.status);
        self.effects.report("write a ReplicaSet's status", written);
        if let Some(at) = plan.look_again {
            self.arm(super::manager::Task::ReplicaSet(Arc::clone(key)), at);
        }
    }
}
