//! Questions about instance types and offerings that providers and controllers ask alike (api.md §7.3).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use karpenter_api::{
    NodeClaim, Quantity, ResourceList,
    labels::{self, LabelRules},
    requirement::{Requirements, Undefined},
    resources::{HUGEPAGES_PREFIX, MEMORY},
};
use karpenter_engine::model::{InstanceType, Offering, OfferingOverrides};

/// A way to satisfy a claim: an instance type bought in one of its offerings.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub instance_type: Arc<InstanceType>,
    pub offering: Offering,
}

/// Every way to satisfy `claim` now, cheapest first.
///
/// Ties are broken by fewer cpu, less memory, then by name and list order, so that a repeated call decides alike.
pub fn candidates(claim: &NodeClaim, types: &[Arc<InstanceType>], rules: &LabelRules) -> Vec<Candidate> {
    let requirements = Requirements::from_wire(rules, &claim.spec.requirements);
    let requests = claim.spec.resources.requests.clone().unwrap_or_default();
    let mut candidates: Vec<Candidate> = types
        .iter()
        .filter(|own| requirements.is_compatible(&own.requirements, Undefined::WellKnown(rules)))
        .flat_map(|own| {
            compatible_offerings(own, &requirements, rules)
                .filter(|offering| is_launchable(offering) && requests.fits(&allocatable(own, &offering.overrides)))
                .map(|offering| Candidate {
                    instance_type: own.clone(),
                    offering: offering.clone(),
                })
        })
        .collect();
    candidates.sort_by(|a, b| {
        let size = |own: &Candidate| (own.instance_type.capacity.cpu(), own.instance_type.capacity.memory());
        a.offering
            .price
            .total_cmp(&b.offering.price)
            .then_with(|| size(a).cmp(&size(b)))
            .then_with(|| a.instance_type.name.cmp(&b.instance_type.name))
    });
    candidates
}

/// What pods can use of a machine bought this way; may be negative, then nothing fits.
pub fn allocatable(own: &InstanceType, overrides: &OfferingOverrides) -> ResourceList {
    let mut capacity = own.capacity.clone();
    capacity.extend(overrides.capacity.clone());
    let mut overhead = own
        .overhead
        .kube_reserved
        .clone()
        .merged(&own.overhead.system_reserved)
        .merged(&own.overhead.eviction_threshold);
    overhead.extend(overrides.overhead.clone());
    let mut allocatable = capacity.subtract(&overhead);
    let hugepages: Quantity = capacity
        .iter()
        .filter(|(name, _)| name.starts_with(HUGEPAGES_PREFIX))
        .map(|(_, amount)| *amount)
        .sum();
    if let Some(memory) = allocatable.get_mut(MEMORY)
        && !hugepages.is_zero()
    {
        *memory = (*memory - hugepages).max(Quantity::ZERO);
    }
    allocatable
}

/// What a machine bought this way has.
pub fn capacity(own: &InstanceType, overrides: &OfferingOverrides) -> ResourceList {
    let mut capacity = own.capacity.clone();
    capacity.extend(overrides.capacity.clone());
    capacity
}

pub fn is_reserved(offering: &Offering) -> bool {
    capacity_type(offering) == Some(labels::CAPACITY_TYPE_RESERVED)
}

/// Whether a launch would get it. `available` alone is a sign of health: a full reservation is available, and free.
pub fn is_launchable(offering: &Offering) -> bool {
    offering.available && (!is_reserved(offering) || offering.reservation_capacity > 0)
}

pub fn capacity_type(offering: &Offering) -> Option<&str> {
    offering.requirements.get(labels::CAPACITY_TYPE)?.single_value()
}

pub fn zone(offering: &Offering) -> Option<&str> {
    offering.requirements.get(labels::ZONE)?.single_value()
}

/// The offerings that a node with these requirements could be.
pub fn compatible_offerings<'a>(
    own: &'a InstanceType,
    requirements: &'a Requirements,
    rules: &'a LabelRules,
) -> impl Iterator<Item = &'a Offering> {
    own.offerings
        .iter()
        .filter(|offering| requirements.is_compatible(&offering.requirements, Undefined::WellKnown(rules)))
}

/// The price of the cheapest launchable offering; `None` when there is none.
pub fn cheapest_price(own: &InstanceType, requirements: &Requirements, rules: &LabelRules) -> Option<f64> {
    compatible_offerings(own, requirements, rules)
        .filter(|offering| is_launchable(offering))
        .map(|offering| offering.price)
        .min_by(f64::total_cmp)
}

/// A minValues key that a list of types cannot satisfy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingValues {
    pub key: String,
    pub wanted: u32,
    pub found: u32,
}

/// How many of the types, taken in order, satisfy every minValues of the requirements; 0 if none are asked for.
///
/// # Errors
/// The keys for which even all types together have too few values.
pub fn satisfy_min_values(
    types: &[Arc<InstanceType>],
    requirements: &Requirements,
) -> Result<usize, Vec<MissingValues>> {
    let mut wanted: Vec<_> = requirements
        .iter()
        .filter_map(|requirement| Some((requirement, requirement.min_values()?, BTreeSet::new())))
        .collect();
    if wanted.is_empty() || types.is_empty() {
        return Ok(0);
    }
    for (index, own) in types.iter().enumerate() {
        for (requirement, _, found) in &mut wanted {
            let values = own
                .requirements
                .get(requirement.key())
                .into_iter()
                .flat_map(|own| own.values());
            found.extend(values.filter(|value| requirement.has(value)).cloned());
        }
        if wanted.iter().all(|(_, least, found)| found.len() >= *least as usize) {
            return Ok(index + 1);
        }
    }
    Err(wanted
        .into_iter()
        .filter(|(_, least, found)| found.len() < *least as usize)
        .map(|(requirement, wanted, found)| MissingValues {
            key: requirement.key().to_owned(),
            wanted,
            found: u32::try_from(found.len()).unwrap_or(u32::MAX),
        })
        .collect())
}

/// What a running node costs: the first offering with its zone and capacity type. `None` when it is not sold any more.
pub fn running_price(own: &InstanceType, node_zone: &str, node_capacity_type: &str) -> Option<f64> {
    own.offerings
        .iter()
        .find(|offering| zone(offering) == Some(node_zone) && capacity_type(offering) == Some(node_capacity_type))
        .map(|offering| offering.price)
}

/// The labels that a machine bought this way will have: every key with exactly one possible value.
pub fn single_valued_labels(candidate: &Candidate) -> BTreeMap<String, String> {
    let of = |requirements: &Requirements| -> Vec<(String, String)> {
        requirements
            .iter()
            .filter_map(|requirement| Some((requirement.key().to_owned(), requirement.single_value()?.to_owned())))
            .collect()
    };
    let mut labels: BTreeMap<String, String> = of(&candidate.instance_type.requirements).into_iter().collect();
    labels.extend(of(&candidate.offering.requirements));
    labels.insert(labels::INSTANCE_TYPE.to_owned(), candidate.instance_type.name.clone());
    labels
}

#[cfg(test)]
mod tests;
