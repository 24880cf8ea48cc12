//! Objects as the API shows them, which depends on who asks and for what.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    machines::{AffinityRecord, HIDDEN_DETAILS, Machine, MachineState, Volume, VolumeFate},
    state::{Account, Role, State, date},
};

/// The `details` of a list of machines.
#[derive(Clone, Debug)]
pub(super) struct Details(BTreeSet<String>);

/// How long a machine runs before its statistics were collected once.
pub(super) const COLLECTED: Duration = Duration::from_secs(60);

pub(super) const ALLOWED: [&str; 14] = [
    "all", "group", "nics", "stats", "secgrp", "tmpl", "servoff", "diskoff", "backoff", "iso", "volume", "min",
    "affgrp", "vnfnics",
];

impl Details {
    pub(super) fn of(wanted: &[&str]) -> Self {
        if wanted.is_empty() {
            return Self(["all".to_owned()].into());
        }
        Self(wanted.iter().map(|own| (*own).to_owned()).collect())
    }

    /// What a job's result has: everything but statistics.
    pub(super) fn result() -> Self {
        let all = ALLOWED.iter().filter(|own| !["all", "stats"].contains(own));
        Self(all.map(|own| (*own).to_owned()).collect())
    }

    fn has(&self, wanted: &str) -> bool {
        self.0.contains("all") || self.0.contains(wanted)
    }
}

