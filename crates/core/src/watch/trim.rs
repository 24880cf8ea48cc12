//! Cuts objects down to the fields that anyone here reads, before they are kept in memory.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::labels::annotations;
use karpenter_api::taint;
use kube::Resource;

/// Annotations of pods that mean something to us.
pub(super) const POD_ANNOTATIONS: [&str; 3] = [
    annotations::DO_NOT_DISRUPT,
    annotations::DISRUPTION_COST,
    annotations::POD_DELETION_COST,
];

/// Conditions of pods that mean something to us.
const POD_CONDITIONS: [&str; 2] = ["PodScheduled", "Ready"];

/// What no one reads on any object.
pub(super) fn metadata(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// An object without its managed fields.
pub(super) fn object<K: Resource>(mut object: K) -> K {
    metadata(object.meta_mut());
    object
}

/// A node without the list of images on it, which is often longer than all the rest.
pub(super) fn node(mut node: Node) -> Node {
    metadata(&mut node.metadata);
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_in_use = None;
        status.volumes_attached = None;
    }
    node
}

/// A DaemonSet without its history.
pub(super) fn daemon_set(mut daemon_set: DaemonSet) -> DaemonSet {
    metadata(&mut daemon_set.metadata);
    daemon_set.status = None;
    daemon_set
}

/// What disruption and termination need to know of a pod: who it is, where it runs, how it may be moved. What it
/// consists of (containers, environment, probes) and what it asks of scheduling live in `core::state` in compact form.
pub(super) fn pod(pod: Pod) -> Pod {
    let mut metadata = pod.metadata;
    metadata.managed_fields = None;
    metadata.finalizers = None;
    metadata.generate_name = None;
    metadata.annotations = metadata.annotations.and_then(|mut all| {
        all.retain(|key, _| POD_ANNOTATIONS.contains(&key.as_str()));
        (!all.is_empty()).then_some(all)
    });
    let spec = pod.spec.map(|spec| PodSpec {
        node_name: spec.node_name,
        // Whether it stays on a node that is being drained is all that is asked of them.
        tolerations: spec.tolerations.and_then(|mut all| {
            all.retain(|one| taint::first_untolerated([&taint::disrupted()], std::slice::from_ref(one)).is_none());
            (!all.is_empty()).then_some(all)
        }),
        priority: spec.priority,
        priority_class_name: spec.priority_class_name,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        resource_claims: spec.resource_claims,
        volumes: spec.volumes.and_then(|mut all| {
            all.retain(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
            (!all.is_empty()).then_some(all)
        }),
        ..PodSpec::default()
    });
    let status = pod.status.map(|status| PodStatus {
        phase: status.phase,
        start_time: status.start_time,
        nominated_node_name: status.nominated_node_name,
        conditions: status.conditions.map(|mut all| {
            all.retain(|condition| POD_CONDITIONS.contains(&condition.type_.as_str()));
            for condition in &mut all {
                condition.message = None;
                condition.last_probe_time = None;
            }
            all
        }),
        ..PodStatus::default()
    });
    Pod { metadata, spec, status }
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_api::pods;

    #[test]
    fn a_trimmed_pod_answers_every_predicate_like_the_whole_one() {
        let text = r#"
metadata: {name: web, namespace: a, annotations: {karpenter.sh/do-not-disrupt: "true", noise: x}, managedFields: [{manager: kubectl}]}
spec:
  containers: [{name: c, image: i, env: [{name: A, value: b}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: tmp, emptyDir: {}}]
  tolerations: [{key: karpenter.sh/disrupted, operator: Exists}]
status:
  phase: Pending
  conditions:
  - {type: PodScheduled, status: "False", reason: Unschedulable, message: no}
  - {type: Initialized, status: "True"}
"#;
        let whole: Pod = serde_norway::from_str(text).unwrap();
        let trimmed = pod(whole.clone());
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert!(pods::is_provisionable(&whole) && pods::is_provisionable(&trimmed));
        assert!(pods::tolerates_disruption(&trimmed));
        assert!(!pods::is_disruptable(&trimmed, now) && !pods::is_disruptable(&whole, now));
        assert_eq!(trimmed.spec.as_ref().unwrap().volumes.as_ref().unwrap().len(), 1);
        assert!(trimmed.spec.unwrap().containers.is_empty());
        assert_eq!(trimmed.metadata.annotations.unwrap().len(), 1);
        assert_eq!(trimmed.status.unwrap().conditions.unwrap().len(), 1);
    }
}
