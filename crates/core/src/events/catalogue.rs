//! Every event this controller publishes, as a constructor (api.md §6).

use std::time::Duration;

use jiff::Timestamp;

use super::{Event, Rate, Regarding, Severity};

const MINUTE: Duration = Duration::from_secs(60);
/// Longer texts are cut: the API server refuses events beyond this.
const LONGEST_MESSAGE: usize = 1024;

fn normal(object: Regarding, reason: &str, message: impl Into<String>) -> Event {
    Event::new(object, Severity::Normal, reason, message)
}

fn warning(object: Regarding, reason: &str, message: impl Into<String>) -> Event {
    Event::new(object, Severity::Warning, reason, message)
}

fn on_uid(event: Event) -> Event {
    let uid = event.regarding.uid.clone();
    event.deduped_on([uid])
}

fn on_uid_and(event: Event, value: impl Into<String>) -> Event {
    let uid = event.regarding.uid.clone();
    event.deduped_on([uid, value.into()])
}

fn on_name(event: Event) -> Event {
    let name = event.regarding.name.clone();
    event.deduped_on([name])
}

/// `text`, cut at a character boundary with `...` so that it has at most 1024 bytes.
pub fn truncate(text: &str) -> String {
    if text.len() <= LONGEST_MESSAGE {
        return text.to_owned();
    }
    let mut end = LONGEST_MESSAGE - 3;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

// === Pods ===

/// A pod failed validation or got no place.
pub fn pod_failed_to_schedule(pod: Regarding, why: &str) -> Event {
    on_uid(warning(
        pod,
        "FailedScheduling",
        truncate(&format!("Failed to schedule pod, {why}")),
    ))
    .quiet_for(5 * MINUTE)
}

/// A pod is expected on a NodeClaim and/or a node.
pub fn nominate_pod(pod: Regarding, nodeclaim: Option<&str>, node: Option<&str>) -> Event {
    let targets: Vec<String> = nodeclaim
        .map(|name| format!("nodeclaim/{name}"))
        .into_iter()
        .chain(node.map(|name| format!("node/{name}")))
        .collect();
    on_uid(normal(
        pod,
        "Nominated",
        format!("Pod should schedule on: {}", targets.join(", ")),
    ))
    .limited_by(Rate::PodNomination)
}

/// The machine that was planned for this pod could not be had.
pub fn pod_insufficient_capacity(pod: Regarding, nodeclaim: &str, why: &str) -> Event {
    let text = truncate(&format!(
        "NodeClaim {nodeclaim} planned for this pod failed to launch: {why}"
    ));
    on_uid(warning(pod, "InsufficientCapacityError", text)).limited_by(Rate::PodInsufficientCapacity)
}

/// A pod was evicted.
pub fn evicted_pod(pod: Regarding, reason: &str) -> Event {
    on_uid(normal(pod, "Evicted", format!("Evicted pod: {reason}")))
}

/// A pod was deleted so that its node meets its deadline.
pub fn disrupted_pod(pod: Regarding, granted: Duration, requested: Option<Duration>, deadline: Timestamp) -> Event {
    let requested = requested.map_or("none".to_owned(), |grace| format!("{}s", grace.as_secs()));
    let text = format!(
        "Deleting the pod to accommodate the termination time {deadline} of its node. The pod was granted {}s of grace of the {requested} requested",
        granted.as_secs(),
    );
    on_uid(normal(pod, "Disrupted", text))
}

/// A `karpenter.sh/do-not-disrupt` value that means nothing.
pub fn invalid_do_not_disrupt(pod: Regarding, value: &str) -> Event {
    let text = format!(
        "Ignoring karpenter.sh/do-not-disrupt={value:?}: it must be \"true\" or a positive duration such as \"30m\"",
    );
    on_uid_and(warning(pod, "InvalidDoNotDisruptAnnotation", text.clone()), text)
}

/// A pod is protected for a while.
pub fn do_not_disrupt_until(pod: Regarding, until: Timestamp) -> Event {
    let until = until.to_string();
    on_uid_and(
        normal(
            pod,
            "DoNotDisruptUntil",
            format!("Pod is protected from disruption until {until}"),
        ),
        until,
    )
}

/// A pod is no longer protected.
pub fn do_not_disrupt_elapsed(pod: Regarding) -> Event {
    on_uid(normal(
        pod,
        "DoNotDisruptGracePeriodElapsed",
        "Pod is no longer protected from disruption",
    ))
}

// === NodePools ===

/// The requirements of a pool leave no instance type.
pub fn no_compatible_instance_types(nodepool: Regarding) -> Event {
    let text = "NodePool requirements filtered out all compatible available instance types";
    on_uid(warning(nodepool, "NoCompatibleInstanceTypes", text)).quiet_for(MINUTE)
}

/// The requirements of a pool leave fewer instance types than its `minValues` ask for.
pub fn too_few_instance_types(nodepool: Regarding) -> Event {
    let text =
        "NodePool requirements filtered out all compatible available instance types due to minValues incompatibility";
    on_uid(warning(nodepool, "NoCompatibleInstanceTypes", text)).quiet_for(MINUTE)
}

/// A pool's budget allows no disruption for `reason`.
pub fn nodepool_disruption_blocked(nodepool: Regarding, reason: &str) -> Event {
    let text = format!("No allowed disruptions for disruption reason {reason} due to blocking budget");
    on_uid_and(normal(nodepool, "DisruptionBlocked", text), reason).quiet_for(MINUTE)
}

/// Nothing of a pool is disrupted voluntarily from now on.
pub fn disruption_paused(nodepool: Regarding, why: &str, since: Timestamp) -> Event {
    let text = format!("Voluntary disruption is {why}");
    on_uid_and(normal(nodepool, "DisruptionPaused", text), since.to_string())
}

/// A pool that was paused no longer is.
pub fn disruption_resumed(nodepool: Regarding, since: Timestamp) -> Event {
    let text = "Voluntary disruption goes on, it was paused until now";
    on_uid_and(normal(nodepool, "DisruptionResumed", text), since.to_string())
}

/// So many nodes in a row failed to register that drifted ones are no longer replaced.
pub fn drift_halted(nodepool: Regarding, failures: u32) -> Event {
    let text = format!(
        "{failures} new nodes in a row failed to register, so drifted nodes stay until the NodePool or its NodeClass changes"
    );
    on_uid_and(warning(nodepool, "DriftHalted", text.clone()), text)
}

/// What the provider finds questionable about a pool.
pub fn node_pool_doubt(nodepool: Regarding, reason: &str, message: &str) -> Event {
    on_uid_and(warning(nodepool, reason, truncate(message)), message)
}

// === NodeClaims ===

/// A launch failed for want of capacity.
pub fn insufficient_capacity(nodeclaim: Regarding, nodeclaim_name: &str, why: &str) -> Event {
    let text = truncate(&format!("NodeClaim {nodeclaim_name} event: {why}"));
    on_uid(warning(nodeclaim, "InsufficientCapacityError", text))
}

/// A node joined without the taint that keeps pods away until it is registered.
pub fn unregistered_taint_missing(nodeclaim: Regarding) -> Event {
    let text = "Missing karpenter.sh/unregistered taint, which prevents registration-related race conditions on Karpenter-managed nodes";
    on_uid(warning(nodeclaim, "UnregisteredTaintMissing", text))
}

/// A node is smaller than its claim promised.
pub fn failed_consistency_check(nodeclaim: Regarding, why: &str) -> Event {
    on_uid_and(warning(nodeclaim, "FailedConsistencyCheck", why), why)
}

/// A replacement is being launched.
pub fn disruption_launching(nodeclaim: Regarding, reason: &str) -> Event {
    on_uid_and(
        normal(
            nodeclaim,
            "DisruptionLaunching",
            format!("Launching NodeClaim: {reason}"),
        ),
        reason,
    )
}

/// A replacement must initialize before its candidates go.
pub fn disruption_waiting_readiness(nodeclaim: Regarding) -> Event {
    on_uid(normal(
        nodeclaim,
        "DisruptionWaitingReadiness",
        "Waiting on readiness to continue disruption",
    ))
}

/// A reboot was seen to happen.
pub fn reboot_observed(nodeclaim: Regarding, transition: Timestamp) -> Event {
    on_uid_and(
        normal(nodeclaim, "RebootObserved", "Node rebooted: its boot ID changed"),
        transition.to_string(),
    )
    .quiet_for(30 * MINUTE)
}

/// A reboot failed for good.
pub fn reboot_failed(nodeclaim: Regarding, transition: Timestamp, why: &str) -> Event {
    on_uid_and(warning(nodeclaim, "RebootFailed", why), transition.to_string()).quiet_for(30 * MINUTE)
}

// === Nodes and NodeClaims alike ===

/// A candidate is being deleted.
pub fn disruption_terminating(object: Regarding, reason: &str) -> Event {
    let text = format!("Disrupting {}: {reason}", object.kind);
    on_uid_and(normal(object, "DisruptionTerminating", text), reason)
}

/// A candidate cannot be disrupted.
pub fn disruption_blocked(object: Regarding, why: &str) -> Event {
    on_uid(normal(object, "DisruptionBlocked", why))
}

/// Why a node cannot be consolidated.
pub fn unconsolidatable(object: Regarding, why: &str) -> Event {
    on_uid(normal(object, "Unconsolidatable", why)).quiet_for(15 * MINUTE)
}

/// A node is part of a consolidation command.
pub fn consolidation_candidate(object: Regarding, command: &str) -> Event {
    on_uid_and(normal(object, "ConsolidationCandidate", command), command)
}

/// A consolidation command failed its validation.
pub fn consolidation_rejected(object: Regarding, command: &str, reason: &str) -> Event {
    let uid = object.uid.clone();
    normal(
        object,
        "ConsolidationRejected",
        format!("{command}: rejected for {reason}"),
    )
    .deduped_on([uid, command.to_owned(), reason.to_owned()])
}

/// A balanced pool's move scored well enough.
pub fn consolidation_approved(object: Regarding, message: &str) -> Event {
    on_uid(normal(object, "ConsolidationApproved", message))
}

/// Too much of a pool is unhealthy to repair any of it.
pub fn node_repair_blocked(object: Regarding, why: &str) -> Event {
    on_uid(warning(object, "NodeRepairBlocked", why)).quiet_for(15 * MINUTE)
}

/// Drain is incomplete.
pub fn failed_draining(node: Regarding, why: &str) -> Event {
    on_name(warning(node, "FailedDraining", format!("Failed to drain node, {why}")))
}

/// Volumes are still attached; five of them are named.
pub fn awaiting_volume_detachment(node: Regarding, attachments: &[String]) -> Event {
    let mut text = format!(
        "Awaiting deletion of bound volume attachments {}",
        attachments[..attachments.len().min(5)].join(", ")
    );
    if attachments.len() > 5 {
        text.push_str(&format!(" and {} other(s)", attachments.len() - 5));
    }
    on_name(normal(node, "AwaitingVolumeDetachment", text))
}

/// All pods will be gone by the deadline.
pub fn termination_grace_period_expiring(object: Regarding, deadline: Timestamp) -> Event {
    let text = format!("All pods will be deleted by {deadline}");
    on_name(warning(object, "TerminationGracePeriodExpiring", text))
}

// === Status conditions of any kind ===

/// A status condition changed its status.
pub fn condition_transitioned(
    object: Regarding,
    condition: &str,
    from: &str,
    to: &str,
    reason: &str,
    message: &str,
) -> Event {
    let mut text =
        format!("Status condition transitioned, Type: {condition}, Status: {from} -> {to}, Reason: {reason}");
    if !message.is_empty() {
        text.push_str(", Message: ");
        text.push_str(message);
    }
    normal(object, condition, truncate(&text))
}

/// A finalizer disappeared.
pub fn finalized(object: Regarding, finalizer: &str) -> Event {
    normal(object, "Finalized", format!("Finalized {finalizer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(truncate("short"), "short");
        let cut = truncate(&"é".repeat(600));
        assert!(cut.len() <= 1024 && cut.ends_with("é..."), "{}", cut.len());
    }

    #[test]
    fn a_nomination_names_claim_and_node() {
        let event = nominate_pod(Regarding::pod("ns", "web", "u1"), Some("default-x"), Some("node-1"));
        assert_eq!(
            event.message,
            "Pod should schedule on: nodeclaim/default-x, node/node-1"
        );
        assert_eq!(event.dedupe, ["u1"]);
    }
}
