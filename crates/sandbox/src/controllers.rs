//! The controllers around the API server: scheduler, workloads, node lifecycle, volumes, garbage collection, kubelets.
//!
//! Each controller is a function that decides (`plan`, `steps`, `verdict`, `stay`, `next_step`, …) and a few lines that
//! carry the decision out; [`manager`] feeds them all from one stream of events and one clock.

mod budget;
mod daemon_set;
mod deployment;
mod effects;
mod garbage;
mod job;
mod kubelet;
mod manager;
mod namespace;
mod node;
mod node_lifecycle;
mod observe;
mod pod;
mod pod_gc;
mod replica_set;
mod resources;
mod schedule;
mod scheduler;
mod selector;
mod stateful_set;
mod storage;
mod taint_eviction;
mod timing;
mod workload;
mod world;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

pub use kubelet::{Machine, NodeConditionOrder};
pub use timing::{Heartbeats, Timing};

use crate::server::Server;
use crate::settle::{Busy, Progress};
use kubelet::Order;
use manager::Manager;

/// The running controllers; they stop when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    kubelets: Kubelets,
    _task: AbortOnDropHandle<()>,
}

impl Controllers {
    /// Starts all controllers on the current runtime.
    pub fn start(server: Arc<Server>, timing: Timing, seed: u64) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let progress = Arc::clone(&server.progress);
        let manager = Manager::new(server, timing, seed, receiver);
        Self {
            kubelets: Kubelets {
                orders: sender,
                progress,
            },
            _task: AbortOnDropHandle::new(tokio::spawn(manager.run())),
        }
    }

    /// The simulated machines.
    pub fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }
}

/// Boots, stops and disturbs simulated machines.
#[derive(Debug, Clone)]
pub struct Kubelets {
    orders: mpsc::UnboundedSender<(Order, Busy)>,
    progress: Arc<Progress>,
}

impl Kubelets {
    /// A machine is switched on: after its boot delay it becomes a Node, after its ready delay a ready one.
    pub fn boot(&self, machine: Machine) {
        self.order(Order::Boot(Box::new(machine)));
    }

    /// The machine is gone for good. Its Node, if nobody deletes it, turns unreachable in time.
    pub fn stop(&self, node: impl Into<String>) {
        self.order(Order::Stop(node.into()));
    }

    /// The kubelet process restarts: it registers again if its Node was deleted.
    pub fn restart(&self, node: impl Into<String>) {
        self.order(Order::Restart(node.into()));
    }

    /// The kubelet hangs: no heartbeats, no news of pods, until [`Kubelets::thaw`].
    pub fn freeze(&self, node: impl Into<String>) {
        self.order(Order::Freeze(node.into()));
    }

    pub fn thaw(&self, node: impl Into<String>) {
        self.order(Order::Thaw(node.into()));
    }

    /// The node reports a condition, e.g. a failed disk; `Ready=False` stays until set to `True`.
    pub fn set_condition(&self, node: impl Into<String>, condition: NodeConditionOrder) {
        self.order(Order::Condition(node.into(), condition));
    }

    fn order(&self, order: Order) {
        // After shutdown there are no machines left to give orders to.
        let _ = self.orders.send((order, self.progress.busy()));
    }
}
