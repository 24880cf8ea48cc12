//! Notices nodes that fall silent, and mirrors node conditions as taints (sandbox.md §5.8).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};

use super::effects::{Condition, EventDraft, EventKind, NODES, PODS, reference, set_condition};
use super::manager::{Manager, Task};
use super::node::{NodeFacts, Tristate};
use super::timing::Heartbeats;
use crate::clock::later;
use crate::server::{Endpoint, time_text};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions and the taint each stands for when it is `True`.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// When each node was last heard of.
#[derive(Debug, Default)]
pub(crate) struct NodeHealth {
    heard: FxHashMap<Arc<str>, Timestamp>,
    silent: FxHashSet<Arc<str>>,
    /// When the next silent node may get its NoExecute taint.
    next_eviction: Option<Timestamp>,
}

impl NodeHealth {
    /// A status update in which the kubelet's heartbeat moved is a sign of life.
    pub(crate) fn hear(&mut self, node: &NodeFacts, old: Option<&NodeFacts>, now: Timestamp) {
        let beat = |n: &NodeFacts| n.condition("Ready").map(|c| (c.heartbeat, c.status));
        let is_alive = match old {
            None => true,
            Some(old) => {
                beat(node) != beat(old) && node.condition("Ready").is_none_or(|c| c.status != Tristate::Unknown)
            }
        };
        if is_alive {
            self.heard.insert(Arc::clone(&node.name), now);
        }
    }

    /// Takes note of a sign of life that left no trace in the API.
    pub(crate) fn note(&mut self, node: &str, now: Timestamp) {
        if let Some(heard) = self.heard.get_mut(node) {
            *heard = now;
        }
    }

    pub(crate) fn forget(&mut self, node: &str) {
        self.heard.remove(node);
        self.silent.remove(node);
    }

    /// Whether the node was found silent, so that its next lease renewal matters at once.
    pub(crate) fn is_silent(&self, node: &str) -> bool {
        self.silent.contains(node)
    }
}

/// The NoSchedule taint keys that a node's conditions call for.
pub(crate) fn condition_taints(node: &NodeFacts) -> Vec<&'static str> {
    let mut keys = Vec::new();
    match node.condition("Ready").map(|c| c.status) {
        Some(Tristate::False) => keys.push(NOT_READY),
        Some(Tristate::Unknown) => keys.push(UNREACHABLE),
        Some(Tristate::True) | None => {}
    }
    let pressed = |kind: &str| node.condition(kind).is_some_and(|c| c.status == Tristate::True);
    keys.extend(PRESSURES.iter().filter(|(kind, _)| pressed(kind)).map(|(_, key)| *key));
    if node.unschedulable {
        keys.push(UNSCHEDULABLE);
    }
    keys
}

/// Whether eviction from unhealthy nodes is on: not when every node is unhealthy, since then it is us who are cut off.
fn evicts<'n>(mut nodes: impl Iterator<Item = &'n Arc<NodeFacts>>) -> bool {
    nodes.any(|n| n.condition("Ready").is_none_or(|c| c.status == Tristate::True))
}

