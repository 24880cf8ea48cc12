//! Instance types: flavors × zones × plans × disks, as a NodeClass allows them (§5.2).

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{
    Quantity, Requirement, Requirements, ResourceList,
    labels::{self, ARCH_AMD64, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT},
    resources::{CPU, MEMORY, PODS},
};
use karpenter_cloud::{InstanceType, Offering, OfferingOverrides, Overhead, selection};

use crate::{
    client::wire::{Flavor, VolumeType},
    flavor::Category,
    labels as own,
    node_class::{BizflyCloudNodeClassSpec, FlavorSelectorTerm, Kubelet, ResolvedImage},
    prices::{Prices, Purchase},
};

/// What the cloud sells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloudCatalogue {
    pub flavors: Vec<Flavor>,
    pub volume_types: Vec<VolumeType>,
}

/// What of a NodeClass the types depend on.
#[derive(Clone, Debug, Default)]
pub struct ClassFacts {
    pub name: String,
    pub region_label: String,
    /// In order of preference.
    pub zones: Vec<String>,
    pub spec: BizflyCloudNodeClassSpec,
    pub images: Vec<ResolvedImage>,
    pub root_disk_gib: u32,
    pub vm_memory_overhead: f64,
    /// Memory that nodes really had, by flavor, in bytes.
    pub learned_memory: BTreeMap<String, i64>,
    pub spot_plan_names: Vec<String>,
    /// Only these plans, whatever the class allows: what a NodePool's old capacity types mean.
    pub plans: Option<Vec<String>>,
}

/// One thing to buy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    pub flavor: String,
    pub zone: String,
    pub plan: String,
    pub disk_type: String,
}

/// Whether something was refused lately, or else can be had as far as is known.
pub trait Availability {
    fn is_refused(&self, flavor: &Flavor, zone: &str, plan: &str) -> bool;
}

/// The driver of the vendor's block volumes, and how many of them a server can hold.
pub const CSI_DRIVER: &str = "volume.csi.bizflycloud.vn";
const CSI_VOLUMES: u32 = 20;
const GPU_RESOURCE: &str = "nvidia.com/gpu";
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
pub const PLAN_ON_DEMAND: &str = "on_demand";
pub const PLAN_SAVING: &str = "saving_plan";
pub const PLAN_SPOT: &str = "spot";

/// All types that a class allows, the cheapest first.
pub fn instance_types(
    cloud: &CloudCatalogue,
    class: &ClassFacts,
    prices: &Prices,
    availability: &impl Availability,
) -> Vec<Arc<InstanceType>> {
    let selected = cloud.flavors.iter().filter(|flavor| class.allows(flavor));
    let mut types: Vec<Arc<InstanceType>> = selected
        .filter_map(|flavor| instance_type(flavor, cloud, class, prices, availability))
        .map(Arc::new)
        .collect();
    let cheapest = |own: &InstanceType| {
        let available = own.offerings.iter().filter(|offering| offering.available);
        available
            .map(|offering| offering.price)
            .min_by(f64::total_cmp)
            .unwrap_or(f64::MAX)
    };
    types.sort_by(|a, b| cheapest(a).total_cmp(&cheapest(b)).then_with(|| a.name.cmp(&b.name)));
    types
}

fn instance_type(
    flavor: &Flavor,
    cloud: &CloudCatalogue,
    class: &ClassFacts,
    prices: &Prices,
    availability: &impl Availability,
) -> Option<InstanceType> {
    let capacity = class.capacity(flavor);
    let overhead = class.overhead(&capacity);
    let offerings = offerings(flavor, cloud, class, prices, availability);
    if offerings.is_empty() {
        return None;
    }
    let mut capacity_types: Vec<&str> = offerings.iter().filter_map(selection::capacity_type).collect();
    capacity_types.sort_unstable();
    capacity_types.dedup();
    let mut plans: Vec<&str> = offerings
        .iter()
        .filter_map(|offering| offering.requirements.get(own::BILLING_PLAN)?.single_value())
        .collect();
    plans.sort_unstable();
    plans.dedup();
    let requirements = class.requirements(flavor, &capacity_types, &plans);
    let own = InstanceType {
        name: flavor.name.clone(),
        requirements,
        offerings,
        capacity,
        overhead,
        volume_limits: BTreeMap::from([(CSI_DRIVER.to_owned(), CSI_VOLUMES)]),
        capacity_overlaid: false,
    };
    let allocatable = selection::allocatable(&own, &OfferingOverrides::default());
    if !allocatable.cpu().is_positive() || !allocatable.memory().is_positive() {
        tracing::debug!(flavor = own.name, "nothing of this flavor would be left for pods");
        return None;
    }
    Some(own)
}

