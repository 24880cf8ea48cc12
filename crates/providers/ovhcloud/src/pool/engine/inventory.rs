//! Which pools the cluster has, ours and others', and how many there may be.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_cloud::clock::later;

use super::{Engine, Shared};
use crate::{
    client::{
        ApiError,
        model::{Pool, PoolClass},
    },
    names,
    node_class::OvhNodeClass,
    pool::{actor::INVISIBLE, key::PoolOwner, placement::Shelf},
};

/// What is known of the cluster's pools.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) pools: Vec<Pool>,
    read_at: Option<Timestamp>,
    /// Pools that we made, which the list may not show yet.
    made: Vec<(Pool, Timestamp)>,
    /// Names of pools that are being deleted: not to be used again until they are gone.
    pub(super) closing: BTreeSet<String>,
    /// Since when a pool is empty.
    pub(super) empty_since: BTreeMap<String, Timestamp>,
    /// The API said that there may be no more pools than this.
    limited: Option<(u32, Timestamp)>,
}

/// How many pools there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    pub owned: u32,
    pub legacy: u32,
    pub foreign: u32,
    pub limit: u32,
    pub nodes: u32,
}

/// Pools of one-zone regions name none.
const ONE_ZONE: &str = "nova";
const LIMIT_HOLDS: Duration = Duration::from_secs(30 * 60);

impl Engine {
    pub fn counts(&self) -> PoolCounts {
        let inventory = self.shared.inventory.lock();
        let mut counts = PoolCounts {
            limit: self.shared.settings.max_pools,
            ..PoolCounts::default()
        };
        for pool in &inventory.pools {
            match PoolOwner::of(pool) {
                PoolOwner::Owned => {
                    counts.owned += 1;
                    counts.nodes += pool.desired_nodes;
                }
                PoolOwner::Legacy => counts.legacy += 1,
                PoolOwner::Foreign => counts.foreign += 1,
            }
        }
        counts
    }

    /// Names of the pools made for a class, as they were listed last.
    pub fn last_known_pools(&self, class: &str) -> Vec<String> {
        let inventory = self.shared.inventory.lock();
        let own = inventory
            .pools
            .iter()
            .filter(|pool| PoolOwner::of(pool) == PoolOwner::Owned && pool.label(names::NODE_CLASS) == Some(class));
        own.map(|pool| pool.name.clone()).collect()
    }

    /// Names of others' pools for which OVHcloud's own autoscaler is on.
    pub fn foreign_autoscaled(&self) -> Vec<String> {
        let inventory = self.shared.inventory.lock();
        let theirs = inventory.pools.iter().filter(|pool| pool.autoscale);
        let theirs = theirs.filter(|pool| PoolOwner::of(pool) == PoolOwner::Foreign);
        theirs.map(|pool| pool.name.clone()).collect()
    }

    /// The pools as they were listed last, listed anew if that is too long ago.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn pools(&self, age: Duration) -> Result<Vec<Pool>, ApiError> {
        self.shared.inventory(age).await
    }

    /// At the limit of pools: the flavors and zones for which a NodePool has one with room. `None` below the limit.
    pub fn room(&self, node_pool: &str, class: &OvhNodeClass) -> Option<BTreeSet<(String, String)>> {
        let (taken, zones) = self.shared.ledger.counts();
        let inventory = self.shared.inventory.lock();
        let limit = inventory.limit(self.shared.settings.max_pools, self.shared.clock.now());
        let shelf = Shelf {
            pools: &inventory.pools,
            taken: &taken,
            zones: &zones,
            closing: &inventory.closing,
            limit,
        };
        if shelf.used() < limit {
            return None;
        }
        let cap = class.spec.pool_cap(self.shared.settings.max_nodes);
        let has_room = |pool: &&Pool| {
            let is_its = pool.label(labels::NODEPOOL) == Some(node_pool)
                && pool.label(names::NODE_CLASS) == Some(class.name())
                && PoolOwner::of(pool) == PoolOwner::Owned;
            is_its && pool.class() != PoolClass::Gone && taken.get(&pool.name).copied().unwrap_or(0) < cap
        };
        let room = inventory.pools.iter().filter(has_room);
        Some(
            room.map(|pool| (pool.flavor.clone(), pool.zone().unwrap_or(ONE_ZONE).to_owned()))
                .collect(),
        )
    }
}

