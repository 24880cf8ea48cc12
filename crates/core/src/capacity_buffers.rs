//! Keeps room for pods to come, as CapacityBuffers ask: virtual pods take part in every plan (lifecycle.md §9).
//!
//! [`controller`] resolves what a buffer stands for and writes that into its status. The virtual pods follow from that status
//! and from the pod template, so they are worked out whenever somebody asks ([`Buffers::pods`]) and never stored anywhere.
//! After each plan, [`provisioning`] tells the owners whether their room is there.

pub mod provisioning;
mod resolution;
mod sources;
mod virtual_pods;

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::CapacityBuffer;
use karpenter_api::capacity_buffer::{LocalObjectRef, condition};
use karpenter_api::conditions::ConditionStatus;
use karpenter_api::labels::LabelRules;
use karpenter_engine::model::Pod;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use self::resolution::{Resolution, Resolved};
use self::sources::Sources;
use self::virtual_pods::VirtualPods;
use crate::clock::Clock;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::patch::{self, Written};
use crate::provisioning::Batcher;
use crate::runner::{Controller, Next, RateLimit, ReconcileKey, Runnable};
use crate::watch::{Cache, Key};

const CONCURRENCY: usize = 10;
const PERIOD: SignedDuration = SignedDuration::from_secs(30);
const AFTER_CONFLICT: SignedDuration = SignedDuration::from_secs(1);

/// What buffers need besides the rest of the context; only there while the feature gate is on.
#[derive(Debug)]
pub struct Buffers {
    /// CapacityBuffers.
    pub objects: Arc<Cache<CapacityBuffer>>,
    sources: Sources,
    pods: Mutex<VirtualPods>,
}

impl Buffers {
    /// Buffers of which nothing is known yet.
    pub fn new(rules: Arc<LabelRules>) -> Self {
        Self {
            objects: Cache::new("CapacityBuffer"),
            sources: Sources::default(),
            pods: Mutex::new(VirtualPods::new(rules)),
        }
    }

    /// Watches buffers and what they refer to, as tasks of `tasks`.
    pub fn run(&self, tasks: &mut JoinSet<()>, client: &Client, clock: &Clock) {
        let api: Api<CapacityBuffer> = Api::all(client.clone());
        let config = kube::runtime::watcher::Config::default();
        tasks.spawn(self.objects.clone().feed(api, config, clock.clone(), |buffer| buffer));
        self.sources.run(tasks, client, clock);
    }

    /// Resolves once all of them have been listed.
    pub async fn synced(&self) {
        self.objects.synced().await;
        self.sources.synced().await;
    }

    /// The virtual pods of every buffer that is ready for them, in the order of the buffers' names.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let mut buffers = self.objects.entries();
        buffers.sort_by(|a, b| a.0.cmp(&b.0));
        self.pods.lock().of(&buffers, &self.sources)
    }
}

/// The `capacitybuffer` controller. It asks `batcher` for a plan whenever the room that is to be kept may have changed.
pub fn controller(ctx: &Context, buffers: &Arc<Buffers>, batcher: &Arc<Batcher>) -> Runnable {
    let controller = Controller::new(&ctx.runner, "capacitybuffer")
        .about("autoscaling.x-k8s.io", "CapacityBuffer")
        .concurrency(CONCURRENCY)
        .rate_limit(RateLimit::reasonable())
        .watches(&buffers.objects, |change| [change.key.clone()]);
    buffers
        .sources
        .wake_buffers(controller, &buffers.objects)
        .runs_keys(BufferStatus {
            ctx: ctx.clone(),
            buffers: buffers.clone(),
            batcher: batcher.clone(),
        })
}

struct BufferStatus {
    ctx: Context,
    buffers: Arc<Buffers>,
    batcher: Arc<Batcher>,
}

impl ReconcileKey<Key> for BufferStatus {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let Some(buffer) = self.buffers.objects.get(&key) else {
            // Nodes that were kept for it alone may be empty now, which only a plan finds out.
            self.batcher.trigger_unkeyed();
            return Ok(Next::Wait);
        };
        let resolution = resolution::resolve(&buffer, &self.buffers.sources);
        let mut changed = (*buffer).clone();
        self.describe(&mut changed, &resolution);
        let api: Api<CapacityBuffer> = Api::namespaced(self.ctx.client.clone(), &key.namespace);
        match patch::status(&api, &buffer, &changed).await {
            Ok(Written::Changed(_) | Written::Unchanged) => {}
            Ok(Written::Gone) => return Ok(Next::After(AFTER_CONFLICT)),
            Err(error) if error.is_conflict() => return Ok(Next::After(AFTER_CONFLICT)),
            Err(error) => return Err(error),
        }
        if let Resolution::Unsupported(why) = resolution {
            return Err(Error::failed(format!("CapacityBuffer {key}: {why}")));
        }
        self.batcher.trigger(&buffer.uid().unwrap_or_default());
        Ok(Next::After(PERIOD))
    }
}

impl BufferStatus {
    fn describe(&self, buffer: &mut CapacityBuffer, resolution: &Resolution) {
        let now = self.ctx.clock.now();
        let strategy = buffer.spec.provisioning_strategy.clone();
        let status = buffer.status.get_or_insert_default();
        status.provisioning_strategy = Some(strategy);
        let (verdict, reason, message) = match resolution {
            Resolution::Resolved(Resolved {
                replicas,
                template_generation,
            }) => {
                status.replicas = Some(*replicas);
                status.pod_template_generation = *template_generation;
                let named = buffer.spec.pod_template_ref.as_ref();
                status.pod_template_ref = named.map(|named| LocalObjectRef {
                    name: named.name.clone(),
                });
                (ConditionStatus::True, "Resolved", String::new())
            }
            Resolution::NoReference => (
                ConditionStatus::False,
                "ResolutionFailed",
                "neither podTemplateRef nor scalableRef is set".to_owned(),
            ),
            Resolution::TemplateNotFound(name) => (
                ConditionStatus::False,
                "PodTemplateNotFound",
                format!("there is no PodTemplate {name} in this namespace"),
            ),
            Resolution::WorkloadNotFound(what) => (
                ConditionStatus::False,
                "ScalableRefNotFound",
                format!("there is no {what} in this namespace"),
            ),
            Resolution::Unsupported(why) => (ConditionStatus::False, "ResolutionFailed", why.clone()),
        };
        buffer.set_condition(condition::READY_FOR_PROVISIONING, verdict, reason, &message, now);
    }
}
