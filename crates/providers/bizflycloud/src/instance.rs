//! A server as core sees it: its provider ID, labels, resources and the claim it was made for.

use std::collections::BTreeMap;

use karpenter_api::{
    NodeClaim,
    labels::{self, ARCH_AMD64, CAPACITY_TYPE_ON_DEMAND, CAPACITY_TYPE_SPOT},
};
use karpenter_cloud::{ClaimMark, Instance, InstancePhase, InstanceType, OfferingOverrides, selection};

use crate::{
    catalogue::{ClassFacts, CloudCatalogue, PLAN_ON_DEMAND, PLAN_SPOT},
    client::wire::Server,
    labels::{self as own, annotations},
    node_class::HASH_VERSION,
    prices::{Prices, Purchase},
};

pub const PROVIDER_PREFIX: &str = "bizflycloud://";

pub fn provider_id(server_id: &str) -> String {
    format!("{PROVIDER_PREFIX}{server_id}")
}

/// The server behind a provider ID. A bare id is one too: that is how the cloud controller manager takes it.
pub fn server_id(provider_id: &str) -> Option<&str> {
    let id = match provider_id.strip_prefix(PROVIDER_PREFIX) {
        Some(id) => id,
        None if provider_id.contains(':') => return None,
        None => provider_id,
    };
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

/// The names by which the API knows a flavor, reduced to what they have in common: tier prefix and suffix dropped.
fn is_same_flavor(listed: &str, reported: &str) -> bool {
    listed == reported || {
        let short = |name: &str| crate::flavor::Size::of_name(name);
        crate::flavor::Size::parse(reported).is_some() && short(listed) == short(reported)
    }
}

/// The flavor that a server has, by the name that the catalogue lists it under.
pub fn canonical_flavor<'a>(server: &'a Server, catalogue: &'a CloudCatalogue) -> &'a str {
    let reported = server.flavor();
    if catalogue.flavor(reported).is_some() {
        return reported;
    }
    let category = if server.category.is_empty() {
        server.metadata.get("category").map_or("", String::as_str)
    } else {
        &server.category
    };
    let listed = catalogue.flavors.iter().find(|flavor| {
        is_same_flavor(&flavor.name, reported)
            && (category.is_empty() || flavor.category().as_str().eq_ignore_ascii_case(category))
    });
    listed.map_or(reported, |flavor| flavor.name.as_str())
}

/// What is known about a server. Labels follow what the server is, not what was ordered.
pub fn instance(
    server: &Server,
    claim: Option<&ClaimMark>,
    class: Option<&ClassFacts>,
    catalogue: &CloudCatalogue,
    region_label: &str,
) -> Instance {
    let unknown = ClassFacts::default();
    let facts = class.unwrap_or(&unknown);
    let flavor_name = canonical_flavor(server, catalogue);
    let flavor = catalogue.flavor(flavor_name);
    let plan = if facts.spot_plan_names.contains(&server.billing_plan) {
        PLAN_SPOT
    } else if server.billing_plan.is_empty() {
        PLAN_ON_DEMAND
    } else {
        &server.billing_plan
    };
    let capacity_type = if plan == PLAN_SPOT {
        CAPACITY_TYPE_SPOT
    } else {
        CAPACITY_TYPE_ON_DEMAND
    };

    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            found.insert(key.to_owned(), value.to_owned());
        }
    };
    put(labels::INSTANCE_TYPE, flavor_name);
    put(labels::ARCH, ARCH_AMD64);
    put(labels::OS, "linux");
    put(labels::REGION, region_label);
    put(labels::ZONE, server.zone());
    put(labels::CAPACITY_TYPE, capacity_type);
    put(own::BILLING_PLAN, plan);
    put(own::NETWORK_PLAN, &server.network_plan);
    if let Some(root) = server.root_volume() {
        put(own::DISK_TYPE, disk_type(server));
        let image_id = &root.volume_image_metadata.image_id;
        match facts.images.iter().find(|image| image.id == *image_id) {
            Some(image) => {
                put(own::IMAGE_ID, &image.name);
                put(own::OS_TYPE, &image.os_type);
                put(
                    own::KUBERNETES_VERSION,
                    image.kubernetes_version.as_deref().unwrap_or_default(),
                );
            }
            None => put(own::IMAGE_ID, image_id),
        }
    }
    if let Some(flavor) = flavor {
        put(own::NODE_CATEGORY, flavor.category().as_str());
        put(own::CPU_VENDOR, &flavor.cpu_vendor());
        put(own::INSTANCE_CPU, &flavor.vcpus.to_string());
        put(own::INSTANCE_MEMORY, &flavor.ram.to_string());
        let gpu = flavor.gpu.as_ref().filter(|gpu| gpu.count > 0);
        put(own::INSTANCE_GPU_COUNT, &gpu.map_or(0, |gpu| gpu.count).to_string());
        put(
            own::INSTANCE_GPU_NAME,
            &gpu.map(|gpu| crate::images::slug(&gpu.name)).unwrap_or_default(),
        );
        let generation = flavor.generation.as_ref().and_then(|own| own.code.as_deref());
        put(own::INSTANCE_GENERATION, generation.unwrap_or_default());
    }

    let mut notes = BTreeMap::from([(annotations::INSTANCE_ID.to_owned(), server.id.clone())]);
    if plan == PLAN_SPOT {
        notes.insert(annotations::INSTANCE_SPOT.to_owned(), "true".to_owned());
    }
    if let Some(root) = server.root_volume() {
        notes.insert(annotations::ROOT_VOLUME_ID.to_owned(), root.id.clone());
        let image = &root.volume_image_metadata.image_id;
        if !image.is_empty() {
            notes.insert(annotations::IMAGE_UUID.to_owned(), image.clone());
        }
    }
    let data_disks: Vec<&str> = server.named_data_disks().map(|disk| disk.id.as_str()).collect();
    if !data_disks.is_empty() && !facts.spec.data_disks.is_empty() {
        notes.insert(annotations::DATA_VOLUME_IDS.to_owned(), data_disks.join(","));
    }
    if class.is_some() {
        notes.insert(annotations::CLASS_HASH.to_owned(), facts.spec.static_hash());
        notes.insert(annotations::CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
    }

    let (capacity, allocatable) = match flavor {
        Some(flavor) => {
            let capacity = facts.capacity(flavor);
            let overhead = facts.overhead(&capacity);
            let own = InstanceType {
                name: flavor.name.clone(),
                requirements: Default::default(),
                offerings: Vec::new(),
                capacity: capacity.clone(),
                overhead,
                volume_limits: BTreeMap::new(),
                capacity_overlaid: false,
            };
            let allocatable = selection::allocatable(&own, &OfferingOverrides::default());
            (capacity, allocatable)
        }
        None => Default::default(),
    };
    Instance {
        provider_id: provider_id(&server.id),
        image_id: server
            .root_volume()
            .map(|root| root.volume_image_metadata.image_id.clone())
            .filter(|id| !id.is_empty()),
        labels: found,
        annotations: notes,
        capacity,
        allocatable,
        created_at: server.created_at(),
        phase: if server.is_terminating() {
            InstancePhase::Terminating
        } else {
            InstancePhase::Live
        },
        claim: claim.cloned(),
    }
}

