//! The benchmark workloads of scheduling.md §9.2 as Kubernetes objects, from a fixed seed.

use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// Which mix of constraints the pending pods carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Plain pods: requests and a label.
    Generic,
    /// Equal fifths of plain, zonal spread, hostname spread, zonal self-affinity and hostname anti-affinity pods.
    Diverse,
    /// Identical pods with a preferred zone and two preferred anti-affinities, one of which can't be met at scale.
    Prefer,
}

impl Mix {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "generic" => Some(Self::Generic),
            "diverse" => Some(Self::Diverse),
            "prefer" => Some(Self::Prefer),
            _ => None,
        }
    }
}

/// How much of the nodes the running pods take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Little: there is much to consolidate.
    Loose,
    /// Nearly all, on the cheapest type that holds them: there is nothing to consolidate, but that has to be found out.
    Packed,
}

impl Fill {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "loose" => Some(Self::Loose),
            "packed" => Some(Self::Packed),
            _ => None,
        }
    }
}

/// Objects and instance types, ready to be written as files or converted in memory.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) objects: Vec<Value>,
    pub(crate) types: Vec<Value>,
}

/// `pods` pending pods of a mix on an empty cluster.
pub(crate) fn pending(mix: Mix, pods: usize, types: usize) -> Workload {
    let mut random = ChaCha8Rng::seed_from_u64(42);
    let mut objects = vec![node_pool()];
    objects.extend(pending_pods(mix, pods, &mut random));
    Workload {
        objects,
        types: instance_types(types),
    }
}

/// `pods` pending pods beside `nodes` registered nodes that run `running` pods.
pub(crate) fn with_nodes(mix: Mix, pods: usize, types: usize, nodes: usize, running: usize, fill: Fill) -> Workload {
    let mut workload = pending(mix, pods, types);
    let mut random = ChaCha8Rng::seed_from_u64(43);
    let per_node = running.checked_div(nodes).unwrap_or(0).max(1);
    let mut sizes = Vec::with_capacity(nodes);
    for index in 0..nodes {
        let cpu = *[4, 8, 16].choose(&mut random).expect("the list is not empty");
        sizes.push(cpu);
        let zone = ZONES[index % ZONES.len()];
        workload.objects.extend(node(index, cpu, zone));
    }
    for index in 0..running {
        let node = index % nodes.max(1);
        let cpu = match fill {
            Fill::Loose => *[50, 100, 150].choose(&mut random).expect("the list is not empty"),
            // All but a tenth of a core, which the types reserve for themselves.
            Fill::Packed => (sizes[node] * 1000 - 100) / per_node as u32,
        };
        workload.objects.push(running_pod(index, node, cpu, &mut random));
    }
    workload
}

const ZONES: [&str; 3] = ["test-zone-1", "test-zone-2", "test-zone-3"];
const CREATED: &str = "2026-01-01T00:00:00Z";

fn pending_pods(mix: Mix, count: usize, random: &mut ChaCha8Rng) -> Vec<Value> {
    match mix {
        Mix::Generic => (0..count).map(|i| generic(i, random)).collect(),
        Mix::Diverse => diverse(count, random),
        Mix::Prefer => prefer(count, random),
    }
}

fn diverse(count: usize, random: &mut ChaCha8Rng) -> Vec<Value> {
    let part = count / 5;
    let mut pods = Vec::with_capacity(count);
    for i in 0..count {
        pods.push(match i.checked_div(part).unwrap_or(0) {
            1 => spread(i, "topology.kubernetes.io/zone", random),
            2 => spread(i, "kubernetes.io/hostname", random),
            3 => zonal_affinity(i, random),
            4 => hostname_anti_affinity(i, random),
            _ => generic(i, random),
        });
    }
    pods
}

fn generic(index: usize, random: &mut ChaCha8Rng) -> Value {
    pod(index, &json!({ "my-label": letter(random) }), json!({}), random)
}

fn spread(index: usize, topology_key: &str, random: &mut ChaCha8Rng) -> Value {
    let labels = json!({ "my-label": letter(random) });
    let constraint = json!({
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "my-label": letter(random) } },
    });
    pod(
        index,
        &labels,
        json!({ "topologySpreadConstraints": [constraint] }),
        random,
    )
}

fn zonal_affinity(index: usize, random: &mut ChaCha8Rng) -> Value {
    let labels = json!({ "my-affininity": letter(random) });
    let term = json!({
        "labelSelector": { "matchLabels": labels.clone() },
        "topologyKey": "topology.kubernetes.io/zone",
    });
    let affinity = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
    pod(index, &labels, json!({ "affinity": affinity }), random)
}

fn hostname_anti_affinity(index: usize, random: &mut ChaCha8Rng) -> Value {
    let labels = json!({ "app": "nginx" });
    let term = json!({
        "labelSelector": { "matchLabels": labels.clone() },
        "topologyKey": "kubernetes.io/hostname",
    });
    let affinity = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
    pod(index, &labels, json!({ "affinity": affinity }), random)
}

