//! Runs a StatefulSet's pods under their stable names, one after the other (sandbox.md §5.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};

use super::effects::{CLAIMS, EventDraft, EventKind, PODS, STATEFUL_SETS, reference};
use super::manager::{Manager, Task};
use super::pod::PodFacts;
use super::workload::{
    available_from, controller_reference, count, is_active, is_available, pod_from_template, template_hash,
};
use crate::server::DeleteOptions;

const HASH_LABEL: &str = "controller-revision-hash";

/// What to do about a StatefulSet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<i32>,
    pub(crate) delete: Vec<Arc<PodFacts>>,
    pub(crate) status: StatefulSetStatus,
    pub(crate) look_again: Option<Timestamp>,
}

/// Compares the ordinals a StatefulSet wants with the pods that it owns.
pub(crate) fn plan(set: &StatefulSet, revision: &str, pods: &BTreeMap<i32, Arc<PodFacts>>, now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let start = spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0);
    let wanted = start..start + spec.replicas.unwrap_or(1);
    let in_order = spec.pod_management_policy.as_deref() != Some("Parallel");
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let mut plan = Plan {
        status: status(set, revision, pods, now),
        ..Plan::default()
    };
    let awaited = pods
        .values()
        .filter_map(|p| available_from(p, min_ready))
        .filter(|at| *at > now);
    plan.look_again = awaited.min();
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut all_settled = true;
    for ordinal in wanted.clone() {
        let settled = match pods.get(&ordinal) {
            None => {
                plan.create.push(ordinal);
                false
            }
            Some(pod) if pod.deletion.is_some() => false,
            Some(pod) if pod.phase.is_terminal() => {
                plan.delete.push(Arc::clone(pod));
                false
            }
            Some(pod) => is_available(pod, min_ready, now),
        };
        all_settled &= settled;
        if in_order && !settled {
            break;
        }
    }
    let surplus: Vec<&Arc<PodFacts>> = pods
        .iter()
        .filter(|(o, _)| !wanted.contains(o))
        .map(|(_, p)| p)
        .rev()
        .collect();
    if in_order {
        // The highest goes first, and the next only when it is gone.
        let highest = surplus.first().filter(|p| p.deletion.is_none() && all_settled);
        plan.delete.extend(highest.map(|p| Arc::clone(p)));
        all_settled &= surplus.is_empty();
    } else {
        plan.delete
            .extend(surplus.into_iter().filter(|p| p.deletion.is_none()).map(Arc::clone));
    }
    let strategy = spec.update_strategy.as_ref();
    let rolls = strategy.and_then(|s| s.type_.as_deref()) != Some("OnDelete");
    if rolls && all_settled {
        let partition = strategy.and_then(|s| s.rolling_update.as_ref()?.partition).unwrap_or(0);
        let outdated = pods.iter().rev().find(|(ordinal, pod)| {
            **ordinal >= partition && pod.class.labels.get(HASH_LABEL).is_none_or(|h| h != revision)
        });
        plan.delete.extend(outdated.map(|(_, pod)| Arc::clone(pod)));
    }
    plan
}

fn status(set: &StatefulSet, revision: &str, pods: &BTreeMap<i32, Arc<PodFacts>>, now: Timestamp) -> StatefulSetStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let old = set.status.clone().unwrap_or_default();
    let active: Vec<&Arc<PodFacts>> = pods.values().filter(|p| is_active(p)).collect();
    let of = |hash: &str| {
        count(
            active
                .iter()
                .filter(|p| p.class.labels.get(HASH_LABEL).is_some_and(|h| h == hash)),
        )
    };
    let updated = of(revision);
    let is_rolled_out = updated == count(active.iter());
    let current = old
        .current_revision
        .filter(|_| !is_rolled_out)
        .unwrap_or_else(|| revision.to_owned());
    let positive = |n: i32| Some(n).filter(|n| *n > 0);
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(active.iter()),
        ready_replicas: positive(count(active.iter().filter(|p| p.ready_since.is_some()))),
        available_replicas: Some(count(active.iter().filter(|p| is_available(p, min_ready, now)))),
        current_replicas: positive(of(&current)),
        updated_replicas: positive(updated),
        current_revision: Some(current),
        update_revision: Some(revision.to_owned()),
        collision_count: Some(0),
        conditions: old.conditions,
    }
}

