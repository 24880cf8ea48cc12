//! Instance types as a JSON file, in the format of upstream's KWOK provider, and the catalogue that is built in.
//!
//! `karpenter simulate --instance-types` and the KWOK provider read it; `karpenter catalog -o json` writes it. Keys are
//! matched whatever their case, as upstream's decoder does.

mod built_in;
mod derived;

pub use built_in::built_in;
pub use derived::{DOMAIN, INSTANCE_CPU, INSTANCE_FAMILY, INSTANCE_MEMORY, INSTANCE_SIZE};

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::{
    Quantity, Requirement, Requirements, ResourceList,
    labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, LabelRules, OS, ZONE},
    requirement::Operator,
    resources::{CPU, MEMORY, PODS},
};
use serde::{Deserialize, Serialize};

use crate::model::{InstanceType, Offering, OfferingOverrides, Overhead};

/// One instance type of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileInstanceType {
    #[serde(alias = "Name")]
    pub name: String,
    #[serde(alias = "Architecture")]
    pub architecture: String,
    #[serde(alias = "OperatingSystems", alias = "operatingsystems")]
    pub operating_systems: Vec<String>,
    #[serde(alias = "Resources")]
    pub resources: ResourceList,
    #[serde(alias = "Offerings", default)]
    pub offerings: Vec<FileOffering>,
    #[serde(alias = "Overhead", default = "FileOverhead::of_kwok")]
    pub overhead: FileOverhead,
}

/// One way to buy an instance type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct FileOffering {
    #[serde(alias = "price")]
    pub price: f64,
    #[serde(alias = "available", default = "available")]
    pub available: bool,
    #[serde(alias = "reservationCapacity", default, skip_serializing_if = "is_zero")]
    pub reservation_capacity: u32,
    #[serde(alias = "requirements")]
    pub requirements: Vec<FileRequirement>,
}

/// A label that an offering has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileRequirement {
    #[serde(alias = "Key")]
    pub key: String,
    #[serde(alias = "Operator")]
    pub operator: String,
    #[serde(alias = "Values", default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// What the node keeps for itself; ours, absent in upstream's files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileOverhead {
    #[serde(skip_serializing_if = "is_empty")]
    pub kube_reserved: ResourceList,
    #[serde(skip_serializing_if = "is_empty")]
    pub system_reserved: ResourceList,
    #[serde(skip_serializing_if = "is_empty")]
    pub eviction_threshold: ResourceList,
}

impl FileOverhead {
    /// What upstream's KWOK provider keeps back on every type; a file that says nothing means this, and `{}` means none.
    pub fn of_kwok() -> Self {
        let kube_reserved = ResourceList::new()
            .with(CPU, Quantity::from_milli(100))
            .with(MEMORY, Quantity::from_bytes(10 << 20));
        Self {
            kube_reserved,
            ..Self::default()
        }
    }
}

/// Why a catalogue can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogFileError {
    #[error(
        "not a JSON array of instance types: {0}; each needs name, architecture, operatingSystems, resources and offerings"
    )]
    Json(#[from] serde_json::Error),
    #[error("instance type {0} is there twice; names must be unique")]
    Duplicate(String),
    #[error("instance type {name}: offering {index} has no {key}; every offering needs a capacity type and a zone")]
    Incomplete {
        name: String,
        index: usize,
        key: &'static str,
    },
    #[error("instance type {name}: offering {index} has price {price}; it must be a number of at least 0")]
    Price { name: String, index: usize, price: f64 },
    #[error(
        "instance type {name}: requirement {key} {operator} is not understood; use In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte"
    )]
    Operator {
        name: String,
        key: String,
        operator: String,
    },
}

