//! List types: no duplicates in sets, no two entries with the same keys in maps; and how entries of an old and a new
//! list correspond.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::error::FieldError;
use super::schema::{ListType, Schema};

/// Duplicate entries in lists of type set and map, each reported at its later index.
pub(super) fn duplicates(root: &Schema, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(root, new, old, "", &mut errors);
    errors
}

fn walk(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                let Some(child_schema) = schema.child(name) else {
                    continue;
                };
                let child_path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                walk(child_schema, child, old.and_then(|o| o.get(name)), &child_path, errors);
            }
        }
        Value::Array(items) => {
            let mut seen = HashSet::new();
            for (i, item) in items.iter().enumerate() {
                let identity = match schema.list_type {
                    ListType::Atomic => break,
                    ListType::Set => item.clone(),
                    ListType::Map => keys_of(schema, item),
                };
                if !seen.insert(identity.to_string()) {
                    errors.push(FieldError::duplicate(format!("{path}[{i}]"), &identity));
                }
            }
            let Some(item_schema) = &schema.items else { return };
            for (i, item) in items.iter().enumerate() {
                walk(
                    item_schema,
                    item,
                    counterpart(schema, item, old),
                    &format!("{path}[{i}]"),
                    errors,
                );
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The entry of the old list that `item` continues: only entries of map lists have an identity.
pub(super) fn counterpart<'v>(schema: &Schema, item: &Value, old: Option<&'v Value>) -> Option<&'v Value> {
    if schema.list_type != ListType::Map {
        return None;
    }
    let keys = keys_of(schema, item);
    old?.as_array()?
        .iter()
        .find(|candidate| keys_of(schema, candidate) == keys)
}

fn keys_of(schema: &Schema, item: &Value) -> Value {
    let present = schema
        .list_map_keys
        .iter()
        .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
    Value::Object(present.collect::<Map<_, _>>())
}
