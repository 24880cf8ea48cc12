//! The kinds this process watches, once each.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::AnnotationNames;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::lean_pod::LeanPod;
use super::packed_pod::PodPacker;
use super::{Cache, Workloads, protection, trim};
use crate::clock::Clock;

/// Pods are read in small pages: a page of whole pods is held in memory before it is cut down.
const POD_PAGE: u32 = 100;

/// All caches. Nothing is in them until [`Watches::run`].
#[derive(Clone, Debug)]
pub struct Watches {
    /// Nodes, without their images.
    pub nodes: Arc<Cache<Node>>,
    /// NodeClaims, also those of other providers.
    pub claims: Arc<Cache<NodeClaim>>,
    /// NodePools, also those of other providers.
    pub pools: Arc<Cache<NodePool>>,
    /// Pods, cut down to what disruption and termination read: no containers, affinity or spread.
    pub pods: Arc<Cache<Pod>>,
    /// DaemonSets.
    pub daemon_sets: Arc<Cache<DaemonSet>>,
    /// PodDisruptionBudgets.
    pub budgets: Arc<Cache<PodDisruptionBudget>>,
    /// PersistentVolumeClaims.
    pub volume_claims: Arc<Cache<PersistentVolumeClaim>>,
    /// PersistentVolumes.
    pub volumes: Arc<Cache<PersistentVolume>>,
    /// StorageClasses.
    pub storage_classes: Arc<Cache<StorageClass>>,
    /// CSINodes.
    pub csi_nodes: Arc<Cache<CSINode>>,
    /// VolumeAttachments.
    pub volume_attachments: Arc<Cache<VolumeAttachment>>,
    /// Namespaces.
    pub namespaces: Arc<Cache<Namespace>>,
    /// What default spread constraints select by; empty unless they are configured.
    pub workloads: Workloads,
    running: Arc<AtomicBool>,
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            nodes: Cache::new("Node"),
            claims: Cache::new("NodeClaim"),
            pools: Cache::new("NodePool"),
            pods: Cache::packing("Pod", PodPacker::default()),
            daemon_sets: Cache::new("DaemonSet"),
            budgets: Cache::new("PodDisruptionBudget"),
            volume_claims: Cache::new("PersistentVolumeClaim"),
            volumes: Cache::new("PersistentVolume"),
            storage_classes: Cache::new("StorageClass"),
            csi_nodes: Cache::new("CSINode"),
            volume_attachments: Cache::new("VolumeAttachment"),
            namespaces: Cache::new("Namespace"),
            workloads: Workloads::default(),
            running: Arc::default(),
        }
    }
}

impl Watches {
    /// Watches every kind until the returned set is dropped or aborted. `sees_pod` gets each pod with its containers and
    /// constraints, before it is cut down further.
    pub fn run(
        &self,
        client: &Client,
        clock: &Clock,
        names: AnnotationNames,
        sees_pod: impl Fn(&Pod) + Send + Sync + 'static,
    ) -> JoinSet<()> {
        self.running.store(true, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        let watch = Watch { client, clock };
        watch.start(&mut tasks, &self.namespaces, trim::object);
        watch.start(&mut tasks, &self.storage_classes, trim::object);
        watch.start(&mut tasks, &self.volumes, trim::object);
        watch.start(&mut tasks, &self.volume_claims, trim::object);
        watch.start(&mut tasks, &self.csi_nodes, trim::object);
        watch.start(&mut tasks, &self.volume_attachments, trim::object);
        watch.start(&mut tasks, &self.budgets, trim::object);
        watch.start(&mut tasks, &self.daemon_sets, trim::daemon_set);
        watch.start(&mut tasks, &self.pools, trim::object);
        watch.start(&mut tasks, &self.claims, trim::object);
        watch.start(&mut tasks, &self.nodes, move |mut node| {
            protection::read_node(names, &mut node);
            trim::node(node)
        });
        watch.start_paged(&mut tasks, &self.pods, POD_PAGE, move |LeanPod(mut pod)| {
            protection::read_pod(names, &mut pod);
            sees_pod(&pod);
            trim::pod(pod)
        });
        tasks
    }

    /// Whether the watches were started.
    pub fn are_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Resolves once every kind has been listed.
    pub async fn synced(&self) {
        self.namespaces.synced().await;
        self.storage_classes.synced().await;
        self.volumes.synced().await;
        self.volume_claims.synced().await;
        self.csi_nodes.synced().await;
        self.volume_attachments.synced().await;
        self.budgets.synced().await;
        self.daemon_sets.synced().await;
        self.pools.synced().await;
        self.claims.synced().await;
        self.nodes.synced().await;
        self.pods.synced().await;
    }

    /// The kinds that have not been listed yet.
    pub fn unsynced(&self) -> Vec<&'static str> {
        let all = [
            (self.namespaces.kind(), self.namespaces.is_synced()),
            (self.storage_classes.kind(), self.storage_classes.is_synced()),
            (self.volumes.kind(), self.volumes.is_synced()),
            (self.volume_claims.kind(), self.volume_claims.is_synced()),
            (self.csi_nodes.kind(), self.csi_nodes.is_synced()),
            (self.volume_attachments.kind(), self.volume_attachments.is_synced()),
            (self.budgets.kind(), self.budgets.is_synced()),
            (self.daemon_sets.kind(), self.daemon_sets.is_synced()),
            (self.pools.kind(), self.pools.is_synced()),
            (self.claims.kind(), self.claims.is_synced()),
            (self.nodes.kind(), self.nodes.is_synced()),
            (self.pods.kind(), self.pods.is_synced()),
        ];
        all.into_iter()
            .filter(|(_, synced)| !synced)
            .map(|(kind, _)| kind)
            .collect()
    }
}

struct Watch<'a> {
    client: &'a Client,
    clock: &'a Clock,
}

impl Watch<'_> {
    fn start<K>(&self, tasks: &mut JoinSet<()>, cache: &Arc<Cache<K>>, trim: impl Fn(K) -> K + Send + Sync + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.start_paged(tasks, cache, 500, trim);
    }

    fn start_paged<K, V>(
        &self,
        tasks: &mut JoinSet<()>,
        cache: &Arc<Cache<V>>,
        page: u32,
        project: impl Fn(K) -> V + Send + Sync + 'static,
    ) where
        V: Send + Sync + 'static,
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let config = watcher::Config::default().page_size(page);
        let api = Api::<K>::all(self.client.clone());
        tasks.spawn(cache.clone().feed(api, config, self.clock.clone(), project));
    }
}
