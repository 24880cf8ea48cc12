//! Pods that must wait for a launch, because where the others of their kind end up is not known yet.
//!
//! Zone spread and pod affinity count the pods of a zone. Pods that wait for a NodeClaim whose zone is open count
//! nowhere, so planning their siblings now could put too many into one zone. Only those siblings wait; it is what
//! remains of upstream's rule that everybody waits for every launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_engine::model::{LabelSelector, Labels, NamespaceScope, Node, Pod};

/// Pods that wait for nodes of which some labels are still open.
#[derive(Debug)]
pub(super) struct Undecided<'a> {
    nodes: Vec<&'a Node>,
    namespaces: &'a BTreeMap<String, Labels>,
}

impl<'a> Undecided<'a> {
    pub(super) fn new(in_flight: &'a [Arc<Node>], namespaces: &'a BTreeMap<String, Labels>) -> Self {
        let nodes = in_flight
            .iter()
            .map(Arc::as_ref)
            .filter(|node| !node.pods().is_empty())
            .collect();
        Self { nodes, namespaces }
    }

    /// Whether `pod` has a constraint over a label that is open for pods it counts.
    pub(super) fn holds_back(&self, pod: &Pod) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        let spec = &pod.spec;
        let spread = spec
            .spread
            .iter()
            .map(|spread| (spread.topology_key.as_str(), &spread.selector, &NamespaceScope::Own));
        let terms = spec.affinity.required.iter().chain(&spec.anti_affinity.required);
        let terms = terms.map(|term| (term.topology_key.as_str(), &term.selector, &term.namespaces));
        spread
            .chain(terms)
            .any(|(key, selector, namespaces)| self.is_open(pod, key, selector, namespaces))
    }

    fn is_open(&self, pod: &Pod, key: &str, selector: &LabelSelector, scope: &NamespaceScope) -> bool {
        // A node of its own is certain even before it has a name.
        if key == karpenter_api::labels::HOSTNAME {
            return false;
        }
        let open = self.nodes.iter().filter(|node| !node.labels.contains_key(key));
        open.flat_map(|node| node.pods())
            .any(|other| selector.matches(&other.labels) && self.covers(scope, &pod.namespace, &other.namespace))
    }

    fn covers(&self, scope: &NamespaceScope, own: &str, other: &str) -> bool {
        match scope {
            NamespaceScope::Own => own == other,
            NamespaceScope::Listed(listed) => listed.contains(other),
            NamespaceScope::Selected { selector, listed } => {
                listed.contains(other)
                    || self
                        .namespaces
                        .get(other)
                        .is_some_and(|labels| selector.matches(labels))
            }
        }
    }
}
