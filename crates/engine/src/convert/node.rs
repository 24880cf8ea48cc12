//! A Node, its NodeClaim, or both, as the one thing that scheduling sees.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{core::v1 as kube, storage::v1::CSINode},
    apimachinery::pkg::api::resource::Quantity as KubeQuantity,
};
use karpenter_api::{
    NodeClaim, ResourceList,
    conditions::StatusConditions,
    labels::{INITIALIZED, NODEPOOL, REGISTERED},
    node_claim::condition,
    taint::REBOOTING_KEY,
};

use super::{ConvertError, Interner, taint::taints};
use crate::model::{Labels, Lifecycle, Node, Taint};

/// The objects that belong to one machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeObjects<'a> {
    pub node: Option<&'a kube::Node>,
    pub claim: Option<&'a NodeClaim>,
    pub csi: Option<&'a CSINode>,
}

/// The merged view (scheduling.md §2.1, §8.6), without pods; `None` when there is neither node nor claim.
///
/// Whether a machine should be tracked at all (it may not be launched yet) is the caller's question.
///
/// # Errors
/// When an object has no name or an amount in it is no quantity.
pub fn node(interner: &mut Interner, objects: NodeObjects<'_>) -> Result<Option<Node>, ConvertError> {
    let NodeObjects { node, claim, csi } = objects;
    let lifecycle = lifecycle(node, claim);
    let no_labels = Labels::new();
    let own_labels = node.and_then(|n| n.metadata.labels.as_ref()).unwrap_or(&no_labels);
    let claim_labels = claim.and_then(|c| c.metadata.labels.as_ref()).unwrap_or(&no_labels);
    let joined = !matches!(lifecycle, Lifecycle::Launched);
    let (name, labels) = match (node, claim) {
        (None, None) => return Ok(None),
        (Some(node), None) => (&node.metadata.name, own_labels),
        (None, Some(claim)) => (&claim.metadata.name, claim_labels),
        (Some(node), Some(_)) if joined => (&node.metadata.name, own_labels),
        (Some(_), Some(claim)) => (&claim.metadata.name, claim_labels),
    };
    let name = name.as_deref().ok_or(ConvertError::Missing("metadata.name"))?;

    let mut converted = Node::new(
        interner.text(name),
        interner.labels(labels),
        resources(lifecycle, node, claim, Amount::Capacity)?,
        resources(lifecycle, node, claim, Amount::Allocatable)?,
    );
    let node_spec = node.and_then(|n| n.spec.as_ref());
    let provider_id = node_spec
        .and_then(|s| s.provider_id.as_deref())
        .filter(|id| !id.is_empty());
    converted.provider_id = provider_id
        .or_else(|| claim.and_then(NodeClaim::provider_id))
        .map(Arc::from);
    converted.node_pool = labels
        .get(NODEPOOL)
        .filter(|pool| !pool.is_empty())
        .map(|pool| interner.text(pool));
    converted.node_claim = claim
        .and_then(|c| c.metadata.name.as_deref())
        .map(|name| interner.text(name));
    converted.raw_taints = taints(node_spec.and_then(|s| s.taints.as_deref()));
    converted.taints = effective_taints(lifecycle, &converted.raw_taints, node.is_some(), claim);
    converted.lifecycle = lifecycle;
    converted.has_node = node.is_some();
    converted.deleting = is_deleting(node, claim);
    converted.volume_limits = volume_limits(csi);
    Ok(Some(converted))
}

fn lifecycle(node: Option<&kube::Node>, claim: Option<&NodeClaim>) -> Lifecycle {
    if claim.is_none() {
        return Lifecycle::Unmanaged;
    }
    let labelled = |key: &str| {
        let labels = node.and_then(|n| n.metadata.labels.as_ref());
        labels
            .and_then(|labels| labels.get(key))
            .is_some_and(|value| value == "true")
    };
    if labelled(INITIALIZED) {
        Lifecycle::Initialized
    } else if labelled(REGISTERED) {
        Lifecycle::Registered
    } else {
        Lifecycle::Launched
    }
}

