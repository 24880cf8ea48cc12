//! The one place where controllers write: objects, statuses, deletions and events.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde::Serialize;
use serde_json::{Value, json};

use super::pod::PodFacts;
use crate::clock::{Clock, later};
use crate::resource::Resource;
use crate::server::{DeleteOptions, Endpoint, Propagation, Server, WriteOptions, time_text};
use crate::status::ApiError;

/// Writes on behalf of the controllers.
#[derive(Debug, Clone)]
pub(crate) struct Effects {
    server: Arc<Server>,
}

/// A kind as controllers name it: group and plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plural(pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const PODS: Plural = Plural("", "pods");
pub(crate) const NODES: Plural = Plural("", "nodes");
pub(crate) const NAMESPACES: Plural = Plural("", "namespaces");
pub(crate) const CLAIMS: Plural = Plural("", "persistentvolumeclaims");
pub(crate) const VOLUMES: Plural = Plural("", "persistentvolumes");
pub(crate) const LEASES: Plural = Plural("coordination.k8s.io", "leases");
pub(crate) const REPLICA_SETS: Plural = Plural("apps", "replicasets");
pub(crate) const DEPLOYMENTS: Plural = Plural("apps", "deployments");
pub(crate) const STATEFUL_SETS: Plural = Plural("apps", "statefulsets");
pub(crate) const DAEMON_SETS: Plural = Plural("apps", "daemonsets");
pub(crate) const JOBS: Plural = Plural("batch", "jobs");
pub(crate) const BUDGETS: Plural = Plural("policy", "poddisruptionbudgets");
pub(crate) const ATTACHMENTS: Plural = Plural("storage.k8s.io", "volumeattachments");

impl Effects {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.server.clock()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.server.clock().now()
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn resource(&self, kind: Plural) -> Arc<Resource> {
        self.server
            .resource(kind.0, kind.1)
            .expect("controllers work on built-in kinds")
    }

    pub(crate) fn get(&self, kind: Plural, namespace: &str, name: &str) -> Option<Value> {
        Some(self.server.get(&self.resource(kind), namespace, name).ok()?.value())
    }

    pub(crate) fn create(&self, kind: Plural, namespace: &str, object: &impl Serialize) -> Result<Value, ApiError> {
        let body = serde_json::to_value(object).map_err(|e| ApiError::internal(e.to_string()))?;
        let written = self
            .server
            .create(&self.resource(kind), namespace, body, &WriteOptions::default())?;
        Ok(written.object.value())
    }

