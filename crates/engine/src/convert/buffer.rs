//! The pods that a CapacityBuffer keeps room for (scheduling.md §7.5, lifecycle.md §9).

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod as KubePod, PodTemplateSpec};
use karpenter_api::{CapacityBuffer, ResourceList, capacity_buffer::CapacityBufferSpec};

use super::{ConvertError, PodIntake, default_requests, pod_requests};
use crate::model::Pod;

/// How many pods a buffer stands for, given its pod template's requests and, for a `scalableRef`, the workload's replicas.
pub fn buffer_replicas(spec: &CapacityBufferSpec, requests: &ResourceList, workload_replicas: Option<i32>) -> i32 {
    let share = match (workload_replicas, spec.percentage) {
        (Some(replicas), Some(percentage)) if replicas > 0 => {
            let part = (i64::from(replicas) * i64::from(percentage)).div_ceil_by(100);
            Some(if percentage > 0 { part.max(1) } else { part })
        }
        _ => None,
    };
    let wanted = share.max(spec.replicas.map(i64::from));
    let limits = spec.limits.iter().flatten();
    let allowed = limits
        .filter_map(|(resource, limit)| limit.whole_times(*requests.get(resource)?))
        .min();
    let replicas = match (wanted, allowed) {
        (Some(wanted), Some(allowed)) => wanted.min(allowed),
        (Some(wanted), None) => wanted,
        (None, allowed) => allowed.unwrap_or(0),
    };
    i32::try_from(replicas.max(0)).unwrap_or(i32::MAX)
}

trait DivCeil {
    fn div_ceil_by(self, divisor: i64) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_by(self, divisor: i64) -> i64 {
        self.div_euclid(divisor) + i64::from(self.rem_euclid(divisor) != 0)
    }
}

/// What one pod of the template asks for, as the scheduler counts it.
///
/// # Errors
/// When the template has no spec, or an amount in it is no quantity.
pub fn template_requests(template: &PodTemplateSpec) -> Result<ResourceList, ConvertError> {
    let mut spec = template.spec.clone().ok_or(ConvertError::Missing("template.spec"))?;
    default_requests(&mut spec);
    pod_requests(&spec, None).map_err(ConvertError::quantity("resource requests"))
}

/// The virtual pods of a buffer, as many as [`buffer_replicas`] says.
///
/// # Errors
/// As [`virtual_pods`].
pub fn buffer_pods(
    intake: &mut PodIntake,
    buffer: &CapacityBuffer,
    template: &PodTemplateSpec,
    workload_replicas: Option<i32>,
) -> Result<Vec<Pod>, ConvertError> {
    let replicas = buffer_replicas(&buffer.spec, &template_requests(template)?, workload_replicas);
    virtual_pods(intake, buffer, template, replicas)
}

/// Virtual pods `capacity-buffer-<buffer>-<i>`: the template without its volumes and without a node.
///
/// # Errors
/// When the template has no spec, or an amount in it is no quantity.
pub fn virtual_pods(
    intake: &mut PodIntake,
    buffer: &CapacityBuffer,
    template: &PodTemplateSpec,
    replicas: i32,
) -> Result<Vec<Pod>, ConvertError> {
    let name = buffer
        .metadata
        .name
        .as_deref()
        .ok_or(ConvertError::Missing("metadata.name"))?;
    let mut spec = template.spec.clone().ok_or(ConvertError::Missing("template.spec"))?;
    default_requests(&mut spec);
    spec.node_name = None;
    for volume in spec.volumes.iter_mut().flatten() {
        volume.persistent_volume_claim = None;
        volume.ephemeral = None;
    }
    let mut object = KubePod {
        spec: Some(spec),
        ..KubePod::default()
    };
    object.metadata.namespace.clone_from(&buffer.metadata.namespace);
    object.metadata.labels = template.metadata.as_ref().and_then(|m| m.labels.clone());
    object.metadata.name = Some(name.to_owned());
    let (pod, _) = intake.pod(&object)?;
    let namespace = pod.namespace.clone();
    let buffer_key: Arc<str> = format!("{namespace}/{name}").into();
    let uid = buffer.metadata.uid.clone().unwrap_or_else(|| buffer_key.to_string());
    let virtual_pod = |index: i32| Pod {
        uid: format!("{uid}-{index}").into(),
        name: format!("capacity-buffer-{name}-{index}").into(),
        priority: i32::MIN,
        buffer: Some(buffer_key.clone()),
        ..pod.clone()
    };
    Ok((1..=replicas).map(virtual_pod).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(spec: Value, workload: Option<i32>, expect: i32) {
        let requests = ResourceList::new()
            .with("cpu", "2".parse().unwrap())
            .with("memory", "1Gi".parse().unwrap());
        assert_eq!(
            buffer_replicas(&serde_json::from_value(spec).unwrap(), &requests, workload),
            expect
        );
    }

    #[test]
    fn replicas_are_the_larger_of_number_and_percentage() {
        check(json!({ "replicas": 3 }), None, 3);
        check(json!({ "percentage": 15 }), Some(10), 2);
        check(json!({ "percentage": 1 }), Some(10), 1);
        check(json!({ "percentage": 0 }), Some(10), 0);
        check(json!({ "percentage": 50, "replicas": 3 }), Some(10), 5);
        check(json!({ "percentage": 50 }), Some(0), 0);
    }

    #[test]
    fn limits_cap_the_replicas_or_stand_alone() {
        check(json!({ "replicas": 9, "limits": { "cpu": "5" } }), None, 2);
        check(json!({ "limits": { "cpu": "7", "memory": "10Gi" } }), None, 3);
        check(json!({ "limits": { "gpu": "7" } }), None, 0);
        check(json!({ "replicas": 9, "limits": { "gpu": "7" } }), None, 9);
    }

    #[test]
    fn virtual_pods_have_the_template_without_volumes() {
        let buffer: CapacityBuffer = serde_json::from_value(json!({ "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
            "metadata": { "name": "spare", "namespace": "shop", "uid": "u" }, "spec": { "replicas": 2, "podTemplateRef": { "name": "t" } } })).unwrap();
        let template: PodTemplateSpec =
            serde_json::from_value(json!({ "metadata": { "labels": { "app": "web" } }, "spec": {
            "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }],
            "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1" } } }] } }))
            .unwrap();
        let pods = buffer_pods(&mut PodIntake::new(Arc::default()), &buffer, &template, None).unwrap();
        let names: Vec<&str> = pods.iter().map(|pod| &*pod.name).collect();
        assert_eq!(names, ["capacity-buffer-spare-1", "capacity-buffer-spare-2"]);
        assert_eq!((&*pods[0].uid, pods[0].priority), ("u-1", i32::MIN));
        assert!(pods[0].volume_claims.is_empty());
        assert_eq!(pods[0].buffer.as_deref(), Some("shop/spare"));
        assert_eq!(pods[0].requests.cpu(), "1".parse().unwrap());
    }
}
