//! Owner garbage collection: dependents follow their owners, in the background, the foreground, or not at all
//! (sandbox.md §5.1).

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::effects::propagated;
use super::manager::{Manager, Task};
use super::world::parse;
use crate::object::Object;
use crate::resource::Resource;
use crate::server::{Endpoint, Propagation};
use crate::store::{Change, CollectionName};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Where an object is stored.
type Place = (CollectionName, Arc<str>);

/// Who exists and who depends on whom.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    living: FxHashMap<Box<str>, Place>,
    owners: FxHashMap<Place, Vec<OwnerReference>>,
    dependents: FxHashMap<Box<str>, BTreeSet<Place>>,
    /// Owners that wait for their dependents to go (foreground deletion).
    waiting: FxHashMap<Box<str>, Place>,
}

/// What is to happen to a dependent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Keep,
    Delete(Propagation),
    /// Some owners are gone for good: drop the references to them.
    Detach(Vec<String>),
}

impl Garbage {
    /// Takes note of a change; returns what should be looked at.
    pub(crate) fn observe(&mut self, collection: &CollectionName, change: Change, object: &Object) -> Vec<Place> {
        let place: Place = (Arc::clone(collection), Arc::from(&*object.key));
        self.unlink(&place);
        if change == Change::Deleted {
            self.living.remove(&object.uid);
            self.waiting.remove(&object.uid);
            let mut work: Vec<Place> = self
                .dependents
                .get(&object.uid)
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            work.extend(self.waiting.values().cloned());
            return work;
        }
        self.living.insert(object.uid.clone(), place.clone());
        let mut work = Vec::new();
        if mentions(object, "\"ownerReferences\"") {
            let owners = metadata(object).owner_references.unwrap_or_default();
            for owner in &owners {
                self.dependents
                    .entry(owner.uid.as_str().into())
                    .or_default()
                    .insert(place.clone());
            }
            let needs_look = owners
                .iter()
                .any(|o| !self.living.contains_key(o.uid.as_str()) || self.waiting.contains_key(o.uid.as_str()));
            if needs_look && !owners.is_empty() {
                work.push(place.clone());
            }
            self.owners.insert(place.clone(), owners);
        }
        if object.terminating && mentions(object, FOREGROUND) {
            self.waiting.insert(object.uid.clone(), place.clone());
            work.extend(self.dependents.get(&object.uid).into_iter().flatten().cloned());
            work.push(place);
            return work;
        }
        self.waiting.remove(&object.uid);
        if object.terminating && mentions(object, "\"orphan\"") {
            work.push(place);
        }
        work
    }

    fn unlink(&mut self, place: &Place) {
        for owner in self.owners.remove(place).unwrap_or_default() {
            if let Some(dependents) = self.dependents.get_mut(owner.uid.as_str()) {
                dependents.remove(place);
                if dependents.is_empty() {
                    self.dependents.remove(owner.uid.as_str());
                }
            }
        }
    }

    /// Whether the owner exists where the dependent may have one: in its namespace, or without a namespace.
    fn is_present(&self, owner: &OwnerReference, namespace: &str) -> bool {
        let Some((_, key)) = self.living.get(owner.uid.as_str()) else {
            return false;
        };
        match key.split_once('/') {
            Some((of, name)) => of == namespace && name == owner.name,
            None => **key == *owner.name,
        }
    }

    fn fate(&self, owners: &[OwnerReference], namespace: &str, has_dependents: bool) -> Fate {
        if owners.is_empty() {
            return Fate::Keep;
        }
        let (present, gone): (Vec<_>, Vec<_>) = owners.iter().partition(|o| self.is_present(o, namespace));
        let is_waiting =
            |o: &&OwnerReference| o.block_owner_deletion == Some(true) && self.waiting.contains_key(o.uid.as_str());
        if present.is_empty() {
            return Fate::Delete(Propagation::Background);
        }
        if present.iter().all(is_waiting) {
            return Fate::Delete(if has_dependents {
                Propagation::Foreground
            } else {
                Propagation::Background
            });
        }
        if gone.is_empty() {
            Fate::Keep
        } else {
            Fate::Detach(gone.iter().map(|o| o.uid.clone()).collect())
        }
    }

    fn blocking_dependents(&self, uid: &str) -> usize {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let blocks = |place: &&Place| {
            self.owners
                .get(*place)
                .into_iter()
                .flatten()
                .any(|o| o.uid == uid && o.block_owner_deletion == Some(true))
        };
        dependents.filter(blocks).count()
    }
}

