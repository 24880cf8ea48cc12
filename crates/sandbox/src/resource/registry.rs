//! The resources that are served right now: the built-in ones and those that CRDs added.

use std::sync::Arc;

use indexmap::IndexMap;

use super::{Resource, builtin};

/// Finds resources by the names that requests use.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    /// Group, version and plural to resource, in discovery order.
    resources: IndexMap<(String, String, String), Arc<Resource>>,
}

/// What a path's group, version and plural lead to.
#[derive(Debug)]
pub(crate) enum Lookup {
    Found(Arc<Resource>),
    /// A built-in group has no such version or resource: a `Status` says so.
    UnknownResource,
    /// No such group, or a group of CRDs without that resource: plain text.
    UnknownGroup,
}

impl Registry {
    pub(crate) fn new() -> Self {
        let mut registry = Self {
            resources: IndexMap::new(),
        };
        for resource in builtin::resources() {
            registry.insert(resource);
        }
        registry
    }

    pub(crate) fn insert(&mut self, resource: Arc<Resource>) {
        let key = (
            resource.group.clone(),
            resource.version.clone(),
            resource.plural.clone(),
        );
        self.resources.insert(key, resource);
    }

    /// Takes away every version of a custom resource.
    pub(crate) fn remove_custom(&mut self, group: &str, plural: &str) {
        self.resources
            .retain(|_, resource| !(resource.is_custom() && resource.group == group && resource.plural == plural));
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Lookup {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        if let Some(resource) = self.resources.get(&key) {
            return Lookup::Found(Arc::clone(resource));
        }
        let built_in = self
            .resources
            .values()
            .any(|resource| resource.group == group && !resource.is_custom());
        if built_in {
            Lookup::UnknownResource
        } else {
            Lookup::UnknownGroup
        }
    }

    /// Any served version of a resource.
    pub(crate) fn by_plural(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        self.resources
            .values()
            .find(|resource| resource.group == group && resource.plural == plural)
            .cloned()
    }

    /// The resource of a kind in a certain version.
    pub(crate) fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        let matches =
            |resource: &&Arc<Resource>| resource.group == group && resource.version == version && resource.kind == kind;
        self.resources.values().find(matches).cloned()
    }

    /// The resource of a kind in any version.
    pub(crate) fn by_group_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        self.resources
            .values()
            .find(|resource| resource.group == group && resource.kind == kind)
            .cloned()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }
}
