//! Deletes pods from nodes whose NoExecute taints they don't tolerate, or no longer (sandbox.md §5.9).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use rustc_hash::FxHashMap;

use super::effects::{Condition, EventDraft, EventKind, PODS, reference, set_condition};
use super::manager::{Manager, Task};
use super::node::covers;
use crate::clock::later;
use crate::server::{DeleteOptions, Endpoint};

/// Pods that will have to go, and since when they have been on notice.
#[derive(Debug, Default)]
pub(crate) struct TaintEvictions {
    since: FxHashMap<Arc<str>, Timestamp>,
}

impl TaintEvictions {
    pub(crate) fn knows(&self, pod: &str) -> bool {
        self.since.contains_key(pod)
    }

    pub(crate) fn forget(&mut self, pod: &str) {
        self.since.remove(pod);
    }
}

/// How long a pod may stay under these taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    Forever,
    For(Duration),
    NotAtAll,
}

/// The shortest of the tolerations decides; a taint without any means leaving now.
pub(crate) fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut shortest: Option<i64> = None;
    for taint in taints.iter().filter(|t| t.effect == "NoExecute") {
        let covering: Vec<&Toleration> = tolerations.iter().filter(|t| covers(t, taint)).collect();
        if covering.is_empty() {
            return Stay::NotAtAll;
        }
        let seconds = covering.iter().filter_map(|t| t.toleration_seconds).min();
        shortest = shortest.into_iter().chain(seconds).min();
    }
    match shortest {
        None => Stay::Forever,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Stay::For(Duration::from_secs(seconds)),
            _ => Stay::NotAtAll,
        },
    }
}

impl Manager {
    pub(crate) fn evict_from_tainted(&mut self, key: &Arc<str>) {
        let Some(pod) = self.world.pods.get(key).cloned() else {
            return;
        };
        let Some(node) = pod.node.as_ref().and_then(|n| self.world.nodes.get(n)).cloned() else {
            return;
        };
        if pod.deletion.is_some() || pod.phase.is_terminal() {
            self.evictions.forget(key);
            return;
        }
        let now = self.effects.now();
        match stay(&node.taints, &pod.class.spec.tolerations) {
            Stay::Forever => {
                if self.evictions.since.remove(key).is_some() {
                    self.effects.event(&EventDraft {
                        regarding: reference("v1", "Pod", &pod.namespace, &pod.name, &pod.uid),
                        kind: EventKind::Normal,
                        reason: "TaintManagerEviction",
                        action: "",
                        component: "taint-eviction-controller",
                        message: format!("Cancelling deletion of Pod {key}"),
                    });
                }
                return;
            }
            Stay::For(duration) => {
                let since = *self.evictions.since.entry(Arc::clone(key)).or_insert(now);
                let deadline = later(since, duration);
                if deadline > now {
                    self.arm(Task::TaintEviction(Arc::clone(key)), deadline);
                    return;
                }
            }
            Stay::NotAtAll => {}
        }
        self.evictions.forget(key);
        self.effects.event(&EventDraft {
            regarding: reference("v1", "Pod", &pod.namespace, &pod.name, &pod.uid),
            kind: EventKind::Normal,
            reason: "TaintManagerEviction",
            action: "",
            component: "taint-eviction-controller",
            message: format!("Marking for deletion Pod {key}"),
        });
        let marked = self
            .effects
            .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                let condition = Condition {
                    kind: "DisruptionTarget",
                    status: "True",
                    reason: "DeletionByTaintManager",
                    message: "Taint manager: deleting due to NoExecute taint",
                };
                set_condition(object, &condition, now)
            });
        self.effects.report("mark a pod as disrupted", marked);
        let deleted = self
            .effects
            .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::default());
        self.effects.report("delete a pod from a tainted node", deleted);
    }
}
