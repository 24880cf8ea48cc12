//! Metrics that more than one controller writes; everything else is registered by its one owner.

use super::{Counter, Registry};

/// NodeClaim and pod counters of provisioning, disruption, lifecycle and garbage collection (api.md §5.2).
#[derive(Debug)]
pub struct SharedMetrics {
    nodeclaims_created: Counter<3>,
    nodeclaims_terminated: Counter<3>,
    nodeclaims_disrupted: Counter<5>,
    pods_disruption_initiated: Counter<5>,
    nodeclaims_unhealthy_disrupted: Counter<5>,
}

/// The labels of a disruption: why, from which pool, under which policy, and how its pods are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disrupted<'a> {
    /// One of the reasons of api.md §5.1, such as `expired`.
    pub reason: &'a str,
    /// The NodePool's name.
    pub nodepool: &'a str,
    /// The claim's capacity type label, empty before launch.
    pub capacity_type: &'a str,
    /// `when_empty`, `when_empty_or_underutilized`, `balanced`, or empty when this is no consolidation.
    pub consolidation_policy: &'a str,
    /// `graceful`, `eventual` or `forceful`.
    pub termination_mode: &'a str,
}

impl Disrupted<'_> {
    fn labels(&self) -> [&str; 5] {
        [
            self.reason,
            self.nodepool,
            self.capacity_type,
            self.consolidation_policy,
            self.termination_mode,
        ]
    }
}

impl SharedMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let disruption = [
            "reason",
            "nodepool",
            "capacity_type",
            "consolidation_policy",
            "termination_mode",
        ];
        Self {
            nodeclaims_created: registry.counter(
                "karpenter_nodeclaims_created_total",
                "NodeClaims created, by what they were created for.",
                ["reason", "nodepool", "min_values_relaxed"],
            ),
            nodeclaims_terminated: registry.counter(
                "karpenter_nodeclaims_terminated_total",
                "NodeClaims that are gone.",
                ["nodepool", "capacity_type", "zone"],
            ),
            nodeclaims_disrupted: registry.counter(
                "karpenter_nodeclaims_disrupted_total",
                "NodeClaims whose deletion was requested by this controller.",
                disruption,
            ),
            pods_disruption_initiated: registry.counter(
                "karpenter_pods_disruption_initiated_total",
                "Pods that have to move because their node is disrupted.",
                disruption,
            ),
            nodeclaims_unhealthy_disrupted: registry.counter(
                "karpenter_nodeclaims_unhealthy_disrupted_total",
                "NodeClaims that were disrupted because their node is broken.",
                ["condition", "nodepool", "capacity_type", "image_id", "termination_mode"],
            ),
        }
    }

    /// A NodeClaim was created: `reason` is `provisioned` or a disruption reason.
    pub fn nodeclaim_created(&self, reason: &str, nodepool: &str, min_values: MinValues) {
        let relaxed = match min_values {
            MinValues::Kept => "false",
            MinValues::Relaxed => "true",
        };
        self.nodeclaims_created.inc([reason, nodepool, relaxed]);
    }

    /// A NodeClaim's finalizer was removed.
    pub fn nodeclaim_terminated(&self, nodepool: &str, capacity_type: &str, zone: &str) {
        self.nodeclaims_terminated.inc([nodepool, capacity_type, zone]);
    }

    /// The deletion of a NodeClaim was requested.
    pub fn nodeclaim_disrupted(&self, disrupted: &Disrupted<'_>) {
        self.nodeclaims_disrupted.inc(disrupted.labels());
    }

    /// The deletion of a NodeClaim was requested, and this many pods have to move (the series appears even for none).
    pub fn pods_disruption_initiated(&self, disrupted: &Disrupted<'_>, pods: usize) {
        self.pods_disruption_initiated.add(disrupted.labels(), pods as u64);
    }

    /// A NodeClaim was disrupted because of this condition of its node.
    pub fn unhealthy_nodeclaim_disrupted(&self, condition: &str, disrupted: &Disrupted<'_>, image: &str) {
        self.nodeclaims_unhealthy_disrupted.inc([
            &snake_case(condition),
            disrupted.nodepool,
            disrupted.capacity_type,
            image,
            disrupted.termination_mode,
        ]);
    }
}

/// `KernelDeadlock` as `kernel_deadlock`.
fn snake_case(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    let mut before = None;
    for letter in camel.chars() {
        let begins_word = letter.is_uppercase() && before.is_some_and(|before: char| before.is_lowercase());
        if begins_word {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
        before = Some(letter);
    }
    snake
}

/// Whether a NodeClaim keeps its pool's minimum variety of instance types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinValues {
    /// As the NodePool asks for.
    Kept,
    /// Fewer, because the policy is best effort and not enough types fit.
    Relaxed,
}
