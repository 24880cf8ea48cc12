//! What a PersistentVolumeClaim means for scheduling: who attaches it, and where.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{self as kube, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec},
    storage::v1::StorageClass,
};
use karpenter_api::{
    Requirement,
    labels::{HOSTNAME, LabelRules},
    requirement::Operator,
};

use super::PodProblem;
use crate::model::{ClaimFacts, ClaimTopology, Pod, VolumeFacts};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// The claims of a pod in volume order: named ones, and `<pod>-<volume>` for generic ephemeral volumes.
pub fn volume_claims(pod: &str, spec: &kube::PodSpec) -> Vec<Box<str>> {
    let claim = |volume: &kube::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.as_str().into()),
        (None, Some(_)) => Some(format!("{pod}-{}", volume.name).into()),
        (None, None) => None,
    };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

/// What is wrong with a pending pod's volumes.
pub fn volume_problems(pod: &Pod, volumes: &VolumeFacts) -> Vec<PodProblem> {
    let problem = |claim: &str| {
        let problem = match volumes.get(&pod.namespace, claim).map(|facts| &facts.topology) {
            None => "does not exist".to_owned(),
            Some(ClaimTopology::Unresolved(problem)) => problem.clone(),
            Some(ClaimTopology::Anywhere | ClaimTopology::AnyOf(_)) => return None,
        };
        Some(PodProblem::Volume {
            claim: format!("{}/{claim}", pod.namespace),
            problem,
        })
    };
    pod.volume_claims.iter().filter_map(|claim| problem(claim)).collect()
}

/// The facts of a claim, given the volume that its `spec.volumeName` and the class that its `spec.storageClassName` name.
pub fn claim_facts(
    rules: &LabelRules,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: Option<&StorageClass>,
) -> ClaimFacts {
    let spec = claim.spec.as_ref();
    let driver = match bound_volume(spec) {
        Some(_) => volume.and_then(driver_of_volume),
        None => class.map(driver_of_class),
    };
    let topology = claim_topology(rules, claim, volume, class).unwrap_or_else(ClaimTopology::Unresolved);
    ClaimFacts { driver, topology }
}

/// The facts of a claim that does not exist yet but would be made from a template, as a StatefulSet or an ephemeral
/// volume does. Without its class nothing is known about it, so it goes anywhere.
pub fn claim_from_template(rules: &LabelRules, class: Option<&StorageClass>) -> ClaimFacts {
    let Some(class) = class else {
        return ClaimFacts {
            driver: None,
            topology: ClaimTopology::Anywhere,
        };
    };
    ClaimFacts {
        driver: Some(driver_of_class(class)),
        topology: allowed_topologies(rules, class),
    }
}

fn bound_volume(spec: Option<&PersistentVolumeClaimSpec>) -> Option<&str> {
    spec?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn claim_topology(
    rules: &LabelRules,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: Option<&StorageClass>,
) -> Result<ClaimTopology, String> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
        return Err("has lost its volume".to_owned());
    }
    match bound_volume(claim.spec.as_ref()) {
        Some(name) => {
            let volume = volume.ok_or_else(|| format!("is bound to volume {name}, which does not exist"))?;
            if volume.metadata.deletion_timestamp.is_some() {
                return Err(format!("is bound to volume {name}, which is being deleted"));
            }
            if !claim
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key(BIND_COMPLETED))
            {
                return Err(format!("is not yet fully bound to volume {name}"));
            }
            volume_topology(rules, volume)
        }
        None => {
            let wanted = claim
                .spec
                .as_ref()
                .and_then(|s| s.storage_class_name.as_deref())
                .filter(|name| !name.is_empty());
            let name = wanted.ok_or("is not bound and names no storage class")?;
            let class = class.ok_or_else(|| format!("names storage class {name}, which does not exist"))?;
            if class
                .volume_binding_mode
                .as_deref()
                .is_none_or(|mode| mode == "Immediate")
            {
                return Err(format!(
                    "waits for its volume: storage class {name} binds immediately, not when the pod is placed"
                ));
            }
            Ok(allowed_topologies(rules, class))
        }
    }
}

/// One alternative per node affinity term of the volume.
fn volume_topology(rules: &LabelRules, volume: &PersistentVolume) -> Result<ClaimTopology, String> {
    let spec = volume.spec.as_ref();
    let required = spec.and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
    // A local volume's node may be gone for good; its zone still says where a new one would do.
    let local = spec.is_some_and(|s| s.local.is_some() || s.host_path.is_some());
    let mut alternatives = Vec::new();
    for term in required.iter().flat_map(|required| &required.node_selector_terms) {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        if expressions.is_empty() {
            continue;
        }
        let kept = expressions
            .iter()
            .filter(|expression| !(local && expression.key == HOSTNAME));
        let requirements: Result<Vec<Requirement>, _> = kept.map(|e| Requirement::from_kube(rules, e)).collect();
        alternatives.push(
            requirements.map_err(|error| format!("is bound to a volume whose node affinity is unreadable: {error}"))?,
        );
    }
    Ok(match alternatives.is_empty() {
        true => ClaimTopology::Anywhere,
        false => ClaimTopology::AnyOf(alternatives),
    })
}

fn allowed_topologies(rules: &LabelRules, class: &StorageClass) -> ClaimTopology {
    let alternative = |term: &kube::TopologySelectorTerm| -> Vec<Requirement> {
        let expressions = term.match_label_expressions.iter().flatten();
        expressions
            .map(|e| Requirement::normalised(rules, &e.key, Operator::In, &e.values))
            .collect()
    };
    let alternatives: Vec<_> = class.allowed_topologies.iter().flatten().map(alternative).collect();
    match alternatives.is_empty() {
        true => ClaimTopology::Anywhere,
        false => ClaimTopology::AnyOf(alternatives),
    }
}

