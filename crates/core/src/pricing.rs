//! Keeps the prices behind the cost metrics of NodePools fresh.

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::NodePool;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Runnable, Singleton};

/// Prices change rarely and without an event.
const PERIOD: SignedDuration = SignedDuration::from_hours(1);

/// The `state.pricing` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let mut controller = Controller::new(&ctx.runner, "state.pricing");
    let handle = controller.handle();
    // A new pool's machines have a price before the hour is over.
    ctx.pools.observe(move |change| {
        if change.old.is_none() {
            handle.trigger();
        }
    });
    controller.runs_singleton(Pricing { ctx: ctx.clone() })
}

struct Pricing {
    ctx: Context,
}

impl Singleton for Pricing {
    async fn reconcile(&self) -> Result<Next> {
        let pools: Vec<Arc<NodePool>> = self.ctx.pools.list();
        let mut errors = Vec::new();
        for pool in pools.iter().filter(|pool| self.ctx.managed.pool(pool)) {
            let name = pool.name_any();
            match self.ctx.cloud.instance_types(pool).await {
                Ok(types) => self.ctx.state.cost.update_prices(&name, &types),
                Err(error) => {
                    self.ctx.state.cost.failed(&name);
                    errors.push(Error::failed(format!("prices of NodePool {name}: {error}")));
                }
            }
        }
        Error::all(errors)?;
        Ok(Next::After(PERIOD))
    }
}
