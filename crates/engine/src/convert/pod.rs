//! A Pod object as the engine's pod.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1 as kube, apimachinery::pkg::apis::meta::v1::OwnerReference};
use karpenter_api::{
    duration::GoDuration,
    labels::{
        LabelRules,
        annotations::{DISRUPTION_COST, DO_NOT_DISRUPT, POD_DELETION_COST},
    },
};

use super::{
    ConvertError, Interner, PodProblem,
    constraints::{avoids_node_pools, pod_constraints},
    resources::{pod_limits, pod_requests},
    volume::volume_claims,
};
use crate::model::{ControllerRef, DoNotDisrupt, Labels, Owner, Pod, PodPhase};

/// Takes pods in, sharing what they have in common.
#[derive(Debug)]
pub struct PodIntake {
    rules: Arc<LabelRules>,
    interner: Interner,
}

impl PodIntake {
    pub fn new(rules: Arc<LabelRules>) -> Self {
        Self {
            rules,
            interner: Interner::default(),
        }
    }

    pub fn rules(&self) -> &LabelRules {
        &self.rules
    }

    pub fn interner(&mut self) -> &mut Interner {
        &mut self.interner
    }

    /// The pod, and what keeps a solve from looking at it while it is pending. Its volumes are looked up separately, by
    /// [`super::volume_problems`], because they change without the pod.
    ///
    /// # Errors
    /// When the pod has no name or spec, or an amount in it is no quantity.
    pub fn pod(&mut self, pod: &kube::Pod) -> Result<(Pod, Vec<PodProblem>), ConvertError> {
        let name = pod
            .metadata
            .name
            .as_deref()
            .ok_or(ConvertError::Missing("metadata.name"))?;
        let spec = pod.spec.as_ref().ok_or(ConvertError::Missing("spec"))?;
        let status = pod.status.as_ref();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");

        let mut problems = Vec::new();
        let constraints = pod_constraints(&self.rules, spec, &mut problems);
        if avoids_node_pools(&constraints) {
            problems.push(PodProblem::AvoidsNodePools);
        }
        let requests = pod_requests(spec, status).map_err(ConvertError::quantity("resource requests"))?;
        let limits = pod_limits(spec, status).map_err(ConvertError::quantity("resource limits"))?;
        let uid = match pod.metadata.uid.as_deref() {
            Some(uid) => uid.into(),
            // Manifests have no UID; namespace and name are just as unique in one file.
            None => format!("{namespace}/{name}").into(),
        };
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let no_labels = Labels::new();
        let converted = Pod {
            uid,
            namespace: self.interner.text(namespace),
            name: name.into(),
            created: pod
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            started: status.and_then(|s| s.start_time.as_ref()).map(|time| time.0),
            priority: spec.priority.unwrap_or(0),
            labels: self.interner.labels(pod.metadata.labels.as_ref().unwrap_or(&no_labels)),
            spec: self.interner.spec(constraints),
            requests: self.interner.requests(requests),
            limits: self.interner.requests(limits),
            volume_claims: self.interner.claims(volume_claims(name, spec)),
            node_name: spec
                .node_name
                .as_deref()
                .filter(|node| !node.is_empty())
                .map(|node| self.interner.text(node)),
            owner: owner(owners),
            controller: controller(owners).map(|controller| self.interner.controller(controller)),
            phase: phase(status),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            ready: is_ready(status),
            do_not_disrupt: annotation(pod, DO_NOT_DISRUPT).map(do_not_disrupt),
            deletion_cost: annotation(pod, POD_DELETION_COST)
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0),
            // A value that can't be read counts as 0 and does not fall back to the deletion cost.
            disruption_cost: annotation(pod, DISRUPTION_COST).map(|cost| cost.parse().unwrap_or(0)),
            buffer: None,
        };
        Ok((converted, problems))
    }
}

/// Who owns a pod, as far as it matters for moving it: any owner reference counts, not only the controller's.
pub fn owner(references: &[OwnerReference]) -> Owner {
    let owned_by = |api_version: &str, kind: &str| {
        references
            .iter()
            .any(|r| r.api_version == api_version && r.kind == kind)
    };
    if owned_by("apps/v1", "DaemonSet") {
        Owner::DaemonSet
    } else if owned_by("v1", "Node") {
        Owner::Node
    } else if owned_by("apps/v1", "StatefulSet") {
        Owner::StatefulSet
    } else if references.is_empty() {
        Owner::None
    } else {
        Owner::Other
    }
}

fn controller(references: &[OwnerReference]) -> Option<ControllerRef> {
    let controller = references.iter().find(|reference| reference.controller == Some(true))?;
    Some(ControllerRef {
        kind: controller.kind.clone(),
        name: controller.name.clone(),
    })
}

