//! Writes deletion costs to pods, one at a time per pod, the last wanted value only.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels::annotations::POD_DELETION_COST;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::error::Result;
use crate::metrics::Counter;
use crate::patch::{self, Written};
use crate::runner::{Controller, Handle, Next, RateLimit, ReconcileKey, Runnable, linear};
use crate::watch::Key;

/// What is still to be written.
#[derive(Debug)]
pub struct Writes {
    wanted: Mutex<FxHashMap<Key, Wanted>>,
    wake: Handle<Key>,
}

#[derive(Debug, Clone)]
struct Wanted {
    uid: String,
    /// `None` takes the annotation away.
    cost: Option<String>,
}

impl Writes {
    /// Asks for `pod` to get this cost; asking again replaces what was asked before.
    pub fn add(&self, pod: &Pod, cost: Option<String>) {
        let key = Key::of(pod);
        let uid = pod.uid().unwrap_or_default();
        self.wanted.lock().insert(key.clone(), Wanted { uid, cost });
        self.wake.wake(key);
    }
}

/// The queue and the controller that works it off.
pub fn controller(ctx: &Context) -> (Arc<Writes>, Runnable) {
    let concurrency = linear(ctx.options.cores(), 100, 5000);
    let mut controller = Controller::new(&ctx.runner, "pod.deletioncost.queue")
        .about("", "Pod")
        .concurrency(concurrency)
        .rate_limit(RateLimit::eviction(concurrency));
    let writes = Arc::new(Writes {
        wanted: Mutex::default(),
        wake: controller.handle(),
    });
    let writer = Writer {
        ctx: ctx.clone(),
        writes: writes.clone(),
        results: ctx.metrics.registry.counter(
            "karpenter_pod_deletion_cost_pod_annotation_writes_total",
            "Deletion costs that were to be written to pods, by what became of it.",
            ["result"],
        ),
    };
    (writes, controller.runs_keys(writer))
}

struct Writer {
    ctx: Context,
    writes: Arc<Writes>,
    results: Counter<1>,
}

impl ReconcileKey<Key> for Writer {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let Some(wanted) = self.writes.wanted.lock().remove(&key) else {
            return Ok(Next::Wait);
        };
        let Some(pod) = self.ctx.pods.get(&key) else {
            self.results.inc(["skipped_notfound"]);
            return Ok(Next::Wait);
        };
        if pod.metadata.uid.as_ref() != Some(&wanted.uid) {
            // Another pod of the same name; the next cycle sees to it.
            return Ok(Next::Wait);
        }
        let mut after = (*pod).clone();
        match &wanted.cost {
            Some(cost) => {
                let annotations = after.metadata.annotations.get_or_insert_default();
                annotations.insert(POD_DELETION_COST.to_owned(), cost.clone());
            }
            None => {
                if let Some(annotations) = &mut after.metadata.annotations {
                    annotations.remove(POD_DELETION_COST);
                }
            }
        }
        let api: Api<Pod> = Api::namespaced(self.ctx.client.clone(), &key.namespace);
        match patch::object(&api, &pod, &after).await {
            Ok(Written::Changed(_)) => self.results.inc(["updated"]),
            Ok(Written::Unchanged) => self.results.inc(["skipped_unchanged"]),
            Ok(Written::Gone) => self.results.inc(["skipped_notfound"]),
            // Somebody changed the pod; the next cycle looks at it again.
            Err(error) if error.is_conflict() => self.results.inc(["skipped_conflict"]),
            Err(error) => {
                self.results.inc(["error"]);
                self.writes.wanted.lock().entry(key).or_insert(wanted);
                return Err(error);
            }
        }
        Ok(Next::Wait)
    }
}
