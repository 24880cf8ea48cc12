//! How many nodes each static NodePool has, is losing and is about to get (lifecycle.md §2.7).

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::NodeClaim;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::machine::Mark;

/// NodeClaims by pool and phase, and slots that are taken but not filled yet.
#[derive(Debug, Default)]
pub struct PoolSlots(Mutex<BTreeMap<String, Slots>>);

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Slots {
    active: BTreeSet<String>,
    deleting: BTreeSet<String>,
    pending_disruption: BTreeSet<String>,
    reserved: usize,
}

/// How many NodeClaims a pool has of each phase.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SlotCounts {
    /// Here to stay.
    pub active: usize,
    /// On their way out.
    pub deleting: usize,
    /// Chosen to be replaced; their replacement does not exist yet.
    pub pending_disruption: usize,
    /// Slots that are taken for NodeClaims yet to be created.
    pub reserved: usize,
}

impl PoolSlots {
    /// The counts of a pool.
    pub fn counts(&self, pool: &str) -> SlotCounts {
        self.0
            .lock()
            .get(pool)
            .map_or_else(SlotCounts::default, |slots| SlotCounts {
                active: slots.active.len(),
                deleting: slots.deleting.len(),
                pending_disruption: slots.pending_disruption.len(),
                reserved: slots.reserved,
            })
    }

    /// Takes up to `wanted` slots of a pool that may have `limit` nodes; how many were granted. Each must be given
    /// back with [`PoolSlots::release`] once its NodeClaim was created, or was not.
    pub fn reserve(&self, pool: &str, limit: usize, wanted: usize) -> usize {
        let mut pools = self.0.lock();
        let slots = pools.entry(pool.to_owned()).or_default();
        let granted = wanted.min(limit.saturating_sub(slots.len() + slots.reserved));
        slots.reserved += granted;
        granted
    }

    /// Gives back slots that were taken.
    pub fn release(&self, pool: &str, count: usize) {
        if let Some(slots) = self.0.lock().get_mut(pool) {
            slots.reserved = slots.reserved.saturating_sub(count);
        }
    }

    /// Notes that a NodeClaim was chosen to be replaced.
    pub fn pending_disruption(&self, pool: &str, claim: &str) {
        let mut pools = self.0.lock();
        let slots = pools.entry(pool.to_owned()).or_default();
        slots.forget(claim);
        slots.pending_disruption.insert(claim.to_owned());
    }

    pub(super) fn update(&self, claim: &NodeClaim, mark: Mark) {
        let Some(pool) = claim.node_pool() else { return };
        let mut pools = self.0.lock();
        let slots = pools.entry(pool.to_owned()).or_default();
        let name = claim.name_any();
        slots.forget(&name);
        if mark == Mark::Deleting || claim.is_terminating() {
            slots.deleting.insert(name);
        } else {
            slots.active.insert(name);
        }
    }

    pub(super) fn remove(&self, claim: &str) {
        self.0.lock().retain(|_, slots| {
            slots.forget(claim);
            slots.len() + slots.reserved > 0
        });
    }
}

impl Slots {
    fn len(&self) -> usize {
        self.active.len() + self.deleting.len() + self.pending_disruption.len()
    }

    fn forget(&mut self, claim: &str) {
        self.active.remove(claim);
        self.deleting.remove(claim);
        self.pending_disruption.remove(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_limit_together() {
        let slots = PoolSlots::default();
        let granted: usize = std::thread::scope(|scope| {
            let reserve = || slots.reserve("a", 10, 3);
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(reserve)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(granted, 10);
    }

    #[test]
    fn giving_back_too_much_or_to_an_unknown_pool_is_harmless() {
        let slots = PoolSlots::default();
        slots.release("unknown", 3);
        slots.reserve("a", 10, 2);
        slots.release("a", 5);
        assert_eq!(slots.reserve("a", 10, 20), 10);
    }
}
