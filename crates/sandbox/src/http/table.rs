//! kubectl's tables: the columns of each kind and what stands in them.

mod age;
mod cluster;
mod workload;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::resource::{Resource, Source};

pub(crate) use age::age_since;

/// A column: its name, type and priority (1 is shown only with `-o wide`).
type Column = (&'static str, &'static str, u8);

/// `columnDefinitions` of a resource's table.
pub(crate) fn definitions(resource: &Resource) -> Value {
    if let Source::Custom(version) = &resource.source {
        let mut columns = vec![definition("Name", "string", "name", "", 0)];
        if version.columns.is_empty() {
            columns.push(definition("Age", "date", "", "", 0));
        }
        for column in &version.columns {
            columns.push(definition(
                &column.name,
                &column.kind,
                &column.format,
                &column.description,
                column.priority,
            ));
        }
        return columns.into();
    }
    columns(resource)
        .iter()
        .map(|(name, kind, priority)| {
            definition(
                name,
                kind,
                if *name == "Name" { "name" } else { "" },
                "",
                i64::from(*priority),
            )
        })
        .collect()
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}

/// The cells of one row.
pub(crate) fn cells(resource: &Resource, value: &Value, now: Timestamp) -> Vec<Value> {
    let name = value["metadata"]["name"].clone();
    let age = || -> Value { age_since(&value["metadata"]["creationTimestamp"], now).into() };
    if let Source::Custom(version) = &resource.source {
        let mut cells = vec![name];
        if version.columns.is_empty() {
            cells.push(age());
        }
        cells.extend(version.columns.iter().map(|column| custom_cell(column, value, now)));
        return cells;
    }
    let row = Row { value, now };
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => workload::pod(&row),
        ("apps", "Deployment") => workload::deployment(&row),
        ("apps", "ReplicaSet") => workload::replica_set(&row),
        ("apps", "StatefulSet") => workload::stateful_set(&row),
        ("apps", "DaemonSet") => workload::daemon_set(&row),
        ("batch", "Job") => workload::job(&row),
        ("policy", "PodDisruptionBudget") => workload::budget(&row),
        ("", "Node") => cluster::node(&row),
        ("", "Namespace") => vec![name, row.text("/status/phase"), age()],
        ("", "ConfigMap") => vec![name, row.data_count().into(), age()],
        ("", "Secret") => vec![name, row.text("/type"), row.data_count().into(), age()],
        ("", "Service") => cluster::service(&row),
        (_, "Event") => cluster::event(&row),
        ("", "PersistentVolume") => cluster::volume(&row),
        ("", "PersistentVolumeClaim") => cluster::claim(&row),
        ("storage.k8s.io", "StorageClass") => cluster::storage_class(&row),
        ("storage.k8s.io", "CSINode") => {
            vec![name, row.array("/spec/drivers").len().into(), age()]
        }
        ("storage.k8s.io", "VolumeAttachment") => vec![
            name,
            row.text("/spec/attacher"),
            row.text("/spec/source/persistentVolumeName"),
            row.text("/spec/nodeName"),
            row.flag("/status/attached").into(),
            age(),
        ],
        ("scheduling.k8s.io", "PriorityClass") => vec![
            name,
            value["value"].clone(),
            row.flag("/globalDefault").into(),
            age(),
            row.text("/preemptionPolicy"),
        ],
        ("coordination.k8s.io", "Lease") => vec![name, row.text("/spec/holderIdentity"), age()],
        ("resource.k8s.io", "ResourceClaim") => vec![name, cluster::claim_state(value).into(), age()],
        ("resource.k8s.io", "ResourceSlice") => vec![
            name,
            row.text("/spec/nodeName"),
            row.text("/spec/driver"),
            row.text("/spec/pool/name"),
            age(),
        ],
        ("apiextensions.k8s.io", _) => vec![name, value["metadata"]["creationTimestamp"].clone()],
        _ => vec![name, age()],
    }
}

