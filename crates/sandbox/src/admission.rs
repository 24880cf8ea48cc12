//! What the API server adds to objects and refuses about them, kind by kind.

use serde_json::Value;

use crate::object::Object;
use crate::resource::Resource;
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
pub(crate) fn on_create(
    _server: &Server,
    resource: &Resource,
    body: &mut Value,
    _warnings: &mut [String],
) -> Result<(), ApiError> {
    if resource.is("", "Namespace") {
        body["spec"]["finalizers"] = serde_json::json!(["kubernetes"]);
        body["status"]["phase"] = "Active".into();
        let name = body["metadata"]["name"].clone();
        body["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    }
    Ok(())
}

/// Checks and completes a changed object.
pub(crate) fn on_update(
    _server: &Server,
    _resource: &Resource,
    _endpoint: Endpoint,
    _body: &mut Value,
    _old: &Value,
    _warnings: &mut [String],
) -> Result<(), ApiError> {
    Ok(())
}

/// Everything that is wrong with an object that is about to be stored.
pub(crate) fn validate(_resource: &Resource, _body: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    Vec::new()
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
