//! CustomResourceDefinition documents, made from the Rust types.
//!
//! [`Crd::of`] takes what kube derives from a type and finishes it: Kubernetes' own conventions where the derive has others,
//! and one order of keys, so that equal types give byte-equal documents. Providers use it for their NodeClasses too.

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool};

/// One CRD document.
#[derive(Debug, Clone, PartialEq)]
pub struct Crd(Value);

/// The CRDs of Karpenter's own kinds.
pub fn all() -> Vec<Crd> {
    vec![
        Crd::of::<NodePool>(),
        Crd::of::<NodeClaim>(),
        Crd::of::<NodeOverlay>(),
        Crd::of::<CapacityBuffer>(),
    ]
}

impl Crd {
    /// The CRD of a kind.
    pub fn of<K: CustomResourceExt>() -> Self {
        let mut document = serde_json::to_value(K::crd()).expect("a CRD is plain data");
        if let Some(versions) = document.pointer_mut("/spec/versions").and_then(Value::as_array_mut) {
            for version in versions {
                let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") else {
                    continue;
                };
                finish(schema);
                describe_object(schema);
            }
        }
        Self(sorted(document))
    }

    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// `nodepools.karpenter.sh`.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn group(&self) -> &str {
        self.0["spec"]["group"].as_str().unwrap_or_default()
    }

    pub fn kind(&self) -> &str {
        self.0["spec"]["names"]["kind"].as_str().unwrap_or_default()
    }

    /// The version that is served and stored; our kinds have one each.
    pub fn version(&self) -> &str {
        self.0["spec"]["versions"][0]["name"].as_str().unwrap_or_default()
    }

    pub fn is_namespaced(&self) -> bool {
        self.0["spec"]["scope"] == "Namespaced"
    }

    /// The schema of the version that is served.
    pub fn schema(&self) -> &Value {
        &self.0["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    }

    /// The name of the file that ships the document: `karpenter.sh_nodepools.yaml`.
    pub fn file_name(&self) -> String {
        let plural = self.0["spec"]["names"]["plural"].as_str().unwrap_or_default();
        format!("{}_{plural}.yaml", self.group())
    }

    /// The document as the chart ships it, with a separator so that documents can be strung together.
    pub fn to_yaml(&self) -> String {
        let body = serde_norway::to_string(&self.0).expect("a CRD has string keys only");
        format!("---\n{body}")
    }
}

/// Turns what the derive makes of Rust types into what Kubernetes' own kinds look like.
fn finish(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // Optional fields are absent, not null: the API server drops nulls that are not asked for.
            if fields.get("nullable").is_some_and(Value::is_boolean) {
                fields.remove("nullable");
            }
            // Kubernetes knows no unsigned formats; the bounds say it.
            if fields
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with("uint"))
            {
                fields.remove("format");
            }
            if fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
                fields.insert("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string" }]));
            }
            for bound in ["minimum", "maximum"] {
                if let Some(number) = fields.get_mut(bound) {
                    *number = whole(number);
                }
            }
            fields.values_mut().for_each(finish);
        }
        Value::Array(items) => items.iter_mut().for_each(finish),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `1.0` as `1`.
fn whole(number: &Value) -> Value {
    match number.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => json!(float as i64),
        _ => number.clone(),
    }
}

/// What every object has; listed so that `kubectl explain` shows it.
fn describe_object(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("title");
    let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    properties.insert(
        "apiVersion".to_owned(),
        json!({ "type": "string", "description": "The API group and version that the object is written in." }),
    );
    properties.insert(
        "kind".to_owned(),
        json!({ "type": "string", "description": "The kind of object." }),
    );
    properties.insert("metadata".to_owned(), json!({ "type": "object" }));
}

/// The same value with its keys in alphabetical order, whichever map `serde_json` is built with.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(
                fields
                    .into_iter()
                    .map(|(key, value)| (key, sorted(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        scalar => scalar,
    }
}
