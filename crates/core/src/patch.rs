//! Writes that say only what changed, and that fail rather than overwrite what somebody else wrote meanwhile.
//!
//! A controller copies the object it was given, changes the copy and hands both over. What goes to the API server is the
//! JSON merge patch between them, guarded by the resourceVersion of the original. A merge patch replaces lists (taints,
//! finalizers, conditions) as a whole, so without the guard two controllers that each add an entry would lose one.

use std::fmt::Debug;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::error::{Result, ignore_not_found};

/// What became of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Written<K> {
    /// The API server has it; this is the object as it is now.
    Changed(K),
    /// There was nothing to write.
    Unchanged,
    /// The object is gone, and so is the reason to write.
    Gone,
}

/// Patches everything outside `status` from `before` to `after`.
///
/// # Errors
/// With a conflict if the object has changed since `before` was read, and with whatever else the API server refuses for.
pub async fn object<K>(api: &Api<K>, before: &K, after: &K) -> Result<Written<K>>
where
    K: Resource + Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    match Difference::between(before, after)? {
        Some(difference) => difference.send_object(api, before).await,
        None => Ok(Written::Unchanged),
    }
}

/// Patches `status` from `before` to `after`.
///
/// # Errors
/// As [`object`].
pub async fn status<K>(api: &Api<K>, before: &K, after: &K) -> Result<Written<K>>
where
    K: Resource + Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    match Difference::between(before, after)? {
        Some(difference) => difference.send_status(api, before, before.resource_version()).await,
        None => Ok(Written::Unchanged),
    }
}

/// Patches the object and then its status, both from `before` to `after`.
///
/// # Errors
/// As [`object`]. The first write may have happened when the second fails; the next reconcile finds it and goes on.
pub async fn both<K>(api: &Api<K>, before: &K, after: &K) -> Result<Written<K>>
where
    K: Resource + Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let Some(difference) = Difference::between(before, after)? else {
        return Ok(Written::Unchanged);
    };
    let first = difference.send_object(api, before).await?;
    let version = match &first {
        Written::Gone => return Ok(Written::Gone),
        Written::Unchanged => before.resource_version(),
        Written::Changed(written) => written.resource_version(),
    };
    match difference.send_status(api, before, version).await? {
        Written::Unchanged => Ok(first),
        second => Ok(second),
    }
}

/// The merge patches that turn one object into another: the API server takes `status` apart from the rest.
struct Difference {
    object: Option<Value>,
    status: Option<Value>,
}

// === impl Difference ===

impl Difference {
    /// `None` when the objects are equal, which most reconciles find: then nothing is serialized.
    fn between<K: PartialEq + Serialize>(before: &K, after: &K) -> Result<Option<Self>> {
        if before == after {
            return Ok(None);
        }
        let (mut old, mut new) = (serde_json::to_value(before)?, serde_json::to_value(after)?);
        let (old_status, new_status) = (take_status(&mut old), take_status(&mut new));
        Ok(Some(Self {
            object: merge_patch(&old, &new),
            status: merge_patch(&old_status, &new_status).map(|status| json!({ "status": status })),
        }))
    }

    async fn send_object<K>(&self, api: &Api<K>, before: &K) -> Result<Written<K>>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let Some(patch) = guarded(&self.object, before.resource_version()) else {
            return Ok(Written::Unchanged);
        };
        let params = PatchParams::default();
        send(api.patch(&before.name_any(), &params, &Patch::Merge(patch)).await)
    }

    async fn send_status<K>(&self, api: &Api<K>, before: &K, version: Option<String>) -> Result<Written<K>>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let Some(patch) = guarded(&self.status, version) else {
            return Ok(Written::Unchanged);
        };
        let params = PatchParams::default();
        send(
            api.patch_status(&before.name_any(), &params, &Patch::Merge(patch))
                .await,
        )
    }
}

