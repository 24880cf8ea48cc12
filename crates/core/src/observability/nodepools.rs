//! Gauges about every NodePool: what it uses, what it may use, what it costs.

use jiff::SignedDuration;
use karpenter_api::ResourceList;

use super::nodes::{amount_of, resource_label};
use crate::context::Context;
use crate::error::Result;
use crate::metrics::{GaugeStore, Registry, Series};
use crate::runner::{Controller, Next, ReconcileKey, Runnable};
use crate::watch::Key;

const PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// The `metrics.nodepool` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let gauges = NodePoolGauges::register(&ctx.metrics.registry, ctx.clone());
    Controller::new(&ctx.runner, "metrics.nodepool")
        .about("karpenter.sh", "NodePool")
        .watches(&ctx.pools, |change| [change.key.clone()])
        .runs_keys(gauges)
}

struct NodePoolGauges {
    ctx: Context,
    usage: GaugeStore,
    limit: GaugeStore,
    cost: GaugeStore,
}

impl NodePoolGauges {
    fn register(registry: &Registry, ctx: Context) -> Self {
        let by_resource = ["resource_type".to_owned(), "nodepool".to_owned()];
        Self {
            ctx,
            usage: registry.gauge_store(
                "karpenter_nodepools_usage",
                "What the nodes of a NodePool have.",
                &by_resource,
            ),
            limit: registry.gauge_store("karpenter_nodepools_limit", "What a NodePool may have.", &by_resource),
            cost: registry.gauge_store(
                "karpenter_nodepools_cost_total",
                "What the nodes of a NodePool cost per hour, in the unit of the provider's prices.",
                &["nodepool".to_owned()],
            ),
        }
    }
}

impl ReconcileKey<Key> for NodePoolGauges {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let name = &*key.name;
        let Some(pool) = self.ctx.pools.get(&key).filter(|pool| self.ctx.managed.pool(pool)) else {
            [&self.usage, &self.limit, &self.cost]
                .into_iter()
                .for_each(|gauge| gauge.delete(name));
            return Ok(Next::Wait);
        };
        let series = |amounts: Option<&ResourceList>| -> Vec<Series> {
            let amounts = amounts.into_iter().flat_map(|amounts| amounts.iter());
            amounts
                .map(|(resource, amount)| Series {
                    labels: vec![resource_label(resource), name.to_owned()],
                    value: amount_of(resource, *amount),
                })
                .collect()
        };
        let used = pool.status.as_ref().and_then(|status| status.resources.as_ref());
        self.usage.update(name, series(used));
        self.limit.update(name, series(pool.spec.limits.as_ref()));
        let cost = Series {
            labels: vec![name.to_owned()],
            value: self.ctx.state.cost.pool_cost(name),
        };
        self.cost.update(name, vec![cost]);
        Ok(Next::After(PERIOD))
    }
}