/// The taints a node should have, given what it has.
pub(crate) fn taints(node: &NodeFacts, no_execute: Option<&str>, now: Timestamp) -> Vec<Taint> {
    let scheduled: Vec<&str> = condition_taints(node);
    let mirrored: Vec<&str> = PRESSURES
        .iter()
        .map(|(_, key)| *key)
        .chain([NOT_READY, UNREACHABLE, UNSCHEDULABLE])
        .collect();
    let keeps = |t: &Taint| match t.effect.as_str() {
        "NoSchedule" => !mirrored.contains(&t.key.as_str()) || scheduled.contains(&t.key.as_str()),
        "NoExecute" => !matches!(t.key.as_str(), NOT_READY | UNREACHABLE) || no_execute == Some(t.key.as_str()),
        _ => true,
    };
    let mut taints: Vec<Taint> = node.taints.iter().filter(|t| keeps(t)).cloned().collect();
    let mut add = |key: &str, effect: &str| {
        if !taints.iter().any(|t| t.key == key && t.effect == effect) {
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    };
    for key in scheduled {
        add(key, "NoSchedule");
    }
    if let Some(key) = no_execute {
        add(key, "NoExecute");
    }
    taints
}

impl Manager {
    pub(crate) fn judge_node(&mut self, name: &Arc<str>) {
        let Some(node) = self.world.nodes.get(name).cloned() else {
            return;
        };
        let now = self.effects.now();
        let ready = node.condition("Ready");
        let grace = if ready.is_some() {
            self.timing.node_grace
        } else {
            self.timing.node_startup_grace
        };
        let heard = self.health.heard.get(name).copied().unwrap_or(now);
        let lease = self.world.leases.get(&**name).copied();
        let deadline = later(lease.map_or(heard, |l| l.max(heard)), grace);
        let is_implied = self.timing.heartbeats == Heartbeats::Implied && self.kubelets.runs(name);
        if is_implied {
            self.health.silent.remove(name);
        } else if deadline <= now {
            self.health.silent.insert(Arc::clone(name));
            if ready.is_none_or(|c| c.status != Tristate::Unknown) {
                self.declare_unknown(&node, now);
                return;
            }
        } else {
            self.health.silent.remove(name);
            self.arm(Task::NodeLifecycle(Arc::clone(name)), deadline);
        }
        self.label_legacy(&node);
        self.write_taints(&node, now);
    }

    /// Tells what became of a node, as `kubectl describe node` shows it.
    pub(crate) fn node_event(&self, node: &NodeFacts, reason: &str, component: &str, message: String) {
        self.effects.event(&EventDraft {
            regarding: reference("v1", "Node", "", &node.name, &node.uid),
            kind: EventKind::Normal,
            reason,
            action: "",
            component,
            message,
        });
    }

    fn declare_unknown(&self, node: &NodeFacts, now: Timestamp) {
        let written = self.effects.modify(NODES, "", &node.name, Endpoint::Status, |object| {
            for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
                let known = node.condition(kind).is_some();
                let (reason, message) = if known {
                    ("NodeStatusUnknown", "Kubelet stopped posting node status.")
                } else {
                    ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
                };
                set_condition(
                    object,
                    &Condition {
                        kind,
                        status: "Unknown",
                        reason,
                        message,
                    },
                    now,
                );
                if !known {
                    stamp_heartbeat(object, kind, node.created);
                }
            }
            true
        });
        self.effects.report("mark a node as unknown", written);
        if node.is_ready() {
            let message = format!("Node {} status is now: NodeNotReady", node.name);
            self.node_event(node, "NodeNotReady", "node-controller", message);
        }
        for pod in self.world.pods_on(&node.name).filter(|p| p.ready_since.is_some()) {
            let written = self
                .effects
                .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                    let condition = Condition {
                        kind: "Ready",
                        status: "False",
                        reason: "NodeNotReady",
                        message: "",
                    };
                    set_condition(object, &condition, now)
                });
            self.effects.report("mark a pod as not ready", written);
        }
    }

    fn write_taints(&mut self, node: &Arc<NodeFacts>, now: Timestamp) {
        let wanted = match node.condition("Ready").map(|c| c.status) {
            Some(Tristate::False) => Some(NOT_READY),
            Some(Tristate::Unknown) => Some(UNREACHABLE),
            Some(Tristate::True) | None => None,
        };
        let no_execute = wanted.filter(|_| evicts(self.world.nodes.values()));
        let has = |key: &str| node.taints.iter().any(|t| t.key == key && t.effect == "NoExecute");
        let unhealthy = |t: &Taint| t.effect == "NoExecute" && matches!(t.key.as_str(), NOT_READY | UNREACHABLE);
        // A node that is tainted already may change its taint; a new one waits its turn.
        let no_execute = match no_execute {
            Some(key) if has(key) || node.taints.iter().any(unhealthy) => Some(key),
            Some(key) => match self.health.next_eviction.filter(|at| *at > now) {
                Some(at) => {
                    self.arm(Task::NodeLifecycle(Arc::clone(&node.name)), at);
                    None
                }
                None => {
                    self.health.next_eviction = Some(later(now, self.timing.eviction_pause));
                    Some(key)
                }
            },
            None => None,
        };
        let taints = taints(node, no_execute, now);
        if taints == node.taints {
            return;
        }
        let recovered = wanted.is_none() && node.taints.iter().any(unhealthy);
        let gone: Vec<&Taint> = node.taints.iter().filter(|own| !taints.contains(own)).collect();
        let come: Vec<&Taint> = taints.iter().filter(|own| !node.taints.contains(own)).collect();
        let written = self.effects.modify(NODES, "", &node.name, Endpoint::Main, |object| {
            // What was seen may be old by now, and other taints are others' business.
            let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
            let before: Vec<Taint> = serde_json::from_value(object["spec"]["taints"].clone()).unwrap_or_default();
            let mut after = before.clone();
            after.retain(|own| !gone.iter().any(|gone| same(gone, own)));
            for own in &come {
                if !after.iter().any(|present| same(present, own)) {
                    after.push((*own).clone());
                }
            }
            if after == before {
                return false;
            }
            if after.is_empty() {
                if let Some(spec) = object["spec"].as_object_mut() {
                    spec.remove("taints");
                }
            } else {
                object["spec"]["taints"] = json!(after);
            }
            true
        });
        self.effects.report("write a node's taints", written);
        if recovered || wanted.is_some() {
            // Others may be waiting for the cluster to be partly healthy, or to be no longer.
            self.recheck_unhealthy_nodes(&node.name);
        }
    }

    fn recheck_unhealthy_nodes(&mut self, except: &str) {
        let others: Vec<Arc<str>> = self
            .world
            .nodes
            .values()
            .filter(|n| &*n.name != except && n.condition("Ready").is_some_and(|c| c.status != Tristate::True))
            .map(|n| Arc::clone(&n.name))
            .collect();
        for name in others {
            self.enqueue(Task::NodeLifecycle(name));
        }
    }

    /// The beta names of the os and arch labels follow the stable ones, and the ttl annotation is there.
    fn label_legacy(&self, node: &NodeFacts) {
        const PAIRS: [(&str, &str); 2] = [
            ("kubernetes.io/os", "beta.kubernetes.io/os"),
            ("kubernetes.io/arch", "beta.kubernetes.io/arch"),
        ];
        const TTL: &str = "node.alpha.kubernetes.io/ttl";
        let missing: Vec<(&str, &String)> = PAIRS
            .iter()
            .filter_map(|(stable, beta)| Some((*beta, node.labels.get(*stable)?)))
            .filter(|(beta, value)| node.labels.get(*beta) != Some(value))
            .collect();
        if missing.is_empty() && node.annotations.contains_key(TTL) {
            return;
        }
        let written = self.effects.modify(NODES, "", &node.name, Endpoint::Main, |object| {
            for (beta, value) in &missing {
                object["metadata"]["labels"][*beta] = json!(value);
            }
            if !object["metadata"]["annotations"].is_object() {
                object["metadata"]["annotations"] = json!({});
            }
            object["metadata"]["annotations"][TTL] = json!("0");
            true
        });
        self.effects.report("label a node", written);
    }
}

fn stamp_heartbeat(object: &mut Value, kind: &str, at: Timestamp) {
    let conditions = object["status"]["conditions"].as_array_mut().into_iter().flatten();
    for condition in conditions.filter(|c| c["type"] == kind) {
        condition["lastHeartbeatTime"] = json!(time_text(at));
    }
}
