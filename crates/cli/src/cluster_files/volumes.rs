//! PersistentVolumeClaims with their volumes and classes, and claims that would be made from templates.

use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, PodSpec},
    storage::v1::StorageClass,
};
use karpenter_engine::{convert, model::VolumeFacts};

use super::ClusterFiles;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// A claim that does not exist yet: a StatefulSet or an ephemeral volume would make it.
#[derive(Debug)]
pub(super) struct TemplateClaim {
    namespace: Box<str>,
    name: Box<str>,
    class: Option<Box<str>>,
}

impl TemplateClaim {
    pub(super) fn new(namespace: &str, name: String, class: Option<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            class: class.map(String::into_boxed_str),
        }
    }
}

/// The claims of a pod's generic ephemeral volumes.
pub(super) fn ephemeral_claims(namespace: &str, pod: &str, spec: &PodSpec) -> Vec<TemplateClaim> {
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| {
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref();
        let class = template.and_then(|template| template.spec.storage_class_name.clone());
        Some(TemplateClaim::new(namespace, format!("{pod}-{}", volume.name), class))
    };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

impl ClusterFiles {
    /// What every claim means for scheduling; a claim that exists counts before one that would be made.
    pub(super) fn volume_facts(&self) -> VolumeFacts {
        let rules = self.intake.rules();
        let mut facts = VolumeFacts::default();
        for claim in &self.ephemeral_claims {
            let made = convert::claim_from_template(rules, self.class(claim.class.as_deref()));
            facts.insert(claim.namespace.as_ref(), claim.name.clone(), made);
        }
        for claim in &self.volume_claims {
            let claim = self.with_default_class(claim.clone());
            let spec = claim.spec.as_ref();
            let volume = spec
                .and_then(|spec| spec.volume_name.as_deref())
                .and_then(|name| self.volumes.get(name));
            let class = spec.and_then(|spec| spec.storage_class_name.as_deref());
            let class = class.and_then(|name| self.storage_classes.get(name));
            let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            facts.insert(namespace, name, convert::claim_facts(rules, &claim, volume, class));
        }
        facts
    }

    fn class(&self, name: Option<&str>) -> Option<&StorageClass> {
        match name {
            Some(name) => self.storage_classes.get(name),
            None => self.default_class(),
        }
    }

    fn default_class(&self) -> Option<&StorageClass> {
        self.storage_classes.values().find(|class| {
            let annotations = class.metadata.annotations.as_ref();
            annotations
                .and_then(|annotations| annotations.get(DEFAULT_CLASS))
                .is_some_and(|value| value == "true")
        })
    }

    /// Admission names the default class in claims that name none; manifests have not been admitted.
    fn with_default_class(&self, mut claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
        if let Some(spec) = &mut claim.spec
            && spec.storage_class_name.is_none()
        {
            spec.storage_class_name = self.default_class().and_then(|class| class.metadata.name.clone());
        }
        claim
    }
}
