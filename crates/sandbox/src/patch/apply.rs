//! Server-side apply: merges what a manager wants and remembers which fields it wanted.
//!
//! Only managers that apply own fields here; writers by PUT or other patches do not, and `managedFields` is never
//! shown (sandbox.md §2.6).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value};

use super::lists::{ListRule, ListRules, same_item};
use crate::status::ApiError;

/// One step into an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Field(String),
    /// A list item, by the JSON text of its keys (a map) or of itself (a member of a set).
    Item(String),
}

pub(crate) type Path = Vec<Step>;

/// Who applies: a manager's fields are kept apart for each subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// Which fields each manager applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldOwners(BTreeMap<Manager, BTreeSet<Path>>);

/// What to do about fields that others own with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnConflict {
    Refuse,
    TakeOver,
}

/// Merges `wanted` into `live` on behalf of `manager`; returns who owns what afterwards.
pub(crate) fn apply(
    live: &mut Value,
    wanted: &Value,
    rules: ListRules<'_>,
    manager: &Manager,
    owners: &FieldOwners,
    on_conflict: OnConflict,
) -> Result<FieldOwners, ApiError> {
    let mut owners = owners.clone();
    let mut fields = BTreeSet::new();
    collect(wanted, rules, &mut Vec::new(), &mut Vec::new(), &mut fields);
    let previous = owners.0.remove(manager).unwrap_or_default();

    let mut conflicts: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for (other, owned) in &owners.0 {
        for path in fields.intersection(owned).filter(|path| is_leaf(wanted, path)) {
            if find(live, path).is_some_and(|value| Some(value) != find(wanted, path)) {
                conflicts.entry(&other.name).or_default().push(path);
            }
        }
    }
    if !conflicts.is_empty() && on_conflict == OnConflict::Refuse {
        return Err(conflict_error(&conflicts));
    }
    let taken: Vec<Path> = conflicts.into_values().flatten().cloned().collect();
    for owned in owners.0.values_mut() {
        owned.retain(|path| !taken.contains(path));
    }

    // Shortest first: an item must go while its keys can still be found.
    let mut dropped: Vec<&Path> = previous.difference(&fields).collect();
    dropped.sort_by_key(|path| path.len());
    for path in dropped {
        if !owners.0.values().any(|owned| owned.contains(path)) {
            remove(live, path);
        }
    }
    merge(live, wanted, rules, &mut Vec::new());
    owners.0.retain(|_, owned| !owned.is_empty());
    owners.0.insert(manager.clone(), fields);
    Ok(owners)
}

/// Metadata that names the object or belongs to the server is nobody's field.
fn is_identity(path: &[&str], key: &str) -> bool {
    match path {
        [] => matches!(key, "apiVersion" | "kind"),
        ["metadata"] => matches!(
            key,
            "name" | "namespace" | "uid" | "resourceVersion" | "creationTimestamp" | "generation" | "managedFields"
        ),
        _ => false,
    }
}

fn collect<'v>(
    value: &'v Value,
    rules: ListRules<'_>,
    names: &mut Vec<&'v str>,
    path: &mut Path,
    fields: &mut BTreeSet<Path>,
) {
    match value {
        Value::Object(map) if !map.is_empty() && !rules.is_atomic_map(names) => {
            for (key, value) in map {
                if is_identity(names, key) {
                    continue;
                }
                names.push(key);
                path.push(Step::Field(key.clone()));
                collect(value, rules, names, path, fields);
                path.pop();
                names.pop();
            }
        }
        Value::Array(items) => match rules.list(names) {
            ListRule::Atomic => {
                fields.insert(path.clone());
            }
            ListRule::Set => {
                for item in items {
                    path.push(Step::Item(item.to_string()));
                    fields.insert(path.clone());
                    path.pop();
                }
            }
            ListRule::Keyed(keys) => {
                for item in items {
                    path.push(Step::Item(item_key(item, &keys)));
                    fields.insert(path.clone());
                    collect(item, rules, names, path, fields);
                    path.pop();
                }
            }
        },
        _ => {
            if !path.is_empty() {
                fields.insert(path.clone());
            }
        }
    }
}

fn item_key(item: &Value, keys: &[String]) -> String {
    let map: Map<String, Value> = keys
        .iter()
        .filter_map(|key| item.get(key).map(|value| (key.clone(), value.clone())))
        .collect();
    Value::Object(map).to_string()
}

/// Whether a path ends at something that is owned as a whole, rather than at an item that has fields of its own.
fn is_leaf(wanted: &Value, path: &Path) -> bool {
    match path.last() {
        Some(Step::Item(_)) => find(wanted, path).is_some_and(|value| !value.is_object()),
        _ => true,
    }
}

fn is_item(item: &Value, key: &str) -> bool {
    match serde_json::from_str::<Value>(key) {
        Ok(Value::Object(keys)) if item.is_object() => keys.iter().all(|(name, value)| item.get(name) == Some(value)),
        Ok(value) => *item == value,
        Err(_) => false,
    }
}

fn find<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Field(name), Value::Object(map)) => map.get(name),
        (Step::Item(key), Value::Array(items)) => items.iter().find(|item| is_item(item, key)),
        _ => None,
    })
}

