//! What happens inside the cluster when a simulated machine boots or ends: its Node comes, or is deleted.
//!
//! Besides the kubelet this plays the cloud controller, which keeps the old and the new name of a label in step, with the old
//! one as the source.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Happening, InstanceTypeLabel, PoolState, ReservedMemory, SimNode, SimulatedOvh, World};
use crate::{
    catalogue::{flavors, overhead},
    names,
    node_class::OvhNodeClassSpec,
};

/// How often the cloud controller looks at labels, and kubelets at whether their Node is there.
const UPKEEP: Duration = Duration::from_secs(60);

/// The taint that a cloud controller takes away.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Each new name of a label with the old one that it follows.
const TWINS: [(&str, &str); 3] = [
    ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    (
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/region",
    ),
];

/// Makes the machines of a simulated cloud Nodes of the cluster behind `client`, until `stop`.
///
/// Nodes carry the annotation by which a KWOK controller, or the sandbox's kubelets, bring them to life.
pub async fn join_nodes(sim: SimulatedOvh, client: Client, stop: CancellationToken) {
    let (sender, mut happenings) = mpsc::unbounded_channel();
    let sender = Arc::new(sender);
    sim.on_change(move |happening| {
        // After the end nobody listens any more.
        let _ = sender.send(happening);
    });
    let nodes: Api<Node> = Api::all(client);
    let follow = async {
        while let Some(happening) = happenings.recv().await {
            let result = match happening {
                Happening::Booted(machine, pool) => join(&sim, &nodes, &machine, &pool).await,
                Happening::Gone(machine) => nodes.delete(&machine.name, &DeleteParams::default()).await.map(drop),
            };
            tell(result);
        }
    };
    let upkeep = async {
        loop {
            sim.clock().sleep(UPKEEP).await;
            tell(look_after(&sim, &nodes).await);
        }
    };
    let tick = sim.run(stop.clone());
    tokio::select! {
        () = follow => {}
        () = upkeep => {}
        () = tick => {}
    }
}

fn tell(result: Result<(), kube::Error>) {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => tracing::warn!(%error, "a simulated machine's Node is not written"),
        Ok(()) => {}
    }
}

async fn join(sim: &SimulatedOvh, nodes: &Api<Node>, machine: &SimNode, pool: &PoolState) -> Result<(), kube::Error> {
    let node = sim.with(|state| node(machine, pool, &state.world));
    let node: Node = serde_json::from_value(node).expect("a Node");
    nodes.create(&PostParams::default(), &node).await?;
    initialize(nodes, &machine.name).await
}

/// The cloud controller has seen a node: it takes its own taint away and leaves those of others alone.
async fn initialize(nodes: &Api<Node>, name: &str) -> Result<(), kube::Error> {
    loop {
        let node = nodes.get(name).await?;
        let version = node.resource_version();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let others: Vec<_> = taints.into_iter().filter(|taint| taint.key != UNINITIALIZED).collect();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": others}});
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => return result.map(drop),
        }
    }
}

