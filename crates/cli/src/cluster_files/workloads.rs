//! Deployments, StatefulSets, ReplicaSets and Jobs that stand for the pods they would have.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        batch::v1::Job,
        core::v1::{Pod as KubePod, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use karpenter_engine::{
    convert::{self, PodProblem, buffer::buffer_pods},
    model::{ControllerRef, Pod},
};

use super::{ClusterFiles, TakenPod, volumes::TemplateClaim};
use crate::manifests::{Manifest, ManifestError, Origin};

/// More pods than any cluster holds; a manifest that asks for them has a typing error.
const MOST_PODS: i64 = 1_000_000;

/// A workload object, reduced to what its pods would be.
#[derive(Debug)]
pub(super) struct Workload {
    origin: Origin,
    kind: &'static str,
    namespace: String,
    name: String,
    /// The controller of this workload: the Deployment of a ReplicaSet, the CronJob of a Job.
    owner: Option<ControllerRef>,
    replicas: i32,
    first_ordinal: i32,
    template: PodTemplateSpec,
    /// Name and class of a StatefulSet's volume claim templates.
    claim_templates: Vec<(String, Option<String>)>,
}

impl Workload {
    pub(super) fn parse(manifest: &Manifest) -> Result<Self, ManifestError> {
        let workload = match manifest.kind.as_str() {
            "Deployment" => {
                let object: Deployment = manifest.parse()?;
                let spec = object.spec.unwrap_or_default();
                Self::new(
                    "Deployment",
                    manifest,
                    object.metadata,
                    spec.replicas.unwrap_or(1),
                    spec.template,
                )
            }
            "ReplicaSet" => {
                let object: ReplicaSet = manifest.parse()?;
                let spec = object.spec.unwrap_or_default();
                let template = spec.template.unwrap_or_default();
                Self::new(
                    "ReplicaSet",
                    manifest,
                    object.metadata,
                    spec.replicas.unwrap_or(1),
                    template,
                )
            }
            "StatefulSet" => {
                let object: StatefulSet = manifest.parse()?;
                let spec = object.spec.unwrap_or_default();
                let claims = spec
                    .volume_claim_templates
                    .unwrap_or_default()
                    .into_iter()
                    .map(|claim| {
                        (
                            claim.metadata.name.unwrap_or_default(),
                            claim.spec.and_then(|spec| spec.storage_class_name),
                        )
                    });
                Self {
                    first_ordinal: spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0),
                    claim_templates: claims.collect(),
                    ..Self::new(
                        "StatefulSet",
                        manifest,
                        object.metadata,
                        spec.replicas.unwrap_or(1),
                        spec.template,
                    )
                }
            }
            _ => {
                let object: Job = manifest.parse()?;
                let replicas = running_pods(&object);
                Self::new(
                    "Job",
                    manifest,
                    object.metadata,
                    replicas,
                    object.spec.unwrap_or_default().template,
                )
            }
        };
        if workload.template.spec.is_none() {
            return Err(manifest.malformed("spec.template.spec is missing"));
        }
        Ok(workload)
    }

    fn new(
        kind: &'static str,
        manifest: &Manifest,
        metadata: ObjectMeta,
        replicas: i32,
        template: PodTemplateSpec,
    ) -> Self {
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        Self {
            origin: manifest.origin.clone(),
            kind,
            namespace: metadata.namespace.unwrap_or_else(|| "default".to_owned()),
            name: metadata.name.unwrap_or_default(),
            owner: owner.map(|owner| ControllerRef {
                kind: owner.kind,
                name: owner.name,
            }),
            replicas: replicas.max(0),
            first_ordinal: 0,
            template,
            claim_templates: Vec::new(),
        }
    }

    fn malformed(&self, problem: &str) -> ManifestError {
        ManifestError::Malformed {
            origin: self.origin.clone(),
            kind: self.kind.to_owned(),
            name: self.name.clone(),
            problem: problem.to_owned(),
        }
    }

    /// The first of its pods as an object; the others differ in name and claims only.
    fn pod_object(&self, name: &str) -> KubePod {
        let mut spec = self.template.spec.clone().unwrap_or_default();
        convert::default_requests(&mut spec);
        let api_version = if self.kind == "Job" { "batch/v1" } else { "apps/v1" };
        let owner = OwnerReference {
            api_version: api_version.to_owned(),
            kind: self.kind.to_owned(),
            name: self.name.clone(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        KubePod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: self
                    .template
                    .metadata
                    .as_ref()
                    .and_then(|metadata| metadata.labels.clone()),
                annotations: self
                    .template
                    .metadata
                    .as_ref()
                    .and_then(|metadata| metadata.annotations.clone()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }
}

/// How many pods of a Job run at a time.
fn running_pods(job: &Job) -> i32 {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let over = conditions
        .iter()
        .any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True");
    let spec = job.spec.as_ref();
    if over || spec.and_then(|spec| spec.suspend) == Some(true) {
        return 0;
    }
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
    let done = job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0);
    let left = spec
        .and_then(|spec| spec.completions)
        .map_or(parallelism, |completions| completions.saturating_sub(done));
    parallelism.min(left)
}

impl ClusterFiles {
    /// The pods of workloads none of whose pods are in the input.
    pub(super) fn workload_pods(&mut self) -> Result<Vec<TakenPod>, ManifestError> {
        let mut workloads = std::mem::take(&mut self.workloads);
        workloads.sort_by(|a, b| (a.kind, &a.namespace, &a.name).cmp(&(b.kind, &b.namespace, &b.name)));
        let covered = self.covered(&workloads);
        let total: i64 = workloads.iter().map(|workload| i64::from(workload.replicas)).sum();
        if let Some(largest) = workloads.iter().max_by_key(|workload| workload.replicas)
            && total > MOST_PODS
        {
            return Err(largest.malformed(&format!(
                "the workloads stand for {total} pods; at most {MOST_PODS} are simulated"
            )));
        }
        let mut names: BTreeSet<(Arc<str>, Box<str>)> = self
            .pods
            .iter()
            .map(|taken| (taken.pod.namespace.clone(), taken.pod.name.clone()))
            .collect();
        let mut pods = Vec::new();
        for workload in &workloads {
            if !covered.contains(&key(&workload.namespace, workload.kind, &workload.name)) {
                self.expand(workload, &mut names, &mut pods)?;
            }
        }
        self.workloads = workloads;
        Ok(pods)
    }

    /// Workloads whose pods, or whose own workloads, are in the input.
    fn covered(&self, workloads: &[Workload]) -> BTreeSet<Key> {
        let mut covered = BTreeSet::new();
        for TakenPod { pod, .. } in &self.pods {
            let Some(controller) = &pod.controller else { continue };
            covered.insert(key(&pod.namespace, &controller.kind, &controller.name));
            if let Some(deployment) = deployment_of(pod) {
                covered.insert(key(&pod.namespace, "Deployment", deployment));
            }
        }
        for workload in workloads {
            if let Some(owner) = &workload.owner {
                covered.insert(key(&workload.namespace, &owner.kind, &owner.name));
            }
        }
        covered
    }

    fn expand(
        &mut self,
        workload: &Workload,
        names: &mut BTreeSet<(Arc<str>, Box<str>)>,
        pods: &mut Vec<TakenPod>,
    ) -> Result<(), ManifestError> {
        let mut first: Option<(Pod, Vec<PodProblem>, KubePod)> = None;
        for ordinal in (workload.first_ordinal..).take(usize::try_from(workload.replicas).unwrap_or(0)) {
            let mut name: Box<str> = format!("{}-{ordinal}", workload.name).into();
            let namespace = self.intake.interner().text(&workload.namespace);
            if !names.insert((namespace.clone(), name.clone())) {
                name = format!("{}-{}-{ordinal}", workload.name, workload.kind.to_lowercase()).into();
                names.insert((namespace.clone(), name.clone()));
            }
            let (model, problems, object) = match &first {
                Some(first) => first,
                None => {
                    let object = workload.pod_object(&name);
                    let (pod, problems) = self
                        .intake
                        .pod(&object)
                        .map_err(|error| workload.malformed(&error.to_string()))?;
                    first.insert((pod, problems, object))
                }
            };
            let spec = object.spec.as_ref().expect("a workload's pod has a spec");
            let mut claims = convert::volume_claims(&name, spec);
            self.ephemeral_claims
                .extend(super::volumes::ephemeral_claims(&workload.namespace, &name, spec));
            for (template, class) in &workload.claim_templates {
                let claim = format!("{template}-{}-{ordinal}", workload.name);
                claims.push(claim.as_str().into());
                self.ephemeral_claims
                    .push(TemplateClaim::new(&workload.namespace, claim, class.clone()));
            }
            let pod = Pod {
                uid: format!("{}/{name}", workload.namespace).into(),
                volume_claims: self.intake.interner().claims(claims),
                name,
                ..model.clone()
            };
            pods.push(TakenPod {
                pod,
                problems: problems.clone(),
                hold: None,
                priority_class: None,
            });
        }
        Ok(())
    }

    /// The virtual pods of CapacityBuffers.
    pub(super) fn buffer_pods(&mut self) -> Result<Vec<Arc<Pod>>, ManifestError> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let place = |buffer: &karpenter_api::CapacityBuffer| {
            (
                buffer
                    .metadata
                    .namespace
                    .clone()
                    .unwrap_or_else(|| "default".to_owned()),
                buffer.metadata.name.clone(),
            )
        };
        buffers.sort_by_key(place);
        let mut pods = Vec::new();
        for buffer in &buffers {
            let (namespace, name) = place(buffer);
            let name = name.unwrap_or_default();
            let (template, replicas) = match (&buffer.spec.pod_template_ref, &buffer.spec.scalable_ref) {
                (Some(reference), _) => {
                    let found = self.pod_templates.get(&(namespace.clone(), reference.name.clone()));
                    (found.and_then(|object| object.template.clone()), None)
                }
                (None, Some(reference)) => {
                    let found = self
                        .workloads
                        .iter()
                        .find(|w| w.namespace == namespace && w.kind == reference.kind && w.name == reference.name);
                    (
                        found.map(|workload| workload.template.clone()),
                        found.map(|workload| workload.replicas),
                    )
                }
                (None, None) => (None, None),
            };
            let Some(template) = template else {
                self.notes.push(format!(
                    "CapacityBuffer {namespace}/{name} has no effect: the pod template that it refers to is not in the input"
                ));
                continue;
            };
            match buffer_pods(&mut self.intake, buffer, &template, replicas) {
                Ok(virtual_pods) => pods.extend(virtual_pods.into_iter().map(Arc::new)),
                Err(error) => self
                    .notes
                    .push(format!("CapacityBuffer {namespace}/{name} has no effect: {error}")),
            }
        }
        Ok(pods)
    }
}

type Key = (String, String, String);

fn key(namespace: &str, kind: &str, name: &str) -> Key {
    (namespace.to_owned(), kind.to_owned(), name.to_owned())
}

/// The Deployment behind a ReplicaSet's pod: the set is named after it and the template's hash.
fn deployment_of(pod: &Pod) -> Option<&str> {
    let controller = pod
        .controller
        .as_ref()
        .filter(|controller| controller.kind == "ReplicaSet")?;
    let hash = pod.labels.get("pod-template-hash")?;
    controller.name.strip_suffix(hash.as_str())?.strip_suffix('-')
}

/// The workload that a pod belongs to, as people name it; a pod without a controller goes by its own name.
pub(crate) fn workload_of(pod: &Pod) -> String {
    match (deployment_of(pod), &pod.controller, &pod.buffer) {
        (_, _, Some(buffer)) => format!("CapacityBuffer {buffer}"),
        (Some(deployment), _, None) => format!("Deployment {}/{deployment}", pod.namespace),
        (None, Some(controller), None) => format!("{} {}/{}", controller.kind, pod.namespace, controller.name),
        (None, None, None) => format!("Pod {}", pod.key()),
    }
}
