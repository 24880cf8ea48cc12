//! Rolls a Deployment's pods out through ReplicaSets (sandbox.md §5.3).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::effects::{DEPLOYMENTS, EventDraft, EventKind, REPLICA_SETS, propagated, reference};
use super::manager::{Manager, Task};
use super::workload::{Rounding, controller_reference, resolve, template_hash};
use crate::clock::later;
use crate::server::{Endpoint, Propagation};

const HASH_LABEL: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// One step of a rollout.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Make the ReplicaSet of the present template, with this many replicas and that revision.
    Create {
        replicas: i32,
        revision: i64,
    },
    Scale {
        name: String,
        from: i32,
        to: i32,
    },
    /// Forget an old ReplicaSet beyond the history limit.
    Forget {
        name: String,
    },
}

/// How far a Deployment may stray from its size while it rolls out.
#[derive(Debug, Clone, Copy)]
struct Leeway {
    surge: i32,
    unavailable: i32,
}

/// What to do next about a Deployment and its ReplicaSets.
pub(crate) fn steps(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Vec<Step> {
    let Some(spec) = &deployment.spec else {
        return Vec::new();
    };
    if deployment.metadata.deletion_timestamp.is_some() || spec.paused == Some(true) {
        return Vec::new();
    }
    let wanted = spec.replicas.unwrap_or(1);
    let new = newest_of_template(&spec.template, sets);
    let old: Vec<&Arc<ReplicaSet>> = sets
        .iter()
        .filter(|s| new.is_none_or(|n| n.metadata.uid != s.metadata.uid))
        .collect();
    let recreate = spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
    let revision = sets.iter().map(|s| revision_of(s)).max().unwrap_or(0) + 1;
    let mut steps = Vec::new();
    if recreate {
        let old_running: i32 = old.iter().map(|s| size(s).max(running(s))).sum();
        if old_running > 0 {
            return scale_all_down(&old);
        }
        match new {
            None => steps.push(Step::Create {
                replicas: wanted,
                revision,
            }),
            Some(new) => steps.extend(scale(new, wanted)),
        }
    } else {
        let leeway = leeway(deployment, wanted);
        let total: i32 = sets.iter().map(|s| size(s)).sum();
        match new {
            None => steps.push(Step::Create {
                replicas: growth(0, wanted, total, leeway),
                revision,
            }),
            Some(new) => {
                let target = growth(size(new), wanted, total, leeway);
                let grown = scale(new, target);
                if grown.is_some() {
                    steps.extend(grown);
                } else {
                    steps.extend(shrink_old(new, &old, wanted, total, leeway));
                }
            }
        }
    }
    steps.extend(forget(spec.revision_history_limit.unwrap_or(10), &old));
    steps
}

fn leeway(deployment: &Deployment, wanted: i32) -> Leeway {
    let rolling = deployment
        .spec
        .as_ref()
        .and_then(|s| s.strategy.as_ref()?.rolling_update.clone())
        .unwrap_or_default();
    let quarter = IntOrString::String("25%".to_owned());
    let surge = resolve(rolling.max_surge.as_ref().unwrap_or(&quarter), wanted, Rounding::Up);
    let unavailable = resolve(
        rolling.max_unavailable.as_ref().unwrap_or(&quarter),
        wanted,
        Rounding::Down,
    );
    // Without any leeway a rollout could never take a step.
    Leeway {
        surge,
        unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable },
    }
}

/// How large the new ReplicaSet may be now.
fn growth(present: i32, wanted: i32, total: i32, leeway: Leeway) -> i32 {
    if present >= wanted {
        return wanted;
    }
    let room = (wanted + leeway.surge - total).max(0);
    present + room.min(wanted - present)
}

/// Old ReplicaSets give up what is not available first, then what can be spared.
fn shrink_old(new: &ReplicaSet, old: &[&Arc<ReplicaSet>], wanted: i32, total: i32, leeway: Leeway) -> Vec<Step> {
    let min_available = (wanted - leeway.unavailable).max(0);
    let new_unavailable = (size(new) - available(new)).max(0);
    let mut removable = total - min_available - new_unavailable;
    let mut spare = old.iter().map(|s| available(s)).sum::<i32>() + available(new) - min_available;
    let mut steps = Vec::new();
    for set in old {
        let (present, healthy) = (size(set), available(set));
        let unhealthy = (present - healthy).clamp(0, removable.max(0));
        removable -= unhealthy;
        let healthy_gone = spare.min(removable).clamp(0, healthy);
        removable -= healthy_gone;
        spare -= healthy_gone;
        steps.extend(scale(set, present - unhealthy - healthy_gone));
    }
    steps
}