    /// Changes an object; `change` returns false to leave it as it is. A missing object is no error.
    pub(crate) fn modify(
        &self,
        kind: Plural,
        namespace: &str,
        name: &str,
        endpoint: Endpoint,
        change: impl FnOnce(&mut Value) -> bool,
    ) -> Result<(), ApiError> {
        match self
            .server
            .modify(&self.resource(kind), namespace, name, endpoint, change)
        {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes `status` if it differs from what is stored.
    pub(crate) fn set_status(
        &self,
        kind: Plural,
        namespace: &str,
        name: &str,
        status: &impl Serialize,
    ) -> Result<(), ApiError> {
        let status = serde_json::to_value(status).map_err(|e| ApiError::internal(e.to_string()))?;
        self.modify(kind, namespace, name, Endpoint::Status, |object| {
            if object["status"] == status {
                return false;
            }
            object["status"] = status;
            true
        })
    }

    /// Deletes the object with this uid; one that is gone already is no error.
    pub(crate) fn delete(
        &self,
        kind: Plural,
        namespace: &str,
        name: &str,
        uid: &str,
        options: DeleteOptions,
    ) -> Result<(), ApiError> {
        match self
            .server
            .delete(&self.resource(kind), namespace, name, &options.of_uid(uid))
        {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Binds a pod to a node, as `POST …/pods/X/binding` does.
    pub(crate) fn bind(&self, pod: &PodFacts, node: &str) -> Result<(), ApiError> {
        let binding = json!({"metadata": {"uid": &*pod.uid}, "target": {"kind": "Node", "name": node}});
        self.server
            .bind(&pod.namespace, &pod.name, &binding, &WriteOptions::default())
    }

    /// Publishes an event, or counts it up if the same one was published before.
    pub(crate) fn event(&self, event: &EventDraft<'_>) {
        let namespace = event
            .regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let name = event.name();
        let now = time_text(self.now());
        let resource = self.resource(Plural("", "events"));
        if self.server.get(&resource, &namespace, &name).is_ok() {
            let counted = self
                .server
                .modify(&resource, &namespace, &name, Endpoint::Main, |stored| {
                    stored["count"] = json!(stored["count"].as_i64().unwrap_or(1) + 1);
                    stored["lastTimestamp"] = json!(now);
                    true
                });
            self.report("count up an event", counted.map(|_| ()));
            return;
        }
        let body = json!({
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": event.regarding,
            "type": event.kind.as_str(),
            "reason": event.reason,
            "message": event.message,
            "action": event.action,
            "source": {"component": event.component},
            "reportingComponent": event.component,
            "reportingInstance": event.component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        let created = self
            .server
            .create(&resource, &namespace, body, &WriteOptions::default());
        self.report("publish an event", created.map(|_| ()));
    }

    /// Deletes an event that nobody has added to for `ttl`; otherwise, when to look again.
    pub(crate) fn expire_event(&self, namespace: &str, name: &str, ttl: Duration) -> Option<Timestamp> {
        let resource = self.resource(Plural("", "events"));
        let event = self.server.get(&resource, namespace, name).ok()?.value();
        let times = [
            &event["series"]["lastObservedTime"],
            &event["lastTimestamp"],
            &event["eventTime"],
        ];
        let times = times.into_iter().chain([&event["metadata"]["creationTimestamp"]]);
        let latest = times.filter_map(|t| t.as_str()?.parse::<Timestamp>().ok()).max()?;
        let due = later(latest, ttl);
        if due > self.now() {
            return Some(due);
        }
        let deleted = self
            .server
            .delete(&resource, namespace, name, &DeleteOptions::default());
        self.report("expire an event", deleted.map(|_| ()));
        None
    }

    /// Logs a write that failed; whatever made it fail comes back as an event of its own and is acted on then.
    pub(crate) fn report(&self, what: &str, result: Result<(), ApiError>) {
        if let Err(error) = result {
            tracing::debug!(what, error = %error.message, "a controller could not write");
        }
    }
}

/// Whether an event tells of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event about to be published.
#[derive(Debug)]
pub(crate) struct EventDraft<'e> {
    pub(crate) regarding: ObjectReference,
    pub(crate) kind: EventKind,
    pub(crate) reason: &'e str,
    pub(crate) action: &'e str,
    pub(crate) component: &'e str,
    pub(crate) message: String,
}

impl EventDraft<'_> {
    /// Equal events share a name, so that a repetition is found without a search.
    fn name(&self) -> String {
        use std::hash::{Hash, Hasher};
        let mut hasher = rustc_hash::FxHasher::default();
        (&self.regarding.uid, self.reason, &self.message, self.component).hash(&mut hasher);
        let subject: String = self
            .regarding
            .name
            .as_deref()
            .unwrap_or("unknown")
            .chars()
            .take(200)
            .collect();
        format!("{subject}.{:016x}", hasher.finish())
    }
}

/// A reference to a built-in object, for events.
pub(crate) fn reference(api_version: &str, kind: &str, namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()).filter(|n| !n.is_empty()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Deletes with a propagation policy.
pub(crate) fn propagated(propagation: Propagation) -> DeleteOptions {
    DeleteOptions {
        propagation: Some(propagation),
        ..DeleteOptions::default()
    }
}

/// Sets a condition in `status.conditions`; returns whether anything changed. The transition time moves with `status`.
pub(crate) fn set_condition(object: &mut Value, condition: &Condition<'_>, now: Timestamp) -> bool {
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let now = time_text(now);
    let list = &mut object["status"]["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().expect("made an array above");
    let Some(existing) = list.iter_mut().find(|c| c["type"] == condition.kind) else {
        list.push(json!({
            "type": condition.kind, "status": condition.status, "reason": condition.reason,
            "message": condition.message, "lastTransitionTime": now,
        }));
        return true;
    };
    let same = existing["status"] == condition.status
        && existing["reason"].as_str().unwrap_or_default() == condition.reason
        && existing["message"].as_str().unwrap_or_default() == condition.message;
    if same {
        return false;
    }
    if existing["status"] != condition.status {
        existing["lastTransitionTime"] = json!(now);
    }
    existing["status"] = json!(condition.status);
    existing["reason"] = json!(condition.reason);
    existing["message"] = json!(condition.message);
    true
}

/// A condition about to be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition<'c> {
    pub(crate) kind: &'c str,
    pub(crate) status: &'c str,
    pub(crate) reason: &'c str,
    pub(crate) message: &'c str,
}