/// Reads a catalogue.
///
/// # Errors
/// When the text is not such a file, or an instance type in it makes no sense.
pub fn parse(json: &[u8]) -> Result<Vec<FileInstanceType>, CatalogFileError> {
    let mut types: Vec<FileInstanceType> = serde_json::from_slice(json)?;
    let mut names = BTreeSet::new();
    for instance_type in &mut types {
        if !names.insert(instance_type.name.clone()) {
            return Err(CatalogFileError::Duplicate(instance_type.name.clone()));
        }
        check_offerings(instance_type)?;
        instance_type.resources.entry(PODS.to_owned()).or_insert(DEFAULT_PODS);
    }
    Ok(types)
}

fn check_offerings(instance_type: &FileInstanceType) -> Result<(), CatalogFileError> {
    let name = &instance_type.name;
    for (index, offering) in instance_type.offerings.iter().enumerate() {
        if !offering.price.is_finite() || offering.price < 0.0 {
            return Err(CatalogFileError::Price {
                name: name.clone(),
                index,
                price: offering.price,
            });
        }
        for requirement in &offering.requirements {
            if requirement.operator.parse::<Operator>().is_err() {
                let FileRequirement { key, operator, .. } = requirement.clone();
                return Err(CatalogFileError::Operator {
                    name: name.clone(),
                    key,
                    operator,
                });
            }
        }
        for key in [CAPACITY_TYPE, ZONE] {
            if offering.values(key).next().is_none() {
                return Err(CatalogFileError::Incomplete {
                    name: name.clone(),
                    index,
                    key,
                });
            }
        }
    }
    Ok(())
}

/// The base label rules together with what a catalogue adds: every key that its offerings name is well known, and the
/// KWOK domain is restricted but for the labels that instance types carry.
pub fn label_rules(types: &[FileInstanceType]) -> LabelRules {
    let mut rules = LabelRules::default().with_restricted_domain(DOMAIN);
    for key in [INSTANCE_SIZE, INSTANCE_FAMILY, INSTANCE_CPU, INSTANCE_MEMORY] {
        rules = rules.with_well_known(key);
    }
    let offerings = types.iter().flat_map(|instance_type| &instance_type.offerings);
    let keys: BTreeSet<&str> = offerings
        .flat_map(|o| &o.requirements)
        .map(|r| r.key.as_str())
        .collect();
    for key in keys {
        let canonical = rules.canonical_key(key).to_owned();
        rules = rules.with_well_known(canonical);
    }
    rules
}

impl FileOffering {
    /// The values that the offering has for a label.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        let entries = self
            .requirements
            .iter()
            .filter(move |r| karpenter_api::labels::canonical_key(&r.key) == key);
        entries.flat_map(|r| &r.values).map(String::as_str)
    }

    fn to_model(&self, rules: &LabelRules) -> Offering {
        let entries = self
            .requirements
            .iter()
            .filter_map(|r| Some((r, r.operator.parse().ok()?)));
        Offering {
            requirements: entries
                .map(|(r, operator)| Requirement::normalised(rules, &r.key, operator, &r.values))
                .collect(),
            price: self.price,
            available: self.available,
            reservation_capacity: self.reservation_capacity,
            overrides: OfferingOverrides::default(),
            price_overlaid: false,
        }
    }
}

impl FileInstanceType {
    /// The instance type as the engine reads it, with the labels that upstream's KWOK provider gives it.
    pub fn to_model(&self, rules: &LabelRules) -> InstanceType {
        let union = |key: &str| -> Vec<&str> {
            self.offerings
                .iter()
                .flat_map(|offering| offering.values(key))
                .collect()
        };
        let mut requirements: Requirements = [
            Requirement::within(INSTANCE_TYPE, [self.name.as_str()]),
            Requirement::within(ARCH, [self.architecture.as_str()]),
            Requirement::within(OS, self.operating_systems.iter().map(String::as_str)),
            Requirement::within(ZONE, union(ZONE)),
            Requirement::within(CAPACITY_TYPE, union(CAPACITY_TYPE)),
        ]
        .into_iter()
        .collect();
        for label in derived::labels(self) {
            requirements.add(label);
        }
        InstanceType {
            name: self.name.clone(),
            requirements,
            offerings: self.offerings.iter().map(|offering| offering.to_model(rules)).collect(),
            capacity: self.resources.clone(),
            overhead: Overhead {
                kube_reserved: self.overhead.kube_reserved.clone(),
                system_reserved: self.overhead.system_reserved.clone(),
                eviction_threshold: self.overhead.eviction_threshold.clone(),
            },
            volume_limits: BTreeMap::new(),
            capacity_overlaid: false,
        }
    }
}

