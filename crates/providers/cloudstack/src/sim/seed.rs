//! What a simulated cloud starts with.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::state::{Account, Role, Settings, new_id};

/// Everything that is there before the first request.
#[derive(Clone, Debug)]
pub struct Seed {
    pub settings: Settings,
    pub accounts: Vec<SeedAccount>,
    /// (name, accounts that are in it).
    pub projects: Vec<(String, Vec<String>)>,
    pub catalogue: Catalogue,
    pub hosts: Vec<Host>,
}

#[derive(Clone, Debug)]
pub struct SeedAccount {
    pub name: String,
    pub role: Role,
    /// Ids as a recording has them; new ones if `None`.
    pub ids: Option<(String, String, String)>,
    pub key_pairs: Vec<String>,
}

/// What can be chosen from, as the API lists it.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    pub zones: Vec<Value>,
    pub offerings: Vec<Value>,
    pub disk_offerings: Vec<Value>,
    /// One row per zone.
    pub templates: Vec<Value>,
    pub networks: Vec<Value>,
    pub network_offerings: Vec<Value>,
    pub security_groups: Vec<Value>,
    pub user_data: Vec<Value>,
    /// Addresses left in a network; unlimited if absent.
    pub free_addresses: BTreeMap<String, u32>,
}

/// A hypervisor host.
#[derive(Clone, Debug)]
pub struct Host {
    pub id: String,
    pub name: String,
    pub zone: String,
    pub mhz: i64,
    /// MiB.
    pub memory: i64,
    pub tags: Vec<String>,
}

/// The account of tests and of the demo.
pub const ACCOUNT: &str = "karpenter";
const CREATED: &str = "2025-12-01T08:00:00+0000";

impl Default for Seed {
    fn default() -> Self {
        Self::two_zones()
    }
}

impl Seed {
    pub fn two_zones() -> Self {
        Self::of_zones(&["zone-1", "zone-2"])
    }

    /// Zones with ten hosts each, five offerings, a template and a network per zone.
    pub fn of_zones(names: &[&str]) -> Self {
        let mut catalogue = Catalogue::default();
        let mut hosts = Vec::new();
        for name in names {
            let zone = zone(name);
            let id = text(&zone, "id");
            catalogue.templates.push(template("ubuntu-24.04-kube", &zone, CREATED));
            catalogue
                .networks
                .push(network(&format!("nodes-{name}"), &zone, "Isolated"));
            for number in 0..10 {
                hosts.push(Host {
                    id: new_id(),
                    name: format!("host-{name}-{number}"),
                    zone: id.clone(),
                    mhz: 64 * 2400,
                    memory: 256 * 1024,
                    tags: Vec::new(),
                });
            }
            catalogue.zones.push(zone);
        }
        catalogue.offerings = vec![
            offering("small", 1, 2048),
            offering("medium", 2, 4096),
            offering("large", 4, 8192),
            offering("xlarge", 8, 16384),
            offering("2xlarge", 16, 32768),
        ];
        catalogue.network_offerings = network_offerings();
        catalogue.disk_offerings = vec![disk_offering("data-10", Some(10)), disk_offering("data-custom", None)];
        let account = |name: &str, role: Role| SeedAccount {
            name: name.to_owned(),
            role,
            ids: None,
            key_pairs: vec!["ops".to_owned()],
        };
        Self {
            settings: Settings::default(),
            accounts: vec![
                account(ACCOUNT, Role::User),
                account("other", Role::User),
                account("admin", Role::RootAdmin),
            ],
            projects: vec![("team-a".to_owned(), vec![ACCOUNT.to_owned()])],
            catalogue,
            hosts,
        }
    }
}

impl Catalogue {
    pub(super) fn offering(&self, id: &str) -> Option<&Value> {
        self.offerings.iter().find(|own| own["id"] == id)
    }

    /// Whose a network or template is.
    pub(super) fn owner(&self, id: &str) -> Option<&str> {
        let mut all = self.networks.iter().chain(&self.templates);
        all.find(|own| own["id"] == id)?["account"].as_str()
    }

    /// Tags a network or template.
    pub(super) fn tag(&mut self, id: &str, tag: &Value) {
        for own in self.networks.iter_mut().chain(&mut self.templates) {
            if own["id"] == id
                && let Some(Value::Array(tags)) = own.get_mut("tags")
            {
                tags.push(tag.clone());
            }
        }
    }

    /// An object by its name, to be changed.
    pub fn named<'a>(objects: &'a mut [Value], name: &str) -> Option<&'a mut Value> {
        objects.iter_mut().find(|own| own["name"] == name)
    }
}

