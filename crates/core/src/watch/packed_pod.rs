//! Pods as the cache keeps them: what a workload's pods have in common once, and a few hundred bytes for each.
//!
//! A `Pod` of the client library takes two thousand bytes before its first text, and its labels, owners and tolerations are
//! those of its siblings. Few pods are ever looked at: those of a node that goes, or of one that might.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHasher};

use super::{Key, Pack, Unpack};

/// Templates that no pod uses any more are dropped after this many pods were packed.
const SWEEP_EVERY: u32 = 5000;

/// Packs pods, and holds what they share.
#[derive(Debug, Default)]
pub(super) struct PodPacker {
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Pods without anything of their own, by a hash of their labels and owners.
    templates: FxHashMap<u64, Vec<Arc<Pod>>>,
    conditions: FxHashMap<u64, Vec<Arc<ConditionText>>>,
    packed_since_sweep: u32,
}

/// What a condition says, without when.
#[derive(Debug)]
struct ConditionText {
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    observed_generation: Option<i64>,
}

/// One pod's own part.
struct PackedPod {
    template: Arc<Pod>,
    uid: Option<Box<str>>,
    created: Option<Time>,
    deleted: Option<Time>,
    deletion_grace_period: Option<i64>,
    generation: Option<i64>,
    node_name: Option<Box<str>>,
    start_time: Option<Time>,
    nominated_node_name: Option<Box<str>>,
    conditions: Option<Box<[PackedCondition]>>,
}

struct PackedCondition {
    text: Arc<ConditionText>,
    last_probe_time: Option<Time>,
    last_transition_time: Option<Time>,
}

impl Pack<Pod> for PodPacker {
    fn pack(&self, pod: &mut Pod) -> Box<dyn Unpack<Pod>> {
        let mut shared = self.shared.lock();
        let template = shared.template(pod);
        let (meta, spec, status) = (&pod.metadata, pod.spec.as_ref(), pod.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let conditions = conditions.map(|all| all.iter().map(|condition| shared.condition(condition)).collect());
        shared.sweep_sometimes();
        drop(shared);
        Box::new(PackedPod {
            template,
            uid: meta.uid.as_deref().map(Box::from),
            created: meta.creation_timestamp.clone(),
            deleted: meta.deletion_timestamp.clone(),
            deletion_grace_period: meta.deletion_grace_period_seconds,
            generation: meta.generation,
            node_name: spec.and_then(|spec| spec.node_name.as_deref()).map(Box::from),
            start_time: status.and_then(|status| status.start_time.clone()),
            nominated_node_name: status
                .and_then(|status| status.nominated_node_name.as_deref())
                .map(Box::from),
            conditions,
        })
    }
}

impl Unpack<Pod> for PackedPod {
    fn unpack(&self, key: &Key, resource_version: &str) -> Pod {
        let mut pod = (*self.template).clone();
        let text = |own: &Option<Box<str>>| own.as_deref().map(str::to_owned);
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        pod.metadata = ObjectMeta {
            name: named(&key.name),
            namespace: named(&key.namespace),
            uid: text(&self.uid),
            resource_version: named(resource_version),
            creation_timestamp: self.created.clone(),
            deletion_timestamp: self.deleted.clone(),
            deletion_grace_period_seconds: self.deletion_grace_period,
            generation: self.generation,
            ..pod.metadata
        };
        if let Some(spec) = &mut pod.spec {
            spec.node_name = text(&self.node_name);
        }
        if let Some(status) = &mut pod.status {
            status.start_time = self.start_time.clone();
            status.nominated_node_name = text(&self.nominated_node_name);
            let conditions = self.conditions.as_deref();
            status.conditions = conditions.map(|all| all.iter().map(PackedCondition::unpack).collect());
        }
        pod
    }
}

impl PackedCondition {
    fn unpack(&self) -> PodCondition {
        let text = &*self.text;
        PodCondition {
            type_: text.kind.clone(),
            status: text.status.clone(),
            reason: text.reason.clone(),
            message: text.message.clone(),
            observed_generation: text.observed_generation,
            last_probe_time: self.last_probe_time.clone(),
            last_transition_time: self.last_transition_time.clone(),
        }
    }
}

impl Shared {
    /// What `pod` has in common with its siblings. The pod's own parts are laid aside meanwhile: most pods have a template
    /// already, and to copy one only to compare it would cost more than all the rest of packing.
    fn template(&mut self, pod: &mut Pod) -> Arc<Pod> {
        let mut hasher = FxHasher::default();
        pod.metadata.labels.hash(&mut hasher);
        for owner in pod.metadata.owner_references.iter().flatten() {
            owner.uid.hash(&mut hasher);
        }
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_ref())
            .hash(&mut hasher);
        let alike = self.templates.entry(hasher.finish()).or_default();
        let own = OwnParts::take_from(pod);
        let template = match alike.iter().find(|known| ***known == *pod) {
            Some(known) => known.clone(),
            None => {
                let template = Arc::new(pod.clone());
                alike.push(template.clone());
                template
            }
        };
        own.give_back_to(pod);
        template
    }

