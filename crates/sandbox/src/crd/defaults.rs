//! Defaulting: absent fields get the schema's default, and what was defaulted is defaulted in turn.

use serde_json::Value;

use super::schema::Schema;

/// Fills in defaults below `value`.
pub(super) fn apply(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, child_schema) in &schema.properties {
                if let Some(default) = &child_schema.default
                    && !map.contains_key(name)
                {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(child_schema) = schema.child(name) {
                    apply(child_schema, child);
                }
            }
        }
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            for item in items {
                apply(item_schema, item);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Removes nulls given for fields and map values that may not be null; they mean "absent".
pub(super) fn drop_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, child| match schema.child(name) {
            Some(child_schema) if child.is_null() => child_schema.nullable,
            Some(child_schema) => {
                drop_nulls(child_schema, child);
                true
            }
            None => true,
        }),
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            for item in items {
                drop_nulls(item_schema, item);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