fn ordinal_of(set: &str, pod: &str) -> Option<i32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let name = set.metadata.name.clone().unwrap_or_default();
    let templates = set
        .spec
        .as_ref()
        .and_then(|s| s.volume_claim_templates.clone())
        .unwrap_or_default();
    let labels = set.spec.as_ref().and_then(|s| s.selector.match_labels.clone());
    templates
        .into_iter()
        .map(|mut claim| {
            let template = claim.metadata.name.clone().unwrap_or_default();
            claim.metadata.name = Some(format!("{template}-{name}-{ordinal}"));
            claim.metadata.namespace = set.metadata.namespace.clone();
            claim.metadata.labels = labels.clone().or(claim.metadata.labels);
            claim.status = None;
            claim
        })
        .collect()
}

fn stateful_pod(set: &StatefulSet, revision: &str, ordinal: i32) -> Option<Pod> {
    let spec = set.spec.as_ref()?;
    let name = set.metadata.name.clone()?;
    let namespace = set.metadata.namespace.clone()?;
    let owner = controller_reference("apps/v1", "StatefulSet", &set.metadata);
    let mut pod = pod_from_template(&spec.template, &namespace, owner);
    let pod_name = format!("{name}-{ordinal}");
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(pod_name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), pod_name.clone());
    labels.insert("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string());
    labels.insert(HASH_LABEL.to_owned(), revision.to_owned());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(pod_name);
    pod_spec.subdomain = spec.service_name.clone();
    let templates = spec
        .volume_claim_templates
        .iter()
        .flatten()
        .filter_map(|t| t.metadata.name.clone());
    for template in templates {
        let volumes = pod_spec.volumes.get_or_insert_default();
        volumes.retain(|v| v.name != template);
        volumes.push(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: format!("{template}-{name}-{ordinal}"),
                read_only: None,
            }),
            name: template,
            ..Volume::default()
        });
    }
    Some(pod)
}

impl Manager {
    pub(crate) fn sync_stateful_set(&mut self, key: &Arc<str>) {
        let Some(set) = self.world.stateful_sets.get(key).cloned() else {
            return;
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let name = set.metadata.name.clone().unwrap_or_default();
        let hash = set
            .spec
            .as_ref()
            .map(|s| template_hash(&s.template))
            .unwrap_or_default();
        let revision = format!("{name}-{hash}");
        let pods: BTreeMap<i32, Arc<PodFacts>> = self
            .world
            .pods_owned_by(&uid)
            .filter_map(|pod| Some((ordinal_of(&name, &pod.name)?, Arc::clone(pod))))
            .collect();
        let plan = plan(&set, &revision, &pods, self.effects.now());
        let announce = |reason: &'static str, message: String| EventDraft {
            regarding: reference("apps/v1", "StatefulSet", &namespace, &name, &uid),
            kind: EventKind::Normal,
            reason,
            action: "",
            component: "statefulset-controller",
            message,
        };
        for ordinal in plan.create {
            for claim in claims(&set, ordinal) {
                let claim_name = claim.metadata.name.clone().unwrap_or_default();
                if self.effects.get(CLAIMS, &namespace, &claim_name).is_none() {
                    let created = self.effects.create(CLAIMS, &namespace, &claim);
                    self.effects.report("create a claim", created.map(|_| ()));
                }
            }
            let Some(pod) = stateful_pod(&set, &revision, ordinal) else {
                continue;
            };
            match self.effects.create(PODS, &namespace, &pod) {
                Ok(_) => {
                    let message = format!("create Pod {name}-{ordinal} in StatefulSet {name} successful");
                    self.effects.event(&announce("SuccessfulCreate", message));
                }
                Err(error) => self.effects.report("create a stateful pod", Err(error)),
            }
        }
        for pod in plan.delete {
            let deleted = self
                .effects
                .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::default());
            self.effects.report("delete a stateful pod", deleted);
            let message = format!("delete Pod {} in StatefulSet {name} successful", pod.name);
            self.effects.event(&announce("SuccessfulDelete", message));
        }
        let written = self.effects.set_status(STATEFUL_SETS, &namespace, &name, &plan.status);
        self.effects.report("write a StatefulSet's status", written);
        if let Some(at) = plan.look_again {
            self.arm(Task::StatefulSet(Arc::clone(key)), at);
        }
    }
}
