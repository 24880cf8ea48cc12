//! What a pod is to a node that goes away: may it be evicted, must it be waited for, will it need a new home?
//!
//! The predicates of lifecycle.md §0.6. They look at the pod and the time only; budgets that several pods share
//! (PodDisruptionBudgets) are another question.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::duration::GoDuration;
use crate::labels::annotations::{DISRUPTION_COST, DO_NOT_DISRUPT, POD_DELETION_COST};
use crate::taint;

/// How long after its deletionTimestamp a terminating pod may still hold up a drain.
pub const STUCK_TERMINATING_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// The protection that the `karpenter.sh/do-not-disrupt` annotation gives a pod at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoNotDisrupt {
    /// No annotation.
    Absent,
    /// `"true"`: until someone removes it.
    Forever,
    /// A duration since the pod's start that has not passed. `None`: the pod has not started, so the end is unknown.
    Until(Option<Timestamp>),
    /// A duration that has passed.
    Elapsed,
    /// Neither `true` nor a positive duration: no protection, and the user should hear about it.
    Invalid(String),
}

impl DoNotDisrupt {
    /// Reads the annotation of `pod` as of `now`.
    pub fn of(pod: &Pod, now: Timestamp) -> Self {
        let Some(value) = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(DO_NOT_DISRUPT))
        else {
            return DoNotDisrupt::Absent;
        };
        if value == "true" {
            return DoNotDisrupt::Forever;
        }
        let duration = match value.parse::<GoDuration>() {
            Ok(duration) if duration > GoDuration::ZERO => duration.as_signed(),
            _ => return DoNotDisrupt::Invalid(value.clone()),
        };
        let Some(start) = pod.status.as_ref().and_then(|status| status.start_time.as_ref()) else {
            return DoNotDisrupt::Until(None);
        };
        match start.0.checked_add(duration) {
            Ok(end) if end <= now => DoNotDisrupt::Elapsed,
            Ok(end) => DoNotDisrupt::Until(Some(end)),
            Err(_) => DoNotDisrupt::Forever,
        }
    }

    /// Whether the pod is protected.
    pub fn is_active(&self) -> bool {
        match self {
            DoNotDisrupt::Forever | DoNotDisrupt::Until(_) => true,
            DoNotDisrupt::Absent | DoNotDisrupt::Elapsed | DoNotDisrupt::Invalid(_) => false,
        }
    }
}

/// Phase Failed or Succeeded: the pod runs nothing any more.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Someone has asked for the pod's deletion.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither terminal nor terminating.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// Bound to a node.
pub fn is_scheduled(pod: &Pod) -> bool {
    node_name(pod).is_some()
}

/// The node that the pod is bound to.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Any owner (controller or not) is an `apps/v1` DaemonSet.
pub fn is_owned_by_daemon_set(pod: &Pod) -> bool {
    is_owned_by(pod, "apps/v1", "DaemonSet")
}

/// Any owner (controller or not) is an `apps/v1` StatefulSet.
pub fn is_owned_by_stateful_set(pod: &Pod) -> bool {
    is_owned_by(pod, "apps/v1", "StatefulSet")
}

/// A static pod's image in the API: owned by its Node, and only the kubelet's configuration can remove it.
pub fn is_mirror(pod: &Pod) -> bool {
    is_owned_by(pod, "v1", "Node")
}

fn is_owned_by(pod: &Pod, api_version: &str, kind: &str) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|owner| owner.api_version == api_version && owner.kind == kind)
}

/// Terminating for more than a minute beyond its own grace period (which deletionTimestamp includes).
pub fn is_stuck_terminating(pod: &Pod, now: Timestamp) -> bool {
    let Some(deletion) = &pod.metadata.deletion_timestamp else {
        return false;
    };
    now.duration_since(deletion.0) > STUCK_TERMINATING_AFTER
}

/// Tolerates `karpenter.sh/disrupted:NoSchedule`: wants to stay on a node that is being drained.
pub fn tolerates_disruption(pod: &Pod) -> bool {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    taint::first_untolerated([&taint::disrupted()], tolerations).is_none()
}

/// May be moved without breaking a promise made to its owner: gone already, or not protected.
pub fn is_disruptable(pod: &Pod, now: Timestamp) -> bool {
    !is_active(pod) || !DoNotDisrupt::of(pod, now).is_active()
}

/// Will need room elsewhere once its node is gone. A terminating StatefulSet pod counts: its successor has the same
/// name and cannot be created before it is gone.
pub fn is_reschedulable(pod: &Pod) -> bool {
    let comes_back = is_active(pod) || (is_owned_by_stateful_set(pod) && is_terminating(pod));
    comes_back && !is_owned_by_daemon_set(pod) && !is_mirror(pod)
}

