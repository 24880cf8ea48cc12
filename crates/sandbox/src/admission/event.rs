//! Events of both groups; bodies are in the core form here.

use serde_json::Value;

use crate::events;
use crate::resource::Resource;
use crate::status::FieldError;

pub(super) fn validate(resource: &Resource, event: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = namespace_errors(event);
    if resource.group != events::GROUP {
        return errors;
    }
    if let Some(old) = old {
        errors.extend(change_errors(event, old));
        return errors;
    }
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    if text("eventTime").is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    }
    for (core, field) in [
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
        ("action", "action"),
        ("reason", "reason"),
    ] {
        if text(core).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        errors.push(FieldError::invalid(
            "type",
            &event["type"],
            "has invalid value: must be Normal or Warning",
        ));
    }
    if text("message").len() > 1024 {
        errors.push(FieldError::invalid(
            "message",
            &"".into(),
            "can have at most 1024 characters",
        ));
    }
    for (core, field) in [
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
    ] {
        if !event[core].is_null() {
            errors.push(FieldError::invalid(field, &event[core], "needs to be unset"));
        }
    }
    if event["count"].as_i64().unwrap_or(0) != 0 {
        errors.push(FieldError::invalid(
            "deprecatedCount",
            &event["count"],
            "needs to be unset",
        ));
    }
    errors
}

/// An event lives where the object lives; events of cluster-scoped objects live in `default` or `kube-system`.
fn namespace_errors(event: &Value) -> Vec<FieldError> {
    let own = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let regarded = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    let has_time = event["eventTime"].as_str().is_some();
    let right = if regarded.is_empty() {
        !has_time || matches!(own, "default" | "kube-system")
    } else {
        own == regarded
    };
    if right {
        return Vec::new();
    }
    let value = event["involvedObject"]["namespace"].clone();
    vec![FieldError::invalid(
        "involvedObject.namespace",
        &value,
        "does not match event.namespace",
    )]
}

/// Only `series` and metadata may change through `events.k8s.io`.
fn change_errors(event: &Value, old: &Value) -> Vec<FieldError> {
    let rest = |event: &Value| {
        let mut event = event.clone();
        if let Some(map) = event.as_object_mut() {
            map.remove("series");
            map.remove("metadata");
        }
        event
    };
    let (new, before) = (rest(event), rest(old));
    let keys = new
        .as_object()
        .into_iter()
        .chain(before.as_object())
        .flat_map(|map| map.keys());
    let mut changed: Vec<&String> = keys.filter(|key| new[*key] != before[*key]).collect();
    changed.sort();
    changed.dedup();
    changed
        .into_iter()
        .map(|key| FieldError::invalid(key.as_str(), &new[key], "field is immutable"))
        .collect()
}