/// Removes a field or item, and the maps and lists that this leaves empty.
fn remove(value: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => {
            if let (Some(inner), false) = (map.get_mut(name), rest.is_empty()) {
                remove(inner, rest);
                if !is_empty(inner) {
                    return;
                }
            }
            map.remove(name);
        }
        (Step::Item(key), Value::Array(items)) => {
            let Some(index) = items.iter().position(|item| is_item(item, key)) else {
                return;
            };
            if rest.is_empty() {
                items.remove(index);
            } else {
                remove(&mut items[index], rest);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn merge<'v>(live: &mut Value, wanted: &'v Value, rules: ListRules<'_>, names: &mut Vec<&'v str>) {
    match wanted {
        Value::Object(map) if !rules.is_atomic_map(names) => {
            if !live.is_object() {
                *live = Value::Object(Map::new());
            }
            let Some(target) = live.as_object_mut() else { return };
            for (key, value) in map {
                names.push(key);
                merge(target.entry(key.clone()).or_insert(Value::Null), value, rules, names);
                names.pop();
            }
        }
        Value::Array(items) => {
            let rule = rules.list(names);
            if rule == ListRule::Atomic || !live.is_array() {
                *live = Value::Array(Vec::new());
            }
            let Some(target) = live.as_array_mut() else { return };
            match rule {
                ListRule::Atomic => *target = items.clone(),
                ListRule::Set => {
                    let fresh: Vec<Value> = items.iter().filter(|item| !target.contains(item)).cloned().collect();
                    target.extend(fresh);
                }
                ListRule::Keyed(keys) => {
                    for item in items {
                        match target.iter_mut().find(|existing| same_item(existing, item, &keys)) {
                            Some(existing) => merge(existing, item, rules, names),
                            None => target.push(item.clone()),
                        }
                    }
                }
            }
        }
        other => *live = other.clone(),
    }
}

fn conflict_error(conflicts: &BTreeMap<&str, Vec<&Path>>) -> ApiError {
    let count: usize = conflicts.values().map(Vec::len).sum();
    let mut message = format!(
        "Apply failed with {count} conflict{}: ",
        if count == 1 { "" } else { "s" }
    );
    let mut error = ApiError::new(409, "Conflict", "");
    for (index, (manager, paths)) in conflicts.iter().enumerate() {
        let comma = if index == 0 { "" } else { "\n" };
        match paths.as_slice() {
            [path] => {
                let _ = write!(message, "{comma}conflict with {manager:?}: {}", show(path));
            }
            paths => {
                let _ = write!(message, "{comma}conflicts with {manager:?}:");
                for path in paths {
                    let _ = write!(message, "\n- {}", show(path));
                }
            }
        }
        for path in paths {
            error = error.with_cause(
                "FieldManagerConflict",
                format!("conflict with {manager:?}"),
                &show(path),
            );
        }
    }
    error.message = message;
    error
}

/// `.spec.containers[name="c"].image`.
fn show(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        let _ = match step {
            Step::Field(name) => write!(text, ".{name}"),
            Step::Item(key) => match serde_json::from_str::<Value>(key) {
                Ok(Value::Object(keys)) => {
                    let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    write!(text, "[{}]", keys.join(","))
                }
                _ => write!(text, "[={key}]"),
            },
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULES: ListRules<'static> = ListRules::BuiltIn { group: "", kind: "Pod" };

    fn by(name: &str) -> Manager {
        Manager {
            name: name.into(),
            subresource: String::new(),
        }
    }

    fn applied(live: &mut Value, wanted: Value, manager: &str, owners: &mut FieldOwners) -> Result<(), ApiError> {
        *owners = apply(live, &wanted, RULES, &by(manager), owners, OnConflict::Refuse)?;
        Ok(())
    }

    #[test]
    fn a_dropped_field_is_removed_unless_another_manager_owns_it() {
        let mut live = json!({});
        let mut owners = FieldOwners::default();
        applied(&mut live, json!({"data": {"a": "1", "b": "1"}}), "one", &mut owners).unwrap();
        applied(&mut live, json!({"data": {"b": "1"}}), "two", &mut owners).unwrap();
        applied(&mut live, json!({"data": {}}), "one", &mut owners).unwrap();
        assert_eq!(live, json!({"data": {"b": "1"}}));
    }

    #[test]
    fn another_value_for_an_owned_field_is_a_conflict_until_forced() {
        let mut live = json!({});
        let mut owners = FieldOwners::default();
        applied(&mut live, json!({"data": {"a": "1"}}), "one", &mut owners).unwrap();
        let error = applied(&mut live, json!({"data": {"a": "2"}}), "two", &mut owners).unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"one\": .data.a"
        );
        assert_eq!(error.details.causes[0].reason, "FieldManagerConflict");
        let wanted = json!({"data": {"a": "2"}});
        owners = apply(&mut live, &wanted, RULES, &by("two"), &owners, OnConflict::TakeOver).unwrap();
        assert_eq!(live, wanted);
        applied(&mut live, json!({}), "one", &mut owners).unwrap();
        assert_eq!(live, wanted, "one lost the field when two took it over");
    }

    #[test]
    fn keyed_items_belong_to_who_applied_them() {
        let mut live = json!({"spec": {"containers": [{"name": "other", "image": "x"}]}});
        let mut owners = FieldOwners::default();
        let wanted = json!({"spec": {"containers": [{"name": "mine", "image": "1"}]}});
        applied(&mut live, wanted, "one", &mut owners).unwrap();
        assert_eq!(live["spec"]["containers"].as_array().unwrap().len(), 2);
        applied(&mut live, json!({"spec": {}}), "one", &mut owners).unwrap();
        assert_eq!(live, json!({"spec": {"containers": [{"name": "other", "image": "x"}]}}));
    }
}
