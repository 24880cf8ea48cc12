//! The pod scheduler: kube-scheduler's filters and scores over an in-memory view of the cluster (sandbox.md §5.12).
//!
//! [`Scheduler::decide`] is the decision; binding, events and conditions are written by the caller.

pub(crate) mod affinity;
pub(crate) mod filters;
mod queue;
mod score;
mod spread;
pub(crate) mod view;
pub(crate) mod volumes;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::pod::PodFacts;
use filters::{Attempt, feasible};
use queue::Queue;
use view::ClusterView;

pub(crate) use queue::Backoff;

/// What is to become of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Bind {
        node: Arc<str>,
    },
    /// These claims must be provisioned for the node before the pod is bound to it.
    Provision {
        node: Arc<str>,
        claims: Vec<String>,
    },
    Refuse {
        message: Arc<str>,
    },
}

/// The scheduler's memory.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) view: ClusterView,
    queue: Queue,
    /// Pods whose volumes are being provisioned, and for which node.
    reserved: FxHashMap<Arc<str>, Arc<str>>,
    /// The last refusal per class of pods, good while the cluster does not change.
    refused: FxHashMap<u64, (u64, Arc<str>)>,
    seed: u64,
    attempts: u64,
    next_start: usize,
}

impl Scheduler {
    pub(crate) fn new(seed: u64, backoff: Backoff) -> Self {
        Self {
            view: ClusterView::default(),
            queue: Queue::new(backoff),
            reserved: FxHashMap::default(),
            refused: FxHashMap::default(),
            seed,
            attempts: 0,
            next_start: 0,
        }
    }

    /// Takes note of a pod's present state.
    pub(crate) fn observe(&mut self, pod: &PodFacts, now: Timestamp) {
        if is_ours(pod) {
            match self.reserved.get(&pod.key).cloned() {
                Some(node) => self.view.place(pod, &node),
                None => self.queue.add(pod, now),
            }
            return;
        }
        self.queue.remove(&pod.key);
        self.reserved.remove(&pod.key);
        self.view.set_pod(pod);
    }

    pub(crate) fn forget(&mut self, key: &str) {
        self.queue.remove(key);
        self.reserved.remove(key);
        self.view.remove_pod(key);
    }

    /// Lets pods that were refused try again if the cluster has changed for the better since.
    pub(crate) fn wake(&mut self, now: Timestamp) {
        self.queue.wake(self.view.improvements(), self.view.version(), now);
    }

    /// Makes every refused pod try again, whatever has happened since.
    pub(crate) fn flush(&mut self, now: Timestamp) {
        self.queue.flush(now);
    }

    /// The next pod to try, most important first.
    pub(crate) fn pop(&mut self) -> Option<Arc<str>> {
        self.queue.pop()
    }

    /// When a pod's backoff ends, if one waits for that.
    pub(crate) fn next_backoff(&self) -> Option<Timestamp> {
        self.queue.next_backoff()
    }

    pub(crate) fn has_refused(&self) -> bool {
        self.queue.has_refused()
    }

    /// Decides about a pod and remembers the outcome.
    pub(crate) fn decide(&mut self, pod: &PodFacts, now: Timestamp) -> Decision {
        let decision = self.attempt(pod);
        match &decision {
            Decision::Bind { node } => self.view.place(pod, node),
            Decision::Provision { node, .. } => {
                self.reserved.insert(Arc::clone(&pod.key), Arc::clone(node));
                self.view.place(pod, node);
            }
            Decision::Refuse { message } => {
                self.refused
                    .insert(pod.class.id, (self.view.version(), Arc::clone(message)));
                self.queue
                    .refuse(pod, self.view.improvements(), self.view.version(), now);
            }
        }
        decision
    }

    /// The node for which a pod's volumes are being made.
    pub(crate) fn reservation(&self, key: &str) -> Option<&Arc<str>> {
        self.reserved.get(key)
    }

    /// Gives a reserved pod back to the queue, e.g. because its node went away.
    pub(crate) fn release(&mut self, pod: &PodFacts, now: Timestamp) {
        if self.reserved.remove(&pod.key).is_some() {
            self.view.remove_pod(&pod.key);
            self.queue.add(pod, now);
        }
    }

    /// Forgets an optimistic placement that could not be written; whatever stood in its way comes back as an event.
    pub(crate) fn undo(&mut self, pod: &PodFacts, now: Timestamp) {
        self.reserved.remove(&pod.key);
        self.view.remove_pod(&pod.key);
        self.queue
            .refuse(pod, self.view.improvements(), self.view.version(), now);
    }

    fn attempt(&mut self, pod: &PodFacts) -> Decision {
        let is_personal = !pod.class.spec.volumes.is_empty();
        if let Some((version, message)) = self.refused.get(&pod.class.id)
            && *version == self.view.version()
            && !is_personal
        {
            return Decision::Refuse {
                message: Arc::clone(message),
            };
        }
        let attempt = match Attempt::new(&self.view, pod) {
            Ok(attempt) => attempt,
            Err(problem) => {
                let total = self.view.existing().count();
                let message = format!("0/{total} nodes are available: {problem}. not found");
                return Decision::Refuse {
                    message: message.into(),
                };
            }
        };
        let total = self.view.existing().count();
        self.attempts += 1;
        match feasible(&attempt, self.next_start, enough(total)) {
            Err(message) => Decision::Refuse {
                message: message.into(),
            },
            Ok(nodes) => {
                let chosen = score::best(&attempt, &nodes, self.seed ^ self.attempts).expect("some node is feasible");
                let node = Arc::clone(&chosen.name);
                let claims: Vec<String> = attempt.volumes.delayed.iter().map(|c| c.key.clone()).collect();
                if total > FEW_NODES {
                    self.next_start = (self.next_start + nodes.len()) % total;
                }
                if claims.is_empty() {
                    Decision::Bind { node }
                } else {
                    Decision::Provision { node, claims }
                }
            }
        }
    }
}

/// Whether the default scheduler has to find a node for this pod.
fn is_ours(pod: &PodFacts) -> bool {
    pod.node.is_none()
        && !pod.gated
        && pod.deletion.is_none()
        && !pod.phase.is_terminal()
        && pod.class.spec.scheduler == "default-scheduler"
}

const FEW_NODES: usize = 100;

/// How many fitting nodes are worth comparing: all of a small cluster, a sample of a large one.
fn enough(total: usize) -> usize {
    if total <= FEW_NODES {
        return total.max(1);
    }
    let percent = 50_usize.saturating_sub(total / 125).max(5);
    (total * percent / 100).max(FEW_NODES)
}
