//! Keeps `status.resources` and `status.nodes` of NodePools in step with their nodes.

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, NODES, PODS};
use karpenter_api::{NodePool, Quantity, ResourceList};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

const PERIOD: SignedDuration = SignedDuration::from_secs(5);
const WHILE_UNSYNCED: SignedDuration = SignedDuration::from_secs(1);

/// What the status shows for nodes that add up to `used`: the usual resources even where there are none.
pub fn shown(used: &ResourceList) -> ResourceList {
    let none = Quantity::default();
    let mut shown: ResourceList = [CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES]
        .into_iter()
        .map(|name| (name.to_owned(), none))
        .collect();
    shown.extend(used.iter().map(|(name, amount)| (name.clone(), *amount)));
    shown
}

/// The `nodepool.counter` controller.
pub fn controller(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodepool.counter")
        .about("karpenter.sh", "NodePool")
        .concurrency(linear(ctx.options.cores(), 10, 1000))
        .watches(&ctx.pools, |change| change.old.is_none().then(|| change.key.clone()))
        .runs_woken(&ctx.pools, ctx.manages_pool(), Counter { ctx: ctx.clone() })
}

struct Counter {
    ctx: Context,
}

impl Reconcile<NodePool> for Counter {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        if !self.ctx.state.synced() {
            return Ok(Next::After(WHILE_UNSYNCED));
        }
        let resources = shown(&self.ctx.state.pool_resources(&pool.name_any()));
        let mut changed = (*pool).clone();
        let status = changed.status.get_or_insert_default();
        status.nodes = resources.amount(NODES).value();
        status.resources = Some(resources);
        self.ctx.pool_writer.write(&pool, &changed).await?;
        Ok(Next::After(PERIOD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_nodes_shows_zeros() {
        let shown = shown(&ResourceList::new());
        let names: Vec<&str> = shown.keys().map(String::as_str).collect();
        assert_eq!(names, ["cpu", "ephemeral-storage", "memory", "nodes", "pods"]);
        assert!(shown.values().all(|amount| amount.is_zero()));
    }

    #[test]
    fn what_nodes_have_is_shown_beside_the_usual() {
        let used = ResourceList::new()
            .with("cpu", "1500m".parse().unwrap())
            .with("nvidia.com/gpu", "2".parse().unwrap());
        let shown = shown(&used);
        assert_eq!(shown.amount("cpu"), "1500m".parse().unwrap());
        assert_eq!(shown.amount("nvidia.com/gpu"), "2".parse().unwrap());
        assert_eq!(shown.len(), 6);
    }
}
