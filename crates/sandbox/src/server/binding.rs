//! Binding a pod to a node: the one way in which `spec.nodeName` changes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Server, WriteOptions};
use crate::object::{Object, metadata_mut};
use crate::status::{ApiError, FieldError};

/// Node labels that a bound pod gets as its own.
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Server {
    /// Binds a pod to the node that the `Binding` names; the node need not exist.
    pub fn bind(&self, namespace: &str, name: &str, binding: &Value, options: &WriteOptions) -> Result<(), ApiError> {
        let _writer = self.writer.lock();
        let pods = self.resource("", "pods").expect("pods are built in");
        let target = &binding["target"];
        let node = target["name"].as_str().unwrap_or_default();
        if node.is_empty() {
            let errors = vec![FieldError::required("target.name", "")];
            return Err(ApiError::invalid("", "Binding", name, errors));
        }
        let kind = target["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "" | "Node") {
            let errors = vec![FieldError::not_supported("target.kind", &kind.into(), ["Node", ""])];
            return Err(ApiError::invalid("", "Binding", name, errors));
        }
        let current = self.get(&pods, namespace, name)?;
        let mut pod = current.value();
        let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, why));
        if current.terminating {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        if let Some(assigned) = pod["spec"]["nodeName"].as_str().filter(|assigned| !assigned.is_empty()) {
            return conflict(format!("pod {name} is already assigned to node {assigned:?}"));
        }
        if pod["spec"]["schedulingGates"]
            .as_array()
            .is_some_and(|gates| !gates.is_empty())
        {
            return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        let uid = binding["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() && *uid != *current.uid {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                current.uid
            );
            return conflict(why);
        }
        let version = binding["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !version.is_empty() && version != current.resource_version.to_string() {
            return Err(ApiError::modified("", "pods/binding", name));
        }
        self.assign(&mut pod, node, binding);
        if !options.dry_run {
            let owners = current.owners.clone();
            let object = self.store.put(&pods.collection, |revision| {
                Object::new(pod, revision, &pods.fields, owners)
            });
            self.after_write(&pods, &Arc::clone(&object));
        }
        Ok(())
    }

    fn assign(&self, pod: &mut Value, node: &str, binding: &Value) {
        pod["spec"]["nodeName"] = node.into();
        if let Some(annotations) = binding["metadata"]["annotations"].as_object() {
            for (key, value) in annotations {
                let own = metadata_mut(pod).entry("annotations").or_insert_with(|| json!({}));
                own[key] = value.clone();
            }
        }
        if let Some(node) = self.store.get("nodes", node) {
            for key in TOPOLOGY {
                if let Some(value) = node.label(key) {
                    let labels = metadata_mut(pod).entry("labels").or_insert_with(|| json!({}));
                    labels[key] = value.into();
                }
            }
        }
        if let Some(status) = pod["status"].as_object_mut() {
            status.remove("nominatedNodeName");
        }
        let generation = pod["metadata"]["generation"].clone();
        let condition = json!({"type": "PodScheduled", "status": "True", "observedGeneration": generation});
        set_condition(pod, condition, &self.now_text());
    }
}

/// Sets a pod's condition, keeping the transition time if the status stays.
pub(crate) fn set_condition(pod: &mut Value, mut condition: Value, now: &Value) {
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = now.clone();
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|existing| existing["type"] == condition["type"])
    {
        Some(existing) => {
            if existing["status"] == condition["status"] {
                condition["lastTransitionTime"] = existing["lastTransitionTime"].clone();
            }
            *existing = condition;
        }
        None => conditions.push(condition),
    }
}
