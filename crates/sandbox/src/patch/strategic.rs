//! Strategic merge patch: a merge patch that knows which lists have keys.

use serde_json::{Map, Value};

use super::lists::{ListRule, ListRules};
use crate::status::ApiError;

const ORDER: &str = "$setElementOrder/";
const DELETE_SCALARS: &str = "$deleteFromPrimitiveList/";
const RETAIN: &str = "$retainKeys";
const DIRECTIVE: &str = "$patch";

/// Applies `patch` to `target`.
pub(crate) fn apply(target: &mut Value, patch: &Value, rules: ListRules<'_>) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request(
            "error decoding patch: a strategic merge patch is a map",
        ));
    };
    let mut path = Vec::new();
    merge_map(target, patch, rules, &mut path)
}

fn merge_map<'p>(
    target: &mut Value,
    patch: &'p Map<String, Value>,
    rules: ListRules<'_>,
    path: &mut Vec<&'p str>,
) -> Result<(), ApiError> {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else {
        return Ok(());
    };
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None => {}
        Some("replace") => {
            *map = patch
                .iter()
                .filter(|(key, _)| *key != DIRECTIVE)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            return Ok(());
        }
        Some("delete") => {
            map.clear();
            return Ok(());
        }
        Some("merge") => {}
        Some(other) => return Err(ApiError::bad_request(format!("Unknown patch type found: {other}"))),
    }
    if let Some(Value::Array(kept)) = patch.get(RETAIN) {
        map.retain(|key, _| kept.iter().any(|kept| kept == key.as_str()));
    }
    for (key, change) in patch {
        if let Some(list) = key.strip_prefix(DELETE_SCALARS) {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (map.get_mut(list), change) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key == DIRECTIVE || key == RETAIN || key.starts_with(ORDER) {
            continue;
        }
        if key.starts_with('$') {
            return Err(ApiError::bad_request(format!(
                "error decoding patch: unknown directive {key}"
            )));
        }
        if change.is_null() {
            map.remove(key);
            continue;
        }
        path.push(key);
        let slot = map.entry(key.clone()).or_insert(Value::Null);
        match change {
            // A budget's selector is replaced, not merged (sandbox.md §2.6).
            Value::Object(_) if is_replaced(rules, path) => *slot = change.clone(),
            Value::Object(change) => merge_map(slot, change, rules, path)?,
            Value::Array(items) => merge_list(slot, items, rules, path)?,
            scalar => *slot = scalar.clone(),
        }
        path.pop();
    }
    for (key, order) in patch {
        if let (Some(list), Value::Array(order)) = (key.strip_prefix(ORDER), order) {
            path.push(list);
            let rule = rules.list(path);
            path.pop();
            if let Some(Value::Array(items)) = map.get_mut(list) {
                reorder(items, order, &rule);
            }
        }
    }
    Ok(())
}

fn is_replaced(rules: ListRules<'_>, path: &[&str]) -> bool {
    matches!(
        (rules, path),
        (ListRules::BuiltIn { group: "policy", .. }, ["spec", "selector"])
    )
}

fn merge_list<'p>(
    slot: &mut Value,
    changes: &'p [Value],
    rules: ListRules<'_>,
    path: &mut Vec<&'p str>,
) -> Result<(), ApiError> {
    let is_directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace");
    if changes
        .iter()
        .any(|item| is_directive(item) && item.as_object().is_some_and(|map| map.len() == 1))
    {
        *slot = changes.iter().filter(|item| !is_directive(item)).cloned().collect();
        return Ok(());
    }
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    let Some(items) = slot.as_array_mut() else {
        return Ok(());
    };
    match rules.list(path) {
        ListRule::Atomic => *items = without_directives(changes),
        ListRule::Set => {
            // New ones come first, as a real server puts them.
            let mut merged: Vec<Value> = changes.iter().filter(|item| !items.contains(item)).cloned().collect();
            merged.append(items);
            *items = merged;
        }
        ListRule::Keyed(keys) => {
            let key = keys.first().map_or("", String::as_str);
            for change in changes {
                let (Some(map), Some(value)) = (change.as_object(), change.get(key)) else {
                    let message = format!(
                        "map: map[{}] does not contain declared merge key: {key}",
                        go_map(change)
                    );
                    return Err(ApiError::internal(message));
                };
                let position = items.iter().position(|item| item.get(key) == Some(value));
                match (map.get(DIRECTIVE).and_then(Value::as_str), position) {
                    (Some("delete"), position) => {
                        if let Some(index) = position {
                            items.remove(index);
                        }
                    }
                    (_, Some(index)) => merge_map(&mut items[index], map, rules, path)?,
                    (_, None) => {
                        let mut fresh = Value::Object(Map::new());
                        merge_map(&mut fresh, map, rules, path)?;
                        items.push(fresh);
                    }
                }
            }
        }
    }
    Ok(())
}

fn without_directives(items: &[Value]) -> Vec<Value> {
    let is_delete = |item: &&Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
    items.iter().filter(|item| !is_delete(item)).cloned().collect()
}

/// Puts listed items in the order given; others keep their place relative to what stood before them.
fn reorder(items: &mut Vec<Value>, order: &[Value], rule: &ListRule) {
    let rank = |item: &Value| {
        order.iter().position(|wanted| match rule {
            ListRule::Keyed(keys) => keys.iter().all(|key| item.get(key) == wanted.get(key)),
            ListRule::Atomic | ListRule::Set => item == wanted,
        })
    };
    let (mut listed, rest): (Vec<Value>, Vec<Value>) = items.drain(..).partition(|item| rank(item).is_some());
    listed.sort_by_key(|item| rank(item));
    *items = listed;
    items.extend(rest);
}

/// A map as Go prints it, for the one message that shows it.
fn go_map(value: &Value) -> String {
    let Some(map) = value.as_object() else {
        return value.to_string();
    };
    map.iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}:{text}"),
            other => format!("{key}:{other}"),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(kind: &str, target: Value, patch: Value, expected: Value) {
        let mut actual = target;
        apply(&mut actual, &patch, ListRules::BuiltIn { group: "", kind }).unwrap();
        assert_eq!(actual, expected, "{patch}");
    }

    #[test]
    fn a_container_is_patched_by_its_name() {
        check(
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}),
        );
    }

    #[test]
    fn taints_are_replaced_and_conditions_merged() {
        check(
            "Node",
            json!({"spec": {"taints": [{"key": "a"}]}, "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X"}]}}),
            json!({"spec": {"taints": [{"key": "b"}]}, "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "$patch": "delete"}]}}),
            json!({"spec": {"taints": [{"key": "b"}]}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        );
    }

    #[test]
    fn directives_reorder_retain_and_delete() {
        check(
            "Pod",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "metadata": {"finalizers": ["x", "y"]}}),
            json!({
                "spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]},
                "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]},
            }),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}, "metadata": {"finalizers": ["y"]}}),
        );
        check(
            "Deployment",
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        );
    }

    #[test]
    fn an_item_without_its_key_is_an_error() {
        let mut target = json!({"spec": {"containers": []}});
        let patch = json!({"spec": {"containers": [{"image": "x"}]}});
        let error = apply(&mut target, &patch, ListRules::BuiltIn { group: "", kind: "Pod" }).unwrap_err();
        assert_eq!(
            error.message,
            "map: map[image:x] does not contain declared merge key: name"
        );
    }
}
