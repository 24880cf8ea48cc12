//! The instance types of one NodePool as columns: resources, label requirements and offerings.
//!
//! A row is one instance type with one set of resources; offerings that override capacity or overhead get rows of their
//! own (scheduling.md §2.5). Rows that the NodePool itself rules out are not kept.

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::quantity::Quantity;
use karpenter_api::resources::{self, ResourceList};
use rustc_hash::FxHashMap;

use crate::model::{InstanceType, Offering, OfferingOverrides};
use crate::tables::{Amounts, Dims, KeyId, ReqId, SetId, Tables};

#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) types: Vec<Arc<InstanceType>>,
    /// Capacity per type, which limits are charged with.
    pub(crate) capacity: Vec<Amounts>,
    /// The type of each row; rows of one type are adjacent.
    pub(crate) type_of: Vec<u32>,
    /// Allocatable per row.
    pub(crate) allocatable: Vec<Amounts>,
    /// Per key, the requirement of each type that defines it.
    pub(crate) columns: FxHashMap<KeyId, Box<[Option<ReqId>]>>,
    /// Available offerings.
    pub(crate) offers: Vec<Offer>,
}

/// An available offering.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) row: u32,
    pub(crate) entries: Box<[(KeyId, ReqId)]>,
    pub(crate) price: f64,
    /// Could be bought right now: not a full reservation.
    pub(crate) launchable: bool,
    pub(crate) reservation: Option<Reservation>,
    /// Position among the offerings of its type.
    pub(crate) nth: usize,
}

/// The reservation that an offering is bought from.
#[derive(Debug, Clone)]
pub(crate) struct Reservation {
    /// The provider's label for reservation ids.
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) capacity: u32,
}

impl Rows {
    pub(crate) fn new(tables: &mut Tables, dims: &mut Dims, set: SetId, types: &[Arc<InstanceType>]) -> Rows {
        let mut rows = Rows::default();
        let mut columns: FxHashMap<KeyId, Vec<Option<ReqId>>> = FxHashMap::default();
        for instance_type in types {
            let entries: Vec<_> = instance_type
                .requirements
                .iter()
                .map(|r| tables.requirement(r))
                .collect();
            let own = tables.set_of(entries.iter().copied());
            if tables.intersects(own, set).is_err() || !rows.add_type(tables, dims, set, instance_type) {
                continue;
            }
            let at = rows.types.len() - 1;
            for (key, req) in entries {
                let column = columns.entry(key).or_default();
                column.resize(at, None);
                column.push(Some(req));
            }
        }
        rows.columns = columns
            .into_iter()
            .map(|(key, mut column)| {
                column.resize(rows.types.len(), None);
                (key, column.into())
            })
            .collect();
        rows
    }

    /// Adds the rows of a type that have something to sell under `set`; false if none has.
    fn add_type(
        &mut self,
        tables: &mut Tables,
        dims: &mut Dims,
        set: SetId,
        instance_type: &Arc<InstanceType>,
    ) -> bool {
        let type_index = self.types.len() as u32;
        let first_row = self.type_of.len();
        for (overrides, offerings) in override_groups(instance_type) {
            let allocatable = allocatable(instance_type, overrides);
            if allocatable.values().any(|quantity| quantity.is_negative()) {
                continue;
            }
            let row = self.type_of.len() as u32;
            let mut sold = false;
            for (nth, offering) in offerings {
                let entries: Vec<_> = offering.requirements.iter().map(|r| tables.requirement(r)).collect();
                let demand = tables.set_of(entries.iter().copied());
                if tables.accept(set, demand).is_err() {
                    continue;
                }
                sold = true;
                let reservation = reservation(offering);
                self.offers.push(Offer {
                    row,
                    entries: entries.into(),
                    price: offering.price,
                    launchable: reservation.as_ref().is_none_or(|reservation| reservation.capacity > 0),
                    reservation,
                    nth,
                });
            }
            if sold {
                self.type_of.push(type_index);
                self.allocatable.push(dims.supply(&allocatable));
            }
        }
        if self.type_of.len() == first_row {
            return false;
        }
        self.types.push(instance_type.clone());
        self.capacity.push(dims.supply(&instance_type.capacity));
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.type_of.len()
    }

    pub(crate) fn has_reservations(&self) -> bool {
        self.offers.iter().any(|offer| offer.reservation.is_some())
    }
}

/// Available offerings by what they override.
fn override_groups(instance_type: &InstanceType) -> Vec<(&OfferingOverrides, Vec<(usize, &Offering)>)> {
    let mut groups: Vec<(&OfferingOverrides, Vec<(usize, &Offering)>)> = Vec::new();
    for (nth, offering) in instance_type
        .offerings
        .iter()
        .enumerate()
        .filter(|(_, offering)| offering.available)
    {
        match groups
            .iter_mut()
            .find(|(overrides, _)| **overrides == offering.overrides)
        {
            Some((_, offerings)) => offerings.push((nth, offering)),
            None => groups.push((&offering.overrides, vec![(nth, offering)])),
        }
    }
    groups
}

/// Capacity less overhead, over the keys of capacity; huge pages are taken from memory, which never goes below zero.
pub(crate) fn allocatable(instance_type: &InstanceType, overrides: &OfferingOverrides) -> ResourceList {
    let mut capacity = instance_type.capacity.clone();
    for (name, quantity) in &overrides.capacity {
        capacity.insert(name.clone(), *quantity);
    }
    let own = &instance_type.overhead;
    let mut overhead = own
        .kube_reserved
        .clone()
        .merged(&own.system_reserved)
        .merged(&own.eviction_threshold);
    for (name, quantity) in &overrides.overhead {
        overhead.insert(name.clone(), *quantity);
    }
    let mut allocatable = capacity.subtract(&overhead);
    let huge_pages: Quantity = capacity
        .iter()
        .filter(|(name, _)| name.starts_with(resources::HUGEPAGES_PREFIX))
        .map(|(_, quantity)| *quantity)
        .sum();
    if let Some(memory) = allocatable.get_mut(resources::MEMORY)
        && huge_pages.is_positive()
    {
        *memory = (*memory - huge_pages).max(Quantity::ZERO);
    }
    allocatable
}

/// The reservation of a reserved offering: its id is the label besides zone and capacity type, by preference the one that
/// says so.
pub(crate) fn reservation(offering: &Offering) -> Option<Reservation> {
    let capacity_type = offering.requirements.get(labels::CAPACITY_TYPE)?;
    if capacity_type.single_value() != Some(labels::CAPACITY_TYPE_RESERVED) {
        return None;
    }
    let others = || {
        let named = offering
            .requirements
            .iter()
            .filter_map(|r| Some((r.key(), r.single_value()?)));
        named.filter(|(key, _)| ![labels::CAPACITY_TYPE, labels::ZONE, labels::REGION].contains(key))
    };
    let (key, id) = others()
        .find(|(key, _)| key.contains("reservation"))
        .or_else(|| others().next())?;
    Some(Reservation {
        key: key.to_owned(),
        id: id.to_owned(),
        capacity: offering.reservation_capacity,
    })
}