fn send<K>(result: kube::Result<K>) -> Result<Written<K>> {
    Ok(match ignore_not_found(result)? {
        Some(object) => Written::Changed(object),
        None => Written::Gone,
    })
}

fn take_status(object: &mut Value) -> Value {
    match object {
        Value::Object(fields) => fields.remove("status").unwrap_or(Value::Null),
        _ => Value::Null,
    }
}

/// The patch, for the object as it was at `version` and at no other.
fn guarded(patch: &Option<Value>, version: Option<String>) -> Option<Value> {
    let mut patch = patch.clone()?;
    if let (Some(version), Value::Object(fields)) = (version, &mut patch) {
        let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata {
            metadata.insert("resourceVersion".to_owned(), Value::String(version));
        }
    }
    Some(patch)
}

/// The JSON merge patch (RFC 7386) that turns `old` into `new`; `None` when they are equal. An empty list or map where there was
/// none says nothing new: the API server would answer with the object as it was.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let change = match old.get(key) {
            Some(known) => merge_patch(known, value),
            None => Some(value.clone()).filter(|value| !is_empty(value)),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    Some(Value::Object(patch)).filter(|patch| !is_empty(patch))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: Value, new: Value, expected: Option<Value>) {
        assert_eq!(merge_patch(&old, &new), expected);
    }

    #[test]
    fn equal_objects_need_no_patch() {
        check(json!({"a": {"b": [1]}}), json!({"a": {"b": [1]}}), None);
    }

    #[test]
    fn a_patch_names_only_what_changed() {
        check(
            json!({"a": 1, "b": {"x": 1, "y": 2}}),
            json!({"a": 1, "b": {"x": 1, "y": 3}}),
            Some(json!({"b": {"y": 3}})),
        );
    }

    #[test]
    fn what_is_gone_is_set_to_null() {
        check(json!({"a": 1, "b": 2}), json!({"b": 2}), Some(json!({"a": null})));
    }

    #[test]
    fn a_list_is_replaced_as_a_whole() {
        check(
            json!({"a": [1, 2]}),
            json!({"a": [1, 2, 3]}),
            Some(json!({"a": [1, 2, 3]})),
        );
    }

    #[test]
    fn an_empty_list_where_there_was_none_is_no_news() {
        check(json!({"spec": {}}), json!({"spec": {"taints": []}, "status": {}}), None);
        check(json!({"a": 1}), json!({"a": 2, "taints": []}), Some(json!({"a": 2})));
        check(
            json!({"taints": [1]}),
            json!({"taints": []}),
            Some(json!({"taints": []})),
        );
    }

    #[test]
    fn a_patch_carries_the_version_it_was_made_from() {
        let patch = guarded(&Some(json!({"spec": {"unschedulable": true}})), Some("7".to_owned()));
        assert_eq!(
            patch,
            Some(json!({"spec": {"unschedulable": true}, "metadata": {"resourceVersion": "7"}}))
        );
        assert_eq!(guarded(&None, Some("7".to_owned())), None);
    }

    #[test]
    fn status_is_told_apart_from_the_rest() {
        use k8s_openapi::api::core::v1::Node;
        let node = |yaml: &str| serde_norway::from_str::<Node>(yaml).unwrap();
        let before = node("{metadata: {name: n}, status: {phase: Pending}}");
        let after = node("{metadata: {name: n, labels: {a: b}}, status: {phase: Running}}");
        let difference = Difference::between(&before, &after).unwrap().unwrap();
        assert_eq!(difference.object, Some(json!({"metadata": {"labels": {"a": "b"}}})));
        assert_eq!(difference.status, Some(json!({"status": {"phase": "Running"}})));

        let only_status = node("{metadata: {name: n}, status: {phase: Running}}");
        let difference = Difference::between(&before, &only_status).unwrap().unwrap();
        assert_eq!(difference.object, None);
        assert!(Difference::between(&before, &before.clone()).unwrap().is_none());
    }
}