/// Taints that count against pods (scheduling.md §2.1).
fn effective_taints(lifecycle: Lifecycle, own: &[Taint], has_node: bool, claim: Option<&NodeClaim>) -> Vec<Taint> {
    let Some(claim) = claim else { return own.to_vec() };
    let mut counted = match lifecycle == Lifecycle::Launched || !has_node {
        true => taints(claim.spec.taints.as_deref()),
        false => own.to_vec(),
    };
    if lifecycle != Lifecycle::Initialized || claim.is_true(condition::REBOOTING) {
        let startup = taints(claim.spec.startup_taints.as_deref());
        counted.retain(|taint| {
            let passing =
                taint.is_ephemeral() || taint.key == REBOOTING_KEY || startup.iter().any(|s| s.is_same_as(taint));
            !passing
        });
    }
    counted
}

fn is_deleting(node: Option<&kube::Node>, claim: Option<&NodeClaim>) -> bool {
    match (claim, node) {
        (Some(claim), _) => claim.is_terminating() || claim.is_true(condition::INSTANCE_TERMINATING),
        (None, Some(node)) => node.metadata.deletion_timestamp.is_some(),
        (None, None) => false,
    }
}

#[derive(Clone, Copy)]
enum Amount {
    Capacity,
    Allocatable,
}

/// The node's amounts. Until it is initialized, what the kubelet reports as zero or not at all is taken from the claim:
/// device plugins register late, and the plan must keep believing in what it bought.
fn resources(
    lifecycle: Lifecycle,
    node: Option<&kube::Node>,
    claim: Option<&NodeClaim>,
    amount: Amount,
) -> Result<ResourceList, ConvertError> {
    let status = node.and_then(|n| n.status.as_ref());
    let reported: Option<&BTreeMap<String, KubeQuantity>> = match amount {
        Amount::Capacity => status.and_then(|s| s.capacity.as_ref()),
        Amount::Allocatable => status.and_then(|s| s.allocatable.as_ref()),
    };
    let field = match amount {
        Amount::Capacity => "status.capacity",
        Amount::Allocatable => "status.allocatable",
    };
    let mut amounts = match reported {
        Some(reported) => ResourceList::from_kube(reported).map_err(ConvertError::quantity(field))?,
        None => ResourceList::new(),
    };
    if matches!(lifecycle, Lifecycle::Unmanaged | Lifecycle::Initialized) {
        return Ok(amounts);
    }
    let status = claim.and_then(|c| c.status.as_ref());
    let promised = match amount {
        Amount::Capacity => status.and_then(|s| s.capacity.as_ref()),
        Amount::Allocatable => status.and_then(|s| s.allocatable.as_ref()),
    };
    for (resource, promised) in promised.into_iter().flatten() {
        if amounts.amount(resource).is_zero() {
            amounts.insert(resource.clone(), *promised);
        }
    }
    Ok(amounts)
}

