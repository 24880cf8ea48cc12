//! A NodePool as scheduling reads it.

use std::collections::BTreeMap;

use karpenter_api::requirement::Requirements;
use karpenter_api::resources::ResourceList;

use super::Labels;
use super::taint::Taint;

/// A NodePool of this provider. Those that launch nothing for pods belong in the input too: their nodes carry pods.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePool {
    pub name: String,
    pub uid: String,
    pub weight: i32,
    /// `spec.template.metadata.labels`.
    pub labels: Labels,
    /// `spec.template.metadata.annotations`.
    pub annotations: Labels,
    /// `spec.template.spec.requirements`, with minValues.
    pub requirements: Requirements,
    pub taints: Vec<Taint>,
    pub startup_taints: Vec<Taint>,
    /// `spec.limits`; the key `nodes` limits the number of nodes. Empty is unlimited.
    pub limits: ResourceList,
    pub node_class: NodeClassRef,
    /// It may launch nodes for pods: ready, not being deleted, and not static (`replicas` set).
    pub seeds_claims: bool,
    /// Hash of the template as read for this pass (`karpenter.sh/nodepool-hash`).
    pub hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeClassRef {
    pub group: String,
    pub kind: String,
    pub name: String,
}

impl NodePool {
    /// The labels that every node of this pool carries, whatever pods it takes (scheduling.md §4.1).
    pub fn node_labels(&self) -> Labels {
        let mut labels: BTreeMap<String, String> = self.labels.clone();
        labels.insert("karpenter.sh/nodepool".to_owned(), self.name.clone());
        let class = &self.node_class;
        if !class.group.is_empty() {
            labels.insert(
                format!("{}/{}", class.group, class.kind.to_lowercase()),
                class.name.clone(),
            );
        }
        labels
    }
}
