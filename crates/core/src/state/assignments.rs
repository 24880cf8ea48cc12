//! Which NodeClaim a pod waits for, until it is bound or the claim is gone.
//!
//! Without this memory a burst buys the same capacity twice: the pods of the first pass are still pending when the
//! second one runs, and nothing in the API says that a machine is already on its way for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_engine::model::Pod;
use rustc_hash::FxHashMap;

use crate::watch::Key;

/// A pod that waits for a NodeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedPod {
    /// Namespace and name.
    pub key: Key,
    /// The pod's UID when it was assigned; a pod recreated under the name is another one.
    pub uid: Box<str>,
}

#[derive(Debug, Default)]
pub(super) struct Assignments {
    by_pod: FxHashMap<Key, (Box<str>, Arc<str>)>,
    by_claim: FxHashMap<Arc<str>, Claim>,
}

#[derive(Debug, Default)]
struct Claim {
    pods: BTreeMap<Key, Box<str>>,
    /// From when on the pods could have been bound.
    ready_since: Option<Timestamp>,
}

impl Assignments {
    pub(super) fn assign(&mut self, claim: &str, pods: &[Arc<Pod>]) {
        let claim: Arc<str> = Arc::from(claim);
        for pod in pods {
            let key = Key::namespaced(pod.namespace.clone(), &*pod.name);
            self.release(&key);
            self.by_pod.insert(key.clone(), (pod.uid.clone(), claim.clone()));
            self.by_claim
                .entry(claim.clone())
                .or_default()
                .pods
                .insert(key, pod.uid.clone());
        }
    }

    pub(super) fn release(&mut self, pod: &Key) {
        let Some((_, claim)) = self.by_pod.remove(pod) else {
            return;
        };
        if let Some(entry) = self.by_claim.get_mut(&claim) {
            entry.pods.remove(pod);
            if entry.pods.is_empty() {
                self.by_claim.remove(&claim);
            }
        }
    }

    pub(super) fn claim_gone(&mut self, claim: &str) {
        let Some(entry) = self.by_claim.remove(claim) else {
            return;
        };
        for pod in entry.pods.keys() {
            self.by_pod.remove(pod);
        }
    }

    /// The claim's node takes pods: whoever waits longer than `patience` from here on is planned anew, because
    /// something else must have taken its place.
    pub(super) fn claim_ready(&mut self, claim: &str, now: Timestamp) {
        if let Some(entry) = self.by_claim.get_mut(claim) {
            entry.ready_since.get_or_insert(now);
        }
    }

    /// Gives up on pods that could have been bound for longer than `patience`.
    pub(super) fn expire(&mut self, now: Timestamp, patience: jiff::SignedDuration) {
        let expired = |entry: &Claim| {
            entry
                .ready_since
                .is_some_and(|since| now.duration_since(since) >= patience)
        };
        let claims: Vec<Arc<str>> = self
            .by_claim
            .iter()
            .filter(|(_, entry)| expired(entry))
            .map(|(claim, _)| claim.clone())
            .collect();
        for claim in claims {
            self.claim_gone(&claim);
        }
    }

    pub(super) fn claim_of(&self, pod: &Key) -> Option<Arc<str>> {
        self.by_pod.get(pod).map(|(_, claim)| claim.clone())
    }

    /// Whether exactly this pod (not a namesake) waits for a claim.
    pub(super) fn holds(&self, pod: &Key, uid: &str) -> bool {
        self.by_pod.get(pod).is_some_and(|(assigned, _)| **assigned == *uid)
    }

    /// Whether any pod waits for the claim.
    pub(super) fn is_awaited(&self, claim: &str) -> bool {
        self.by_claim.contains_key(claim)
    }

    pub(super) fn pods_of(&self, claim: &str) -> Vec<AssignedPod> {
        let pods = self.by_claim.get(claim).map(|entry| &entry.pods);
        pods.into_iter()
            .flatten()
            .map(|(key, uid)| AssignedPod {
                key: key.clone(),
                uid: uid.clone(),
            })
            .collect()
    }
}
