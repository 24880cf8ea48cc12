//! The verdict on a manifest: what an API server with our CRDs would say, then what Karpenter would say at run time.

use std::collections::BTreeMap;

use karpenter_api::labels::LabelRules;
use karpenter_api::names::check_object_name;
use karpenter_api::validation::Finding;
use karpenter_api::{CapacityBuffer, NodeOverlay, NodePool, schema};
use karpenter_bizflycloud::BizflyCloudNodeClass;
use karpenter_bizflycloud::convert::convert;
use karpenter_bizflycloud::node_class;
use karpenter_bizflycloud::provider_config::{self, DEFAULT_TAG_PREFIX, ProviderConfig};
use karpenter_bizflycloud::provisioner::Provisioner;
use karpenter_sandbox::crd::{Definition, FieldError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::{Manifest, ManifestError};
use crate::providers::Provider;

/// Everything a manifest is measured by.
#[derive(Debug)]
pub(crate) struct Rules {
    /// By API group and kind.
    definitions: BTreeMap<(String, String), Served>,
    /// The label rules of each provider, by the API group of its NodeClasses.
    provider_labels: BTreeMap<String, LabelRules>,
    /// The label rules that hold whatever the provider.
    base_labels: LabelRules,
}

/// A kind, and its schema as people wrote it: the descriptions say what a missing field is for.
#[derive(Debug)]
struct Served {
    definition: Definition,
    schema: Value,
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
            let schema = crd.schema().clone();
            (
                (crd.group().to_owned(), crd.kind().to_owned()),
                Served { definition, schema },
            )
        });
        let definitions: BTreeMap<(String, String), Served> = definitions.collect();
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
        let Some(Served { definition, schema }) = self.definitions.get(&key) else {
            return self.unknown_kind(manifest);
        };
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
        findings.extend(readable(&version.schema.validate(&manifest.object, None), schema));
        if !findings.is_empty() {
            return Some(Verdict {
                findings,
                notes: Vec::new(),
            });
        }
        Some(self.check_at_run_time(&manifest))
    }

    /// A kind that is missing from a group of ours is a mistake; other groups are not our business.
    fn unknown_kind(&self, manifest: &Manifest) -> Option<Verdict> {
        let of_group = self.definitions.keys().filter(|(group, _)| group == manifest.group());
        let kinds: Vec<&str> = of_group.map(|(_, kind)| kind.as_str()).collect();
        if kinds.is_empty() {
            return None;
        }
        let problem = format!(
            "{} has no kind {}; use {}",
            manifest.group(),
            manifest.kind,
            kinds.join(" or ")
        );
        Some(Verdict {
            findings: vec![Finding::new("kind", problem)],
            notes: Vec::new(),
        })
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
            ("karpenter.sh", "Provisioner") => typed(manifest, |provisioner: Provisioner| Verdict {
                findings: convert(&provisioner, None, None).err().unwrap_or_default(),
                notes: Vec::new(),
            }),
            ("karpenter.bizflycloud.com", "BizflyCloudNodeClass") => {
                typed(manifest, |class: BizflyCloudNodeClass| Verdict {
                    findings: node_class::validation::findings(&class.spec, DEFAULT_TAG_PREFIX),
                    notes: Vec::new(),
                })
            }
            ("bizflycloud.karpenter.sh", "ProviderConfig") => typed(manifest, |config: ProviderConfig| Verdict {
                findings: provider_config::validation::findings(&config.spec),
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

/// Field errors as findings, with a hint where the API server shows only a pattern, or nothing but that a value is missing.
fn readable(errors: &[FieldError], schema: &Value) -> Vec<Finding> {
    const NO_FIELD: &str = "<nil>";
    // Remarks about no field (some rules were not checked; no alternative fits) follow from the errors that have one.
    let about_fields = errors.iter().any(|error| error.field != NO_FIELD);
    let told = errors.iter().filter(|error| !about_fields || error.field != NO_FIELD);
    told.map(|error| {
        let hint = match error.message.as_str() {
            "Required value" => purpose(schema, &error.field),
            message => schema::hint(message).map(str::to_owned),
        };
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        Finding::new(error.field.clone(), format!("{}{hint}", error.message))
    })
    .collect()
}

/// What a missing field is for, and what it may hold, in the words of the schema.
fn purpose(schema: &Value, path: &str) -> Option<String> {
    let mut schema = schema;
    let mut name = path;
    for segment in path.split('.') {
        // A list is one step in the path and two in the schema: `budgets[0]` is `budgets`, then its items.
        name = segment.split('[').next().unwrap_or(segment);
        let named = &schema["properties"][name];
        schema = if named.is_null() {
            &schema["additionalProperties"]
        } else {
            named
        };
        if segment.contains('[') {
            schema = &schema["items"];
        }
    }
    let description = schema["description"].as_str()?;
    let sentence = description.split_once(". ").map_or(description, |(first, _)| first);
    let values = schema["enum"].as_array().map(|values| {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        format!(" One of {}.", values.join(", "))
    });
    Some(format!(
        "add {name}: {}.{}",
        sentence.trim_end_matches('.'),
        values.unwrap_or_default()
    ))
}