/// One per zone, plan and disk; what cannot be had is there too, as unavailable: a node of a type that vanished from the
/// list would count as drifted.
fn offerings(
    flavor: &Flavor,
    cloud: &CloudCatalogue,
    class: &ClassFacts,
    prices: &Prices,
    availability: &impl Availability,
) -> Vec<Offering> {
    let sold_in = flavor
        .generation
        .as_ref()
        .map_or(&[][..], |own| &own.availability_zones);
    let mut offerings = Vec::new();
    for zone in &class.zones {
        for plan in class.plans_of(flavor) {
            for disk_type in class.disk_types() {
                let is_sold = sold_in.is_empty() || sold_in.contains(zone);
                let has_disk = cloud.volume_type(flavor.category(), disk_type, zone).is_some();
                let price = prices.hourly(&Purchase {
                    flavor,
                    zone,
                    plan,
                    disk_type,
                    disk_gib: class.disk_gib(),
                });
                let capacity_type = if plan == PLAN_SPOT {
                    CAPACITY_TYPE_SPOT
                } else {
                    CAPACITY_TYPE_ON_DEMAND
                };
                let mut requirements = Requirements::new();
                for (key, value) in [
                    (labels::ZONE, zone.as_str()),
                    (labels::CAPACITY_TYPE, capacity_type),
                    (own::BILLING_PLAN, plan),
                    (own::DISK_TYPE, disk_type),
                ] {
                    requirements.add(Requirement::within(key, [value]));
                }
                offerings.push(Offering {
                    requirements,
                    price,
                    available: is_sold && has_disk && !availability.is_refused(flavor, zone, plan),
                    reservation_capacity: 0,
                    overrides: OfferingOverrides::default(),
                    price_overlaid: false,
                });
            }
        }
    }
    offerings
}

impl CloudCatalogue {
    pub fn flavor(&self, name: &str) -> Option<&Flavor> {
        self.flavors.iter().find(|flavor| flavor.name == name)
    }

    /// The volume type for a tier and kind of disk in a zone.
    pub fn volume_type(&self, category: Category, disk_type: &str, zone: &str) -> Option<&VolumeType> {
        self.volume_types.iter().find(|own| {
            let kind = own.kind.to_uppercase();
            let is_kind = kind == disk_type || kind.ends_with(&format!(" {disk_type}")) || {
                let name = own.name.to_uppercase();
                kind.is_empty() && (name.contains(&format!("-{disk_type}")) || name.contains(&format!("_{disk_type}")))
            };
            own.category.eq_ignore_ascii_case(category.as_str())
                && is_kind
                && (own.availability_zones.is_empty() || own.availability_zones.iter().any(|own| own == zone))
        })
    }
}

impl ClassFacts {
    pub fn allows(&self, flavor: &Flavor) -> bool {
        let among = |list: &[String], value: &str| list.is_empty() || list.iter().any(|own| own == value);
        flavor.is_usable()
            && among(&self.spec.node_categories, flavor.category().as_str())
            && among(&self.spec.cpu_vendors, &flavor.cpu_vendor())
            && (self.spec.flavor_selector_terms.is_empty()
                || self.spec.flavor_selector_terms.iter().any(|term| term.matches(flavor)))
    }

    /// GiB of all disks that are ordered with a server.
    pub fn disk_gib(&self) -> u32 {
        let data: u32 = self.spec.data_disks.iter().map(|disk| disk.size).sum();
        self.root_disk_gib.saturating_add(data)
    }

    fn disk_types(&self) -> Vec<&str> {
        match self.spec.disk_types.as_slice() {
            [] => vec!["SSD"],
            own => own.iter().map(String::as_str).collect(),
        }
    }

