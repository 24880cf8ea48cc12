//! Brings an incoming tree into the form that is stored, and says which of its fields nobody knows.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

use crate::events;
use crate::resource::{Resource, Source};
use crate::server::WriteOptions;
use crate::status::ApiError;

/// What happens to fields that the kind does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Round-trips a built-in object through its type; returns the unknown fields' paths.
pub(crate) fn normalise(resource: &Resource, value: &mut Value) -> Result<Vec<String>, ApiError> {
    match &resource.source {
        Source::BuiltIn(through) => {
            resource.stamp(value);
            canonical_quantities(resource, value);
            let unusable = |problem: String| {
                ApiError::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: {problem}",
                    resource.kind, resource.version, resource.kind
                ))
            };
            if let Some(time) = coarse_micro_time(resource, value) {
                let layout = "2006-01-02T15:04:05.000000Z07:00";
                return Err(unusable(format!(
                    "parsing time {time:?} as {layout:?}: six fractional digits are needed"
                )));
            }
            let before = value.clone();
            let typed = through(std::mem::take(value)).map_err(|error| unusable(error.to_string()))?;
            *value = typed;
            let mut unknown = Vec::new();
            unknown_fields(&before, value, "", &mut unknown);
            // A default in a CRD's schema may well be an empty list.
            if resource.kind != "CustomResourceDefinition" {
                drop_empty(value);
            }
            strip_served(value);
            if resource.group == events::GROUP {
                *value = events::to_core(value.take());
            }
            Ok(unknown)
        }
        Source::Custom(version) => {
            let unknown = version.schema.prune(value);
            version.schema.default(value);
            custom_metadata(resource, value)?;
            strip_served(value);
            Ok(unknown)
        }
    }
}

/// Removes what is not stored: the type, which the request tells, and fields that only old clients send.
fn strip_served(value: &mut Value) {
    let Some(map) = value.as_object_mut() else { return };
    map.remove("kind");
    map.remove("apiVersion");
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
    }
}

/// Metadata of custom resources is typed although the rest is not.
fn custom_metadata(resource: &Resource, value: &mut Value) -> Result<(), ApiError> {
    let Some(metadata) = value.get_mut("metadata") else {
        return Ok(());
    };
    let typed = serde_json::from_value::<ObjectMeta>(metadata.take()).and_then(serde_json::to_value);
    *metadata = typed.map_err(|error| {
        ApiError::bad_request(format!(
            "{} cannot be handled as a {}: {error}",
            resource.kind, resource.kind
        ))
    })?;
    drop_empty(metadata);
    Ok(())
}

/// Turns unknown and repeated fields into warnings or a refusal, as the request asked.
pub(crate) fn judge_unknown(unknown: &[String], options: &WriteOptions) -> Result<Vec<String>, ApiError> {
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let repeated = options
        .repeated_fields
        .iter()
        .map(|path| format!("duplicate field {path:?}"));
    let sentences: Vec<String> = repeated.chain(unknown).collect();
    match options.field_validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(sentences),
        FieldValidation::Strict if sentences.is_empty() => Ok(Vec::new()),
        FieldValidation::Strict => Err(ApiError::bad_request(format!(
            "strict decoding error: {}",
            sentences.join(", ")
        ))),
    }
}

fn unknown_fields(before: &Value, after: &Value, path: &str, unknown: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match after.get(key) {
                    Some(kept) => unknown_fields(value, kept, &path, unknown),
                    None if value.is_null() => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                unknown_fields(before, after, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Maps that Go leaves out when they are empty, so that an empty one is no change.
const OMITTED_WHEN_EMPTY: &[&str] = &[
    "labels",
    "annotations",
    "nodeSelector",
    "matchLabels",
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "data",
    "binaryData",
    "stringData",
    "disruptedPods",
    "parameters",
];

fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                drop_empty(value);
                match value {
                    Value::Null => false,
                    Value::Array(items) => !items.is_empty() || key == "containers",
                    Value::Object(inner) => !inner.is_empty() || !OMITTED_WHEN_EMPTY.contains(&key.as_str()),
                    Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
                }
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// A MicroTime that does not have exactly six fractional digits, which a real server refuses.
fn coarse_micro_time<'v>(resource: &Resource, value: &'v Value) -> Option<&'v str> {
    let pointers: &[&str] = match resource.kind.as_str() {
        "Lease" => &["/spec/acquireTime", "/spec/renewTime"],
        "Event" => &["/eventTime", "/series/lastObservedTime"],
        _ => return None,
    };
    let times = pointers
        .iter()
        .filter_map(|pointer| value.pointer(pointer).and_then(Value::as_str));
    times.into_iter().find(|time| {
        let fraction = time.split_once('.').map_or("", |(_, rest)| rest);
        fraction.chars().take_while(char::is_ascii_digit).count() != 6
    })
}

/// Writes quantities as a real server does: `1024Mi` is `1Gi`, `0.5` is `500m`.
pub(super) fn canonical_quantities(resource: &Resource, value: &mut Value) {
    // A CSINode's allocatable is a count of volumes, not a map of quantities.
    if resource.kind == "CSINode" || resource.kind == "CustomResourceDefinition" {
        return;
    }
    walk_quantities(value);
}

fn walk_quantities(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    (
                        "limits" | "requests" | "capacity" | "allocatable" | "overhead" | "allocatedResources",
                        Value::Object(quantities),
                    ) => canonicalise_map(quantities),
                    ("sizeLimit" | "divisor", value) => canonicalise(value),
                    (_, value) => walk_quantities(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(walk_quantities),
        _ => {}
    }
}

fn canonicalise_map(quantities: &mut Map<String, Value>) {
    for value in quantities.values_mut() {
        match value {
            // A device's capacity is `{"value": quantity}`.
            Value::Object(inner) => {
                if let Some(value) = inner.get_mut("value") {
                    canonicalise(value);
                }
            }
            value => canonicalise(value),
        }
    }
}

fn canonicalise(value: &mut Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Some(canonical) = crate::quantity::canonical(&text) {
        *value = canonical.into();
    } else if value.is_number() {
        *value = text.into();
    }
}
