//! What happens inside the cluster when a simulated machine boots or ends: its Node comes, or is deleted.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Happening, PoolState, SimNode, SimulatedOvh};
use crate::catalogue::{flavors, overhead};
use crate::node_class::OvhNodeClassSpec;

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
    let region = sim.with(|state| state.world.region.clone());
    let nodes: Api<Node> = Api::all(client);
    let follow = async {
        while let Some(happening) = happenings.recv().await {
            let result = match happening {
                Happening::Booted(machine, pool) => {
                    let node: Node = serde_json::from_value(node(&machine, &pool, &region)).expect("a Node");
                    nodes.create(&PostParams::default(), &node).await.map(drop)
                }
                Happening::Gone(machine) => nodes.delete(&machine.name, &DeleteParams::default()).await.map(drop),
            };
            match result {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => tracing::warn!(%error, "a simulated machine's Node is not written"),
                Ok(()) => {}
            }
        }
    };
    let tick = sim.run(Duration::from_millis(500), stop.clone());
    tokio::select! {
        () = follow => {}
        () = tick => {}
    }
}

/// The Node as MKS makes it.
fn node(machine: &SimNode, pool: &PoolState, region: &str) -> Value {
    let flavor = flavors::built_in(&machine.flavor).unwrap_or_default();
    let disk = flavors::disk_gb(&machine.flavor);
    let memory = overhead::memory(flavor.ram, 0.06);
    let reserved = overhead::overhead(&OvhNodeClassSpec::default(), flavor.vcpus, disk);
    let mut labels = json!(pool.template.metadata.labels);
    for (key, value) in [
        ("kubernetes.io/hostname", machine.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", &machine.flavor),
        ("beta.kubernetes.io/instance-type", &machine.flavor),
        ("topology.kubernetes.io/zone", &machine.zone),
        ("failure-domain.beta.kubernetes.io/zone", &machine.zone),
        ("topology.kubernetes.io/region", region),
        ("failure-domain.beta.kubernetes.io/region", region),
        ("topology.cinder.csi.openstack.org/zone", &machine.zone),
        ("nodepool", &pool.name),
    ] {
        labels[key] = json!(value);
    }
    let capacity = json!({
        "cpu": flavor.vcpus.to_string(), "memory": memory.to_string(), "pods": "110",
        "ephemeral-storage": overhead::storage(disk).to_string(),
    });
    let mut allocatable = capacity.clone();
    let kept = reserved.kube_reserved;
    let cpu = karpenter_api::Quantity::from_units(i64::from(flavor.vcpus)) - kept.cpu();
    allocatable["cpu"] = json!(cpu.to_string());
    allocatable["memory"] = json!((memory - kept.memory()).to_string());
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": machine.name, "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {
            "providerID": format!("openstack:///{}", machine.instance.as_deref().unwrap_or_default()),
            "taints": pool.template.spec.taints,
        },
        "status": {
            "capacity": capacity, "allocatable": allocatable,
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.34.1", "bootID": machine.id,
                "machineID": machine.id, "systemUUID": machine.id, "kernelVersion": "6.8.0", "osImage": "Ubuntu 22.04",
                "containerRuntimeVersion": "containerd://2.0.0", "kubeProxyVersion": "",
            },
        },
    })
}