    /// The class's plans that the flavor has; a flavor that does not tell has both that are not spot.
    fn plans_of(&self, flavor: &Flavor) -> Vec<&str> {
        let mut wanted: Vec<&str> = match (&self.plans, self.spec.billing_plans.as_slice()) {
            (Some(own), _) => own.iter().map(String::as_str).collect(),
            (None, []) => vec![PLAN_ON_DEMAND],
            (None, own) => own.iter().map(String::as_str).collect(),
        };
        if let Some(sold) = &flavor.billing_plans {
            wanted.retain(|plan| sold.iter().any(|own| own == plan));
        }
        wanted.retain(|plan| *plan != PLAN_SPOT);
        if self.spec.allows_spot() && self.spot_plan(flavor).is_some() {
            wanted.push(PLAN_SPOT);
        }
        wanted
    }

    /// What the API calls spot for this flavor, if it sells it.
    pub fn spot_plan(&self, flavor: &Flavor) -> Option<&str> {
        let sold = flavor.billing_plans.as_ref()?;
        self.spot_plan_names
            .iter()
            .find(|name| sold.contains(name))
            .map(String::as_str)
    }

    fn requirements(&self, flavor: &Flavor, capacity_types: &[&str], plans: &[&str]) -> Requirements {
        let mut requirements = Requirements::new();
        let mut within = |key: &str, values: Vec<String>| {
            requirements.add(if values.is_empty() {
                Requirement::does_not_exist(key)
            } else {
                Requirement::within(key, values)
            });
        };
        let one = |text: &str| vec![text.to_owned()];
        let many = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        within(labels::INSTANCE_TYPE, one(&flavor.name));
        within(labels::ARCH, one(ARCH_AMD64));
        within(labels::OS, one("linux"));
        within(labels::REGION, one(&self.region_label));
        within(labels::ZONE, self.zones.clone());
        within(labels::CAPACITY_TYPE, many(capacity_types));
        within(own::BILLING_PLAN, many(plans));
        within(own::DISK_TYPE, many(&self.disk_types()));
        within(own::NODE_CATEGORY, one(flavor.category().as_str()));
        within(own::CPU_VENDOR, one(&flavor.cpu_vendor()));
        within(own::NETWORK_PLAN, self.network_plans());
        let of_images = |value: fn(&ResolvedImage) -> Option<String>| {
            let mut values: Vec<String> = self.images.iter().filter_map(value).collect();
            values.sort();
            values.dedup();
            values
        };
        within(own::OS_TYPE, of_images(|image| Some(image.os_type.clone())));
        within(
            own::KUBERNETES_VERSION,
            of_images(|image| image.kubernetes_version.clone()),
        );
        let mut image_ids = of_images(|image| Some(image.name.clone()));
        image_ids.extend(of_images(|image| Some(image.id.clone())));
        image_ids.sort();
        image_ids.dedup();
        within(own::IMAGE_ID, image_ids);
        within(own::INSTANCE_CPU, one(&flavor.vcpus.to_string()));
        within(own::INSTANCE_MEMORY, one(&flavor.ram.to_string()));
        let gpu = flavor.gpu.as_ref().filter(|gpu| gpu.count > 0);
        within(
            own::INSTANCE_GPU_COUNT,
            one(&gpu.map_or(0, |gpu| gpu.count).to_string()),
        );
        let gpu_name = gpu
            .map(|gpu| crate::images::slug(&gpu.name))
            .filter(|name| !name.is_empty());
        within(own::INSTANCE_GPU_NAME, gpu_name.into_iter().collect());
        let generation = flavor.generation.as_ref().and_then(|own| own.code.clone());
        within(own::INSTANCE_GENERATION, generation.into_iter().collect());
        requirements
    }

    pub fn network_plans(&self) -> Vec<String> {
        match self.spec.network_plans.as_slice() {
            [] => vec!["free_datatransfer".to_owned()],
            own => own.to_vec(),
        }
    }

    fn kubelet(&self) -> Kubelet {
        self.spec.kubelet.clone().unwrap_or_default()
    }

