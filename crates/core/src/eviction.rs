//! The one place that makes pods leave: a queue that evicts, waits where budgets say so, and forces at the deadline.
//!
//! Drains put pods in ([`Evictions::add`]); the `eviction-queue` controller takes them out. What is queued is not
//! persisted: a drain that is interrupted starts over and queues the same pods again.

pub mod api;
pub mod request;

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::DISRUPTION_REASON;
use karpenter_api::pods::DoNotDisrupt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::eviction::api::Answer;
use crate::eviction::request::{Request, Step};
use crate::metrics::{Counter, Registry};
use crate::runner::{Controller, Handle, Next, RateLimit, ReconcileKey, Runnable, linear};
use crate::watch::Key;

/// Why a pod was drained when nothing voluntary asked for it.
const FORCEFUL: &str = "Forceful Termination";

/// The queue, for those who drain nodes.
#[derive(Debug)]
pub struct Evictions {
    requests: Mutex<FxHashMap<Key, Queued>>,
    wake: Handle<Key>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Queued {
    uid: String,
    request: Request,
}

impl Evictions {
    /// Asks for `pod` to leave. Asking again joins the requests ([`Request::merge`]).
    pub fn add(&self, pod: &Pod, request: Request) {
        let key = Key::of(pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.merge(key.clone(), Queued { uid, request }) {
            self.wake.wake(key);
        }
    }

    /// Asks for `pod` to leave, and looks at it now even if it waits for a budget.
    pub fn add_now(&self, pod: &Pod, request: Request) {
        self.add(pod, request);
        self.wake.wake(Key::of(pod));
    }

    /// Whether there is anything new to do.
    fn merge(&self, key: Key, new: Queued) -> bool {
        match self.requests.lock().entry(key) {
            Entry::Occupied(mut queued) if queued.get().uid == new.uid => {
                let merged = queued.get().request.merge(new.request);
                let tightened = merged != queued.get().request;
                queued.get_mut().request = merged;
                tightened
            }
            // Another pod of the same name: the old one is gone, and so is what was asked for it.
            Entry::Occupied(mut queued) => {
                queued.insert(new);
                true
            }
            Entry::Vacant(vacant) => {
                vacant.insert(new);
                true
            }
        }
    }

    fn request(&self, key: &Key, pod: &Pod) -> Option<Request> {
        let requests = self.requests.lock();
        let queued = requests.get(key)?;
        (Some(&queued.uid) == pod.metadata.uid.as_ref()).then_some(queued.request)
    }

    /// Forgets a pod, unless its name was queued for another one meanwhile.
    fn forget(&self, key: &Key, pod: Option<&Pod>) {
        let mut requests = self.requests.lock();
        let is_other = |queued: &Queued| pod.is_some_and(|pod| pod.metadata.uid.as_ref() != Some(&queued.uid));
        if requests.get(key).is_some_and(|queued| !is_other(queued)) {
            requests.remove(key);
        }
    }

    /// How many pods are queued, for tests.
    pub fn len(&self) -> usize {
        self.requests.lock().len()
    }

    /// Whether no pod is queued.
    pub fn is_empty(&self) -> bool {
        self.requests.lock().is_empty()
    }
}

/// The queue and the controller that works it off.
pub fn controller(ctx: &Context) -> (Arc<Evictions>, Runnable) {
    let concurrency = linear(ctx.options.cores(), 100, 5000);
    let mut controller = Controller::new(&ctx.runner, "eviction-queue")
        .about("", "Pod")
        .concurrency(concurrency)
        .rate_limit(RateLimit::eviction(concurrency));
    let queue = Arc::new(Evictions {
        requests: Mutex::default(),
        wake: controller.handle(),
    });
    let evictor = Evictor {
        ctx: ctx.clone(),
        queue: queue.clone(),
        metrics: EvictionMetrics::register(&ctx.metrics.registry),
    };
    (queue, controller.runs_keys(evictor))
}

struct Evictor {
    ctx: Context,
    queue: Arc<Evictions>,
    metrics: EvictionMetrics,
}

struct EvictionMetrics {
    requests: Counter<1>,
    drained: Counter<1>,
}

impl EvictionMetrics {
    fn register(registry: &Registry) -> Self {
        Self {
            requests: registry.counter(
                "karpenter_pods_eviction_requests_total",
                "Answers of the eviction API by HTTP code; 200 for every success.",
                ["code"],
            ),
            drained: registry.counter(
                "karpenter_pods_drained_total",
                "Pods made to leave their node, by why the node is disrupted.",
                ["reason"],
            ),
        }
    }
}

impl ReconcileKey<Key> for Evictor {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let Some(pod) = self.ctx.pods.get(&key) else {
            self.queue.forget(&key, None);
            return Ok(Next::Wait);
        };
        let Some(request) = self.queue.request(&key, &pod) else {
            return Ok(Next::Wait);
        };
        let now = self.ctx.clock.now();
        match request.step(&pod, now) {
            Step::Forget => {
                self.queue.forget(&key, Some(&pod));
                Ok(Next::Wait)
            }
            Step::Hold => {
                self.explain_protection(&pod, now);
                Ok(Next::Requeue)
            }
            Step::ForceDelete { grace_period } => {
                self.force_delete(&pod, grace_period, request.deadline).await?;
                self.queue.forget(&key, Some(&pod));
                Ok(Next::Wait)
            }
            Step::Evict => {
                self.explain_protection(&pod, now);
                self.evict(&key, &pod).await
            }
        }
    }
}

impl Evictor {
    async fn evict(&self, key: &Key, pod: &Pod) -> Result<Next> {
        let answer = match api::evict(&self.ctx.client, pod).await {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) => {
                self.metrics.requests.inc([&status.code.to_string()]);
                return Err(kube::Error::Api(status).into());
            }
            Err(error) => return Err(error.into()),
        };
        match answer {
            Answer::Evicted => {
                let reason = self.reason(pod);
                self.metrics.requests.inc(["200"]);
                self.metrics.drained.inc([&reason]);
                self.ctx
                    .events
                    .publish(events::evicted_pod(Regarding::of(pod), &reason));
                self.queue.forget(key, Some(pod));
                Ok(Next::Wait)
            }
            Answer::Gone { code } => {
                self.metrics.requests.inc([&code.to_string()]);
                self.queue.forget(key, Some(pod));
                Ok(Next::Wait)
            }
            Answer::Refused { code, message } => {
                self.metrics.requests.inc([&code.to_string()]);
                let Some(node) = self.node(pod) else {
                    // Without its node the pod is for the garbage collector, not for us.
                    self.queue.forget(key, Some(pod));
                    return Ok(Next::Wait);
                };
                let why = format!("evicting pod {key} violates a PodDisruptionBudget: {message}");
                self.ctx
                    .events
                    .publish(events::failed_draining(Regarding::of(&*node), &why));
                Ok(Next::Requeue)
            }
        }
    }

