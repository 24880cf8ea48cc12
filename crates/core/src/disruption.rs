//! Voluntary disruption: removes, replaces and rotates nodes as the engine's planner decides, within budgets.
//!
//! [`conditions`] keeps `Drifted` and `Consolidatable` on NodeClaims. [`pass`] is the loop: it builds the planner's
//! [`fleet`], asks one method after the other, waits and looks again before anything irreversible ([`validation`]), and
//! hands commands to the [`queue`], which launches replacements, waits for them and deletes the candidates. [`repair`] tells
//! the planner which nodes are broken. Taints and the
//! `DisruptionReason` condition are written and taken back in [`marks`].

pub mod conditions;
mod fleet;
mod marks;
mod metrics;
mod pass;
mod queue;
mod repair;
mod report;
mod validation;

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_engine::disruption::Fleet;

pub use pass::Disruption;
pub use queue::{Queue, command_timeout};
pub use repair::Repairs;

use crate::context::Context;
use crate::options::Options;
use crate::runner::Runnable;
use metrics::DisruptionMetrics;

/// All controllers of voluntary disruption.
pub fn controllers(ctx: &Context) -> Vec<Runnable> {
    let metrics = Arc::new(DisruptionMetrics::register(&ctx.metrics.registry));
    let (queue, queue_controller) = queue::controller(ctx, metrics.clone());
    let repairs = repairs_nodes(&ctx.options)
        .then(|| Repairs::of(&*ctx.cloud).expect("the operator does not start with policies that cannot be used"));
    vec![
        conditions::controller(ctx),
        pass::controller(ctx, metrics, queue, Memories { repairs }),
        queue_controller,
    ]
}

/// What the planner looks at, for controllers that ask it something else than what to disrupt.
pub(crate) async fn fleet(ctx: &Context) -> Fleet {
    fleet::build(ctx, &BTreeSet::new(), &Memories::default()).await
}

/// What the planner's view of the cluster owes to the past.
#[derive(Debug, Default)]
struct Memories {
    /// Which nodes are broken; `None` when nobody is to repair them.
    repairs: Option<Repairs>,
}

/// Whether broken nodes are a matter of voluntary disruption.
pub fn repairs_nodes(options: &Options) -> bool {
    options.feature_gates.node_repair && !options.legacy_node_repair
}
