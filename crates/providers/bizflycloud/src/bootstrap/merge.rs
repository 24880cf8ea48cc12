//! Merges two cloud-config documents: lists are joined, maps merged, and the second wins.

use serde_json::Value;

const HEADER: &str = "#cloud-config";

pub fn is_cloud_config(text: &str) -> bool {
    text.trim_start().starts_with(HEADER)
}

/// # Errors
/// When one of them is not YAML.
pub fn cloud_configs(base: &str, own: &str) -> Result<String, String> {
    let read = |text: &str| -> Result<Value, String> {
        // Templates are merged before they are rendered; a template that is not YAML can't be.
        let value: Value =
            serde_norway::from_str(text).map_err(|error| format!("a cloud-config is not YAML: {error}"))?;
        Ok(if value.is_null() {
            Value::Object(Default::default())
        } else {
            value
        })
    };
    let mut merged = read(base)?;
    merge(&mut merged, read(own)?);
    let body = serde_norway::to_string(&merged).map_err(|error| error.to_string())?;
    Ok(format!("{HEADER}\n{body}"))
}

fn merge(base: &mut Value, own: Value) {
    match (base, own) {
        (Value::Object(base), Value::Object(own)) => {
            for (key, value) in own {
                match base.get_mut(&key) {
                    Some(present) => merge(present, value),
                    None => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (Value::Array(base), Value::Array(own)) => base.extend(own),
        (base, own) => *base = own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_joined_maps_merged_and_the_second_wins() {
        let merged = cloud_configs(
            "#cloud-config\nruncmd: [a]\nusers: {x: {shell: sh, uid: 1}}\n",
            "#cloud-config\nruncmd: [b]\nusers: {x: {shell: bash}}\n",
        )
        .expect("merged");
        let value: Value = serde_norway::from_str(&merged).expect("YAML");
        let expected = serde_json::json!({"runcmd": ["a", "b"], "users": {"x": {"shell": "bash", "uid": 1}}});
        assert_eq!(value, expected);
    }
}
