//! Runtime validation of CapacityBuffers: what can never be resolved.

use super::Finding;
use crate::capacity_buffer::CapacityBuffer;

const KINDS: [&str; 3] = ["Deployment", "StatefulSet", "ReplicaSet"];

impl CapacityBuffer {
    /// Everything that keeps the buffer from being resolved, whatever else is in the cluster.
    pub fn validate(&self) -> Vec<Finding> {
        let spec = &self.spec;
        if spec.pod_template_ref.is_none() && spec.scalable_ref.is_none() {
            return vec![Finding::new(
                "spec",
                "says nothing about the pods; set podTemplateRef or scalableRef",
            )];
        }
        let Some(scalable) = &spec.scalable_ref else {
            return Vec::new();
        };
        let mut findings = Vec::new();
        let group = scalable.api_group.as_deref().unwrap_or_default();
        if !["", "apps"].contains(&group) {
            let problem = format!("API group \"{group}\" is not supported; use apps");
            findings.push(Finding::new("spec.scalableRef.apiGroup", problem));
        }
        if !KINDS.contains(&scalable.kind.as_str()) {
            let problem = format!("kind \"{}\" is not supported; use {}", scalable.kind, KINDS.join(", "));
            findings.push(Finding::new("spec.scalableRef.kind", problem));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(spec: serde_json::Value) -> Vec<String> {
        let buffer: CapacityBuffer = serde_json::from_value(json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": { "name": "b" }, "spec": spec,
        }))
        .unwrap();
        buffer.validate().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_buffer_must_say_what_its_pods_look_like() {
        assert_eq!(findings(json!({ "replicas": 1 })).len(), 1);
        assert!(findings(json!({ "podTemplateRef": { "name": "t" }, "replicas": 1 })).is_empty());
    }

    #[test]
    fn only_workloads_of_apps_can_be_scaled() {
        assert!(findings(json!({ "scalableRef": { "kind": "Deployment", "name": "d" } })).is_empty());
        assert_eq!(
            findings(json!({ "scalableRef": { "apiGroup": "batch", "kind": "Job", "name": "d" } })).len(),
            2
        );
    }
}
