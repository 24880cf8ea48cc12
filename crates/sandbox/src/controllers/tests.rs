//! Whole-cluster behaviour on a manual clock, seen through the in-process objects.

mod nodes;
mod scheduling;
mod workloads;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde_json::{Value, json};

use crate::objects::{Kind, Objects};
use crate::{DeleteOptions, Machine, Sandbox, Timing};

/// A cluster whose mere work takes no time.
fn cluster() -> Sandbox {
    Sandbox::builder().timing(Timing::instant()).start()
}

/// A cluster with ready nodes of 4 cpus each.
async fn cluster_of(nodes: &[&str]) -> Sandbox {
    let sandbox = cluster();
    for (i, name) in nodes.iter().enumerate() {
        let zone = ["a", "b", "c"][i % 3];
        sandbox
            .kubelets()
            .boot(Machine::new(*name).label("topology.kubernetes.io/zone", zone));
    }
    sandbox.settle().await;
    sandbox
}

/// Creates an object from YAML, in namespace `default` unless it says otherwise.
fn create<K: Kind>(sandbox: &Sandbox, yaml: &str) -> K {
    let mut value: Value = serde_norway::from_str(yaml).expect("test YAML parses");
    let is_namespaced =
        K::plural(&()) != "nodes" && K::plural(&()) != "persistentvolumes" && K::plural(&()) != "storageclasses";
    if is_namespaced && value["metadata"]["namespace"].is_null() {
        value["metadata"]["namespace"] = json!("default");
    }
    let object: K = serde_json::from_value(value).expect("test YAML has the kind's shape");
    sandbox.objects().create(&object).expect("the object is accepted")
}

fn pod_yaml(name: &str, spec: &str) -> String {
    format!(
        "{{metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, image: i}}], {spec}}}}}"
    )
}

fn pod(sandbox: &Sandbox, name: &str) -> Option<Pod> {
    sandbox.objects().get("default", name)
}

fn node_of(sandbox: &Sandbox, name: &str) -> Option<String> {
    pod(sandbox, name)?.spec?.node_name
}

fn phase_of(sandbox: &Sandbox, name: &str) -> String {
    let Some(pod) = pod(sandbox, name) else {
        return "gone".to_owned();
    };
    pod.status.and_then(|s| s.phase).unwrap_or_else(|| "Pending".to_owned())
}

fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
}

/// Status and message of a pod's condition.
fn condition(pod: &Pod, kind: &str) -> Option<(String, String)> {
    let found = pod
        .status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.message.clone().unwrap_or_default()))
}

fn node(sandbox: &Sandbox, name: &str) -> Node {
    sandbox.objects().get("", name).expect("the node exists")
}

/// A node's taints as `key:effect`.
fn taints(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let taints = node(sandbox, name).spec.and_then(|s| s.taints).unwrap_or_default();
    taints
        .iter()
        .map(|t| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect))
        .collect()
}

fn ready_status(sandbox: &Sandbox, name: &str) -> String {
    let conditions = node(sandbox, name)
        .status
        .and_then(|s| s.conditions)
        .unwrap_or_default();
    conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .map(|c| c.status.clone())
        .unwrap_or_default()
}

fn pods(objects: &Objects) -> Vec<Pod> {
    objects.list("")
}

/// Living pods per node.
fn spread(sandbox: &Sandbox) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods(&sandbox.objects())
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_none())
    {
        let node = pod
            .spec
            .as_ref()
            .and_then(|s| s.node_name.clone())
            .unwrap_or_else(|| "pending".to_owned());
        *counts.entry(node).or_default() += 1;
    }
    counts
}

fn events(sandbox: &Sandbox, reason: &str) -> Vec<Event> {
    let all: Vec<Event> = sandbox.objects().list("");
    all.into_iter()
        .filter(|e| e.reason.as_deref() == Some(reason))
        .collect()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn delete<K: Kind>(sandbox: &Sandbox, namespace: &str, name: &str) {
    sandbox
        .objects()
        .delete::<K>(namespace, name, &DeleteOptions::default())
        .expect("the object is there");
}
