//! A simulated machine is a Node: how one is made from a claim, and how the instance is read back from it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use karpenter_api::{NodeClaim, ResourceList, labels, requirement::Operator, taint};
use karpenter_cloud::{
    ClaimMark, Instance, InstancePhase,
    error::CloudError,
    ownership::short_hash,
    selection::{self, Candidate},
};

/// What every provider ID of ours starts with; the rest is the Node's name.
pub const PROVIDER_PREFIX: &str = "kwok://";

/// Tells the KWOK controller to play kubelet for the Node; both a label and an annotation, as upstream has it.
const FAKE_NODE: (&str, &str) = ("kwok.x-k8s.io/node", "fake");
const PARTITION: (&str, &str) = ("kwok-partition", "a");
const PRICE_LABEL: &str = "eks-node-viewer/instance-price";

/// Which claim a Node was made for; read back after a restart.
const CLAIM_NAME_ANNOTATION: &str = "karpenter.kwok.sh/nodeclaim";
const CLAIM_UID_ANNOTATION: &str = "karpenter.kwok.sh/nodeclaim-uid";

/// The name of a claim's Node: the same on every attempt, so that no claim gets two.
pub fn name(claim: &ClaimMark) -> String {
    format!("kwok-{}-{}", claim.name, short_hash(&claim.uid))
}

pub fn provider_id(node_name: &str) -> String {
    format!("{PROVIDER_PREFIX}{node_name}")
}

/// The name of the Node behind a provider ID; `None` if it is not one of ours.
pub fn name_of(provider_id: &str) -> Option<&str> {
    provider_id
        .strip_prefix(PROVIDER_PREFIX)
        .filter(|name| !name.is_empty())
}

/// The Node that a claim becomes when it is bought this way.
pub fn build(claim: &NodeClaim, candidate: &Candidate) -> Node {
    let mark = ClaimMark::of(claim);
    let name = name(&mark);
    let overrides = &candidate.offering.overrides;
    let labels = node_labels(claim, candidate);
    let info = NodeSystemInfo {
        architecture: labels.get(labels::ARCH).cloned().unwrap_or_default(),
        operating_system: labels.get(labels::OS).cloned().unwrap_or_default(),
        boot_id: format!("kwok-{name}"),
        kubelet_version: "fake".to_owned(),
        ..NodeSystemInfo::default()
    };
    let annotations = [
        FAKE_NODE,
        (CLAIM_NAME_ANNOTATION, mark.name.as_str()),
        (CLAIM_UID_ANNOTATION, mark.uid.as_str()),
    ];
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(
                annotations
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(provider_id(&name)),
            taints: Some(vec![taint::unregistered()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(selection::capacity(&candidate.instance_type, overrides).to_kube()),
            allocatable: Some(selection::allocatable(&candidate.instance_type, overrides).to_kube()),
            node_info: Some(info),
            phase: Some("Pending".to_owned()),
            ..NodeStatus::default()
        }),
    }
}

/// Labels of the claim, its single-valued requirements, then of the type and offering that were bought.
fn node_labels(claim: &NodeClaim, candidate: &Candidate) -> BTreeMap<String, String> {
    let mut labels = claim.metadata.labels.clone().unwrap_or_default();
    for requirement in &claim.spec.requirements {
        if let (Operator::In, [value]) = (requirement.operator, requirement.values.as_slice()) {
            labels.insert(requirement.key.clone(), value.clone());
        }
    }
    labels.extend(selection::single_valued_labels(candidate));
    let own = [
        (labels::HOSTNAME, claim.metadata.name.clone().unwrap_or_default()),
        (PRICE_LABEL, candidate.offering.price.to_string()),
        (FAKE_NODE.0, FAKE_NODE.1.to_owned()),
        (PARTITION.0, PARTITION.1.to_owned()),
    ];
    labels.extend(own.map(|(key, value)| (key.to_owned(), value)));
    labels
}

/// The instance that a Node stands for; `None` if the Node is not one of ours.
///
/// # Errors
/// When the Node's resources are not quantities.
pub fn instance(node: &Node) -> Result<Option<Instance>, CloudError> {
    let Some(provider_id) = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) else {
        return Ok(None);
    };
    if name_of(provider_id).is_none() {
        return Ok(None);
    }
    let status = node.status.clone().unwrap_or_default();
    let resources = |amounts: Option<BTreeMap<_, _>>| {
        ResourceList::from_kube(&amounts.unwrap_or_default())
            .map_err(|error| CloudError::invalid(format!("node behind {provider_id}: {error}")))
    };
    let annotation = |key: &str| node.metadata.annotations.as_ref().and_then(|own| own.get(key)).cloned();
    Ok(Some(Instance {
        provider_id: provider_id.to_owned(),
        image_id: None,
        labels: launch_labels(node),
        annotations: BTreeMap::new(),
        capacity: resources(status.capacity)?,
        allocatable: resources(status.allocatable)?,
        created_at: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
        phase: if is_deleting(node) {
            InstancePhase::Terminating
        } else {
            InstancePhase::Live
        },
        claim: claim_mark(node).map(|uid| ClaimMark {
            name: annotation(CLAIM_NAME_ANNOTATION).unwrap_or_default(),
            uid,
        }),
    }))
}

/// The Node's labels without those that the cluster adds later: old names of labels, and core's own marks.
fn launch_labels(node: &Node) -> BTreeMap<String, String> {
    let added =
        |key: &str| labels::canonical_key(key) != key || [labels::REGISTERED, labels::INITIALIZED].contains(&key);
    let own = node.metadata.labels.iter().flatten().filter(|(key, _)| !added(key));
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The UID of the claim that a Node was made for.
pub fn claim_mark(node: &Node) -> Option<String> {
    node.metadata.annotations.as_ref()?.get(CLAIM_UID_ANNOTATION).cloned()
}

pub fn is_deleting(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