impl From<SeedAccount> for Account {
    fn from(seed: SeedAccount) -> Self {
        let (id, user_id, domain_id) = seed.ids.unwrap_or_else(|| (new_id(), new_id(), new_id()));
        let limits = [
            ("user_vm", 100_000),
            ("cpu", 1_000_000),
            ("memory", 1_000_000_000),
            ("volume", 100_000),
            ("primary_storage", 10_000_000),
            ("gpu", 1000),
        ];
        let (domain, domain_path) = match seed.role {
            Role::RootAdmin => ("ROOT", "ROOT"),
            Role::User | Role::DomainAdmin => ("karpenter", "ROOT/karpenter"),
        };
        Self {
            id,
            user_id,
            api_key: format!("key-of-{}-0123456789abcdef", seed.name),
            secret_key: format!("secret-of-{}-fedcba9876543210", seed.name),
            name: seed.name,
            domain_id,
            domain: domain.to_owned(),
            domain_path: domain_path.to_owned(),
            role: seed.role,
            is_enabled: true,
            limits: limits.map(|(name, most)| (name.to_owned(), most)).into(),
            key_pairs: seed.key_pairs,
        }
    }
}

pub(super) fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

pub fn zone(name: &str) -> Value {
    json!({
        "id": new_id(), "name": name, "networktype": "Advanced", "securitygroupsenabled": false, "gputotal": 0,
        "gpuused": 0, "allocationstate": "Enabled", "zonetoken": new_id(), "dhcpprovider": "VirtualRouter",
        "localstorageenabled": false, "tags": [], "allowuserspecifyvrmtu": false, "routerprivateinterfacemaxmtu": 1500,
        "routerpublicinterfacemaxmtu": 1500, "type": "Core", "isnsxenabled": false, "ismultiarch": false, "asnrange": "",
        "routedmodeenabled": true, "hasannotations": false,
    })
}

/// A fixed offering of 2000 MHz vCPUs.
pub fn offering(name: &str, cpu: i64, memory: i64) -> Value {
    let mut offering = custom_offering(name);
    offering["cpunumber"] = json!(cpu);
    offering["cpuspeed"] = json!(2000);
    offering["memory"] = json!(memory);
    offering["iscustomized"] = json!(false);
    offering
}

/// An offering whose size every machine chooses.
pub fn custom_offering(name: &str) -> Value {
    json!({
        "id": new_id(), "name": name, "state": "Active", "displaytext": name, "created": CREATED,
        "storagetype": "shared", "provisioningtype": "thin", "offerha": false, "limitcpuuse": false, "isvolatile": false,
        "issystem": false, "defaultuse": false, "iscustomized": true, "rootdisksize": 0, "dynamicscalingenabled": true,
        "diskofferingstrictness": false, "diskofferingid": new_id(), "diskofferingname": name,
        "diskofferingdisplaytext": name, "encryptroot": false, "gpudisplay": false, "hasannotations": false,
    })
}

pub fn disk_offering(name: &str, size: Option<i64>) -> Value {
    json!({
        "id": new_id(), "name": name, "state": "Active", "displaytext": name, "disksize": size.unwrap_or(0),
        "created": CREATED, "iscustomized": size.is_none(), "storagetype": "shared", "provisioningtype": "thin",
        "displayoffering": true, "disksizestrictness": false, "encrypt": false, "hasannotations": false,
    })
}

/// A public template of the system, ready in the zone.
pub fn template(name: &str, zone: &Value, created: &str) -> Value {
    json!({
        "id": new_id(), "name": name, "displaytext": name, "ispublic": true, "created": created, "isready": true,
        "passwordenabled": false, "format": "QCOW2", "isfeatured": true, "crossZones": false, "ostypeid": new_id(),
        "ostypename": "Ubuntu 24.04 LTS", "account": "system", "zoneid": zone["id"], "zonename": zone["name"],
        "size": 10_737_418_240_i64, "physicalsize": 10_737_418_240_i64, "templatetype": "USER", "hypervisor": "KVM",
        "domain": "ROOT", "domainpath": "ROOT", "domainid": new_id(), "isextractable": false, "checksum": "", "details": {},
        "downloaddetails": [{"downloadState": "DOWNLOADED", "datastore": "nfs://store", "downloadPercent": "100"}],
        "arch": "x86_64", "bits": 0, "sshkeyenabled": false, "isdynamicallyscalable": false, "directdownload": false,
        "deployasis": false, "forcks": false, "requireshvm": false, "tags": [], "hasannotations": false,
    })
}

/// One offering for each kind of network.
pub fn network_offerings() -> Vec<Value> {
    let offering = |kind: &str| json!({"id": new_id(), "guestiptype": kind});
    ["Isolated", "L2", "Shared"].map(offering).into()
}

