//! Which pods stand in the way of a disruption, and which would have to move (disruption.md §1.8, §1.9).

use jiff::{SignedDuration, Timestamp};

use crate::model::{DoNotDisrupt, Effect, Owner, Pod, PodPhase, Taint, tolerates};

/// Runs and stays: neither done nor on its way out.
pub fn is_active(pod: &Pod) -> bool {
    !pod.is_terminal() && !pod.terminating
}

/// Would need another place if its node went away. A StatefulSet's pod is only made anew once the old one is gone, so
/// a terminating one still needs a home.
pub fn is_reschedulable(pod: &Pod) -> bool {
    let wanted = is_active(pod) || (pod.terminating && pod.owner == Owner::StatefulSet);
    wanted && !matches!(pod.owner, Owner::DaemonSet | Owner::Node)
}

/// The eviction API would be asked for this pod when its node drains.
pub fn is_evictable(pod: &Pod, now: Timestamp) -> bool {
    is_active(pod) && pod.owner != Owner::Node && !tolerates_disrupted(pod) && !is_protected(pod, now)
}

/// `karpenter.sh/do-not-disrupt` is in force.
pub fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    if !is_active(pod) {
        return false;
    }
    match pod.do_not_disrupt {
        None | Some(DoNotDisrupt::Unreadable) => false,
        Some(DoNotDisrupt::Always) => true,
        Some(DoNotDisrupt::For(length)) => {
            protection_left(pod, length, now).is_none_or(|left| left > SignedDuration::ZERO)
        }
    }
}

/// How long a protection of `length` still lasts; unknown while the pod has not started.
pub fn protection_left(pod: &Pod, length: SignedDuration, now: Timestamp) -> Option<SignedDuration> {
    Some(length - now.duration_since(pod.started?))
}

/// Pending pods may take places that consolidation must leave alone (disruption.md §10.3).
pub fn is_pending(pod: &Pod) -> bool {
    pod.phase == PodPhase::Pending || pod.buffer.is_some()
}

fn tolerates_disrupted(pod: &Pod) -> bool {
    let disrupted = Taint {
        key: "karpenter.sh/disrupted".to_owned(),
        value: String::new(),
        effect: Effect::NoSchedule,
    };
    tolerates(&pod.spec.tolerations, &[disrupted])
}
