//! Prices of running nodes and of what could replace them (disruption.md §2.2, §3.5).

use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::{Requirements, Undefined};

use crate::model::{InstanceType, Labels, Offering};

/// What a running node costs per hour: the first offering of its type that its labels fit (zone, capacity type, and the
/// reservation where it has one), whether that is still for sale or not. `None` when there is no such offering.
pub fn of_node(rules: &LabelRules, instance_type: &InstanceType, node_labels: &Labels) -> Option<f64> {
    let fits = |offering: &&Offering| {
        offering
            .requirements
            .iter()
            .all(|requirement| match node_labels.get(requirement.key()) {
                Some(value) => requirement.has(rules.canonical_value(requirement.key(), value)),
                // A missing zone or capacity type leaves the price open; other keys the node need not carry.
                None => ![labels::ZONE, labels::CAPACITY_TYPE].contains(&requirement.key()),
            })
    };
    let price = instance_type.offerings.iter().find(fits)?.price;
    price.is_finite().then_some(price)
}

/// Could be bought now: healthy, and with a slot left if it is a reservation.
pub fn is_launchable(offering: &Offering) -> bool {
    offering.available
        && (capacity_type(offering) != Some(labels::CAPACITY_TYPE_RESERVED) || offering.reservation_capacity > 0)
}

/// The most that launching this type under `requirements` could cost: of the capacity type that would be taken
/// (reserved, then spot, then on-demand), the dearest offering. `None` when nothing can be launched.
pub fn worst_launch(
    instance_type: &InstanceType,
    requirements: &Requirements,
    undefined: Undefined<'_>,
) -> Option<f64> {
    let mut worst: [Option<f64>; 3] = [None; 3];
    for offering in &instance_type.offerings {
        let Some(rank) = capacity_type(offering).and_then(preference) else {
            continue;
        };
        if !is_launchable(offering) || !requirements.is_compatible(&offering.requirements, undefined) {
            continue;
        }
        let slot = &mut worst[rank];
        *slot = Some(slot.map_or(offering.price, |price| price.max(offering.price)));
    }
    worst.into_iter().flatten().next()
}

/// The cheapest offering that could be launched under `requirements`.
pub fn cheapest_launch(
    instance_type: &InstanceType,
    requirements: &Requirements,
    undefined: Undefined<'_>,
) -> Option<f64> {
    instance_type
        .offerings
        .iter()
        .filter(|offering| is_launchable(offering) && requirements.is_compatible(&offering.requirements, undefined))
        .map(|offering| offering.price)
        .min_by(f64::total_cmp)
}

fn capacity_type(offering: &Offering) -> Option<&str> {
    offering.requirements.get(labels::CAPACITY_TYPE)?.single_value()
}

fn preference(capacity_type: &str) -> Option<usize> {
    [
        labels::CAPACITY_TYPE_RESERVED,
        labels::CAPACITY_TYPE_SPOT,
        labels::CAPACITY_TYPE_ON_DEMAND,
    ]
    .iter()
    .position(|known| *known == capacity_type)
}