/// What a server costs per hour, disks included.
pub fn hourly_price(server: &Server, catalogue: &CloudCatalogue, facts: &ClassFacts, prices: &Prices) -> Option<f64> {
    Some(prices.hourly(&purchase(server, catalogue, facts)?))
}

/// What is paid for with a server, disks included; `None` where its flavor is not listed.
pub(crate) fn purchase<'a>(
    server: &'a Server,
    catalogue: &'a CloudCatalogue,
    facts: &ClassFacts,
) -> Option<Purchase<'a>> {
    let flavor = catalogue.flavor(canonical_flavor(server, catalogue))?;
    let plan = if facts.spot_plan_names.contains(&server.billing_plan) {
        PLAN_SPOT
    } else {
        &server.billing_plan
    };
    Some(Purchase {
        flavor,
        zone: server.zone(),
        plan,
        disk_type: disk_type(server),
        disk_gib: facts.disk_gib(),
    })
}

/// What a claim's server cost per hour when it was launched, as is noted on the claim.
pub fn price_at_launch(claim: &NodeClaim) -> Option<f64> {
    let told = claim.metadata.annotations.as_ref()?.get(annotations::HOURLY_PRICE)?;
    let price: f64 = told.parse().ok()?;
    (price.is_finite() && price >= 0.0).then_some(price)
}

/// What that price is counted in. Claims of earlier versions don't tell.
pub fn currency_at_launch(claim: &NodeClaim) -> Option<&str> {
    let notes = claim.metadata.annotations.as_ref()?;
    notes.get(annotations::HOURLY_CURRENCY).map(String::as_str)
}

/// The kind of a server's root disk.
fn disk_type(server: &Server) -> &'static str {
    let Some(root) = server.root_volume() else { return "SSD" };
    let text = format!("{} {}", root.kind, root.volume_type).to_uppercase();
    if text.contains("HDD") { "HDD" } else { "SSD" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_are_read_with_and_without_their_scheme() {
        assert_eq!(server_id("bizflycloud://abc"), Some("abc"));
        assert_eq!(server_id("abc"), Some("abc"));
        for foreign in ["", "bizflycloud://", "other-cloud:///i-1", "bizflycloud://a/b"] {
            assert_eq!(server_id(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_short_name_on_a_server_is_the_listed_flavor_of_its_tier() {
        let flavors = serde_json::json!([
            {"name": "nix.4c_8g", "ram": 8192, "vcpus": 4, "category": "premium"},
            {"name": "4c_8g_basic", "ram": 8192, "vcpus": 4, "category": "basic"},
        ]);
        let catalogue = CloudCatalogue {
            flavors: serde_json::from_value(flavors).expect("flavors"),
            volume_types: Vec::new(),
        };
        let mut server = Server {
            flavor_name: "4c_8g".into(),
            category: "basic".into(),
            ..Server::default()
        };
        assert_eq!(canonical_flavor(&server, &catalogue), "4c_8g_basic");
        server.category = "premium".into();
        assert_eq!(canonical_flavor(&server, &catalogue), "nix.4c_8g");
        server.flavor.name = "nix.4c_8g".into();
        assert_eq!(canonical_flavor(&server, &catalogue), "nix.4c_8g");
    }
}
