//! The kubelet's work on its own Node: registration, readiness, heartbeats.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Flavor, Kubelet, Machine, State};
use crate::clock::later;
use crate::controllers::effects::{Condition, LEASES, NODES, set_condition};
use crate::controllers::manager::{Manager, Task};
use crate::controllers::node::NodeFacts;
use crate::controllers::timing::Heartbeats;
use crate::server::{Endpoint, time_text};

/// How often leases are renewed when nobody depends on them.
const IMPLIED_RENEWAL: std::time::Duration = std::time::Duration::from_secs(300);

/// What a healthy kubelet says of its node.
const HEALTHY: [Condition<'static>; 4] = [
    Condition {
        kind: "MemoryPressure",
        status: "False",
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
    },
    Condition {
        kind: "DiskPressure",
        status: "False",
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
    },
    Condition {
        kind: "PIDPressure",
        status: "False",
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
    },
    Condition {
        kind: "Ready",
        status: "True",
        reason: "KubeletReady",
        message: "kubelet is posting ready status",
    },
];

impl Manager {
    pub(crate) fn tend_node(&mut self, name: &Arc<str>) {
        let now = self.effects.now();
        let Some(kubelet) = self.kubelets.nodes.get(name) else {
            return;
        };
        match kubelet.state {
            State::Booting { register_at } if register_at > now => {
                self.arm(Task::KubeletNode(Arc::clone(name)), register_at);
            }
            State::Booting { .. } => self.register(name, now),
            State::Running => self.keep_alive(name, now),
            State::Frozen | State::Unregistered => {}
        }
    }

    fn register(&mut self, name: &Arc<str>, now: Timestamp) {
        let Some(machine) = self.kubelets.nodes.get(name).and_then(|k| k.machine.clone()) else {
            return;
        };
        if machine.never_registers {
            return;
        }
        let created = self.effects.create(NODES, "", &node_object(&machine, now));
        if created.as_ref().is_err_and(crate::status::ApiError::is_already_exists) {
            // A cloud or a test made the Node before: the kubelet adds what it knows.
            let adopted = self
                .effects
                .modify(NODES, "", name, Endpoint::Main, |node| adopt(node, &machine));
            self.effects.report("adopt a Node", adopted);
            let status = self.effects.modify(NODES, "", name, Endpoint::Status, |node| {
                node["status"]["capacity"] = json!(machine.capacity);
                node["status"]["allocatable"] = json!(allocatable(&machine));
                true
            });
            self.effects.report("report a Node's capacity", status);
        } else {
            self.effects.report("register a Node", created.map(|_| ()));
        }
        if let Some(kubelet) = self.kubelets.nodes.get_mut(name) {
            kubelet.state = State::Running;
            kubelet.ready_at = later(now, machine.ready_delay);
            kubelet.next_renewal = now;
        }
        self.enqueue(Task::KubeletNode(Arc::clone(name)));
    }

    fn keep_alive(&mut self, name: &Arc<str>, now: Timestamp) {
        let Some(node) = self.world.nodes.get(name).cloned() else {
            return;
        };
        let Some(kubelet) = self.kubelets.nodes.get(name) else {
            return;
        };
        if let Some(at) = self.post_readiness(&node, kubelet, now) {
            self.arm(Task::KubeletNode(Arc::clone(name)), at);
        }
        let due = self.kubelets.nodes.get(name).map_or(now, |k| k.next_renewal);
        if due <= now {
            self.renew_lease(&node, now);
            // All kubelets renew in step, so that a manual clock has one stop for all of them.
            let pause = match self.timing.heartbeats {
                Heartbeats::Written => self.timing.lease_renewal,
                Heartbeats::Implied => IMPLIED_RENEWAL,
            };
            let next = next_on_grid(now, pause);
            if let Some(kubelet) = self.kubelets.nodes.get_mut(name) {
                kubelet.next_renewal = next;
            }
            self.arm(Task::KubeletNode(Arc::clone(name)), next);
        } else {
            self.arm(Task::KubeletNode(Arc::clone(name)), due);
        }
    }

