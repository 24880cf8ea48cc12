//! Machines that boot become Nodes: the simulated cloud attached to a cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Machine, MachineState, Simulator};

/// Makes a Node of every machine that runs, until it is dropped.
#[derive(Debug)]
pub struct Kubelets {
    task: JoinHandle<()>,
}

impl Kubelets {
    /// `cluster` must run kubelets for Nodes annotated `kwok.x-k8s.io/node: fake`, as the sandbox and KWOK do.
    pub fn attach(simulator: Simulator, cluster: kube::Client) -> Self {
        let task = tokio::spawn(async move {
            let nodes: Api<Node> = Api::all(cluster);
            let mut joined = BTreeSet::new();
            loop {
                for machine in simulator.machines() {
                    if machine.state != MachineState::Running || joined.contains(&machine.id) {
                        continue;
                    }
                    match nodes.create(&PostParams::default(), &node(&machine)).await {
                        Ok(_) => {
                            joined.insert(machine.id.clone());
                        }
                        Err(error) => {
                            tracing::warn!(machine = machine.name, %error, "a simulated machine could not join");
                        }
                    }
                }
                simulator.changed().await;
            }
        });
        Self { task }
    }
}

fn node(machine: &Machine) -> Node {
    let memory = machine.memory - machine.memory * 75 / 1000 - 1;
    let ip = machine
        .nics
        .first()
        .and_then(|nic| nic.address.clone())
        .unwrap_or_default();
    serde_json::from_value(json!({
        "metadata": {
            "name": machine.name,
            "labels": {"kubernetes.io/hostname": machine.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {
            "providerID": format!("external-cloudstack://{}", machine.id),
            "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": ip}],
            "capacity": {"cpu": machine.cpu.to_string(), "memory": format!("{memory}Mi"), "pods": "110", "ephemeral-storage": "10Gi"},
            "allocatable": {
                "cpu": format!("{}m", machine.cpu * 1000 - 100), "memory": format!("{}Mi", memory - 356), "pods": "110",
                "ephemeral-storage": "9Gi",
            },
        },
    }))
    .expect("a Node")
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}
