//! Reads Kubernetes objects from files, directories and stdin, one at a time.
//!
//! Multi-document YAML, concatenated JSON and lists are taken apart, and every object knows where it came from. A JSON list
//! is walked item by item, so that a dump of a large cluster never has to exist as one tree.

mod json;
mod sources;
mod yaml;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use sources::Sources;

/// One object as it was written.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) origin: Origin,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) object: Value,
}

/// Where an object was read: `file:document`, both as a person would count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) file: Arc<str>,
    /// Position of the document in the file, from 1.
    pub(crate) document: usize,
    /// Position in the list that the document is, from 0.
    pub(crate) item: Option<usize>,
}

/// Why input can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("{file}: can't be read: {cause}; give a file, a directory, or - for stdin")]
    Unreadable { file: String, cause: std::io::Error },
    #[error("{0}: no .yaml, .yml or .json file in this directory; give one that has manifests")]
    EmptyDirectory(String),
    #[error("-: stdin was given twice; it can be read only once")]
    StdinTwice,
    #[error("{origin}: {problem}; write valid YAML or JSON")]
    Syntax { origin: Origin, problem: String },
    #[error("{0}: this is not a Kubernetes object; it needs apiVersion and kind")]
    NotAnObject(Origin),
    #[error("{origin}: {kind}/{name}: {problem}; correct the field or remove it")]
    Malformed {
        origin: Origin,
        kind: String,
        name: String,
        problem: String,
    },
}

impl Manifest {
    /// Takes a list apart, or hands the single object on.
    fn flatten(
        origin: Origin,
        value: Value,
        each: &mut dyn FnMut(Manifest) -> Result<(), ManifestError>,
    ) -> Result<(), ManifestError> {
        let mut manifest = Self::new(origin, value, None)?;
        let is_list = manifest.kind.ends_with("List") && manifest.object.get("items").is_some();
        if !is_list {
            return each(manifest);
        }
        let item_type = item_type(&manifest.api_version, &manifest.kind);
        let items = match manifest.object.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(Value::Null) | None => Vec::new(),
            Some(_) => {
                return Err(manifest.malformed("items is not a list"));
            }
        };
        for (position, item) in items.into_iter().enumerate() {
            let origin = Origin {
                item: Some(position),
                ..manifest.origin.clone()
            };
            each(Self::new(origin, item, item_type.as_ref())?)?;
        }
        Ok(())
    }

    /// Reads the type of the object, which items of a typed list may leave to the list.
    fn new(origin: Origin, mut object: Value, inherited: Option<&(String, String)>) -> Result<Self, ManifestError> {
        let Some(fields) = object.as_object_mut() else {
            return Err(ManifestError::NotAnObject(origin));
        };
        if let Some((api_version, kind)) = inherited {
            fields.entry("apiVersion").or_insert_with(|| api_version.clone().into());
            fields.entry("kind").or_insert_with(|| kind.clone().into());
        }
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
            return Err(ManifestError::NotAnObject(origin));
        };
        Ok(Self {
            origin,
            api_version,
            kind,
            object,
        })
    }

    /// The object's name, or its place in the list when it has none.
    pub(crate) fn name(&self) -> String {
        let metadata = &self.object["metadata"];
        let given = metadata["name"].as_str().or_else(|| metadata["generateName"].as_str());
        match (given, self.origin.item) {
            (Some(name), _) => name.to_owned(),
            (None, Some(item)) => format!("items[{item}]"),
            (None, None) => "<no name>".to_owned(),
        }
    }

    /// The API group; empty for the core group.
    pub(crate) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The object as a typed one; the error names the field that does not fit.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ManifestError> {
        T::deserialize(&self.object).map_err(|error| self.malformed(&error.to_string()))
    }

    /// An error about this object.
    pub(crate) fn malformed(&self, problem: &str) -> ManifestError {
        ManifestError::Malformed {
            origin: self.origin.clone(),
            kind: self.kind.clone(),
            name: self.name(),
            problem: problem.to_owned(),
        }
    }
}

/// The type that items of a typed list (`PodList`) have; items of a plain `List` say it themselves.
fn item_type(api_version: &str, kind: &str) -> Option<(String, String)> {
    let kind = kind.strip_suffix("List").filter(|kind| !kind.is_empty())?;
    Some((api_version.to_owned(), kind.to_owned()))
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.document)
    }
}

#[cfg(test)]
mod tests;
