//! Names, labels, annotations, finalizers and owners.

use serde_json::Value;

use super::items;
use crate::resource::Resource;
use crate::status::FieldError;

const LABEL_NAME: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
    an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const MAX_ANNOTATIONS: usize = 256 * 1024;

pub(super) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let metadata = &body["metadata"];
    let mut errors = Vec::new();
    if old.is_none() {
        let name = metadata["name"].as_str().unwrap_or_default();
        if let Some(problem) = name_problem(resource, name) {
            errors.push(FieldError::invalid("metadata.name", &name.into(), &problem));
        }
    }
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        errors.extend(label_errors("metadata.labels", key, value.as_str().unwrap_or_default()));
    }
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        size += key.len() + value.as_str().unwrap_or_default().len();
        if let Some(problem) = qualified_problem(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                &key.as_str().into(),
                problem,
            ));
        }
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long("metadata.annotations", MAX_ANNOTATIONS));
    }
    for finalizer in items(metadata, "finalizers") {
        let text = finalizer.as_str().unwrap_or_default();
        if let Some(problem) = finalizer_problem(text) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, &problem));
        }
    }
    errors.extend(owner_errors(items(metadata, "ownerReferences")));
    errors
}

/// Why a name does not do for a kind.
fn name_problem(resource: &Resource, name: &str) -> Option<String> {
    let label_kind = resource.is("", "Namespace") || resource.is("", "Service");
    if resource.group == "rbac.authorization.k8s.io" {
        let bad = name == "." || name == ".." || name.contains('/') || name.contains('%');
        return bad.then(|| "may not contain '/' or '%'".to_owned());
    }
    if label_kind {
        if name.len() > 63 {
            return Some("must be no more than 63 characters".into());
        }
        return (!is_label(name)).then(|| LABEL_NAME.to_owned());
    }
    if name.len() > 253 {
        return Some("must be no more than 253 characters".into());
    }
    (!name.split('.').all(is_label)).then(|| SUBDOMAIN.to_owned())
}

/// Whether a text is a DNS label, apart from its length.
pub(super) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

pub(super) fn label_name_problem() -> &'static str {
    LABEL_NAME
}

/// What is wrong with a label's key and value.
pub(super) fn label_errors(field: &str, key: &str, value: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(problem) = qualified_problem(key) {
        errors.push(FieldError::invalid(field, &key.into(), problem));
    }
    if value.len() > 63 {
        errors.push(FieldError::invalid(
            field,
            &value.into(),
            "must be no more than 63 characters",
        ));
    } else if !value.is_empty() && !is_name_part(value) {
        errors.push(FieldError::invalid(field, &value.into(), LABEL_VALUE));
    }
    errors
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn qualified_problem(key: &str) -> Option<&'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if name.contains('/') {
        return Some(
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', with an optional DNS subdomain \
             prefix and '/' (e.g. 'example.com/MyName')",
        );
    }
    if name.is_empty() {
        return Some("name part must be non-empty");
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 characters");
    }
    if prefix.is_some_and(str::is_empty) {
        return Some("prefix part must be non-empty");
    }
    if prefix.is_some_and(|prefix| prefix.len() > 253 || !prefix.split('.').all(is_label)) {
        return Some("prefix part must be a lowercase RFC 1123 subdomain");
    }
    (!is_name_part(name)).then_some(QUALIFIED)
}

fn finalizer_problem(text: &str) -> Option<String> {
    if let Some(problem) = qualified_problem(text) {
        return Some(problem.to_owned());
    }
    let known = ["orphan", "foregroundDeletion", "kubernetes"].contains(&text);
    (!known && !text.contains('/'))
        .then(|| "name is neither a standard finalizer name nor is it fully qualified".to_owned())
}

fn owner_errors(owners: &[Value]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, owner) in owners.iter().enumerate() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if owner[key].as_str().unwrap_or_default().is_empty() {
                let field = format!("metadata.ownerReferences[{index}].{key}");
                errors.push(FieldError::invalid(
                    field,
                    &"".into(),
                    &format!("{key} must not be empty"),
                ));
            }
        }
    }
    let controllers: Vec<&Value> = owners.iter().filter(|owner| owner["controller"] == true).collect();
    if let [first, second, ..] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            first["name"].as_str().unwrap_or_default(),
            second["name"].as_str().unwrap_or_default()
        );
        errors.push(FieldError::invalid_without_value("metadata.ownerReferences", &why));
    }
    errors
}
