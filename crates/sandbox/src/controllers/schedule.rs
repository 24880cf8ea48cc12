//! Carries out what the scheduler decides: bindings, volume reservations, refusals.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::effects::{CLAIMS, Condition, EventDraft, EventKind, PODS, reference, set_condition};
use super::manager::{Manager, Task};
use super::pod::PodFacts;
use super::scheduler::Decision;
use super::scheduler::volumes::bound_volume;
use crate::server::Endpoint;

const COMPONENT: &str = "default-scheduler";

impl Manager {
    /// Decides about one pod and writes the outcome.
    pub(crate) fn schedule(&mut self, key: &Arc<str>) {
        let Some(pod) = self.world.pods.get(key).cloned() else {
            return;
        };
        let now = self.effects.now();
        match self.scheduler.decide(&pod, now) {
            Decision::Bind { node } => self.bind(&pod, &node, now),
            Decision::Provision { node, claims } => self.reserve(&pod, &node, &claims),
            Decision::Refuse { message } => self.refuse(&pod, &message, now),
        }
    }

    fn bind(&mut self, pod: &Arc<PodFacts>, node: &Arc<str>, now: Timestamp) {
        if let Err(error) = self.effects.bind(pod, node) {
            self.effects.report("bind a pod", Err(error));
            self.scheduler.undo(pod, now);
            return;
        }
        self.effects.event(&EventDraft {
            regarding: reference("v1", "Pod", &pod.namespace, &pod.name, &pod.uid),
            kind: EventKind::Normal,
            reason: "Scheduled",
            action: "Binding",
            component: COMPONENT,
            message: format!("Successfully assigned {} to {node}", pod.key),
        });
    }

    /// Tells the provisioner where the volumes are needed, and everybody else that the pod is as good as placed.
    fn reserve(&mut self, pod: &Arc<PodFacts>, node: &Arc<str>, claims: &[String]) {
        let nominated = self
            .effects
            .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                object["status"]["nominatedNodeName"] = json!(**node);
                true
            });
        self.effects.report("nominate a node", nominated);
        for claim in claims {
            let Some((namespace, name)) = claim.split_once('/') else {
                continue;
            };
            let class = self.scheduler.view.volumes.claims.get(claim).and_then(|c| {
                let class = c.spec.as_ref()?.storage_class_name.as_ref()?;
                self.scheduler.view.volumes.classes.get(class)
            });
            let provisioner = class.map(|c| c.provisioner.clone()).unwrap_or_default();
            let selected = self.effects.modify(CLAIMS, namespace, name, Endpoint::Main, |object| {
                if !object["metadata"]["annotations"].is_object() {
                    object["metadata"]["annotations"] = json!({});
                }
                let annotations = &mut object["metadata"]["annotations"];
                annotations["volume.kubernetes.io/selected-node"] = json!(**node);
                annotations["volume.kubernetes.io/storage-provisioner"] = json!(provisioner);
                annotations["volume.beta.kubernetes.io/storage-provisioner"] = json!(provisioner);
                true
            });
            self.effects.report("select a node for a claim", selected);
        }
        self.enqueue(Task::Reservation(Arc::clone(&pod.key)));
    }

    /// Binds a pod whose volumes have become available.
    pub(crate) fn bind_reserved(&mut self, key: &Arc<str>) {
        let Some(node) = self.scheduler.reservation(key).cloned() else {
            return;
        };
        let Some(pod) = self.world.pods.get(key).cloned() else {
            return;
        };
        let now = self.effects.now();
        if !self.world.nodes.contains_key(&node) {
            self.scheduler.release(&pod, now);
            return;
        }
        let volumes = &self.scheduler.view.volumes;
        let is_bound = |name: String| {
            let claim = volumes.claims.get(&format!("{}/{name}", pod.namespace));
            claim.is_some_and(|c| bound_volume(c).is_some())
        };
        if pod.class.spec.volumes.iter().all(|v| is_bound(v.claim_name(&pod.name))) {
            self.bind(&pod, &node, now);
        }
    }

    /// The event comes before the condition, as watchers of the condition look the event up.
    fn refuse(&mut self, pod: &Arc<PodFacts>, message: &Arc<str>, now: Timestamp) {
        if pod.unschedulable.as_ref() == Some(message) {
            return;
        }
        self.effects.event(&EventDraft {
            regarding: reference("v1", "Pod", &pod.namespace, &pod.name, &pod.uid),
            kind: EventKind::Warning,
            reason: "FailedScheduling",
            action: "Scheduling",
            component: COMPONENT,
            message: message.to_string(),
        });
        let generation = pod.generation;
        let written = self
            .effects
            .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                let kind = "PodScheduled";
                let condition = Condition {
                    kind,
                    status: "False",
                    reason: "Unschedulable",
                    message,
                };
                let changed = set_condition(object, &condition, now);
                for stored in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
                    if stored["type"] == kind && generation > 0 {
                        stored["observedGeneration"] = json!(generation);
                    }
                }
                changed
            });
        self.effects.report("mark a pod as unschedulable", written);
    }
}
