//! Bound pods by the labels that selectors look at, for counting them into topology groups.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::pods::Pods;
use crate::model::Snapshot;
use crate::solve::groups::{Group, exact_label};
use crate::solve::nodes::Nodes;

#[derive(Debug, Clone, Default)]
pub(crate) struct Bound {
    classes: Vec<BoundClass>,
    by_label: FxHashMap<(String, String), Vec<u32>>,
    built: bool,
}

/// Bound pods that every selector sees alike.
#[derive(Debug, Clone)]
struct BoundClass {
    namespace: Arc<str>,
    labels: u32,
    /// Node positions with how many such pods are there.
    nodes: FxHashMap<u32, u32>,
}

impl Bound {
    pub(crate) fn new(nodes: &Nodes, pods: &mut Pods, _snapshot: &Snapshot) -> Bound {
        let mut bound = Bound {
            built: true,
            ..Bound::default()
        };
        let mut ids: FxHashMap<(u32, u32), usize> = FxHashMap::default();
        for (at, existing) in nodes.all.iter().enumerate() {
            for pod in existing.node.pods().iter().filter(|pod| !pod.terminating) {
                if pods.is_scheduled(&pod.uid) {
                    continue;
                }
                let labels = pods.labels_id(&pod.labels);
                let class = *ids
                    .entry((labels, pods.namespace_id(&pod.namespace)))
                    .or_insert_with(|| {
                        let namespace = pod.namespace.clone();
                        bound.classes.push(BoundClass {
                            namespace,
                            labels,
                            nodes: FxHashMap::default(),
                        });
                        bound.classes.len() - 1
                    });
                *bound.classes[class].nodes.entry(at as u32).or_default() += 1;
            }
        }
        for (at, class) in bound.classes.iter().enumerate() {
            for (key, value) in pods.labels(class.labels).iter() {
                bound
                    .by_label
                    .entry((key.clone(), value.clone()))
                    .or_default()
                    .push(at as u32);
            }
        }
        bound
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.built
    }

    /// Node positions and numbers of the bound pods that a group selects.
    pub(crate) fn matching<'a>(&'a self, group: &'a Group, pods: &'a Pods) -> impl Iterator<Item = (u32, u32)> + 'a {
        let candidates: Vec<u32> = match exact_label(&group.selector) {
            Some((key, value)) => self
                .by_label
                .get(&(key.to_owned(), value.to_owned()))
                .cloned()
                .unwrap_or_default(),
            None => (0..self.classes.len() as u32).collect(),
        };
        candidates
            .into_iter()
            .map(|at| &self.classes[at as usize])
            .filter(|class| group.selects(&class.namespace, pods.labels(class.labels)))
            .flat_map(|class| class.nodes.iter().map(|(node, count)| (*node, *count)))
    }
}
