//! What a NodePool's limits leave, counted strictly: nodes, machines that are coming up, and what this pass creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::{Quantity, ResourceList};
use karpenter_cloud::selection;
use karpenter_engine::model::{Node, NodePool};
use karpenter_engine::plan::PlannedClaim;

/// Remaining amounts of limited resources by pool.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    used: BTreeMap<Arc<str>, ResourceList>,
}

impl Headroom {
    /// Counts nodes and in-flight claims; what is going away gives its share back at once.
    pub(super) fn new<'a>(nodes: impl IntoIterator<Item = &'a Arc<Node>>) -> Self {
        let mut used: BTreeMap<Arc<str>, ResourceList> = BTreeMap::new();
        for node in nodes {
            if let Some(pool) = node.node_pool.as_ref().filter(|_| !node.deleting) {
                let sum = used.entry(pool.clone()).or_default();
                sum.merge(&node.capacity);
                sum.merge(&one_node());
            }
        }
        Self { used }
    }

    /// Takes room for a planned claim, as much as the largest of its types would need.
    ///
    /// # Errors
    /// The name of the resource that would exceed the pool's limit; nothing is taken then.
    pub(super) fn take(&mut self, planned: &PlannedClaim) -> Result<(), String> {
        let pool: &NodePool = &planned.node_pool;
        let mut needed = one_node();
        for own in planned.instance_types.iter() {
            needed = needed.max(&selection::capacity(own, &Default::default()));
        }
        let used = self.used.entry(pool.name.as_str().into()).or_default();
        let exceeded =
            |(resource, limit): &(&String, &Quantity)| used.amount(resource) + needed.amount(resource) > **limit;
        if let Some((resource, _)) = pool.limits.iter().find(exceeded) {
            return Err(resource.clone());
        }
        used.merge(&needed);
        Ok(())
    }
}

fn one_node() -> ResourceList {
    ResourceList::new().with("nodes", Quantity::from_units(1))
}
