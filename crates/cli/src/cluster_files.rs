//! A cluster as its manifests describe it: what `simulate` and `explain` decide on without one.
//!
//! Objects are converted and dropped one by one while they are read, so that a dump of a large cluster fits into little
//! memory. The order of files and documents never matters: everything is sorted before anyone decides on it.

mod fleet;
mod nodes;
#[cfg(test)]
mod parity;
mod pending;
mod pools;
mod volumes;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod as KubePod, PodTemplate},
    policy::v1::PodDisruptionBudget,
    scheduling::v1::PriorityClass,
    storage::v1::{CSINode, StorageClass},
};
use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool, labels::LabelRules};
use karpenter_engine::{
    convert::{self, PodIntake, PodProblem},
    model::{self, DaemonPod, Labels, Options, Snapshot},
};

use crate::manifests::{Manifest, ManifestError, Sources};
use workloads::Workload;

pub(crate) use fleet::{DisruptionFacts, Timestamps};
pub(crate) use pools::Market;
pub(crate) use workloads::workload_of;

/// A cluster that decisions can be made on.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) snapshot: Snapshot,
    /// Pending pods that no solve looks at, and why.
    pub(crate) invalid: Vec<(Arc<model::Pod>, Vec<PodProblem>)>,
    /// Sentences about input that has no effect.
    pub(crate) notes: Vec<String>,
    /// What only disruption asks about.
    pub(crate) disruption: DisruptionFacts,
}

/// Reads every object behind `-f` and puts the cluster together.
///
/// # Errors
/// When a file can't be read, or an object of a kind that matters is malformed or there twice.
pub(crate) fn read(sources: &Sources, market: &Market, options: Options) -> Result<Cluster, ManifestError> {
    let mut files = ClusterFiles::new(Arc::new(market.rules.clone()));
    sources.read(&mut |manifest| files.take(manifest))?;
    files.into_cluster(market, options)
}

/// Everything that was read, by kind.
#[derive(Debug)]
struct ClusterFiles {
    intake: PodIntake,
    pods: Vec<TakenPod>,
    nodes: Vec<Node>,
    claims: Vec<NodeClaim>,
    csi_nodes: BTreeMap<String, CSINode>,
    pools: Vec<NodePool>,
    overlays: Vec<NodeOverlay>,
    buffers: Vec<CapacityBuffer>,
    daemon_sets: Vec<DaemonSet>,
    workloads: Vec<Workload>,
    pod_templates: BTreeMap<(String, String), PodTemplate>,
    namespaces: BTreeMap<String, Labels>,
    volumes: BTreeMap<String, PersistentVolume>,
    volume_claims: Vec<PersistentVolumeClaim>,
    ephemeral_claims: Vec<volumes::TemplateClaim>,
    storage_classes: BTreeMap<String, StorageClass>,
    disruption_budgets: Vec<PodDisruptionBudget>,
    priorities: BTreeMap<String, i32>,
    dynamic_resources: usize,
    /// Readiness of objects that may turn out to be NodeClasses, by group, kind and name.
    other: BTreeMap<OtherKey, pools::Readiness>,
    seen: BTreeSet<String>,
    notes: Vec<String>,
}

type OtherKey = (String, String, String);

/// A pod with what only matters until it is decided whether it is pending.
#[derive(Debug)]
struct TakenPod {
    pod: model::Pod,
    problems: Vec<PodProblem>,
    hold: Option<pending::Hold>,
    priority_class: Option<Box<str>>,
}

