//! Rows of nodes, services, events and volumes.

use serde_json::Value;

use super::{Column, Row, age_since, or_none};

pub(super) const NODE: &[Column] = &[
    ("Name", "string", 0),
    ("Status", "string", 0),
    ("Roles", "string", 0),
    ("Age", "string", 0),
    ("Version", "string", 0),
    ("Internal-IP", "string", 1),
    ("External-IP", "string", 1),
    ("OS-Image", "string", 1),
    ("Kernel-Version", "string", 1),
    ("Container-Runtime", "string", 1),
];

pub(super) fn node(row: &Row<'_>) -> Vec<Value> {
    let ready = row
        .array("/status/conditions")
        .iter()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready.and_then(|condition| condition["status"].as_str()) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if row.flag("/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let labels = row.value["metadata"]["labels"].as_object();
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    let address = |kind: &str| {
        let found = row
            .array("/status/addresses")
            .iter()
            .find(|address| address["type"] == kind);
        or_none(
            found
                .and_then(|address| address["address"].as_str())
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let info = |key: &str| -> Value {
        match row.str(&format!("/status/nodeInfo/{key}")) {
            "" => "<unknown>".into(),
            text => text.into(),
        }
    };
    vec![
        row.name(),
        status.into(),
        or_none(roles.join(",")),
        row.age(),
        row.text("/status/nodeInfo/kubeletVersion"),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

pub(super) const SERVICE: &[Column] = &[
    ("Name", "string", 0),
    ("Type", "string", 0),
    ("Cluster-IP", "string", 0),
    ("External-IP", "string", 0),
    ("Port(s)", "string", 0),
    ("Age", "string", 0),
    ("Selector", "string", 1),
];

pub(super) fn service(row: &Row<'_>) -> Vec<Value> {
    let ports: Vec<String> = row
        .array("/spec/ports")
        .iter()
        .map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            let number = port["port"].as_i64().unwrap_or(0);
            match port["nodePort"].as_i64().unwrap_or(0) {
                0 => format!("{number}/{protocol}"),
                node_port => format!("{number}:{node_port}/{protocol}"),
            }
        })
        .collect();
    vec![
        row.name(),
        row.text("/spec/type"),
        row.text_or_none("/spec/clusterIP"),
        row.text_or_none("/spec/externalName"),
        or_none(ports.join(",")),
        row.age(),
        row.labels("/spec/selector"),
    ]
}

pub(super) const EVENT: &[Column] = &[
    ("Last Seen", "string", 0),
    ("Type", "string", 0),
    ("Reason", "string", 0),
    ("Object", "string", 0),
    ("Subobject", "string", 1),
    ("Source", "string", 1),
    ("Message", "string", 0),
    ("First Seen", "string", 1),
    ("Count", "string", 1),
    ("Name", "string", 1),
];

pub(super) fn event(row: &Row<'_>) -> Vec<Value> {
    let first_of = |keys: &[&str]| -> Value {
        let time = keys
            .iter()
            .find_map(|key| row.value.pointer(key).filter(|time| time.is_string()));
        age_since(time.unwrap_or(&Value::Null), row.now).into()
    };
    let kind = row.str("/involvedObject/kind").to_lowercase();
    let component = match row.str("/source/component") {
        "" => row.str("/reportingComponent"),
        component => component,
    };
    let source = match row.str("/source/host") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    let count = match (row.number("/series/count"), row.number("/count")) {
        (0, 0) => 1,
        (0, count) => count,
        (series, _) => series,
    };
    vec![
        first_of(&[
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/firstTimestamp",
            "/eventTime",
        ]),
        row.text("/type"),
        row.text("/reason"),
        format!("{kind}/{}", row.str("/involvedObject/name")).into(),
        row.text("/involvedObject/fieldPath"),
        source.into(),
        row.str("/message").trim().into(),
        first_of(&["/firstTimestamp", "/eventTime"]),
        count.into(),
        row.name(),
    ]
}

pub(super) const VOLUME: &[Column] = &[
    ("Name", "string", 0),
    ("Capacity", "string", 0),
    ("Access Modes", "string", 0),
    ("Reclaim Policy", "string", 0),
    ("Status", "string", 0),
    ("Claim", "string", 0),
    ("StorageClass", "string", 0),
    ("VolumeAttributesClass", "string", 0),
    ("Reason", "string", 0),
    ("Age", "string", 0),
    ("VolumeMode", "string", 1),
];

pub(super) fn volume(row: &Row<'_>) -> Vec<Value> {
    let claim = match row.str("/spec/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", row.str("/spec/claimRef/namespace")),
    };
    vec![
        row.name(),
        row.text("/spec/capacity/storage"),
        access_modes(row, "/spec/accessModes"),
        row.text("/spec/persistentVolumeReclaimPolicy"),
        phase(row),
        claim.into(),
        row.text("/spec/storageClassName"),
        unset(row.str("/spec/volumeAttributesClassName")),
        row.text("/status/reason"),
        row.age(),
        row.text("/spec/volumeMode"),
    ]
}

pub(super) const CLAIM: &[Column] = &[
    ("Name", "string", 0),
    ("Status", "string", 0),
    ("Volume", "string", 0),
    ("Capacity", "string", 0),
    ("Access Modes", "string", 0),
    ("StorageClass", "string", 0),
    ("VolumeAttributesClass", "string", 0),
    ("Age", "string", 0),
    ("VolumeMode", "string", 1),
];

pub(super) fn claim(row: &Row<'_>) -> Vec<Value> {
    let bound = !row.str("/spec/volumeName").is_empty();
    let (capacity, modes) = if bound {
        (
            row.text("/status/capacity/storage"),
            access_modes(row, "/status/accessModes"),
        )
    } else {
        ("".into(), "".into())
    };
    vec![
        row.name(),
        phase(row),
        row.text("/spec/volumeName"),
        capacity,
        modes,
        row.text("/spec/storageClassName"),
        unset(row.str("/spec/volumeAttributesClassName")),
        row.age(),
        row.text("/spec/volumeMode"),
    ]
}

fn phase(row: &Row<'_>) -> Value {
    if row.value["metadata"].get("deletionTimestamp").is_some() {
        return "Terminating".into();
    }
    row.text("/status/phase")
}

fn unset(text: &str) -> Value {
    if text.is_empty() { "<unset>".into() } else { text.into() }
}

fn access_modes(row: &Row<'_>, pointer: &str) -> Value {
    let modes: Vec<&str> = row
        .array(pointer)
        .iter()
        .filter_map(|mode| match mode.as_str()? {
            "ReadWriteOnce" => Some("RWO"),
            "ReadOnlyMany" => Some("ROX"),
            "ReadWriteMany" => Some("RWX"),
            "ReadWriteOncePod" => Some("RWOP"),
            _ => None,
        })
        .collect();
    modes.join(",").into()
}

pub(super) const STORAGE_CLASS: &[Column] = &[
    ("Name", "string", 0),
    ("Provisioner", "string", 0),
    ("ReclaimPolicy", "string", 0),
    ("VolumeBindingMode", "string", 0),
    ("AllowVolumeExpansion", "boolean", 0),
    ("Age", "string", 0),
];

pub(super) fn storage_class(row: &Row<'_>) -> Vec<Value> {
    let name = row.str("/metadata/name");
    let is_default = row.value["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
    vec![
        if is_default {
            format!("{name} (default)").into()
        } else {
            name.into()
        },
        row.text("/provisioner"),
        row.text("/reclaimPolicy"),
        row.text("/volumeBindingMode"),
        row.flag("/allowVolumeExpansion").into(),
        row.age(),
    ]
}

/// `pending`, or what holds the claim.
pub(super) fn claim_state(value: &Value) -> String {
    let mut states = Vec::new();
    if value["metadata"].get("deletionTimestamp").is_some() {
        states.push("deleted");
    }
    if value["status"]["allocation"].is_object() {
        states.push("allocated");
    }
    if value["status"]["reservedFor"]
        .as_array()
        .is_some_and(|list| !list.is_empty())
    {
        states.push("reserved");
    }
    if states.is_empty() {
        states.push("pending");
    }
    states.join(",")
}
