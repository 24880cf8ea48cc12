//! Objects as the API shows them, which depends on who asks and for what.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    machines::{AffinityRecord, Machine, MachineState, Volume},
    state::{Role, State, date},
};

/// The `details` of a list of machines.
#[derive(Clone, Debug)]
pub(super) struct Details(BTreeSet<String>);

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
    let mut shown = json!({
        "id": own.id, "name": own.name, "displayname": own.display_name,
        "userid": account.map(|account| account.user_id.clone()), "username": own.account,
        "domainid": account.map(|account| account.domain_id.clone()),
        "domain": account.map(|account| account.domain.clone()),
        "domainpath": account.map(|account| account.domain_path.clone()),
        "created": date(own.created), "state": own.state.as_str(), "haenable": false,
        "zoneid": own.zone, "zonename": from(zone, "name"),
        "guestosid": from(template, "ostypeid"), "securitygroup": [], "nic": [], "hypervisor": from(template, "hypervisor"),
        "details": own.details, "affinitygroup": [], "isdynamicallyscalable": false, "deleteprotection": own.delete_protection,
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
    if own.placed && own.state != MachineState::Error {
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
    if let Some((kind, mode)) = &own.boot {
        set("boottype", json!(kind));
        set("bootmode", json!(mode));
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
    if details.has("volume") {
        set("rootdeviceid", json!(0));
        set("rootdevicetype", json!("ROOT"));
    }
    if details.has("group")
        && let Some(group) = &own.group
    {
        set("groupid", json!(state.known_group(group)));
        set("group", json!(group));
    }
    if let Some(id) = &own.disk_offering {
        let offering = state
            .catalogue
            .disk_offerings
            .iter()
            .find(|known| known["id"] == id.as_str());
        set("diskofferingid", json!(id));
        set("diskofferingname", from(offering, "name"));
    }
    if details.has("nics") {
        set("nic", nics(state, own));
        if let Some(address) = own.nics.first().and_then(|nic| nic.address.clone()) {
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
    if details.has("affgrp") {
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
        for field in [
            "networkkbsread",
            "networkkbswrite",
            "diskkbsread",
            "diskkbswrite",
            "diskioread",
            "diskiowrite",
        ] {
            set(field, json!(0));
        }
        set("cpuused", json!("10%"));
        set("memorykbs", json!(own.memory * 1024));
        set("memoryintfreekbs", json!(0));
        set("memorytargetkbs", json!(own.memory * 1024));
    }
    let pending = state
        .jobs
        .iter()
        .find(|job| job.outcome.is_none() && job.instance.as_ref().is_some_and(|(_, id)| *id == own.id));
    if let Some(job) = pending {
        set("jobid", json!(job.id));
        set("jobstatus", json!(0));
    }
    shown
}

fn nics(state: &State, own: &Machine) -> Value {
    let shown: Vec<Value> = own
        .nics
        .iter()
        .enumerate()
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
            if own.placed {
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
        .map(|(key, value)| {
            json!({
                "key": key, "value": value, "resourcetype": kind, "resourceid": id, "account": account,
                "domainid": owner.map(|own| own.domain_id.clone()), "domain": owner.map(|own| own.domain.clone()),
                "domainpath": owner.map(|own| own.domain_path.clone()),
            })
        })
        .collect();
    json!(shown)
}

pub(super) fn volume(state: &State, own: &Volume) -> Value {
    let owner = state.account(&own.account);
    let zone = state.zone(&own.zone);
    let machine = own.machine.as_deref().and_then(|id| state.machine(id));
    let is_used = machine.is_some_and(|machine| machine.placed);
    let mut shown = json!({
        "id": own.id, "name": own.name, "zoneid": own.zone, "zonename": zone.map(|zone| zone["name"].clone()),
        "type": if own.is_root { "ROOT" } else { "DATADISK" }, "provisioningtype": "thin", "size": own.size << 30,
        "created": date(own.created), "state": if is_used { "Ready" } else { "Allocated" },
        "domainid": owner.map(|owner| owner.domain_id.clone()), "domain": owner.map(|owner| owner.domain.clone()),
        "domainpath": owner.map(|owner| owner.domain_path.clone()), "destroyed": own.removed,
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
        "type": own.kind, "dedicatedresources": [],
    });
    if let Some(description) = &own.description {
        shown["description"] = json!(description);
    }
    if !members.is_empty() {
        shown["virtualmachineIds"] = json!(members);
    }
    shown
}
