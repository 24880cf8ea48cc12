//! The cluster as facts: what watches brought, joined and indexed, ready to be decided upon.
//!
//! Only this module turns watch events into facts. It keeps the engine's compact model instead of Kubernetes objects
//! wherever there are many of them, so that a pod costs a few hundred bytes and a snapshot a few reference counts.
//! Everything that a decision left behind and that no API object remembers is kept here too: which NodeClaim a pod
//! waits for, which nodes are nominated or marked for deletion, and when a pod was first seen.

mod assignments;
mod consolidation;
pub mod cost;
mod demand;
mod facts;
mod inner;
mod kindred;
mod machine;
mod observe;
mod pool_slots;
mod scheduling_times;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::LabelRules;
use karpenter_api::{NodeClaim, ResourceList};
use karpenter_engine::model::Pod;
use parking_lot::RwLock;
use rustc_hash::FxHashSet;

pub use assignments::AssignedPod;
pub use cost::ClusterCost;
pub use facts::{Facts, Pending};
pub use inner::PodEntry;
pub use kindred::Standing;
pub use machine::{Departure, EmptySince, Machine};
pub use pool_slots::{PoolSlots, SlotCounts};
pub use scheduling_times::PodTimes;

use self::consolidation::Consolidation;
use self::demand::DemandObservers;
use self::inner::Inner;
use self::scheduling_times::SchedulingTimes;
use crate::clock::{Clock, later};
use crate::context::Managed;
use crate::metrics::{Gauge, Registry};
use crate::options::Options;
use crate::watch::{Key, Watches};

/// A NodeClaim that was created and is unknown to the watch after this long may be gone.
const UNSEEN_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// The cluster's facts. All methods are short and never wait.
#[derive(Debug)]
pub struct Cluster {
    clock: Clock,
    /// What happened before is not known.
    started: Timestamp,
    managed: Managed,
    nomination: Duration,
    inner: RwLock<Inner>,
    consolidation: Consolidation,
    demand: DemandObservers,
    times: SchedulingTimes,
    /// What the nodes of each NodePool cost.
    pub cost: ClusterCost,
    /// Slots of static NodePools.
    pub slots: PoolSlots,
    sync: RwLock<Sync>,
    metrics: StateMetrics,
}

#[derive(Debug, Default)]
struct Sync {
    watches: Option<Watches>,
    unsynced_since: Option<Timestamp>,
}

#[derive(Debug)]
struct StateMetrics {
    nodes: Gauge<0>,
    synced: Gauge<0>,
    unsynced_seconds: Gauge<0>,
}

impl Cluster {
    /// An empty cluster; [`Cluster::observe`] connects it to the watches.
    pub fn new(
        clock: Clock,
        options: &Options,
        rules: Arc<LabelRules>,
        managed: Managed,
        registry: &Registry,
    ) -> Arc<Self> {
        let metrics = StateMetrics {
            nodes: registry.gauge("karpenter_cluster_state_node_count", "Nodes in cluster state.", []),
            synced: registry.gauge(
                "karpenter_cluster_state_synced",
                "1 when cluster state is complete.",
                [],
            ),
            unsynced_seconds: registry.gauge(
                "karpenter_cluster_state_unsynced_time_seconds",
                "How long cluster state has been incomplete; 0 when it is not.",
                [],
            ),
        };
        metrics.nodes.set([], 0.0);
        metrics.synced.set([], 0.0);
        metrics.unsynced_seconds.set([], 0.0);
        Arc::new(Self {
            started: clock.now(),
            managed,
            nomination: options.nomination_period(),
            inner: RwLock::new(Inner::new(rules)),
            consolidation: Consolidation::new(clock.now()),
            demand: DemandObservers::default(),
            times: SchedulingTimes::new(registry),
            cost: ClusterCost::new(registry),
            slots: PoolSlots::default(),
            sync: RwLock::default(),
            metrics,
            clock,
        })
    }

    // === Completeness ===