const DEFAULT_PODS: Quantity = Quantity::from_units(110);

fn available() -> bool {
    true
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_empty(resources: &ResourceList) -> bool {
    resources.0.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"[{ "name": "m5.large", "architecture": "amd64", "operatingSystems": ["linux"],
        "resources": { "cpu": "2", "memory": "8Gi" },
        "offerings": [
            { "Price": 0.1, "Available": true, "Requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"] },
                { "key": "example.com/rack", "operator": "In", "values": ["r1"] }] },
            { "price": 0.03, "available": false, "requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] },
                { "key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["b"] }] }] }]"#;

    #[test]
    fn keys_are_read_whatever_their_case_and_pods_default_to_110() {
        let types = parse(ONE.as_bytes()).unwrap();
        assert_eq!(types[0].resources.amount(PODS), Quantity::from_units(110));
        let available: Vec<bool> = types[0].offerings.iter().map(|o| o.available).collect();
        assert_eq!(available, [true, false]);
    }

    #[test]
    fn types_carry_the_labels_of_their_offerings_and_the_derived_ones() {
        let types = parse(ONE.as_bytes()).unwrap();
        let model = types[0].to_model(&label_rules(&types));
        let values = |key: &str| model.requirements.get(key).unwrap().values().to_vec();
        assert_eq!(values(ZONE), ["a", "b"]);
        assert_eq!(values(CAPACITY_TYPE), ["on-demand", "spot"]);
        assert_eq!(values(INSTANCE_SIZE), ["large"]);
        assert_eq!(values(INSTANCE_FAMILY), ["m5"]);
        assert_eq!(values(INSTANCE_CPU), ["2"]);
        assert_eq!(values(INSTANCE_MEMORY), ["8Gi"]);
        assert_eq!(
            model.offerings[1].requirements.get(ZONE).unwrap().single_value(),
            Some("b")
        );
    }

    #[test]
    fn keys_of_offerings_are_well_known_and_the_kwok_domain_is_restricted() {
        let rules = label_rules(&parse(ONE.as_bytes()).unwrap());
        assert!(rules.is_well_known("example.com/rack"));
        assert!(rules.is_restricted("karpenter.kwok.sh/other"));
        assert!(!rules.is_restricted(INSTANCE_CPU));
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let written = &built_in()[5];
        let mut read = parse(&serde_json::to_vec(&[written]).unwrap()).unwrap().remove(0);
        for (read, written) in read.offerings.iter_mut().zip(&written.offerings) {
            assert!((read.price - written.price).abs() < 1e-12);
            read.price = written.price;
        }
        assert!(read == *written);
    }

    fn fails(json: &str, part: &str) {
        let error = parse(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn broken_catalogues_say_what_is_wrong() {
        fails("{}", "not a JSON array");
        fails(
            &ONE.replace("\"values\": [\"b\"]", "\"values\": []"),
            "offering 1 has no topology.kubernetes.io/zone",
        );
        fails(&ONE.replace("0.03", "-1"), "price -1");
        fails(
            &ONE.replace("\"In\", \"values\": [\"r1\"]", "\"Is\", \"values\": [\"r1\"]"),
            "example.com/rack Is",
        );
        let twice = format!("[{0},{0}]", ONE.trim_start_matches('[').trim_end_matches(']'));
        fails(&twice, "twice");
    }
}
