//! Everything the controllers know, indexed by what they ask for; fed by the store's feed and by nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;

use super::node::NodeFacts;
use super::pod::{PodFacts, PodReader};
use crate::object::Object;
use crate::store::Change;

/// The controllers' memory of the cluster.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: BTreeMap<Arc<str>, Arc<PodFacts>>,
    pods_by_node: FxHashMap<Arc<str>, BTreeSet<Arc<str>>>,
    pods_by_owner: FxHashMap<String, BTreeSet<Arc<str>>>,
    /// Pods without a controller.
    orphans: BTreeSet<Arc<str>>,
    pub(crate) nodes: BTreeMap<Arc<str>, Arc<NodeFacts>>,
    pub(crate) leases: BTreeMap<String, Timestamp>,
    pub(crate) replica_sets: Kinds<ReplicaSet>,
    pub(crate) deployments: Kinds<Deployment>,
    pub(crate) stateful_sets: Kinds<StatefulSet>,
    pub(crate) daemon_sets: Kinds<DaemonSet>,
    pub(crate) revisions: Kinds<ControllerRevision>,
    pub(crate) jobs: Kinds<Job>,
    pub(crate) budgets: Kinds<PodDisruptionBudget>,
    pub(crate) namespaces: Kinds<Namespace>,
    reader: PodReader,
}

/// Objects of one kind by `namespace/name`.
#[derive(Debug)]
pub(crate) struct Kinds<T>(pub(crate) BTreeMap<Arc<str>, Arc<T>>);

impl<T> Default for Kinds<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: DeserializeOwned> Kinds<T> {
    pub(crate) fn get(&self, key: &str) -> Option<&Arc<T>> {
        self.0.get(key)
    }

    /// Applies a change and returns the object's key and present content.
    pub(crate) fn apply(&mut self, change: Change, object: &Object) -> (Arc<str>, Option<Arc<T>>) {
        let key: Arc<str> = Arc::from(&*object.key);
        let parsed = match change {
            Change::Deleted => None,
            Change::Added | Change::Modified => parse::<T>(object).map(Arc::new),
        };
        match &parsed {
            Some(parsed) => self.0.insert(Arc::clone(&key), Arc::clone(parsed)),
            None => self.0.remove(&key),
        };
        (key, parsed)
    }

    /// The objects of one namespace.
    pub(crate) fn in_namespace<'k>(&'k self, namespace: &str) -> impl Iterator<Item = (&'k Arc<str>, &'k Arc<T>)> {
        let start: Arc<str> = format!("{namespace}/").into();
        let end: Arc<str> = format!("{namespace}0").into();
        self.0.range(start..end)
    }
}

/// A pod before and after a change.
#[derive(Debug)]
pub(crate) struct PodChange {
    pub(crate) old: Option<Arc<PodFacts>>,
    pub(crate) new: Option<Arc<PodFacts>>,
}

impl World {
    pub(crate) fn apply_pod(&mut self, change: Change, object: &Object) -> PodChange {
        let old = self.pods.get(&*object.key).cloned();
        let new = match change {
            Change::Deleted => None,
            Change::Added | Change::Modified => {
                parse::<Pod>(object).map(|pod| Arc::new(self.reader.read(pod, old.as_deref())))
            }
        };
        if let Some(old) = &old {
            self.unindex(old);
        }
        match &new {
            Some(new) => {
                self.index(new);
                self.pods.insert(Arc::clone(&new.key), Arc::clone(new));
            }
            None => {
                self.pods.remove(&*object.key);
            }
        }
        PodChange { old, new }
    }

    pub(crate) fn apply_node(&mut self, change: Change, object: &Object) -> Option<Arc<NodeFacts>> {
        match change {
            Change::Deleted => {
                self.nodes.remove(&*object.name);
                None
            }
            Change::Added | Change::Modified => {
                let facts = Arc::new(NodeFacts::new(parse::<Node>(object)?));
                self.nodes.insert(Arc::clone(&facts.name), Arc::clone(&facts));
                Some(facts)
            }
        }
    }

    pub(crate) fn apply_lease(&mut self, change: Change, object: &Object, now: Timestamp) {
        match change {
            Change::Deleted => {
                self.leases.remove(&*object.name);
            }
            Change::Added | Change::Modified => {
                let renewed = parse::<Lease>(object).and_then(|l| l.spec?.renew_time);
                if renewed.is_some() {
                    self.leases.insert(object.name.to_string(), now);
                }
            }
        }
    }

    pub(crate) fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.lookup(self.pods_by_node.get(node))
    }

    pub(crate) fn pods_owned_by(&self, uid: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.lookup(self.pods_by_owner.get(uid))
    }

    /// The namespace's pods that no controller looks after.
    pub(crate) fn orphans_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        let start: Arc<str> = format!("{namespace}/").into();
        let end: Arc<str> = format!("{namespace}0").into();
        self.orphans.range(start..end).filter_map(|key| self.pods.get(key))
    }

    pub(crate) fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        let start: Arc<str> = format!("{namespace}/").into();
        let end: Arc<str> = format!("{namespace}0").into();
        self.pods.range(start..end).map(|(_, pod)| pod)
    }

    fn lookup<'w>(&'w self, keys: Option<&'w BTreeSet<Arc<str>>>) -> impl Iterator<Item = &'w Arc<PodFacts>> {
        keys.into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    fn index(&mut self, pod: &PodFacts) {
        if pod.controller.is_none() {
            self.orphans.insert(Arc::clone(&pod.key));
        }
        if let Some(node) = &pod.node {
            self.pods_by_node
                .entry(Arc::clone(node))
                .or_default()
                .insert(Arc::clone(&pod.key));
        }
        if let Some(owner) = &pod.controller {
            self.pods_by_owner
                .entry(owner.uid.clone())
                .or_default()
                .insert(Arc::clone(&pod.key));
        }
    }

    fn unindex(&mut self, pod: &PodFacts) {
        self.orphans.remove(&pod.key);
        if let Some(node) = &pod.node
            && let Some(keys) = self.pods_by_node.get_mut(node)
        {
            keys.remove(&pod.key);
            if keys.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
        if let Some(owner) = &pod.controller
            && let Some(keys) = self.pods_by_owner.get_mut(&owner.uid)
        {
            keys.remove(&pod.key);
            if keys.is_empty() {
                self.pods_by_owner.remove(&owner.uid);
            }
        }
    }
}

/// Objects that do not have their type's shape are left out; the server does not store such built-ins.
pub(crate) fn parse<T: DeserializeOwned>(object: &Object) -> Option<T> {
    match object.parse() {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            tracing::warn!(object = %object.key, %error, "a stored object does not have the shape of its type");
            None
        }
    }
}
