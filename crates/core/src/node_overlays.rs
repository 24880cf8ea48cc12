//! Evaluates NodeOverlays against what the cloud really offers, and puts those that hold into force.
//!
//! Which overlays hold is the engine's decision (`karpenter_engine::overlay`). What is written here: their conditions, and
//! the store by which the decorated provider shows overlaid instance types to everybody else (lifecycle.md §8).

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_overlay::VALIDATION_SUCCEEDED;
use karpenter_api::{NodeOverlay, NodePool};
use karpenter_cloud::overlay::{Accepted, OverlayStore};
use karpenter_cloud::{CloudProvider, InstanceTypes};
use karpenter_engine::overlay::{self, RejectReason, Rejected};
use karpenter_engine::{PoolTypes, convert};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::patch::{self, Written};
use crate::runner::{Controller, Next, RateLimit, Runnable, Singleton};
use crate::watch::{Cache, Change};

/// Prices of the cloud change without an event.
const PERIOD: SignedDuration = SignedDuration::from_hours(6);

/// What overlays need besides the rest of the context; only there while the feature gate is on.
#[derive(Clone, Debug)]
pub struct Overlays {
    /// NodeOverlays.
    pub objects: Arc<Cache<NodeOverlay>>,
    /// What is in force.
    pub store: Arc<OverlayStore>,
    /// The cloud without overlays: they must not be evaluated against their own effect.
    pub cloud: Arc<dyn CloudProvider>,
}

impl Overlays {
    /// Overlays over what `cloud` offers; nothing is in force and nothing is watched yet.
    pub fn new(cloud: Arc<dyn CloudProvider>) -> Self {
        Self {
            objects: Cache::new("NodeOverlay"),
            store: Arc::default(),
            cloud,
        }
    }

    /// Watches NodeOverlays, as a task of `tasks`.
    pub fn run(&self, tasks: &mut JoinSet<()>, client: &Client, clock: &Clock) {
        let api: Api<NodeOverlay> = Api::all(client.clone());
        let config = watcher::Config::default();
        tasks.spawn(self.objects.clone().feed(api, config, clock.clone(), |overlay| overlay));
    }
}

/// The `nodeoverlay.controller`; one evaluation covers everything, whatever changed.
pub fn controller(ctx: &Context, overlays: &Overlays) -> Runnable {
    let controller = Controller::new(&ctx.runner, "nodeoverlay.controller")
        .about("karpenter.sh", "NodeOverlay")
        .rate_limit(RateLimit::reasonable())
        .watches(&overlays.objects, is_edited)
        .watches(&ctx.pools, is_edited);
    ctx.node_classes.wake_singleton(controller).runs_singleton(Evaluation {
        ctx: ctx.clone(),
        overlays: overlays.clone(),
    })
}

/// Created, deleted or given another spec; a status is no reason to evaluate again.
fn is_edited<K: ResourceExt>(change: &Change<K>) -> Option<()> {
    let generation = |object: &Option<Arc<K>>| object.as_ref().map(|object| (object.uid(), object.meta().generation));
    (generation(&change.old) != generation(&change.new)).then_some(())
}

struct Evaluation {
    ctx: Context,
    overlays: Overlays,
}

impl Singleton for Evaluation {
    async fn reconcile(&self) -> Result<Next> {
        let (pools, errors) = self.offered().await;
        let mut overlays: Vec<Arc<NodeOverlay>> = self.overlays.objects.list();
        overlays.sort_by_key(|overlay| overlay.name_any());
        let specs: Vec<NodeOverlay> = overlays.iter().map(|overlay| (**overlay).clone()).collect();
        let rejected = overlay::rejected(&specs, &pools, &self.ctx.rules);
        let now = self.ctx.clock.now();
        let api: Api<NodeOverlay> = Api::all(self.ctx.client.clone());
        for overlay in &overlays {
            let judged = judged(overlay, &rejected, now);
            // Somebody else's write, or its end, means that the verdicts are about something else: start over.
            if let Written::Gone = patch::status(&api, overlay, &judged).await? {
                return Ok(Next::Requeue);
            }
        }
        let is_accepted = |overlay: &NodeOverlay| rejection(&overlay.name_any(), &rejected).is_none();
        self.overlays.store.publish(Accepted {
            overlays: specs.into_iter().filter(is_accepted).collect(),
            evaluated_pools: pools.iter().map(|own| own.pool.name.clone()).collect::<BTreeSet<_>>(),
        });
        self.ctx.state.mark_unconsolidated();
        Error::all(errors)?;
        Ok(Next::After(PERIOD))
    }
}

impl Evaluation {
    /// Our pools with the cloud's own instance types, and why some have none.
    async fn offered(&self) -> (Vec<PoolTypes>, Vec<Error>) {
        let mut pools: Vec<Arc<NodePool>> = self.ctx.pools.list();
        pools.retain(|pool| self.ctx.managed.pool(pool));
        pools.sort_by_key(|pool| pool.name_any());
        let cloud = &self.overlays.cloud;
        let fetched = futures::future::join_all(pools.iter().map(|pool| cloud.instance_types(pool))).await;
        let (mut offered, mut errors) = (Vec::new(), Vec::new());
        for (pool, types) in pools.iter().zip(fetched) {
            let name = pool.name_any();
            let types: Result<InstanceTypes> =
                types.map_err(|error| Error::failed(format!("instance types of NodePool {name}: {error}")));
            let converted = convert::node_pool(&self.ctx.rules, pool, String::new())
                .map_err(|error| Error::failed(format!("NodePool {name}: {error}")));
            match types.and_then(|types| Ok((types, converted?))) {
                Ok((types, pool)) => offered.push(PoolTypes {
                    pool: Arc::new(pool),
                    instance_types: types.to_vec(),
                }),
                Err(error) => errors.push(error),
            }
        }
        (offered, errors)
    }
}

fn rejection<'a>(name: &str, rejected: &'a [Rejected]) -> Option<&'a RejectReason> {
    let found = rejected.iter().find(|rejected| rejected.overlay == name)?;
    Some(&found.reason)
}

/// The overlay with the condition that the evaluation earned it.
fn judged(overlay: &NodeOverlay, rejected: &[Rejected], now: Timestamp) -> NodeOverlay {
    let mut judged = overlay.clone();
    let _ = match rejection(&overlay.name_any(), rejected) {
        None => judged.set_true(VALIDATION_SUCCEEDED, now),
        Some(reason @ RejectReason::Invalid(_)) => {
            judged.set_false(VALIDATION_SUCCEEDED, "RuntimeValidation", &reason.to_string(), now)
        }
        Some(reason @ RejectReason::Conflict) => {
            judged.set_false(VALIDATION_SUCCEEDED, "Conflict", &reason.to_string(), now)
        }
    };
    judged
}