fn columns(resource: &Resource) -> &'static [Column] {
    const NAME: Column = ("Name", "string", 0);
    const AGE: Column = ("Age", "string", 0);
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => workload::POD,
        ("apps", "Deployment") => workload::DEPLOYMENT,
        ("apps", "ReplicaSet") => workload::REPLICA_SET,
        ("apps", "StatefulSet") => workload::STATEFUL_SET,
        ("apps", "DaemonSet") => workload::DAEMON_SET,
        ("batch", "Job") => workload::JOB,
        ("policy", "PodDisruptionBudget") => workload::BUDGET,
        ("", "Node") => cluster::NODE,
        ("", "Namespace") => &[NAME, ("Status", "string", 0), AGE],
        ("", "ConfigMap") => &[NAME, ("Data", "string", 0), AGE],
        ("", "Secret") => &[NAME, ("Type", "string", 0), ("Data", "string", 0), AGE],
        ("", "Service") => cluster::SERVICE,
        (_, "Event") => cluster::EVENT,
        ("", "PersistentVolume") => cluster::VOLUME,
        ("", "PersistentVolumeClaim") => cluster::CLAIM,
        ("storage.k8s.io", "StorageClass") => cluster::STORAGE_CLASS,
        ("storage.k8s.io", "CSINode") => &[NAME, ("Drivers", "integer", 0), AGE],
        ("storage.k8s.io", "VolumeAttachment") => &[
            NAME,
            ("Attacher", "string", 0),
            ("PV", "string", 0),
            ("Node", "string", 0),
            ("Attached", "boolean", 0),
            AGE,
        ],
        ("scheduling.k8s.io", "PriorityClass") => &[
            NAME,
            ("Value", "integer", 0),
            ("Global-Default", "boolean", 0),
            AGE,
            ("PreemptionPolicy", "string", 0),
        ],
        ("coordination.k8s.io", "Lease") => &[NAME, ("Holder", "string", 0), AGE],
        ("resource.k8s.io", "ResourceClaim") => &[NAME, ("State", "string", 0), AGE],
        ("resource.k8s.io", "ResourceSlice") => &[
            NAME,
            ("Node", "string", 0),
            ("Driver", "string", 0),
            ("Pool", "string", 0),
            AGE,
        ],
        ("apiextensions.k8s.io", _) => &[NAME, ("Created At", "date", 0)],
        _ => &[NAME, AGE],
    }
}

fn custom_cell(column: &crate::crd::PrinterColumn, value: &Value, now: Timestamp) -> Value {
    let found = column.path.first(value);
    match (column.kind.as_str(), found) {
        (_, None | Some(Value::Null)) => Value::Null,
        ("date", Some(time)) => age_since(time, now).into(),
        ("integer", Some(Value::Number(number))) => Value::Number(number.clone()),
        ("number", Some(Value::Number(number))) => Value::Number(number.clone()),
        ("boolean", Some(Value::Bool(flag))) => (*flag).into(),
        ("string", Some(Value::String(text))) => text.as_str().into(),
        ("string", Some(other)) => other.to_string().into(),
        _ => Value::Null,
    }
}

/// An object with the lookups that cells need.
struct Row<'a> {
    value: &'a Value,
    now: Timestamp,
}

impl Row<'_> {
    fn name(&self) -> Value {
        self.value["metadata"]["name"].clone()
    }

    fn age(&self) -> Value {
        age_since(&self.value["metadata"]["creationTimestamp"], self.now).into()
    }

    fn str(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn text(&self, pointer: &str) -> Value {
        self.str(pointer).into()
    }

    /// The text, or `<none>`.
    fn text_or_none(&self, pointer: &str) -> Value {
        or_none(self.str(pointer).to_owned())
    }

    fn number(&self, pointer: &str) -> i64 {
        self.value.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    fn flag(&self, pointer: &str) -> bool {
        self.value.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    fn array(&self, pointer: &str) -> &[Value] {
        self.value
            .pointer(pointer)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn data_count(&self) -> usize {
        let count = |key: &str| self.value[key].as_object().map_or(0, serde_json::Map::len);
        count("data") + count("binaryData")
    }

    /// `a=b,c=d` of a label map, or `<none>`.
    fn labels(&self, pointer: &str) -> Value {
        let map = self.value.pointer(pointer).and_then(Value::as_object);
        let pairs: Vec<String> = map
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        or_none(pairs.join(","))
    }
}

fn or_none(text: String) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}
