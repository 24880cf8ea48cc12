//! Builds the instance types of a NodeClass from flavors, prices and what is known to be unavailable.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{
    Quantity, ResourceList, labels,
    requirement::{Requirement, Requirements},
    resources,
};
use karpenter_cloud::{InstanceType, InstanceTypes, Offering, OfferingOverrides, Overhead};

use super::{PriceList, flavors, learned::Learned, overhead};
use crate::{client::model::Flavor, names, node_class::OvhNodeClassSpec};

/// Everything that instance types are made from.
#[derive(Debug)]
pub struct TypeFacts<'a> {
    pub spec: &'a OvhNodeClassSpec,
    pub flavors: &'a [Flavor],
    pub region: &'a str,
    pub zones: &'a Zones,
    pub prices: &'a PriceList,
    pub learned: &'a Learned,
    /// Root disks in GB that the project told, by flavor.
    pub disks: &'a BTreeMap<String, u32>,
    pub memory_overhead: f64,
}

/// The zones of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zones {
    /// The values of the zone label.
    pub names: Vec<String>,
    /// Whether the region has several zones; then every pool must say its own.
    pub kind: ZoneKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    One,
    Several,
}

/// How a flavor is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Billing {
    Hourly,
    Monthly,
}

const PODS: i64 = 110;
/// Cinder volumes that a node can have attached.
const VOLUMES: u32 = 100;

impl Billing {
    pub fn of(spec: &OvhNodeClassSpec) -> Self {
        if spec.is_monthly() { Self::Monthly } else { Self::Hourly }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Monthly => "monthly",
        }
    }
}

impl TypeFacts<'_> {
    /// Every flavor as an instance type, by name; `is_free` says whether a flavor can be asked for in a zone now.
    ///
    /// Flavors that cannot be had stay in the list: a type that vanished would drift the nodes that have it.
    pub fn types(&self, is_free: impl Fn(&str, &str) -> bool) -> InstanceTypes {
        let mut usable: Vec<&Flavor> = self
            .flavors
            .iter()
            .filter(|flavor| flavor.vcpus > 0 && !flavor.name.starts_with("win-"))
            .collect();
        usable.sort_by(|a, b| a.name.cmp(&b.name));
        usable.dedup_by(|a, b| a.name == b.name);
        usable
            .into_iter()
            .map(|flavor| Arc::new(self.instance_type(flavor, &is_free)))
            .collect()
    }

    fn instance_type(&self, flavor: &Flavor, is_free: &impl Fn(&str, &str) -> bool) -> InstanceType {
        let (capacity, overhead) = self.resources(flavor);
        let billing = Billing::of(self.spec);
        let is_sold = match billing {
            Billing::Hourly => true,
            Billing::Monthly => self.prices.sells_monthly(&flavor.name),
        };
        let price = match billing {
            Billing::Hourly => self
                .prices
                .hourly(flavor, self.region, self.zones.kind == ZoneKind::Several),
            Billing::Monthly => self.prices.monthly(flavor),
        };
        let offering = |zone: &String| Offering {
            requirements: Requirements::from_iter([
                Requirement::within(labels::CAPACITY_TYPE, [labels::CAPACITY_TYPE_ON_DEMAND]),
                Requirement::within(labels::ZONE, [zone.as_str()]),
            ]),
            price: price.hourly,
            available: flavor.is_available() && is_sold && is_free(&flavor.name, zone),
            reservation_capacity: 0,
            overrides: OfferingOverrides::default(),
            price_overlaid: false,
        };
        InstanceType {
            name: flavor.name.clone(),
            requirements: self.requirements(flavor, billing),
            offerings: self.zones.names.iter().map(offering).collect(),
            capacity,
            overhead,
            volume_limits: [(names::CINDER_DRIVER.to_owned(), VOLUMES)].into(),
            capacity_overlaid: false,
        }
    }

    fn requirements(&self, flavor: &Flavor, billing: Billing) -> Requirements {
        let one = |key: &str, value: &str| Requirement::within(key, [value]);
        let mut all = vec![
            one(labels::INSTANCE_TYPE, &flavor.name),
            one(labels::ARCH, labels::ARCH_AMD64),
            one(labels::OS, "linux"),
            one(labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_ON_DEMAND),
            Requirement::within(labels::ZONE, self.zones.names.clone()),
            one(labels::REGION, self.region),
            one(names::FAMILY, flavors::family(&flavor.name)),
            one(names::CPU, &flavor.vcpus.to_string()),
            one(names::MEMORY, &(u64::from(flavor.ram) * 1024).to_string()),
            one(names::BILLING, billing.name()),
        ];
        let category = Some(flavor.category.as_str()).filter(|category| !category.is_empty());
        let optional = [
            (names::CATEGORY, category.map(str::to_owned)),
            (names::SIZE, flavors::size(&flavor.name).map(str::to_owned)),
            (names::GENERATION, flavors::generation(&flavor.name).map(str::to_owned)),
        ];
        all.extend(labelled(optional));
        if flavor.gpus > 0 {
            let (model, memory) = self.prices.gpu(&flavor.name);
            all.extend(labelled([
                (names::GPU_COUNT, Some(flavor.gpus.to_string())),
                (names::GPU_MANUFACTURER, Some("nvidia".to_owned())),
                (
                    names::GPU_NAME,
                    model.map(|model| model.to_lowercase().replace(' ', "-")),
                ),
                (names::GPU_MEMORY, memory.map(|memory| memory.to_string())),
            ]));
        }
        Requirements::from_iter(all)
    }

    /// What the machine has, and what of it pods do not get.
    fn resources(&self, flavor: &Flavor) -> (ResourceList, Overhead) {
        let name = &flavor.name;
        let disk = self.disks.get(name).copied().filter(|disk| *disk > 0);
        let disk = disk
            .or(self.prices.disk_gb(name))
            .unwrap_or_else(|| flavors::disk_gb(name));
        let mut capacity = ResourceList::new()
            .with(resources::CPU, Quantity::from_units(i64::from(flavor.vcpus)))
            .with(resources::MEMORY, overhead::memory(flavor.ram, self.memory_overhead))
            .with(resources::PODS, Quantity::from_units(PODS))
            .with(resources::EPHEMERAL_STORAGE, overhead::storage(disk));
        let mut overhead = overhead::overhead(self.spec, flavor.vcpus, disk);
        if let Some(seen) = self.learned.get(name) {
            let reserved = seen.capacity.subtract(&seen.allocatable);
            capacity.extend(seen.capacity);
            overhead = Overhead {
                kube_reserved: reserved,
                ..Overhead::default()
            };
        }
        if flavor.gpus > 0 {
            capacity.insert(
                names::GPU_RESOURCE.to_owned(),
                Quantity::from_units(i64::from(flavor.gpus)),
            );
        }
        (capacity, overhead)
    }
}