fn scale(set: &ReplicaSet, to: i32) -> Option<Step> {
    let from = size(set);
    (from != to).then(|| Step::Scale {
        name: set.metadata.name.clone().unwrap_or_default(),
        from,
        to,
    })
}

fn scale_all_down(old: &[&Arc<ReplicaSet>]) -> Vec<Step> {
    old.iter().filter_map(|set| scale(set, 0)).collect()
}

fn forget(limit: i32, old: &[&Arc<ReplicaSet>]) -> Vec<Step> {
    let mut idle: Vec<_> = old.iter().filter(|s| size(s) == 0 && running(s) == 0).collect();
    idle.sort_by_key(|s| revision_of(s));
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    idle.into_iter()
        .take(surplus)
        .map(|s| Step::Forget {
            name: s.metadata.name.clone().unwrap_or_default(),
        })
        .collect()
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0)
}

fn running(set: &ReplicaSet) -> i32 {
    let status = set.status.clone().unwrap_or_default();
    status.replicas + status.terminating_replicas.unwrap_or(0)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

fn revision_of(set: &ReplicaSet) -> i64 {
    let annotation = set.metadata.annotations.as_ref().and_then(|a| a.get(REVISION));
    annotation.and_then(|r| r.parse().ok()).unwrap_or(0)
}

fn newest_of_template<'s>(template: &PodTemplateSpec, sets: &'s [Arc<ReplicaSet>]) -> Option<&'s Arc<ReplicaSet>> {
    sets.iter().find(|set| {
        let Some(mut theirs) = set.spec.as_ref().and_then(|s| s.template.clone()) else {
            return false;
        };
        if let Some(labels) = theirs.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
            labels.remove(HASH_LABEL);
        }
        theirs == *template
    })
}

/// The status that follows from the ReplicaSets' statuses.
fn status(deployment: &Deployment, sets: &[Arc<ReplicaSet>], now: Timestamp) -> DeploymentStatus {
    let spec = deployment.spec.clone().unwrap_or_default();
    let wanted = spec.replicas.unwrap_or(1);
    let new = newest_of_template(&spec.template, sets);
    let sum = |f: fn(&ReplicaSet) -> i32| sets.iter().map(|s| f(s)).sum::<i32>();
    let replicas = sum(|s| s.status.as_ref().map_or(0, |st| st.replicas));
    let ready = sum(|s| s.status.as_ref().and_then(|st| st.ready_replicas).unwrap_or(0));
    let ready_enough = sum(available);
    let updated = new.and_then(|s| s.status.as_ref()).map_or(0, |st| st.replicas);
    let old = deployment.status.clone().unwrap_or_default();
    let positive = |n: i32| Some(n).filter(|n| *n > 0);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: positive(replicas),
        updated_replicas: positive(updated),
        ready_replicas: positive(ready),
        available_replicas: positive(ready_enough),
        unavailable_replicas: positive(sets.iter().map(|s| size(s)).sum::<i32>().max(wanted) - ready_enough),
        terminating_replicas: Some(sum(|s| {
            s.status.as_ref().and_then(|st| st.terminating_replicas).unwrap_or(0)
        })),
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
    };
    let enough = ready_enough >= wanted - leeway(deployment, wanted).unavailable;
    let (available_status, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    put_condition(&mut status, "Available", available_status, reason, message, now);
    let complete = updated == wanted && replicas == wanted && ready_enough >= wanted;
    if let Some(new) = new {
        let name = new.metadata.name.clone().unwrap_or_default();
        let moved = (
            old.updated_replicas,
            old.ready_replicas,
            old.available_replicas,
            old.replicas,
        ) != (
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
            status.replicas,
        );
        progress(
            &mut status,
            &spec.progress_deadline_seconds,
            &name,
            complete,
            moved,
            now,
        );
    }
    status
}

