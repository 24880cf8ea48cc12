//! What every controller is built from.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::labels::LabelRules;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::overlay::OverlaidProvider;
use karpenter_cloud::{CloudProvider, NodeClassKind};
use kube::Client;
use tokio::task::JoinSet;

use crate::capacity_buffers::Buffers;
use crate::catalogs::Catalogs;
use crate::claims::Claims;
use crate::clock::Clock;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::node_classes::NodeClasses;
use crate::node_overlays::Overlays;
use crate::nodepool::health::PoolHealth;
use crate::nodes::Nodes;
use crate::options::Options;
use crate::pools::Pools;
use crate::relations::Relations;
use crate::runner::Runner;
use crate::state::Cluster;
use crate::watch::{Cache, Watches};

/// Handles to everything shared; a clone costs a few reference counts.
#[derive(Clone)]
pub struct Context {
    /// The guarded client: rate limited, and held back while this process does not lead.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// Where events are published.
    pub events: Recorder,
    /// Where metrics are registered and shared ones counted.
    pub metrics: Metrics,
    /// What the administrator chose.
    pub options: Arc<Options>,
    /// The cloud, decorated with metrics, the write gate and, where they are on, NodeOverlays.
    pub cloud: Arc<dyn CloudProvider>,
    /// Runs controllers.
    pub runner: Runner,
    /// The cluster as facts, for decisions.
    pub state: Arc<Cluster>,
    /// What can be launched.
    pub catalogs: Arc<Catalogs>,
    /// Which labels mean something, extended by the provider.
    pub rules: Arc<LabelRules>,
    /// Whose objects are ours.
    pub managed: Managed,
    /// Nodes.
    pub nodes: Arc<Cache<Node>>,
    /// NodeClaims, also those of other providers.
    pub claims: Arc<Cache<NodeClaim>>,
    /// NodePools, also those of other providers.
    pub pools: Arc<Cache<NodePool>>,
    /// Pods, cut down to what disruption and termination read.
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
    /// All caches together, for whoever starts them.
    pub watches: Watches,
    /// The provider's NodeClasses.
    pub node_classes: NodeClasses,
    /// NodeOverlays, while their feature gate is on.
    pub overlays: Option<Overlays>,
    /// CapacityBuffers, while their feature gate is on.
    pub buffers: Option<Arc<Buffers>>,
    /// Who belongs to whom.
    pub relations: Arc<Relations>,
    /// How the launches of each NodePool went.
    pub pool_health: Arc<PoolHealth>,
    /// The one writer of NodeClaims.
    pub claim_writer: Claims,
    /// The one writer of Nodes.
    pub node_writer: Nodes,
    /// The one writer of NodePools.
    pub pool_writer: Pools,
    /// The Namespace that Karpenter runs in, where that is known.
    pub home: Option<Arc<str>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("cloud", &self.cloud.name())
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Everything wired together; nothing runs and nothing is watched yet.
    pub fn new(
        client: Client,
        clock: Clock,
        options: Arc<Options>,
        metrics: Metrics,
        cloud: Arc<dyn CloudProvider>,
    ) -> Self {
        let watches = Watches::default();
        let rules = Arc::new(cloud.extend_label_rules(LabelRules::default()));
        let managed = Managed::by(&*cloud);
        let runner = Runner::new(clock.clone(), &metrics.registry);
        let state = Cluster::new(
            clock.clone(),
            &options,
            rules.clone(),
            managed.clone(),
            &metrics.registry,
        );
        state.observe(&watches);
        let gates = &options.feature_gates;
        let overlays = gates.node_overlay.then(|| Overlays::new(cloud.clone()));
        let buffers = gates.capacity_buffer.then(|| Arc::new(Buffers::new(rules.clone())));
        let cloud: Arc<dyn CloudProvider> = match &overlays {
            Some(overlays) => Arc::new(OverlaidProvider::new(cloud, overlays.store.clone(), (*rules).clone())),
            None => cloud,
        };
        let cloud_for_catalogs = cloud.clone();
        Self {
            node_classes: NodeClasses::of(&*cloud),
            overlays,
            buffers,
            relations: Arc::new(Relations::new(&watches, managed.clone())),
            pool_health: Arc::default(),
            claim_writer: Claims::new(
                client.clone(),
                metrics.shared.clone(),
                clock.clone(),
                watches.claims.clone(),
            ),
            node_writer: Nodes::new(client.clone()),
            pool_writer: Pools::new(client.clone()),
            home: options.own_namespace().map(Arc::from),
            client,
            events: Recorder::new(clock.clone()),
            clock,
            metrics,
            options,
            cloud,
            catalogs: Arc::new(Catalogs::new(
                watches.pools.clone(),
                cloud_for_catalogs,
                managed.clone(),
                rules.clone(),
            )),
            runner,
            state,
            rules,
            managed,
            nodes: watches.nodes.clone(),
            claims: watches.claims.clone(),
            pools: watches.pools.clone(),
            pods: watches.pods.clone(),
            daemon_sets: watches.daemon_sets.clone(),
            budgets: watches.budgets.clone(),
            volume_claims: watches.volume_claims.clone(),
            volumes: watches.volumes.clone(),
            storage_classes: watches.storage_classes.clone(),
            csi_nodes: watches.csi_nodes.clone(),
            volume_attachments: watches.volume_attachments.clone(),
            namespaces: watches.namespaces.clone(),
            watches,
        }
    }