pub(super) fn machine(state: &State, own: &Machine, details: &Details, role: Role) -> Value {
    let account = state.account(&own.account);
    let zone = state.zone(&own.zone);
    let template = state
        .catalogue
        .templates
        .iter()
        .find(|row| row["id"] == own.template.as_str());
    let offering = state.catalogue.offering(&own.offering);
    let from = |object: Option<&Value>, field: &str| object.map(|object| object[field].clone()).unwrap_or_default();
    let is_running = own.state == MachineState::Running;
    let volumes = || {
        let all = state.volumes.iter();
        all.filter(|volume| volume.machine.as_deref() == Some(&own.id))
    };
    let details_shown: BTreeMap<&String, &String> = own
        .details
        .iter()
        .filter(|(name, _)| role == Role::RootAdmin || !HIDDEN_DETAILS.contains(&name.as_str()))
        .collect();
    let mut shown = json!({
        "id": own.id, "name": own.name, "displayname": own.display_name,
        "userid": account.map(|account| account.user_id.clone()), "username": own.account,
        "domainid": account.map(|account| account.domain_id.clone()),
        "domain": account.map(|account| account.domain.clone()),
        "domainpath": account.map(|account| account.domain_path.clone()),
        "created": date(own.created), "state": own.state.as_str(), "haenable": false,
        "zoneid": own.zone, "zonename": from(zone, "name"),
        "guestosid": from(template, "ostypeid"), "securitygroup": [], "nic": [], "hypervisor": from(template, "hypervisor"),
        "details": details_shown, "affinitygroup": [], "isdynamicallyscalable": false, "deleteprotection": own.delete_protection,
        "ostypeid": from(template, "ostypeid"), "osdisplayname": from(template, "ostypename"), "receivedbytes": 0,
        "sentbytes": 0, "tags": tags(state, &own.account, "UserVm", &own.id, &own.tags), "hasannotations": false,
    });
    match &own.project {
        Some(project) => {
            let name = state
                .projects
                .iter()
                .find(|known| known.id == *project)
                .map(|known| known.name.clone());
            shown["projectid"] = json!(project);
            shown["project"] = json!(name);
        }
        None => shown["account"] = json!(own.account),
    }
    let mut set = |field: &str, value: Value| shown[field] = value;
    if let Some(updated) = own.updated {
        set("lastupdated", json!(date(updated)));
    }
    if own.first_ran.is_some() || own.state == MachineState::Starting {
        set("pooltype", json!("NetworkFilesystem"));
    }
    if own.host.is_some() || own.state == MachineState::Starting {
        set("hostcontrolstate", json!("Enabled"));
    }
    if role != Role::RootAdmin {
        set(
            "readonlydetails",
            json!(
                "dataDiskController, rootDiskController, backupValidationCommandTimeout, backupValidationScreenshotWait, backupValidationBootTimeout"
            ),
        );
    } else {
        set("instancename", json!(format!("i-3-{}-VM", own.number)));
        set("displayvm", json!(true));
        set("arch", from(template, "arch"));
        if let Some(host) = &own.host {
            let name = state
                .hosts
                .iter()
                .find(|known| known.id == *host)
                .map(|known| known.name.clone());
            set("hostid", json!(host));
            set("hostname", json!(name));
        }
    }
    if !own.key_pairs.is_empty() {
        set("keypairs", json!(own.key_pairs.join(",")));
    }
    match &own.boot {
        Some((kind, mode)) => {
            set("boottype", json!(kind));
            set("bootmode", json!(mode));
        }
        // The server only thinks of its default where nothing else is stored about the machine.
        None if own.details.is_empty() => {
            set("boottype", json!("Bios"));
            set("bootmode", json!("legacy"));
        }
        None => {}
    }
    if details.has("servoff") {
        set("serviceofferingid", json!(own.offering));
        set("serviceofferingname", from(offering, "name"));
        set("cpunumber", json!(own.cpu));
        set("cpuspeed", json!(own.cpu_speed));
        set("memory", json!(own.memory));
    }
    if details.has("tmpl") {
        set("templateid", json!(own.template));
        set("templatename", from(template, "name"));
        set("templatetype", from(template, "templatetype"));
        set("templateformat", from(template, "format"));
        set("templatedisplaytext", from(template, "displaytext"));
        set("passwordenabled", json!(false));
    }
    if details.has("iso") {
        set("isos", json!([]));
        set("isomaxcount", json!(1));
    }
    if details.has("volume") && volumes().any(|volume| volume.is_root) {
        set("rootdeviceid", json!(0));
        set("rootdevicetype", json!("ROOT"));
    }
    if details.has("group")
        && let Some(group) = &own.group
        && let Some((id, _)) = state.known_group(group)
    {
        set("groupid", json!(id));
        set("group", json!(group));
    }
    let data = volumes().find(|volume| !volume.is_root && volume.fate == VolumeFate::Kept);
    if let Some(id) = data.and_then(|volume| volume.offering.as_ref()) {
        let offering = state
            .catalogue
            .disk_offerings
            .iter()
            .find(|known| known["id"] == id.as_str());
        set("diskofferingid", json!(id));
        set("diskofferingname", from(offering, "name"));
    }
    // The server joins machines with disks, tags and NICs. It only looks at what was asked for in the first of the joined
    // rows, and shows everything that the others bring.
    let disks = volumes().filter(|volume| volume.fate == VolumeFate::Kept).count();
    let repeats = disks.max(1) * own.tags.len().max(1);
    let has_more_rows = repeats * own.nics.len().max(1) > 1;
    let hidden = match details.has("nics") || repeats > 1 {
        true => 0,
        false => 1,
    };
    if own.nics.len() > hidden {
        set("nic", nics(state, own, hidden));
        if let Some(address) = own.nics[hidden].address.clone() {
            set("ipaddress", json!(address));
        }
    }
    if details.has("secgrp") {
        let groups = state.catalogue.security_groups.iter();
        let groups = groups.filter(|group| own.security_groups.iter().any(|id| group["id"] == id.as_str()));
        let shown: Vec<Value> = groups
            .map(|group| {
                json!({"id": group["id"], "name": group["name"], "description": group["description"], "account": own.account,
                    "ingressrule": [], "egressrule": [], "tags": [], "virtualmachineids": []})
            })
            .collect();
        set("securitygroup", json!(shown));
    }
    if let Some((id, parameters)) = &own.registered_user_data {
        let mut registered = state.catalogue.user_data.iter();
        let found = registered.find(|known| known["id"] == id.as_str());
        set("userdataid", json!(id));
        set("userdataname", from(found, "name"));
        set("userdatadetails", json!(parameters));
    }
    if details.has("affgrp") || has_more_rows {
        let groups = state
            .affinity_groups
            .iter()
            .filter(|group| own.affinity_groups.contains(&group.id));
        let shown: Vec<Value> = groups
            .map(|group| {
                let mut shown = json!({"id": group.id, "name": group.name, "account": group.account});
                if let Some(description) = &group.description {
                    shown["description"] = json!(description);
                }
                shown
            })
            .collect();
        set("affinitygroup", json!(shown));
    }
    if details.has("stats") && is_running {
        statistics(&mut shown);
    }
    let pending = state
        .jobs
        .iter()
        .find(|job| job.outcome.is_none() && job.instance.as_ref().is_some_and(|(_, id)| *id == own.id));
    if let Some(job) = pending {
        shown["jobid"] = json!(job.id);
        shown["jobstatus"] = json!(0);
    }
    shown
}

