//! The door for controllers that live in this process: typed objects, the same rules as over HTTP, no waiting.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use kube::Resource as KubeResource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::Clock;
use crate::object::Object;
use crate::patch::merge::merge;
use crate::resource::Resource;
use crate::server::{DeleteOptions, Endpoint, Server, WriteOptions, Written};
use crate::status::ApiError;
use crate::store::{Backlog, Change, Watch};

/// A Rust type of a kind, built-in or custom.
pub trait Kind: KubeResource<DynamicType = ()> + Serialize + DeserializeOwned + Clone {}

impl<K: KubeResource<DynamicType = ()> + Serialize + DeserializeOwned + Clone> Kind for K {}

/// Reads and writes the cluster's objects without HTTP.
#[derive(Clone, Debug)]
pub struct Objects {
    server: Arc<Server>,
}

impl Objects {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    pub fn clock(&self) -> &Clock {
        self.server.clock()
    }

    /// The rules and the store behind this door, for untyped access.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// `namespace` is empty for cluster-scoped kinds.
    pub fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<K> {
        let resource = self.resource::<K>().ok()?;
        parse(&*self.server.get(&resource, namespace, name).ok()?)
    }

    /// The objects of a namespace, or of all if it is empty.
    pub fn list<K: Kind>(&self, namespace: &str) -> Vec<K> {
        let Ok(resource) = self.resource::<K>() else {
            return Vec::new();
        };
        self.server
            .list(&resource, namespace)
            .objects
            .iter()
            .filter_map(|object| parse(object))
            .collect()
    }

    /// Creates the object in the namespace that its metadata names.
    pub fn create<K: Kind>(&self, object: &K) -> Result<K, ApiError> {
        let resource = self.resource::<K>()?;
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        typed(
            &self
                .server
                .create(&resource, &namespace, tree(object)?, &WriteOptions::default())?,
        )
    }

    /// Replaces everything but the status; fails with a conflict if the object's resourceVersion is stale.
    pub fn update<K: Kind>(&self, object: &K) -> Result<K, ApiError> {
        self.put(object, Endpoint::Main)
    }

    /// Replaces the status; fails with a conflict if the object's resourceVersion is stale.
    pub fn update_status<K: Kind>(&self, object: &K) -> Result<K, ApiError> {
        self.put(object, Endpoint::Status)
    }

    /// JSON-merges `patch` into the object.
    pub fn patch<K: Kind>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, ApiError> {
        self.merge(namespace, name, patch, Endpoint::Main)
    }

    /// JSON-merges `patch` (`{"status": …}`) into the object through its status endpoint.
    pub fn patch_status<K: Kind>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, ApiError> {
        self.merge(namespace, name, patch, Endpoint::Status)
    }