    fn condition(&mut self, condition: &PodCondition) -> PackedCondition {
        let mut hasher = FxHasher::default();
        condition.type_.hash(&mut hasher);
        condition.status.hash(&mut hasher);
        condition.message.hash(&mut hasher);
        let alike = self.conditions.entry(hasher.finish()).or_default();
        let text = match alike.iter().find(|known| known.is_of(condition)) {
            Some(known) => known.clone(),
            None => {
                let text = Arc::new(ConditionText::of(condition));
                alike.push(text.clone());
                text
            }
        };
        PackedCondition {
            text,
            last_probe_time: condition.last_probe_time.clone(),
            last_transition_time: condition.last_transition_time.clone(),
        }
    }

    fn sweep_sometimes(&mut self) {
        self.packed_since_sweep += 1;
        if self.packed_since_sweep < SWEEP_EVERY {
            return;
        }
        self.packed_since_sweep = 0;
        self.templates.retain(|_, alike| {
            alike.retain(|template| Arc::strong_count(template) > 1);
            !alike.is_empty()
        });
        self.conditions.retain(|_, alike| {
            alike.retain(|text| Arc::strong_count(text) > 1);
            !alike.is_empty()
        });
    }
}

// === impl ConditionText ===

impl ConditionText {
    fn of(condition: &PodCondition) -> Self {
        Self {
            kind: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            observed_generation: condition.observed_generation,
        }
    }

    fn is_of(&self, condition: &PodCondition) -> bool {
        self.kind == condition.type_
            && self.status == condition.status
            && self.reason == condition.reason
            && self.message == condition.message
            && self.observed_generation == condition.observed_generation
    }
}

/// What no two pods have in common, taken out of one for a while.
struct OwnParts {
    meta: ObjectMeta,
    node_name: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

// === impl OwnParts ===

impl OwnParts {
    fn take_from(pod: &mut Pod) -> Self {
        let meta = &mut pod.metadata;
        let (mut spec, mut status) = (pod.spec.as_mut(), pod.status.as_mut());
        Self {
            meta: ObjectMeta {
                name: meta.name.take(),
                namespace: meta.namespace.take(),
                uid: meta.uid.take(),
                resource_version: meta.resource_version.take(),
                creation_timestamp: meta.creation_timestamp.take(),
                deletion_timestamp: meta.deletion_timestamp.take(),
                deletion_grace_period_seconds: meta.deletion_grace_period_seconds.take(),
                generation: meta.generation.take(),
                ..ObjectMeta::default()
            },
            node_name: spec.as_mut().and_then(|spec| spec.node_name.take()),
            start_time: status.as_mut().and_then(|status| status.start_time.take()),
            nominated_node_name: status.as_mut().and_then(|status| status.nominated_node_name.take()),
            conditions: status.as_mut().and_then(|status| status.conditions.take()),
        }
    }

