//! OpenAPI v3, as much of it as kubectl needs: which kinds take `fieldValidation`, and custom schemas for `explain`.

use serde_json::{Map, Value, json};

use super::discovery::is_stored;
use crate::resource::{Resource, Source};
use crate::server::Server;
use crate::status::ApiError;

fn key(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

pub(crate) fn index(server: &Server) -> Value {
    let mut paths = Map::new();
    for resource in server.resources() {
        let key = key(&resource);
        let url = format!("/openapi/v3/{key}");
        paths.insert(key, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

pub(crate) fn document(server: &Server, path: &str) -> Result<Value, ApiError> {
    let resources: Vec<_> = server
        .resources()
        .into_iter()
        .filter(|resource| key(resource) == path)
        .collect();
    if resources.is_empty() {
        return Err(ApiError::page_not_found());
    }
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in resources.iter().filter(|resource| is_stored(resource)) {
        let namespace = if resource.is_namespaced() {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let collection = format!("/{path}{namespace}/{}", resource.plural);
        let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
        let operation = |parameters: Value| json!({"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": kind});
        // No requestBody: kubectl then builds patches from its compiled-in types (sandbox.md §1.6).
        let validated = json!([
            {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}},
            {"name": "dryRun", "in": "query", "schema": {"type": "string"}},
        ]);
        let name = [("get", operation(json!([]))), ("patch", operation(validated.clone()))];
        paths.insert(
            format!("{collection}/{{name}}"),
            name.map(|(k, v)| (k.to_owned(), v)).into_iter().collect(),
        );
        let list = [("get", operation(json!([]))), ("post", operation(validated))];
        paths.insert(collection, list.map(|(k, v)| (k.to_owned(), v)).into_iter().collect());
        schemas.insert(schema_name(resource), schema(resource, &kind));
    }
    Ok(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.3+sandbox"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn schema_name(resource: &Resource) -> String {
    let mut group: Vec<&str> = resource.group.split('.').collect();
    group.reverse();
    let group = if resource.group.is_empty() {
        "core".to_owned()
    } else {
        group.join(".")
    };
    format!("{group}.{}.{}", resource.version, resource.kind)
}

fn schema(resource: &Resource, kind: &Value) -> Value {
    let mut schema = match &resource.source {
        Source::Custom(version) => {
            let mut schema = (*version.document).clone();
            tidy(&mut schema);
            schema
        }
        Source::BuiltIn(_) => json!({
            "type": "object",
            "description": "The sandbox knows this kind's rules but does not publish its fields.",
        }),
    };
    schema["x-kubernetes-group-version-kind"] = json!([kind]);
    let properties = &mut schema["properties"];
    if !properties.is_object() {
        *properties = json!({});
    }
    properties["apiVersion"] = json!({"type": "string", "description": "The version of this object's schema."});
    properties["kind"] = json!({"type": "string", "description": "The kind of this object."});
    properties["metadata"] = json!({"type": "object", "description": "Standard object metadata."});
    schema
}

/// Rules of CRDs that an OpenAPI reader does not know are left out.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("x-kubernetes-validations");
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}
