//! The loop that drives all controllers: one task, one memory, one order of things.
//!
//! Every event of the store changes the memory and puts work into the queue; work is done one piece at a time, and what
//! it writes comes back as events before the next piece begins. So no controller ever acts on a stale view of its own
//! writes, and the same seed and the same requests give the same cluster.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::mpsc;

use super::effects::Effects;
use super::garbage::Garbage;
use super::kubelet::{Kubelets, Order};
use super::node_lifecycle::NodeHealth;
use super::scheduler::{Backoff, Scheduler};
use super::storage::StorageWork;
use super::taint_eviction::TaintEvictions;
use super::timing::Timing;
use super::world::World;
use crate::server::Server;
use crate::settle::Busy;
use crate::store::{CollectionName, Feed};

/// A piece of work: look at this object and do what is due.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Task {
    KubeletNode(Arc<str>),
    NodeLifecycle(Arc<str>),
    Garbage(CollectionName, Arc<str>),
    Namespace(Arc<str>),
    Deployment(Arc<str>),
    ReplicaSet(Arc<str>),
    StatefulSet(Arc<str>),
    DaemonSet(Arc<str>),
    Job(Arc<str>),
    Budget(Arc<str>),
    TaintEviction(Arc<str>),
    PodGc(Arc<str>),
    KubeletPod(Arc<str>),
    Claim(Arc<str>),
    Volume(Arc<str>),
    Attachments(Arc<str>),
    Reservation(Arc<str>),
    ExpireEvent(Arc<str>),
    FlushScheduler,
}

/// All controllers and what they know.
#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) effects: Effects,
    pub(crate) world: World,
    pub(crate) scheduler: Scheduler,
    pub(crate) kubelets: Kubelets,
    pub(crate) garbage: Garbage,
    pub(crate) health: NodeHealth,
    pub(crate) evictions: TaintEvictions,
    pub(crate) timing: Timing,
    pub(crate) missing_nodes: FxHashMap<Arc<str>, Timestamp>,
    pub(crate) storage: StorageWork,
    queue: WorkQueue,
    timers: Timers,
    feed: Feed,
    orders: mpsc::UnboundedReceiver<(Order, Busy)>,
}

/// Work in order of arrival, each piece at most once.
#[derive(Debug, Default)]
struct WorkQueue {
    urgent: VecDeque<Task>,
    summaries: VecDeque<Task>,
    waiting: FxHashSet<Task>,
}

impl WorkQueue {
    fn push(&mut self, task: Task) {
        if self.waiting.insert(task.clone()) {
            match task.is_summary() {
                true => self.summaries.push_back(task),
                false => self.urgent.push_back(task),
            }
        }
    }

    fn pop_urgent(&mut self) -> Option<Task> {
        let task = self.urgent.pop_front()?;
        self.waiting.remove(&task);
        Some(task)
    }

    fn pop_summary(&mut self) -> Option<Task> {
        let task = self.summaries.pop_front()?;
        self.waiting.remove(&task);
        Some(task)
    }
}

impl Task {
    /// Work that looks at all pods of a workload. It waits until single pods have moved as far as they can, so that a
    /// thousand pods that start cause one look at the workload and not a thousand.
    fn is_summary(&self) -> bool {
        match self {
            Self::Deployment(_)
            | Self::ReplicaSet(_)
            | Self::StatefulSet(_)
            | Self::DaemonSet(_)
            | Self::Job(_)
            | Self::Budget(_) => true,
            Self::KubeletNode(_)
            | Self::NodeLifecycle(_)
            | Self::Garbage(..)
            | Self::Namespace(_)
            | Self::TaintEviction(_)
            | Self::PodGc(_)
            | Self::KubeletPod(_)
            | Self::Claim(_)
            | Self::Volume(_)
            | Self::Attachments(_)
            | Self::Reservation(_)
            | Self::ExpireEvent(_)
            | Self::FlushScheduler => false,
        }
    }
}

/// Work that is due later; each piece has at most one time, the earliest.
#[derive(Debug, Default)]
struct Timers {
    by_time: BTreeSet<(Timestamp, Task)>,
    times: FxHashMap<Task, Timestamp>,
}

impl Timers {
    fn arm(&mut self, task: Task, at: Timestamp) {
        match self.times.get(&task).copied() {
            Some(known) if known <= at => return,
            Some(known) => {
                self.by_time.remove(&(known, task.clone()));
            }
            None => {}
        }
        self.times.insert(task.clone(), at);
        self.by_time.insert((at, task));
    }

    fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn pop_due(&mut self, now: Timestamp) -> Option<Task> {
        if self.next()? > now {
            return None;
        }
        let (_, task) = self.by_time.pop_first()?;
        self.times.remove(&task);
        Some(task)
    }
}

/// How much work is done before other tasks of the runtime get their turn.
const TURN: usize = 64;

impl Manager {
    pub(crate) fn new(
        server: Arc<Server>,
        timing: Timing,
        seed: u64,
        orders: mpsc::UnboundedReceiver<(Order, Busy)>,
    ) -> Self {
        let backoff = Backoff {
            initial: timing.scheduler_backoff,
            max: timing.scheduler_max_backoff,
        };
        Self {
            feed: server.store().feed(),
            effects: Effects::new(server),
            world: World::default(),
            scheduler: Scheduler::new(seed, backoff),
            kubelets: Kubelets::default(),
            garbage: Garbage::default(),
            health: NodeHealth::default(),
            evictions: TaintEvictions::default(),
            missing_nodes: FxHashMap::default(),
            storage: StorageWork::default(),
            timing,
            queue: WorkQueue::default(),
            timers: Timers::default(),
            orders,
        }
    }

    /// Runs until the store is gone.
    pub(crate) async fn run(mut self) {
        let progress = Arc::clone(&self.effects.server().progress);
        loop {
            let busy = progress.busy();
            let mut done = 0;
            while self.work_once() {
                done += 1;
                if done % TURN == 0 {
                    tokio::task::yield_now().await;
                }
            }
            drop(busy);
            let clock = self.effects.clock().clone();
            let next = [self.timers.next(), self.scheduler.next_backoff()]
                .into_iter()
                .flatten()
                .min();
            let alarm = async {
                match next {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = self.feed.next() => match event {
                    Some(event) => self.observe(&event),
                    None => return,
                },
                Some((order, busy)) = self.orders.recv() => {
                    self.obey(order);
                    drop(busy);
                }
                () = alarm => {}
            }
        }
    }

    /// Takes in what happened and does one piece of work; false if there is none.
    fn work_once(&mut self) -> bool {
        while let Some(event) = self.feed.try_next() {
            self.observe(&event);
        }
        let now = self.effects.now();
        while let Some(task) = self.timers.pop_due(now) {
            self.queue.push(task);
        }
        if let Some(task) = self.queue.pop_urgent() {
            self.perform(&task);
            return true;
        }
        self.scheduler.wake(now);
        if let Some(key) = self.scheduler.pop() {
            self.schedule(&key);
            return true;
        }
        if let Some(task) = self.queue.pop_summary() {
            self.perform(&task);
            return true;
        }
        if self.scheduler.has_refused() {
            self.arm(
                Task::FlushScheduler,
                crate::clock::later(now, self.timing.scheduler_flush),
            );
        }
        false
    }

    fn perform(&mut self, task: &Task) {
        match task {
            Task::KubeletNode(node) => self.tend_node(node),
            Task::KubeletPod(key) => self.tend_pod(key),
            Task::NodeLifecycle(node) => self.judge_node(node),
            Task::Garbage(collection, key) => self.collect_garbage(collection, key),
            Task::Namespace(name) => self.empty_namespace(name),
            Task::Deployment(key) => self.sync_deployment(key),
            Task::ReplicaSet(key) => self.sync_replica_set(key),
            Task::StatefulSet(key) => self.sync_stateful_set(key),
            Task::DaemonSet(key) => self.sync_daemon_set(key),
            Task::Job(key) => self.sync_job(key),
            Task::Budget(key) => self.sync_budget(key),
            Task::TaintEviction(key) => self.evict_from_tainted(key),
            Task::PodGc(key) => self.collect_pod(key),
            Task::Claim(key) => self.sync_claim(key),
            Task::Volume(name) => self.sync_volume(name),
            Task::Attachments(node) => self.sync_attachments(node),
            Task::Reservation(key) => self.bind_reserved(key),
            Task::ExpireEvent(key) => self.expire_event(key),
            Task::FlushScheduler => {
                let now = self.effects.now();
                self.scheduler.flush(now);
            }
        }
    }

    /// Puts work into the queue.
    pub(crate) fn enqueue(&mut self, task: Task) {
        self.queue.push(task);
    }

    /// Puts work into the queue at a later time.
    pub(crate) fn arm(&mut self, task: Task, at: Timestamp) {
        self.timers.arm(task, at);
    }
}
