//! All pools of the cluster: starts their actors, knows how many there are, finds places, and tidies up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::{
    ClaimMark, CloudError, Deletion,
    clock::{Clock, later},
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    actor::{Actor, INVISIBLE, Next, Outcome},
    key::{PoolDesign, PoolOwner},
    ledger::{Ledger, NotStored, Place},
    placement::{Shelf, Wish},
    plan::Times,
};
use crate::{
    catalogue::flavors,
    client::{
        ApiError, ApiErrorKind, KubeApi,
        model::{Flavor, InstanceQuota, Pool, PoolClass, PoolNode},
    },
    events::Events,
    metrics::Metrics,
    names,
    node_class::OvhNodeClass,
    unavailable::Unavailable,
    workload::Workloads,
};

/// The pools. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// How pools are treated.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// How many pools the cluster may have, others' included.
    pub max_pools: u32,
    /// How many nodes a pool may have unless its NodeClass says otherwise.
    pub max_nodes: u32,
    pub empty_ttl: Duration,
    pub times: Times,
    pub cadence: Cadence,
}

/// How often things are looked at.
#[derive(Clone, Debug)]
pub struct Cadence {
    /// Requests to a pool are collected until none came for this long …
    pub batch_idle: Duration,
    /// … or for this long altogether.
    pub batch_longest: Duration,
    /// While something is awaited.
    pub poll_soon: Duration,
    pub poll_later: Duration,
    /// How long a launch waits for its machine before it reports that it is pending.
    pub create_wait: Duration,
    /// How long to look for a pool that may or may not have been made.
    pub post_doubt: Duration,
    /// A list of pools this old will do.
    pub fresh: Duration,
    /// Between rounds of tidying up.
    pub tidy: Duration,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) ledger: Ledger,
    pub(super) settings: EngineSettings,
    pub(super) unavailable: Arc<Unavailable>,
    pub(super) metrics: Metrics,
    pub(super) events: Arc<Events>,
    pub(super) workloads: Workloads,
    stop: CancellationToken,
    api: Mutex<Option<KubeApi>>,
    actors: Mutex<BTreeMap<String, Arc<Actor>>>,
    inventory: Mutex<Inventory>,
    listing: tokio::sync::Mutex<()>,
    /// Pools are made one at a time, so that their number can be counted.
    pub(super) creating: tokio::sync::Mutex<()>,
    writers: Semaphore,
    placing: Mutex<()>,
    facts: Mutex<Facts>,
}

/// What is known of the cluster's pools.
#[derive(Debug, Default)]
struct Inventory {
    pools: Vec<Pool>,
    read_at: Option<Timestamp>,
    /// Pools that we made, which the list may not show yet.
    made: Vec<(Pool, Timestamp)>,
    /// Names of pools that are being deleted: not to be used again until they are gone.
    closing: BTreeSet<String>,
    /// Since when a pool is empty.
    empty_since: BTreeMap<String, Timestamp>,
    /// The API said that there may be no more pools than this.
    limited: Option<(u32, Timestamp)>,
}

