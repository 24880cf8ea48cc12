//! The pod that stands for a DaemonSet when its overhead on new nodes is worked out.

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1 as kube};

use super::{ConvertError, PodIntake, constraints::pod_constraints, resources};
use crate::model::{DaemonPod, Pod};

/// A DaemonSet's pod as a live one shows it (scheduling.md §2.6): admission may have changed its requests. The
/// controller pins each live pod to its node by affinity, so the template's required affinity counts where it has one.
///
/// # Errors
/// When the DaemonSet has no name or an amount in it is no quantity.
pub fn daemon_pod(
    intake: &mut PodIntake,
    daemon_set: &DaemonSet,
    newest: Option<&Pod>,
) -> Result<DaemonPod, ConvertError> {
    let template = daemon_from_template(intake, daemon_set)?;
    let Some(live) = newest else { return Ok(template) };
    let mut spec = (*live.spec).clone();
    if !template.spec.required_node_terms.is_empty() {
        spec.required_node_terms.clone_from(&template.spec.required_node_terms);
    }
    Ok(DaemonPod {
        spec: intake.interner().spec(spec),
        requests: live.requests.clone(),
        ..template
    })
}

/// A DaemonSet's pod as its template describes it, with limits standing in for missing requests.
///
/// # Errors
/// When the DaemonSet has no name or an amount in it is no quantity.
pub fn daemon_from_template(intake: &mut PodIntake, daemon_set: &DaemonSet) -> Result<DaemonPod, ConvertError> {
    let name = daemon_set
        .metadata
        .name
        .as_deref()
        .ok_or(ConvertError::Missing("metadata.name"))?;
    let namespace = daemon_set.metadata.namespace.as_deref().unwrap_or("default");
    let template = daemon_set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut spec: kube::PodSpec = template.cloned().ok_or(ConvertError::Missing("spec.template.spec"))?;
    resources::default_requests(&mut spec);
    let requests = resources::pod_requests(&spec, None).map_err(ConvertError::quantity("resource requests"))?;
    // An unreadable constraint of a daemon excludes it from nothing; the DaemonSet controller is the one to complain.
    let constraints = pod_constraints(intake.rules(), &spec, &mut Vec::new());
    Ok(DaemonPod {
        namespace: intake.interner().text(namespace),
        name: name.into(),
        spec: intake.interner().spec(constraints),
        requests: intake.interner().requests(requests),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn daemon_set(spec: Value) -> DaemonSet {
        serde_json::from_value(json!({ "metadata": { "name": "logs", "namespace": "kube-system" },
            "spec": { "selector": {}, "template": { "spec": spec } } }))
        .unwrap()
    }

    fn affinity(zone: &str) -> Value {
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone] }] }] } } })
    }

    #[test]
    fn limits_stand_in_for_missing_requests() {
        let set = daemon_set(json!({ "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2" } } }] }));
        let daemon = daemon_from_template(&mut PodIntake::new(Arc::default()), &set).unwrap();
        assert_eq!(daemon.requests.cpu(), "2".parse().unwrap());
    }

    #[test]
    fn the_live_pod_gives_requests_and_the_template_the_affinity() {
        let mut intake = PodIntake::new(Arc::default());
        let set = daemon_set(
            json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2" } } }], "affinity": affinity("a") }),
        );
        let live = json!({ "metadata": { "name": "logs-x" }, "spec": { "affinity": affinity("pinned"),
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] } });
        let (live, _) = intake.pod(&serde_json::from_value(live).unwrap()).unwrap();
        let daemon = daemon_pod(&mut intake, &set, Some(&live)).unwrap();
        assert_eq!(daemon.requests.cpu(), "1".parse().unwrap());
        assert!(daemon.spec.required_node_terms[0][0].has("a"));
    }
}
