//! A `karpenter.sh/v1alpha5` Provisioner as a NodePool and a BizflyCloudNodeClass (§4).

mod requirements;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::{
    labels::{HOSTNAME, LabelRules},
    names,
    validation::Finding,
};
use serde_json::{Map, Value, json};

use crate::{
    labels as own,
    node_class::Kubelet,
    provider_config::ProviderConfig,
    provisioner::{ProviderRef, Provisioner},
    region::RegionChoice,
};

/// What a Provisioner becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    pub node_pool: Value,
    /// `None` when the Provisioner refers to a NodeClass already.
    pub node_class: Option<Value>,
    /// What changed in meaning, or was left out and why.
    pub notes: Vec<String>,
}

/// What is collected while requirements are converted.
#[derive(Debug, Default)]
struct Draft {
    requirements: Vec<Value>,
    image_terms: Vec<Value>,
    spot: bool,
    notes: Vec<String>,
    findings: Vec<Finding>,
}

/// Groups in which ProviderConfigs were ever defined.
const CONFIG_GROUPS: [&str; 3] = [
    "bizflycloud.karpenter.sh",
    "karpenter.bizflycloud.com",
    "karpenter.bizflycloud.vn",
];
const CLASS_GROUP: &str = "karpenter.bizflycloud.com";
const CLASS_KIND: &str = "BizflyCloudNodeClass";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const KUBELET_FIELDS: [&str; 12] = [
    "clusterDNS",
    "maxPods",
    "podsPerCore",
    "systemReserved",
    "kubeReserved",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMaxPodGracePeriod",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "cpuCFSQuota",
];
/// What is different in v1 whatever the Provisioner says.
const ALWAYS: [&str; 4] = [
    "expiry in v1 deletes a node at its deadline whatever the budgets say; v1alpha5 launched a replacement first",
    "v1alpha5 had no disruption budgets; v1's default lets 10% of the pool's nodes be disrupted at once",
    "selectors on karpenter.sh/provisioner-name must become karpenter.sh/nodepool",
    "the annotations karpenter.sh/do-not-evict and karpenter.sh/do-not-consolidate must become karpenter.sh/do-not-disrupt",
];

