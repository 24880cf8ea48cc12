//! Writes objects in the form that a client asked for.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::negotiate::View;
use super::query::Query;
use super::table;
use crate::events;
use crate::object::{Object, type_prefix};
use crate::resource::Resource;

/// Knows the resource and the form of one request's answer.
#[derive(Clone, Debug)]
pub(crate) struct Renderer {
    pub(crate) resource: Arc<Resource>,
    view: View,
    include: Include,
    prefix: String,
    now: Timestamp,
}

/// `includeObject` of a table request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

/// What stands beside the items of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<usize>,
}

impl Renderer {
    pub(crate) fn new(resource: &Arc<Resource>, view: View, query: &Query, now: Timestamp) -> Self {
        let include = match query.get("includeObject") {
            "None" => Include::None,
            "Object" => Include::Object,
            _ => Include::Metadata,
        };
        Self {
            resource: Arc::clone(resource),
            view,
            include,
            prefix: resource.prefix(),
            now,
        }
    }

    /// One object as the body of an answer.
    pub(crate) fn object(&self, object: &Object) -> Bytes {
        match self.view {
            View::Object | View::Discovery => self.whole(object),
            View::Metadata => partial(object).to_string().into(),
            View::Table => {
                let meta = ListMeta {
                    resource_version: version_text(object),
                    ..ListMeta::default()
                };
                self.table(std::slice::from_ref(&object), &meta, Columns::Shown)
                    .to_string()
                    .into()
            }
        }
    }

    fn whole(&self, object: &Object) -> Bytes {
        if self.is_converted() {
            let mut value = self.converted(object);
            self.resource.stamp(&mut value);
            return value.to_string().into();
        }
        object.render(&self.prefix)
    }

    fn is_converted(&self) -> bool {
        self.resource.group == events::GROUP
    }

    fn converted(&self, object: &Object) -> Value {
        events::to_regarding(object.value())
    }

    /// A list as the body of an answer.
    pub(crate) fn list<'a>(&self, objects: impl ExactSizeIterator<Item = &'a Arc<Object>>, meta: &ListMeta) -> Bytes {
        match self.view {
            View::Table => {
                let objects: Vec<&Object> = objects.map(|object| &**object).collect();
                self.table(&objects, meta, Columns::Shown).to_string().into()
            }
            View::Metadata => {
                let items: Vec<Value> = objects.map(|object| partial(object)).collect();
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": self.list_metadata(meta), "items": items,
                })
                .to_string()
                .into()
            }
            View::Object | View::Discovery => {
                let mut out = BytesMut::with_capacity(256 + objects.len() * 2048);
                out.put_slice(type_prefix(&self.resource.api_version(), &self.resource.list_kind).as_bytes());
                out.put_slice(format!("\"metadata\":{},\"items\":[", self.list_metadata(meta)).as_bytes());
                for (index, object) in objects.enumerate() {
                    if index > 0 {
                        out.put_u8(b',');
                    }
                    if self.is_converted() {
                        out.put_slice(self.converted(object).to_string().as_bytes());
                    } else if self.resource.is_custom() {
                        // Items of custom lists say what they are; built-in ones do not.
                        object.render_into(&self.prefix, &mut out);
                    } else {
                        out.put_slice(object.json());
                    }
                }
                out.put_slice(b"]}");
                out.freeze()
            }
        }
    }

    fn list_metadata(&self, meta: &ListMeta) -> Value {
        let mut metadata = json!({"resourceVersion": meta.resource_version});
        if !meta.continue_token.is_empty() || self.resource.is_custom() {
            metadata["continue"] = meta.continue_token.as_str().into();
        }
        if let Some(remaining) = meta.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }

    /// One line of a watch.
    pub(crate) fn watch_line(&self, kind: &str, object: &Object, columns: Columns, out: &mut BytesMut) {
        out.put_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
        match self.view {
            View::Object | View::Discovery if self.is_converted() => out.put_slice(&self.whole(object)),
            View::Object | View::Discovery => object.render_into(&self.prefix, out),
            View::Metadata => out.put_slice(partial(object).to_string().as_bytes()),
            View::Table => {
                let meta = ListMeta {
                    resource_version: version_text(object),
                    ..ListMeta::default()
                };
                let table = self.table(std::slice::from_ref(&object), &meta, columns);
                out.put_slice(table.to_string().as_bytes());
            }
        }
        out.put_slice(b"}\n");
    }

    /// A bookmark: nothing but a resourceVersion to resume from.
    pub(crate) fn bookmark(&self, revision: u64, mark: Bookmark) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if mark == Bookmark::InitialEventsEnd {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.view {
            View::Object | View::Discovery => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
            View::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            View::Table => {
                let row = json!({"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}});
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": null, "rows": [row],
                })
            }
        };
        format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into()
    }

    fn table(&self, objects: &[&Object], meta: &ListMeta, columns: Columns) -> Value {
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| {
                let value = object.value();
                let cells = table::cells(&self.resource, &value, self.now);
                let object = match self.include {
                    Include::None => Value::Null,
                    Include::Metadata => partial_of(&value),
                    Include::Object => {
                        let mut value = if self.is_converted() {
                            events::to_regarding(value)
                        } else {
                            value
                        };
                        self.resource.stamp(&mut value);
                        value
                    }
                };
                json!({"cells": cells, "object": object})
            })
            .collect();
        let definitions = match columns {
            Columns::Shown => table::definitions(&self.resource),
            Columns::Omitted => Value::Null,
        };
        let mut metadata = json!({"resourceVersion": meta.resource_version});
        if !meta.continue_token.is_empty() {
            metadata["continue"] = meta.continue_token.as_str().into();
        }
        if let Some(remaining) = meta.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": definitions, "rows": rows,
        })
    }
}

/// Whether a table carries its column definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    Shown,
    Omitted,
}

/// What a bookmark says besides its revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bookmark {
    Progress,
    InitialEventsEnd,
}

fn version_text(object: &Object) -> String {
    if object.resource_version == 0 {
        String::new()
    } else {
        object.resource_version.to_string()
    }
}

fn partial(object: &Object) -> Value {
    partial_of(&object.value())
}

fn partial_of(value: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"]})
}
