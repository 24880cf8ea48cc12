//! Volumes, claims and storage classes.

use serde_json::{Value, json};

use super::{default, immutable};
use crate::object::metadata_mut;
use crate::resource::Resource;
use crate::server::Server;
use crate::status::FieldError;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

pub(super) fn on_create(server: &Server, resource: &Resource, body: &mut Value) {
    match resource.kind.as_str() {
        "PersistentVolumeClaim" => {
            add_finalizer(body, "kubernetes.io/pvc-protection");
            if body["spec"]["storageClassName"].is_null()
                && let Some(class) = default_class(server)
            {
                body["spec"]["storageClassName"] = class.into();
            }
            body["status"] = json!({"phase": "Pending"});
        }
        "PersistentVolume" => {
            add_finalizer(body, "kubernetes.io/pv-protection");
            body["status"] = json!({"phase": "Pending"});
        }
        "VolumeAttachment" => body["status"] = json!({"attached": false}),
        _ => {}
    }
    defaults(resource, body);
}

pub(super) fn defaults(resource: &Resource, body: &mut Value) {
    match resource.kind.as_str() {
        "PersistentVolumeClaim" => default(&mut body["spec"], "volumeMode", "Filesystem"),
        "PersistentVolume" => {
            default(&mut body["spec"], "volumeMode", "Filesystem");
            default(&mut body["spec"], "persistentVolumeReclaimPolicy", "Retain");
        }
        "StorageClass" => {
            default(body, "reclaimPolicy", "Delete");
            default(body, "volumeBindingMode", "Immediate");
        }
        _ => {}
    }
}

fn add_finalizer(body: &mut Value, finalizer: &str) {
    let list = metadata_mut(body).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut().filter(|list| !list.contains(&finalizer.into())) {
        list.push(finalizer.into());
    }
}

/// The newest default class.
fn default_class(server: &Server) -> Option<String> {
    let classes = server.store.list("storageclasses.storage.k8s.io", "").objects;
    classes
        .iter()
        .map(|class| class.value())
        .filter(|class| class["metadata"]["annotations"][DEFAULT_CLASS] == "true")
        .max_by_key(|class| {
            class["metadata"]["creationTimestamp"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .and_then(|class| class["metadata"]["name"].as_str().map(str::to_owned))
}

pub(super) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match resource.kind.as_str() {
        "PersistentVolumeClaim" => {
            if super::items(&body["spec"], "accessModes").is_empty() {
                errors.push(FieldError::required(
                    "spec.accessModes",
                    "at least 1 access mode is required",
                ));
            }
            if body["spec"]["resources"]["requests"]["storage"].is_null() {
                errors.push(FieldError::required("spec.resources[storage]", ""));
            }
        }
        "PersistentVolume" => {
            if super::items(&body["spec"], "accessModes").is_empty() {
                errors.push(FieldError::required("spec.accessModes", ""));
            }
            if body["spec"]["capacity"]["storage"].is_null() {
                errors.push(FieldError::required("spec.capacity", ""));
            }
        }
        "StorageClass" => {
            if body["provisioner"].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::required("provisioner", ""));
            }
            if let Some(old) = old {
                let why = "updates to parameters are forbidden.";
                if body["parameters"] != old["parameters"] {
                    errors.push(FieldError::forbidden("parameters", why));
                }
                if body["provisioner"] != old["provisioner"] {
                    errors.push(FieldError::forbidden(
                        "provisioner",
                        "updates to provisioner are forbidden.",
                    ));
                }
                if body["reclaimPolicy"] != old["reclaimPolicy"] {
                    errors.push(FieldError::forbidden(
                        "reclaimPolicy",
                        "updates to reclaimPolicy are forbidden.",
                    ));
                }
                errors.extend(immutable("volumeBindingMode", body, Some(old)));
            }
        }
        "VolumeAttachment" => errors.extend(immutable("spec", body, old)),
        _ => {}
    }
    errors
}