fn prefer(count: usize, random: &mut ChaCha8Rng) -> Vec<Value> {
    let (cpu, memory) = size(random);
    let labels = json!({ "app": "nginx" });
    let anti = |weight: i32, key: &str| {
        json!({ "weight": weight, "podAffinityTerm": {
            "labelSelector": { "matchLabels": { "app": "nginx" } }, "topologyKey": key } })
    };
    let spec = json!({ "affinity": {
        "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "preference": {
            "matchExpressions": [{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": [ZONES[0]] }] } }] },
        "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            anti(10, "topology.kubernetes.io/zone"), anti(1, "kubernetes.io/hostname")] },
    } });
    (0..count)
        .map(|i| sized_pod(i, &labels, spec.clone(), cpu, memory))
        .collect()
}

fn pod(index: usize, labels: &Value, spec: Value, random: &mut ChaCha8Rng) -> Value {
    let (cpu, memory) = size(random);
    sized_pod(index, labels, spec, cpu, memory)
}

fn sized_pod(index: usize, labels: &Value, mut spec: Value, cpu: u32, memory: u32) -> Value {
    spec["containers"] = json!([{ "name": "c", "image": "x", "resources": {
        "requests": { "cpu": format!("{cpu}m"), "memory": format!("{memory}Mi") } } }]);
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("p-{index:06}"), "namespace": "default", "labels": labels, "uid": uid(1, index), "creationTimestamp": CREATED },
        "spec": spec })
}

fn running_pod(index: usize, node: usize, cpu: u32, random: &mut ChaCha8Rng) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("r-{index:06}"), "namespace": "default", "uid": uid(2, index), "creationTimestamp": CREATED,
            "labels": { "running": letter(random) },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true }] },
        "spec": { "nodeName": node_name(node), "containers": [{ "name": "c", "image": "x", "resources": {
            "requests": { "cpu": format!("{cpu}m"), "memory": "128Mi" } } }] },
        "status": { "phase": "Running", "conditions": [{ "type": "PodScheduled", "status": "True" }] } })
}

fn node(index: usize, cpu: u32, zone: &str) -> [Value; 2] {
    let name = node_name(index);
    let resources = json!({ "cpu": cpu.to_string(), "memory": format!("{}Gi", cpu * 2), "pods": "110" });
    let labels = json!({
        "node.kubernetes.io/instance-type": format!("fake-it-{}", cpu - 1),
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": zone, "karpenter.sh/capacity-type": "on-demand",
        "karpenter.sh/nodepool": "default", "team": "bench",
        "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true" });
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": CREATED });
    [
        json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "uid": uid(3, index), "labels": labels, "creationTimestamp": CREATED },
            "spec": { "providerID": format!("kwok://{name}") },
            "status": { "capacity": resources, "allocatable": resources, "conditions": [{ "type": "Ready", "status": "True" }] } }),
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": name, "uid": uid(4, index), "labels": labels, "creationTimestamp": CREATED },
            "spec": { "nodeClassRef": node_class(), "requirements": [], "expireAfter": "Never" },
            "status": { "providerID": format!("kwok://{name}"), "nodeName": name, "capacity": resources, "allocatable": resources,
                "conditions": [condition("Launched"), condition("Registered"), condition("Initialized"), condition("Ready")] } }),
    ]
}

fn node_name(index: usize) -> String {
    format!("node-{index:05}")
}

fn node_class() -> Value {
    json!({ "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" })
}

fn node_pool() -> Value {
    json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": {
            "template": {
                "metadata": { "labels": { "team": "bench" } },
                "spec": { "nodeClassRef": node_class(), "requirements": [], "expireAfter": "Never" } },
            "limits": { "cpu": "10000000", "memory": "10000000Gi" } } })
}

/// The 400 benchmark types: type `i` has `i + 1` cores, twice as many GiB, and five offerings.
pub(crate) fn instance_types(count: usize) -> Vec<Value> {
    (0..count).map(|i| {
        let cpu = i + 1;
        let price = 0.1 * cpu as f64 + 0.1 * (cpu as f64 * 2.0 * 1024f64.powi(3)) / 1e9;
        let offering = |capacity_type: &str, zone: &str| json!({ "Price": price, "Available": true, "Requirements": [
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type] },
            { "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone] }] });
        json!({ "name": format!("fake-it-{i}"), "architecture": "amd64", "operatingSystems": ["linux", "windows", "darwin"],
            "resources": { "cpu": cpu.to_string(), "memory": format!("{}Gi", 2 * cpu), "pods": (10 * cpu).to_string() },
            "overhead": { "kubeReserved": { "cpu": "100m", "memory": "10Mi" } },
            "offerings": [offering("spot", ZONES[0]), offering("spot", ZONES[1]),
                offering("on-demand", ZONES[0]), offering("on-demand", ZONES[1]), offering("on-demand", ZONES[2])] })
    }).collect()
}

fn letter(random: &mut ChaCha8Rng) -> &'static str {
    ["a", "b", "c", "d", "e", "f", "g"]
        .choose(random)
        .expect("the list is not empty")
}

fn size(random: &mut ChaCha8Rng) -> (u32, u32) {
    let cpu = [100, 250, 500, 1000, 1500][random.random_range(0..5)];
    let memory = [100, 256, 512, 1024, 2048, 4096][random.random_range(0..6)];
    (cpu, memory)
}

fn uid(kind: u32, index: usize) -> String {
    format!("00000000-0000-0000-{kind:04}-{index:012}")
}