impl ClusterFiles {
    fn new(rules: Arc<LabelRules>) -> Self {
        Self {
            intake: PodIntake::new(rules),
            pods: Vec::new(),
            nodes: Vec::new(),
            claims: Vec::new(),
            csi_nodes: BTreeMap::new(),
            pools: Vec::new(),
            overlays: Vec::new(),
            buffers: Vec::new(),
            daemon_sets: Vec::new(),
            workloads: Vec::new(),
            pod_templates: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            volumes: BTreeMap::new(),
            volume_claims: Vec::new(),
            ephemeral_claims: Vec::new(),
            storage_classes: BTreeMap::new(),
            disruption_budgets: Vec::new(),
            priorities: BTreeMap::new(),
            dynamic_resources: 0,
            other: BTreeMap::new(),
            seen: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    fn take(&mut self, manifest: Manifest) -> Result<(), ManifestError> {
        let key = format!("{} {}/{}", manifest.kind, namespace(&manifest), manifest.name());
        if !self.seen.insert(format!("{} {key}", manifest.group())) {
            return Err(manifest.malformed("this object was given before; give every object once"));
        }
        match (manifest.group(), manifest.kind.as_str()) {
            ("", "Pod") => self.take_pod(&manifest)?,
            ("", "Node") => self.nodes.push(nodes::without_bulk(manifest.parse()?)),
            ("", "Namespace") => {
                let namespace: Namespace = manifest.parse()?;
                self.namespaces
                    .insert(manifest.name(), namespace.metadata.labels.unwrap_or_default());
            }
            ("", "PersistentVolume") => {
                self.volumes.insert(manifest.name(), manifest.parse()?);
            }
            ("", "PersistentVolumeClaim") => self.volume_claims.push(manifest.parse()?),
            ("", "PodTemplate") => {
                self.pod_templates
                    .insert((namespace(&manifest), manifest.name()), manifest.parse()?);
            }
            ("apps", "DaemonSet") => self.take_daemon_set(&manifest)?,
            ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("batch", "Job") => {
                self.workloads.push(Workload::parse(&manifest)?);
            }
            ("storage.k8s.io", "StorageClass") => {
                self.storage_classes.insert(manifest.name(), manifest.parse()?);
            }
            ("storage.k8s.io", "CSINode") => {
                self.csi_nodes.insert(manifest.name(), manifest.parse()?);
            }
            ("policy", "PodDisruptionBudget") => self.disruption_budgets.push(manifest.parse()?),
            ("scheduling.k8s.io", "PriorityClass") => {
                self.priorities
                    .insert(manifest.name(), manifest.parse::<PriorityClass>()?.value);
            }
            ("resource.k8s.io", "ResourceClaim" | "ResourceClaimTemplate" | "DeviceClass" | "ResourceSlice") => {
                self.dynamic_resources += 1;
            }
            ("karpenter.sh", "NodePool") => self.pools.push(manifest.parse()?),
            ("karpenter.sh", "NodeClaim") => self.claims.push(manifest.parse()?),
            ("karpenter.sh", "NodeOverlay") => self.overlays.push(manifest.parse()?),
            ("autoscaling.x-k8s.io", "CapacityBuffer") => self.buffers.push(manifest.parse()?),
            (group, kind) => {
                let key = (group.to_owned(), kind.to_owned(), manifest.name());
                self.other.insert(key, pools::Readiness::of(&manifest.object));
            }
        }
        Ok(())
    }

    fn take_pod(&mut self, manifest: &Manifest) -> Result<(), ManifestError> {
        let mut object: KubePod = manifest.parse()?;
        if let Some(spec) = &mut object.spec {
            convert::default_requests(spec);
        }
        let (pod, problems) = self
            .intake
            .pod(&object)
            .map_err(|error| manifest.malformed(&error.to_string()))?;
        if pod.is_terminal() {
            return Ok(());
        }
        let spec = object.spec.unwrap_or_default();
        self.ephemeral_claims
            .extend(volumes::ephemeral_claims(&pod.namespace, &pod.name, &spec));
        let priority_class = match spec.priority {
            Some(_) => None,
            None => spec.priority_class_name.as_deref().map(Box::from),
        };
        let hold = pending::Hold::of(spec.scheduling_gates.as_deref(), object.status.as_ref());
        self.pods.push(TakenPod {
            pod,
            problems,
            hold,
            priority_class,
        });
        Ok(())
    }

    fn take_daemon_set(&mut self, manifest: &Manifest) -> Result<(), ManifestError> {
        let daemon_set: DaemonSet = manifest.parse()?;
        convert::daemon_from_template(&mut self.intake, &daemon_set)
            .map_err(|error| manifest.malformed(&error.to_string()))?;
        self.daemon_sets.push(daemon_set);
        Ok(())
    }

    fn into_cluster(mut self, market: &Market, options: Options) -> Result<Cluster, ManifestError> {
        self.seen = BTreeSet::new();
        self.set_priorities();
        self.pods
            .sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        let daemons = self.daemons();
        let workload_pods = self.workload_pods()?;
        let buffer_pods = self.buffer_pods()?;
        let catalog = self.catalog(market);
        let volumes = self.volume_facts();
        let now = options.now;
        let disruption = self.disruption_facts();
        let mut nodes = self.joined_nodes()?;
        let pending = self.pending(&mut nodes, workload_pods, &volumes, now);
        self.note_leftovers();

        let mut snapshot = Snapshot::new(catalog, options);
        snapshot.pods = pending.pods.into_iter().chain(buffer_pods).collect();
        snapshot.nodes = nodes.into_iter().map(Arc::new).collect();
        snapshot.daemons = daemons.into_iter().map(Arc::new).collect();
        snapshot.namespaces = Arc::new(self.known_namespaces());
        snapshot.volumes = Arc::new(volumes);
        Ok(Cluster {
            snapshot,
            invalid: pending.invalid,
            notes: self.notes,
            disruption,
        })
    }

    /// Admission sets a pod's priority from its class; manifests have only the name.
    fn set_priorities(&mut self) {
        for taken in &mut self.pods {
            let class = taken.priority_class.take();
            if let Some(priority) = class.and_then(|class| self.priorities.get(&*class)) {
                taken.pod.priority = *priority;
            }
        }
    }

    /// One pod per DaemonSet, from its newest live pod where there is one.
    fn daemons(&mut self) -> Vec<DaemonPod> {
        let mut newest: BTreeMap<(&str, &str), &model::Pod> = BTreeMap::new();
        for TakenPod { pod, .. } in &self.pods {
            let Some(controller) = pod.controller.as_ref().filter(|c| c.kind == "DaemonSet") else {
                continue;
            };
            let age = |pod: &model::Pod| (pod.created, pod.name.clone());
            let entry = newest.entry((&pod.namespace, &controller.name)).or_insert(pod);
            if age(pod) > age(entry) {
                *entry = pod;
            }
        }
        let mut daemons: Vec<DaemonPod> = Vec::new();
        for daemon_set in &self.daemon_sets {
            let namespace = daemon_set.metadata.namespace.as_deref().unwrap_or("default");
            let name = daemon_set.metadata.name.as_deref().unwrap_or_default();
            let live = newest.get(&(namespace, name)).copied();
            let daemon = convert::daemon_pod(&mut self.intake, daemon_set, live);
            daemons.push(daemon.expect("the template was read before"));
        }
        daemons.retain(|daemon| !daemon.spec.needs_dynamic_resources);
        daemons.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        daemons
    }

    /// The namespaces that were given, and those that pods merely live in.
    fn known_namespaces(&self) -> BTreeMap<String, Labels> {
        let mut namespaces = self.namespaces.clone();
        for TakenPod { pod, .. } in &self.pods {
            if !namespaces.contains_key(&*pod.namespace) {
                namespaces.insert(pod.namespace.to_string(), implied_labels(&pod.namespace));
            }
        }
        namespaces
    }

    fn note_leftovers(&mut self) {
        if self.dynamic_resources > 0 {
            self.notes.push(format!(
                "{} objects of dynamic resource allocation have no effect: pods with resource claims can't be placed yet",
                self.dynamic_resources
            ));
        }
        let classes: BTreeSet<(&str, &str)> = self
            .pools
            .iter()
            .map(|pool| &pool.spec.template.spec.node_class_ref)
            .map(|class| (class.group.as_str(), class.kind.as_str()))
            .collect();
        let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
        for (group, kind, _) in self.other.keys() {
            if !classes.contains(&(group.as_str(), kind.as_str())) {
                *skipped.entry(kind).or_default() += 1;
            }
        }
        if !skipped.is_empty() {
            let kinds: Vec<String> = skipped
                .iter()
                .map(|(kind, count)| format!("{kind} ({count})"))
                .collect();
            self.notes
                .push(format!("skipped kinds that have no effect here: {}", kinds.join(", ")));
        }
    }
}

fn namespace(manifest: &Manifest) -> String {
    manifest.object["metadata"]["namespace"]
        .as_str()
        .unwrap_or("default")
        .to_owned()
}

/// Every namespace has its name as a label.
fn implied_labels(namespace: &str) -> Labels {
    Labels::from([("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())])
}

/// The current time, unless the user chose one.
pub(crate) fn now_or(chosen: Option<Timestamp>) -> Timestamp {
    chosen.unwrap_or_else(Timestamp::now)
}