/// What others found out that matters to pools.
#[derive(Debug, Default)]
struct Facts {
    flavors: Arc<Vec<Flavor>>,
    /// MKS works on the cluster since or until this time.
    unquiet_at: Option<Timestamp>,
    /// The zone to name in one-zone clusters that demand one.
    zone_if_demanded: Option<String>,
    zone_demanded: bool,
    extras: Extras,
    /// Names of pools whose NodePool or NodeClass is gone or going.
    abandoned: BTreeSet<String>,
    /// Machines that a new claim should take over, by pool.
    adoptable: BTreeMap<String, Vec<String>>,
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

/// A machine with the pool it is in.
#[derive(Clone, Debug)]
pub struct Machine {
    pub pool: Pool,
    pub node: PoolNode,
    pub claim: Option<ClaimMark>,
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
const WRITERS: usize = 16;
const READERS: usize = 8;
const LIMIT_HOLDS: Duration = Duration::from_secs(30 * 60);
const QUIET_AFTER: Duration = Duration::from_secs(300);

impl Default for Cadence {
    fn default() -> Self {
        Self {
            batch_idle: Duration::from_millis(250),
            batch_longest: Duration::from_secs(1),
            poll_soon: Duration::from_secs(5),
            poll_later: Duration::from_secs(60),
            create_wait: Duration::from_secs(270),
            post_doubt: Duration::from_secs(30),
            fresh: Duration::from_secs(5),
            tidy: Duration::from_secs(30),
        }
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            max_pools: 100,
            max_nodes: 100,
            empty_ttl: Duration::from_secs(600),
            times: Times::default(),
            cadence: Cadence::default(),
        }
    }
}

impl Engine {
    pub fn new(
        client: kube::Client,
        clock: Clock,
        settings: EngineSettings,
        unavailable: Arc<Unavailable>,
        metrics: Metrics,
        events: Arc<Events>,
    ) -> Self {
        let shared = Shared {
            clock,
            ledger: Ledger::new(client.clone()),
            settings,
            unavailable,
            metrics,
            events,
            workloads: Workloads::new(client),
            stop: CancellationToken::new(),
            api: Mutex::default(),
            actors: Mutex::default(),
            inventory: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            creating: tokio::sync::Mutex::default(),
            writers: Semaphore::new(WRITERS),
            placing: Mutex::default(),
            facts: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// The cluster to work on, as the NodeClass that was checked last reaches it.
    pub fn connect(&self, api: KubeApi, zone_if_demanded: String, extras: Extras) {
        *self.shared.api.lock() = Some(api);
        let mut facts = self.shared.facts.lock();
        facts.zone_if_demanded = Some(zone_if_demanded);
        facts.extras = extras;
    }

    pub fn is_connected(&self) -> bool {
        self.shared.api.lock().is_some()
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

    /// Ends all actors, as the end of the process would.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Finds a place for a claim and stores it.
    ///
    /// # Errors
    /// [`CloudError::InsufficientCapacity`] if there is none within the limit of pools.
    pub async fn reserve(&self, claim: &NodeClaim, wishes: &[Wish]) -> Result<(PoolDesign, Place), CloudError> {
        self.shared.inventory(self.shared.settings.cadence.tidy).await?;
        let now = self.shared.clock.now();
        let (index, place) = self.shared.place(claim, wishes, now)?;
        match self.shared.ledger.store(claim, &place, now).await {
            Ok(()) => Ok((wishes[index].design.clone(), place)),
            Err(NotStored::Unwanted) => Err(CloudError::create("ClaimDeleted", "the claim is being deleted")),
            Err(NotStored::Error(error)) => Err(error),
        }
    }

    /// Waits for the machine of a claim that has a place; `None` if it takes longer than a launch should wait.
    pub async fn machine_of(&self, uid: &str, pool: &str, design: PoolDesign) -> Option<Outcome> {
        let answered = self.shared.actor(pool, |actor| actor.wait_for(uid, design));
        let waited = self.shared.clock.sleep(self.shared.settings.cadence.create_wait);
        tokio::select! {
            outcome = answered => outcome.ok(),
            () = waited => None,
        }
    }

    /// Takes a machine out of its pool, by name. Answers when that was accepted, or it is gone.
    ///
    /// # Errors
    /// When the API could not be asked or refused.
    pub async fn remove(&self, pool: &str, node: &str) -> Result<Deletion, ApiError> {
        let answered = self.shared.actor(pool, |actor| actor.remove(node));
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(stopped()),
        }
    }

    /// Looks at a pool now, e.g. because a claim of it was deleted.
    pub fn kick(&self, pool: &str) {
        let known = self.shared.actors.lock().get(pool).cloned();
        if let Some(actor) = known {
            actor.kick.notify_one();
        }
    }

    /// Every machine of our pools. All of them, or an error.
    ///
    /// # Errors
    /// When any pool could not be read.
    pub async fn machines(&self) -> Result<Vec<Machine>, CloudError> {
        self.shared.ledger.load().await?;
        let api = self.shared.api()?;
        let pools = self.shared.inventory(Duration::ZERO).await?;
        let ours = pools
            .into_iter()
            .filter(|pool| PoolOwner::of(pool) != PoolOwner::Foreign);
        let ours: Vec<Pool> = ours.collect();
        if self.shared.extras().lists_nodes {
            match api.all_nodes().await {
                Ok(nodes) => return Ok(self.claimed(ours, nodes)),
                // The right was taken back: pool by pool, then.
                Err(error) if error.is(ApiErrorKind::NotGranted) => {
                    self.shared.facts.lock().extras.lists_nodes = false;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let read = |pool: Pool| {
            let api = api.clone();
            async move {
                let nodes = match api.nodes(&pool.id).await {
                    Ok(nodes) => nodes,
                    Err(error) if error.is(ApiErrorKind::NotFound) => {
                        // Made a moment ago or deleted since the list was made: either way there is nothing in it,
                        // unless the pool is still there.
                        match api.pool(&pool.id).await {
                            Ok(_) => return Err(error),
                            Err(gone) if gone.is(ApiErrorKind::NotFound) => Vec::new(),
                            Err(error) => return Err(error),
                        }
                    }
                    Err(error) => return Err(error),
                };
                Ok((pool, nodes))
            }
        };
        let read: Vec<(Pool, Vec<PoolNode>)> = futures::stream::iter(ours.into_iter().map(read))
            .buffer_unordered(READERS)
            .try_collect()
            .await?;
        let (mut pools, mut all) = (Vec::new(), Vec::new());
        for (pool, nodes) in read {
            all.extend(nodes.into_iter().map(|node| PoolNode {
                node_pool_id: pool.id.clone(),
                ..node
            }));
            pools.push(pool);
        }
        Ok(self.claimed(pools, all))
    }

    /// Each machine with its pool and its claim; machines of other pools are left out.
    fn claimed(&self, pools: Vec<Pool>, nodes: Vec<PoolNode>) -> Vec<Machine> {
        let pools: BTreeMap<String, Pool> = pools.into_iter().map(|pool| (pool.id.clone(), pool)).collect();
        let machine = |node: PoolNode| {
            Some(Machine {
                pool: pools.get(&node.node_pool_id)?.clone(),
                claim: self.shared.ledger.holder(&node),
                node,
            })
        };
        let mut machines: Vec<Machine> = nodes.into_iter().filter_map(machine).collect();
        machines.sort_by(|a, b| a.node.id.cmp(&b.node.id));
        machines
    }

    /// Machines that MKS made by itself and that a new claim should take over.
    ///
    /// # Errors
    /// When any pool could not be read.
    pub async fn adoptable(&self) -> Result<Vec<Machine>, CloudError> {
        let offered: BTreeSet<String> = {
            let facts = self.shared.facts.lock();
            facts.adoptable.values().flatten().cloned().collect()
        };
        if offered.is_empty() {
            return Ok(Vec::new());
        }
        let mut machines = self.machines().await?;
        machines.retain(|machine| offered.contains(&machine.node.id) && machine.claim.is_none());
        Ok(machines)
    }

    /// The nodes of one pool and the pool; `None` if it is gone.
    ///
    /// # Errors
    /// When they could not be read.
    pub async fn pool(&self, id: &str) -> Result<Option<(Pool, Vec<PoolNode>)>, ApiError> {
        let api = self.shared.api()?;
        let read = async { Ok((api.pool(id).await?, api.nodes(id).await?)) };
        match read.await {
            Ok(found) => Ok(Some(found)),
            Err(ApiError {
                kind: ApiErrorKind::NotFound,
                ..
            }) if !self.shared.was_made_recently(id) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One round of tidying up: every pool of ours has an actor, and empty pools go.
    ///
    /// # Errors
    /// When the pools could not be listed.
    pub async fn tidy(&self, is_abandoned: impl Fn(&Pool) -> bool) -> Result<(), CloudError> {
        self.shared.ledger.load().await?;
        let pools = self.shared.inventory(Duration::ZERO).await?;
        self.shared.metrics.pools(&self.counts());
        let now = self.shared.clock.now();
        let abandoned = pools.iter().filter(|pool| is_abandoned(pool));
        self.shared.facts.lock().abandoned = abandoned.map(|pool| pool.name.clone()).collect();
        let pressed = pools.len() as f64 >= f64::from(self.shared.limit()) * 0.9;
        let mut due = Vec::new();
        {
            let mut inventory = self.shared.inventory.lock();
            let ours = pools.iter().filter(|pool| PoolOwner::of(pool) != PoolOwner::Foreign);
            let empty: BTreeMap<String, bool> = ours
                .filter(|pool| pool.desired_nodes == 0 && pool.current_nodes == 0 && pool.class() != PoolClass::Gone)
                .filter(|pool| self.shared.ledger.count(&pool.name) == 0)
                .map(|pool| (pool.name.clone(), is_abandoned(pool)))
                .collect();
            inventory.empty_since.retain(|name, _| empty.contains_key(name));
            for (name, abandoned) in empty {
                let since = *inventory.empty_since.entry(name.clone()).or_insert(now);
                if abandoned || pressed || later(since, self.shared.settings.empty_ttl) <= now {
                    due.push(name);
                }
            }
        }
        for pool in &pools {
            let is_ours = PoolOwner::of(pool) != PoolOwner::Foreign && pool.class() != PoolClass::Gone;
            if is_ours && !self.shared.actors.lock().contains_key(&pool.name) {
                self.shared.actor(&pool.name, |_| ());
            }
        }
        if self.shared.is_calm() {
            for name in due {
                let actor = self.shared.actor(&name, |actor| actor.clone());
                if let Err(error) = self.shared.delete_if_empty(&actor).await {
                    tracing::warn!(pool = name, %error, "empty node pool is not deleted");
                }
            }
        }
        Ok(())
    }

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

    /// Waits until no actor has anything to do; for tests.
    pub async fn idle(&self) -> bool {
        let actors: Vec<Arc<Actor>> = self.shared.actors.lock().values().cloned().collect();
        for actor in actors {
            let _turn = actor.memory.lock().await;
            if !actor.is_idle() {
                return false;
            }
        }
        true
    }
}

impl Shared {
    pub(super) fn api(&self) -> Result<KubeApi, ApiError> {
        self.api.lock().clone().ok_or_else(|| {
            let mut error = stopped();
            error.message = "no OVHNodeClass reaches the cluster yet".to_owned();
            error
        })
    }

    /// The actor of a pool, started if need be; `ask` happens before it can end.
    fn actor<T>(self: &Arc<Self>, pool: &str, ask: impl FnOnce(&Arc<Actor>) -> T) -> T {
        let mut actors = self.actors.lock();
        let actor = actors.entry(pool.to_owned()).or_insert_with(|| {
            let actor = Arc::new(Actor::new(pool));
            let (shared, run) = (self.clone(), actor.clone());
            tokio::spawn(async move {
                let stop = shared.stop.clone();
                stop.run_until_cancelled(shared.run(&run)).await;
                // Whoever waits for a stopped actor must not wait for ever.
                run.fail(&stopped());
            });
            actor
        });
        let answer = ask(actor);
        actor.kick.notify_one();
        answer
    }

    async fn run(self: &Arc<Self>, actor: &Arc<Actor>) {
        let cadence = &self.settings.cadence;
        actor.kick.notified().await;
        loop {
            self.collect(actor).await;
            let next = match self.turn(actor).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(pool = actor.name, %error, "node pool cannot be looked after");
                    actor.fail(&error);
                    Next::Soon
                }
            };
            let pause = match next {
                Next::Soon => cadence.poll_soon,
                Next::Later => cadence.poll_later,
                Next::Never => {
                    let mut actors = self.actors.lock();
                    if actor.is_idle() {
                        actors.remove(&actor.name);
                        self.metrics.forget_pool(&actor.name);
                        return;
                    }
                    cadence.poll_soon
                }
            };
            tokio::select! {
                () = actor.kick.notified() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Lets requests that arrive together become one write.
    async fn collect(&self, actor: &Actor) {
        let longest = self.clock.sleep(self.settings.cadence.batch_longest);
        let idle = async {
            loop {
                tokio::select! {
                    () = actor.kick.notified() => {}
                    () = self.clock.sleep(self.settings.cadence.batch_idle) => return,
                }
            }
        };
        tokio::select! {
            () = longest => {}
            () = idle => {}
        }
    }

    pub(super) async fn writing(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.writers.acquire().await.expect("the semaphore is never closed")
    }

    fn place(&self, claim: &NodeClaim, wishes: &[Wish], now: Timestamp) -> Result<(usize, Place), CloudError> {
        let _placing = self.placing.lock();
        let (taken, zones) = self.ledger.counts();
        let inventory = self.inventory.lock();
        let shelf = Shelf {
            pools: &inventory.pools,
            taken: &taken,
            zones: &zones,
            closing: &inventory.closing,
            limit: inventory.limit(self.settings.max_pools, now),
        };
        let Some((index, place)) = shelf.choose(wishes) else {
            return Err(CloudError::insufficient_capacity(format!(
                "the cluster has {} of {} node pools and none of them has room for this claim; use fewer NodePools or \
                 flavors, or widen their requirements",
                shelf.used(),
                shelf.limit
            )));
        };
        self.ledger.take(claim, &place, now);
        Ok((index, place))
    }

    /// The cluster's pools, listed at most `age` ago.
    pub(super) async fn inventory(&self, age: Duration) -> Result<Vec<Pool>, ApiError> {
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

    pub(super) fn expire_inventory(&self) {
        self.inventory.lock().read_at = None;
    }

    pub(super) fn remember_pool(&self, pool: &Pool) {
        let mut inventory = self.inventory.lock();
        inventory.made.retain(|(made, _)| made.id != pool.id);
        match inventory.pools.iter_mut().find(|known| known.id == pool.id) {
            Some(known) => *known = pool.clone(),
            None => inventory.pools.push(pool.clone()),
        }
    }

    pub(super) fn remember_size(&self, id: &str, desired: Option<u32>) {
        let mut inventory = self.inventory.lock();
        let known = inventory.pools.iter_mut().find(|known| known.id == id);
        if let (Some(known), Some(desired)) = (known, desired) {
            known.desired_nodes = desired;
        }
    }

    pub(super) fn made_pool(&self, pool: Pool) {
        let now = self.clock.now();
        let mut inventory = self.inventory.lock();
        inventory.made.push((pool.clone(), now));
        inventory.pools.push(pool);
    }

    pub(super) fn forget_pool(&self, id: &str) {
        let mut inventory = self.inventory.lock();
        inventory.made.retain(|(made, _)| made.id != id);
        inventory.pools.retain(|pool| pool.id != id);
    }

    fn was_made_recently(&self, id: &str) -> bool {
        self.inventory.lock().made.iter().any(|(made, _)| made.id == id)
    }

    pub(super) fn limit(&self) -> u32 {
        self.inventory.lock().limit(self.settings.max_pools, self.clock.now())
    }

    pub(super) fn lower_limit(&self, pools: u32) {
        self.inventory.lock().limited = Some((pools, later(self.clock.now(), LIMIT_HOLDS)));
    }

    /// Refuses new places in a pool. False if somebody has one.
    pub(super) fn close(&self, pool: &str) -> bool {
        let _placing = self.placing.lock();
        if self.ledger.count(pool) > 0 {
            return false;
        }
        self.inventory.lock().closing.insert(pool.to_owned());
        true
    }

    pub(super) fn reopen(&self, pool: &str) {
        self.inventory.lock().closing.remove(pool);
    }

    /// False while MKS works on the cluster, and some time after.
    pub(super) fn is_calm(&self) -> bool {
        let at = self.facts.lock().unquiet_at;
        at.is_none_or(|at| later(at, QUIET_AFTER) <= self.clock.now())
    }

    pub(super) fn cap_of(&self, pool: &Pool) -> u32 {
        let cap = self.settings.max_nodes.max(1);
        if pool.anti_affinity {
            cap.min(crate::node_class::ANTI_AFFINITY_NODES)
        } else {
            cap
        }
    }

    pub(super) fn size_of(&self, flavor: &str) -> (u32, u32) {
        let known = self.facts.lock().flavors.iter().find(|own| own.name == flavor).cloned();
        let known = known.or_else(|| flavors::built_in(flavor));
        known.map_or((1, 1), |own| (own.vcpus, own.ram))
    }

    pub(super) fn extras(&self) -> Extras {
        self.facts.lock().extras.clone()
    }

    pub(super) fn is_abandoned(&self, pool: &str) -> bool {
        self.facts.lock().abandoned.contains(pool)
    }

    /// What of a pool's machines a new claim should take over now.
    pub(super) fn offer(&self, pool: &str, machines: Vec<String>) {
        let mut facts = self.facts.lock();
        if machines.is_empty() {
            facts.adoptable.remove(pool);
        } else {
            facts.adoptable.insert(pool.to_owned(), machines);
        }
    }

    pub(super) fn demand_zone(&self) {
        self.facts.lock().zone_demanded = true;
    }

    pub(super) fn demanded_zone(&self) -> Option<String> {
        let facts = self.facts.lock();
        facts.zone_if_demanded.clone().filter(|_| facts.zone_demanded)
    }
}

impl Inventory {
    fn limit(&self, configured: u32, now: Timestamp) -> u32 {
        match self.limited {
            Some((limit, until)) if now < until => limit.min(configured),
            _ => configured,
        }
    }
}

fn stopped() -> ApiError {
    ApiError {
        kind: ApiErrorKind::Transport,
        method: "GET".to_owned(),
        path: "nodepool".to_owned(),
        message: "node pools are not looked after any more: this process stops".to_owned(),
        query: None,
        retry_after: None,
    }
}
