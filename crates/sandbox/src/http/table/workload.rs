//! Rows of pods and of what runs them.

use serde_json::Value;

use super::age::{age_since, human};
use super::{Column, Row, or_none};

pub(super) const POD: &[Column] = &[
    ("Name", "string", 0),
    ("Ready", "string", 0),
    ("Status", "string", 0),
    ("Restarts", "string", 0),
    ("Age", "string", 0),
    ("IP", "string", 1),
    ("Node", "string", 1),
    ("Nominated Node", "string", 1),
    ("Readiness Gates", "string", 1),
];

pub(super) fn pod(row: &Row<'_>) -> Vec<Value> {
    let statuses = row.array("/status/containerStatuses");
    let sidecars: Vec<&Value> = row
        .array("/spec/initContainers")
        .iter()
        .filter(|init| init["restartPolicy"] == "Always")
        .collect();
    let init_statuses = row.array("/status/initContainerStatuses");
    let ready_sidecars = init_statuses
        .iter()
        .filter(|status| sidecars.iter().any(|sidecar| sidecar["name"] == status["name"]) && status["ready"] == true);
    let ready = statuses.iter().filter(|status| status["ready"] == true).count() + ready_sidecars.count();
    let total = row.array("/spec/containers").len() + sidecars.len();
    let restarts: i64 = statuses
        .iter()
        .filter_map(|status| status["restartCount"].as_i64())
        .sum();
    let gates = row.array("/spec/readinessGates");
    let passed = gates
        .iter()
        .filter(|gate| {
            let mut conditions = row.array("/status/conditions").iter();
            conditions.any(|condition| condition["type"] == gate["conditionType"] && condition["status"] == "True")
        })
        .count();
    let gates = if gates.is_empty() {
        String::new()
    } else {
        format!("{passed}/{}", gates.len())
    };
    vec![
        row.name(),
        format!("{ready}/{total}").into(),
        pod_status(row).into(),
        restarts.to_string().into(),
        row.age(),
        row.text_or_none("/status/podIP"),
        row.text_or_none("/spec/nodeName"),
        row.text_or_none("/status/nominatedNodeName"),
        or_none(gates),
    ]
}

