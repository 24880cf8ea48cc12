//! NodeClaims that are not launched yet, as nodes that a plan can count on.
//!
//! Upstream plans nothing while any NodeClaim is unlaunched, because its shape is unknown. But what every shape that it
//! may still take has in common is known: a pod that fits into the smallest of them fits for certain, and the largest
//! is what it may take of its pool's limits.

use std::sync::Arc;

use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::{Requirement, Requirements};
use karpenter_api::{NodeClaim, ResourceList};
use karpenter_cloud::selection;
use karpenter_engine::model::{Labels, Lifecycle, Node, Pod};
use karpenter_engine::{Catalog, convert};
use kube::ResourceExt;

/// The node that `claim` will become, with the least room it can have and the pods that wait for it.
///
/// A claim of a pool that is not in the catalogue has no room to offer.
pub(super) fn node(claim: &NodeClaim, pods: &[Arc<Pod>], catalog: &Catalog, rules: &LabelRules) -> Node {
    let pool = claim.node_pool().unwrap_or_default();
    let types = catalog
        .pool(pool)
        .map(|entry| entry.instance_types.as_slice())
        .unwrap_or_default();
    let candidates = selection::candidates(claim, types, rules);
    let shapes = || {
        candidates
            .iter()
            .map(|candidate| (&*candidate.instance_type, &candidate.offering.overrides))
    };
    let least = shapes()
        .map(|(own, overrides)| selection::allocatable(own, overrides))
        .reduce(|a, b| a.min(&b));
    let most = shapes()
        .map(|(own, overrides)| selection::capacity(own, overrides))
        .reduce(|a, b| a.max(&b));
    let labels = Arc::new(certain_labels(claim, rules));
    let mut node = Node::new(
        claim.name_any(),
        labels,
        most.unwrap_or_default(),
        least.unwrap_or_else(ResourceList::new),
    );
    node.node_pool = claim.node_pool().map(Arc::from);
    node.node_claim = Some(claim.name_any().into());
    node.taints = convert::taints(claim.spec.taints.as_deref());
    node.lifecycle = Lifecycle::Launched;
    node.has_node = false;
    node.deleting = claim.is_terminating();
    for pod in pods {
        node.bind(pod.clone());
    }
    node
}

/// The labels that the node will carry whatever shape it takes.
fn certain_labels(claim: &NodeClaim, rules: &LabelRules) -> Labels {
    let mut certain: Labels = claim.labels().clone();
    for requirement in Requirements::from_wire(rules, &claim.spec.requirements).iter() {
        if let Some(value) = Requirement::single_value(requirement) {
            certain.insert(requirement.key().to_owned(), value.to_owned());
        }
    }
    certain.remove(labels::HOSTNAME);
    certain
}
