//! JSON merge patch (RFC 7386): maps merge, `null` deletes, everything else replaces.

use serde_json::{Map, Value};

/// Applies `patch` to `target` in place.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, change) in patch {
        if change.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_deletes_and_arrays_replace() {
        let mut target = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(
            &mut target,
            &json!({"a": {"b": null, "c": [3]}, "e": {"f": null, "g": 1}}),
        );
        assert_eq!(target, json!({"a": {"c": [3]}, "d": 1, "e": {"g": 1}}));
    }
}