fn phase(status: Option<&kube::PodStatus>) -> PodPhase {
    match status.and_then(|s| s.phase.as_deref()) {
        None | Some("" | "Pending") => PodPhase::Pending,
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(_) => PodPhase::Unknown,
    }
}

fn is_ready(status: Option<&kube::PodStatus>) -> bool {
    let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn annotation<'a>(pod: &'a kube::Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// `"true"`, or a positive duration; anything else has no effect.
fn do_not_disrupt(value: &str) -> DoNotDisrupt {
    if value == "true" {
        return DoNotDisrupt::Always;
    }
    match value.parse::<GoDuration>() {
        Ok(duration) if duration.nanos() > 0 => DoNotDisrupt::For(duration.as_signed()),
        Ok(_) | Err(_) => DoNotDisrupt::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    fn take(pod: Value) -> (Pod, Vec<PodProblem>) {
        PodIntake::new(Arc::default())
            .pod(&serde_json::from_value(pod).unwrap())
            .unwrap()
    }

    fn pod(metadata: Value) -> Pod {
        let mut metadata = metadata;
        metadata["name"] = "web-1".into();
        take(json!({ "metadata": metadata, "spec": { "containers": [] } })).0
    }

    #[test]
    fn pods_of_one_workload_share_their_constraints() {
        let mut intake = PodIntake::new(Arc::default());
        let mut take = |name: &str| {
            let object = json!({ "metadata": { "name": name, "labels": { "app": "web" } },
                "spec": { "nodeSelector": { "a": "b" }, "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] } });
            intake.pod(&serde_json::from_value(object).unwrap()).unwrap().0
        };
        let (one, two) = (take("web-1"), take("web-2"));
        assert!(Arc::ptr_eq(&one.spec, &two.spec));
        assert!(Arc::ptr_eq(&one.labels, &two.labels));
        assert!(Arc::ptr_eq(&one.requests, &two.requests));
    }

    #[test]
    fn a_manifest_without_uid_and_namespace_gets_both() {
        let pod = pod(json!({}));
        assert_eq!((&*pod.uid, &*pod.namespace), ("default/web-1", "default"));
        assert_eq!(pod.created, Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn any_owner_reference_of_a_daemon_set_counts() {
        let reference =
            |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind, "name": "x", "uid": "x" });
        let owned = |references: Value| pod(json!({ "ownerReferences": references })).owner;
        assert_eq!(
            owned(json!([reference("v1", "ConfigMap"), reference("apps/v1", "DaemonSet")])),
            Owner::DaemonSet
        );
        assert_eq!(
            owned(json!([reference("extensions/v1beta1", "DaemonSet")])),
            Owner::Other
        );
        assert_eq!(owned(json!([reference("v1", "Node")])), Owner::Node);
        assert_eq!(owned(json!([])), Owner::None);
    }

    #[test]
    fn do_not_disrupt_is_true_or_a_positive_duration() {
        let annotated =
            |value: &str| pod(json!({ "annotations": { "karpenter.sh/do-not-disrupt": value } })).do_not_disrupt;
        assert_eq!(annotated("true"), Some(DoNotDisrupt::Always));
        assert_eq!(annotated("1h"), Some(DoNotDisrupt::For(SignedDuration::from_hours(1))));
        for value in ["false", "-1h", "0s", "abc"] {
            assert_eq!(annotated(value), Some(DoNotDisrupt::Unreadable), "{value}");
        }
    }

    #[test]
    fn a_disruption_cost_that_cannot_be_read_is_nothing_and_hides_the_deletion_cost() {
        let costs = |own: serde_json::Value| {
            let pod = pod(json!({ "annotations": own }));
            (pod.disruption_cost, pod.deletion_cost)
        };
        let deletion = "controller.kubernetes.io/pod-deletion-cost";
        assert_eq!(costs(json!({ deletion: "100" })), (None, 100));
        assert_eq!(
            costs(json!({ deletion: "100", "karpenter.sh/disruption-cost": "much" })),
            (Some(0), 100)
        );
        assert_eq!(
            costs(json!({ "karpenter.sh/disruption-cost": "99999999999" })).0,
            Some(0),
            "no int32"
        );
    }

    #[test]
    fn a_pod_that_avoids_node_pools_has_that_problem() {
        let (_, problems) = take(
            json!({ "metadata": { "name": "x" }, "spec": { "containers": [], "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": "DoesNotExist" }] }] } } } } }),
        );
        assert_eq!(problems, [PodProblem::AvoidsNodePools]);
    }
}
