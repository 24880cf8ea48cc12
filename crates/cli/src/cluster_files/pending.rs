//! Which pods want a place: pending ones, and those whose node is going away.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PodSchedulingGate, PodStatus},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use karpenter_engine::{
    convert::{self, PodProblem},
    model::{DoNotDisrupt, LabelSelector, Node, Owner, Pod, Toleration, VolumeFacts},
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
        let budgets = Budgets::new(&self.disruption_budgets);
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
                if nodes[*at].deleting && is_currently_reschedulable(&pod, &budgets, now) {
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

/// Whether a pod of a node that goes away needs room elsewhere now (scheduling.md §7.2).
fn is_currently_reschedulable(pod: &Pod, budgets: &Budgets, now: Timestamp) -> bool {
    let movable = match pod.owner {
        Owner::DaemonSet | Owner::Node => false,
        Owner::StatefulSet => true,
        Owner::None | Owner::Other => !pod.terminating,
    };
    movable && (pod.terminating || !is_protected(pod, now)) && !budgets.block(pod, now)
}

fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    match pod.do_not_disrupt {
        None => false,
        Some(DoNotDisrupt::Always) => true,
        Some(DoNotDisrupt::For(duration)) => pod.started.is_none_or(|started| now.duration_since(started) < duration),
    }
}

/// PodDisruptionBudgets that never let a pod go, and how many there are for a pod.
struct Budgets(Vec<Budget>);

struct Budget {
    namespace: String,
    selector: LabelSelector,
    fully_blocking: bool,
    lets_unready_go: bool,
}

impl Budgets {
    fn new(budgets: &[PodDisruptionBudget]) -> Self {
        let is_text =
            |value: Option<&IntOrString>, text: &str| matches!(value, Some(IntOrString::String(s)) if s == text);
        let budget = |object: &PodDisruptionBudget| {
            let spec = object.spec.as_ref();
            let max_unavailable = spec.and_then(|spec| spec.max_unavailable.as_ref());
            let min_available = spec.and_then(|spec| spec.min_available.as_ref());
            Budget {
                namespace: object
                    .metadata
                    .namespace
                    .clone()
                    .unwrap_or_else(|| "default".to_owned()),
                selector: convert::label_selector(spec.and_then(|spec| spec.selector.as_ref())),
                fully_blocking: matches!(max_unavailable, Some(IntOrString::Int(0)))
                    || is_text(max_unavailable, "0%")
                    || is_text(min_available, "100%"),
                lets_unready_go: spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref())
                    == Some("AlwaysAllow"),
            }
        };
        Self(budgets.iter().map(budget).collect())
    }

    fn block(&self, pod: &Pod, now: Timestamp) -> bool {
        let tolerates_disruption = pod
            .spec
            .tolerations
            .iter()
            .any(|toleration: &Toleration| toleration.tolerates(&disrupted_taint()));
        let evictable = !pod.terminating && !tolerates_disruption && !is_protected(pod, now);
        if !evictable {
            return false;
        }
        let matching: Vec<&Budget> = self
            .0
            .iter()
            .filter(|budget| budget.namespace == *pod.namespace && budget.selector.matches(&pod.labels))
            .collect();
        match matching.as_slice() {
            [] => false,
            [budget] => budget.fully_blocking && (pod.ready || !budget.lets_unready_go),
            _ => true,
        }
    }
}

fn disrupted_taint() -> karpenter_engine::model::Taint {
    karpenter_engine::model::Taint {
        key: karpenter_api::taint::DISRUPTED_KEY.to_owned(),
        value: String::new(),
        effect: karpenter_engine::model::Effect::NoSchedule,
    }
}
