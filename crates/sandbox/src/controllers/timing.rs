//! Every delay of the control plane in one place, at its real default (sandbox.md §5).

use std::time::Duration;

/// How long things take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    pub heartbeats: Heartbeats,
    /// How often a kubelet renews its lease, and for how long a lease counts.
    pub lease_renewal: Duration,
    pub lease_duration: Duration,
    /// How long a silent node counts as alive: one that has been ready, and one that never was.
    pub node_grace: Duration,
    pub node_startup_grace: Duration,
    /// Pause between two nodes that get a NoExecute taint for being silent.
    pub eviction_pause: Duration,
    /// How long a node must be missing before its pods are collected.
    pub pod_gc_quarantine: Duration,
    /// How long an evicted pod that lingers counts as disrupted.
    pub disrupted_pod_expiry: Duration,
    pub scheduler_backoff: Duration,
    pub scheduler_max_backoff: Duration,
    /// How often refused pods are tried again although nothing happened.
    pub scheduler_flush: Duration,
    pub namespace_deletion: Duration,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// From provisioning to a bound volume, from scheduling to an attached one, and from the last use to detached.
    pub provision_delay: Duration,
    pub attach_delay: Duration,
    pub detach_delay: Duration,
    /// From binding to running, and from the wish to end to the end.
    pub pod_start: Duration,
    pub pod_exit: Duration,
}

impl Timing {
    /// What a real cluster does by default.
    pub fn real() -> Self {
        let seconds = Duration::from_secs;
        Self {
            heartbeats: Heartbeats::Written,
            lease_renewal: seconds(10),
            lease_duration: seconds(40),
            node_grace: seconds(50),
            node_startup_grace: seconds(60),
            eviction_pause: seconds(10),
            pod_gc_quarantine: seconds(40),
            disrupted_pod_expiry: seconds(120),
            scheduler_backoff: seconds(1),
            scheduler_max_backoff: seconds(10),
            scheduler_flush: seconds(300),
            namespace_deletion: seconds(5),
            event_ttl: seconds(3600),
            provision_delay: seconds(1),
            attach_delay: seconds(1),
            detach_delay: seconds(1),
            pod_start: seconds(1),
            pod_exit: seconds(1),
        }
    }

    /// No waiting for anything that is mere work; leases and grace periods keep their meaning.
    pub fn instant() -> Self {
        Self {
            heartbeats: Heartbeats::Implied,
            eviction_pause: Duration::ZERO,
            scheduler_backoff: Duration::ZERO,
            scheduler_max_backoff: Duration::ZERO,
            namespace_deletion: Duration::ZERO,
            provision_delay: Duration::ZERO,
            attach_delay: Duration::ZERO,
            detach_delay: Duration::ZERO,
            pod_start: Duration::ZERO,
            pod_exit: Duration::ZERO,
            ..Self::real()
        }
    }
}

/// How the control plane learns that a simulated kubelet is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeats {
    /// By its lease, renewed as often as in a real cluster.
    Written,
    /// It just knows. Leases are renewed every five minutes, so that hours pass quickly on a manual clock; a kubelet
    /// that hangs or stops is missed as soon as one that writes heartbeats would be.
    Implied,
}

impl Default for Timing {
    fn default() -> Self {
        Self::real()
    }
}