    pub fn capacity(&self, flavor: &Flavor) -> ResourceList {
        let estimated = flavor.ram as f64 * (1.0 - self.vm_memory_overhead);
        let learned = self.learned_memory.get(&flavor.name).copied();
        let memory = learned.unwrap_or(estimated as i64 * MIB);
        let mut capacity = ResourceList::new()
            .with(CPU, Quantity::from_units(flavor.vcpus as i64))
            .with(MEMORY, Quantity::from_bytes(memory))
            .with(PODS, Quantity::from_units(self.kubelet().pods(flavor.vcpus) as i64))
            .with(
                karpenter_api::resources::EPHEMERAL_STORAGE,
                Quantity::from_bytes(i64::from(self.root_disk_gib) * GIB),
            );
        if let Some(gpu) = flavor.gpu.as_ref().filter(|gpu| gpu.count > 0) {
            capacity = capacity.with(GPU_RESOURCE, Quantity::from_units(gpu.count as i64));
        }
        capacity
    }

    pub fn overhead(&self, capacity: &ResourceList) -> Overhead {
        let kubelet = self.kubelet();
        Overhead {
            kube_reserved: kubelet.kube_reserved(),
            system_reserved: kubelet.system_reserved(),
            eviction_threshold: kubelet.eviction_threshold(capacity),
        }
    }
}

impl FlavorSelectorTerm {
    fn matches(&self, flavor: &Flavor) -> bool {
        let gib = flavor.ram / 1024;
        let at_least = |least: Option<u32>, value: u64| least.is_none_or(|least| value >= u64::from(least));
        let at_most = |most: Option<u32>, value: u64| most.is_none_or(|most| value <= u64::from(most));
        let has_gpu = flavor.gpu.as_ref().is_some_and(|gpu| gpu.count > 0);
        self.name.as_deref().is_none_or(|pattern| glob(pattern, &flavor.name))
            && at_least(self.min_vcpu, flavor.vcpus)
            && at_most(self.max_vcpu, flavor.vcpus)
            && at_least(self.min_ram_gib, gib)
            && at_most(self.max_ram_gib, gib)
            && self.gpu.is_none_or(|wanted| wanted == has_gpu)
    }
}

impl Offer {
    /// What a candidate of [`selection::candidates`] stands for.
    pub fn of(candidate: &selection::Candidate) -> Option<Self> {
        let value = |key: &str| Some(candidate.offering.requirements.get(key)?.single_value()?.to_owned());
        Some(Self {
            flavor: candidate.instance_type.name.clone(),
            zone: value(labels::ZONE)?,
            plan: value(own::BILLING_PLAN)?,
            disk_type: value(own::DISK_TYPE)?,
        })
    }
}

