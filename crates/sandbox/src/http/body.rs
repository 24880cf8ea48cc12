//! Reading request bodies.

use bytes::Bytes;
use serde_json::Value;

use super::duplicates;
use super::query::propagation;
use crate::resource::Resource;
use crate::server::{DeleteOptions, Patch};
use crate::status::{ApiError, FieldError, qualified};

pub(crate) const BODY_LIMIT: usize = 3 * 1024 * 1024;

const PATCH_TYPES: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

/// Decodes a body into a tree by its content type; JSON if none is given.
pub(crate) fn tree(content_type: &str, body: &Bytes, kind: &str) -> Result<Value, ApiError> {
    let unrecognised = |problem: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse \
             error: {problem}"
        ))
    };
    let value = match media_type(content_type) {
        "" | "application/json" => {
            if body.is_empty() {
                return Err(unrecognised("unexpected end of JSON input".into()));
            }
            serde_json::from_slice(body).map_err(|error| unrecognised(error.to_string()))?
        }
        "application/yaml" => yaml(body).map_err(unrecognised)?,
        "application/vnd.kubernetes.protobuf" => {
            return Err(ApiError::new(
                415,
                "UnsupportedMediaType",
                "the sandbox does not read protobuf, which this kubectl command sends; write the object as YAML and \
                 use `kubectl create -f -` instead (accepted media types include: application/json, application/yaml)",
            ));
        }
        _ => return Err(ApiError::unsupported_media_type("application/json, application/yaml")),
    };
    if !Value::is_object(&value) {
        return Err(unrecognised(
            "json: cannot unmarshal into Go value of type struct".into(),
        ));
    }
    Ok(value)
}

/// Decodes an object for `resource` and checks that it is one.
pub(crate) fn object(resource: &Resource, content_type: &str, body: &Bytes) -> Result<Value, ApiError> {
    let value = tree(content_type, body, &resource.kind)?;
    check_type(resource, &value)?;
    Ok(value)
}

fn check_type(resource: &Resource, value: &Value) -> Result<(), ApiError> {
    let kind = value["kind"].as_str().unwrap_or_default();
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    if resource.is_custom() {
        if kind.is_empty() {
            return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{value}'")));
        }
        if api_version.is_empty() {
            return Err(ApiError::bad_request(format!(
                "Object 'apiVersion' is missing in '{value}'"
            )));
        }
        let mut errors = Vec::new();
        if kind != resource.kind {
            errors.push(FieldError::invalid(
                "kind",
                &kind.into(),
                &format!("must be {}", resource.kind),
            ));
        }
        if api_version != resource.api_version() {
            let must = format!("must be {}", resource.api_version());
            errors.push(FieldError::invalid("apiVersion", &api_version.into(), &must));
        }
        if !errors.is_empty() {
            let name = value["metadata"]["name"].as_str().unwrap_or_default();
            return Err(ApiError::invalid(&resource.group, &resource.kind, name, errors));
        }
        return Ok(());
    }
    let right_kind = kind.is_empty() || kind == resource.kind;
    let right_version = api_version.is_empty() || api_version == resource.api_version();
    if right_kind && right_version {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "{kind} in version {:?} cannot be handled as a {}: converting ({api_version}.{kind}) to ({}.{}): unknown \
         conversion",
        api_version.rsplit('/').next().unwrap_or_default(),
        resource.kind,
        qualified(&resource.version, &resource.group),
        resource.kind
    )))
}

/// Decodes a patch by its content type.
pub(crate) fn patch(resource: &Resource, content_type: &str, body: &Bytes, force: bool) -> Result<Patch, ApiError> {
    let decode = |body: &Bytes| -> Result<Value, ApiError> {
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
    };
    match media_type(content_type) {
        "application/json-patch+json" => decode(body).map(Patch::Json),
        "application/merge-patch+json" => {
            let value = decode(body)?;
            if value.is_object() {
                Ok(Patch::Merge(value))
            } else {
                Err(ApiError::bad_request("error decoding patch: a merge patch is a map"))
            }
        }
        "application/strategic-merge-patch+json" if resource.is_custom() => {
            Err(ApiError::unsupported_media_type(PATCH_TYPES))
        }
        "application/strategic-merge-patch+json" => decode(body).map(Patch::Strategic),
        "application/apply-patch+yaml" => {
            let wanted = yaml(body).map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
            if wanted["kind"].as_str().is_none() || wanted["apiVersion"].as_str().is_none() {
                return Err(ApiError::bad_request("invalid object type: /, Kind="));
            }
            check_type(resource, &wanted)?;
            Ok(Patch::Apply { wanted, force })
        }
        _ => Err(ApiError::new(
            415,
            "UnsupportedMediaType",
            "415: Unsupported Media Type",
        )),
    }
}

/// Reads `DeleteOptions`; what the body says wins over the query.
pub(crate) fn delete_options(
    content_type: &str,
    body: &Bytes,
    query: DeleteOptions,
) -> Result<DeleteOptions, ApiError> {
    if body.is_empty() {
        return Ok(query);
    }
    let value = tree(content_type, body, "DeleteOptions")?;
    merge_delete_options(&value, query)
}

/// Reads `DeleteOptions` out of a tree.
pub(crate) fn merge_delete_options(value: &Value, mut options: DeleteOptions) -> Result<DeleteOptions, ApiError> {
    if let Some(grace) = value["gracePeriodSeconds"].as_i64() {
        options.grace_period_seconds = Some(grace);
    }
    if let Some(policy) = value["propagationPolicy"].as_str() {
        if !value["orphanDependents"].is_null() {
            let error = FieldError::invalid(
                "propagationPolicy",
                &policy.into(),
                "orphanDependents and deletionPropagation cannot be both set",
            );
            return Err(super::query::bad_option("DeleteOptions", error));
        }
        options.propagation = Some(propagation(policy)?);
    } else if let Some(orphan) = value["orphanDependents"].as_bool() {
        options.propagation = Some(propagation(if orphan { "Orphan" } else { "Background" })?);
    }
    for entry in value["dryRun"].as_array().into_iter().flatten() {
        if entry != "All" {
            let error = FieldError::not_supported("dryRun", entry, ["All"]);
            return Err(super::query::bad_option("DeleteOptions", error));
        }
        options.dry_run = true;
    }
    let text = |key: &str| value["preconditions"][key].as_str().map(str::to_owned);
    options.precondition_uid = text("uid").or(options.precondition_uid);
    options.precondition_version = text("resourceVersion").or(options.precondition_version);
    Ok(options)
}

/// Fields that stand twice in a JSON body; the last one counted.
pub(crate) fn duplicates(content_type: &str, body: &Bytes) -> Vec<String> {
    if matches!(media_type(content_type), "" | "application/json") {
        duplicates::find(body)
    } else {
        Vec::new()
    }
}

fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn yaml(body: &Bytes) -> Result<Value, String> {
    serde_norway::from_slice(body).map_err(|error| error.to_string())
}
