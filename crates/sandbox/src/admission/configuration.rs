//! Namespaces, configuration, services, leases, priority classes and webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{default, immutable, items_mut};
use crate::object::metadata_mut;
use crate::resource::Resource;
use crate::server::Server;
use crate::status::{ApiError, FieldError};

const MAX_DATA: usize = 1024 * 1024;

pub(super) fn on_create(server: &Server, resource: &Resource, body: &mut Value) -> Result<(), ApiError> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => {
            let name = body["metadata"]["name"].clone();
            if !body["spec"].is_object() {
                body["spec"] = json!({});
            }
            body["spec"]["finalizers"] = json!(["kubernetes"]);
            body["status"] = json!({"phase": "Active"});
            let labels = metadata_mut(body).entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = name;
        }
        ("scheduling.k8s.io", "PriorityClass") => one_global_default(server, body)?,
        ("", "Service") => {
            body["status"] = json!({"loadBalancer": {}});
            allocate_address(server, body);
        }
        _ => {}
    }
    defaults(resource, body);
    Ok(())
}

pub(super) fn defaults(resource: &Resource, body: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Secret") => {
            default(body, "type", "Opaque");
            fold_string_data(body);
        }
        ("", "Service") => {
            let spec = &mut body["spec"];
            default(spec, "type", "ClusterIP");
            default(spec, "sessionAffinity", "None");
            default(spec, "internalTrafficPolicy", "Cluster");
            for port in items_mut(spec, "ports") {
                default(port, "protocol", "TCP");
                let number = port["port"].clone();
                default(port, "targetPort", number);
            }
        }
        ("scheduling.k8s.io", "PriorityClass") => default(body, "preemptionPolicy", "PreemptLowerPriority"),
        _ => {}
    }
}

/// `stringData` is only a way to write `data`.
fn fold_string_data(secret: &mut Value) {
    let Some(map) = secret.as_object_mut() else { return };
    let Some(Value::Object(texts)) = map.remove("stringData") else {
        return;
    };
    let data = map.entry("data").or_insert_with(|| json!({}));
    for (key, text) in texts {
        data[key] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}

fn one_global_default(server: &Server, class: &Value) -> Result<(), ApiError> {
    if class["globalDefault"] != true {
        return Ok(());
    }
    let classes = server.store.list("priorityclasses.scheduling.k8s.io", "").objects;
    match classes.iter().find(|other| other.value()["globalDefault"] == true) {
        None => Ok(()),
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.name
            );
            let name = class["metadata"]["name"].as_str().unwrap_or_default();
            Err(ApiError::forbidden("scheduling.k8s.io", "priorityclasses", name, why))
        }
    }
}

/// Gives a service the next free cluster address.
fn allocate_address(server: &Server, service: &mut Value) {
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" || spec["clusterIP"].as_str().is_some_and(|address| !address.is_empty()) {
        if let Some(address) = spec["clusterIP"].as_str().map(str::to_owned) {
            default(spec, "clusterIPs", json!([address]));
        }
        return;
    }
    let number = server.store.revision() % 65_000 + 10;
    let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
    spec["clusterIP"] = address.as_str().into();
    spec["clusterIPs"] = json!([address]);
    spec["ipFamilies"] = json!(["IPv4"]);
    spec["ipFamilyPolicy"] = "SingleStack".into();
}

/// A service keeps its address if an update does not name one.
pub(super) fn keep_address(service: &mut Value, old: &Value) {
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = old["spec"].get(key) {
            default(&mut service["spec"], key, value.clone());
        }
    }
}

pub(super) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "ConfigMap" | "Secret") => {
            errors.extend(immutable_data(body, old));
            let size = ["data", "binaryData"]
                .iter()
                .filter_map(|key| body[key].as_object())
                .flatten()
                .map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len())
                .sum::<usize>();
            if size > MAX_DATA {
                errors.push(FieldError::too_long("data", MAX_DATA));
            }
            if resource.kind == "Secret" {
                errors.extend(immutable("type", body, old));
            }
        }
        ("coordination.k8s.io", "Lease") => {
            let duration = &body["spec"]["leaseDurationSeconds"];
            if duration.as_i64().is_some_and(|seconds| seconds <= 0) {
                let why = "must be greater than 0";
                errors.push(FieldError::invalid("spec.leaseDurationSeconds", duration, why));
            }
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            if let Some(old) = old {
                if body["value"] != old["value"] {
                    errors.push(FieldError::forbidden("value", "may not be changed in an update."));
                }
                errors.extend(immutable("preemptionPolicy", body, Some(old)));
            }
        }
        ("", "Service") => {
            let ports = super::items(&body["spec"], "ports");
            let headless = body["spec"]["clusterIP"] == "None" || body["spec"]["type"] == "ExternalName";
            if ports.is_empty() && !headless {
                errors.push(FieldError::required("spec.ports", ""));
            }
        }
        _ => {}
    }
    errors
}

fn immutable_data(body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return Vec::new();
    };
    let why = "field is immutable when `immutable` is set";
    ["immutable", "data", "binaryData"]
        .into_iter()
        .filter(|key| body[*key] != old[*key])
        .map(|key| FieldError::forbidden(key, why))
        .collect()
}