    /// Posts the conditions that are due; returns when to look again.
    fn post_readiness(&self, node: &NodeFacts, kubelet: &Kubelet, now: Timestamp) -> Option<Timestamp> {
        let never = kubelet.machine.as_ref().is_some_and(|m| m.never_ready);
        let is_overridden = kubelet.overrides.contains_key("Ready");
        if never || is_overridden {
            return None;
        }
        if kubelet.ready_at > now {
            return Some(kubelet.ready_at);
        }
        let late = kubelet.machine.as_ref().filter(|m| !m.late_resources.is_empty());
        let late_at = late.map(|m| later(kubelet.ready_at, m.late_resources_delay));
        let has_late = late.is_none_or(|m| m.late_resources.keys().all(|r| node.allocatable.get(r) > 0));
        let announces = late_at.is_some_and(|at| at <= now) && !has_late;
        if node.is_ready() && !announces {
            return late_at.filter(|at| *at > now);
        }
        let written = self.effects.modify(NODES, "", &node.name, Endpoint::Status, |object| {
            for condition in HEALTHY.iter().filter(|c| !kubelet.overrides.contains_key(c.kind)) {
                set_condition(object, condition, now);
            }
            set_condition(
                object,
                &Condition {
                    kind: "NetworkUnavailable",
                    status: "False",
                    reason: "RouteCreated",
                    message: "RouteController created a route",
                },
                now,
            );
            stamp_heartbeats(object, now);
            if kubelet.flavor == Flavor::Fake {
                fill_in(object, node);
            }
            if let Some(machine) = late.filter(|_| announces) {
                for (resource, quantity) in &machine.late_resources {
                    object["status"]["capacity"][resource] = json!(quantity);
                    object["status"]["allocatable"][resource] = json!(quantity);
                }
            }
            true
        });
        self.effects.report("post a Node's readiness", written);
        late_at.filter(|at| *at > now)
    }

    pub(super) fn post_overrides(&mut self, name: &str) {
        let now = self.effects.now();
        let Some(kubelet) = self.kubelets.nodes.get(name) else {
            return;
        };
        let written = self.effects.modify(NODES, "", name, Endpoint::Status, |object| {
            let mut changed = false;
            for order in kubelet.overrides.values() {
                let condition = Condition {
                    kind: &order.kind,
                    status: &order.status,
                    reason: &order.reason,
                    message: &order.message,
                };
                changed |= set_condition(object, &condition, now);
            }
            stamp_heartbeats(object, now);
            changed
        });
        self.effects.report("post a Node's condition", written);
        // A condition that says all is well again is no longer out of the ordinary.
        if let Some(kubelet) = self.kubelets.nodes.get_mut(name) {
            kubelet
                .overrides
                .retain(|kind, order| !(kind == "Ready" && order.status == "True"));
        }
    }

    fn renew_lease(&self, node: &NodeFacts, now: Timestamp) {
        let renewed = json!(micro_time(now));
        let seconds = self.timing.lease_duration.as_secs();
        let known = self.world.leases.contains_key(&*node.name);
        if known {
            let written = self
                .effects
                .modify(LEASES, "kube-node-lease", &node.name, Endpoint::Main, |lease| {
                    lease["spec"]["renewTime"] = renewed;
                    true
                });
            self.effects.report("renew a lease", written);
            return;
        }
        let lease = json!({
            "metadata": {"name": &*node.name, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": &*node.name, "uid": &*node.uid}]},
            "spec": {"holderIdentity": &*node.name, "leaseDurationSeconds": seconds, "renewTime": renewed},
        });
        let created = self.effects.create(LEASES, "kube-node-lease", &lease);
        self.effects.report("create a lease", created.map(|_| ()));
    }
}

fn node_object(machine: &Machine, now: Timestamp) -> Value {
    let mut spec = json!({});
    if let Some(id) = &machine.provider_id {
        spec["providerID"] = json!(id);
    }
    if !machine.taints.is_empty() {
        spec["taints"] = json!(machine.taints);
    }
    let time = time_text(now);
    let mut object = json!({
        "metadata": {"name": machine.name, "labels": machine.labels, "annotations": machine.annotations},
        "spec": spec,
        "status": {
            "capacity": machine.capacity,
            "allocatable": allocatable(machine),
            "addresses": addresses(machine.internal_ip.as_deref(), &machine.name),
            "nodeInfo": node_info(&machine.kubelet_version, &machine.os_image, &machine.labels),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": [{
                "type": "Ready", "status": "False", "reason": "KubeletNotReady",
                "message": "container runtime network not ready", "lastHeartbeatTime": time, "lastTransitionTime": time,
            }],
        },
    });
    if machine.annotations.is_empty() {
        object["metadata"].as_object_mut().map(|m| m.remove("annotations"));
    }
    object
}