    fn give_back_to(self, pod: &mut Pod) {
        let meta = &mut pod.metadata;
        meta.name = self.meta.name;
        meta.namespace = self.meta.namespace;
        meta.uid = self.meta.uid;
        meta.resource_version = self.meta.resource_version;
        meta.creation_timestamp = self.meta.creation_timestamp;
        meta.deletion_timestamp = self.meta.deletion_timestamp;
        meta.deletion_grace_period_seconds = self.meta.deletion_grace_period_seconds;
        meta.generation = self.meta.generation;
        if let Some(spec) = &mut pod.spec {
            spec.node_name = self.node_name;
        }
        if let Some(status) = &mut pod.status {
            status.start_time = self.start_time;
            status.nominated_node_name = self.nominated_node_name;
            status.conditions = self.conditions;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"
metadata:
  name: web-1
  namespace: a
  uid: u
  resourceVersion: "7"
  generation: 2
  creationTimestamp: "2026-01-01T00:00:00Z"
  deletionTimestamp: "2026-01-02T00:00:00Z"
  deletionGracePeriodSeconds: 30
  labels: {app: web}
  annotations: {karpenter.sh/do-not-disrupt: "true"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: r, controller: true}]
spec:
  nodeName: n
  containers: []
  priority: 3
  priorityClassName: high
  terminationGracePeriodSeconds: 60
  tolerations: [{key: karpenter.sh/disrupted, operator: Exists}]
  volumes: [{name: d, persistentVolumeClaim: {claimName: d}}]
status:
  phase: Running
  startTime: "2026-01-01T00:00:05Z"
  nominatedNodeName: m
  conditions:
  - {type: PodScheduled, status: "True", lastTransitionTime: "2026-01-01T00:00:01Z"}
  - {type: Ready, status: "False", reason: ContainersNotReady}
"#;

    fn pod() -> Pod {
        serde_norway::from_str(POD).unwrap()
    }

    fn there_and_back(packer: &PodPacker, pod: &Pod) -> Pod {
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        let mut given = pod.clone();
        let packed = packer.pack(&mut given);
        assert_eq!(given, *pod, "packing changed the pod");
        packed.unpack(&Key::of(pod), &version)
    }

    #[test]
    fn a_pod_comes_out_as_it_went_in() {
        let packer = PodPacker::default();
        let bare: Pod = serde_norway::from_str("{metadata: {name: bare, namespace: a}}").unwrap();
        for pod in [pod(), bare, Pod::default()] {
            assert_eq!(there_and_back(&packer, &pod), pod);
        }
    }

    #[test]
    fn siblings_share_what_they_have_in_common_and_keep_what_is_their_own() {
        let packer = PodPacker::default();
        let (mut first, mut second) = (pod(), pod());
        second.metadata.name = Some("web-2".to_owned());
        second.metadata.uid = Some("v".to_owned());
        second.spec.as_mut().unwrap().node_name = None;
        let kept = [packer.pack(&mut first), packer.pack(&mut second)];
        assert_eq!(packer.shared.lock().templates.values().flatten().count(), 1);
        assert_eq!(kept[1].unpack(&Key::of(&second), "7"), second);
        assert_eq!(kept[0].unpack(&Key::of(&first), "7"), first);
    }

    #[test]
    fn a_pod_that_differs_gets_a_template_of_its_own() {
        let packer = PodPacker::default();
        let (mut first, mut second) = (pod(), pod());
        second.spec.as_mut().unwrap().priority = Some(4);
        let kept = [packer.pack(&mut first), packer.pack(&mut second)];
        assert_eq!(kept[1].unpack(&Key::of(&second), "7"), second);
        assert_eq!(packer.shared.lock().templates.values().flatten().count(), 2);
    }

    #[test]
    fn what_no_pod_uses_any_more_is_forgotten() {
        let packer = PodPacker::default();
        let mut other = pod();
        other.metadata.labels = None;
        drop(packer.pack(&mut pod()));
        for _ in 0..SWEEP_EVERY {
            packer.pack(&mut other);
        }
        assert!(packer.shared.lock().templates.values().flatten().count() <= 1);
    }
}