/// `*` stands for any text.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => {
            let Some(after) = text.strip_prefix(start) else {
                return false;
            };
            (0..=after.len())
                .filter(|at| after.is_char_boundary(*at))
                .any(|at| glob(rest, &after[at..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Everything;
    impl Availability for Everything {
        fn is_refused(&self, _: &Flavor, _: &str, _: &str) -> bool {
            false
        }
    }

    fn cloud() -> CloudCatalogue {
        let flavors = json!([
            {"name": "nix.2c_2g", "ram": 2048, "vcpus": 2, "category": "premium"},
            {"name": "nix.4c_8g", "ram": 8192, "vcpus": 4, "category": "premium"},
            {"name": "p4a.4c_8g", "ram": 8192, "vcpus": 4, "category": "premium",
             "generation": {"code": "4a", "vendor": "AMD", "availability_zones": ["HN2"]},
             "billing_plans": ["on_demand", "saving_plan"]},
            {"name": "4c_8g_vps", "ram": 8192, "vcpus": 4},
            {"name": "g2.8c_32g", "ram": 32768, "vcpus": 8, "category": "dedicated", "gpu": {"name": "A100", "count": 1}},
        ]);
        let volume_types = json!([
            {"name": "PREMIUM-SSD1", "category": "premium", "type": "PREMIUM SSD", "availability_zones": ["HN1", "HN2"]},
            {"name": "PREMIUM-HDD1", "category": "premium", "type": "PREMIUM HDD", "availability_zones": ["HN1"]},
            {"name": "DEDICATED-SSD1", "category": "dedicated", "type": "SSD", "availability_zones": ["HN1", "HN2"]},
        ]);
        CloudCatalogue {
            flavors: serde_json::from_value(flavors).expect("flavors"),
            volume_types: serde_json::from_value(volume_types).expect("volume types"),
        }
    }

    fn types(spec: serde_json::Value) -> Vec<Arc<InstanceType>> {
        let class = ClassFacts {
            name: "default".into(),
            region_label: "HN".into(),
            zones: vec!["HN1".into(), "HN2".into()],
            spec: serde_json::from_value(spec).expect("a spec"),
            root_disk_gib: 40,
            vm_memory_overhead: 0.05,
            ..ClassFacts::default()
        };
        instance_types(&cloud(), &class, &Prices::default(), &Everything)
    }

    fn names(types: &[Arc<InstanceType>]) -> Vec<&str> {
        types.iter().map(|own| own.name.as_str()).collect()
    }

    fn offered(own: &InstanceType, available: bool) -> Vec<&str> {
        let offerings = own.offerings.iter().filter(|offering| offering.available == available);
        offerings.filter_map(selection::zone).collect()
    }

    #[test]
    fn a_flavor_sold_in_one_zone_is_there_with_the_other_unavailable() {
        let all = types(json!({}));
        let amd = all.iter().find(|own| own.name == "p4a.4c_8g").expect("listed");
        assert_eq!(offered(amd, true), ["HN2"]);
        assert_eq!(offered(amd, false), ["HN1"]);
    }

    #[test]
    fn a_class_narrows_flavors_by_tier_vendor_and_terms() {
        assert_eq!(names(&types(json!({"cpuVendors": ["AMD4"]}))), ["p4a.4c_8g"]);
        assert!(types(json!({"cpuVendors": ["AMD5"]})).is_empty());
        assert_eq!(names(&types(json!({"nodeCategories": ["dedicated"]}))), ["g2.8c_32g"]);
        let terms = json!({"flavorSelectorTerms": [{"name": "nix.*", "minVCPU": 4}, {"gpu": true}]});
        let mut found = types(terms);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(names(&found), ["g2.8c_32g", "nix.4c_8g"]);
    }

    #[test]
    fn a_disk_that_a_zone_lacks_is_unavailable_there() {
        let all = types(json!({"diskTypes": ["HDD"], "flavorSelectorTerms": [{"name": "nix.4c_8g"}]}));
        assert_eq!(offered(&all[0], true), ["HN1"]);
        assert_eq!(offered(&all[0], false), ["HN2"]);
    }

    #[test]
    fn the_smallest_flavor_has_room_and_110_pods() {
        let all = types(json!({}));
        let small = all.iter().find(|own| own.name == "nix.2c_2g").expect("listed");
        let allocatable = small.allocatable();
        assert!(allocatable.cpu().is_positive() && allocatable.memory().is_positive());
        assert_eq!(allocatable.amount(PODS), Quantity::from_units(110));
        assert_eq!(small.volume_limits[CSI_DRIVER], 20);
    }

    #[test]
    fn every_price_is_above_zero_and_subscriptions_are_cheaper() {
        let all = types(json!({"billingPlans": ["on_demand", "saving_plan"]}));
        for own in &all {
            assert!(
                own.offerings
                    .iter()
                    .all(|offering| offering.price.is_finite() && offering.price > 0.0)
            );
            let price = |plan: &str| {
                let mut of_plan = own.offerings.iter().filter(|offering| {
                    offering
                        .requirements
                        .get(own::BILLING_PLAN)
                        .and_then(|own| own.single_value())
                        == Some(plan)
                });
                of_plan.next().expect("sold so").price
            };
            assert!(price("saving_plan") < price("on_demand"), "{}", own.name);
        }
    }

    #[test]
    fn gpus_are_capacity_and_label() {
        let all = types(json!({"flavorSelectorTerms": [{"gpu": true}]}));
        assert_eq!(all[0].capacity.amount(GPU_RESOURCE), Quantity::from_units(1));
        let count = all[0]
            .requirements
            .get(own::INSTANCE_GPU_COUNT)
            .and_then(|own| own.single_value());
        assert_eq!(count, Some("1"));
    }

    #[test]
    fn stars_match_anything() {
        assert!(glob("p4a.*", "p4a.4c_8g") && glob("*_8g", "p4a.4c_8g") && glob("*", ""));
        assert!(!glob("nix.*", "p4a.4c_8g") && !glob("4c", "4c_8g"));
    }
}