impl Manager {
    pub(crate) fn collect_garbage(&mut self, collection: &CollectionName, key: &Arc<str>) {
        let Some(object) = self.effects.server().store().get(collection, key) else {
            return;
        };
        let Some(resource) = self.resource_of(collection) else {
            return;
        };
        let meta = metadata(&object);
        if object.terminating {
            let finalizers = meta.finalizers.unwrap_or_default();
            if finalizers.iter().any(|f| f == ORPHAN) {
                self.orphan_dependents(&resource, &object);
            } else if finalizers.iter().any(|f| f == FOREGROUND) {
                self.release_if_alone(&resource, &object);
            }
            return;
        }
        let owners = meta.owner_references.unwrap_or_default();
        let has_dependents = self.garbage.dependents.contains_key(&object.uid);
        match self.garbage.fate(&owners, &object.namespace, has_dependents) {
            Fate::Keep => {}
            Fate::Delete(propagation) => {
                let options = propagated(propagation).of_uid(&object.uid);
                let deleted = self
                    .effects
                    .server()
                    .delete(&resource, &object.namespace, &object.name, &options);
                self.effects.report("delete a dependent", deleted.map(|_| ()));
            }
            Fate::Detach(uids) => self.detach(&resource, &object, &uids),
        }
    }

    fn release_if_alone(&self, resource: &Resource, object: &Object) {
        if self.garbage.blocking_dependents(&object.uid) == 0 {
            self.remove_finalizer(resource, object, FOREGROUND);
        }
    }

    fn orphan_dependents(&mut self, resource: &Resource, owner: &Object) {
        let dependents: Vec<Place> = self
            .garbage
            .dependents
            .get(&owner.uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        for (collection, key) in dependents {
            let (Some(object), Some(resource)) = (
                self.effects.server().store().get(&collection, &key),
                self.resource_of(&collection),
            ) else {
                continue;
            };
            self.detach(&resource, &object, &[owner.uid.to_string()]);
        }
        self.remove_finalizer(resource, owner, ORPHAN);
    }

    fn detach(&self, resource: &Resource, object: &Object, uids: &[String]) {
        let detached =
            self.effects
                .server()
                .modify(resource, &object.namespace, &object.name, Endpoint::Main, |value| {
                    let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() else {
                        return false;
                    };
                    owners.retain(|o| !uids.iter().any(|uid| o["uid"] == uid.as_str()));
                    if owners.is_empty() {
                        value["metadata"].as_object_mut().map(|m| m.remove("ownerReferences"));
                    }
                    true
                });
        self.effects
            .report("detach a dependent from its owner", detached.map(|_| ()));
    }

    fn remove_finalizer(&self, resource: &Resource, object: &Object, finalizer: &str) {
        let removed =
            self.effects
                .server()
                .modify(resource, &object.namespace, &object.name, Endpoint::Main, |value| {
                    without_finalizer(value, finalizer)
                });
        self.effects.report("release an owner", removed.map(|_| ()));
    }

    /// Any served version of the resource stored in a collection.
    pub(crate) fn resource_of(&self, collection: &str) -> Option<Arc<Resource>> {
        let (plural, group) = collection.split_once('.').unwrap_or((collection, ""));
        self.effects.server().resource(group, plural)
    }

    /// Looks again at everything that depends on an owner that may have been released.
    pub(crate) fn recheck_namespace(&mut self, namespace: &str) {
        let is_terminating = self
            .world
            .namespaces
            .get(namespace)
            .is_some_and(|n| n.metadata.deletion_timestamp.is_some());
        if is_terminating {
            self.enqueue(Task::Namespace(Arc::from(namespace)));
        }
    }
}

/// Takes a finalizer out of a tree; false if it was not there.
pub(crate) fn without_finalizer(value: &mut Value, finalizer: &str) -> bool {
    let Some(list) = value["metadata"]["finalizers"].as_array_mut() else {
        return false;
    };
    let before = list.len();
    list.retain(|f| f != finalizer);
    if list.len() == before {
        return false;
    }
    if list.is_empty() {
        value["metadata"].as_object_mut().map(|m| m.remove("finalizers"));
    }
    true
}

fn metadata(object: &Object) -> ObjectMeta {
    #[derive(serde::Deserialize)]
    struct Meta {
        metadata: ObjectMeta,
    }
    parse::<Meta>(object).map(|m| m.metadata).unwrap_or_default()
}

/// Whether the stored text mentions `needle` at all: cheaper than parsing what most objects don't have.
fn mentions(object: &Object, needle: &str) -> bool {
    std::str::from_utf8(object.json()).is_ok_and(|text| text.contains(needle))
}
