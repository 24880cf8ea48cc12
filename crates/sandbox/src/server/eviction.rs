//! Evicting pods within the limits of their disruption budgets.

use std::sync::Arc;

use serde_json::{Value, json};

use super::binding::set_condition;
use super::{DeleteOptions, Server};
use crate::object::Object;
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::ApiError;

/// A budget that lists more disrupted pods than this is out of step with the cluster.
const MAX_DISRUPTED: usize = 2000;

impl Server {
    /// Evicts a pod: 429 if its budget does not allow that now.
    pub fn evict(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        self.refresh_budgets(namespace);
        let _writer = self.writer.lock();
        let pods = self.resource("", "pods").expect("pods are built in");
        let current = self.get(&pods, namespace, name)?;
        if let Some(uid) = options.precondition_uid.as_deref().filter(|uid| **uid != *current.uid) {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                current.uid
            );
            return Err(ApiError::conflict("", "pods", name, why));
        }
        let pod = current.value();
        if is_subject_to_budgets(&current, &pod) {
            self.spend_budget(namespace, name, &current, &pod, options)?;
        }
        if options.dry_run {
            return Ok(());
        }
        let marked = self.mark_target(&pods, &current, pod);
        self.delete_locked(&pods, namespace, &marked.name, options).map(|_| ())
    }

    /// Checks the pod's budget and takes one disruption off it.
    fn spend_budget(
        &self,
        namespace: &str,
        name: &str,
        current: &Object,
        pod: &Value,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let budgets = self
            .resource("policy", "poddisruptionbudgets")
            .expect("budgets are built in");
        let matching: Vec<(Arc<Object>, Value)> = self
            .list(&budgets, namespace)
            .objects
            .into_iter()
            .map(|budget| (Arc::clone(&budget), budget.value()))
            .filter(|(_, budget)| selects(budget, current))
            .collect();
        let (object, budget) = match matching.as_slice() {
            [] => return Ok(()),
            [one] => one,
            _ => {
                return Err(ApiError::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let status = &budget["status"];
        let number = |key: &str| status[key].as_i64().unwrap_or(0);
        if !is_ready(pod) {
            let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
            let healthy_budget = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
            if always || healthy_budget {
                return Ok(());
            }
        }
        let blocked = "Cannot evict pod as it would violate the pod's disruption budget.";
        let too_many =
            |cause: String| ApiError::new(429, "TooManyRequests", blocked).with_cause("DisruptionBudget", cause, "");
        if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
            let cause = format!(
                "The disruption budget {} is still being processed by the server.",
                object.name
            );
            return Err(too_many(cause).retry_after(10));
        }
        let allowed = number("disruptionsAllowed");
        if allowed < 0 {
            return Err(ApiError::forbidden(
                "policy",
                "poddisruptionbudgets",
                &object.name,
                "pdb disruptions allowed is negative",
            ));
        }
        if status["disruptedPods"]
            .as_object()
            .is_some_and(|pods| pods.len() > MAX_DISRUPTED)
        {
            let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
            return Err(ApiError::forbidden("policy", "poddisruptionbudgets", &object.name, why));
        }
        if allowed == 0 {
            let (current, desired) = (number("currentHealthy"), number("desiredHealthy"));
            let cause = if current > desired {
                format!(
                    "The disruption budget {} does not allow evicting pods currently",
                    object.name
                )
            } else {
                format!(
                    "The disruption budget {} needs {desired} healthy pods and has {current} currently",
                    object.name
                )
            };
            return Err(too_many(cause));
        }
        if !options.dry_run {
            self.record_disruption(&budgets, object, budget.clone(), name, allowed - 1);
        }
        Ok(())
    }

    fn record_disruption(&self, budgets: &Resource, object: &Arc<Object>, mut budget: Value, pod: &str, left: i64) {
        let now = self.now_text();
        let status = &mut budget["status"];
        status["disruptionsAllowed"] = left.into();
        if !status["disruptedPods"].is_object() {
            status["disruptedPods"] = json!({});
        }
        status["disruptedPods"][pod] = now.clone();
        if left == 0 {
            let generation = status["observedGeneration"].clone();
            let conditions = status["conditions"].as_array_mut().into_iter().flatten();
            for condition in conditions.filter(|condition| condition["type"] == "DisruptionAllowed") {
                *condition = json!({
                    "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
                    "lastTransitionTime": now, "observedGeneration": generation,
                });
            }
        }
        let owners = object.owners.clone();
        self.store.put(&budgets.collection, |revision| {
            Object::new(budget, revision, &budgets.fields, owners)
        });
    }

    /// Tells watchers why the pod goes, before it goes.
    fn mark_target(&self, pods: &Resource, current: &Arc<Object>, mut pod: Value) -> Arc<Object> {
        if current.terminating {
            return Arc::clone(current);
        }
        let generation = pod["metadata"]["generation"].clone();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "observedGeneration": generation,
        });
        set_condition(&mut pod, condition, &self.now_text());
        let owners = current.owners.clone();
        let object = self.store.put(&pods.collection, |revision| {
            Object::new(pod, revision, &pods.fields, owners)
        });
        self.after_write(pods, &object);
        object
    }
}

/// Pods that do not run, no longer run or already go are nobody's loss.
fn is_subject_to_budgets(object: &Object, pod: &Value) -> bool {
    !object.terminating
        && !matches!(
            pod["status"]["phase"].as_str(),
            Some("Pending" | "Succeeded" | "Failed")
        )
}

fn selects(budget: &Value, pod: &Object) -> bool {
    let selector = &budget["spec"]["selector"];
    selector.is_object()
        && LabelSelector::from_object(selector).is_some_and(|selector| selector.matches(|key| pod.label(key)))
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
