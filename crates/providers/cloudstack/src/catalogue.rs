//! Instance types made of service offerings: names, labels, capacity, overhead, offerings per zone (cloudstack.md §7).

pub mod capacity;
pub mod discovered;
pub mod shapes;

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use karpenter_api::{
    labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, REGION, ZONE},
    requirement::{Requirement, Requirements},
};
use karpenter_cloud::{InstanceType, Offering, OfferingOverrides};

use crate::{
    client::model::{Account, Tariff},
    labels::{self, label},
    node_class::{CapacityType, CloudStackNodeClass},
    pricing::{self, Priced},
    resolve::{Resolution, ResolvedOffering, ResolvedZone},
    settings::ProviderSettings,
    unavailable::Unavailable,
};
use discovered::{DiscoveredMemory, Kind};
use shapes::Shape;

/// An instance type and what it is made of.
#[derive(Clone, Debug)]
pub struct Entry {
    pub instance_type: Arc<InstanceType>,
    pub offering: ResolvedOffering,
    pub shape: Shape,
}

/// What besides the class decides about types.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub settings: &'a ProviderSettings,
    pub unavailable: &'a Unavailable,
    pub discovered: &'a DiscoveredMemory,
    pub quota: Option<&'a Account>,
    /// Ids of zones whose hosts are full.
    pub full_zones: &'a BTreeSet<String>,
    pub tariffs: &'a [Tariff],
    pub now: Timestamp,
}

/// More types than this are a mistake in customOfferings.
const MOST_TYPES: usize = 200;

/// Every type that a class allows, also those that cannot be had now.
pub fn entries(class: &CloudStackNodeClass, resolution: &Resolution, around: &Surroundings<'_>) -> Vec<Entry> {
    let mut sized: Vec<(&ResolvedOffering, Shape)> = Vec::new();
    for own in &resolution.offerings {
        sized.extend(shapes::of(class, &own.offering).into_iter().map(|shape| (own, shape)));
    }
    if sized.len() > MOST_TYPES {
        tracing::warn!(
            node_class = class.name(),
            types = sized.len(),
            "only the {MOST_TYPES} smallest instance types are used"
        );
        sized.sort_by_key(|(_, shape)| (shape.cpu, shape.memory));
        sized.truncate(MOST_TYPES);
    }
    // The lower id keeps the plain name, whatever order the server lists in.
    sized.sort_by(|(a, x), (b, y)| (&a.offering.id, x.cpu, x.memory).cmp(&(&b.offering.id, y.cpu, y.memory)));
    let mut taken = BTreeSet::new();
    let mut entries = Vec::new();
    for (own, shape) in sized {
        let mut name = around
            .settings
            .naming
            .instance_type(&own.offering.name, &own.offering.id);
        if shape.is_custom() {
            name = format!("{}{}", &name[..name.len().min(45)], shape.suffix());
        }
        if taken.contains(&name) {
            let id = &own.offering.id[..own.offering.id.len().min(8)];
            name = format!("{}-{id}", &name[..name.len().min(54)]);
        }
        taken.insert(name.clone());
        let zones: Vec<&ResolvedZone> = resolution
            .zones
            .iter()
            .filter(|zone| own.is_in(&zone.zone.id) && !zone.networks.is_empty())
            .filter(|zone| zone.templates.iter().any(|template| template.runs_on(&own.offering.id)))
            .collect();
        if zones.is_empty() {
            continue;
        }
        let instance_type = instance_type(class, &name, own, shape, &zones, resolution, around);
        entries.push(Entry {
            instance_type: Arc::new(instance_type),
            offering: own.clone(),
            shape,
        });
    }
    entries.sort_by(|a, b| a.instance_type.name.cmp(&b.instance_type.name));
    entries
}