/// What was measured of a machine.
pub(super) fn statistics(shown: &mut Value) {
    for field in [
        "networkkbsread",
        "networkkbswrite",
        "diskkbsread",
        "diskkbswrite",
        "diskioread",
        "diskiowrite",
        "memorykbs",
        "memoryintfreekbs",
        "memorytargetkbs",
    ] {
        shown[field] = json!(0);
    }
    shown["cpuused"] = json!("10%");
}

fn nics(state: &State, own: &Machine, hidden: usize) -> Value {
    let shown: Vec<Value> = own
        .nics
        .iter()
        .enumerate()
        .skip(hidden)
        .map(|(index, nic)| {
            let network = state
                .catalogue
                .networks
                .iter()
                .find(|known| known["id"] == nic.network.as_str());
            let field = |name: &str| network.map(|network| network[name].clone()).unwrap_or_default();
            let mut shown = json!({
                "id": nic.id, "networkid": nic.network, "networkname": field("name"), "traffictype": "Guest",
                "type": field("type"), "isdefault": index == 0, "macaddress": nic.mac, "secondaryip": [],
                "extradhcpoption": [], "deviceid": index.to_string(), "enabled": true,
            });
            if let Some(address) = &nic.address {
                shown["ipaddress"] = json!(address);
                shown["netmask"] = json!("255.255.255.0");
                shown["gateway"] = json!("10.1.1.1");
            }
            if nic.bound {
                shown["isolationuri"] = json!("vlan://197");
                shown["broadcasturi"] = json!("vlan://197");
            }
            shown
        })
        .collect();
    json!(shown)
}

pub(super) fn tags(state: &State, account: &str, kind: &str, id: &str, tags: &[(String, String)]) -> Value {
    let owner = state.account(account);
    let shown: Vec<Value> = tags
        .iter()
        .filter_map(|(key, value)| Some(tag(owner?, kind, id, key, value)))
        .collect();
    json!(shown)
}

pub(super) fn tag(owner: &Account, kind: &str, id: &str, key: &str, value: &str) -> Value {
    json!({
        "key": key, "value": value, "resourcetype": kind, "resourceid": id, "account": owner.name,
        "domainid": owner.domain_id, "domain": owner.domain,
    })
}

