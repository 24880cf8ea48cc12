//! What was recorded, and the cloud that it was recorded from.

use std::collections::BTreeMap;

use karpenter_cloudstack::sim::{
    Role, Seed, Settings,
    seed::{Catalogue, Host, SeedAccount},
};
use serde_json::{Value, json};

/// A recorded request with its answer.
pub(crate) struct Exchange {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) account: &'static str,
    pub(crate) is_post: bool,
    pub(crate) params: BTreeMap<String, String>,
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Value,
    /// The recording keeps only a part of the list.
    pub(crate) is_cut: bool,
}

pub(crate) const ZONE_A: &str = "305a37dd-1048-4635-9502-d7d0f9ef2a2f";
pub(crate) const ZONE_B: &str = "abcba0bc-a5eb-4d51-803f-456d5b38d6e2";
pub(crate) const ZONE_SG: &str = "e5d87ecc-5b95-450c-95cb-5112c7b53e77";
const DOMAIN: &str = "0f90d578-863f-4b7b-bcf2-0aae7fb43a37";

/// The exchanges of a group.
pub(crate) fn of(file: &str) -> Vec<Exchange> {
    let path = format!("{}/tests/fixtures/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a recording");
    let group: Value = serde_json::from_str(&text).expect("JSON");
    let exchanges = group["exchanges"].as_array().expect("exchanges").iter();
    let exchanges = exchanges.map(|own| {
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Exchange {
            file: file.to_owned(),
            title: string(&own["title"]),
            account: match own["as"].as_str().expect("an account") {
                "user" => "kuser",
                "other-user" => "kuser2",
                "domain-admin" => "kdomadmin",
                "root-admin" => "admin",
                other => {
                    assert_eq!(other, "none");
                    "none"
                }
            },
            is_post: own["request"]["method"] == "POST",
            params: own["request"]["params"]
                .as_object()
                .expect("parameters")
                .iter()
                .map(|(name, value)| (name.clone(), string(value)))
                .collect(),
            status: own["status"].as_u64().expect("a status") as u16,
            content_type: string(&own["headers"]["content-type"]),
            body: own["body"].clone(),
            is_cut: own["note"].as_str().is_some_and(|note| note.contains("array cut")),
        }
    });
    let mut exchanges: Vec<Exchange> = exchanges.collect();
    if file == "name-race" {
        // Sent at the same time; the refused ones were judged after the accepted ones were stored.
        exchanges[..4].sort_by_key(|own| own.status);
    }
    exchanges
}

/// `<32768 characters: QUFB...>` stands for a value of that length.
pub(crate) fn whole(value: &str) -> String {
    let Some((length, sample)) = value
        .strip_prefix('<')
        .and_then(|rest| rest.split_once(" characters: "))
    else {
        return value.to_owned();
    };
    let length: usize = length.parse().expect("a length");
    sample.chars().take(4).cycle().take(length).collect()
}

/// A recorded list.
pub(crate) fn list(file: &str, title: &str, object: &str) -> Vec<Value> {
    let exchange = of(file).into_iter().find(|own| own.title == title);
    let exchange = exchange.unwrap_or_else(|| panic!("{file}: {title}"));
    let inner = exchange.body.as_object().and_then(|body| body.values().next());
    let found = inner.and_then(|inner| inner[object].as_array().cloned());
    found.unwrap_or_else(|| panic!("{file}: {title} has no {object}"))
}

/// The cloud before the first request.
pub(crate) fn seed() -> Seed {
    let account = |name: &str, role: Role, id: &str, user: &str| SeedAccount {
        name: name.to_owned(),
        role,
        ids: Some((id.to_owned(), user.to_owned(), DOMAIN.to_owned())),
        key_pairs: Vec::new(),
    };
    let host = |zone: &str, number: usize, cores: i64, memory: i64| Host {
        id: format!("00000000-0000-4000-8000-{number:012}"),
        name: format!("SimulatedAgent.{number}"),
        zone: zone.to_owned(),
        mhz: cores * 2400,
        memory,
        tags: Vec::new(),
    };
    let mut foreign = list("networks", "by id", "network").remove(0);
    foreign["id"] = json!("7fe98c8c-f6e9-416e-ad4d-1874e3e71014");
    foreign["name"] = json!("other-net");
    foreign["account"] = json!("kuser2");
    Seed {
        settings: Settings {
            expunge_delay: std::time::Duration::from_secs(3600),
            ..Settings::default()
        },
        accounts: vec![
            account(
                "kuser",
                Role::User,
                "ce9ca91c-ca76-4dd4-ba9a-6c6e98094abd",
                "829242c4-3e4f-43d2-bf6d-119fa87c6a39",
            ),
            account(
                "kuser2",
                Role::User,
                "62832a44-1947-4b26-876f-8cc53e57c09e",
                "20863d3b-184e-4c8f-806b-ca67c132b527",
            ),
            account(
                "kdomadmin",
                Role::DomainAdmin,
                "00000000-0000-4000-8000-00000000000d",
                "00000000-0000-4000-8000-00000000001d",
            ),
            account(
                "admin",
                Role::RootAdmin,
                "00000000-0000-4000-8000-00000000000a",
                "00000000-0000-4000-8000-00000000001a",
            ),
        ],
        projects: Vec::new(),
        catalogue: Catalogue {
            zones: list("zones", "available zones, ordinary user", "zone"),
            offerings: list("service-offerings", "all, ordinary user", "serviceoffering"),
            disk_offerings: list("disk-offerings", "all, ordinary user", "diskoffering"),
            templates: list("templates", "templatefilter=executable, ordinary user", "template")
                .into_iter()
                .chain(system_templates())
                .collect(),
            networks: vec![foreign],
            security_groups: list("security-groups", "list", "securitygroup"),
            ..Catalogue::default()
        },
        // The second zone's only host had 8 GiB, of which the system's own machines took some.
        hosts: vec![
            Host {
                id: "fc0aa741-d19f-4de2-84ba-a5b38214df81".to_owned(),
                name: "SimulatedAgent.df5199ff-5108-432a-840b-1ec7498b6f45".to_owned(),
                ..host(ZONE_A, 1, 16, 32768)
            },
            Host {
                id: "0e2d9c8d-e034-45f5-9a95-2bc38d781223".to_owned(),
                name: "SimulatedAgent.49eac5d8-9fa9-4d06-a5d4-58998288c0d4".to_owned(),
                ..host(ZONE_A, 2, 16, 32768)
            },
            host(ZONE_B, 3, 4, 6000),
            host(ZONE_SG, 4, 16, 32768),
        ],
    }
}

/// Only administrators see those of the system itself.
fn system_templates() -> Vec<Value> {
    let all = list("templates", "templatefilter=all as root admin", "template");
    let system = all.into_iter().filter(|own| own["templatetype"] == "SYSTEM");
    let mut system: Vec<Value> = system.collect();
    for own in &mut system {
        let own = own.as_object_mut().expect("an object");
        own.remove("status");
        own.remove("url");
    }
    system
}
