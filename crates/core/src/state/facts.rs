//! What a decision looks at: a consistent, shared view of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use karpenter_engine::model::{DaemonPod, Labels, Node, Pod};

use super::inner::{Inner, PodEntry};
use crate::watch::Key;

/// A pod that was assigned to a node which takes pods is planned anew after this long without being bound.
const PATIENCE: SignedDuration = SignedDuration::from_secs(20);

/// The cluster as of a moment, without what needs the cloud (instance types) or volumes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Every node and launched NodeClaim by name, with bound pods; pods that wait for a machine that is coming up
    /// count as if they were bound to it.
    pub nodes: Vec<Arc<Node>>,
    /// NodeClaims without a provider ID, with the pods that wait for them.
    pub unlaunched: Vec<(Arc<NodeClaim>, Vec<Arc<Pod>>)>,
    /// Pods that the scheduler refused or will refuse, and that no NodeClaim was created for.
    pub pending: Vec<Pending>,
    /// Pods on nodes that are going away, with those nodes' names; whether they can move now is another question.
    pub leaving: Vec<Arc<Pod>>,
    /// One pod per DaemonSet.
    pub daemons: Arc<[Arc<DaemonPod>]>,
    /// Labels of namespaces.
    pub namespaces: Arc<BTreeMap<String, Labels>>,
}

/// A pod that waits for a node.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Namespace and name.
    pub key: Key,
    /// The pod and what is wrong with it.
    pub entry: PodEntry,
}

impl Inner {
    /// Nodes are read before pods (scheduling.md §3.5); under one lock both are of the same moment anyway.
    ///
    /// Machines that pods wait for are nominated until `expected`.
    pub(super) fn facts(&mut self, now: Timestamp, expected: Timestamp) -> Facts {
        self.note_ready_claims(now);
        self.nominate_awaited(expected);
        self.assignments.expire(now, PATIENCE);
        self.release_displaced();
        let mut nodes: Vec<Arc<Node>> = Vec::with_capacity(self.machines.len());
        let mut leaving = Vec::new();
        for machine in self.machines.values() {
            let view = &machine.view;
            if view.deleting {
                leaving.extend(view.pods().iter().cloned());
            }
            nodes.push(self.with_assigned(view));
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        leaving.retain(|pod| !self.assignments.holds(&pod_key(pod), &pod.uid));
        leaving.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let unseen = self.unseen.iter().map(|(name, (claim, _))| (name, claim));
        let unlaunched = self.unlaunched.iter().chain(unseen);
        let unlaunched = unlaunched
            .map(|(name, claim)| (claim.clone(), self.assigned_pods(name)))
            .collect();
        let in_need: BTreeSet<&Key> = self.waiting.iter().chain(self.kindred.expected()).collect();
        let pending = in_need
            .into_iter()
            .filter_map(|key| Some((key, self.pods.get(key)?)))
            .filter(|(key, entry)| !self.assignments.holds(key, &entry.pod.uid))
            .map(|(key, entry)| Pending {
                key: key.clone(),
                entry: entry.clone(),
            })
            .collect();
        Facts {
            nodes,
            unlaunched,
            pending,
            leaving,
            daemons: self.daemons(),
            namespaces: self.namespaces.clone(),
        }
    }

    /// Starts the patience of pods whose machine takes pods by now.
    fn note_ready_claims(&mut self, now: Timestamp) {
        for machine in self.machines.values() {
            if let Some(claim) = &machine.view.node_claim
                && machine.view.is_initialized()
            {
                self.assignments.claim_ready(claim, now);
            }
        }
    }

    /// Keeps a machine from being taken for empty while the scheduler has not got round to the pods that it was bought for, and for
    /// a while after they have been given up on: the next plan may send them there again.
    fn nominate_awaited(&mut self, until: Timestamp) {
        for machine in self.machines.values_mut() {
            let claim = machine.view.node_claim.as_deref();
            if claim.is_some_and(|claim| self.assignments.is_awaited(claim)) {
                machine.nominated_until = machine.nominated_until.max(Some(until));
            }
        }
    }

    /// Gives up on pods whose place on a ready node others have taken: they need another one now, not when patience ends.
    fn release_displaced(&mut self) {
        let mut displaced = Vec::new();
        for machine in self.machines.values() {
            let view = &machine.view;
            let Some(claim) = view.node_claim.as_deref().filter(|_| view.is_initialized()) else {
                continue;
            };
            let assigned = self.assigned_pods(claim);
            if assigned.is_empty() {
                continue;
            }
            let mut requested = view.requested().clone();
            for pod in assigned {
                let with_pod = requested.clone().merged(&pod.requests);
                match with_pod.fits(&view.allocatable) {
                    true => requested = with_pod,
                    false => displaced.push(pod_key(&pod)),
                }
            }
        }
        displaced.iter().for_each(|key| self.assignments.release(key));
    }

    /// The UIDs of the pods that need a node, whether or not one was bought for them.
    pub(super) fn pods_in_need(&self) -> Vec<Box<str>> {
        let in_need = self.waiting.iter().chain(self.kindred.expected());
        let entries = in_need.filter_map(|key| self.pods.get(key));
        entries.map(|entry| entry.pod.uid.clone()).collect()
    }

    fn with_assigned(&self, view: &Arc<Node>) -> Arc<Node> {
        let Some(claim) = &view.node_claim else {
            return view.clone();
        };
        let assigned = self.assigned_pods(claim);
        if assigned.is_empty() || view.deleting {
            return view.clone();
        }
        let mut node = (**view).clone();
        for pod in assigned {
            node.bind(pod);
        }
        Arc::new(node)
    }

    fn assigned_pods(&self, claim: &str) -> Vec<Arc<Pod>> {
        let assigned = self.assignments.pods_of(claim).into_iter();
        assigned
            .filter_map(|assigned| {
                self.pods
                    .get(&assigned.key)
                    .filter(|entry| entry.pod.uid == assigned.uid)
            })
            .map(|entry| entry.pod.clone())
            .collect()
    }
}

fn pod_key(pod: &Pod) -> Key {
    Key::namespaced(pod.namespace.clone(), &*pod.name)
}
