//! How much memory watches and cluster state take for a number of running pods.
//!
//! `cargo run --release -p karpenter-core --example state_memory -- 5000` lists that many pods of a realistic size from
//! a server that makes them up page by page, and prints the resident memory before and after.

#![allow(clippy::print_stdout)]

use std::sync::Arc;

use http::{Request, Response, Uri};
use karpenter_cloud::fake::FakeProvider;
use karpenter_core::clock::Clock;
use karpenter_core::context::Context;
use karpenter_core::metrics::Metrics;
use karpenter_core::options::Options;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

#[tokio::main]
async fn main() {
    let pods: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1000);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().clone();
        async move { answer(uri, pods).await }
    });
    let clock = Clock::system();
    let cloud = Arc::new(FakeProvider::new(clock.clone()));
    let metrics = Metrics::new(clock.clone());
    let ctx = Context::new(
        Client::new(service, "default"),
        clock,
        Arc::new(Options::default()),
        metrics,
        cloud,
    );
    let before = resident();
    let _watches = ctx.watch();
    ctx.synced().await;
    println!(
        "{pods} pods on {} nodes: {} MiB before, {} MiB after",
        ctx.nodes.len(),
        before,
        resident()
    );
}

/// Resident memory in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

async fn answer(uri: Uri, pods: usize) -> Result<Response<Body>, BoxError> {
    let query = uri.query().unwrap_or_default();
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    if parameter("watch").is_some() {
        return std::future::pending().await;
    }
    let (path, from) = (
        uri.path(),
        parameter("continue").and_then(|text| text.parse().ok()).unwrap_or(0),
    );
    let limit: usize = parameter("limit").and_then(|text| text.parse().ok()).unwrap_or(500);
    let (items, total): (Vec<Value>, usize) = match path {
        "/api/v1/pods" => ((from..pods.min(from + limit)).map(pod).collect(), pods),
        "/api/v1/nodes" => ((from..(pods / 20).min(from + limit)).map(node).collect(), pods / 20),
        _ => (Vec::new(), 0),
    };
    let next = if from + limit < total {
        (from + limit).to_string()
    } else {
        String::new()
    };
    let list = json!({ "metadata": { "resourceVersion": "1", "continue": next }, "items": items });
    Ok(Response::new(Body::from(list.to_string().into_bytes())))
}

fn node(number: usize) -> Value {
    let resources = json!({ "cpu": "16", "memory": "64Gi", "pods": "110" });
    let images: Vec<Value> = (0..40).map(|image| json!({ "names": [format!("registry.example/image-{image}@sha256:{:064}", image)], "sizeBytes": 100_000_000 })).collect();
    json!({ "metadata": { "name": format!("node-{number}"), "resourceVersion": "1", "labels": { "kubernetes.io/hostname": format!("node-{number}"),
            "topology.kubernetes.io/zone": "zone-1", "node.kubernetes.io/instance-type": "large" } },
        "spec": { "providerID": format!("example://node-{number}") },
        "status": { "capacity": resources, "allocatable": resources, "images": images } })
}

/// A pod as a Deployment of a mid-sized company has it, about ten kilobytes on the wire.
fn pod(number: usize) -> Value {
    let workload = number % 50;
    let variables: Vec<Value> = (0..40)
        .map(|n| json!({ "name": format!("SETTING_{n}"), "value": format!("value {n} of workload {workload}") }))
        .collect();
    let probe = json!({ "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 10, "timeoutSeconds": 1 });
    let container = |name: &str| {
        json!({ "name": name, "image": format!("registry.example/team/{name}:1.2.3"), "env": variables,
        "resources": { "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "512Mi" } },
        "livenessProbe": probe, "readinessProbe": probe,
        "volumeMounts": [{ "name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }] })
    };
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    json!({
        "metadata": { "name": format!("workload-{workload}-7d9f8c6b5-{number:05}"), "namespace": format!("team-{}", workload % 10),
            "uid": format!("00000000-0000-0000-0000-{number:012}"), "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "app.kubernetes.io/name": format!("workload-{workload}"), "app.kubernetes.io/part-of": "shop", "pod-template-hash": "7d9f8c6b5" },
            "annotations": { "prometheus.io/scrape": "true", "checksum/config": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("workload-{workload}-7d9f8c6b5"), "uid": "r", "controller": true }],
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:app.kubernetes.io/name": {}, "f:pod-template-hash": {} } } } }] },
        "spec": { "nodeName": format!("node-{}", number / 20), "containers": [container("app"), container("proxy")],
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }],
            "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": { "matchLabels": { "app.kubernetes.io/name": format!("workload-{workload}") } } }],
            "volumes": [{ "name": "kube-api-access", "projected": { "sources": [] } }] },
        "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.0.0.1",
            "conditions": [condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition("Ready")] }
    })
}