fn driver_of_volume(volume: &PersistentVolume) -> Option<Arc<str>> {
    let spec = volume.spec.as_ref()?;
    match (&spec.csi, &spec.aws_elastic_block_store) {
        (Some(csi), _) => Some(csi.driver.as_str().into()),
        (None, Some(_)) => Some("ebs.csi.aws.com".into()),
        (None, None) => None,
    }
}

/// The CSI driver that serves a class; in-tree provisioners have moved to drivers (scheduling.md §2.7).
fn driver_of_class(class: &StorageClass) -> Arc<str> {
    match class.provisioner.as_str() {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        other => other,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn facts(claim: Value, volume: Value, class: Value) -> ClaimFacts {
        let claim = serde_json::from_value(claim).unwrap();
        let volume: Option<PersistentVolume> = serde_json::from_value(volume).unwrap();
        let class: Option<StorageClass> = serde_json::from_value(class).unwrap();
        claim_facts(&LabelRules::default(), &claim, volume.as_ref(), class.as_ref())
    }

    fn unresolved(facts: ClaimFacts) -> String {
        match facts.topology {
            ClaimTopology::Unresolved(problem) => problem,
            other => panic!("{other:?} is resolved"),
        }
    }

    fn bound() -> Value {
        json!({ "metadata": { "annotations": { BIND_COMPLETED: "yes" } }, "spec": { "volumeName": "pv" } })
    }

    fn zonal(source: (&str, Value), terms: Value) -> Value {
        json!({ "metadata": { "name": "pv" }, "spec": { source.0: source.1, "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } })
    }

    fn is(key: &str, value: &str) -> Value {
        json!({ "key": key, "operator": "In", "values": [value] })
    }

    #[test]
    fn a_bound_claim_can_go_where_its_volume_can() {
        let terms = json!([{ "matchExpressions": [is("failure-domain.beta.kubernetes.io/zone", "a")] }, { "matchExpressions": [is("topology.kubernetes.io/zone", "b")] }, {}]);
        let found = facts(
            bound(),
            zonal(("csi", json!({ "driver": "d", "volumeHandle": "h" })), terms),
            json!(null),
        );
        assert_eq!(found.driver.as_deref(), Some("d"));
        let zone = |zone: &str| vec![Requirement::within("topology.kubernetes.io/zone", [zone])];
        assert_eq!(found.topology, ClaimTopology::AnyOf(vec![zone("a"), zone("b")]));
    }

    #[test]
    fn the_hostname_of_a_local_volume_does_not_bind() {
        let terms = json!([{ "matchExpressions": [is(HOSTNAME, "node-1")] }, { "matchExpressions": [is("topology.kubernetes.io/zone", "b")] }]);
        let local = facts(
            bound(),
            zonal(("local", json!({ "path": "/x" })), terms.clone()),
            json!(null),
        );
        assert_eq!(local.driver, None);
        assert!(matches!(local.topology, ClaimTopology::AnyOf(alternatives) if alternatives[0].is_empty()));
        let remote = facts(
            bound(),
            zonal(("nfs", json!({ "path": "/x", "server": "s" })), terms),
            json!(null),
        );
        assert!(matches!(remote.topology, ClaimTopology::AnyOf(alternatives) if alternatives[0].len() == 1));
    }

    #[test]
    fn an_unbound_claim_can_go_where_its_class_allows() {
        let class = json!({ "provisioner": "kubernetes.io/gce-pd", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "topology.kubernetes.io/zone", "values": ["a", "b"] }] }] });
        let found = facts(json!({ "spec": { "storageClassName": "c" } }), json!(null), class);
        assert_eq!(found.driver.as_deref(), Some("pd.csi.storage.gke.io"));
        assert_eq!(
            found.topology,
            ClaimTopology::AnyOf(vec![vec![Requirement::within(
                "topology.kubernetes.io/zone",
                ["a", "b"]
            )]])
        );
    }

    #[test]
    fn claims_that_cannot_be_placed_say_why() {
        let class = json!({ "provisioner": "p", "volumeBindingMode": "Immediate" });
        let wants = json!({ "spec": { "storageClassName": "c" } });
        let none = || json!(null);
        assert!(unresolved(facts(wants.clone(), none(), class)).contains("binds immediately"));
        assert!(unresolved(facts(wants, none(), none())).contains("does not exist"));
        assert!(unresolved(facts(json!({ "spec": {} }), none(), none())).contains("names no storage class"));
        assert!(unresolved(facts(bound(), none(), none())).contains("does not exist"));
        assert!(
            unresolved(facts(json!({ "spec": { "volumeName": "pv" } }), json!({}), none()))
                .contains("not yet fully bound")
        );
        assert!(unresolved(facts(json!({ "status": { "phase": "Lost" } }), none(), none())).contains("lost"));
        let deleting = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert!(unresolved(facts(deleting.clone(), none(), none())).contains("being deleted"));
        assert!(unresolved(facts(bound(), deleting, none())).contains("being deleted"));
    }

    #[test]
    fn named_and_ephemeral_volumes_are_claims_in_volume_order() {
        let spec: kube::PodSpec = serde_json::from_value(json!({ "containers": [], "volumes": [
            { "name": "scratch", "ephemeral": {} }, { "name": "cfg", "configMap": { "name": "x" } },
            { "name": "data", "persistentVolumeClaim": { "claimName": "data-0" } }] }))
        .unwrap();
        let claims = volume_claims("web-1", &spec);
        assert_eq!(
            claims.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
            ["web-1-scratch", "data-0"]
        );
    }
}
