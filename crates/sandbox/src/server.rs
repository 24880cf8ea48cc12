//! The API server's rules for reading and writing objects; HTTP and the controllers of this process both come here.

mod binding;
mod create;
mod definitions;
mod delete;
mod eviction;
mod normalise;
mod patch;
mod scale;
mod update;

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::clock::Clock;
use crate::object::{Object, key};
use crate::resource::Resource;
use crate::resource::registry::{Lookup, Registry};
use crate::settle::Progress;
use crate::status::ApiError;
use crate::store::{Snapshot, Store};

pub(crate) use definitions::version_priority;
pub use delete::{DeleteOptions, Propagation};
pub use normalise::FieldValidation;
pub use patch::Patch;

/// The state of one API server.
#[derive(Debug)]
pub struct Server {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    pub(crate) progress: Arc<Progress>,
    registry: RwLock<Registry>,
    /// Held from the read to the write of every change: one writer at a time.
    writer: Mutex<()>,
    random: Mutex<StdRng>,
    budget_refresher: OnceLock<BudgetRefresher>,
}

/// Brings the status of a namespace's disruption budgets up to date.
struct BudgetRefresher(Box<dyn Fn(&str) + Send + Sync>);

impl std::fmt::Debug for BudgetRefresher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("BudgetRefresher")
    }
}

/// What a write may ask for besides the change itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub field_manager: String,
    /// Fields that stood twice in the request's body.
    pub repeated_fields: Vec<String>,
}

/// Which part of an object a write is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Main,
    Status,
    /// A namespace's `/finalize`.
    Finalize,
}

/// The answer to a write.
#[derive(Clone, Debug)]
pub struct Written {
    pub object: Arc<Object>,
    pub outcome: Outcome,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Updated,
    /// The object was already so; nothing was stored.
    Unchanged,
    /// The object is on its way out: a deletionTimestamp was set.
    Terminating,
    Removed,
}

impl Server {
    pub(crate) fn new(clock: Clock, seed: u64) -> Arc<Self> {
        let progress = Arc::new(Progress::default());
        Arc::new(Self {
            store: Arc::new(Store::new(Arc::clone(&progress))),
            clock,
            progress,
            registry: RwLock::new(Registry::new()),
            writer: Mutex::new(()),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            budget_refresher: OnceLock::new(),
        })
    }

    /// Has `refresh` called with the namespace before every eviction, so that it sees what came before it.
    ///
    /// The first caller wins; the controller of disruption budgets is meant.
    pub fn refresh_budgets_with(&self, refresh: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.budget_refresher.set(BudgetRefresher(Box::new(refresh)));
    }

    fn refresh_budgets(&self, namespace: &str) {
        if let Some(BudgetRefresher(refresh)) = self.budget_refresher.get() {
            refresh(namespace);
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The resource at `group/version/plural`.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Resource>, ApiError> {
        match self.registry.read().find(group, version, plural) {
            Lookup::Found(resource) => Ok(resource),
            Lookup::UnknownResource => Err(ApiError::unknown_resource()),
            Lookup::UnknownGroup => Err(ApiError::page_not_found()),
        }
    }

    /// Any served version of a resource, if it is served.
    pub fn resource(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        self.registry.read().by_plural(group, plural)
    }

    /// The resource of a kind, in any version.
    pub fn resource_of_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        self.registry.read().by_group_kind(group, kind)
    }

    /// The resource of a kind in a certain version.
    pub fn resource_of_version(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.registry.read().by_kind(group, version, kind)
    }

    /// Every served resource, in the order of discovery.
    pub fn resources(&self) -> Vec<Arc<Resource>> {
        self.registry.read().all().cloned().collect()
    }

    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Arc<Object>, ApiError> {
        self.store
            .get(&resource.collection, &key(namespace, name))
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, name))
    }

    /// The newest objects of a namespace, or of all namespaces if it is empty.
    pub fn list(&self, resource: &Resource, namespace: &str) -> Snapshot {
        self.store.list(&resource.collection, namespace)
    }

    /// The present, in whole seconds as timestamps show it.
    pub(crate) fn now_text(&self) -> Value {
        time_text(self.clock.now()).into()
    }

    pub(crate) fn random_suffix(&self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut random = self.random.lock();
        (0..5)
            .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
            .collect()
    }

    pub(crate) fn new_uid(&self) -> String {
        uuid::Builder::from_random_bytes(self.random.lock().random())
            .into_uuid()
            .to_string()
    }
}

/// RFC 3339 in UTC and whole seconds.
pub(crate) fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Server {
    /// What the server itself does after an object was stored.
    fn after_write(&self, resource: &Resource, object: &Arc<Object>) {
        if *resource.collection == *definitions::DEFINITIONS && !object.terminating {
            self.establish(resource, object);
        }
        if resource.is("", "Namespace") && !object.terminating {
            self.furnish_namespace(&object.name);
        }
    }

    /// Puts into a namespace what every namespace has.
    fn furnish_namespace(&self, namespace: &str) {
        for (plural, body) in [
            ("serviceaccounts", serde_json::json!({"metadata": {"name": "default"}})),
            (
                "configmaps",
                serde_json::json!({
                    "metadata": {"name": "kube-root-ca.crt"},
                    "data": {"ca.crt": "the sandbox has no certificate authority of its own\n"},
                }),
            ),
        ] {
            let resource = self.resource("", plural).expect("built in");
            let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.store.get(&resource.collection, &key(namespace, &name)).is_none() {
                // It can't fail: the namespace was just stored and the name is free.
                let _ = self.create_locked(&resource, namespace, body, &WriteOptions::default(), None);
            }
        }
    }

    /// What the server itself does after an object is gone.
    fn after_removal(&self, resource: &Resource, _object: &Arc<Object>) {
        if resource.is_custom() {
            self.finish_definition(&resource.collection);
        }
    }
}