/// The eviction API may be called for it now.
pub fn is_evictable(pod: &Pod, now: Timestamp) -> bool {
    is_active(pod) && !tolerates_disruption(pod) && !is_mirror(pod) && !DoNotDisrupt::of(pod, now).is_active()
}

/// A drain is expected to make it leave, sooner or later.
pub fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    !tolerates_disruption(pod) && !is_stuck_terminating(pod, now) && !is_mirror(pod)
}

/// A drain is not finished while this pod is there. Protected and terminating pods are waited for, too.
pub fn is_waiting_eviction(pod: &Pod, now: Timestamp) -> bool {
    !is_terminal(pod) && is_drainable(pod, now)
}

/// The scheduler has looked at it and found no node, and it is a kind of pod for which a node can be bought.
pub fn is_provisionable(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let conditions = status.conditions.iter().flatten();
    let unschedulable = conditions
        .into_iter()
        .any(|condition| condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable"));
    let nominated = status
        .nominated_node_name
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    unschedulable && !is_scheduled(pod) && !nominated && !is_owned_by_daemon_set(pod) && !is_mirror(pod)
}

/// Asks for devices through Dynamic Resource Allocation.
pub fn uses_dynamic_resources(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return true;
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers
        .filter_map(|container| container.resources.as_ref())
        .any(|resources| resources.claims.as_ref().is_some_and(|claims| !claims.is_empty()))
}

/// Whether the annotation with which ReplicaSets choose their victims says anything about a pod's worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodDeletionCost {
    /// Users write it: it counts where they gave no `karpenter.sh/disruption-cost`.
    ByUsers,
    /// Karpenter writes it itself, so that it says nothing new.
    ByKarpenter,
}