fn instance_type(
    class: &CloudStackNodeClass,
    name: &str,
    own: &ResolvedOffering,
    shape: Shape,
    zones: &[&ResolvedZone],
    resolution: &Resolution,
    around: &Surroundings<'_>,
) -> InstanceType {
    let offering = &own.offering;
    let gpu = capacity::gpu(class, offering);
    let templates = || {
        let all = zones.iter().flat_map(|zone| &zone.templates);
        all.filter(|template| template.runs_on(&offering.id))
    };
    let template = templates().next();
    let root_gib = capacity::root_gib(class, offering, resolution.root_disk_offering.as_ref(), template);
    let known = template.and_then(|template| {
        around.discovered.get(&Kind {
            offering: offering.id.clone(),
            template: template.template.id.clone(),
            given: shape.memory,
        })
    });
    let capacity = capacity::capacity(class, offering, shape, root_gib, known, around.settings);
    let mut requirements = Requirements::new();
    let mut within = |key: &str, values: BTreeSet<String>| requirements.add(Requirement::within(key, values));
    let one = |value: String| BTreeSet::from([value]);
    within(INSTANCE_TYPE, one(name.to_owned()));
    within(ARCH, templates().map(|own| own.arch.clone()).collect());
    within(OS, templates().map(|own| own.os.clone()).collect());
    within(ZONE, zones.iter().map(|zone| label(&zone.zone.name)).collect());
    within(labels::ZONE_ID, zones.iter().map(|zone| zone.zone.id.clone()).collect());
    within(
        labels::ZONE_NAME,
        zones.iter().map(|zone| label(&zone.zone.name)).collect(),
    );
    within(REGION, zones.iter().map(|zone| region(around.settings, zone)).collect());
    within(CAPACITY_TYPE, one(own.capacity_type.label().to_owned()));
    within(labels::SERVICE_OFFERING_ID, one(offering.id.clone()));
    within(labels::SERVICE_OFFERING_NAME, one(label(&offering.name)));
    within(labels::INSTANCE_CPU, one(shape.cpu.to_string()));
    within(labels::INSTANCE_MEMORY, one(shape.memory.to_string()));
    let family = offering.serviceofferingdetails.get("family").map(|own| label(own));
    within(
        labels::INSTANCE_FAMILY,
        one(family.unwrap_or_else(|| labels::family(&offering.name))),
    );
    let hypervisors: BTreeSet<String> = templates()
        .filter_map(|own| own.template.hypervisor.as_deref())
        .map(label)
        .collect();
    let optional = [
        (labels::INSTANCE_CPU_SPEED, shape.cpu_speed.map(|own| own.to_string())),
        (
            labels::INSTANCE_NETWORK_BANDWIDTH,
            offering.networkrate.map(|own| own.to_string()),
        ),
        (
            labels::INSTANCE_STORAGE_TYPE,
            offering.storagetype.as_deref().map(label),
        ),
        (
            labels::INSTANCE_GPU_COUNT,
            gpu.as_ref().map(|own| own.count.to_string()),
        ),
        (
            labels::INSTANCE_GPU_NAME,
            gpu.as_ref().and_then(|own| own.name.as_deref()).map(label),
        ),
    ];
    if !hypervisors.is_empty() {
        within(labels::INSTANCE_HYPERVISOR, hypervisors);
    }
    let mut absent = Vec::new();
    for (key, value) in optional {
        match value.filter(|value| !value.is_empty()) {
            Some(value) => within(key, one(value)),
            None => absent.push(key),
        }
    }
    for key in absent {
        requirements.add(Requirement::does_not_exist(key));
    }
    let price = pricing::price(
        &Priced {
            instance_type: name,
            offering,
            capacity_type: own.capacity_type,
            cpu: shape.cpu,
            memory: shape.memory,
            gpus: gpu.as_ref().map_or(0, |own| own.count),
            root_gib,
        },
        class.spec.pricing.as_ref(),
        &around.settings.prices,
        around.tariffs,
        around.now,
    );
    let gpus = gpu.as_ref().map_or(0, |own| own.count);
    let fits_quota = around.quota.is_none_or(|quota| fits(quota, shape, gpus));
    let offerings = zones.iter().map(|zone| {
        let is_marked =
            around.unavailable.refuses(class, own, shape, zone) || around.full_zones.contains(&zone.zone.id);
        Offering {
            requirements: offering_requirements(own.capacity_type, zone, around.settings),
            price,
            available: fits_quota && !is_marked,
            reservation_capacity: 0,
            overrides: OfferingOverrides::default(),
            price_overlaid: false,
        }
    });
    InstanceType {
        name: name.to_owned(),
        offerings: offerings.collect(),
        requirements,
        overhead: capacity::overhead(class.spec.kubelet.as_ref(), &capacity),
        capacity,
        volume_limits: Default::default(),
        capacity_overlaid: false,
    }
}

/// Whether one more machine of the shape is within what the account may use.
fn fits(quota: &Account, shape: Shape, gpus: i64) -> bool {
    let has = |left: Option<i64>, wanted: i64| left.is_none_or(|left| left < 0 || left >= wanted);
    has(quota.vmavailable, 1)
        && has(quota.cpuavailable, shape.cpu)
        && has(quota.memoryavailable, shape.memory)
        && has(quota.volumeavailable, 1)
        && (gpus == 0 || has(quota.gpuavailable, gpus))
}

fn offering_requirements(kind: CapacityType, zone: &ResolvedZone, settings: &ProviderSettings) -> Requirements {
    let mut requirements = Requirements::new();
    let mut within = |key: &str, value: String| requirements.add(Requirement::within(key, [value]));
    within(CAPACITY_TYPE, kind.label().to_owned());
    within(ZONE, label(&zone.zone.name));
    within(labels::ZONE_ID, zone.zone.id.clone());
    within(labels::ZONE_NAME, label(&zone.zone.name));
    within(REGION, region(settings, zone));
    requirements
}

/// The region label of a zone.
pub fn region(settings: &ProviderSettings, zone: &ResolvedZone) -> String {
    let region = settings.region.as_deref().unwrap_or(&zone.zone.name);
    label(region)
}
