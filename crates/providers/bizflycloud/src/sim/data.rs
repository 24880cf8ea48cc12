//! What the simulated cloud sells, in the JSON that the real one answers with.

use serde_json::{Value, json};

pub const DEFAULT_VPC: &str = "vpc-default";
pub const HN1_VPC: &str = "vpc-hn1-only";
pub const FIREWALL: &str = "fw-web";

const SIZES: [(u64, u64); 5] = [(2, 2), (2, 4), (4, 8), (8, 16), (16, 32)];
const CATEGORIES: [(&str, &str); 4] = [
    ("p", "premium"),
    ("b", "basic"),
    ("e", "enterprise"),
    ("d", "dedicated"),
];

/// Old entries have no generation and no plans.
pub(super) fn legacy_flavors() -> Vec<Value> {
    let nix = [(1, 1), (2, 2), (2, 4), (4, 8), (8, 16), (16, 32), (24, 64)];
    let mut flavors: Vec<Value> = nix
        .into_iter()
        .map(|(cpus, gib)| flavor(&format!("nix.{cpus}c_{gib}g"), cpus, gib, "premium"))
        .collect();
    for (cpus, gib) in [(2, 4), (4, 8), (8, 16)] {
        for category in ["basic", "enterprise", "dedicated"] {
            flavors.push(flavor(&format!("{cpus}c_{gib}g_{category}"), cpus, gib, category));
        }
    }
    flavors.push(flavor("2c_4g_vps", 2, 4, "premium"));
    flavors
}

pub(super) fn new_flavors() -> Vec<Value> {
    let mut flavors = Vec::new();
    for (tier, category) in CATEGORIES {
        for (code, vendor, zones) in [("2", "Intel", &["HN1", "HN2", "HCM1"][..]), ("4a", "AMD", &["HN2"][..])] {
            for (cpus, gib) in SIZES {
                let mut own = flavor(&format!("{tier}{code}.{cpus}c_{gib}g"), cpus, gib, category);
                own["is_new"] = json!(true);
                own["billing_plans"] = json!(["on_demand", "saving_plan"]);
                own["generation"] = json!({
                    "id": format!("gen-{code}"), "name": format!("{vendor} {code}"), "code": code, "vendor": vendor,
                    "category": category, "availability_zones": zones,
                });
                flavors.push(own);
            }
        }
    }
    let mut gpu = flavor("g2.8c_32g", 8, 32, "dedicated");
    gpu["gpu"] = json!({"name": "NVIDIA A30", "count": 1});
    gpu["generation"] = json!({"code": "2", "vendor": "Intel", "availability_zones": ["HN1"]});
    flavors.push(gpu);
    flavors
}

fn flavor(name: &str, cpus: u64, gib: u64, category: &str) -> Value {
    json!({
        "id": format!("flavor-{name}"), "name": name, "ram": gib * 1024, "vcpus": cpus, "disk": 0, "swap": "",
        "category": category, "gpu": null,
    })
}

/// HDD is not sold in HCM1.
pub(super) fn volume_types() -> Value {
    let mut types = Vec::new();
    for (_, category) in CATEGORIES {
        for kind in ["SSD", "HDD"] {
            let zones = if kind == "HDD" {
                vec!["HN1", "HN2"]
            } else {
                vec!["HN1", "HN2", "HCM1"]
            };
            let upper = category.to_uppercase();
            types.push(json!({
                "name": format!("{upper}-{kind}1"), "category": category, "type": format!("{upper} {kind}"),
                "availability_zones": zones,
            }));
        }
    }
    json!({ "volume_types": types })
}

pub(super) fn os_images() -> Value {
    json!({"os_images": [
        {"os": "Ubuntu", "versions": [
            {"name": "18.04 x64", "id": "img-ubuntu-18"}, {"name": "20.04 x64", "id": "img-ubuntu-20"},
            {"name": "22.04 x64", "id": "img-ubuntu-22"}, {"name": "24.04 LTS", "id": "img-ubuntu-24"},
        ]},
        {"os": "Debian", "versions": [{"name": "12 x64", "id": "img-debian-12"}]},
    ]})
}

/// An image that the account made itself.
pub const CUSTOM_IMAGE: &str = "0c9f1a52-6f5d-4c86-9a3e-5d2b7c1e8f40";

pub(super) fn custom_images() -> Value {
    json!({"images": [{"id": CUSTOM_IMAGE, "name": "Our node image", "status": "active", "min_disk": "20", "tags": null}]})
}