/// What a virtual router does for a network: (service, its capabilities as name, value and whether it is a choice).
type Service = (&'static str, &'static [(&'static str, &'static str, bool)]);

const SHARED_SERVICES: [Service; 3] = [
    ("Dhcp", &[("DhcpAccrossMultipleSubnets", "true", false)]),
    ("UserData", &[]),
    ("Dns", &[("AllowDnsSuffixModification", "true", false)]),
];

const ISOLATED_SERVICES: [Service; 6] = [
    ("PortForwarding", &[("SupportedProtocols", "tcp,udp", false)]),
    (
        "SourceNat",
        &[
            ("SupportedSourceNatTypes", "peraccount", true),
            ("RedundantRouter", "false", true),
        ],
    ),
    (
        "Vpn",
        &[
            ("SupportedVpnTypes", "pptp,l2tp,ipsec", false),
            ("VpnTypes", "remoteaccessvpn", false),
        ],
    ),
    (
        "Firewall",
        &[
            ("SupportedProtocols", "tcp,udp,icmp", false),
            ("SupportedTrafficDirection", "ingress, egress", false),
            ("MultipleIps", "true", false),
            ("SupportedEgressProtocols", "tcp,udp,icmp, all", false),
            ("TrafficStatistics", "per public ip", false),
        ],
    ),
    (
        "Lb",
        &[
            ("SupportedProtocols", "tcp, udp, tcp-proxy, ssl", false),
            ("LbSchemes", "Public", false),
            ("SslTermination", "true", false),
            ("VmAutoScaling", "true", false),
            ("SupportedLbAlgorithms", "roundrobin,leastconn,source", false),
            ("AutoScaleCounters", "[]", false),
            ("SupportedStickinessMethods", "[]", false),
            ("SupportedLBIsolation", "dedicated", true),
            ("ElasticLb", "false", false),
            ("InlineMode", "false", false),
        ],
    ),
    (
        "StaticNat",
        &[("ElasticIp", "false", false), ("AssociatePublicIP", "true", false)],
    ),
];

/// A network of [`ACCOUNT`]; `kind` is Isolated, Shared or L2.
pub fn network(name: &str, zone: &Value, kind: &str) -> Value {
    let service = |(name, capabilities): &Service| {
        let capabilities = capabilities.iter().map(
            |(name, value, is_choice)| json!({"name": name, "value": value, "canchooseservicecapability": is_choice}),
        );
        json!({
            "name": name, "provider": [{"name": "VirtualRouter"}], "capability": capabilities.collect::<Vec<_>>(),
        })
    };
    let services: Vec<Value> = match kind {
        "L2" => Vec::new(),
        "Shared" => SHARED_SERVICES.iter().map(service).collect(),
        _ => SHARED_SERVICES.iter().chain(&ISOLATED_SERVICES).map(service).collect(),
    };
    let id = new_id();
    let mut network = json!({
        "id": id, "name": name, "displaytext": name, "broadcastdomaintype": "Vlan", "traffictype": "Guest",
        "zoneid": zone["id"], "zonename": zone["name"], "networkofferingid": new_id(),
        "networkofferingname": format!("Default{kind}NetworkOffering"),
        "networkofferingdisplaytext": format!("Offering for {kind} networks"), "networkofferingconservemode": true,
        "networkofferingavailability": "Optional", "issystem": false, "state": "Implemented", "related": id,
        "dns1": "10.0.0.1", "type": kind, "acltype": "Account", "domainid": new_id(), "domain": "karpenter",
        "domainpath": "ROOT/karpenter", "service": services, "physicalnetworkid": new_id(), "restartrequired": false,
        "specifyvlan": kind == "Shared", "specifyipranges": kind == "Shared", "canusefordeploy": true,
        "ispersistent": false, "tags": [], "strechedl2subnet": false, "redundantrouter": false,
        "supportsvmautoscaling": kind == "Isolated", "created": CREATED, "receivedbytes": 0, "sentbytes": 0,
        "publicmtu": 1500, "privatemtu": 1500, "hasannotations": false,
    });
    let mut set = |field: &str, value: Value| network[field] = value;
    if kind != "L2" {
        set("gateway", json!("10.1.1.1"));
        set("netmask", json!("255.255.255.0"));
        set("cidr", json!("10.1.1.0/24"));
        set("networkdomain", json!("karpenter.internal"));
    }
    match kind {
        "Shared" => {
            set("acltype", json!("Domain"));
            set("subdomainaccess", json!(true));
        }
        "L2" => set("account", json!(ACCOUNT)),
        _ => {
            set("account", json!(ACCOUNT));
            set("egressdefaultpolicy", json!(false));
        }
    }
    network
}