    /// Changes the object in place, whatever its version is; `None` if it does not exist.
    ///
    /// `change` returns `false` to leave it alone.
    pub fn modify<K: Kind>(
        &self,
        namespace: &str,
        name: &str,
        endpoint: Endpoint,
        change: impl FnOnce(&mut K) -> bool,
    ) -> Result<Option<K>, ApiError> {
        let resource = self.resource::<K>()?;
        let written = self.server.modify(&resource, namespace, name, endpoint, |value| {
            let Ok(mut object) = serde_json::from_value::<K>(value.clone()) else {
                return false;
            };
            if !change(&mut object) {
                return false;
            }
            let Ok(changed) = serde_json::to_value(&object) else {
                return false;
            };
            *value = changed;
            true
        });
        match written {
            Ok(written) => typed(&written).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object, or marks it for deletion.
    pub fn delete<K: Kind>(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Written, ApiError> {
        self.server.delete(&*self.resource::<K>()?, namespace, name, options)
    }

    /// All objects as additions, then everything that happens to them.
    ///
    /// # Panics
    /// If the kind is not served.
    pub fn watch<K: Kind>(&self) -> ObjectWatch<K> {
        let resource = self.resource::<K>().expect("controllers watch kinds that are served");
        ObjectWatch {
            raw: self.watch_untyped(&resource),
            kind: PhantomData,
        }
    }

    /// All objects of a resource as additions, then everything that happens to them.
    pub fn watch_untyped(&self, resource: &Resource) -> UntypedWatch {
        loop {
            let snapshot = self.server.list(resource, "");
            // Nothing can be forgotten between the two unless thousands of writes come in between: try again then.
            if let Ok(watch) = self
                .server
                .store
                .watch(&resource.collection, snapshot.revision, Backlog::Keep)
            {
                return UntypedWatch {
                    initial: snapshot.objects.into(),
                    watch,
                };
            }
        }
    }

    fn resource<K: Kind>(&self) -> Result<Arc<Resource>, ApiError> {
        self.server.find(&K::group(&()), &K::version(&()), &K::plural(&()))
    }

    fn put<K: Kind>(&self, object: &K, endpoint: Endpoint) -> Result<K, ApiError> {
        let resource = self.resource::<K>()?;
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let name = object.meta().name.clone().unwrap_or_default();
        let options = WriteOptions::default();
        typed(
            &self
                .server
                .update(&resource, &namespace, &name, endpoint, tree(object)?, &options)?,
        )
    }

    fn merge<K: Kind>(&self, namespace: &str, name: &str, patch: &Value, endpoint: Endpoint) -> Result<K, ApiError> {
        let resource = self.resource::<K>()?;
        typed(&self.server.modify(&resource, namespace, name, endpoint, |value| {
            merge(value, patch);
            true
        })?)
    }
}

/// What a controller hears about an object.
#[derive(Clone, Debug)]
pub struct ObjectEvent<K> {
    pub change: Change,
    /// For a deletion: the last content.
    pub object: K,
}

/// A stream of typed events; it never ends and never loses one.
#[derive(Debug)]
pub struct ObjectWatch<K> {
    raw: UntypedWatch,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> ObjectWatch<K> {
    /// Waits for the next event; `None` if the kind is no longer served.
    pub async fn next(&mut self) -> Option<ObjectEvent<K>> {
        loop {
            let (change, object) = self.raw.next().await?;
            if let Some(object) = parse(&object) {
                return Some(ObjectEvent { change, object });
            }
        }
    }

    /// An event that is already there.
    pub fn try_next(&mut self) -> Option<ObjectEvent<K>> {
        loop {
            let (change, object) = self.raw.try_next()?;
            if let Some(object) = parse(&object) {
                return Some(ObjectEvent { change, object });
            }
        }
    }
}

/// A stream of events that leaves objects as stored text.
#[derive(Debug)]
pub struct UntypedWatch {
    initial: VecDeque<Arc<Object>>,
    watch: Watch,
}

impl UntypedWatch {
    /// Waits for the next event; `None` if the kind is no longer served.
    pub async fn next(&mut self) -> Option<(Change, Arc<Object>)> {
        if let Some(object) = self.initial.pop_front() {
            return Some((Change::Added, object));
        }
        let event = self
            .watch
            .next()
            .await?
            .expect("the history waits for readers that keep their backlog");
        Some((event.change, Arc::clone(&event.object)))
    }

    /// An event that is already there.
    pub fn try_next(&mut self) -> Option<(Change, Arc<Object>)> {
        if let Some(object) = self.initial.pop_front() {
            return Some((Change::Added, object));
        }
        let event = self.watch.try_next()?;
        Some((event.change, Arc::clone(&event.object)))
    }
}

fn tree<K: Serialize>(object: &K) -> Result<Value, ApiError> {
    serde_json::to_value(object).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn typed<K: Kind>(written: &Written) -> Result<K, ApiError> {
    written
        .object
        .parse()
        .map_err(|error| ApiError::internal(error.to_string()))
}

/// Objects that do not have the type's shape are left out, as a typed client would skip them.
fn parse<K: DeserializeOwned>(object: &Object) -> Option<K> {
    match object.parse() {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::warn!(object = %object.key, %error, "a stored object does not have the shape of its type");
            None
        }
    }
}