/// Three minors with Flatcar twins; one version has no image.
pub(super) fn kubernetes_versions(edition: &str) -> Value {
    let mut versions = Vec::new();
    for (minor, patch) in [(34, 4), (35, 2), (36, 1), (36, 3)] {
        let plain = format!("v1.{minor}.{patch}");
        versions.push(json!({
            "id": format!("ver-{minor}-{patch}"), "name": plain, "kubernetes_version": plain,
            "worker_image_id": format!("worker-{minor}-{patch}{edition}"), "description": null,
        }));
        versions.push(json!({
            "id": format!("ver-{minor}-{patch}-flatcar"), "name": plain, "kubernetes_version": format!("{plain}.flatcar"),
            "worker_image_id": format!("worker-{minor}-{patch}-flatcar{edition}"),
        }));
    }
    versions.push(json!({"id": "ver-37", "kubernetes_version": "v1.37.0", "worker_image_id": null}));
    json!({ "controller_versions": versions, "worker_versions": [] })
}

pub(super) fn is_worker_image(id: &str) -> bool {
    id.starts_with("worker-")
}

pub(super) fn vpcs() -> Value {
    json!([
        {"id": DEFAULT_VPC, "name": "default", "status": "ACTIVE", "is_default": true, "availability_zones": [],
         "availability_zone_hints": [], "internet_gateway": null, "subnets": []},
        {"id": HN1_VPC, "name": "hn1", "status": "ACTIVE", "is_default": false, "availability_zones": ["HN1"],
         "availability_zone_hints": [], "internet_gateway": {"id": "igw"}, "subnets": []},
    ])
}

/// The billing API wraps its list, and tells monthly prices of parts and hourly ones of some machines.
pub(super) fn billing_plans() -> Value {
    let monthly = |name: &str, product: &str, price: u64| {
        json!({
            "_id": name, "name": name, "product": {"name": product}, "unit_prices": [{"price": price, "time_unit": "month"}],
        })
    };
    json!({"_items": [
        monthly("basic cpu", "CPU", 72_000), monthly("basic ram", "RAM", 36_000),
        monthly("premium cpu", "CPU", 7_200), monthly("premium ram", "RAM", 3_600),
        monthly("root disk ssd", "SSD", 720), monthly("firewall", "Firewall", 1_000),
        {"name": "nix.8c_16g on_demand", "product": {"name": "Machine"}, "unit_prices": [{"price": 5, "unit": "hour"}]},
    ], "_meta": {"total": 7}})
}

pub(super) fn firewalls(more: &[String]) -> Value {
    let all = std::iter::once(FIREWALL).chain(more.iter().map(String::as_str));
    let listed = all.map(|id| json!({"id": id, "name": "web", "inbound": [], "outbound": []}));
    listed.collect()
}

pub(super) fn keypairs() -> Value {
    json!([
        {"keypair": {"name": "ops", "public_key": "ssh-ed25519 AAAA", "fingerprint": "aa"}},
        {"keypair": {"name": "dev", "public_key": "ssh-ed25519 BBBB", "fingerprint": "bb"}},
    ])
}

pub(super) fn regions() -> Value {
    let zone = |name: &str| json!({"active": true, "icon": "", "name": name, "order": 1, "short_name": name});
    json!({
        "HN": {"active": true, "name": "Hà Nội", "order": 1, "region_name": "HaNoi", "short_name": "HN",
               "zones": [zone("HN1"), zone("HN2"), {"active": false, "short_name": "HN3"}]},
        "HCM": {"active": true, "name": "Hồ Chí Minh", "order": 2, "region_name": "HoChiMinh", "short_name": "HCM",
                "zones": [zone("HCM1")]},
    })
}

/// Both spellings of the region occur.
pub(super) fn services(base: &str, hidden: &[&str]) -> Value {
    let entries = [
        ("cloud_server", "HN", "/iaas-cloud/api"),
        ("cloud_server", "HCM", "/hcm/iaas-cloud/api"),
        ("kubernetes_engine", "HaNoi", "/api/kubernetes-engine"),
        ("bizfly_account", "", "/api/account"),
    ];
    let listed: Vec<Value> = entries
        .into_iter()
        .filter(|(name, _, _)| !hidden.contains(name))
        .enumerate()
        .map(|(id, (name, region, path))| {
            json!({
                "id": id, "name": name, "code": name, "canonical_name": name, "region": region, "enabled": true,
                "icon": null, "description": null, "service_url": format!("{base}{path}"),
            })
        })
        .collect();
    json!({ "services": listed })
}
