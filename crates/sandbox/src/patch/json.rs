//! JSON patch (RFC 6902) with the leniency that API servers have and controllers rely on.

use serde_json::Value;

use crate::status::ApiError;

/// Applies the operations in order; `target` is left half-changed on failure.
pub(crate) fn apply(target: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Array(operations) = patch else {
        return Err(ApiError::bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        ));
    };
    for operation in operations {
        apply_one(target, operation).ok_or_else(ApiError::unprocessable_patch)?;
    }
    Ok(())
}

fn apply_one(target: &mut Value, operation: &Value) -> Option<()> {
    let path = pointer(operation.get("path")?.as_str()?)?;
    match operation.get("op")?.as_str()? {
        "add" => add(target, &path, operation.get("value")?.clone()),
        "remove" => remove(target, &path).map(|_| ()),
        "replace" => replace(target, &path, operation.get("value")?.clone()),
        "move" => {
            let value = remove(target, &pointer(operation.get("from")?.as_str()?)?)?;
            add(target, &path, value)
        }
        "copy" => {
            let value = find(target, &pointer(operation.get("from")?.as_str()?)?)?.clone();
            add(target, &path, value)
        }
        "test" => {
            // kube-rs' finalizer() tests an absent list for null; a real server lets that pass.
            let expected = operation.get("value").unwrap_or(&Value::Null);
            let actual = find(target, &path).unwrap_or(&Value::Null);
            (actual == expected).then_some(())
        }
        _ => None,
    }
}

fn pointer(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let steps = text.strip_prefix('/')?.split('/');
    Some(steps.map(|step| step.replace("~1", "/").replace("~0", "~")).collect())
}

fn find<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

fn find_mut<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

fn add(target: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, parents)) = path.split_last() else {
        *target = value;
        return Some(());
    };
    match find_mut(target, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(items) => {
            let index = if last == "-" { items.len() } else { last.parse().ok()? };
            if index > items.len() {
                return None;
            }
            items.insert(index, value);
        }
        _ => return None,
    }
    Some(())
}

/// A key that is absent from its map is set all the same: kube-apiserver's library is that lenient.
fn replace(target: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, parents)) = path.split_last() else {
        *target = value;
        return Some(());
    };
    match find_mut(target, parents)? {
        Value::Object(map) => drop(map.insert(last.clone(), value)),
        Value::Array(items) => *items.get_mut(last.parse::<usize>().ok()?)? = value,
        _ => return None,
    }
    Some(())
}

fn remove(target: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    match find_mut(target, parents)? {
        Value::Object(map) => map.remove(last),
        Value::Array(items) => {
            let index: usize = last.parse().ok()?;
            (index < items.len()).then(|| items.remove(index))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(target: Value, patch: Value, expected: Option<Value>) {
        let mut actual = target.clone();
        let outcome = apply(&mut actual, &patch).ok().map(|()| actual);
        assert_eq!(outcome, expected, "{patch} on {target}");
    }

    #[test]
    fn testing_an_absent_path_for_null_passes() {
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]},
        ]);
        check(
            json!({"metadata": {}}),
            patch.clone(),
            Some(json!({"metadata": {"finalizers": ["a/b"]}})),
        );
        check(json!({"metadata": {"finalizers": ["x/y"]}}), patch, None);
    }

    #[test]
    fn operations_follow_the_standard() {
        check(
            json!({"a": [1, 3]}),
            json!([{"op": "add", "path": "/a/1", "value": 2}]),
            Some(json!({"a": [1, 2, 3]})),
        );
        check(
            json!({"a": [1]}),
            json!([{"op": "add", "path": "/a/-", "value": 2}]),
            Some(json!({"a": [1, 2]})),
        );
        check(
            json!({"a~b": {"c/d": 1}}),
            json!([{"op": "remove", "path": "/a~0b/c~1d"}]),
            Some(json!({"a~b": {}})),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "move", "from": "/a", "path": "/b"}]),
            Some(json!({"b": 1})),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "copy", "from": "/a", "path": "/b"}]),
            Some(json!({"a": 1, "b": 1})),
        );
    }

    #[test]
    fn replacing_sets_an_absent_key() {
        let patch = json!([{"op": "replace", "path": "/b", "value": 2}]);
        check(json!({"a": 1}), patch, Some(json!({"a": 1, "b": 2})));
    }

    #[test]
    fn what_can_not_apply_is_refused() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/x/y", "value": 1}]),
            json!([{"op": "replace", "path": "/a/0", "value": 1}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/a/7", "value": 1}]),
            json!([{"op": "dance", "path": "/a"}]),
            json!([{"op": "add"}]),
            json!([7]),
        ] {
            let mut target = json!({"a": []});
            assert_eq!(apply(&mut target, &patch).unwrap_err().code, 422, "{patch}");
        }
        assert_eq!(apply(&mut json!({}), &json!({})).unwrap_err().code, 400);
    }
}
