//! What others found out that matters to pools: flavors, zones, rights, and whether MKS is at work.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use karpenter_cloud::clock::later;

use super::{Engine, Shared};
use crate::{
    catalogue::flavors,
    client::model::{Flavor, InstanceQuota, Pool},
};

/// What others found out that matters to pools.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) flavors: Arc<Vec<Flavor>>,
    /// MKS works on the cluster since or until this time.
    unquiet_at: Option<Timestamp>,
    /// The zone to name in one-zone clusters that demand one.
    pub(super) zone_if_demanded: Option<String>,
    zone_demanded: bool,
    pub(super) extras: Extras,
    /// Names of pools whose NodePool or NodeClass is gone or going.
    pub(super) abandoned: BTreeSet<String>,
    /// Machines that a new claim should take over, by pool.
    pub(super) adoptable: BTreeMap<String, Vec<String>>,
}

/// What credentials with more than the minimal rights can do and know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// All machines can be listed in one call.
    pub lists_nodes: bool,
    /// Machines can be deleted one by one, where pools cannot be told which to remove.
    pub deletes_nodes: bool,
    /// What the project may use, and uses.
    pub quota: Option<InstanceQuota>,
}

const QUIET_AFTER: Duration = Duration::from_secs(300);

impl Engine {
    /// Whether machines of a flavor have GPUs.
    pub fn has_gpus(&self, flavor: &str) -> bool {
        let known = self
            .shared
            .facts
            .lock()
            .flavors
            .iter()
            .find(|own| own.name == flavor)
            .cloned();
        known
            .or_else(|| flavors::built_in(flavor))
            .is_some_and(|own| own.gpus > 0)
    }

    pub fn know_flavors(&self, flavors: Arc<Vec<Flavor>>) {
        self.shared.facts.lock().flavors = flavors;
    }

    /// MKS works on the cluster right now.
    pub fn unquiet(&self) {
        self.shared.facts.lock().unquiet_at = Some(self.shared.clock.now());
    }
}

impl Shared {
    /// False while MKS works on the cluster, and some time after.
    pub(in crate::pool) fn is_calm(&self) -> bool {
        let at = self.facts.lock().unquiet_at;
        at.is_none_or(|at| later(at, QUIET_AFTER) <= self.clock.now())
    }

    pub(in crate::pool) fn cap_of(&self, pool: &Pool) -> u32 {
        let cap = self.settings.max_nodes.max(1);
        if pool.anti_affinity {
            cap.min(crate::node_class::ANTI_AFFINITY_NODES)
        } else {
            cap
        }
    }

    pub(in crate::pool) fn size_of(&self, flavor: &str) -> (u32, u32) {
        let known = self.facts.lock().flavors.iter().find(|own| own.name == flavor).cloned();
        let known = known.or_else(|| flavors::built_in(flavor));
        known.map_or((1, 1), |own| (own.vcpus, own.ram))
    }

    pub(in crate::pool) fn extras(&self) -> Extras {
        self.facts.lock().extras.clone()
    }

    pub(in crate::pool) fn is_abandoned(&self, pool: &str) -> bool {
        self.facts.lock().abandoned.contains(pool)
    }

    /// What of a pool's machines a new claim should take over now.
    pub(in crate::pool) fn offer(&self, pool: &str, machines: Vec<String>) {
        let mut facts = self.facts.lock();
        if machines.is_empty() {
            facts.adoptable.remove(pool);
        } else {
            facts.adoptable.insert(pool.to_owned(), machines);
        }
    }

    pub(in crate::pool) fn demand_zone(&self) {
        self.facts.lock().zone_demanded = true;
    }

    pub(in crate::pool) fn demanded_zone(&self) -> Option<String> {
        let facts = self.facts.lock();
        facts.zone_if_demanded.clone().filter(|_| facts.zone_demanded)
    }
}