fn pod_status(row: &Row<'_>) -> String {
    let mut status = match row.str("/status/phase") {
        "" => "Unknown".to_owned(),
        phase => phase.to_owned(),
    };
    let reason = row.str("/status/reason");
    if !reason.is_empty() {
        status = reason.to_owned();
    }
    let gated = row
        .array("/status/conditions")
        .iter()
        .any(|condition| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated");
    if gated {
        status = "SchedulingGated".into();
    }
    if let Some(init) = init_status(row) {
        status = init;
    } else {
        for container in row.array("/status/containerStatuses").iter().rev() {
            let state = &container["state"];
            if let Some(reason) = state["waiting"]["reason"].as_str().filter(|reason| !reason.is_empty()) {
                status = reason.to_owned();
            } else if state["terminated"].is_object() {
                status = terminated(&state["terminated"]);
            }
        }
    }
    let finished = matches!(row.str("/status/phase"), "Succeeded" | "Failed");
    if row.value["metadata"].get("deletionTimestamp").is_some() {
        if reason == "NodeLost" {
            return "Unknown".into();
        }
        if !finished {
            return "Terminating".into();
        }
    }
    status
}

fn terminated(state: &Value) -> String {
    match state["reason"].as_str().filter(|reason| !reason.is_empty()) {
        Some(reason) => reason.to_owned(),
        None => format!("ExitCode:{}", state["exitCode"].as_i64().unwrap_or(0)),
    }
}

/// `Init:…` while an init container has not finished.
fn init_status(row: &Row<'_>) -> Option<String> {
    let inits = row.array("/spec/initContainers");
    for (index, status) in row.array("/status/initContainerStatuses").iter().enumerate() {
        let sidecar = inits
            .iter()
            .any(|init| init["name"] == status["name"] && init["restartPolicy"] == "Always");
        let state = &status["state"];
        if state["terminated"]["exitCode"] == 0 || (sidecar && status["started"] == true) {
            continue;
        }
        if state["terminated"].is_object() {
            return Some(format!("Init:{}", terminated(&state["terminated"])));
        }
        return Some(match state["waiting"]["reason"].as_str() {
            Some(reason) if !reason.is_empty() && reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{index}/{}", inits.len()),
        });
    }
    None
}

const CONTAINERS: Column = ("Containers", "string", 1);
const IMAGES: Column = ("Images", "string", 1);
const SELECTOR: Column = ("Selector", "string", 1);

pub(super) const DEPLOYMENT: &[Column] = &[
    ("Name", "string", 0),
    ("Ready", "string", 0),
    ("Up-to-date", "string", 0),
    ("Available", "string", 0),
    ("Age", "string", 0),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) fn deployment(row: &Row<'_>) -> Vec<Value> {
    let mut cells = vec![
        row.name(),
        format!(
            "{}/{}",
            row.number("/status/readyReplicas"),
            row.number("/spec/replicas")
        )
        .into(),
        row.number("/status/updatedReplicas").into(),
        row.number("/status/availableReplicas").into(),
        row.age(),
    ];
    cells.extend(template_cells(row));
    cells.push(selector(row));
    cells
}

pub(super) const REPLICA_SET: &[Column] = &[
    ("Name", "string", 0),
    ("Desired", "integer", 0),
    ("Current", "integer", 0),
    ("Ready", "integer", 0),
    ("Age", "string", 0),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) fn replica_set(row: &Row<'_>) -> Vec<Value> {
    let mut cells = vec![
        row.name(),
        row.number("/spec/replicas").into(),
        row.number("/status/replicas").into(),
        row.number("/status/readyReplicas").into(),
        row.age(),
    ];
    cells.extend(template_cells(row));
    cells.push(selector(row));
    cells
}

pub(super) const STATEFUL_SET: &[Column] = &[
    ("Name", "string", 0),
    ("Ready", "string", 0),
    ("Age", "string", 0),
    CONTAINERS,
    IMAGES,
];

pub(super) fn stateful_set(row: &Row<'_>) -> Vec<Value> {
    let ready = format!(
        "{}/{}",
        row.number("/status/readyReplicas"),
        row.number("/spec/replicas")
    );
    let mut cells = vec![row.name(), ready.into(), row.age()];
    cells.extend(template_cells(row));
    cells
}

pub(super) const DAEMON_SET: &[Column] = &[
    ("Name", "string", 0),
    ("Desired", "integer", 0),
    ("Current", "integer", 0),
    ("Ready", "integer", 0),
    ("Up-to-date", "integer", 0),
    ("Available", "integer", 0),
    ("Node Selector", "string", 0),
    ("Age", "string", 0),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) fn daemon_set(row: &Row<'_>) -> Vec<Value> {
    let mut cells = vec![row.name()];
    for key in [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ] {
        cells.push(row.number(&format!("/status/{key}")).into());
    }
    cells.push(row.labels("/spec/template/spec/nodeSelector"));
    cells.push(row.age());
    cells.extend(template_cells(row));
    cells.push(selector(row));
    cells
}

pub(super) const JOB: &[Column] = &[
    ("Name", "string", 0),
    ("Status", "string", 0),
    ("Completions", "string", 0),
    ("Duration", "string", 0),
    ("Age", "string", 0),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) fn job(row: &Row<'_>) -> Vec<Value> {
    let has = |kind: &str| {
        let mut conditions = row.array("/status/conditions").iter();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let status = if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if row.value["metadata"].get("deletionTimestamp").is_some() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    let completions = match row.value.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{}/{wanted}", row.number("/status/succeeded")),
        None => format!("{}/1", row.number("/status/succeeded")),
    };
    let started = row.str("/status/startTime").parse::<jiff::Timestamp>();
    let ended = row.str("/status/completionTime").parse::<jiff::Timestamp>();
    let duration = match (started, ended) {
        (Ok(started), Ok(ended)) => human(ended.duration_since(started).as_secs()),
        (Ok(_), Err(_)) => age_since(&row.value["status"]["startTime"], row.now),
        _ => String::new(),
    };
    let mut cells = vec![
        row.name(),
        status.into(),
        completions.into(),
        duration.into(),
        row.age(),
    ];
    cells.extend(template_cells(row));
    cells.push(selector(row));
    cells
}

pub(super) const BUDGET: &[Column] = &[
    ("Name", "string", 0),
    ("Min Available", "string", 0),
    ("Max Unavailable", "string", 0),
    ("Allowed Disruptions", "integer", 0),
    ("Age", "string", 0),
];

pub(super) fn budget(row: &Row<'_>) -> Vec<Value> {
    let limit = |key: &str| match &row.value["spec"][key] {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    vec![
        row.name(),
        limit("minAvailable").into(),
        limit("maxUnavailable").into(),
        row.number("/status/disruptionsAllowed").into(),
        row.age(),
    ]
}

fn template_cells(row: &Row<'_>) -> [Value; 2] {
    let containers = row.array("/spec/template/spec/containers");
    let join = |key: &str| {
        let texts: Vec<&str> = containers
            .iter()
            .filter_map(|container| container[key].as_str())
            .collect();
        Value::from(texts.join(","))
    };
    [join("name"), join("image")]
}

fn selector(row: &Row<'_>) -> Value {
    let selector = crate::selector::LabelSelector::from_object(&row.value["spec"]["selector"]);
    or_none(selector.map(|selector| selector.to_string()).unwrap_or_default())
}
