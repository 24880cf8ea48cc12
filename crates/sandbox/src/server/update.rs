//! Replacing objects: by PUT, by the result of a patch, or through a subresource.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::definitions::DEFINITIONS;
use super::normalise::{judge_unknown, normalise};
use super::{Endpoint, Outcome, Server, WriteOptions, Written};
use crate::admission;
use crate::object::{Object, metadata_mut};
use crate::patch::apply::FieldOwners;
use crate::resource::{Generation, Resource, UpdateRules};
use crate::status::{ApiError, FieldError};

impl Server {
    /// Replaces an object (PUT). With [`Endpoint::Status`] only its status counts.
    pub fn update(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        endpoint: Endpoint,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let _writer = self.writer.lock();
        let upserts = matches!(resource.update, UpdateRules::Upsert | UpdateRules::VersionedUpsert);
        let current = match self.get(resource, namespace, name) {
            Ok(current) => current,
            Err(_) if upserts && endpoint == Endpoint::Main => {
                let mut body = body;
                metadata_mut(&mut body).remove("resourceVersion");
                metadata_mut(&mut body).insert("name".into(), name.into());
                return self.create_locked(resource, namespace, body, options, None);
            }
            Err(error) => return Err(error),
        };
        self.check_version(resource, &current, &body)?;
        let uid = body["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() && *uid != *current.uid {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                current.uid
            );
            return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
        }
        self.replace_locked(resource, &current, endpoint, body, options, current.owners.clone())
    }

    /// Replaces an object by what `change` makes of it, whatever its version is: for controllers of this process.
    ///
    /// `change` returns `false` to leave the object as it is.
    pub fn modify(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        endpoint: Endpoint,
        change: impl FnOnce(&mut Value) -> bool,
    ) -> Result<Written, ApiError> {
        let _writer = self.writer.lock();
        let current = self.get(resource, namespace, name)?;
        let mut value = resource.project(&current);
        if !change(&mut value) {
            return Ok(Written {
                object: current,
                outcome: Outcome::Unchanged,
                warnings: Vec::new(),
            });
        }
        let owners = current.owners.clone();
        self.replace_locked(resource, &current, endpoint, value, &WriteOptions::default(), owners)
    }

    /// Compares the resourceVersion of a PUT with the stored one.
    pub(super) fn check_version(&self, resource: &Resource, current: &Object, body: &Value) -> Result<(), ApiError> {
        let given = body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if given.is_empty() || given == "0" {
            return match resource.update {
                UpdateRules::Unconditional | UpdateRules::Upsert => Ok(()),
                UpdateRules::Versioned | UpdateRules::VersionedUpsert => {
                    let error =
                        FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
                    Err(ApiError::invalid(
                        &resource.group,
                        &resource.plural,
                        &current.name,
                        vec![error],
                    ))
                }
            };
        }
        let version: u64 = given
            .parse()
            .map_err(|_| ApiError::internal(format!("strconv.ParseUint: parsing {given:?}: invalid syntax")))?;
        if version == current.resource_version {
            return Ok(());
        }
        Err(ApiError::modified(&resource.group, &resource.plural, &current.name))
    }

    /// Stores `body` in place of `current` for a caller that holds the writer's lock and checked the version.
    pub(super) fn replace_locked(
        &self,
        resource: &Resource,
        current: &Arc<Object>,
        endpoint: Endpoint,
        mut body: Value,
        options: &WriteOptions,
        owners: Option<Arc<FieldOwners>>,
    ) -> Result<Written, ApiError> {
        let unknown = normalise(resource, &mut body)?;
        let warnings = judge_unknown(&unknown, options)?;
        let old = current.value();
        keep_server_metadata(&mut body, &old);
        separate_status(resource, endpoint, &mut body, &old);
        if *resource.collection == *DEFINITIONS {
            Self::check_definition(&mut body, &current.name)?;
        }
        admission::on_update(resource, endpoint, &mut body, &old);
        count_generation(resource, &mut body, &old);
        let mut errors = new_finalizers(&body, &old);
        errors.extend(admission::validate(resource, &body, Some(&old)));
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                &resource.group,
                &resource.kind,
                &current.name,
                errors,
            ));
        }
        if body == old && owners == current.owners {
            return Ok(Written {
                object: Arc::clone(current),
                outcome: Outcome::Unchanged,
                warnings,
            });
        }
        if options.dry_run {
            let object = Object::new(body, current.resource_version, &resource.fields, owners);
            return Ok(Written {
                object: Arc::new(object),
                outcome: Outcome::Updated,
                warnings,
            });
        }
        if is_released(resource, &body) {
            // The answer shows the object as written, at its old version (sandbox.md §2.8).
            let object = Arc::new(Object::new(body, current.resource_version, &resource.fields, owners));
            self.remove_locked(resource, current);
            return Ok(Written {
                object,
                outcome: Outcome::Removed,
                warnings,
            });
        }
        let object = self.store.put(&resource.collection, |revision| {
            Object::new(body, revision, &resource.fields, owners)
        });
        self.after_write(resource, &object);
        Ok(Written {
            object,
            outcome: Outcome::Updated,
            warnings,
        })
    }
}

/// Restores what a client can't change by writing it.
fn keep_server_metadata(body: &mut Value, old: &Value) {
    let metadata = metadata_mut(body);
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        match old["metadata"].get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

/// The main endpoint does not write `status`, and `/status` writes little else.
fn separate_status(resource: &Resource, endpoint: Endpoint, body: &mut Value, old: &Value) {
    match endpoint {
        Endpoint::Main | Endpoint::Finalize if !resource.has_status() => {}
        Endpoint::Main | Endpoint::Finalize => copy_field(body, old, "status"),
        Endpoint::Status => {
            let status = body.get("status").cloned();
            let metadata = body["metadata"].take();
            *body = old.clone();
            if let Some(map) = body.as_object_mut() {
                match status {
                    Some(status) => map.insert("status".into(), status),
                    None => map.remove("status"),
                };
                if !resource.is_custom() {
                    map.insert("metadata".into(), metadata);
                }
            }
        }
    }
}

fn copy_field(body: &mut Value, old: &Value, field: &str) {
    let Some(map) = body.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => map.insert(field.into(), value.clone()),
        None => map.remove(field),
    };
}

/// Raises the generation when anything but metadata and status changed.
fn count_generation(resource: &Resource, body: &mut Value, old: &Value) {
    if resource.generation == Generation::Absent {
        return;
    }
    let counted = |value: &Value| -> Map<String, Value> {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if resource.has_status() {
            map.remove("status");
        }
        map
    };
    if counted(body) != counted(old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        metadata_mut(body).insert("generation".into(), generation.into());
    }
}

fn new_finalizers(body: &Value, old: &Value) -> Vec<FieldError> {
    if old["metadata"].get("deletionTimestamp").is_none() {
        return Vec::new();
    }
    let known = finalizers(old);
    let added: Vec<String> = finalizers(body)
        .iter()
        .filter(|name| !known.contains(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "metadata.finalizers",
        &format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        ),
    )]
}

pub(super) fn finalizers(value: &Value) -> Vec<&str> {
    value["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Whether a terminating object has nothing left that keeps it.
fn is_released(resource: &Resource, body: &Value) -> bool {
    let metadata = &body["metadata"];
    let waits_for_kubelet = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    let namespace_content = resource.is("", "Namespace")
        && body["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
    metadata.get("deletionTimestamp").is_some()
        && finalizers(body).is_empty()
        && !waits_for_kubelet
        && !namespace_content
}