/// How much it hurts to move a pod: 1 for an ordinary one, within −10 and 10.
pub fn eviction_cost(pod: &Pod, deletion_cost: PodDeletionCost) -> f64 {
    let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let text = match deletion_cost {
        PodDeletionCost::ByUsers => annotation(DISRUPTION_COST).or_else(|| annotation(POD_DELETION_COST)),
        PodDeletionCost::ByKarpenter => annotation(DISRUPTION_COST),
    };
    let cost = text.and_then(|text| text.parse::<i32>().ok()).unwrap_or(0);
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    (1.0 + f64::from(cost) / 2_f64.powi(27) + f64::from(priority) / 2_f64.powi(25)).clamp(-10.0, 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_a_pod_costs_one_give_or_take_its_annotation_and_priority() {
        let check = |annotations: &str, priority: i32, source: PodDeletionCost, expected: f64| {
            let pod = pod(&format!(
                "{{metadata: {{annotations: {annotations}}}, spec: {{containers: [], priority: {priority}}}}}"
            ));
            let cost = eviction_cost(&pod, source);
            assert!((cost - expected).abs() < 1e-9, "{annotations} {priority}: {cost}");
        };
        let (users, ours) = (PodDeletionCost::ByUsers, PodDeletionCost::ByKarpenter);
        check("{}", 0, users, 1.0);
        check("{karpenter.sh/disruption-cost: '134217728'}", 0, users, 2.0);
        check(
            "{controller.kubernetes.io/pod-deletion-cost: '134217728'}",
            0,
            users,
            2.0,
        );
        check(
            "{controller.kubernetes.io/pod-deletion-cost: '134217728'}",
            0,
            ours,
            1.0,
        );
        check(
            "{karpenter.sh/disruption-cost: '0', controller.kubernetes.io/pod-deletion-cost: '134217728'}",
            0,
            users,
            1.0,
        );
        check("{karpenter.sh/disruption-cost: dear}", 0, users, 1.0);
        check("{}", 33_554_432, users, 2.0);
        check("{}", 2_000_000_000, users, 10.0);
        check("{karpenter.sh/disruption-cost: '-2147483648'}", 0, users, -10.0);
    }

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn pod(yaml: &str) -> Pod {
        serde_norway::from_str(yaml).unwrap()
    }

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    /// A running pod, started nine minutes ago, with one annotation value.
    fn protected(value: &str) -> Pod {
        pod(&format!(
            "{{metadata: {{name: p, annotations: {{karpenter.sh/do-not-disrupt: '{value}'}}}}, \
             spec: {{nodeName: n, containers: []}}, status: {{phase: Running, startTime: '2026-01-01T00:01:00Z'}}}}"
        ))
    }

    #[test]
    fn do_not_disrupt_is_true_or_a_time_since_start() {
        let check = |value: &str, active: bool| {
            assert_eq!(
                DoNotDisrupt::of(&protected(value), now()).is_active(),
                active,
                "{value}"
            );
        };
        check("true", true);
        check("10m", true);
        check("9m", false);
        check("1h30m", true);
        check("false", false);
        check("abc", false);
        check("-5m", false);
        check("0s", false);
    }

    #[test]
    fn a_pod_that_has_not_started_keeps_its_timed_protection() {
        let mut pod = protected("1s");
        pod.status.as_mut().unwrap().start_time = None;
        assert_eq!(DoNotDisrupt::of(&pod, now()), DoNotDisrupt::Until(None));
    }

    #[test]
    fn a_bad_do_not_disrupt_value_is_reported_and_gives_no_protection() {
        assert_eq!(
            DoNotDisrupt::of(&protected("abc"), now()),
            DoNotDisrupt::Invalid("abc".to_owned())
        );
        assert!(is_evictable(&protected("abc"), now()));
    }

    #[test]
    fn a_protected_pod_is_waited_for_but_not_evicted() {
        assert!(!is_evictable(&protected("true"), now()));
        assert!(is_waiting_eviction(&protected("true"), now()));
    }

    #[test]
    fn only_tolerating_the_disrupted_taint_keeps_a_pod_on_a_draining_node() {
        let check = |tolerations: &str, stays: bool| {
            let pod = pod(&format!("{{spec: {{containers: [], tolerations: {tolerations}}}}}"));
            assert_eq!(tolerates_disruption(&pod), stays, "{tolerations}");
            assert_eq!(is_waiting_eviction(&pod, now()), !stays, "{tolerations}");
        };
        check("[{key: karpenter.sh/disrupted, operator: Exists}]", true);
        check(
            "[{key: karpenter.sh/disrupted, operator: Equal, effect: NoSchedule}]",
            true,
        );
        check("[{operator: Exists}]", true);
        check(
            "[{key: karpenter.sh/disrupted, operator: Exists, effect: NoExecute}]",
            false,
        );
        check("[{key: karpenter.sh/disrupted, operator: Equal, value: x}]", false);
        check("[{key: node.kubernetes.io/unschedulable, operator: Exists}]", false);
        check("[]", false);
    }

    #[test]
    fn a_pod_that_should_be_gone_for_a_minute_no_longer_holds_a_drain() {
        let check = |deletion: &str, stuck: bool| {
            let pod = pod(&format!(
                "{{metadata: {{deletionTimestamp: '{deletion}'}}, spec: {{containers: []}}}}"
            ));
            assert_eq!(is_stuck_terminating(&pod, now()), stuck, "{deletion}");
            assert_eq!(is_waiting_eviction(&pod, now()), !stuck, "{deletion}");
        };
        check("2026-01-01T00:09:00Z", false);
        check("2026-01-01T00:08:59Z", true);
    }

    #[test]
    fn terminal_and_mirror_pods_never_hold_a_drain() {
        let done = pod("{spec: {containers: []}, status: {phase: Succeeded}}");
        let mirror = pod(
            "{metadata: {ownerReferences: [{apiVersion: v1, kind: Node, name: n, uid: u}]}, \
                          spec: {containers: []}, status: {phase: Running}}",
        );
        assert!(!is_waiting_eviction(&done, now()));
        assert!(!is_waiting_eviction(&mirror, now()));
        assert!(!is_reschedulable(&mirror));
    }

    #[test]
    fn a_terminating_stateful_set_pod_still_needs_a_new_home() {
        let owned_by = |kind: &str| {
            pod(&format!(
                "{{metadata: {{deletionTimestamp: '{NOW}', ownerReferences: \
                 [{{apiVersion: apps/v1, kind: {kind}, name: o, uid: u}}]}}, spec: {{containers: []}}}}"
            ))
        };
        assert!(is_reschedulable(&owned_by("StatefulSet")));
        assert!(!is_reschedulable(&owned_by("ReplicaSet")));
    }

    #[test]
    fn a_node_is_bought_only_for_a_pod_that_the_scheduler_could_not_place() {
        let check = |extra: &str, expected: bool| {
            let pod = pod(&format!(
                "{{metadata: {{name: p}}, spec: {{containers: []}}, status: {{phase: Pending{extra}}}}}"
            ));
            assert_eq!(is_provisionable(&pod), expected, "{extra}");
        };
        let condition = ", conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable}]";
        check(condition, true);
        check("", false);
        check(
            ", conditions: [{type: PodScheduled, status: 'False', reason: SchedulingGated}]",
            false,
        );
        check(&format!("{condition}, nominatedNodeName: n"), false);
    }
}
