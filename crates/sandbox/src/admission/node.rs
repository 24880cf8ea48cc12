//! Nodes.

use serde_json::{Value, json};

use super::items;
use crate::status::FieldError;

pub(super) fn on_create(node: &mut Value) {
    if !node["spec"].is_object() {
        node["spec"] = json!({});
    }
    // Whatever its conditions say: the node controller takes the taint away once the node is ready.
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    match node["spec"]["taints"].as_array_mut() {
        Some(taints) => {
            let same = |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
            if !taints.iter().any(same) {
                taints.push(taint);
            }
        }
        None => node["spec"]["taints"] = json!([taint]),
    }
    if !node["status"].is_object() {
        node["status"] = json!({});
    }
    if node["status"]["allocatable"].is_null() && node["status"]["capacity"].is_object() {
        node["status"]["allocatable"] = node["status"]["capacity"].clone();
    }
}

pub(super) fn validate(node: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let taints = items(&node["spec"], "taints");
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("spec.taints[{index}]");
        if taint["key"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::invalid(
                format!("{path}.key"),
                &taint["key"],
                "name part must be non-empty",
            ));
        }
        if !matches!(
            taint["effect"].as_str(),
            Some("NoSchedule" | "PreferNoSchedule" | "NoExecute")
        ) {
            let supported = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            errors.push(FieldError::not_supported(
                format!("{path}.effect"),
                &taint["effect"],
                supported,
            ));
        }
        let same = |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if taints[..index].iter().any(same) {
            // The real server says metadata here, too.
            errors.push(FieldError::duplicate(format!("metadata.taints[{index}]"), taint));
        }
    }
    let provider = |node: &Value| node["spec"]["providerID"].as_str().unwrap_or_default().to_owned();
    if let Some(before) = old.map(provider)
        && !before.is_empty()
        && provider(node) != before
    {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.push(FieldError::forbidden("spec.providerID", why));
    }
    errors
}
