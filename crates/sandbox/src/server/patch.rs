//! Patching objects: the patch is applied to the stored object, and the result goes the way of an update.

use std::sync::Arc;

use serde_json::Value;

use super::normalise::{canonical_quantities, normalise};
use super::{Endpoint, FieldValidation, Server, WriteOptions, Written};
use crate::object::{Object, metadata_mut};
use crate::patch::apply::{FieldOwners, Manager, OnConflict};
use crate::patch::lists::ListRules;
use crate::patch::{apply, json, merge, strategic};
use crate::resource::Resource;
use crate::status::{ApiError, FieldError};

/// A decoded patch.
#[derive(Clone, Debug)]
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    Apply { wanted: Value, force: bool },
}

impl Server {
    /// Changes an object by a patch; an apply patch creates it if it is missing.
    pub fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        endpoint: Endpoint,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let _writer = self.writer.lock();
        let current = match (self.get(resource, namespace, name), patch) {
            (Ok(current), _) => current,
            (Err(_), Patch::Apply { wanted, .. }) if endpoint == Endpoint::Main => {
                return self.apply_new(resource, namespace, name, wanted, options);
            }
            (Err(error), _) => return Err(error),
        };
        let mut value = resource.project(&current);
        resource.stamp(&mut value);
        let mut owners = current.owners.clone();
        match patch {
            Patch::Json(operations) => json::apply(&mut value, operations)?,
            Patch::Merge(change) => merge::merge(&mut value, change),
            Patch::Strategic(change) => strategic::apply(&mut value, change, ListRules::of(resource))?,
            Patch::Apply { wanted, force } => {
                owners = Some(self.apply_existing(resource, &current, &mut value, wanted, *force, endpoint, options)?);
            }
        }
        check_identity(resource, &current, &value)?;
        let given = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !given.is_empty() && given != current.resource_version.to_string() {
            return Err(ApiError::modified(&resource.group, &resource.plural, name));
        }
        self.replace_locked(resource, &current, endpoint, value, options, owners)
            .map_err(|error| strict_patch_error(resource, name, error))
    }

    fn apply_new(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        wanted: &Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        if let Some(uid) = wanted["metadata"]["uid"].as_str() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
        }
        let wanted = prepare(resource, namespace, name, wanted, options)?;
        let manager = Manager {
            name: options.field_manager.clone(),
            subresource: String::new(),
        };
        let mut fresh = Value::Object(serde_json::Map::new());
        let rules = ListRules::of(resource);
        let owners = apply::apply(
            &mut fresh,
            &wanted,
            rules,
            &manager,
            &FieldOwners::default(),
            OnConflict::Refuse,
        )?;
        metadata_mut(&mut fresh).insert("name".into(), name.into());
        metadata_mut(&mut fresh).remove("resourceVersion");
        self.create_locked(resource, namespace, fresh, options, Some(Arc::new(owners)))
    }

    #[allow(clippy::too_many_arguments)]
    fn apply_existing(
        &self,
        resource: &Resource,
        current: &Object,
        value: &mut Value,
        wanted: &Value,
        force: bool,
        endpoint: Endpoint,
        options: &WriteOptions,
    ) -> Result<Arc<FieldOwners>, ApiError> {
        let wanted = prepare(resource, &current.namespace, &current.name, wanted, options)?;
        let subresource = match endpoint {
            Endpoint::Main => "",
            Endpoint::Status => "status",
            Endpoint::Finalize => "finalize",
        };
        let manager = Manager {
            name: options.field_manager.clone(),
            subresource: subresource.into(),
        };
        let before = current.owners.as_deref().cloned().unwrap_or_default();
        let on_conflict = if force {
            OnConflict::TakeOver
        } else {
            OnConflict::Refuse
        };
        apply::apply(value, &wanted, ListRules::of(resource), &manager, &before, on_conflict).map(Arc::new)
    }
}

/// Checks an applied configuration against the kind before it is merged.
fn prepare(
    resource: &Resource,
    namespace: &str,
    name: &str,
    wanted: &Value,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    if wanted["metadata"]
        .get("managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let mut checked = wanted.clone();
    let describe = |problem: &str| {
        let place = if namespace.is_empty() {
            format!("/{name}")
        } else {
            format!("{namespace}/{name}")
        };
        ApiError::internal(format!(
            "failed to create typed patch object ({place}; {}, Kind={}): {problem}",
            resource.api_version(),
            resource.kind
        ))
    };
    let unknown = normalise(resource, &mut checked).map_err(|error| describe(&error.message))?;
    if let Some(path) = unknown.first()
        && options.field_validation != FieldValidation::Ignore
    {
        return Err(describe(&format!(".{path}: field not declared in schema")));
    }
    let mut wanted = wanted.clone();
    canonical_quantities(resource, &mut wanted);
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| !value.is_null());
    }
    Ok(wanted)
}

fn check_identity(resource: &Resource, current: &Object, value: &Value) -> Result<(), ApiError> {
    let metadata = &value["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if name != &*current.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            current.name
        );
        return Err(ApiError::bad_request(message));
    }
    if metadata["namespace"].as_str().unwrap_or_default() != &*current.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let uid = metadata["uid"].as_str().unwrap_or_default();
    if uid != &*current.uid {
        let error = FieldError::invalid("metadata.uid", &metadata["uid"], "field is immutable");
        return Err(ApiError::invalid(&resource.group, &resource.kind, name, vec![error]));
    }
    Ok(())
}

/// Unknown fields in a strict patch are a 422 about the field `patch`, not the 400 of a create.
fn strict_patch_error(resource: &Resource, name: &str, error: ApiError) -> ApiError {
    match error.message.strip_prefix("strict decoding error: ") {
        Some(_) => {
            let cause = FieldError::invalid_without_value("patch", &error.message);
            ApiError::invalid(&resource.group, &resource.kind, name, vec![cause])
        }
        None => error,
    }
}
