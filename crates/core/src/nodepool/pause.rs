//! The switches that stop voluntary disruption, of one NodePool or of the whole cluster, and what shows that they are thrown.
//!
//! Both are the annotation `karpenter.sh/pause-disruption: "true"`: on a NodePool, or on the Namespace that Karpenter runs in.
//! Every NodePool that is paused says so in its condition `DisruptionPaused`, and an event tells when that began and ended.

use std::sync::Arc;

use karpenter_api::NodePool;
use karpenter_api::conditions::{ConditionStatus, StatusConditions};
use karpenter_api::labels::annotations::PAUSE_DISRUPTION;
use karpenter_api::node_pool::DISRUPTION_PAUSED;
use karpenter_engine::convert;
use karpenter_engine::disruption::Pause;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::patch::Written;
use crate::runner::{Controller, Next, Reconcile, Runnable};
use crate::watch::Key;

/// Whether nodes of the pool may be disrupted voluntarily. The cluster's switch comes first.
pub(crate) fn of(ctx: &Context, pool: &NodePool) -> Pause {
    let home = ctx.home.as_deref().and_then(|name| ctx.namespaces.named(name));
    let switch = home.as_ref().and_then(|home| home.annotations().get(PAUSE_DISRUPTION));
    match (home.as_ref(), switch.map(|value| value.trim())) {
        (Some(home), Some("true")) => Pause::Everything(home.name_any()),
        (Some(_) | None, Some(_) | None) => convert::tuning(pool).pause,
    }
}

/// The `nodepool.pause` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let (pools, home) = (ctx.pools.clone(), ctx.home.clone());
    Controller::new(&ctx.runner, "nodepool.pause")
        .about("karpenter.sh", "NodePool")
        .watches(&ctx.namespaces, move |change| {
            let is_home = home.as_deref() == Some(&*change.key.name);
            let pools = if is_home { pools.list() } else { Vec::new() };
            pools.iter().map(|pool| Key::of(&**pool)).collect::<Vec<_>>()
        })
        .runs(&ctx.pools, ctx.manages_pool(), Pauses { ctx: ctx.clone() })
}

struct Pauses {
    ctx: Context,
}

impl Reconcile<NodePool> for Pauses {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let pause = of(&self.ctx, &pool);
        let why = match &pause {
            Pause::Off => None,
            Pause::Pool => Some((
                "NodePool",
                format!("paused by this NodePool's annotation {PAUSE_DISRUPTION}"),
            )),
            Pause::Everything(namespace) => Some((
                "Cluster",
                format!("paused by annotation {PAUSE_DISRUPTION} of Namespace {namespace}"),
            )),
        };
        let now = self.ctx.clock.now();
        let mut changed = (*pool).clone();
        let _ = match &why {
            None => changed.clear_condition(DISRUPTION_PAUSED),
            Some((reason, message)) => {
                changed.set_condition(DISRUPTION_PAUSED, ConditionStatus::True, reason, message, now)
            }
        };
        let written = self.ctx.pool_writer.write(&pool, &changed).await?;
        if let Written::Changed(_) = written {
            let object = Regarding::of(&*pool);
            let event = match (pool.is_true(DISRUPTION_PAUSED), why) {
                (false, Some((_, message))) => Some(events::disruption_paused(object, &message, now)),
                (true, None) => Some(events::disruption_resumed(object, now)),
                (true, Some(_)) | (false, None) => None,
            };
            self.ctx.events.publish_all(event);
        }
        Ok(Next::Wait)
    }
}
