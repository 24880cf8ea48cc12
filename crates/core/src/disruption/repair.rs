//! What the provider's repair policies say about each node, with the memory of reboots that did not help.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition;
use karpenter_cloud::CloudProvider;
use karpenter_cloud::repair::{self, NodeCondition, RepairPolicies};
use karpenter_engine::disruption::{Ailment, Health, RepairAction};
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::clock::later;
use crate::state::Machine;

/// After this many reboots of a machine within [`REMEMBERED_FOR`], the next one is a replacement.
const REBOOTS_BEFORE_REPLACEMENT: usize = 2;
const REMEMBERED_FOR: SignedDuration = SignedDuration::from_hours(24);
/// How long the watch may take to show a reboot that was just asked for.
const WATCH_LAG: SignedDuration = SignedDuration::from_secs(10);

/// The provider's policies, compiled, and what was tried before.
#[derive(Debug)]
pub struct Repairs {
    policies: RepairPolicies,
    history: RebootHistory,
}

impl Repairs {
    /// The policies of `cloud`.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn of(cloud: &dyn CloudProvider) -> Result<Self, Vec<repair::RepairPolicyError>> {
        Ok(Self {
            policies: RepairPolicies::new(cloud.repair_policies())?,
            history: RebootHistory::default(),
        })
    }

    /// What is wrong with a machine's node, and what to do about it now.
    pub(super) fn health(&self, machine: &Machine, now: Timestamp) -> Health {
        let (Some(node), Some(claim)) = (machine.node.as_deref(), machine.claim.as_deref()) else {
            return Health::default();
        };
        let created = node.creation_timestamp().map_or(now, |created| created.0);
        let matches = self.policies.matches(&NodeCondition::of(node), created);
        // A reboot gets as long to help as the condition was tolerated before.
        let last_reboot = claim
            .condition(condition::REBOOTING)
            .filter(|rebooting| rebooting.is_false())
            .map(|rebooting| rebooting.transitioned_at());
        let resolved = RepairPolicies::resolve(&matches, now, last_reboot);
        let uid = claim.uid().unwrap_or_default();
        Health {
            is_unhealthy: !matches.is_empty(),
            ailment: resolved.map(|repair| Arc::new(self.ailment(repair, &uid, now))),
            do_not_repair: machine.annotation(annotations::DO_NOT_REPAIR) == Some("true"),
        }
    }

    fn ailment(&self, repair: repair::Repair, uid: &str, now: Timestamp) -> Ailment {
        let action = match repair.action {
            repair::RepairAction::ReplaceNode => RepairAction::Replace,
            repair::RepairAction::RebootNode if self.history.is_exhausted(uid, now) => {
                RepairAction::ReplaceAfterReboots
            }
            repair::RepairAction::RebootNode => RepairAction::Reboot,
        };
        Ailment {
            action,
            condition: repair.condition.condition_type,
            status: repair.condition.status.as_str().to_owned(),
            reason: repair.condition.reason,
            by_fallback: repair.is_fallback,
            eligible_at: repair.eligible_at,
            drain_bound: repair
                .termination_grace_period
                .map(|bound| bound.try_into().unwrap_or(SignedDuration::MAX)),
            score: repair.score,
        }
    }

    /// A reboot of this claim's machine was asked for.
    pub(super) fn reboot_requested(&self, uid: &str, now: Timestamp) {
        self.history.record(uid, now);
    }

    /// A reboot was asked for that the watch may not have shown yet.
    pub(super) fn is_about_to_reboot(&self, machine: &Machine, now: Timestamp) -> bool {
        let uid = machine.claim.as_deref().and_then(|claim| claim.metadata.uid.as_deref());
        uid.is_some_and(|uid| {
            self.history
                .last(uid)
                .is_some_and(|last| now.duration_since(last) < WATCH_LAG)
        })
    }
}

/// When reboots of each claim were asked for. A replacement has another UID and starts afresh; so does every claim after a
/// restart of this process.
#[derive(Debug, Default)]
struct RebootHistory(Mutex<FxHashMap<String, Vec<Timestamp>>>);

impl RebootHistory {
    fn record(&self, uid: &str, now: Timestamp) {
        let mut history = self.0.lock();
        history.retain(|_, reboots| {
            reboots.retain(|at| is_remembered(*at, now));
            !reboots.is_empty()
        });
        history.entry(uid.to_owned()).or_default().push(now);
    }

    fn is_exhausted(&self, uid: &str, now: Timestamp) -> bool {
        let history = self.0.lock();
        let reboots = history.get(uid).map_or(&[][..], Vec::as_slice);
        reboots.iter().filter(|at| is_remembered(**at, now)).count() >= REBOOTS_BEFORE_REPLACEMENT
    }

    fn last(&self, uid: &str) -> Option<Timestamp> {
        self.0.lock().get(uid)?.last().copied()
    }
}

fn is_remembered(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) < REMEMBERED_FOR
}

/// When a drain that is bounded by `bound` from now on must be over.
pub(super) fn deadline(now: Timestamp, bound: SignedDuration) -> Timestamp {
    later(now, bound.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours)
    }

    #[test]
    fn the_third_reboot_within_a_day_is_a_replacement() {
        let history = RebootHistory::default();
        history.record("a", at(0));
        assert!(!history.is_exhausted("a", at(1)));
        history.record("a", at(1));
        assert!(history.is_exhausted("a", at(2)));
        assert!(
            !history.is_exhausted("b", at(2)),
            "another machine has its own allowance"
        );
        assert!(history.is_exhausted("a", at(23)));
        assert!(!history.is_exhausted("a", at(24)), "the first is forgotten after a day");
    }
}
