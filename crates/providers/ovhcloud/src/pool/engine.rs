//! All pools of the cluster: starts their actors, knows how many there are, finds places, and tidies up.

mod facts;
mod inventory;
mod machines;
mod running;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloud::{
    CloudError, Deletion,
    clock::{Clock, later},
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    actor::{Actor, Outcome},
    key::{PoolDesign, PoolOwner},
    ledger::{Ledger, NotStored, Place},
    placement::{Shelf, Wish},
    plan::Times,
};
use crate::{
    client::{
        ApiError, ApiErrorKind, KubeApi, Sending,
        model::{Pool, PoolClass},
    },
    events::Events,
    metrics::Metrics,
    unavailable::Unavailable,
    workload::Workloads,
};
pub use facts::Extras;
use facts::Facts;
use inventory::Inventory;
pub use inventory::PoolCounts;
pub use machines::Machine;

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

const WRITERS: usize = 16;

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
    pub async fn remove(&self, pool: &Pool, node: &str) -> Result<Deletion, ApiError> {
        // Whether another pool has the same name decides who looks for the machine where.
        self.shared.inventory(self.shared.settings.cadence.tidy).await?;
        let answered = self.shared.actor_of(pool, |actor| actor.remove(&pool.id, node));
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
        let (mut due, mut twins) = (Vec::new(), Vec::new());
        {
            let mut inventory = self.shared.inventory.lock();
            let is_empty =
                |pool: &&Pool| pool.desired_nodes == 0 && pool.current_nodes == 0 && pool.class() != PoolClass::Gone;
            let ours = pools.iter().filter(|pool| PoolOwner::of(pool) != PoolOwner::Foreign);
            let (younger, ours): (Vec<&Pool>, Vec<&Pool>) =
                ours.filter(is_empty).partition(|pool| inventory.is_twin(&pool.id));
            twins.extend(younger);
            let empty: BTreeMap<String, bool> = ours
                .into_iter()
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
            let key = if self.shared.is_twin(&pool.id) {
                &pool.id
            } else {
                &pool.name
            };
            let is_looked_after = self.shared.actors.lock().contains_key(key);
            if is_ours && !is_looked_after {
                self.shared.actor_of(pool, |_| ());
            }
        }
        if self.shared.is_calm() {
            let due = due.iter().map(|name| self.shared.actor(name, Arc::clone));
            let twins = twins.into_iter().map(|pool| self.shared.actor_of(pool, Arc::clone));
            for actor in due.chain(twins).collect::<Vec<_>>() {
                if let Err(error) = self.shared.delete_if_empty(&actor).await {
                    tracing::warn!(pool = actor.name, %error, "empty node pool is not deleted");
                }
            }
        }
        Ok(())
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
}

fn stopped() -> ApiError {
    ApiError {
        kind: ApiErrorKind::Transport,
        method: "GET".to_owned(),
        path: "nodepool".to_owned(),
        message: "node pools are not looked after any more: this process stops".to_owned(),
        query: None,
        retry_after: None,
        sending: Sending::Tried,
    }
}
