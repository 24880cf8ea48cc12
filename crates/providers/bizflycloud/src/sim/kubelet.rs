//! The nodes that simulated servers become: a kubelet that registers, and the part of the cloud controller manager that says
//! which server a Node is.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::clock::{Clock, later};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{BKE_CLUSTER, BKE_TOKEN, SimServer, SimulatedBizfly, data};
use crate::instance;

const LOOK: Duration = Duration::from_secs(2);

/// Makes Nodes of running servers, and removes Nodes whose server is gone, until `stop`.
pub async fn run_nodes(cloud: SimulatedBizfly, kube: Client, clock: Clock, stop: CancellationToken) {
    let nodes: Api<Node> = Api::all(kube);
    // By server, with the number of the boot that its Node tells.
    let mut registered: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let servers = cloud.servers();
        let nodes_register = cloud.nodes_register();
        for server in &servers {
            let is_up = server
                .active_since
                .is_some_and(|since| clock.now() >= later(since, cloud.boot_delay()));
            if !nodes_register || !is_up || server.terminating || !joins(server) {
                continue;
            }
            let told = match registered.get(&server.id) {
                Some(told) if *told == server.reboots => continue,
                Some(_) => {
                    let boot = json!({"status": {"nodeInfo": {"bootID": boot_id(server)}}});
                    let name = server.name.to_lowercase();
                    nodes
                        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&boot))
                        .await
                }
                None => nodes.create(&PostParams::default(), &node(server)).await,
            };
            match told {
                Ok(_) => {
                    registered.insert(server.id.clone(), server.reboots);
                }
                Err(error) => tracing::debug!(%error, server = server.name, "a node could not register"),
            }
        }
        let alive: BTreeSet<String> = servers.iter().map(|server| instance::provider_id(&server.id)).collect();
        forget_gone(&nodes, &alive).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(LOOK) => {}
        }
    }
}

/// Whether a server would find its cluster: BKE's token and worker image, or user data that joins.
fn joins(server: &SimServer) -> bool {
    let tag = |key: &str| server.metadata.get(key).map(String::as_str);
    match tag("bke_cluster_id") {
        Some(id) => {
            id == BKE_CLUSTER
                && tag("bke_cluster_token") == Some(BKE_TOKEN)
                && data::is_worker_image(&server.image_id)
                && server.user_data.contains("/opt/bizfly-kubernetes-engine/bootstrap.sh")
        }
        None => server.user_data.contains("kubeadm join"),
    }
}

/// Another after each boot.
fn boot_id(server: &SimServer) -> String {
    format!("{}-{}", server.id, server.reboots)
}

fn node(server: &SimServer) -> Node {
    let name = server.name.to_lowercase();
    let memory_mib = server.ram * 966 / 1000;
    let taints: Value = if server.user_data.contains("karpenter.sh/unregistered") {
        json!([{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}])
    } else {
        json!([])
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": server.zone, "topology.kubernetes.io/region": "HN",
                "node.kubernetes.io/instance-type": server.flavor,
                // As the vendor's CSI driver registers it.
                "topology.volume.csi.bizflycloud.vn/zone": server.zone,
            },
            // The sandbox's kubelets play such Nodes.
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"providerID": instance::provider_id(&server.id), "taints": taints},
        "status": {
            "capacity": {
                "cpu": server.vcpus.to_string(), "memory": format!("{memory_mib}Mi"), "pods": "110",
                "ephemeral-storage": format!("{}Gi", server.disk_gib),
            },
            "allocatable": {
                "cpu": format!("{}m", server.vcpus * 1000 - 70), "memory": format!("{}Mi", memory_mib - 594), "pods": "110",
                "ephemeral-storage": format!("{}Gi", server.disk_gib * 9 / 10),
            },
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.3", "bootID": boot_id(server),
                "containerRuntimeVersion": "containerd://2.0.0", "kernelVersion": "6.8.0", "kubeProxyVersion": "",
                "machineID": server.id, "osImage": "Ubuntu 24.04 LTS", "systemUUID": server.id,
            },
        },
    }))
    .expect("a Node")
}

/// As the cloud controller manager does for Nodes whose server does not exist.
async fn forget_gone(nodes: &Api<Node>, alive: &BTreeSet<String>) {
    let Ok(listed) = nodes.list(&ListParams::default()).await else {
        return;
    };
    for node in listed {
        let id = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.clone())
            .unwrap_or_default();
        let is_ours = id.starts_with(instance::PROVIDER_PREFIX);
        if !is_ours || alive.contains(&id) || node.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = node.metadata.name.unwrap_or_default();
        if let Err(error) = nodes.delete(&name, &DeleteParams::default()).await {
            tracing::debug!(%error, name, "a Node without a server could not be deleted");
        }
    }
}