    async fn force_delete(&self, pod: &Pod, grace_period: u32, deadline: Option<Timestamp>) -> Result<()> {
        let granted = Duration::from_secs(u64::from(grace_period));
        let requested = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let requested = requested
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(Duration::from_secs);
        let event = events::disrupted_pod(Regarding::of(pod), granted, requested, deadline.unwrap_or_default());
        self.ctx.events.publish(event);
        api::force_delete(&self.ctx.client, pod, grace_period).await?;
        self.metrics.drained.inc([&self.reason(pod)]);
        Ok(())
    }

    /// Tells users what their `karpenter.sh/do-not-disrupt` does, or why it does nothing.
    fn explain_protection(&self, pod: &Pod, now: Timestamp) {
        let regarding = || Regarding::of(pod);
        match DoNotDisrupt::of(pod, now) {
            DoNotDisrupt::Absent | DoNotDisrupt::Forever | DoNotDisrupt::Until(None) => return,
            DoNotDisrupt::Until(Some(end)) => self.ctx.events.publish(events::do_not_disrupt_until(regarding(), end)),
            DoNotDisrupt::Elapsed => self.ctx.events.publish(events::do_not_disrupt_elapsed(regarding())),
            DoNotDisrupt::Invalid(value) => self
                .ctx
                .events
                .publish(events::invalid_do_not_disrupt(regarding(), &value)),
        };
    }

    fn node(&self, pod: &Pod) -> Option<Arc<Node>> {
        self.ctx.nodes.named(karpenter_api::pods::node_name(pod)?)
    }

    /// Why the pod's node goes away, as its claim says; empty when there is nobody to ask.
    fn reason(&self, pod: &Pod) -> String {
        let claim = self
            .node(pod)
            .and_then(|node| self.ctx.relations.claim_of(&node).only());
        let Some(claim) = claim else { return String::new() };
        let reason = claim
            .condition(DISRUPTION_REASON)
            .filter(|condition| condition.is_true());
        reason.map_or_else(|| FORCEFUL.to_owned(), |condition| condition.reason.clone())
    }
}
