//! Load on the API server: 10,000 pods and 2,000 nodes, watched by 20 clients, created, updated and deleted.
//!
//! `cargo run --release -p karpenter-sandbox --example load [pods] [nodes] [watchers]` prints what it took and fails if a
//! watcher's view differs from a list, if a list of the pods takes 150 ms or if 300 MiB are used. It measures the API
//! server alone; with `CONTROLLERS=yes` the scheduler, controllers and kubelets live beside it: they bind the pods, which ask for
//! a spread over zones, and run them on the nodes.

#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_sandbox::{Clock, Sandbox};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What one watcher believes: resourceVersions by key.
type View = Arc<Mutex<BTreeMap<String, String>>>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (pods, nodes, watchers) = (next(10_000)?, next(2_000)?, next(20)?);

    let builder = Sandbox::builder().clock(Clock::real());
    let with_controllers = std::env::var_os("CONTROLLERS").is_some();
    let sandbox = if with_controllers {
        builder.start()
    } else {
        builder.api_server_only().start()
    };
    let client = sandbox.client();
    let pod_api: Api<Pod> = Api::default_namespaced(client.clone());
    let node_api: Api<Node> = Api::all(client.clone());
    let mut tasks = Vec::new();
    let mut pod_views: Vec<View> = Vec::new();
    let mut node_views: Vec<View> = Vec::new();
    for index in 0..watchers {
        let view = View::default();
        if index % 2 == 0 {
            pod_views.push(Arc::clone(&view));
            tasks.push(tokio::spawn(follow(pod_api.clone(), view)));
        } else {
            node_views.push(Arc::clone(&view));
            tasks.push(tokio::spawn(follow(node_api.clone(), view)));
        }
    }

    let started = Instant::now();
    for index in 0..nodes {
        let mut node = node(index)?;
        if with_controllers {
            node.annotations_mut()
                .insert("kwok.x-k8s.io/node".to_owned(), "fake".to_owned());
        }
        node_api.create(&PostParams::default(), &node).await?;
    }
    for index in 0..pods {
        let mut pod = pod(index, nodes)?;
        if with_controllers && let Some(spec) = &mut pod.spec {
            spec.node_name = None;
        }
        pod_api.create(&PostParams::default(), &pod).await?;
    }
    report("create all", started);
    if with_controllers {
        all_run(&pod_api, pods).await?;
        report("all pods bound and running", started);
    }

    let mut served = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let request = http::Request::get("/api/v1/namespaces/default/pods").body(Vec::new())?;
        let body = client.request_text(request).await?;
        served = served.min(started.elapsed());
        assert!(body.len() > pods * 1000);
    }
    println!("{:<44} {served:>10.1?}", "list pods, as text");

    let started = Instant::now();
    let patch = Patch::Merge(json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}));
    for index in 0..pods {
        pod_api
            .patch_status(&format!("pod-{index}"), &PatchParams::default(), &patch)
            .await?;
    }
    let patch = Patch::Merge(json!({"metadata": {"labels": {"updated": "yes"}}}));
    for index in 0..nodes {
        node_api
            .patch(&format!("node-{index}"), &PatchParams::default(), &patch)
            .await?;
    }
    report("update all", started);
    agree(&pod_api, &pod_views).await?;
    agree(&node_api, &node_views).await?;
    let memory = resident_mebibytes();
    println!(
        "{:<44} {memory:>8} MiB  (server, {watchers} watchers and their views)",
        "resident memory, everything alive"
    );

    let started = Instant::now();
    for index in 0..pods {
        pod_api
            .delete(&format!("pod-{index}"), &DeleteParams::default().grace_period(0))
            .await?;
    }
    node_api
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    report("delete all", started);
    agree(&pod_api, &pod_views).await?;
    agree(&node_api, &node_views).await?;
    let peak = peak_mebibytes();
    println!("{:<44} {peak:>8} MiB", "peak resident memory");
    println!("every watcher's view equals a list");
    for task in tasks {
        task.abort();
    }
    if peak >= 300 || served >= Duration::from_millis(150) {
        return Err("a figure of issue 5 is missed: 300 MiB, 150 ms".into());
    }
    Ok(())
}

/// Waits until the scheduler and the kubelets have every pod running.
async fn all_run(api: &Api<Pod>, pods: usize) -> Result<(), Error> {
    let running = ListParams::default().fields("status.phase=Running");
    let deadline = Instant::now() + Duration::from_secs(600);
    while api.list_metadata(&running).await?.items.len() < pods {
        if Instant::now() > deadline {
            return Err("not all pods run".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn report(what: &str, started: Instant) {
    println!("{what:<44} {:>10.1?}", started.elapsed());
}

fn node(index: usize) -> Result<Node, serde_json::Error> {
    let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| {
        json!({
            "type": kind, "status": if kind == "Ready" { "True" } else { "False" },
            "reason": "KubeletReady", "message": "kubelet is posting ready status",
        })
    });
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{index}"), "labels": {
            "kubernetes.io/hostname": format!("node-{index}"), "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "c4.large", "topology.kubernetes.io/zone": format!("zone-{}", index % 3),
            "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "on-demand",
        }},
        "spec": {"providerID": format!("sim:///node-{index}")},
        "status": {
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }))
}

fn pod(index: usize, nodes: usize) -> Result<Pod, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{index}"), "labels": {
            "app": format!("app-{}", index % 50), "pod-template-hash": "5d8f6c9b7d", "team": "checkout",
        }},
        "spec": {
            "nodeName": format!("node-{}", index % nodes.max(1)),
            "containers": [{
                "name": "main", "image": "registry.example/team/service:v1.2.3",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"containerPort": 8080}],
                "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
            }],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": format!("app-{}", index % 50)}},
            }],
        },
    }))
}

/// Follows a collection as a reflector does: list, then watch, resuming from the last version.
async fn follow<K>(api: Api<K>, view: View) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let list = api.list_metadata(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    {
        let mut view = view.lock();
        for object in &list.items {
            view.insert(object.name_any(), object.resource_version().unwrap_or_default());
        }
    }
    loop {
        let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or_default();
                    view.lock().insert(object.name_any(), version.clone());
                }
                WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap_or_default();
                    view.lock().remove(&object.name_any());
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
    }
}

/// Waits until every view equals a fresh list; fails if one does not get there.
async fn agree<K>(api: &Api<K>, views: &[View]) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    // Metadata only: the figures are the server's, not those of a client that keeps 10,000 typed pods.
    let list = api.list_metadata(&ListParams::default()).await?;
    let truth: BTreeMap<String, String> = list
        .items
        .iter()
        .map(|object| (object.name_any(), object.resource_version().unwrap_or_default()))
        .collect();
    let started = Instant::now();
    for view in views {
        while *view.lock() != truth {
            if started.elapsed() > Duration::from_secs(30) {
                return Err("a watcher lost an event".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

fn resident_mebibytes() -> u64 {
    status_mebibytes("VmRSS:")
}

fn peak_mebibytes() -> u64 {
    status_mebibytes("VmHWM:")
}

/// A memory figure of this process, as Linux tells it; 0 elsewhere.
fn status_mebibytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kibibytes| kibibytes / 1024)
}