fn volume_limits(csi: Option<&CSINode>) -> BTreeMap<String, Option<u32>> {
    let drivers = csi.into_iter().flat_map(|csi| &csi.spec.drivers);
    drivers
        .map(|driver| {
            let count = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
            (
                driver.name.clone(),
                count.map(|count| u32::try_from(count).unwrap_or(0)),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view(node: Value, claim: Value) -> Node {
        let node: Option<kube::Node> = serde_json::from_value(node).unwrap();
        let claim: Option<NodeClaim> = serde_json::from_value(claim).unwrap();
        let objects = NodeObjects {
            node: node.as_ref(),
            claim: claim.as_ref(),
            csi: None,
        };
        super::node(&mut Interner::default(), objects).unwrap().unwrap()
    }

    fn kube_node(labels: Value, taints: Value, gpu: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a", "labels": labels },
            "spec": { "providerID": "p://1", "taints": taints },
            "status": { "capacity": { "cpu": "4", "gpu": gpu }, "allocatable": { "cpu": "3", "gpu": gpu } } })
    }

    fn claim(extra: Value) -> Value {
        let mut claim = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "claim-a", "labels": { "from": "claim", "karpenter.sh/nodepool": "default" } },
            "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "K", "name": "n" },
                "startupTaints": [{ "key": "boot", "effect": "NoSchedule" }], "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] },
            "status": { "providerID": "p://1", "capacity": { "cpu": "4", "gpu": "2" }, "allocatable": { "cpu": "3", "gpu": "2" } } });
        for (key, value) in extra.as_object().unwrap() {
            claim["status"][key] = value.clone();
        }
        claim
    }

    fn keys(node: &Node) -> Vec<&str> {
        node.taints.iter().map(|taint| taint.key.as_str()).collect()
    }

    fn booting() -> Value {
        json!([{ "key": "boot", "effect": "NoSchedule" }, { "key": "node.kubernetes.io/not-ready", "effect": "NoExecute" },
            { "key": "dedicated", "effect": "NoSchedule" }])
    }

    #[test]
    fn a_launched_claim_without_a_node_stands_for_one() {
        let node = view(json!(null), claim(json!({})));
        assert_eq!(
            (&*node.name, node.lifecycle, node.has_node),
            ("claim-a", Lifecycle::Launched, false)
        );
        assert_eq!(node.allocatable.amount("gpu"), "2".parse().unwrap());
        assert_eq!(keys(&node), ["dedicated"]);
    }

    #[test]
    fn a_node_that_is_not_registered_goes_by_its_claim() {
        let node = view(kube_node(json!({ "from": "node" }), booting(), "0"), claim(json!({})));
        assert_eq!((&*node.name, node.labels["from"].as_str()), ("claim-a", "claim"));
        assert_eq!(keys(&node), ["dedicated"]);
    }

    #[test]
    fn until_initialized_startup_and_ephemeral_taints_and_missing_devices_do_not_count() {
        let labels = json!({ "from": "node", "karpenter.sh/registered": "true" });
        let node = view(kube_node(labels, booting(), "0"), claim(json!({})));
        assert_eq!((&*node.name, node.lifecycle), ("node-a", Lifecycle::Registered));
        assert_eq!(keys(&node), ["dedicated"]);
        assert_eq!(node.allocatable.amount("gpu"), "2".parse().unwrap());
    }

    #[test]
    fn once_initialized_the_node_is_taken_as_it_is() {
        let labels = json!({ "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true" });
        let node = view(kube_node(labels, booting(), "0"), claim(json!({})));
        assert_eq!(keys(&node), ["boot", "node.kubernetes.io/not-ready", "dedicated"]);
        assert_eq!(node.allocatable.amount("gpu"), "0".parse().unwrap());
    }

    #[test]
    fn a_rebooting_node_keeps_its_place() {
        let labels = json!({ "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true" });
        let rebooting = json!({ "conditions": [{ "type": "Rebooting", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        let taints = json!([{ "key": "karpenter.sh/rebooting", "effect": "NoSchedule" }]);
        assert!(keys(&view(kube_node(labels, taints, "0"), claim(rebooting))).is_empty());
    }

    #[test]
    fn a_node_without_a_claim_is_not_ours() {
        let node = view(kube_node(json!({}), booting(), "0"), json!(null));
        assert_eq!(node.lifecycle, Lifecycle::Unmanaged);
        assert_eq!(node.taints.len(), 3);
    }

    #[test]
    fn a_terminating_instance_is_deleting() {
        let terminating = json!({ "conditions": [{ "type": "InstanceTerminating", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        assert!(view(json!(null), claim(terminating)).deleting);
        assert!(!view(json!(null), claim(json!({}))).deleting);
    }

    #[test]
    fn published_volume_limits_are_read() {
        let csi: CSINode = serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": { "drivers": [
            { "name": "a", "nodeID": "x", "allocatable": { "count": 25 } }, { "name": "b", "nodeID": "x" }] } }))
        .unwrap();
        let limits = volume_limits(Some(&csi));
        assert_eq!(
            limits,
            BTreeMap::from([("a".to_owned(), Some(25)), ("b".to_owned(), None)])
        );
    }
}