    /// Whether every kind has been listed once, so that decisions see the whole cluster.
    ///
    /// Unlike upstream, a NodeClaim that was not launched yet does not make the state incomplete: it is part of
    /// [`Facts`] with the room that is certain and the limits it may use up (issue of one stuck launch pausing all).
    pub fn synced(&self) -> bool {
        let mut sync = self.sync.write();
        let complete = sync
            .watches
            .as_ref()
            .is_some_and(|watches| watches.unsynced().is_empty());
        let now = self.clock.now();
        if complete {
            sync.unsynced_since = None;
        }
        let since = if complete {
            now
        } else {
            *sync.unsynced_since.get_or_insert(now)
        };
        self.metrics.synced.set([], if complete { 1.0 } else { 0.0 });
        self.metrics
            .unsynced_seconds
            .set([], now.duration_since(since).as_secs_f64());
        complete
    }

    // === Machines ===

    /// Every node and launched NodeClaim, ordered by name.
    pub fn machines(&self) -> Vec<Machine> {
        self.inner.read().machines()
    }

    /// The machine with this provider ID (or name, for an unmanaged node without one).
    pub fn machine(&self, provider_id: &str) -> Option<Machine> {
        self.inner.read().machine(provider_id)
    }

    /// The machine of the node called `name`.
    pub fn machine_of_node(&self, name: &str) -> Option<Machine> {
        self.inner.read().machine_of_node(name)
    }

    /// Since when a machine is known to have had no pod that would have to be placed elsewhere; `None` if it has one.
    pub fn empty_since(&self, provider_id: &str) -> Option<EmptySince> {
        Some(match self.machine(provider_id)?.empty_since()? {
            EmptySince::Unused(at) => EmptySince::Unused(at.max(self.started)),
            departure => departure,
        })
    }

    /// Of the machines that may be disrupted, the ones whose last such pod left, or whose nomination ends, after `earliest`.
    pub fn departures(&self, earliest: Timestamp) -> Vec<Departure> {
        self.inner.read().departures(earliest)
    }