/// Converts a Provisioner. `config` is the ProviderConfig that it refers to; `listed` are the cloud's flavors, where known.
///
/// # Errors
/// Everything that can't be carried over.
pub fn convert(
    provisioner: &Provisioner,
    config: Option<&ProviderConfig>,
    listed: Option<&[String]>,
) -> Result<Conversion, Vec<Finding>> {
    let name = provisioner.metadata.name.clone().unwrap_or_default();
    let spec = &provisioner.spec;
    let mut draft = Draft::default();
    let reference = draft.reference(spec.provider.as_ref(), spec.provider_ref.as_ref());
    let region = config.and_then(|config| match RegionChoice::parse(&config.spec.region) {
        Ok(choice) => Some(choice),
        Err(error) => {
            let path = "ProviderConfig spec.region";
            draft.findings.push(Finding::new(path, error.to_string()));
            None
        }
    });
    if let Some(zone) = region.as_ref().and_then(|choice| choice.preferred_zone.as_ref()) {
        let region = region.as_ref().map_or("", |choice| choice.region.short());
        draft.notes.push(format!(
            "{zone} is a zone of region {region}: all zones of {region} stay reachable, and {zone} is preferred on equal price"
        ));
    }
    requirements::convert(&mut draft, &spec.requirements, region.as_ref(), listed);
    draft.check_labels(&spec.labels);
    let (taints, startup_taints) = draft.taints(&spec.taints, &spec.startup_taints);
    let kubelet = draft.kubelet(spec.kubelet_configuration.as_ref());
    let disruption = draft.disruption(spec);
    let expire_after = draft.expire_after(spec.ttl_seconds_until_expired);
    if let Some(weight) = spec.weight
        && !(0..=100).contains(&weight)
    {
        draft.findings.push(Finding::new(
            "spec.weight",
            format!("{weight} is not between 0 and 100"),
        ));
    }
    let Some(reference) = reference else {
        return Err(draft.findings);
    };
    if !draft.findings.is_empty() {
        return Err(draft.findings);
    }

    let adds = !draft.image_terms.is_empty() || kubelet.is_some() || draft.spot;
    let class_name = match &reference {
        Reference::Class(class) => class.clone(),
        Reference::Config(config) if adds => {
            if *config == name {
                config.clone()
            } else {
                name.clone()
            }
        }
        Reference::Config(config) => config.clone(),
    };
    let node_class = match &reference {
        Reference::Class(class) => {
            if adds {
                draft.notes.push(format!(
                    "image, kubelet and spot settings of the Provisioner are not copied into the existing BizflyCloudNodeClass {class}"
                ));
            }
            None
        }
        Reference::Config(config) => {
            let mut class = Map::new();
            class.insert("providerConfigRef".into(), json!({ "name": config }));
            if let Some(region) = &region {
                class.insert("region".into(), json!(region.region.short()));
            }
            if !draft.image_terms.is_empty() {
                class.insert("imageSelectorTerms".into(), json!(draft.image_terms));
            }
            if let Some(kubelet) = kubelet {
                class.insert("kubelet".into(), kubelet);
            }
            if draft.spot {
                class.insert("spot".into(), json!({ "enabled": true }));
            }
            Some(json!({
                "apiVersion": "karpenter.bizflycloud.com/v1", "kind": CLASS_KIND,
                "metadata": {"name": class_name}, "spec": class,
            }))
        }
    };

    let mut template_spec = Map::new();
    template_spec.insert(
        "nodeClassRef".into(),
        json!({"group": CLASS_GROUP, "kind": CLASS_KIND, "name": class_name}),
    );
    template_spec.insert("requirements".into(), json!(draft.requirements));
    template_spec.insert("expireAfter".into(), json!(expire_after));
    for (key, list) in [("taints", taints), ("startupTaints", startup_taints)] {
        if !list.is_empty() {
            template_spec.insert(key.into(), json!(list));
        }
    }
    let mut template = Map::new();
    let mut template_metadata = Map::new();
    if !spec.labels.is_empty() {
        template_metadata.insert("labels".into(), json!(spec.labels));
    }
    if !spec.annotations.is_empty() {
        template_metadata.insert("annotations".into(), json!(spec.annotations));
    }
    if !template_metadata.is_empty() {
        template.insert("metadata".into(), Value::Object(template_metadata));
    }
    template.insert("spec".into(), Value::Object(template_spec));
    let mut pool_spec = Map::new();
    pool_spec.insert("template".into(), Value::Object(template));
    pool_spec.insert("disruption".into(), disruption);
    if let Some(limits) = spec.limits.as_ref().and_then(|limits| limits.resources.as_ref()) {
        pool_spec.insert("limits".into(), json!(limits));
    }
    if let Some(weight) = spec.weight.filter(|weight| *weight > 0) {
        pool_spec.insert("weight".into(), json!(weight));
    }
    let mut metadata = Map::from_iter([("name".to_owned(), json!(name))]);
    if let Some(labels) = provisioner.metadata.labels.as_ref().filter(|own| !own.is_empty()) {
        metadata.insert("labels".into(), json!(labels));
    }
    let annotations = provisioner.metadata.annotations.iter().flatten();
    let annotations: Map<String, Value> = annotations
        .filter(|(key, _)| *key != LAST_APPLIED)
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    if !annotations.is_empty() {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    let mut notes = draft.notes;
    notes.extend(ALWAYS.map(str::to_owned));
    Ok(Conversion {
        node_pool: json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": metadata, "spec": pool_spec,
        }),
        node_class,
        notes,
    })
}

enum Reference {
    Config(String),
    Class(String),
}

impl Draft {
    fn refuse(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.findings.push(Finding::new(path, problem));
    }

    fn reference(&mut self, inline: Option<&Value>, reference: Option<&ProviderRef>) -> Option<Reference> {
        let Some(reference) = reference else {
            match inline {
                Some(_) => self.refuse(
                    "spec.provider",
                    "settings inline are not supported; move them into a ProviderConfig and use providerRef",
                ),
                None => self.refuse(
                    "spec.providerRef",
                    "is required; name the ProviderConfig to launch with",
                ),
            }
            return None;
        };
        if inline.is_some() {
            self.refuse("spec.provider", "and spec.providerRef can't both be set");
        }
        let group = reference
            .api_version
            .as_deref()
            .map(|version| version.split('/').next().unwrap_or_default());
        match reference.kind.as_deref() {
            None | Some("ProviderConfig") if group.is_none_or(|group| CONFIG_GROUPS.contains(&group)) => {
                Some(Reference::Config(reference.name.clone()))
            }
            Some(CLASS_KIND) if group.is_none_or(|group| group == CLASS_GROUP) => {
                Some(Reference::Class(reference.name.clone()))
            }
            kind => {
                let kind = kind.unwrap_or("ProviderConfig");
                let version = reference.api_version.as_deref().unwrap_or_default();
                self.refuse(
                    "spec.providerRef",
                    format!("{version} {kind} is not a kind of BizFly Cloud; use ProviderConfig of bizflycloud.karpenter.sh/v1alpha1"),
                );
                None
            }
        }
    }