impl Shared {
    /// The cluster's pools, listed at most `age` ago.
    pub(in crate::pool) async fn inventory(&self, age: Duration) -> Result<Vec<Pool>, ApiError> {
        let fresh = |inventory: &Inventory| {
            let is_fresh = inventory.read_at.is_some_and(|at| self.clock.now() < later(at, age));
            is_fresh.then(|| inventory.pools.clone())
        };
        if let Some(pools) = fresh(&self.inventory.lock()) {
            return Ok(pools);
        }
        let _listing = self.listing.lock().await;
        if let Some(pools) = fresh(&self.inventory.lock()) {
            return Ok(pools);
        }
        let asked_at = self.clock.now();
        let mut pools = self.api()?.pools().await?;
        pools.retain(|pool| pool.status != "DELETED");
        let mut inventory = self.inventory.lock();
        inventory
            .made
            .retain(|(made, at)| asked_at < later(*at, INVISIBLE) && !pools.iter().any(|pool| pool.id == made.id));
        pools.extend(inventory.made.iter().map(|(pool, _)| pool.clone()));
        let names: BTreeSet<String> = pools.iter().map(|pool| pool.name.clone()).collect();
        inventory.closing.retain(|name| names.contains(name));
        inventory.pools = pools.clone();
        inventory.read_at = Some(asked_at);
        Ok(pools)
    }

    /// Whether a pool of ours has the name of an older one: a request to make it was repeated although it had worked.
    pub(in crate::pool) fn is_twin(&self, id: &str) -> bool {
        self.inventory.lock().is_twin(id)
    }

    pub(in crate::pool) fn expire_inventory(&self) {
        self.inventory.lock().read_at = None;
    }

    pub(in crate::pool) fn remember_pool(&self, pool: &Pool) {
        let mut inventory = self.inventory.lock();
        inventory.made.retain(|(made, _)| made.id != pool.id);
        match inventory.pools.iter_mut().find(|known| known.id == pool.id) {
            Some(known) => *known = pool.clone(),
            None => inventory.pools.push(pool.clone()),
        }
    }

    pub(in crate::pool) fn remember_size(&self, id: &str, desired: Option<u32>) {
        let mut inventory = self.inventory.lock();
        let known = inventory.pools.iter_mut().find(|known| known.id == id);
        if let (Some(known), Some(desired)) = (known, desired) {
            known.desired_nodes = desired;
        }
    }

    pub(in crate::pool) fn made_pool(&self, pool: Pool) {
        let now = self.clock.now();
        let mut inventory = self.inventory.lock();
        inventory.made.push((pool.clone(), now));
        inventory.pools.push(pool);
    }

    pub(in crate::pool) fn forget_pool(&self, id: &str) {
        let mut inventory = self.inventory.lock();
        inventory.made.retain(|(made, _)| made.id != id);
        inventory.pools.retain(|pool| pool.id != id);
    }

    pub(in crate::pool) fn was_made_recently(&self, id: &str) -> bool {
        self.inventory.lock().made.iter().any(|(made, _)| made.id == id)
    }

    pub(in crate::pool) fn limit(&self) -> u32 {
        self.inventory.lock().limit(self.settings.max_pools, self.clock.now())
    }

    pub(in crate::pool) fn lower_limit(&self, pools: u32) {
        self.inventory.lock().limited = Some((pools, later(self.clock.now(), LIMIT_HOLDS)));
    }

    /// Refuses new places in a pool. False if somebody has one.
    pub(in crate::pool) fn close(&self, pool: &str) -> bool {
        let _placing = self.placing.lock();
        if self.ledger.count(pool) > 0 {
            return false;
        }
        self.inventory.lock().closing.insert(pool.to_owned());
        true
    }

    pub(in crate::pool) fn reopen(&self, pool: &str) {
        self.inventory.lock().closing.remove(pool);
    }
}

impl Inventory {
    pub(in crate::pool) fn limit(&self, configured: u32, now: Timestamp) -> u32 {
        match self.limited {
            Some((limit, until)) if now < until => limit.min(configured),
            _ => configured,
        }
    }

    pub(super) fn is_twin(&self, id: &str) -> bool {
        let age = |pool: &Pool| (pool.created_at.unwrap_or(Timestamp::MAX), pool.id.clone());
        let is_ours = |pool: &&Pool| PoolOwner::of(pool) == PoolOwner::Owned;
        let Some(own) = self.pools.iter().filter(is_ours).find(|pool| pool.id == id) else {
            return false;
        };
        let others = self.pools.iter().filter(is_ours);
        others
            .filter(|other| other.name == own.name && other.class() != PoolClass::Gone)
            .any(|other| age(other) < age(own))
    }
}