/// Kubelets register again when their Node was deleted; the cloud controller puts labels "right".
async fn look_after(sim: &SimulatedOvh, nodes: &Api<Node>) -> Result<(), kube::Error> {
    let listed: BTreeMap<String, Node> = nodes
        .list(&ListParams::default())
        .await?
        .into_iter()
        .map(|node| (node.name_any(), node))
        .collect();
    let running: Vec<(SimNode, PoolState)> = sim.with(|state| {
        let ready = state.nodes.values().filter(|node| node.status == "READY");
        ready
            .filter_map(|node| Some((node.clone(), state.pools.get(&node.pool)?.clone())))
            .collect()
    });
    for (machine, pool) in running {
        let Some(node) = listed.get(&machine.name) else {
            join(sim, nodes, &machine, &pool).await?;
            continue;
        };
        let reverted: BTreeMap<&str, &String> = TWINS
            .iter()
            .filter_map(|(new, old)| Some((*new, node.labels().get(*old)?)))
            .filter(|(new, value)| node.labels().get(*new) != Some(value))
            .collect();
        if !reverted.is_empty() {
            let patch = json!({"metadata": {"labels": reverted}});
            nodes
                .patch(&machine.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
        }
    }
    Ok(())
}

/// The Node as MKS makes it.
fn node(machine: &SimNode, pool: &PoolState, world: &World) -> Value {
    let flavor = flavors::built_in(&machine.flavor).unwrap_or_default();
    let instance_type = match world.instance_type_label {
        InstanceTypeLabel::Name => machine.flavor.clone(),
        InstanceTypeLabel::Id => format!("uuid-{}", machine.flavor),
    };
    let mut labels = json!(pool.template.metadata.labels);
    for (key, value) in [
        ("kubernetes.io/hostname", machine.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", &instance_type),
        ("beta.kubernetes.io/instance-type", &instance_type),
        ("topology.kubernetes.io/zone", &machine.zone),
        ("failure-domain.beta.kubernetes.io/zone", &machine.zone),
        ("topology.kubernetes.io/region", &world.region),
        ("failure-domain.beta.kubernetes.io/region", &world.region),
        ("topology.cinder.csi.openstack.org/zone", &machine.zone),
        ("node.k8s.ovh/type", if flavor.gpus > 0 { "gpu" } else { "standard" }),
        ("nodepool", &pool.name),
    ] {
        labels[key] = json!(value);
    }
    let mut annotations = json!({"kwok.x-k8s.io/node": "fake"});
    if world.plan == "standard" {
        annotations[names::CLUSTER_ANNOTATION] = json!(world.kube_id);
    }
    let mut taints: Vec<Value> = pool.template.spec.taints.iter().map(|taint| json!(taint)).collect();
    taints.push(json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}));
    let (capacity, allocatable) = resources(machine, &flavor, world);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": machine.name, "labels": labels, "annotations": annotations},
        "spec": {
            "providerID": format!("openstack:///{}", machine.instance.as_deref().unwrap_or_default()),
            "taints": taints,
        },
        "status": {
            "capacity": capacity, "allocatable": allocatable,
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": format!("v{}", machine.version),
                "bootID": machine.id, "machineID": machine.id, "systemUUID": machine.id, "kernelVersion": "6.8.0",
                "osImage": "Ubuntu 22.04", "containerRuntimeVersion": "containerd://2.0.0", "kubeProxyVersion": "",
            },
        },
    })
}

fn resources(machine: &SimNode, flavor: &crate::client::model::Flavor, world: &World) -> (Value, Value) {
    let disk = flavors::disk_gb(&machine.flavor);
    let memory = overhead::memory(flavor.ram, 0.06);
    let kept = overhead::overhead(&OvhNodeClassSpec::default(), flavor.vcpus, disk).kube_reserved;
    let kept_memory = match world.reserved_memory {
        ReservedMemory::Fixed => kept.memory(),
        ReservedMemory::Proportional => {
            karpenter_api::Quantity::from_bytes((1_536 << 20) + (i64::from(flavor.ram) << 30) / 20)
        }
    };
    let mut capacity = json!({
        "cpu": flavor.vcpus.to_string(), "memory": memory.to_string(), "pods": "110",
        "ephemeral-storage": overhead::storage(disk).to_string(),
    });
    if flavor.gpus > 0 && world.gpu_operator {
        capacity[names::GPU_RESOURCE] = json!(flavor.gpus.to_string());
    }
    let mut allocatable = capacity.clone();
    let cpu = karpenter_api::Quantity::from_units(i64::from(flavor.vcpus)) - kept.cpu();
    allocatable["cpu"] = json!(cpu.to_string());
    allocatable["memory"] = json!((memory - kept_memory).to_string());
    (capacity, allocatable)
}