fn progress(
    status: &mut DeploymentStatus,
    deadline: &Option<i32>,
    set: &str,
    complete: bool,
    moved: bool,
    now: Timestamp,
) {
    let known = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "Progressing")
        .cloned();
    if complete {
        let message = format!("ReplicaSet \"{set}\" has successfully progressed.");
        put_condition(status, "Progressing", "True", "NewReplicaSetAvailable", &message, now);
        return;
    }
    let since = known
        .as_ref()
        .and_then(|c| c.last_update_time.as_ref())
        .map_or(now, |t| t.0);
    let limit = Duration::from_secs(u64::try_from(deadline.unwrap_or(600)).unwrap_or(600));
    let finished = known
        .as_ref()
        .is_some_and(|c| c.reason.as_deref() == Some("NewReplicaSetAvailable"));
    if moved || known.is_none() || finished {
        let (reason, message) = match known {
            None => ("NewReplicaSetCreated", format!("Created new replica set \"{set}\"")),
            Some(_) => ("ReplicaSetUpdated", format!("ReplicaSet \"{set}\" is progressing.")),
        };
        put_condition(status, "Progressing", "True", reason, &message, now);
        if let Some(condition) = status
            .conditions
            .iter_mut()
            .flatten()
            .find(|c| c.type_ == "Progressing")
        {
            condition.last_update_time = Some(Time(now));
        }
    } else if later(since, limit) <= now {
        let message = format!("ReplicaSet \"{set}\" has timed out progressing.");
        put_condition(
            status,
            "Progressing",
            "False",
            "ProgressDeadlineExceeded",
            &message,
            now,
        );
    }
}

fn put_condition(status: &mut DeploymentStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter_mut().find(|c| c.type_ == kind);
    if let Some(known) = &known
        && known.status == value
        && known.reason.as_deref() == Some(reason)
        && known.message.as_deref() == Some(message)
    {
        return;
    }
    let transition = known
        .as_ref()
        .filter(|k| k.status == value)
        .and_then(|k| k.last_transition_time.clone());
    let condition = DeploymentCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: transition.or(Some(Time(now))),
        last_update_time: Some(Time(now)),
    };
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

impl Manager {
    pub(crate) fn sync_deployment(&mut self, key: &Arc<str>) {
        let Some(deployment) = self.world.deployments.get(key).cloned() else {
            return;
        };
        let meta = &deployment.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let mut sets: Vec<Arc<ReplicaSet>> = self
            .world
            .replica_sets
            .in_namespace(&namespace)
            .filter(|(_, set)| is_owned(&set.metadata, meta.uid.as_deref()))
            .map(|(_, set)| Arc::clone(set))
            .collect();
        sets.sort_by_key(|s| (s.metadata.creation_timestamp.clone(), revision_of(s)));
        for step in steps(&deployment, &sets) {
            self.take(&deployment, &namespace, step);
        }
        if let Some(new) = deployment
            .spec
            .as_ref()
            .and_then(|s| newest_of_template(&s.template, &sets))
        {
            self.stamp_revision(meta, &namespace, new, &sets);
        }
        let status = status(&deployment, &sets, self.effects.now());
        let written = self.effects.set_status(DEPLOYMENTS, &namespace, &name, &status);
        self.effects.report("write a Deployment's status", written);
        let waiting = status.conditions.iter().flatten().find(|c| {
            c.type_ == "Progressing" && c.status == "True" && c.reason.as_deref() != Some("NewReplicaSetAvailable")
        });
        if let Some(since) = waiting.and_then(|c| c.last_update_time.as_ref()) {
            let limit = deployment
                .spec
                .as_ref()
                .and_then(|s| s.progress_deadline_seconds)
                .unwrap_or(600);
            let limit = Duration::from_secs(u64::try_from(limit).unwrap_or(600));
            self.arm(Task::Deployment(Arc::clone(key)), later(since.0, limit));
        }
    }