    /// Watches everything that controllers read, until the returned set is dropped or aborted.
    pub fn watch(&self) -> JoinSet<()> {
        let state = self.state.clone();
        let names = self.cloud.annotation_names();
        let mut tasks = self
            .watches
            .run(&self.client, &self.clock, names, move |pod| state.pod_seen(pod));
        self.node_classes.run(&mut tasks, &self.client, &self.clock);
        if let Some(overlays) = &self.overlays {
            overlays.run(&mut tasks, &self.client, &self.clock);
        }
        if let Some(buffers) = &self.buffers {
            buffers.run(&mut tasks, &self.client, &self.clock);
        }
        if self.has_default_spread() {
            self.watches.workloads.run(&mut tasks, &self.client, &self.clock);
        }
        tasks
    }

    /// Resolves once everything that controllers read has been listed.
    pub async fn synced(&self) {
        self.watches.synced().await;
        self.node_classes.synced().await;
        if let Some(overlays) = &self.overlays {
            overlays.objects.synced().await;
        }
        if let Some(buffers) = &self.buffers {
            buffers.synced().await;
        }
        if self.has_default_spread() {
            self.watches.workloads.synced().await;
        }
    }

    /// Whether pods get spread constraints that they do not name themselves.
    pub fn has_default_spread(&self) -> bool {
        !self.options.scheduler_config.default_constraints.is_empty()
    }

    /// The test for [`Controller::runs`](crate::runner::Controller::runs): is this NodeClaim ours?
    pub fn manages_claim(&self) -> impl Fn(&NodeClaim) -> bool + Clone + Send + Sync + 'static {
        let managed = self.managed.clone();
        move |claim| managed.claim(claim)
    }

    /// Is this NodePool ours?
    pub fn manages_pool(&self) -> impl Fn(&NodePool) -> bool + Clone + Send + Sync + 'static {
        let managed = self.managed.clone();
        move |pool| managed.pool(pool)
    }

    /// Is this Node ours?
    pub fn manages_node(&self) -> impl Fn(&Node) -> bool + Clone + Send + Sync + 'static {
        let managed = self.managed.clone();
        move |node| managed.node(node)
    }
}

/// Tells our objects from those of another Karpenter in the same cluster (lifecycle.md §0.2).
#[derive(Clone, Debug)]
pub struct Managed(Arc<[NodeClassKind]>);

impl Managed {
    /// Objects that refer to one of this provider's NodeClasses.
    pub fn by(cloud: &dyn CloudProvider) -> Self {
        Self(cloud.supported_node_classes().into())
    }

    /// By its `nodeClassRef`.
    pub fn claim(&self, claim: &NodeClaim) -> bool {
        let reference = &claim.spec.node_class_ref;
        self.0
            .iter()
            .any(|class| class.is_meant_by(&reference.group, &reference.kind))
    }

    /// By its template's `nodeClassRef`.
    pub fn pool(&self, pool: &NodePool) -> bool {
        let reference = &pool.spec.template.spec.node_class_ref;
        self.0
            .iter()
            .any(|class| class.is_meant_by(&reference.group, &reference.kind))
    }

    /// By the label that ties it to its NodeClass.
    pub fn node(&self, node: &Node) -> bool {
        let Some(labels) = &node.metadata.labels else {
            return false;
        };
        self.0.iter().any(|class| labels.contains_key(&class.label()))
    }
}
