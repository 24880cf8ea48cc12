//! What a buffer may refer to for the shape of its pods: PodTemplates and workloads.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use karpenter_api::CapacityBuffer;
use karpenter_api::capacity_buffer::ScalableRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::runner::Controller;
use crate::watch::{Cache, Key};

/// The pods that an object makes, and how many.
#[derive(Debug, PartialEq)]
pub(super) struct Source {
    /// Changes with the spec; a status is no news.
    pub(super) generation: Option<i64>,
    /// `None` for a PodTemplate, which makes none by itself.
    pub(super) replicas: Option<i32>,
    pub(super) template: PodTemplateSpec,
}

/// The kinds of workloads that a `scalableRef` may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadKind {
    Deployment,
    StatefulSet,
    ReplicaSet,
}

impl WorkloadKind {
    /// The kind that a reference means; the error says what it may mean.
    pub(super) fn of(reference: &ScalableRef) -> Result<Self, String> {
        let group = reference.api_group.as_deref().filter(|group| !group.is_empty());
        if let Some(group) = group.filter(|group| *group != "apps") {
            return Err(format!(
                "scalableRef.apiGroup {group:?} is not supported, only \"apps\" is"
            ));
        }
        match reference.kind.as_str() {
            "Deployment" => Ok(Self::Deployment),
            "StatefulSet" => Ok(Self::StatefulSet),
            "ReplicaSet" => Ok(Self::ReplicaSet),
            kind => Err(format!(
                "scalableRef.kind {kind:?} is not supported; it may be Deployment, StatefulSet or ReplicaSet"
            )),
        }
    }
}

/// A watch per kind.
#[derive(Debug)]
pub(super) struct Sources {
    templates: Arc<Cache<Source>>,
    deployments: Arc<Cache<Source>>,
    stateful_sets: Arc<Cache<Source>>,
    replica_sets: Arc<Cache<Source>>,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            templates: Cache::new("PodTemplate"),
            deployments: Cache::new("Deployment"),
            stateful_sets: Cache::new("StatefulSet"),
            replica_sets: Cache::new("ReplicaSet"),
        }
    }
}

impl Sources {
    pub(super) fn run(&self, tasks: &mut JoinSet<()>, client: &Client, clock: &Clock) {
        let config = watcher::Config::default;
        let templates: Api<PodTemplate> = Api::all(client.clone());
        let feed = self
            .templates
            .clone()
            .feed(templates, config(), clock.clone(), |object| Source {
                generation: object.metadata.generation,
                replicas: None,
                template: object.template.unwrap_or_default(),
            });
        tasks.spawn(feed);
        let deployments: Api<Deployment> = Api::all(client.clone());
        let feed = self
            .deployments
            .clone()
            .feed(deployments, config(), clock.clone(), |object| {
                let generation = object.metadata.generation;
                let (replicas, template) = object
                    .spec
                    .map(|spec| (spec.replicas, spec.template))
                    .unwrap_or_default();
                workload(generation, replicas, template)
            });
        tasks.spawn(feed);
        let stateful_sets: Api<StatefulSet> = Api::all(client.clone());
        let feed = self
            .stateful_sets
            .clone()
            .feed(stateful_sets, config(), clock.clone(), |object| {
                let generation = object.metadata.generation;
                let (replicas, template) = object
                    .spec
                    .map(|spec| (spec.replicas, spec.template))
                    .unwrap_or_default();
                workload(generation, replicas, template)
            });
        tasks.spawn(feed);
        let replica_sets: Api<ReplicaSet> = Api::all(client.clone());
        let feed = self
            .replica_sets
            .clone()
            .feed(replica_sets, config(), clock.clone(), |object| {
                let generation = object.metadata.generation;
                let (replicas, template) = object
                    .spec
                    .map(|spec| (spec.replicas, spec.template.unwrap_or_default()))
                    .unwrap_or_default();
                workload(generation, replicas, template)
            });
        tasks.spawn(feed);
    }

    pub(super) async fn synced(&self) {
        self.templates.synced().await;
        self.deployments.synced().await;
        self.stateful_sets.synced().await;
        self.replica_sets.synced().await;
    }

    pub(super) fn template(&self, namespace: &str, name: &str) -> Option<Arc<Source>> {
        self.templates.get(&Key::namespaced(namespace, name))
    }

    pub(super) fn workload(&self, kind: WorkloadKind, namespace: &str, name: &str) -> Option<Arc<Source>> {
        self.of_kind(kind).get(&Key::namespaced(namespace, name))
    }

    fn of_kind(&self, kind: WorkloadKind) -> &Arc<Cache<Source>> {
        match kind {
            WorkloadKind::Deployment => &self.deployments,
            WorkloadKind::StatefulSet => &self.stateful_sets,
            WorkloadKind::ReplicaSet => &self.replica_sets,
        }
    }

    /// Has `controller` look at the buffers that refer to an object whenever that is created, deleted or edited.
    pub(super) fn wake_buffers(
        &self,
        controller: Controller<Key>,
        buffers: &Arc<Cache<CapacityBuffer>>,
    ) -> Controller<Key> {
        let mut controller = watch(controller, &self.templates, buffers, |buffer, name| {
            buffer
                .spec
                .pod_template_ref
                .as_ref()
                .is_some_and(|named| named.name == name)
        });
        for kind in [
            WorkloadKind::Deployment,
            WorkloadKind::StatefulSet,
            WorkloadKind::ReplicaSet,
        ] {
            controller = watch(controller, self.of_kind(kind), buffers, move |buffer, name| {
                let reference = buffer.spec.scalable_ref.as_ref();
                reference.is_some_and(|named| named.name == name && WorkloadKind::of(named) == Ok(kind))
            });
        }
        controller
    }
}

fn workload(generation: Option<i64>, replicas: Option<i32>, template: PodTemplateSpec) -> Source {
    Source {
        generation,
        replicas: Some(replicas.unwrap_or(1)),
        template,
    }
}

fn watch(
    controller: Controller<Key>,
    sources: &Arc<Cache<Source>>,
    buffers: &Arc<Cache<CapacityBuffer>>,
    refers: impl Fn(&CapacityBuffer, &str) -> bool + Send + Sync + 'static,
) -> Controller<Key> {
    let buffers = buffers.clone();
    controller.watches(sources, move |change| {
        // Equal by value: a workload's status changes with every pod.
        if change.old == change.new {
            return Vec::new();
        }
        let concerned = buffers.list().into_iter();
        concerned
            .filter(|buffer| buffer.namespace().as_deref() == Some(&*change.key.namespace))
            .filter(|buffer| refers(buffer, &change.key.name))
            .map(|buffer| Key::of(&*buffer))
            .collect()
    })
}
