//! Hosts and what is left of them, for administrators.

use serde_json::{Value, json};

use super::Asked;
use crate::sim::{CLUSTER, POD, answer::Answered, state::State};

/// Kinds of capacity by the server's number; those of hosts also say what is promised to machines.
const KINDS: [(i64, &str); 11] = [
    (0, "MEMORY"),
    (1, "CPU"),
    (2, "STORAGE"),
    (3, "STORAGE_ALLOCATED"),
    (4, "VIRTUAL_NETWORK_PUBLIC_IP"),
    (5, "PRIVATE_IP"),
    (6, "SECONDARY_STORAGE"),
    (7, "VLAN"),
    (19, "GPU"),
    (20, "OBJECT_STORAGE"),
    (90, "CPU_CORE"),
];

/// (used, total) of a kind in a zone.
fn of_kind(state: &State, zone: &str, kind: i64) -> (i64, i64) {
    let hosts = || state.hosts.iter().filter(|own| own.zone == zone);
    let placed = || {
        let machines = state.machines.iter().filter(|own| own.zone == zone);
        machines.filter(|own| own.host.is_some())
    };
    match kind {
        0 => (
            placed().map(|own| own.memory << 20).sum(),
            hosts().map(|own| own.memory << 20).sum(),
        ),
        1 => (
            placed().map(|own| own.cpu * own.cpu_speed).sum(),
            hosts().map(|own| own.mhz).sum(),
        ),
        90 => (
            placed().map(|own| own.cpu).sum(),
            hosts().map(|own| own.mhz / MHZ_PER_CORE).sum(),
        ),
        2 | 3 => (0, 1 << 40),
        4 | 5 => (0, 199),
        7 => (0, 101),
        _ => (0, 0),
    }
}

const MHZ_PER_CORE: i64 = 2400;

fn percent(used: i64, total: i64) -> String {
    match total {
        0 => "0".to_owned(),
        total => {
            let text = format!("{:.2}", 100.0 * used as f64 / total as f64);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

pub(super) fn capacity(state: &State, asked: &Asked<'_>) -> Answered {
    let params = asked.params;
    let kind = params.number(asked.command, "type")?;
    let mut shown = Vec::new();
    for zone in &state.catalogue.zones {
        let id = zone["id"].as_str().unwrap_or_default();
        if params.text("zoneid").is_some_and(|wanted| wanted != id) {
            continue;
        }
        for (number, name) in KINDS {
            if number == 20 || kind.is_some_and(|kind| kind != number) {
                continue;
            }
            let (used, total) = of_kind(state, id, number);
            let mut row = json!({
                "type": number, "name": name, "zoneid": id, "zonename": zone["name"], "capacityused": used,
                "capacitytotal": total, "percentused": percent(used, total),
            });
            if matches!(number, 0 | 1 | 19 | 90) {
                row["capacityallocated"] = json!(used);
            }
            shown.push(row);
        }
    }
    asked.list(state, "capacity", shown)
}

/// The capacities that a list of zones shows on request.
pub(super) fn of_zone(state: &State, zone: &str) -> Value {
    let kinds = KINDS.iter().filter(|(number, _)| *number != 19);
    let shown: Vec<Value> = kinds
        .map(|(number, name)| {
            let (used, total) = of_kind(state, zone, *number);
            json!({
                "type": number, "name": name, "capacityused": used, "capacitytotal": total,
                "percentused": percent(used, total),
            })
        })
        .collect();
    json!(shown)
}

pub(super) fn hosts(state: &State, asked: &Asked<'_>) -> Answered {
    let zone = asked.params.text("zoneid");
    let hosts = state
        .hosts
        .iter()
        .filter(|own| zone.is_none_or(|zone| own.zone == zone));
    let shown = hosts.map(|own| {
        let placed = || {
            state
                .machines
                .iter()
                .filter(|machine| machine.host.as_deref() == Some(&own.id))
        };
        let mhz: i64 = placed().map(|machine| machine.cpu * machine.cpu_speed).sum();
        let memory: i64 = placed().map(|machine| machine.memory << 20).sum();
        let cpu = format!("{}%", percent(mhz, own.mhz));
        let zone = state.zone(&own.zone).map(|zone| zone["name"].clone()).unwrap_or_default();
        let mut shown = json!({
            "id": own.id, "name": own.name, "state": "Up", "type": "Routing", "ipaddress": "172.16.15.4",
            "zoneid": own.zone, "zonename": zone, "podid": POD, "podname": "pod", "version": state.settings.version,
            "hypervisor": "Simulator", "cpunumber": own.mhz / MHZ_PER_CORE, "cpuspeed": MHZ_PER_CORE, "cpuallocated": cpu,
            "cpuallocatedvalue": mhz, "cpuallocatedpercentage": cpu, "cpuallocatedwithoverprovisioning": cpu,
            "cpuused": "0%", "cpuwithoverprovisioning": own.mhz.to_string(), "cpuloadaverage": 0.0,
            "networkkbsread": 0, "networkkbswrite": 0, "memorytotal": own.memory << 20,
            "memorywithoverprovisioning": (own.memory << 20).to_string(), "memoryallocated": memory,
            "memoryallocatedpercentage": format!("{}%", percent(memory, own.memory << 20)),
            "memoryallocatedbytes": memory, "memoryused": 0, "capabilities": "hvm",
        });
        let more = json!({
            "lastpinged": "1970-01-21T06:51:10+0000", "managementserverid": "8710c652-627c-4acf-98c4-f43c5716efe0",
            "managementservername": "localhost", "clusterid": CLUSTER, "clustername": "cluster",
            "clustertype": "CloudManaged", "islocalstorageactive": false, "created": "2025-12-01T08:00:00+0000",
            "events": "Ping; AgentConnected", "hostha": {"haenable": false, "hastate": "Disabled"},
            "outofbandmanagement": {"powerstate": "Disabled", "enabled": false}, "resourcestate": "Enabled",
            "hypervisorversion": state.settings.version, "hahost": false, "ueficapability": false, "arch": "x86_64",
            "hasannotations": false,
        });
        if let (Value::Object(shown), Value::Object(more)) = (&mut shown, more) {
            shown.extend(more);
        }
        if !own.tags.is_empty() {
            shown["hosttags"] = json!(own.tags.join(","));
        }
        shown
    });
    asked.list(state, "host", shown.collect())
}
