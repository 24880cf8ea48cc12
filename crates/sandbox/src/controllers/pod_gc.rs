//! Collects pods that nobody will ever finish: their node is gone, or they never had one (sandbox.md §5.10).

use std::sync::Arc;

use serde_json::json;

use super::effects::{Condition, PODS, set_condition};
use super::manager::{Manager, Task};
use crate::clock::later;
use crate::server::{DeleteOptions, Endpoint};

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

impl Manager {
    pub(crate) fn collect_pod(&mut self, key: &Arc<str>) {
        let Some(pod) = self.world.pods.get(key).cloned() else {
            return;
        };
        let now = self.effects.now();
        let Some(node) = &pod.node else {
            if pod.deletion.is_some() {
                let deleted = self
                    .effects
                    .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::now());
                self.effects.report("collect an unscheduled pod", deleted);
            }
            return;
        };
        let message = match self.world.nodes.get(node) {
            None => {
                let since = *self.missing_nodes.entry(Arc::clone(node)).or_insert(now);
                let due = later(since, self.timing.pod_gc_quarantine);
                if due > now {
                    self.arm(Task::PodGc(Arc::clone(key)), due);
                    return;
                }
                "PodGC: node no longer exists"
            }
            Some(facts) => {
                let written_off = facts.taints.iter().any(|t| t.key == OUT_OF_SERVICE);
                if !(written_off && pod.deletion.is_some() && !facts.is_ready()) {
                    return;
                }
                "PodGC: node out of service"
            }
        };
        if pod.deletion.is_some_and(|d| d.grace_seconds == 0) && pod.phase.is_terminal() {
            // Only finalizers keep it; they are somebody else's business.
            return;
        }
        if !pod.phase.is_terminal() {
            let failed = self
                .effects
                .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                    object["status"]["phase"] = json!("Failed");
                    let reason = "DeletionByPodGC";
                    set_condition(
                        object,
                        &Condition {
                            kind: "DisruptionTarget",
                            status: "True",
                            reason,
                            message,
                        },
                        now,
                    );
                    true
                });
            self.effects.report("fail an orphaned pod", failed);
        }
        let deleted = self
            .effects
            .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::now());
        self.effects.report("collect an orphaned pod", deleted);
    }
}
