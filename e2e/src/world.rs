//! What a scenario sees of the cluster: nodes, claims and pods kept current by watches, and waiting on them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, NodePool};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Discovery, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::suites::manifests::{Pool, Source};

/// How long it may take until a cluster is empty.
const PATIENCE: Duration = Duration::from_secs(300);

/// A live view. Dropping it ends its watches.
pub(crate) struct World {
    pub(crate) client: Client,
    nodes: reflector::Store<Node>,
    claims: reflector::Store<NodeClaim>,
    pods: reflector::Store<Pod>,
    changed: Arc<Notify>,
    metrics: Option<u16>,
    pub(crate) source: Source,
    _watches: JoinSet<()>,
}

/// The three lists at one moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) claims: Vec<Arc<NodeClaim>>,
    pub(crate) pods: Vec<Arc<Pod>>,
}

// === impl World ===

impl World {
    pub(crate) async fn watch(client: Client) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        let world = Self {
            nodes: follow(&client, &changed, &mut watches),
            claims: follow(&client, &changed, &mut watches),
            pods: follow(&client, &changed, &mut watches),
            client,
            changed,
            metrics: None,
            source: Source::kwok(),
            _watches: watches,
        };
        world.nodes.wait_until_ready().await?;
        world.claims.wait_until_ready().await?;
        world.pods.wait_until_ready().await?;
        Ok(world)
    }

    /// Has pools use another provider's machines than KWOK's.
    pub(crate) fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Remembers where the controller's metrics are.
    pub(crate) fn with_metrics(mut self, port: u16) -> Self {
        self.metrics = Some(port);
        self
    }

    /// What the controller says on /metrics.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let port = self.metrics.context("no controller is known")?;
        crate::controlplane::http_text(&format!("127.0.0.1:{port}"), "/metrics").await
    }

    /// What the API server has at this moment. The watches of a view are not in step: one kind may be ahead of another.
    pub(crate) async fn now(&self) -> Result<View> {
        Ok(View {
            claims: list(&self.client).await?,
            nodes: list(&self.client).await?,
            pods: list(&self.client).await?,
        })
    }

    pub(crate) fn view(&self) -> View {
        View {
            nodes: self.nodes.state(),
            claims: self.claims.state(),
            pods: self.pods.state(),
        }
    }

    /// Waits until the view satisfies `holds`; says what it saw last when that does not happen in time.
    pub(crate) async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&View) -> bool) -> Result<()> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if holds(&self.view()) {
                    return;
                }
                // Some conditions depend on time alone; look again once a second even if nothing changes.
                let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
            }
        };
        match tokio::time::timeout(limit, wait).await {
            Ok(()) => Ok(()),
            Err(_) => bail!("{what}: not within {limit:?}; {}", self.view().summary()),
        }
    }

    /// Checks that something stays true for a while.
    pub(crate) async fn throughout(&self, what: &str, time: Duration, holds: impl Fn(&View) -> bool) -> Result<()> {
        let end = tokio::time::Instant::now() + time;
        loop {
            let changed = self.changed.notified();
            if !holds(&self.view()) {
                bail!("{what}: no longer true; {}", self.view().summary());
            }
            if tokio::time::timeout_at(end, changed).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Applies every document of a YAML text, server-side.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        apply(&self.client, yaml).await
    }

    /// Applies the class that the machines of pools come from.
    pub(crate) async fn apply_class(&self) -> Result<()> {
        self.apply(&self.source.class).await
    }

    /// Applies a pool and the class that its machines come from.
    pub(crate) async fn apply_pool(&self, pool: &Pool) -> Result<()> {
        self.apply(&pool.yaml(&self.source)).await
    }

    pub(crate) async fn scale(&self, deployment: &str, replicas: i32) -> Result<()> {
        scale(&self.client, deployment, replicas).await
    }

    /// Deletes workloads and pools and waits until no claim and no node of ours is left.
    pub(crate) async fn clear(&self) -> Result<()> {
        use k8s_openapi::api::{
            apps::v1::{DaemonSet, Deployment, StatefulSet},
            batch::v1::Job,
            core::v1::{PersistentVolume, PersistentVolumeClaim},
            policy::v1::PodDisruptionBudget,
            storage::v1::StorageClass,
        };
        let everything = ListParams::default();
        let how = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let client = &self.client;
        Api::<Deployment>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<StatefulSet>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<DaemonSet>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<Job>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<PodDisruptionBudget>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<Pod>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<PersistentVolumeClaim>::default_namespaced(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<PersistentVolume>::all(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<StorageClass>::all(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        Api::<NodePool>::all(client.clone())
            .delete_collection(&how, &everything)
            .await?;
        self.until("the cluster is empty", PATIENCE, |view| {
            view.claims.is_empty() && view.nodes.is_empty() && view.pods.is_empty()
        })
        .await?;
        // Volumes go after the pods that used them, and the next case wants their names.
        let volumes_gone = async {
            let volumes = Api::<PersistentVolume>::all(client.clone());
            let volume_claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
            while !volumes.list(&everything).await?.items.is_empty()
                || !volume_claims.list(&everything).await?.items.is_empty()
            {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, volumes_gone)
            .await
            .context("volumes stay")?
    }
}

/// Applies every document of a YAML text with server-side apply.
pub(crate) async fn apply(client: &Client, yaml: &str) -> Result<()> {
    send(client, yaml, &PatchParams::apply("karpenter-e2e").force()).await
}

pub(crate) async fn scale(client: &Client, deployment: &str, replicas: i32) -> Result<()> {
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::default_namespaced(client.clone());
    let patch = serde_json::json!({ "spec": { "replicas": replicas } });
    deployments
        .patch_scale(deployment, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Has the API server go through everything but the storing.
pub(crate) async fn dry_run(client: &Client, yaml: &str) -> Result<()> {
    send(client, yaml, &PatchParams::apply("karpenter-e2e").force().dry_run()).await
}

async fn send(client: &Client, yaml: &str, how: &PatchParams) -> Result<()> {
    let discovery = Discovery::new(client.clone()).run().await?;
    for object in documents(yaml)? {
        let types = object.types.clone().context("a document without apiVersion and kind")?;
        let gvk = kube::core::GroupVersionKind::try_from(&types)?;
        let (resource, capabilities) = discovery
            .resolve_gvk(&gvk)
            .with_context(|| format!("the API server does not know {}", types.kind))?;
        let api: Api<DynamicObject> = match capabilities.scope {
            kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
            kube::discovery::Scope::Namespaced => {
                let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
                Api::namespaced_with(client.clone(), &namespace, &resource)
            }
        };
        api.patch(&object.name_any(), how, &Patch::Apply(&object))
            .await
            .with_context(|| format!("{} {} was refused", types.kind, object.name_any()))?;
    }
    Ok(())
}

pub(crate) fn documents(yaml: &str) -> Result<Vec<DynamicObject>> {
    use serde::Deserialize;
    let mut objects = Vec::new();
    for document in serde_norway::Deserializer::from_str(yaml) {
        let value = serde_json::Value::deserialize(document)?;
        if !value.is_null() {
            objects.push(serde_json::from_value(value)?);
        }
    }
    Ok(objects)
}

/// What was asked for, or nothing if the object is gone.
pub(crate) fn unless_gone<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn list<K>(client: &Client) -> Result<Vec<Arc<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let list = Api::<K>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(list.items.into_iter().map(Arc::new).collect())
}

/// Keeps the objects of a kind current, and tells `changed` of every change.
pub(crate) fn follow<K>(client: &Client, changed: &Arc<Notify>, watches: &mut JoinSet<()>) -> reflector::Store<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let (reader, writer) = reflector::store();
    let stream = reflector(
        writer,
        watcher(Api::<K>::all(client.clone()), watcher::Config::default()),
    )
    .default_backoff()
    .touched_objects();
    let changed = Arc::clone(changed);
    watches.spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while stream.next().await.is_some() {
            changed.notify_waiters();
        }
    });
    reader
}

// === impl View ===

impl View {
    pub(crate) fn running(&self) -> usize {
        self.pods
            .iter()
            .filter(|pod| phase(pod) == Some("Running") && pod.metadata.deletion_timestamp.is_none())
            .count()
    }

    /// All of `count` pods run, and no other pod waits.
    pub(crate) fn all_run(&self, count: usize) -> bool {
        self.running() == count && self.alive() == count
    }

    /// How many pods nobody has asked to go.
    pub(crate) fn alive(&self) -> usize {
        let alive = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        self.pods.iter().filter(alive).count()
    }

    /// Whether every node and every claim is told to be initialized.
    pub(crate) fn all_initialized(&self) -> bool {
        let is_labelled = |node: &Arc<Node>| node.labels().contains_key("karpenter.sh/initialized");
        self.nodes.iter().all(is_labelled) && self.claims.iter().all(|claim| is_ready(claim))
    }

    pub(crate) fn nodes_of(&self, pool: &str) -> Vec<&Arc<Node>> {
        self.nodes
            .iter()
            .filter(|node| {
                node.labels()
                    .get("karpenter.sh/nodepool")
                    .is_some_and(|name| name == pool)
            })
            .collect()
    }

    pub(crate) fn pods_on(&self, node: &str) -> Vec<&Arc<Pod>> {
        let on = |pod: &&Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        self.pods.iter().filter(on).collect()
    }

    /// The CPUs of all nodes together.
    pub(crate) fn cpus(&self) -> i64 {
        let of = |node: &Arc<Node>| {
            let capacity = node.status.as_ref()?.capacity.as_ref()?;
            capacity.get("cpu")?.0.parse::<i64>().ok()
        };
        self.nodes.iter().filter_map(of).sum()
    }

    /// Every node has its claim and every claim its node, none of them on its way out.
    pub(crate) fn is_settled(&self) -> bool {
        let going = self
            .claims
            .iter()
            .any(|claim| claim.metadata.deletion_timestamp.is_some())
            || self.nodes.iter().any(|node| node.metadata.deletion_timestamp.is_some());
        !going && self.nodes.len() == self.claims.len()
    }

    /// Names of nodes without pods.
    pub(crate) fn idle(&self) -> Vec<String> {
        let names = self.nodes.iter().map(|node| node.name_any());
        names.filter(|name| self.pods_on(name).is_empty()).collect()
    }

    pub(crate) fn summary(&self) -> String {
        let pending = self.pods.iter().filter(|pod| phase(pod) == Some("Pending")).count();
        format!(
            "{} nodes, {} claims, {} pods ({} running, {pending} pending)",
            self.nodes.len(),
            self.claims.len(),
            self.pods.len(),
            self.running()
        )
    }
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn is_ready(claim: &NodeClaim) -> bool {
    let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == "Ready" && condition.status.to_string() == "True")
}