fn allocatable(machine: &Machine) -> &std::collections::BTreeMap<String, String> {
    if machine.allocatable.is_empty() {
        &machine.capacity
    } else {
        &machine.allocatable
    }
}

fn addresses(ip: Option<&str>, name: &str) -> Value {
    json!([{"type": "InternalIP", "address": ip.unwrap_or("10.0.0.1")}, {"type": "Hostname", "address": name}])
}

fn node_info(version: &str, image: &str, labels: &std::collections::BTreeMap<String, String>) -> Value {
    let label = |key: &str, default: &str| labels.get(key).cloned().unwrap_or_else(|| default.to_owned());
    json!({
        "architecture": label("kubernetes.io/arch", "amd64"), "operatingSystem": label("kubernetes.io/os", "linux"),
        "kubeletVersion": version, "kubeProxyVersion": version, "osImage": image,
        "kernelVersion": "6.12.0", "containerRuntimeVersion": "containerd://2.1.0",
        "bootID": "", "machineID": "", "systemUUID": "",
    })
}

/// Adds a machine's labels, taints and providerID to a Node that is already there.
fn adopt(node: &mut Value, machine: &Machine) -> bool {
    let before = node.clone();
    for (field, own) in [("labels", &machine.labels), ("annotations", &machine.annotations)] {
        if !own.is_empty() && !node["metadata"][field].is_object() {
            node["metadata"][field] = json!({});
        }
        for (key, value) in own {
            node["metadata"][field][key] = json!(value);
        }
    }
    if node["spec"]["providerID"].as_str().unwrap_or_default().is_empty()
        && let Some(id) = &machine.provider_id
    {
        node["spec"]["providerID"] = json!(id);
    }
    *node != before
}

/// What KWOK fills in on a Node that somebody else made.
fn fill_in(object: &mut Value, node: &NodeFacts) {
    if !node.has_capacity {
        let capacity = json!({"cpu": "1k", "memory": "1Ti", "pods": "1M"});
        object["status"]["capacity"] = capacity.clone();
        if node.allocatable.iter().next().is_none() {
            object["status"]["allocatable"] = capacity;
        }
    }
    if node.addresses == 0 {
        object["status"]["addresses"] = addresses(None, &node.name);
    }
    if object["status"]["nodeInfo"]["kubeletVersion"]
        .as_str()
        .unwrap_or_default()
        .is_empty()
    {
        object["status"]["nodeInfo"] = node_info("kwok-v0.8.0", "", &node.labels);
    }
    object["status"]["phase"] = json!("Running");
}

fn stamp_heartbeats(object: &mut Value, now: Timestamp) {
    let time = time_text(now);
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = json!(time);
    }
}

fn next_on_grid(now: Timestamp, step: std::time::Duration) -> Timestamp {
    let step = i128::try_from(step.as_nanos()).unwrap_or(i128::MAX).max(1);
    let next = (now.as_nanosecond().div_euclid(step) + 1) * step;
    Timestamp::from_nanosecond(next).unwrap_or(Timestamp::MAX)
}

/// RFC 3339 with exactly six fractional digits.
fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