pub(super) fn volume(state: &State, own: &Volume, role: Role) -> Value {
    let owner = state.account(&own.account);
    let zone = state.zone(&own.zone);
    let machine = own.machine.as_deref().and_then(|id| state.machine(id));
    let is_used = machine.is_some_and(|machine| machine.first_ran.is_some());
    let mut shown = json!({
        "id": own.id, "name": own.name, "zoneid": own.zone, "zonename": zone.map(|zone| zone["name"].clone()),
        "type": if own.is_root { "ROOT" } else { "DATADISK" }, "provisioningtype": "thin", "size": own.size << 30,
        "created": date(own.created), "state": match own.fate {
            VolumeFate::Destroyed => "Destroy",
            VolumeFate::Gone => "Expunged",
            VolumeFate::Kept if own.is_on_storage => "Ready",
            VolumeFate::Kept => "Allocated",
        },
        "domainid": owner.map(|owner| owner.domain_id.clone()), "domain": owner.map(|owner| owner.domain.clone()),
        "domainpath": owner.map(|owner| owner.domain_path.clone()), "destroyed": own.fate == VolumeFate::Destroyed,
        "isextractable": !own.is_root, "quiescevm": false, "supportsstoragesnapshot": false, "deleteprotection": false,
        "tags": tags(state, &own.account, "Volume", &own.id, &own.tags), "hasannotations": false,
    });
    match &own.project {
        Some(project) => shown["projectid"] = json!(project),
        None => shown["account"] = json!(own.account),
    }
    if let Some(machine) = machine {
        shown["virtualmachineid"] = json!(machine.id);
        shown["vmname"] = json!(machine.name);
        shown["vmdisplayname"] = json!(machine.display_name);
        shown["vmstate"] = json!(machine.state.as_str());
        shown["vmtype"] = json!("User");
        shown["deviceid"] = json!(own.device);
        if let Some(at) = own.attached {
            shown["attached"] = json!(date(at));
        }
        if is_used {
            for field in ["diskkbsread", "diskkbswrite", "diskioread", "diskiowrite"] {
                shown[field] = json!(0);
            }
        }
        if own.is_root {
            let template = state
                .catalogue
                .templates
                .iter()
                .find(|row| row["id"] == machine.template.as_str());
            let offering = state.catalogue.offering(&machine.offering);
            shown["templateid"] = json!(machine.template);
            shown["templatename"] = template.map(|row| row["name"].clone()).unwrap_or_default();
            shown["templatedisplaytext"] = template.map(|row| row["displaytext"].clone()).unwrap_or_default();
            shown["serviceofferingid"] = json!("11");
            shown["serviceofferingname"] = offering.map(|own| own["name"].clone()).unwrap_or_default();
            shown["serviceofferingdisplaytext"] = offering.map(|own| own["displaytext"].clone()).unwrap_or_default();
        }
    }
    if let Some(id) = &own.offering {
        let offering = state
            .catalogue
            .disk_offerings
            .iter()
            .find(|known| known["id"] == id.as_str());
        shown["diskofferingid"] = json!(id);
        shown["diskofferingname"] = offering.map(|own| own["name"].clone()).unwrap_or_default();
        shown["diskofferingdisplaytext"] = offering.map(|own| own["displaytext"].clone()).unwrap_or_default();
    }
    if role == Role::RootAdmin {
        for (field, value) in [
            ("storagetype", "shared"),
            ("hypervisor", "Simulator"),
            ("storage", "primary"),
            (
                "path",
                match own.is_root {
                    true => own.id.as_str(),
                    false => own.name.as_str(),
                },
            ),
            ("storageid", "d41f38b1-8a82-3ec4-ae89-72548ab5f869"),
            ("clusterid", super::CLUSTER),
            ("clustername", "cluster"),
            ("podid", super::POD),
            ("podname", "pod"),
        ] {
            shown[field] = json!(value);
        }
        shown["displayvolume"] = json!(true);
    }
    shown
}

pub(super) fn affinity_group(state: &State, own: &AffinityRecord) -> Value {
    let owner = state.account(&own.account);
    let members: Vec<&str> = state
        .machines
        .iter()
        .filter(|machine| machine.affinity_groups.contains(&own.id) && !machine.removed)
        .map(|machine| machine.id.as_str())
        .collect();
    let mut shown = json!({
        "id": own.id, "name": own.name, "account": own.account, "domainid": owner.map(|owner| owner.domain_id.clone()),
        "domain": owner.map(|owner| owner.domain.clone()), "domainpath": owner.map(|owner| owner.domain_path.clone()),
        "type": own.kind,
    });
    if let Some(description) = &own.description {
        shown["description"] = json!(description);
    }
    if !members.is_empty() {
        shown["virtualmachineIds"] = json!(members);
    }
    shown
}
