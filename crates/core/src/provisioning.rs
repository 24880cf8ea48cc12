//! Buys nodes for pods that have no place: batches them up, has the engine plan, and creates the NodeClaims.

mod batcher;
mod headroom;
mod holding;
mod in_flight;
mod pass;
mod provisioning_metrics;
pub(crate) mod snapshot;
mod triggers;

use std::sync::Arc;

use jiff::SignedDuration;

pub use batcher::Batcher;
pub use pass::Outcome;
pub(crate) use pass::without_blocking;

use self::pass::Pass;
use crate::claim_creation::ClaimCreator;
use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Runnable, Singleton};

/// Incomplete cluster state is looked at again after this.
const UNSYNCED_RETRY: SignedDuration = SignedDuration::from_millis(100);

/// Plans and buys. One per process.
#[derive(Debug)]
pub struct Provisioner {
    ctx: Context,
    batcher: Arc<Batcher>,
    pass: Pass,
}

/// The controllers `provisioner`, `provisioner.trigger.pod` and `provisioner.trigger.node`, and the batcher through which
/// others ask for a pass.
pub fn controllers(ctx: &Context) -> (Vec<Runnable>, Arc<Batcher>) {
    let mut controller = Controller::new(&ctx.runner, "provisioner");
    let batcher = Arc::new(Batcher::new(ctx.clock.clone(), &ctx.options, controller.handle()));
    let creator = ClaimCreator::new(ctx.client.clone(), ctx.state.clone(), ctx.metrics.shared.clone());
    let pass = Pass::new(ctx.clone(), creator);
    let provisioner = Provisioner {
        ctx: ctx.clone(),
        batcher: batcher.clone(),
        pass,
    };
    let mut runnables = vec![controller.runs_singleton(provisioner)];
    runnables.extend(triggers::controllers(ctx, &batcher));
    (runnables, batcher)
}

impl Singleton for Provisioner {
    async fn reconcile(&self) -> Result<Next> {
        if !self.batcher.window().await {
            return Ok(Next::Wait);
        }
        if !self.ctx.state.synced() {
            self.batcher.again();
            return Ok(Next::After(UNSYNCED_RETRY));
        }
        match self.pass.run().await? {
            Outcome::Complete => Ok(Next::Wait),
            // The rest is planned at once, without another window: those pods have waited long enough.
            Outcome::OutOfTime => {
                self.batcher.again();
                Ok(Next::After(SignedDuration::ZERO))
            }
        }
    }
}
