//! One stored version of one object: its JSON text and the few facts that lists, watches and selectors ask for.
//!
//! The text is kept instead of a tree: a pod takes 2–3 KiB this way rather than 20, and a list or a watch event is
//! written by copying it. `kind` and `apiVersion` are left out of the text, because list items omit them and the
//! versions of a custom resource differ in them; [`Object::render`] puts them in front.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::patch::apply::FieldOwners;

/// A stored (or, on a dry run, merely computed) version of an object.
#[derive(Debug)]
pub struct Object {
    /// `namespace/name`, or just the name of a cluster-scoped object.
    pub key: Box<str>,
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// 0 if it was never stored.
    pub resource_version: u64,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the kind's selectable fields, in the order of [`crate::resource::Resource::fields`].
    pub(crate) fields: Box<[Box<str>]>,
    pub terminating: bool,
    /// JSON without `kind` and `apiVersion`.
    json: Bytes,
    /// Who applied which fields (server-side apply).
    pub(crate) owners: Option<Arc<FieldOwners>>,
}

/// A field selector's name and where its value lies, as a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    pub name: String,
    pub pointer: String,
}

impl Object {
    /// Makes the version of `value` that is stored as `resource_version` (0: not stored, no version shown).
    pub(crate) fn new(
        mut value: Value,
        resource_version: u64,
        fields: &[SelectableField],
        owners: Option<Arc<FieldOwners>>,
    ) -> Self {
        if let Some(map) = value.as_object_mut() {
            map.remove("kind");
            map.remove("apiVersion");
        }
        let metadata = metadata_mut(&mut value);
        if resource_version > 0 {
            metadata.insert("resourceVersion".into(), resource_version.to_string().into());
        } else {
            metadata.remove("resourceVersion");
        }
        let text = |metadata: &Map<String, Value>, key: &str| -> Box<str> {
            metadata.get(key).and_then(Value::as_str).unwrap_or_default().into()
        };
        let namespace = text(metadata, "namespace");
        let name = text(metadata, "name");
        let uid = text(metadata, "uid");
        let terminating = metadata.contains_key("deletionTimestamp");
        let labels = match metadata.get("labels") {
            Some(Value::Object(labels)) => labels
                .iter()
                .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into()))
                .collect(),
            _ => Box::default(),
        };
        let fields = fields.iter().map(|field| field_text(&value, &field.pointer)).collect();
        let json = serde_json::to_vec(&value).expect("a JSON tree has a text");
        Self {
            key: key(&namespace, &name).into(),
            namespace,
            name,
            uid,
            resource_version,
            labels,
            fields,
            terminating,
            json: json.into(),
            owners,
        }
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let index = self
            .labels
            .binary_search_by(|(candidate, _)| (**candidate).cmp(key))
            .ok()?;
        Some(&self.labels[index].1)
    }

    /// The object as a tree, without `kind` and `apiVersion`.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("stored text is JSON")
    }

    /// The object as a Rust type; fails if the stored object does not have that shape.
    pub fn parse<K: DeserializeOwned>(&self) -> Result<K, serde_json::Error> {
        serde_json::from_slice(&self.json)
    }

    /// JSON without `kind` and `apiVersion`, as it stands in a built-in list.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// Writes the whole object, `kind` and `apiVersion` first.
    pub(crate) fn render_into(&self, prefix: &str, out: &mut BytesMut) {
        out.put_slice(prefix.as_bytes());
        out.put_slice(&self.json[1..]);
    }

    /// The whole object as JSON.
    pub(crate) fn render(&self, prefix: &str) -> Bytes {
        let mut out = BytesMut::with_capacity(prefix.len() + self.json.len());
        self.render_into(prefix, &mut out);
        out.freeze()
    }

    /// The same content at another resourceVersion: what a DELETED event shows.
    pub(crate) fn at_version(&self, resource_version: u64) -> Self {
        let mut value = self.value();
        metadata_mut(&mut value).insert("resourceVersion".into(), resource_version.to_string().into());
        Self {
            key: self.key.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            resource_version,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            terminating: self.terminating,
            json: serde_json::to_vec(&value).expect("a JSON tree has a text").into(),
            owners: self.owners.clone(),
        }
    }
}

/// `{"kind":"Pod","apiVersion":"v1",`: what goes in front of an object's text.
///
/// Stored text always has `metadata`, so a comma follows.
pub(crate) fn type_prefix(api_version: &str, kind: &str) -> String {
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",")
}

/// The storage key, whose byte order is the order of lists.
pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// `metadata` of a tree, made if it is missing or no map.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let slot = value
        .as_object_mut()
        .expect("made an object above")
        .entry("metadata")
        .or_insert(Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object above")
}

/// A field's value as a selector compares it; absent is "".
fn field_text(value: &Value, pointer: &str) -> Box<str> {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Bool(flag)) => flag.to_string().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ => match pointer {
            "/spec/unschedulable" | "/spec/hostNetwork" => "false".into(),
            "/status/successful" => "0".into(),
            _ => "".into(),
        },
    }
}
