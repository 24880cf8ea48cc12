//! What the API server knows about a kind: its names, where its objects live and which rules its writes follow.

mod builtin;
pub(crate) mod registry;

use std::sync::Arc;

use serde_json::Value;

use crate::events;
use crate::object::{Object, SelectableField, type_prefix};
use crate::status::qualified;
use crate::store::CollectionName;

pub use builtin::Normalise;

/// Whether objects live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// One served version of a resource.
#[derive(Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    /// Where the objects are stored; versions of a custom resource, and the two event groups, share it.
    pub collection: CollectionName,
    pub generation: Generation,
    pub status: StatusEndpoint,
    pub scale: Option<ScalePaths>,
    pub update: UpdateRules,
    pub endpoints: Endpoints,
    /// What a field selector may name, and where it looks.
    pub fields: Vec<SelectableField>,
    pub source: Source,
}

/// Whether `metadata.generation` counts the changes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Absent,
    Counted,
}

/// Whether `status` is written through an endpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusEndpoint {
    Absent,
    Separate,
}

/// Which PUTs a kind accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateRules {
    /// Without a resourceVersion the write is unconditional.
    Unconditional,
    /// A resourceVersion must be given.
    Versioned,
    /// Unconditional, and a PUT of a missing object creates it.
    Upsert,
    /// A resourceVersion must be given, and a PUT of a missing object creates it.
    VersionedUpsert,
}

/// Which endpoints a kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    All,
    /// Everything but deletecollection (namespaces).
    NoDeleteCollection,
    /// Only POST, nothing is stored (reviews, bindings).
    CreateOnly,
}

/// Where the scale subresource finds its numbers, as JSON pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// A string field that holds the selector; workloads have a LabelSelector at `/spec/selector` instead.
    pub label_selector: Option<String>,
}

/// Where a resource comes from.
#[derive(Clone)]
pub enum Source {
    BuiltIn(Normalise),
    Custom(Arc<crate::crd::Version>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::BuiltIn(_) => formatter.write_str("BuiltIn"),
            Source::Custom(version) => formatter.debug_tuple("Custom").field(&version.name).finish(),
        }
    }
}

impl Resource {
    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural` or `plural.group`, as messages name it.
    pub fn qualified_plural(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }

    pub fn has_status(&self) -> bool {
        self.status == StatusEndpoint::Separate
    }

    /// Whether this is the built-in kind `group/kind`.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    pub(crate) fn prefix(&self) -> String {
        type_prefix(&self.api_version(), &self.kind)
    }

    /// Adds `kind` and `apiVersion` to a tree.
    pub(crate) fn stamp(&self, value: &mut Value) {
        if let Some(map) = value.as_object_mut() {
            map.insert("kind".into(), self.kind.as_str().into());
            map.insert("apiVersion".into(), self.api_version().into());
        }
    }

    /// An object's tree in the form that clients of this resource read and patch.
    pub(crate) fn project(&self, object: &Object) -> Value {
        let value = object.value();
        if self.group == events::GROUP && !self.is_custom() {
            events::to_regarding(value)
        } else {
            value
        }
    }

    /// The verbs that discovery shows.
    pub fn verbs(&self) -> &'static [&'static str] {
        match self.endpoints {
            Endpoints::All => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
            Endpoints::NoDeleteCollection => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Endpoints::CreateOnly => &["create"],
        }
    }
}
