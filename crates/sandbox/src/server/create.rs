//! Creating objects.

use std::sync::Arc;

use serde_json::Value;

use super::definitions::DEFINITIONS;
use super::normalise::{judge_unknown, normalise};
use super::{Outcome, Server, WriteOptions, Written};
use crate::admission;
use crate::object::{Object, key, metadata_mut};
use crate::patch::apply::FieldOwners;
use crate::resource::{Generation, Resource};
use crate::status::{ApiError, FieldError};

/// `generateName` is cut so that the suffix still fits into a DNS label.
const MAX_GENERATED_BASE: usize = 58;
const NAME_ATTEMPTS: usize = 8;

impl Server {
    /// Creates an object in `namespace` (empty for cluster-scoped kinds).
    pub fn create(
        &self,
        resource: &Resource,
        namespace: &str,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let _writer = self.writer.lock();
        self.create_locked(resource, namespace, body, options, None)
    }

    /// Creates an object for a caller that already holds the writer's lock.
    pub(super) fn create_locked(
        &self,
        resource: &Resource,
        namespace: &str,
        mut body: Value,
        options: &WriteOptions,
        owners: Option<Arc<FieldOwners>>,
    ) -> Result<Written, ApiError> {
        if body["metadata"]["resourceVersion"]
            .as_str()
            .is_some_and(|version| !version.is_empty())
        {
            return Err(ApiError::internal(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let unknown = normalise(resource, &mut body)?;
        let warnings = judge_unknown(&unknown, options)?;
        self.own_metadata(resource, namespace, &mut body);
        let name = self.choose_name(resource, namespace, &mut body)?;
        admission::namespace_accepts(self, resource, namespace, &name)?;
        if *resource.collection == *DEFINITIONS {
            Self::check_definition(&mut body, &name)?;
        }
        admission::on_create(self, resource, &mut body)?;
        let errors = admission::validate(resource, &body, None);
        if !errors.is_empty() {
            return Err(ApiError::invalid(&resource.group, &resource.kind, &name, errors));
        }
        if let Some(existing) = self.store.get(&resource.collection, &key(namespace, &name)) {
            let mut error = ApiError::already_exists(&resource.group, &resource.plural, &name);
            if existing.terminating {
                error.message = format!("object is being deleted: {}", error.message);
            }
            return Err(error);
        }
        let object = if options.dry_run {
            Arc::new(Object::new(body, 0, &resource.fields, owners))
        } else {
            let object = self.store.put(&resource.collection, |revision| {
                Object::new(body, revision, &resource.fields, owners)
            });
            self.after_write(resource, &object);
            object
        };
        Ok(Written {
            object,
            outcome: Outcome::Created,
            warnings,
        })
    }

    /// Sets what only the server may set, and drops what a client may not.
    fn own_metadata(&self, resource: &Resource, namespace: &str, body: &mut Value) {
        let uid = self.new_uid();
        let now = self.now_text();
        let metadata = metadata_mut(body);
        for key in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "managedFields",
            "generation",
        ] {
            metadata.remove(key);
        }
        metadata.insert("uid".into(), uid.into());
        metadata.insert("creationTimestamp".into(), now);
        if resource.generation == Generation::Counted {
            metadata.insert("generation".into(), 1.into());
        }
        if resource.is_namespaced() {
            metadata.insert("namespace".into(), namespace.into());
        } else {
            metadata.remove("namespace");
        }
    }

    fn choose_name(&self, resource: &Resource, namespace: &str, body: &mut Value) -> Result<String, ApiError> {
        let metadata = metadata_mut(body);
        if let Some(name) = metadata
            .get("name")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
        {
            return Ok(name.to_owned());
        }
        let base = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
        if base.is_empty() {
            let error = FieldError::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(&resource.group, &resource.kind, "", vec![error]));
        }
        let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
        let mut name = String::new();
        for _ in 0..NAME_ATTEMPTS {
            name = format!("{base}{}", self.random_suffix());
            if self.store.get(&resource.collection, &key(namespace, &name)).is_none() {
                break;
            }
        }
        metadata.insert("name".into(), name.as_str().into());
        Ok(name)
    }
}
