//! Simulated kubelets: machines that boot become nodes, nodes run the pods bound to them (sandbox.md §5.13).
//!
//! There are two kinds. A [`Machine`] that somebody boots registers its own Node, becomes ready after a while and
//! starts and stops pods at the pace of [`Timing`](super::Timing). A Node made by somebody else with the annotation
//! `kwok.x-k8s.io/node: fake` is adopted as KWOK would: ready at once, pods run, finish and vanish at once.

mod machine;
mod node;
mod pods;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::manager::{Manager, Task};
use super::node::NodeFacts;
use super::timing::Heartbeats;
use crate::clock::later;

pub use machine::Machine;

/// The annotation by which a Node asks for a simulated kubelet.
const KWOK: &str = "kwok.x-k8s.io/node";

/// What is asked of the kubelets from outside.
#[derive(Debug)]
pub(crate) enum Order {
    Boot(Box<Machine>),
    /// The machine is gone: no more heartbeats, its pods are dead.
    Stop(String),
    /// The kubelet process starts anew and registers again.
    Restart(String),
    /// The kubelet hangs: pods keep running, but nobody hears of them.
    Freeze(String),
    Thaw(String),
    Condition(String, NodeConditionOrder),
}

/// A node condition set from outside, such as a failing disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConditionOrder {
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// All simulated kubelets.
#[derive(Debug, Default)]
pub(crate) struct Kubelets {
    nodes: BTreeMap<Arc<str>, Kubelet>,
    runs: FxHashMap<Arc<str>, PodRun>,
    addresses: u32,
}

/// One kubelet.
#[derive(Debug)]
struct Kubelet {
    flavor: Flavor,
    state: State,
    machine: Option<Box<Machine>>,
    ready_at: Timestamp,
    next_renewal: Timestamp,
    overrides: BTreeMap<String, NodeConditionOrder>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavor {
    /// Paced by `Timing`, honours grace periods.
    Full,
    /// As KWOK's fast stages: everything at once.
    Fake,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Booting {
        register_at: Timestamp,
    },
    Running,
    Frozen,
    /// Its Node was deleted while it ran: it serves nobody until it is restarted.
    Unregistered,
}

/// What a kubelet remembers of a pod.
#[derive(Debug, Clone, Default)]
struct PodRun {
    started: Option<Timestamp>,
}

impl Kubelets {
    /// Whether a kubelet looks after the node's pods.
    pub(crate) fn runs(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|k| k.state == State::Running)
    }

    /// Adopts a Node that asks for it.
    pub(crate) fn consider(&mut self, node: &NodeFacts) {
        let wants = node.annotations.get(KWOK).is_some_and(|v| v == "fake");
        if wants && !self.nodes.contains_key(&node.name) {
            let kubelet = Kubelet {
                flavor: Flavor::Fake,
                state: State::Running,
                machine: None,
                ready_at: Timestamp::UNIX_EPOCH,
                next_renewal: Timestamp::UNIX_EPOCH,
                overrides: BTreeMap::new(),
            };
            self.nodes.insert(Arc::clone(&node.name), kubelet);
        }
    }

    pub(crate) fn node_deleted(&mut self, name: &str) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        match kubelet.flavor {
            Flavor::Fake => {
                self.nodes.remove(name);
            }
            Flavor::Full => {
                if kubelet.state == State::Running {
                    kubelet.state = State::Unregistered;
                }
            }
        }
    }

    pub(crate) fn forget_pod(&mut self, uid: &str) {
        self.runs.remove(uid);
    }

    fn next_address(&mut self) -> String {
        self.addresses += 1;
        let n = self.addresses;
        format!("10.{}.{}.{}", 128 + (n >> 16) % 64, (n >> 8) & 255, n & 255)
    }
}

impl Manager {
    pub(crate) fn obey(&mut self, order: Order) {
        let now = self.effects.now();
        match order {
            Order::Boot(machine) => self.boot(machine, now),
            Order::Stop(name) => {
                self.kubelets.nodes.remove(name.as_str());
                self.heard_last(&name, now);
            }
            Order::Restart(name) => {
                let machine = self.kubelets.nodes.get(name.as_str()).and_then(|k| k.machine.clone());
                if let Some(mut machine) = machine {
                    machine.boot_delay = std::time::Duration::ZERO;
                    self.boot(machine, now);
                }
            }
            Order::Freeze(name) => {
                self.set_state(&name, State::Frozen);
                self.heard_last(&name, now);
            }
            Order::Thaw(name) => {
                self.set_state(&name, State::Running);
                if let Some(kubelet) = self.kubelets.nodes.get_mut(name.as_str()) {
                    kubelet.next_renewal = now;
                }
                self.enqueue(Task::NodeLifecycle(Arc::from(name.as_str())));
                let pods: Vec<Arc<str>> = self.world.pods_on(&name).map(|p| Arc::clone(&p.key)).collect();
                for key in pods {
                    self.enqueue(Task::KubeletPod(key));
                }
                self.enqueue(Task::KubeletNode(Arc::from(name.as_str())));
            }
            Order::Condition(name, condition) => {
                let Some(kubelet) = self.kubelets.nodes.get_mut(name.as_str()) else {
                    return;
                };
                kubelet.overrides.insert(condition.kind.clone(), condition);
                self.post_overrides(&name);
            }
        }
    }

    /// From now on the node is silent, and missed when its grace is over.
    fn heard_last(&mut self, name: &str, now: Timestamp) {
        if self.timing.heartbeats == Heartbeats::Implied {
            self.health.note(name, now);
        }
        self.enqueue(Task::NodeLifecycle(Arc::from(name)));
    }

    fn set_state(&mut self, name: &str, state: State) {
        if let Some(kubelet) = self.kubelets.nodes.get_mut(name)
            && !matches!(kubelet.state, State::Booting { .. })
        {
            kubelet.state = state;
        }
    }

    fn boot(&mut self, machine: Box<Machine>, now: Timestamp) {
        let name: Arc<str> = Arc::from(machine.name.as_str());
        let register_at = later(now, machine.boot_delay);
        let kubelet = Kubelet {
            flavor: Flavor::Full,
            state: State::Booting { register_at },
            ready_at: later(register_at, machine.ready_delay),
            next_renewal: register_at,
            machine: Some(machine),
            overrides: BTreeMap::new(),
        };
        self.kubelets.nodes.insert(Arc::clone(&name), kubelet);
        self.enqueue(Task::KubeletNode(name));
    }
}
