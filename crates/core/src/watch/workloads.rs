//! What default spread constraints select by: Services and the controllers of pods (scheduling.md §5.9).
//!
//! Watched only when `--scheduler-config` sets default constraints; nothing else reads these kinds.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use karpenter_engine::convert;
use karpenter_engine::model::{LabelSelector, Labels, WorkloadSelectors};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinSet;

use super::{Cache, Key};
use crate::clock::Clock;

/// Selectors of Services, ReplicationControllers, ReplicaSets and StatefulSets.
#[derive(Clone, Debug)]
pub struct Workloads {
    services: Arc<Cache<Labels>>,
    replication_controllers: Arc<Cache<LabelSelector>>,
    replica_sets: Arc<Cache<LabelSelector>>,
    stateful_sets: Arc<Cache<LabelSelector>>,
}

impl Default for Workloads {
    fn default() -> Self {
        Self {
            services: Cache::new("Service"),
            replication_controllers: Cache::new("ReplicationController"),
            replica_sets: Cache::new("ReplicaSet"),
            stateful_sets: Cache::new("StatefulSet"),
        }
    }
}

impl Workloads {
    /// Watches the four kinds, as tasks of `tasks`.
    pub fn run(&self, tasks: &mut JoinSet<()>, client: &Client, clock: &Clock) {
        let config = watcher::Config::default;
        let services: Api<Service> = Api::all(client.clone());
        tasks.spawn(
            self.services
                .clone()
                .feed(services, config(), clock.clone(), |service| {
                    service.spec.and_then(|spec| spec.selector).unwrap_or_default()
                }),
        );
        let controllers: Api<ReplicationController> = Api::all(client.clone());
        tasks.spawn(
            self.replication_controllers
                .clone()
                .feed(controllers, config(), clock.clone(), |controller| {
                    let selector = controller.spec.and_then(|spec| spec.selector).unwrap_or_default();
                    LabelSelector::labels(selector.iter().map(|(key, value)| (key.as_str(), value.as_str())))
                }),
        );
        let replica_sets: Api<ReplicaSet> = Api::all(client.clone());
        tasks.spawn(
            self.replica_sets
                .clone()
                .feed(replica_sets, config(), clock.clone(), |set| {
                    convert::label_selector(set.spec.as_ref().map(|spec| &spec.selector))
                }),
        );
        let stateful_sets: Api<StatefulSet> = Api::all(client.clone());
        tasks.spawn(
            self.stateful_sets
                .clone()
                .feed(stateful_sets, config(), clock.clone(), |set| {
                    convert::label_selector(set.spec.as_ref().map(|spec| &spec.selector))
                }),
        );
    }

    /// Resolves once all four kinds have been listed.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.replication_controllers.synced().await;
        self.replica_sets.synced().await;
        self.stateful_sets.synced().await;
    }

    /// The selectors as the engine wants them.
    pub fn selectors(&self) -> WorkloadSelectors {
        let mut selectors = WorkloadSelectors::default();
        for (key, selector) in sorted(&self.services) {
            if !selector.is_empty() {
                selectors
                    .services
                    .entry(key.namespace.to_string())
                    .or_default()
                    .push((*selector).clone());
            }
        }
        let kinds = [
            ("ReplicationController", &self.replication_controllers),
            ("ReplicaSet", &self.replica_sets),
            ("StatefulSet", &self.stateful_sets),
        ];
        for (kind, cache) in kinds {
            for (key, selector) in sorted(cache) {
                let id = (key.namespace.to_string(), kind.to_owned(), key.name.to_string());
                selectors.controllers.insert(id, (*selector).clone());
            }
        }
        selectors
    }
}

fn sorted<V: Send + Sync + 'static>(cache: &Cache<V>) -> Vec<(Key, Arc<V>)> {
    let mut entries = cache.entries();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}
