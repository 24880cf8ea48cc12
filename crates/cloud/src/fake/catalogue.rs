//! Instance types for tests: a small believable catalogue, and a builder for odd ones.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{
    Quantity, ResourceList,
    labels::{self, LabelRules},
    requirement::{Requirement, Requirements},
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
};
use karpenter_engine::model::{InstanceType, Offering, OfferingOverrides, Overhead};

/// The zones of the fake cloud.
pub const ZONES: [&str; 3] = ["test-zone-1", "test-zone-2", "test-zone-3"];
pub const REGION: &str = "test-region";

/// Six sizes from 1 to 32 cpu with 4 GiB per cpu, on-demand and spot in every zone.
pub fn default_types() -> Vec<Arc<InstanceType>> {
    [1, 2, 4, 8, 16, 32]
        .map(|cpu| TypeBuilder::new(format!("fake-{cpu}x"), cpu, cpu * 4).build())
        .into()
}

/// Builds one instance type.
#[derive(Clone, Debug)]
pub struct TypeBuilder {
    name: String,
    capacity: ResourceList,
    arch: String,
    zones: Vec<String>,
    capacity_types: Vec<String>,
    price: f64,
    volume_limits: BTreeMap<String, u32>,
}

impl TypeBuilder {
    pub fn new(name: impl Into<String>, cpu: i64, memory_gib: i64) -> Self {
        Self {
            name: name.into(),
            capacity: ResourceList::new()
                .with(CPU, Quantity::from_units(cpu))
                .with(MEMORY, Quantity::from_bytes(memory_gib << 30))
                .with(EPHEMERAL_STORAGE, Quantity::from_bytes(20 << 30))
                .with(PODS, Quantity::from_units(110)),
            arch: labels::ARCH_AMD64.to_owned(),
            zones: ZONES.map(str::to_owned).into(),
            capacity_types: vec![
                labels::CAPACITY_TYPE_ON_DEMAND.into(),
                labels::CAPACITY_TYPE_SPOT.into(),
            ],
            price: 0.025 * cpu as f64 + 0.003 * memory_gib as f64,
            volume_limits: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn resource(mut self, name: &str, amount: Quantity) -> Self {
        self.capacity = self.capacity.with(name, amount);
        self
    }

    #[must_use]
    pub fn arch(mut self, arch: &str) -> Self {
        arch.clone_into(&mut self.arch);
        self
    }

    #[must_use]
    pub fn zones(mut self, zones: &[&str]) -> Self {
        self.zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
        self
    }

    #[must_use]
    pub fn capacity_types(mut self, capacity_types: &[&str]) -> Self {
        self.capacity_types = capacity_types.iter().map(|own| (*own).to_owned()).collect();
        self
    }

    /// On-demand, per hour; spot is 70 % of it.
    #[must_use]
    pub fn price(mut self, price: f64) -> Self {
        self.price = price;
        self
    }

    #[must_use]
    pub fn volume_limit(mut self, driver: &str, limit: u32) -> Self {
        self.volume_limits.insert(driver.to_owned(), limit);
        self
    }

    pub fn build(self) -> Arc<InstanceType> {
        let pairs = self
            .zones
            .iter()
            .flat_map(|zone| self.capacity_types.iter().map(move |own| (zone, own)));
        let offerings = pairs
            .map(|(zone, capacity_type)| Offering {
                requirements: [
                    Requirement::within(labels::ZONE, [zone]),
                    Requirement::within(labels::CAPACITY_TYPE, [capacity_type]),
                ]
                .into_iter()
                .collect(),
                price: self.price
                    * if capacity_type == labels::CAPACITY_TYPE_SPOT {
                        0.7
                    } else {
                        1.0
                    },
                available: true,
                reservation_capacity: 0,
                overrides: OfferingOverrides::default(),
                price_overlaid: false,
            })
            .collect();
        let mut requirements: Requirements = [
            Requirement::within(labels::INSTANCE_TYPE, [&self.name]),
            Requirement::within(labels::ARCH, [&self.arch]),
            Requirement::within(labels::OS, ["linux"]),
            Requirement::within(labels::REGION, [REGION]),
            Requirement::within(labels::ZONE, &self.zones),
            Requirement::within(labels::CAPACITY_TYPE, &self.capacity_types),
        ]
        .into_iter()
        .collect();
        // An entry for every well-known label, so that nothing is undefined by accident.
        for key in LabelRules::default().well_known() {
            if !requirements.contains_key(key) && key != labels::NODEPOOL {
                requirements.add(Requirement::does_not_exist(key));
            }
        }
        Arc::new(InstanceType {
            name: self.name,
            requirements,
            offerings,
            capacity: self.capacity,
            overhead: Overhead {
                kube_reserved: ResourceList::new()
                    .with(CPU, Quantity::from_milli(100))
                    .with(MEMORY, Quantity::from_bytes(10 << 20)),
                ..Overhead::default()
            },
            volume_limits: self.volume_limits,
            capacity_overlaid: false,
        })
    }
}
