//! The one that reads and writes a pool: everything about a pool goes through its actor, one turn after the other.

mod making;
mod refusing;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use karpenter_cloud::{ClaimMark, CloudError, Deletion, clock::later, events::Announcement};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{
    engine::Shared,
    key::{PoolDesign, PoolOwner},
    ledger::Entry,
    plan::{self, Failure, Growth, Memory, Plan, Situation, Strays, Write},
};
use crate::{
    client::{
        ApiError, ApiErrorKind, KubeApi, Sending,
        model::{Pool, PoolClass, PoolNode},
    },
    names,
    workload::is_ready,
};

/// A pool that is being looked after.
#[derive(Debug)]
pub struct Actor {
    pub name: String,
    /// The pool's id, if it is the younger of two with that name: it is only emptied and deleted.
    pub(super) twin: Option<String>,
    pub(super) kick: Notify,
    /// Held during a turn, and by whoever else must be alone with the pool. Actors of one name share it: which of them a pool
    /// belongs to changes when pools of that name come and go.
    pub(super) alone: Arc<tokio::sync::Mutex<()>>,
    pub(super) memory: tokio::sync::Mutex<Remembered>,
    desk: Mutex<Desk>,
}

/// What an actor keeps between turns.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    pub(super) pool_id: Option<String>,
    /// When we made the pool: for a while it may not be visible.
    created_at: Option<Timestamp>,
    /// A request to make the pool has an unknown outcome.
    doubt_since: Option<Timestamp>,
    /// MKS worked on the pool at this time.
    busy_at: Option<Timestamp>,
    /// The class that the pool was made for.
    class: String,
    /// We deleted the pool ourselves.
    deleted: bool,
    plan: Memory,
}

/// What others asked of the actor.
#[derive(Debug, Default)]
struct Desk {
    design: Option<PoolDesign>,
    waiting: BTreeMap<String, Vec<oneshot::Sender<Outcome>>>,
    /// By the machine, and the pool that it was seen in: what one pool does not list, another of its name may have.
    removals: BTreeMap<Removal, Vec<oneshot::Sender<Result<Deletion, ApiError>>>>,
}

/// A machine that shall go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Removal {
    pool: String,
    node: String,
}

/// What became of a reservation.
#[derive(Clone, Debug)]
pub enum Outcome {
    Bound {
        pool: Box<Pool>,
        node: Box<PoolNode>,
    },
    /// The API would not have it: another offering may do.
    Refused {
        kind: ApiErrorKind,
        message: String,
    },
    /// The machine will not come.
    Failed {
        failure: Failure,
        message: String,
    },
    /// The pool cannot hold the claim; there may be another.
    Moved,
    /// The pool could not be read or written; the reservation holds.
    Error(ApiError),
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Soon,
    Later,
    /// There is no pool and nobody who wants one.
    Never,
}

/// A pool that was just read.
enum Reading {
    Found(Box<Pool>, Vec<PoolNode>),
    /// Made a moment ago, and not visible yet.
    Hidden,
    /// There is none of ours. The one that was, until now, is told.
    Absent {
        gone: Option<String>,
    },
}

/// More writes than this in one turn are left to the next.
const WRITES_PER_TURN: usize = 8;
/// A new pool may answer "not found" for this long.
pub(super) const INVISIBLE: Duration = Duration::from_secs(120);
/// After MKS worked on a pool, nothing is tidied up for this long.
const CALM_AFTER: Duration = Duration::from_secs(300);