    fn check_labels(&mut self, labels: &std::collections::BTreeMap<String, String>) {
        let rules: LabelRules = own::rules();
        for (key, value) in labels {
            let path = format!("spec.labels[{key}]");
            if key == HOSTNAME || rules.is_restricted(key) || key.starts_with("karpenter.sh/") {
                self.refuse(&path, "is a label that Karpenter sets; remove it");
            } else if let Err(error) = names::check_qualified_name(key) {
                self.refuse(&path, format!("the key {error}"));
            }
            if let Err(error) = names::check_label_value(value) {
                self.refuse(&path, format!("the value \"{value}\" {error}"));
            }
        }
    }

    fn taints(&mut self, taints: &[Taint], startup: &[Taint]) -> (Vec<Taint>, Vec<Taint>) {
        let mut seen = BTreeSet::new();
        let mut keep = |draft: &mut Self, field: &str, list: &[Taint]| -> Vec<Taint> {
            let mut kept = Vec::new();
            for taint in list {
                if taint.key.starts_with("karpenter.sh/") {
                    draft
                        .notes
                        .push(format!("{field}: taint {} is Karpenter's own and left out", taint.key));
                    continue;
                }
                if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str()) {
                    draft.refuse(
                        format!("spec.{field}"),
                        format!("effect \"{}\" of taint {} does not exist", taint.effect, taint.key),
                    );
                }
                if let Err(error) = names::check_qualified_name(&taint.key) {
                    draft.refuse(format!("spec.{field}"), format!("taint key \"{}\" {error}", taint.key));
                }
                if !seen.insert((taint.key.clone(), taint.effect.clone())) {
                    draft.refuse(
                        format!("spec.{field}"),
                        format!("taint {}:{} is there twice", taint.key, taint.effect),
                    );
                }
                kept.push(taint.clone());
            }
            kept
        };
        let kept = keep(self, "taints", taints);
        let kept_startup = keep(self, "startupTaints", startup);
        (kept, kept_startup)
    }

    fn kubelet(&mut self, settings: Option<&Value>) -> Option<Value> {
        let Value::Object(fields) = settings? else {
            self.refuse("spec.kubeletConfiguration", "is not an object");
            return None;
        };
        let mut kept = Map::new();
        for (key, value) in fields {
            match key.as_str() {
                "containerRuntime" => self
                    .notes
                    .push("kubeletConfiguration.containerRuntime is left out: the image decides".to_owned()),
                key if KUBELET_FIELDS.contains(&key) => {
                    kept.insert(key.to_owned(), value.clone());
                }
                key => self.refuse(
                    format!("spec.kubeletConfiguration.{key}"),
                    "is not a setting that can be carried over",
                ),
            }
        }
        if kept.is_empty() {
            return None;
        }
        match serde_json::from_value::<Kubelet>(Value::Object(kept.clone())) {
            Ok(kubelet) => self.findings.extend(kubelet.findings("spec.kubeletConfiguration")),
            Err(error) => self.refuse("spec.kubeletConfiguration", error.to_string()),
        }
        Some(Value::Object(kept))
    }

    /// Unset meant "never" in v1alpha5, where v1's default would start to remove nodes.
    fn disruption(&mut self, spec: &crate::provisioner::ProvisionerSpec) -> Value {
        let consolidates = spec
            .consolidation
            .as_ref()
            .and_then(|own| own.enabled)
            .unwrap_or_default();
        match (consolidates, spec.ttl_seconds_after_empty) {
            (true, Some(_)) => {
                self.refuse(
                    "spec.ttlSecondsAfterEmpty",
                    "and spec.consolidation.enabled can't both be set",
                );
                Value::Null
            }
            (_, Some(seconds)) if seconds < 0 => {
                self.refuse("spec.ttlSecondsAfterEmpty", format!("{seconds} is negative"));
                Value::Null
            }
            (false, Some(seconds)) => {
                json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": format!("{seconds}s")})
            }
            (true, None) => json!({"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}),
            (false, None) => json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}),
        }
    }

    fn expire_after(&mut self, seconds: Option<i64>) -> String {
        match seconds {
            None => "Never".to_owned(),
            Some(seconds) if seconds < 0 => {
                self.refuse("spec.ttlSecondsUntilExpired", format!("{seconds} is negative"));
                String::new()
            }
            Some(seconds) if seconds > 0 && seconds % 3600 == 0 => format!("{}h", seconds / 3600),
            Some(seconds) if seconds > 0 && seconds % 60 == 0 => format!("{}m", seconds / 60),
            Some(seconds) => format!("{seconds}s"),
        }
    }
}

impl Conversion {
    /// The manifests as YAML, with the notes as comments first.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            text.push_str(&format!("# - {note}\n"));
        }
        for document in self.node_class.iter().chain([&self.node_pool]) {
            text.push_str("---\n");
            text.push_str(&serde_norway::to_string(document).unwrap_or_default());
        }
        text
    }
}

#[cfg(test)]
mod tests;
