//! Dynamic resource allocation: device classes, claims and slices, stored but not allocated.

use serde_json::Value;

use super::{default, immutable, items_mut};
use crate::resource::Resource;
use crate::status::FieldError;

pub(super) fn on_create(resource: &Resource, body: &mut Value) {
    defaults(resource, body);
}

pub(super) fn defaults(resource: &Resource, body: &mut Value) {
    let spec = match resource.kind.as_str() {
        "ResourceClaim" => body.get_mut("spec"),
        "ResourceClaimTemplate" => body.pointer_mut("/spec/spec"),
        _ => None,
    };
    let Some(devices) = spec.and_then(|spec| spec.get_mut("devices")) else {
        return;
    };
    for request in items_mut(devices, "requests") {
        if let Some(exactly) = request.get_mut("exactly") {
            request_defaults(exactly);
        }
        for alternative in items_mut(request, "firstAvailable") {
            request_defaults(alternative);
        }
    }
}

fn request_defaults(request: &mut Value) {
    default(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" {
        default(request, "count", 1);
    }
}

pub(super) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match resource.kind.as_str() {
        "ResourceClaim" | "ResourceClaimTemplate" => immutable("spec", body, old).into_iter().collect(),
        _ => Vec::new(),
    }
}
