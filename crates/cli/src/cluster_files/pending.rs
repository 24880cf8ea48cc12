//! Which pods want a place: pending ones, and those whose node is going away.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSchedulingGate, PodStatus};
use karpenter_engine::{
    convert::{self, PodProblem},
    disruption::PodDisruptionBudgets,
    model::{Node, Owner, Pod, VolumeFacts},
};

use super::{ClusterFiles, TakenPod};

/// Why a pending pod is not one to find a node for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// A scheduling gate keeps it back.
    Gated,
    /// It waits for others to be preempted on a node.
    Nominated,
}

impl Hold {
    pub(super) fn of(gates: Option<&[PodSchedulingGate]>, status: Option<&PodStatus>) -> Option<Self> {
        let nominated = status.and_then(|status| status.nominated_node_name.as_deref());
        if gates.is_some_and(|gates| !gates.is_empty()) {
            Some(Self::Gated)
        } else if nominated.is_some_and(|node| !node.is_empty()) {
            Some(Self::Nominated)
        } else {
            None
        }
    }
}

/// Pods to place, and pods that can't be.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) invalid: Vec<(Arc<Pod>, Vec<PodProblem>)>,
}

impl ClusterFiles {
    /// Binds running pods to their nodes and collects the others.
    pub(super) fn pending(
        &mut self,
        nodes: &mut [Node],
        workload_pods: Vec<TakenPod>,
        volumes: &VolumeFacts,
        now: Timestamp,
    ) -> Pending {
        let by_name: BTreeMap<Arc<str>, usize> = nodes
            .iter()
            .enumerate()
            .map(|(at, node)| (node.name.clone(), at))
            .collect();
        let budgets = PodDisruptionBudgets::new(self.disruption_budgets.iter().map(convert::pod_disruption_budget));
        let mut pending = Pending::default();
        let mut moving = Vec::new();
        let (mut gated, mut nominated, mut homeless) = (0, 0, 0);
        for taken in std::mem::take(&mut self.pods).into_iter().chain(workload_pods) {
            let pod = Arc::new(taken.pod);
            if let Some(node_name) = &pod.node_name {
                let Some(at) = by_name.get(node_name) else {
                    homeless += 1;
                    continue;
                };
                if nodes[*at].deleting && budgets.let_move(&pod, now) {
                    moving.push(pod.clone());
                }
                nodes[*at].bind(pod);
                continue;
            }
            match taken.hold {
                Some(Hold::Gated) => gated += 1,
                Some(Hold::Nominated) => nominated += 1,
                // A DaemonSet's pod is counted as overhead, a static pod belongs to its node.
                None if matches!(pod.owner, Owner::DaemonSet | Owner::Node) => {}
                None => {
                    let mut problems = taken.problems;
                    problems.extend(convert::volume_problems(&pod, volumes));
                    match problems.is_empty() {
                        true => pending.pods.push(pod),
                        false => pending.invalid.push((pod, problems)),
                    }
                }
            }
        }
        pending.pods.extend(moving);
        for (count, what) in [
            (gated, "pending pods are left out because of their scheduling gates"),
            (
                nominated,
                "pending pods are left out because they wait for preemption (status.nominatedNodeName)",
            ),
            (
                homeless,
                "running pods are left out because their node is not in the input",
            ),
        ] {
            if count > 0 {
                self.notes.push(format!("{count} {what}"));
            }
        }
        pending
    }
}