fn labelled<const N: usize>(values: [(&str, Option<String>); N]) -> Vec<Requirement> {
    values
        .into_iter()
        .filter_map(|(key, value)| Some(Requirement::within(key, [value?])))
        .collect()
}

#[cfg(test)]
mod tests {
    use karpenter_cloud::selection;
    use serde_json::json;

    use super::*;

    fn build(spec: &serde_json::Value, learned: &Learned, is_free: impl Fn(&str, &str) -> bool) -> InstanceTypes {
        let spec: OvhNodeClassSpec = serde_json::from_value(spec.clone()).expect("a spec");
        let zones = Zones {
            names: vec!["eu-west-par-a".into(), "eu-west-par-b".into()],
            kind: ZoneKind::Several,
        };
        let facts = TypeFacts {
            spec: &spec,
            flavors: &flavors::all(),
            region: "EU-WEST-PAR",
            zones: &zones,
            prices: &PriceList::unknown(),
            learned,
            disks: &BTreeMap::new(),
            memory_overhead: 0.075,
        };
        facts.types(is_free)
    }

    fn named<'a>(types: &'a InstanceTypes, name: &str) -> &'a InstanceType {
        types.iter().find(|own| own.name == name).expect("listed")
    }

    #[test]
    fn a_flavor_has_its_labels_and_resources() {
        let types = build(&json!({}), &Learned::default(), |_, _| true);
        let own = named(&types, "b3-8");
        let label = |key: &str| {
            own.requirements
                .get(key)
                .and_then(|own| own.single_value())
                .map(str::to_owned)
        };
        assert_eq!(label(names::FAMILY).as_deref(), Some("b3"));
        assert_eq!(label(names::CATEGORY).as_deref(), Some("b"));
        assert_eq!(label(names::MEMORY).as_deref(), Some("8192"));
        assert_eq!(label(names::GENERATION).as_deref(), Some("3"));
        assert_eq!(own.capacity.cpu(), Quantity::from_units(2));
        assert!(own.capacity.amount(resources::EPHEMERAL_STORAGE).is_positive());
        assert_eq!(own.volume_limits[names::CINDER_DRIVER], 100);
        assert_eq!(own.offerings.len(), 2);
        let gpu = named(&types, "t1-90");
        assert_eq!(gpu.capacity.amount(names::GPU_RESOURCE), Quantity::from_units(2));
        assert!(!own.requirements.contains_key(names::GPU_COUNT));
    }

    #[test]
    fn what_cannot_be_had_stays_listed_as_unavailable() {
        let types = build(&json!({}), &Learned::default(), |flavor, zone| {
            !(flavor == "b3-8" && zone == "eu-west-par-a")
        });
        let available: Vec<bool> = named(&types, "b3-8")
            .offerings
            .iter()
            .map(|own| own.available)
            .collect();
        assert_eq!(available, [false, true]);
        assert_eq!(types.len(), flavors::all().len());
    }

    #[test]
    fn monthly_billing_offers_generation_2_only() {
        let types = build(&json!({"monthlyBilled": true}), &Learned::default(), |_, _| true);
        let sold = |name: &str| named(&types, name).offerings.iter().any(|own| own.available);
        assert!(sold("b2-7") && !sold("b3-8") && !sold("t1-45"));
    }

    #[test]
    fn what_a_real_node_reported_replaces_the_estimate() {
        let learned = Learned::default();
        let amounts = |memory: i64| {
            ResourceList::new()
                .with(resources::CPU, Quantity::from_units(2))
                .with(resources::MEMORY, Quantity::from_bytes(memory << 20))
        };
        learned.observe("b3-8", &amounts(7000), &amounts(4000));
        let types = build(&json!({}), &learned, |_, _| true);
        let own = named(&types, "b3-8");
        let allocatable = selection::allocatable(own, &own.offerings[0].overrides);
        assert_eq!(allocatable.memory(), Quantity::from_bytes(4000 << 20));
        assert_eq!(own.capacity.memory(), Quantity::from_bytes(7000 << 20));
    }
}
