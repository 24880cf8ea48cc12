//! What the API server adds to objects and refuses about them, kind by kind.

mod configuration;
mod devices;
mod event;
mod metadata;
mod node;
mod pod;
mod pod_spec;
mod storage;
mod workload;

use serde_json::{Value, json};

use crate::object::Object;
use crate::resource::{Resource, Source};
use crate::server::{Endpoint, Server};
use crate::status::{ApiError, FieldError};

/// Refuses new objects in a namespace that is missing or on its way out.
pub(crate) fn namespace_accepts(
    server: &Server,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    if !resource.is_namespaced() {
        return Ok(());
    }
    let Some(found) = server.store.get("namespaces", namespace) else {
        return Err(ApiError::not_found("", "namespaces", namespace));
    };
    if !found.terminating {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = format!("namespace {namespace} is being terminated");
    Err(
        ApiError::forbidden(&resource.group, &resource.plural, name, why).with_cause(
            "NamespaceTerminating",
            cause,
            "metadata.namespace",
        ),
    )
}

/// Fills in what a new object leaves open.
pub(crate) fn on_create(server: &Server, resource: &Resource, body: &mut Value) -> Result<(), ApiError> {
    if let Source::Custom(version) = &resource.source {
        if resource.has_status()
            && let Some(map) = body.as_object_mut()
        {
            map.remove("status");
        }
        // A status that was taken away may have defaults of its own.
        version.schema.default(body);
        return Ok(());
    }
    let kind = resource.kind.as_str();
    if resource.has_status() && !matches!(kind, "Node") {
        body["status"] = json!({});
    }
    match (resource.group.as_str(), kind) {
        ("", "Pod") => pod::on_create(server, body)?,
        ("", "Node") => node::on_create(body),
        ("apps" | "batch" | "policy", _) => workload::on_create(resource, body),
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::on_create(server, resource, body);
        }
        ("resource.k8s.io", _) => devices::on_create(resource, body),
        _ => configuration::on_create(server, resource, body)?,
    }
    Ok(())
}

/// Completes a changed object.
pub(crate) fn on_update(resource: &Resource, endpoint: Endpoint, body: &mut Value, old: &Value) {
    if resource.is_custom() {
        return;
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pod::on_update(body),
        ("", "Namespace") if endpoint != Endpoint::Finalize => {
            body["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
        }
        ("apps" | "batch" | "policy", _) => workload::on_update(resource, body),
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::defaults(resource, body);
        }
        ("resource.k8s.io", _) => devices::defaults(resource, body),
        _ => {
            if resource.is("", "Service") {
                configuration::keep_address(body, old);
            }
            configuration::defaults(resource, body);
        }
    }
}

/// Everything that is wrong with an object that is about to be stored.
pub(crate) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = metadata::validate(resource, body, old);
    if let Source::Custom(version) = &resource.source {
        let typed = |value: &Value| {
            let mut value = value.clone();
            resource.stamp(&mut value);
            value
        };
        errors.extend(version.schema.validate(&typed(body), old.map(typed).as_ref()));
        return errors;
    }
    errors.extend(match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pod::validate(body, old),
        ("", "Node") => node::validate(body, old),
        ("apps" | "batch" | "policy", _) => workload::validate(resource, body, old),
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::validate(resource, body, old)
        }
        ("resource.k8s.io", _) => devices::validate(resource, body, old),
        (_, "Event") => event::validate(resource, body, old),
        _ => configuration::validate(resource, body, old),
    });
    errors
}

/// Refuses the deletion of namespaces that a cluster can't do without.
pub(crate) fn may_delete(resource: &Resource, object: &Object) -> Result<(), ApiError> {
    if resource.is("", "Namespace") && ["default", "kube-system", "kube-public"].contains(&&*object.name) {
        return Err(ApiError::forbidden(
            "",
            "namespaces",
            &object.name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

/// Sets a field of a map if it is not there yet.
fn default(map: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = map.as_object_mut() {
        map.entry(key).or_insert_with(|| value.into());
    }
}

/// The items of a list that may be missing.
fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn items_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut [Value] {
    value
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .map_or(&mut [], Vec::as_mut_slice)
}

/// 422 for a field that may not change.
fn immutable(field: &str, body: &Value, old: Option<&Value>) -> Option<FieldError> {
    let pointer = format!("/{}", field.replace('.', "/"));
    let (new, old) = (body.pointer(&pointer), old?.pointer(&pointer));
    (new != old).then(|| FieldError::invalid(field, new.unwrap_or(&Value::Null), "field is immutable"))
}