impl Actor {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            twin: None,
            kick: Notify::new(),
            alone: Arc::default(),
            memory: tokio::sync::Mutex::default(),
            desk: Mutex::default(),
        }
    }

    /// Of a pool that has the name of an older one.
    pub(super) fn of_twin(pool: &Pool) -> Self {
        Self {
            twin: Some(pool.id.clone()),
            ..Self::new(&pool.name)
        }
    }

    /// What tells it from all other actors.
    pub(super) fn key(&self) -> &str {
        self.twin.as_deref().unwrap_or(&self.name)
    }

    pub(super) fn wait_for(&self, uid: &str, design: PoolDesign) -> oneshot::Receiver<Outcome> {
        let (answer, answered) = oneshot::channel();
        let mut desk = self.desk.lock();
        desk.design = Some(design);
        let waiting = desk.waiting.entry(uid.to_owned()).or_default();
        waiting.retain(|other| !other.is_closed());
        waiting.push(answer);
        answered
    }

    pub(super) fn remove(&self, pool: &str, node: &str) -> oneshot::Receiver<Result<Deletion, ApiError>> {
        let (answer, answered) = oneshot::channel();
        let removal = Removal {
            pool: pool.to_owned(),
            node: node.to_owned(),
        };
        self.desk.lock().removals.entry(removal).or_default().push(answer);
        answered
    }

    pub(super) fn is_idle(&self) -> bool {
        let desk = self.desk.lock();
        desk.waiting.values().flatten().all(oneshot::Sender::is_closed) && desk.removals.is_empty()
    }

    fn answer(&self, uid: &str, outcome: &Outcome) {
        let waiting = self.desk.lock().waiting.remove(uid).unwrap_or_default();
        for waiting in waiting {
            // Whoever stopped waiting finds the claim's annotations next time.
            let _ = waiting.send(outcome.clone());
        }
    }

    fn settle(&self, pool: &str, node: &str, deletion: Deletion) {
        let removal = Removal {
            pool: pool.to_owned(),
            node: node.to_owned(),
        };
        let waiting = self.desk.lock().removals.remove(&removal).unwrap_or_default();
        for waiting in waiting {
            let _ = waiting.send(Ok(deletion));
        }
    }

    /// Sends those away whose machine is in another pool than this actor's: they look again, and find whose it is.
    fn send_away(&self, own: Option<&str>) {
        let others: BTreeMap<_, _> = {
            let mut desk = self.desk.lock();
            let (own, others) = std::mem::take(&mut desk.removals)
                .into_iter()
                .partition(|(removal, _)| Some(removal.pool.as_str()) == own);
            desk.removals = own;
            others
        };
        for (removal, waiting) in others {
            let error = ApiError {
                kind: ApiErrorKind::Conflict,
                method: "PUT".to_owned(),
                path: "nodepool".to_owned(),
                message: format!(
                    "machine {} is in another node pool of the name {}; it is looked for again",
                    removal.node, self.name
                ),
                query: None,
                retry_after: None,
                sending: Sending::Tried,
            };
            for waiting in waiting {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }

    /// Tells everybody that the turn failed.
    pub(super) fn fail(&self, error: &ApiError) {
        let (waiting, removals) = {
            let mut desk = self.desk.lock();
            (std::mem::take(&mut desk.waiting), std::mem::take(&mut desk.removals))
        };
        for waiting in waiting.into_values().flatten() {
            let _ = waiting.send(Outcome::Error(error.clone()));
        }
        for waiting in removals.into_values().flatten() {
            let _ = waiting.send(Err(error.clone()));
        }
    }

    /// The machines of a pool that shall go.
    fn wanted(&self, pool: &str) -> BTreeSet<String> {
        let desk = self.desk.lock();
        let own = desk.removals.keys().filter(|removal| removal.pool == pool);
        own.map(|removal| removal.node.clone()).collect()
    }

    fn waiting(&self) -> Vec<String> {
        self.desk.lock().waiting.keys().cloned().collect()
    }

    fn design(&self) -> Option<PoolDesign> {
        self.desk.lock().design.clone()
    }
}

impl Shared {
    /// Reads the pool, decides and writes, until nothing is left to write.
    pub(super) async fn turn(&self, actor: &Actor) -> Result<Next, ApiError> {
        let api = self.api()?;
        let _alone = actor.alone.lock().await;
        let mut memory = actor.memory.lock().await;
        for _ in 0..WRITES_PER_TURN {
            if self.is_out_of_office(actor) {
                actor.send_away(None);
                return Ok(Next::Never);
            }
            let (pool, nodes) = match self.read(&api, actor, &mut memory).await? {
                Reading::Found(pool, nodes) => (pool, nodes),
                Reading::Hidden => return Ok(Next::Soon),
                Reading::Absent { gone } => {
                    if let Some(pool) = &gone {
                        for node in actor.wanted(pool) {
                            actor.settle(pool, &node, Deletion::Gone);
                        }
                    }
                    actor.send_away(None);
                    if actor.twin.is_some() {
                        return Ok(Next::Never);
                    }
                    match self.make(&api, actor, &mut memory).await? {
                        Some(next) => return Ok(next),
                        None => continue,
                    }
                }
            };
            actor.send_away(Some(&pool.id));
            let wanted = actor.wanted(&pool.id);
            let claims = match &actor.twin {
                Some(id) => self.ledger.of_twin(id),
                None => self.ledger.of_pool(&actor.name, Some(&pool.id)),
            };
            let now = self.clock.now();
            if pool.class() == PoolClass::Busy {
                memory.busy_at = Some(now);
            }
            let calm = self.is_calm() && memory.busy_at.is_none_or(|at| later(at, CALM_AFTER) <= now);
            let owner = PoolOwner::of(&pool);
            let occupied = self.occupied(&memory.plan, &nodes, now).await;
            let cap = actor.design().map_or_else(|| self.cap_of(&pool), |design| design.cap);
            let situation = Situation {
                pool: &pool,
                nodes: &nodes,
                claims: &claims,
                wanted: &wanted,
                cap,
                now,
                calm,
                growth: match owner {
                    PoolOwner::Owned if actor.twin.is_none() => Growth::Allowed,
                    PoolOwner::Owned | PoolOwner::Legacy | PoolOwner::Foreign => Growth::Never,
                },
                strays: match actor.twin.is_some() || self.is_abandoned(&actor.name) {
                    true => Strays::Reclaimed,
                    false => Strays::Adopted { occupied: &occupied },
                },
                times: &self.settings.times,
            };
            let plan = plan::plan(&situation, &mut memory.plan);
            self.metrics.pool(actor.key(), &plan.sets);
            self.offer(actor.key(), plan.adoptable.clone());
            self.carry_out(actor, &mut memory.plan, &pool, &nodes, &plan).await;
            let Some(write) = plan.write.clone() else {
                let quiet = plan.sets.waiting == 0 && plan.sets.going == 0 && plan.missed == 0;
                return Ok(if quiet { Next::Later } else { Next::Soon });
            };
            self.write(&api, actor, &mut memory, &pool, &plan, &write).await?;
            if let Write::Remove { nodes, .. } = &write {
                for node in nodes {
                    actor.settle(&pool.id, node, Deletion::InProgress);
                }
            }
        }
        Ok(Next::Soon)
    }

    /// A pool that had the name of an older one, and is the only one of that name by now, is in the care of that name's actor.
    pub(super) fn is_out_of_office(&self, actor: &Actor) -> bool {
        actor.twin.as_ref().is_some_and(|id| !self.is_twin(id))
    }

    /// Which of the machines that would be reclaimed run pods by now. One that cannot be asked about counts as such.
    async fn occupied(&self, memory: &Memory, nodes: &[PoolNode], now: Timestamp) -> BTreeSet<String> {
        let mut occupied = BTreeSet::new();
        for id in memory.overdue(now, &self.settings.times) {
            let Some(node) = nodes.iter().find(|node| node.id == id) else {
                continue;
            };
            let is_occupied = self.workloads.run_on(&node.name).await.unwrap_or_else(|error| {
                tracing::warn!(%error, node = node.name, "it is not known whether pods run on a machine; it stays");
                true
            });
            if is_occupied {
                occupied.insert(id);
            }
        }
        occupied
    }

    async fn read(&self, api: &KubeApi, actor: &Actor, memory: &mut Remembered) -> Result<Reading, ApiError> {
        if memory
            .pool_id
            .as_ref()
            .is_some_and(|id| actor.twin.is_none() && self.is_twin(id))
        {
            tracing::warn!(
                pool = actor.name,
                "an older node pool of that name appeared; it is used from now on"
            );
            *memory = Remembered::default();
        }
        if memory.pool_id.is_none() {
            memory.pool_id.clone_from(&actor.twin);
        }
        if memory.pool_id.is_none() {
            let pools = self.inventory(self.settings.cadence.fresh).await?;
            // Somebody else's pool may have the name: then there is none of ours, and making one finds out.
            let design = actor.design();
            let is_ours = |pool: &&Pool| match PoolOwner::of(pool) {
                PoolOwner::Owned => design.as_ref().is_none_or(|design| design.key.is_of(pool)),
                PoolOwner::Legacy => true,
                PoolOwner::Foreign => false,
            };
            memory.pool_id = pools
                .iter()
                .filter(|pool| pool.name == actor.name && !self.is_twin(&pool.id))
                .find(is_ours)
                .map(|pool| pool.id.clone());
        }
        let Some(id) = memory.pool_id.clone() else {
            return Ok(Reading::Absent { gone: None });
        };
        let read = async { Ok((api.pool(&id).await?, api.nodes(&id).await?)) };
        match read.await {
            Ok((pool, nodes)) if pool.status != "DELETED" => {
                memory.doubt_since = None;
                memory.class = pool.label(names::NODE_CLASS).unwrap_or_default().to_owned();
                self.remember_pool(&pool);
                Ok(Reading::Found(Box::new(pool), nodes))
            }
            Err(ApiError {
                kind: ApiErrorKind::NotFound,
                ..
            }) if self.was_made_recently(&id)
                || memory
                    .created_at
                    .is_some_and(|at| self.clock.now() < later(at, INVISIBLE)) =>
            {
                Ok(Reading::Hidden)
            }
            Ok(_)
            | Err(ApiError {
                kind: ApiErrorKind::NotFound,
                ..
            }) => {
                tracing::info!(pool = actor.name, "node pool is gone");
                self.forget_pool(&id);
                self.offer(actor.key(), Vec::new());
                let old = std::mem::take(memory);
                if !old.deleted {
                    let message = format!("node pool {} was deleted by somebody else", actor.name);
                    let told = Announcement::warning("PoolDeletedExternally", message);
                    self.events.on_class(&old.class, told).await;
                }
                Ok(Reading::Absent { gone: Some(id) })
            }
            Err(error) => Err(error),
        }
    }

    /// Bindings, failures and answers: what a plan says besides its write.
    async fn carry_out(&self, actor: &Actor, memory: &mut Memory, pool: &Pool, nodes: &[PoolNode], plan: &Plan) {
        for (uid, id) in &plan.bind {
            let (Some(entry), Some(node)) = (self.ledger.get(uid), nodes.iter().find(|node| node.id == *id)) else {
                continue;
            };
            match self.ledger.publish(&entry.claim, pool, node).await {
                Ok(()) => {
                    memory.bound(id);
                    let waited = self.clock.now().duration_since(entry.reserved_at).as_secs_f64();
                    self.metrics.bound(&entry.flavor, &entry.zone, waited);
                    let outcome = Outcome::Bound {
                        pool: Box::new(pool.clone()),
                        node: Box::new(node.clone()),
                    };
                    actor.answer(uid, &outcome);
                }
                Err(error) => {
                    tracing::warn!(%error, NodeClaim = entry.claim.name, "the claim's machine is not written");
                }
            }
        }
        self.answer_the_bound(actor, pool, nodes);
        for (uid, failure) in &plan.fail {
            let Some(entry) = self.ledger.get(uid) else { continue };
            let message = self.mark(*failure, &entry.flavor, &entry.zone);
            self.tell_of_failure(*failure, &entry.claim, pool, &message).await;
            tracing::warn!(
                pool = actor.name,
                NodeClaim = entry.claim.name,
                message,
                "the claim's machine will not come"
            );
            self.withdraw(&entry.claim).await;
            actor.answer(
                uid,
                &Outcome::Failed {
                    failure: *failure,
                    message,
                },
            );
        }
        for entry in plan.blocked.iter().filter_map(|uid| self.ledger.get(uid)) {
            let message = "an admission webhook of this cluster keeps MKS from making the machine; the launch goes on \
                           when it does not any more";
            let told = Announcement::warning("WebhookBlocksMKS", message);
            self.events.on_claim(&entry.claim, &told).await;
        }
        for uid in &plan.moved {
            if let Some(entry) = self.ledger.get(uid) {
                self.withdraw(&entry.claim).await;
            }
            actor.answer(uid, &Outcome::Moved);
        }
        for entry in plan.vanished.iter().filter_map(|uid| self.ledger.get(uid)) {
            self.end_vanished(&entry).await;
        }
        for node in &plan.gone {
            actor.settle(&pool.id, node, Deletion::Gone);
        }
        for node in &plan.going {
            actor.settle(&pool.id, node, Deletion::InProgress);
        }
    }

    /// Ends a claim whose machine is gone and whose Node is down or gone, too. Core's garbage collection would get there as
    /// well, minutes later, and until then its pods wait.
    async fn end_vanished(&self, entry: &Entry) {
        let Some(node) = &entry.node_name else { return };
        match self.workloads.node(node).await {
            Ok(found) if found.as_ref().is_some_and(is_ready) => {}
            Ok(_) => {
                let message = format!(
                    "OVHcloud does not list this claim's machine any more, and Node {node} is down or gone; the claim ends"
                );
                tracing::info!(NodeClaim = entry.claim.name, message, "the claim's machine is gone");
                let told = Announcement::warning("MachineVanished", message);
                self.events.on_claim(&entry.claim, &told).await;
                if let Err(error) = self.ledger.end(&entry.claim).await {
                    tracing::warn!(%error, NodeClaim = entry.claim.name, "a claim without its machine is not ended");
                }
            }
            Err(error) => tracing::warn!(%error, node, "it is not known whether a Node without its machine is up"),
        }
    }

    /// A claim may have got its machine before its launch began to wait, such as right after a restart.
    fn answer_the_bound(&self, actor: &Actor, pool: &Pool, nodes: &[PoolNode]) {
        for uid in actor.waiting() {
            let Some(id) = self.ledger.get(&uid).and_then(|entry| entry.node_id) else {
                continue;
            };
            if let Some(node) = nodes.iter().find(|node| node.id == id) {
                let outcome = Outcome::Bound {
                    pool: Box::new(pool.clone()),
                    node: Box::new(node.clone()),
                };
                actor.answer(&uid, &outcome);
            }
        }
    }

    async fn tell_of_failure(&self, failure: Failure, claim: &ClaimMark, pool: &Pool, message: &str) {
        let (reason, class) = match failure {
            Failure::OutOfStock => ("OutOfStock", None),
            Failure::Quota => ("QuotaExhausted", pool.label(names::NODE_CLASS)),
            Failure::Broken => return,
        };
        let told = Announcement::warning(reason, message);
        self.events.on_claim(claim, &told).await;
        match class {
            Some(class) => self.events.on_class(class, told).await,
            None => {
                let node_pool = pool.label(karpenter_api::labels::NODEPOOL).unwrap_or_default();
                self.events.on_node_pool(node_pool, told).await;
            }
        }
    }

    async fn withdraw(&self, claim: &ClaimMark) {
        if let Err(error) = self.ledger.withdraw(claim).await {
            tracing::warn!(%error, NodeClaim = claim.name, "the claim's reservation is not taken back");
        }
    }
}

impl From<Outcome> for CloudError {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Bound { node, .. } => Self::transient(format!("machine {} is there", node.id)),
            Outcome::Refused { message, .. } | Outcome::Failed { message, .. } => Self::insufficient_capacity(message),
            Outcome::Moved => Self::create("PoolChanged", "the claim's node pool is gone; another is being chosen"),
            Outcome::Error(error) => {
                let reason = match error.kind {
                    ApiErrorKind::Auth | ApiErrorKind::Clock => "InvalidCredentials",
                    ApiErrorKind::NotGranted => "MissingRights",
                    ApiErrorKind::Expired => "ServiceExpired",
                    _ => "APIError",
                };
                Self::create(reason, error.to_string())
            }
        }
    }
}
