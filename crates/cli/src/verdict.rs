//! The verdict on a manifest: what an API server with our CRDs would say, then what Karpenter would say at run time.

use std::collections::BTreeMap;

use karpenter_api::labels::LabelRules;
use karpenter_api::names::check_object_name;
use karpenter_api::validation::Finding;
use karpenter_api::{CapacityBuffer, NodeOverlay, NodePool, schema};
use karpenter_sandbox::crd::{Definition, FieldError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::{Manifest, ManifestError};
use crate::providers::Provider;

/// Everything a manifest is measured by.
#[derive(Debug)]
pub(crate) struct Rules {
    /// By API group and kind.
    definitions: BTreeMap<(String, String), Definition>,
    /// The label rules of each provider, by the API group of its NodeClasses.
    provider_labels: BTreeMap<String, LabelRules>,
    /// The label rules that hold whatever the provider.
    base_labels: LabelRules,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Reasons why the object would be refused or unusable.
    pub(crate) findings: Vec<Finding>,
    /// What is worth knowing of an object that is fine.
    pub(crate) notes: Vec<Finding>,
}

impl Rules {
    /// The rules of all kinds that this binary knows.
    pub(crate) fn new() -> Self {
        let definitions = Provider::crds(None).into_iter().map(|crd| {
            let definition = Definition::parse(crd.as_value()).expect("our own CRDs are well formed");
            ((crd.group().to_owned(), crd.kind().to_owned()), definition)
        });
        let definitions: BTreeMap<(String, String), Definition> = definitions.collect();
        let provider_labels = definitions.keys().filter_map(|(group, _)| {
            let provider = Provider::of_group(group)?;
            Some((group.clone(), provider.label_rules()))
        });
        Self {
            provider_labels: provider_labels.collect(),
            base_labels: LabelRules::default(),
            definitions,
        }
    }

    /// The rules of the provider that a NodePool's NodeClass belongs to; the base rules for those of others.
    fn labels_of(&self, pool: &NodePool) -> &LabelRules {
        let group = &pool.spec.template.spec.node_class_ref.group;
        self.provider_labels.get(group).unwrap_or(&self.base_labels)
    }

    /// The verdict on an object, or nothing when its kind is not ours.
    pub(crate) fn check(&self, manifest: &Manifest) -> Option<Verdict> {
        let key = (manifest.group().to_owned(), manifest.kind.clone());
        let definition = self.definitions.get(&key)?;
        let version = manifest.api_version.rsplit('/').next().unwrap_or_default();
        let Some(version) = definition.version(version).filter(|version| version.served) else {
            let served: Vec<String> = definition
                .versions
                .iter()
                .map(|version| format!("{}/{}", definition.group, version.name))
                .collect();
            let problem = format!("{} is not served; use {}", manifest.api_version, served.join(" or "));
            return Some(Verdict {
                findings: vec![Finding::new("apiVersion", problem)],
                notes: Vec::new(),
            });
        };
        let mut manifest = manifest.clone();
        let mut findings: Vec<Finding> = check_metadata(&manifest.object).into_iter().collect();
        // `kubectl` asks the API server to refuse what it does not know, rather than to drop it in silence.
        let unknown = version.schema.prune(&mut manifest.object);
        findings.extend(
            unknown
                .into_iter()
                .map(|path| Finding::new(path, "is not a field of this kind; remove it")),
        );
        version.schema.default(&mut manifest.object);
        findings.extend(readable(&version.schema.validate(&manifest.object, None)));
        if !findings.is_empty() {
            return Some(Verdict {
                findings,
                notes: Vec::new(),
            });
        }
        Some(self.check_at_run_time(&manifest))
    }

    fn check_at_run_time(&self, manifest: &Manifest) -> Verdict {
        match (manifest.group(), manifest.kind.as_str()) {
            ("karpenter.sh", "NodePool") => typed(manifest, |pool: NodePool| Verdict {
                findings: pool.validate(self.labels_of(&pool)),
                notes: pool.validation_notes(self.labels_of(&pool)),
            }),
            ("karpenter.sh", "NodeOverlay") => typed(manifest, |overlay: NodeOverlay| Verdict {
                findings: overlay.validate(&self.base_labels),
                notes: Vec::new(),
            }),
            ("autoscaling.x-k8s.io", "CapacityBuffer") => typed(manifest, |buffer: CapacityBuffer| Verdict {
                findings: buffer.validate(),
                notes: Vec::new(),
            }),
            _ => Verdict::default(),
        }
    }
}

/// Reads an object that passed its schema; what the schema admits and the type can't hold is a finding like any other.
fn typed<K: DeserializeOwned>(manifest: &Manifest, check: impl FnOnce(K) -> Verdict) -> Verdict {
    match manifest.parse() {
        Ok(object) => check(object),
        Err(ManifestError::Malformed { problem, .. }) => Verdict {
            findings: vec![Finding::new("spec", problem)],
            notes: Vec::new(),
        },
        Err(error) => Verdict {
            findings: vec![Finding::new("spec", error.to_string())],
            notes: Vec::new(),
        },
    }
}

fn check_metadata(object: &Value) -> Option<Finding> {
    let metadata = &object["metadata"];
    match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
        (Some(name), _) => {
            let error = check_object_name(name).err()?;
            Some(Finding::new("metadata.name", format!("\"{name}\" {error}")))
        }
        (None, Some(_)) => None,
        (None, None) => Some(Finding::new("metadata.name", "is required; give the object a name")),
    }
}

/// Field errors as findings, with a hint where the API server shows only a pattern.
fn readable(errors: &[FieldError]) -> Vec<Finding> {
    const NO_FIELD: &str = "<nil>";
    // Remarks about no field (some rules were not checked; no alternative fits) follow from the errors that have one.
    let about_fields = errors.iter().any(|error| error.field != NO_FIELD);
    let told = errors.iter().filter(|error| !about_fields || error.field != NO_FIELD);
    told.map(|error| {
        let hint = schema::hint(&error.message)
            .map(|hint| format!("; {hint}"))
            .unwrap_or_default();
        Finding::new(error.field.clone(), format!("{}{hint}", error.message))
    })
    .collect()
}