    fn take(&mut self, deployment: &Deployment, namespace: &str, step: Step) {
        let meta = &deployment.metadata;
        match step {
            Step::Create { replicas, revision } => {
                let set = replica_set(deployment, replicas, revision);
                let name = set.metadata.name.clone().unwrap_or_default();
                match self.effects.create(REPLICA_SETS, namespace, &set) {
                    Ok(_) => self.announce_scale(meta, &name, 0, replicas),
                    Err(error) => self.effects.report("create a ReplicaSet", Err(error)),
                }
            }
            Step::Scale { name, from, to } => {
                let scaled = self
                    .effects
                    .modify(REPLICA_SETS, namespace, &name, Endpoint::Main, |set| {
                        set["spec"]["replicas"] = json!(to);
                        true
                    });
                self.effects.report("scale a ReplicaSet", scaled);
                self.announce_scale(meta, &name, from, to);
            }
            Step::Forget { name } => {
                let key = format!("{namespace}/{name}");
                let Some(set) = self.world.replica_sets.get(&key).cloned() else {
                    return;
                };
                let uid = set.metadata.uid.clone().unwrap_or_default();
                let options = propagated(Propagation::Background);
                let deleted = self.effects.delete(REPLICA_SETS, namespace, &name, &uid, options);
                self.effects.report("forget an old ReplicaSet", deleted);
            }
        }
    }

    fn announce_scale(&self, meta: &ObjectMeta, set: &str, from: i32, to: i32) {
        let direction = if to > from { "up" } else { "down" };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        self.effects.event(&EventDraft {
            regarding: reference(
                "apps/v1",
                "Deployment",
                &text(&meta.namespace),
                &text(&meta.name),
                &text(&meta.uid),
            ),
            kind: EventKind::Normal,
            reason: "ScalingReplicaSet",
            action: "",
            component: "deployment-controller",
            message: format!("Scaled {direction} replica set {set} from {from} to {to}"),
        });
    }

    /// The present ReplicaSet carries the highest revision, and the Deployment shows it.
    fn stamp_revision(&self, meta: &ObjectMeta, namespace: &str, new: &ReplicaSet, sets: &[Arc<ReplicaSet>]) {
        let others = sets
            .iter()
            .filter(|s| s.metadata.uid != new.metadata.uid)
            .map(|s| revision_of(s))
            .max();
        let revision = revision_of(new).max(others.unwrap_or(0) + 1).to_string();
        let stamp = |object: &mut serde_json::Value| {
            if object["metadata"]["annotations"][REVISION] == revision.as_str() {
                return false;
            }
            if !object["metadata"]["annotations"].is_object() {
                object["metadata"]["annotations"] = json!({});
            }
            object["metadata"]["annotations"][REVISION] = json!(revision);
            true
        };
        let set = new.metadata.name.as_deref().unwrap_or_default();
        let stamped = self.effects.modify(REPLICA_SETS, namespace, set, Endpoint::Main, stamp);
        self.effects.report("stamp a ReplicaSet's revision", stamped);
        let name = meta.name.as_deref().unwrap_or_default();
        let stamped = self.effects.modify(DEPLOYMENTS, namespace, name, Endpoint::Main, stamp);
        self.effects.report("stamp a Deployment's revision", stamped);
    }
}

pub(crate) fn is_owned(meta: &ObjectMeta, uid: Option<&str>) -> bool {
    let mut owners = meta.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && Some(o.uid.as_str()) == uid)
}

fn replica_set(deployment: &Deployment, replicas: i32, revision: i64) -> ReplicaSet {
    let meta = &deployment.metadata;
    let spec = deployment.spec.clone().unwrap_or_default();
    let hash = template_hash(&spec.template);
    let mut template = spec.template;
    let mut selector = spec.selector;
    template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default()
        .insert(HASH_LABEL.to_owned(), hash.clone());
    selector
        .match_labels
        .get_or_insert_default()
        .insert(HASH_LABEL.to_owned(), hash.clone());
    let wanted = spec.replicas.unwrap_or(1);
    let surge = leeway(deployment, wanted).surge;
    let annotations = [
        (REVISION.to_owned(), revision.to_string()),
        (
            "deployment.kubernetes.io/desired-replicas".to_owned(),
            wanted.to_string(),
        ),
        (
            "deployment.kubernetes.io/max-replicas".to_owned(),
            (wanted + surge).to_string(),
        ),
    ];
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", meta.name.clone().unwrap_or_default())),
            namespace: meta.namespace.clone(),
            labels: template.metadata.as_ref().and_then(|m| m.labels.clone()),
            annotations: Some(annotations.into()),
            owner_references: Some(vec![controller_reference("apps/v1", "Deployment", meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
