//! Pruning: fields that a schema does not declare are dropped on write.

use serde_json::Value;

use super::schema::{AdditionalProperties, Schema};

/// Prunes a whole object; `apiVersion`, `kind` and `metadata` belong to every object and stay.
pub(super) fn prune(root: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_value(root, object, "", Level::Resource, &mut unknown);
    unknown
}

/// Whether a value is a Kubernetes object in its own right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Resource,
    Field,
}

fn prune_value(schema: &Schema, value: &mut Value, path: &str, level: Level, unknown: &mut Vec<String>) {
    let is_resource = level == Level::Resource || schema.embedded_resource;
    match value {
        Value::Object(map) => {
            let keeps_unknown = schema.preserve_unknown_fields
                || matches!(schema.additional_properties, Some(AdditionalProperties::Anything));
            map.retain(|name, child| {
                if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    return true;
                }
                let child_path = join(path, name);
                match schema.child(name) {
                    Some(child_schema) => {
                        prune_value(child_schema, child, &child_path, Level::Field, unknown);
                        true
                    }
                    None if keeps_unknown => true,
                    None => {
                        unknown.push(child_path);
                        false
                    }
                }
            });
        }
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            for (i, item) in items.iter_mut().enumerate() {
                prune_value(item_schema, item, &format!("{path}[{i}]"), Level::Field, unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}
