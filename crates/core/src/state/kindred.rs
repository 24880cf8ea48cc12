//! Pods that the scheduler has not come to yet, while it has refused others just like them.
//!
//! kube-scheduler looks at one pod after the other and writes each refusal down, a few hundred a second. Of a Deployment's
//! five thousand pods the last is refused half a minute after the first, and its refusal says nothing new: pods of one
//! controller with the same constraints, requests and labels are all the same to the scheduler. So they are planned for
//! together with the first of them that was refused. The engine tries existing nodes first, as the scheduler will.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as kube;
use karpenter_api::pods;
use karpenter_engine::model::Pod;
use rustc_hash::FxHashMap;

use crate::watch::Key;

/// What the scheduler has said about a pod, as far as it matters for buying nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No node has room for it (lifecycle.md §0.6, "provisionable").
    Refused,
    /// Nothing yet.
    Unjudged,
    /// It is to take the place of pods of lower priority.
    Preempting,
    /// It has a node, is held back by a gate, or is of a kind that no node is bought for.
    Settled,
}

impl Standing {
    pub(super) fn of(pod: &kube::Pod) -> Self {
        if pods::is_provisionable(pod) {
            return Self::Refused;
        }
        let needs_no_node = pods::is_scheduled(pod) || pods::is_owned_by_daemon_set(pod) || pods::is_mirror(pod);
        if needs_no_node || pods::is_terminating(pod) {
            return Self::Settled;
        }
        let status = pod.status.as_ref();
        let nominated = status.and_then(|status| status.nominated_node_name.as_deref());
        if nominated.is_some_and(|name| !name.is_empty()) {
            return Self::Preempting;
        }
        let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
        if conditions.any(|condition| condition.type_ == "PodScheduled") {
            Self::Settled
        } else {
            Self::Unjudged
        }
    }
}

/// Pods without a node by what they have in common.
#[derive(Debug, Default)]
pub(super) struct Kindred {
    groups: FxHashMap<Kind, Group>,
}

/// What pods that the scheduler cannot tell apart share: where the parts lie that a workload's pods have in common.
///
/// A part stays where it is for as long as a pod has it, and a group is there only as long as it has pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    namespace: usize,
    controller: usize,
    spec: usize,
    requests: usize,
    labels: usize,
    priority: i32,
}

#[derive(Debug, Default)]
struct Group {
    refused: usize,
    preempting: usize,
    unjudged: BTreeSet<Key>,
}

impl Kindred {
    pub(super) fn enter(&mut self, key: &Key, pod: &Pod, standing: Standing) {
        let Some(kind) = Kind::of(pod) else { return };
        match standing {
            Standing::Refused => self.groups.entry(kind).or_default().refused += 1,
            Standing::Preempting => self.groups.entry(kind).or_default().preempting += 1,
            Standing::Unjudged => {
                self.groups.entry(kind).or_default().unjudged.insert(key.clone());
            }
            Standing::Settled => {}
        }
    }

    pub(super) fn leave(&mut self, key: &Key, pod: &Pod, standing: Standing) {
        let Some(kind) = Kind::of(pod) else { return };
        let Some(group) = self.groups.get_mut(&kind) else {
            return;
        };
        match standing {
            Standing::Refused => group.refused -= 1,
            Standing::Preempting => group.preempting -= 1,
            Standing::Unjudged => {
                group.unjudged.remove(key);
            }
            Standing::Settled => {}
        }
        if group.is_empty() {
            self.groups.remove(&kind);
        }
    }

    /// Whether the scheduler will refuse this pod, as it has refused another just like it.
    pub(super) fn expects(&self, pod: &Pod, standing: Standing) -> bool {
        standing == Standing::Unjudged
            && Kind::of(pod)
                .and_then(|kind| self.groups.get(&kind))
                .is_some_and(Group::is_refused)
    }

    /// The pods that the scheduler will refuse.
    pub(super) fn expected(&self) -> impl Iterator<Item = &Key> {
        let refused = self.groups.values().filter(|group| group.is_refused());
        refused.flat_map(|group| &group.unjudged)
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.refused == 0 && self.preempting == 0 && self.unjudged.is_empty()
    }

    /// Where some make room for themselves by preemption, the scheduler may find a way for the others too.
    fn is_refused(&self) -> bool {
        self.refused > 0 && self.preempting == 0
    }
}

impl Kind {
    /// Nothing for a pod without a controller, or with volumes: those are its own.
    fn of(pod: &Pod) -> Option<Self> {
        let controller = pod.controller.as_ref()?;
        if !pod.volume_claims.is_empty() {
            return None;
        }
        Some(Self {
            namespace: place(&pod.namespace),
            controller: place(controller),
            spec: place(&pod.spec),
            requests: place(&pod.requests),
            labels: place(&pod.labels),
            priority: pod.priority,
        })
    }
}

fn place<T: ?Sized>(shared: &Arc<T>) -> usize {
    Arc::as_ptr(shared).cast::<()>().addr()
}