    /// Makes nodes ineligible as targets and candidates: they are going away. Unknown ones are ignored.
    pub fn mark_for_deletion<'a>(&self, provider_ids: impl IntoIterator<Item = &'a str>) {
        self.set_marks(provider_ids, machine::Mark::Deleting);
    }

    /// Takes [`Cluster::mark_for_deletion`] back.
    pub fn unmark_for_deletion<'a>(&self, provider_ids: impl IntoIterator<Item = &'a str>) {
        self.set_marks(provider_ids, machine::Mark::Kept);
    }

    fn set_marks<'a>(&self, provider_ids: impl IntoIterator<Item = &'a str>, mark: machine::Mark) {
        let mut inner = self.inner.write();
        for id in provider_ids {
            let Some(claim) = inner.set_mark(id, mark) else {
                continue;
            };
            self.consolidation.mark_unconsolidated(self.clock.now());
            if let Some(claim) = claim {
                self.slots.update(&claim, mark);
            }
        }
    }

    /// Keeps these nodes from disruption for a while, because pods are expected on them (lifecycle.md §2.2).
    pub fn nominate<'a>(&self, node_names: impl IntoIterator<Item = &'a str>) {
        let until = later(self.clock.now(), self.nomination);
        let mut inner = self.inner.write();
        for name in node_names {
            inner.nominate(name, until);
        }
    }

    /// Remembers which claims (or nodes without one) the last plan put virtual pods on; all others hold none.
    pub fn set_buffer_nodes(&self, names: FxHashSet<Arc<str>>) {
        self.inner.write().set_buffer_nodes(names);
    }

    /// What the nodes of a NodePool have together, `nodes` included; nodes that are going away count nothing
    /// (lifecycle.md §2.6).
    pub fn pool_resources(&self, pool: &str) -> ResourceList {
        self.inner.read().pool_resources(pool)
    }

    // === Pods ===

    /// The pods bound to a node that are not terminal, ordered by name.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.inner.read().pods_on(node)
    }

    /// What is known of a pod that is not terminal.
    pub fn pod(&self, key: &Key) -> Option<PodEntry> {
        self.inner.read().pods.get(key).cloned()
    }

    /// The UIDs of the pods that the scheduler refused, whether or not a node was bought for them.
    pub fn waiting_uids(&self) -> Vec<Box<str>> {
        let inner = self.inner.read();
        let waiting = inner.waiting.iter().filter_map(|key| inner.pods.get(key));
        waiting.map(|entry| entry.pod.uid.clone()).collect()
    }

    /// Remembers that these pods wait for a NodeClaim, until they are bound or the claim is gone. Pods that were bound or went since
    /// they were planned do not wait.
    pub fn assign(&self, claim: &str, pods: &[Arc<Pod>]) {
        self.inner.write().assign(claim, pods);
    }

    /// The pods that wait for a NodeClaim.
    pub fn pods_assigned_to(&self, claim: &str) -> Vec<AssignedPod> {
        self.inner.read().assignments.pods_of(claim)
    }

    /// The NodeClaim that a pod waits for.
    pub fn claim_of(&self, pod: &Key) -> Option<Arc<str>> {
        self.inner.read().assignments.claim_of(pod)
    }

    /// When scheduling first saw, tried and succeeded with a pod.
    pub fn pod_times(&self, pod: &Key) -> PodTimes {
        self.times.get(pod)
    }

    /// Remembers that planning found no place for a pod.
    pub fn failed_to_schedule(&self, pod: &Key) {
        self.times.failed(pod, self.clock.now());
        self.inner.write().assignments.release(pod);
    }

    /// Remembers that planning found a place for a pod that is not bound yet; one that was bound meanwhile has found its own.
    pub fn found_place(&self, pod: &Key, pool: PoolRegistration) {
        let is_bound = |entry: PodEntry| entry.pod.node_name.is_some();
        if self.pod(pod).is_some_and(is_bound) {
            return;
        }
        self.times.placed(pod, pool, self.clock.now());
    }

    /// Forgets the times of a pod that runs or ended.
    pub fn forget_times(&self, pod: &Key) {
        self.times.forget(pod);
    }

    // === NodeClaims ===

    /// Tells the state of a NodeClaim before the watch does: the next pass must see it even if the watch lags.
    pub fn claim_created(&self, claim: Arc<NodeClaim>) {
        self.slots.update(&claim, machine::Mark::Kept);
        self.inner.write().claim_created(claim, self.clock.now());
    }

    /// NodeClaims that the watch has not shown for 15 seconds: they may be gone already (lifecycle.md §2.13).
    pub fn long_unseen(&self) -> Vec<Arc<str>> {
        let now = self.clock.now();
        let unseen = &self.inner.read().unseen;
        let long = unseen
            .iter()
            .filter(|(_, (_, created))| now.duration_since(*created) >= UNSEEN_AFTER);
        long.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a NodeClaim was created that the watch has not shown yet.
    pub fn is_unseen(&self, claim: &str) -> bool {
        self.inner.read().unseen.contains_key(claim)
    }

    /// NodeClaims that were created and that the watch has not shown yet.
    pub fn unseen_claims(&self) -> Vec<Arc<NodeClaim>> {
        let inner = self.inner.read();
        inner.unseen.values().map(|(claim, _)| claim.clone()).collect()
    }

    /// Forgets a NodeClaim that was created and is gone before the watch showed it.
    pub fn forget_unseen(&self, claim: &str) {
        let mut inner = self.inner.write();
        if inner.unseen.remove(claim).is_some() {
            inner.assignments.claim_gone(claim);
            drop(inner);
            self.slots.remove(claim);
        }
    }

    // === Decisions ===

    /// Everything that a decision looks at, as of now. Cheap; share it.
    pub fn facts(&self) -> Facts {
        let now = self.clock.now();
        let mut inner = self.inner.write();
        let facts = inner.facts(now, later(now, self.nomination));
        // Pods that are expected to be refused are first seen to need a node when a plan is made for them.
        facts
            .pending
            .iter()
            .for_each(|pending| self.times.acknowledge(&pending.key, now));
        facts
    }

    /// Something changed that may make consolidation possible.
    pub fn mark_unconsolidated(&self) {
        self.consolidation.mark_unconsolidated(self.clock.now());
    }

    /// A stamp that changes when consolidation should look again; at least every five minutes (lifecycle.md §2.9).
    pub fn consolidation_state(&self) -> Timestamp {
        self.consolidation.state(self.clock.now())
    }
}

/// Whether the nodes of a pool have registered lately (its `NodeRegistrationHealthy` condition).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRegistration {
    /// The condition is true.
    Healthy,
    /// It is false or unknown.
    Unproven,
}
