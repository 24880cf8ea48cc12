//! Carries out commands: marks the candidates, launches replacements, waits for them, then lets the candidates go.
//!
//! The queue lives in memory only. After a restart the sweep takes back the marks, replacements that were launched become
//! ordinary nodes, and the next pass decides anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition;
use karpenter_api::node_pool::ConsolidationPolicy;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_engine::disruption::{Candidate, Command, Decision, Method};
use karpenter_engine::plan::PlannedClaim;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::metrics::{DisruptionMetrics, reason};
use super::{marks, repair, report};
use crate::claim_creation::{ClaimCreator, planned_claim, static_claim};
use crate::claims;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::events::{self, Regarding};
use crate::metrics::shared::Disrupted;
use crate::runner::{Backoff, Bucket, Controller, Handle, Next, RateLimit, ReconcileKey, Runnable};
use crate::state::{Cluster, Machine};
use crate::static_capacity::provisioning::node_limit;

const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// How long a command may take, longer the more nodes are being disrupted at once.
pub fn command_timeout(candidates_in_queue: usize) -> Duration {
    let wanted = Duration::from_millis(80) * u32::try_from(candidates_in_queue).unwrap_or(u32::MAX);
    wanted.clamp(Duration::from_secs(10 * 60), Duration::from_secs(3600))
}

/// Commands that are being carried out.
#[derive(Clone, Debug)]
pub struct Queue {
    ctx: Context,
    metrics: Arc<DisruptionMetrics>,
    creator: ClaimCreator,
    running: Arc<Mutex<BTreeMap<String, Running>>>,
    handle: Handle<String>,
}

#[derive(Debug, Clone)]
struct Running {
    command: Arc<Command>,
    started: Timestamp,
    replacements: Vec<Replacement>,
    /// Candidates whose deletion was accepted: events and metrics speak of each once.
    deleted: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Replacement {
    name: String,
    /// Once true it stays true: a node that turns NotReady later is repair's business.
    initialized: bool,
}

/// Where a command stands after a look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Done,
    /// A replacement is gone for good.
    Failed,
}

/// The queue and the `disruption.queue` controller that works on it. Items are commands, not claims: a claim may be gone
/// before its command is done.
pub(super) fn controller(ctx: &Context, metrics: Arc<DisruptionMetrics>) -> (Queue, Runnable) {
    let mut controller = Controller::<String>::new(&ctx.runner, "disruption.queue")
        .concurrency(100)
        .rate_limit(RateLimit {
            backoff: Backoff {
                first: Duration::from_secs(1),
                most: Duration::from_secs(10),
            },
            bucket: Bucket {
                per_second: 100.0,
                burst: 1000.0,
            },
        });
    let queue = Queue {
        ctx: ctx.clone(),
        metrics,
        creator: ClaimCreator::new(ctx.client.clone(), ctx.state.clone(), ctx.metrics.shared.clone()),
        running: Arc::default(),
        handle: controller.handle(),
    };
    let runnable = controller.runs_keys(queue.clone());
    (queue, runnable)
}

impl Queue {
    /// Provider IDs of every machine that a command owns.
    pub fn machines(&self) -> BTreeSet<String> {
        let running = self.running.lock();
        let candidates = running.values().flat_map(|running| &running.command.candidates);
        candidates
            .filter_map(|candidate| candidate.node.provider_id.as_deref().map(str::to_owned))
            .collect()
    }

    /// Begins a command: from here on the candidates take no more pods, and their replacements are on their way.
    ///
    /// # Errors
    /// When a candidate is owned by another command, cannot be marked, or a replacement cannot be created. Marks that
    /// were made are taken back by the next sweep.
    pub async fn start(&self, mut command: Command) -> Result<()> {
        let owned = self.machines();
        let is_owned = |candidate: &Candidate| {
            candidate
                .node
                .provider_id
                .as_deref()
                .is_some_and(|id| owned.contains(id))
        };
        if let Some(candidate) = command.candidates.iter().find(|candidate| is_owned(candidate)) {
            return Err(Error::failed(format!(
                "{} is being disrupted already",
                candidate.name()
            )));
        }
        report::log_start(&command);
        if command.decision() == Decision::Reboot {
            // The reboot controller has it in hand already.
            self.metrics.started(&command);
            for candidate in &command.candidates {
                if let Some(claim) = self.machine(candidate).and_then(|machine| machine.claim) {
                    self.count(&command, candidate, &claim);
                }
            }
            return Ok(());
        }
        let slots = self.reserve(&command)?;
        self.mark(&mut command).await?;
        let replacements = self.launch(&command).await?;
        drop(slots);
        // Not before the replacements exist: provisioning would see pods without a place and buy a second time.
        self.ctx.state.mark_for_deletion(provider_ids(&command));
        self.expect_pods(&command);
        self.metrics.started(&command);
        let id = uuid::Uuid::new_v4().to_string();
        let running = Running {
            command: Arc::new(command),
            started: self.ctx.clock.now(),
            replacements,
            deleted: BTreeSet::new(),
        };
        self.running.lock().insert(id.clone(), running);
        self.handle.wake(id);
        Ok(())
    }

    /// Takes a slot in every static pool that is to get one more node.
    fn reserve(&self, command: &Command) -> Result<Slots> {
        let mut slots = Slots {
            state: self.ctx.state.clone(),
            pools: Vec::new(),
        };
        for name in &command.from_template {
            let limit = self.ctx.pools.named(name).map_or(0, |pool| node_limit(&pool));
            if self.ctx.state.slots.reserve(name, limit, 1) == 0 {
                return Err(Error::failed(format!(
                    "limits.nodes of NodePool {name} leaves no room for a replacement any more"
                )));
            }
            slots.pools.push(name.clone());
        }
        Ok(slots)
    }

    /// A command with replacements needs every candidate marked; one without goes on with those that could be.
    async fn mark(&self, command: &mut Command) -> Result<()> {
        let reason = command.method.reason().as_str();
        let marking = command.candidates.iter().map(|candidate| async {
            match self.machine(candidate) {
                Some(machine) => marks::set(&self.ctx, &machine, reason).await,
                None => Ok(()),
            }
        });
        let outcomes = join_all(marking).await;
        let mut failure = None;
        let mut marked = Vec::new();
        for (candidate, outcome) in std::mem::take(&mut command.candidates).into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    if self
                        .ctx
                        .pools
                        .named(&candidate.pool)
                        .is_some_and(|pool| pool.is_static())
                    {
                        let slots = &self.ctx.state.slots;
                        slots.pending_disruption(&candidate.pool, &candidate.claim.name);
                    }
                    marked.push(candidate);
                }
                Err(error) => {
                    match error.is_conflict() {
                        // Somebody wrote on it meanwhile, its kubelet for one: the next pass sees that and tries again.
                        true => {
                            tracing::debug!(Node = candidate.name(), %error, "a node changed while it was marked for disruption");
                        }
                        false => {
                            tracing::error!(Node = candidate.name(), %error, "could not mark a node for disruption");
                        }
                    }
                    failure = Some(error);
                }
            }
        }
        command.candidates = marked;
        match failure {
            Some(error) if command.replacement_count() > 0 || command.candidates.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    async fn launch(&self, command: &Command) -> Result<Vec<Replacement>> {
        let planned = join_all(
            command
                .replacements
                .iter()
                .map(|planned| self.launch_one(planned, command.method)),
        );
        let from_template = join_all(
            command
                .from_template
                .iter()
                .map(|pool| self.launch_from_template(pool, command.method)),
        );
        let (planned, from_template) = futures::join!(planned, from_template);
        planned.into_iter().chain(from_template).collect()
    }

    async fn launch_from_template(&self, pool: &str, method: Method) -> Result<Replacement> {
        let claim = static_claim(&*self.pool(pool)?, &self.ctx.rules);
        let created = self.creator.create(&claim, &[], reason(method)).await?;
        Ok(Replacement {
            name: created.name_any(),
            initialized: false,
        })
    }

    fn pool(&self, name: &str) -> Result<Arc<NodePool>> {
        self.ctx
            .pools
            .named(name)
            .ok_or_else(|| Error::failed(format!("NodePool {name} is gone, not creating a replacement of it")))
    }

    async fn launch_one(&self, planned: &PlannedClaim, method: Method) -> Result<Replacement> {
        let pool = self.pool(&planned.node_pool.name)?;
        let claim = planned_claim(&pool, planned, &self.ctx.rules);
        // Pods that still run on a candidate come back under another name; only those that wait already are promised.
        let waiting: Vec<_> = planned
            .pods
            .iter()
            .filter(|pod| pod.node_name.is_none() && pod.buffer.is_none())
            .cloned()
            .collect();
        let created = self.creator.create(&claim, &waiting, reason(method)).await?;
        Ok(Replacement {
            name: created.name_any(),
            initialized: false,
        })
    }

    /// Existing nodes that are to take moved pods must not be disrupted before those arrive.
    fn expect_pods(&self, command: &Command) {
        let receiving = command
            .plan
            .existing
            .iter()
            .filter(|placement| placement.pods.iter().any(|pod| pod.buffer.is_none()));
        self.ctx.state.nominate(receiving.map(|placement| &*placement.node));
    }

    fn machine(&self, candidate: &Candidate) -> Option<Machine> {
        self.ctx.state.machine(candidate.node.provider_id.as_deref()?)
    }

    /// Looks at each replacement that was not up yet.
    fn check_replacements(&self, running: &mut Running) -> Progress {
        let mut progress = Progress::Done;
        for replacement in running
            .replacements
            .iter_mut()
            .filter(|replacement| !replacement.initialized)
        {
            let Some(claim) = self.ctx.claims.named(&replacement.name) else {
                if self.ctx.state.is_unseen(&replacement.name) {
                    // The watch has not brought it yet.
                    progress = Progress::Waiting;
                    continue;
                }
                return Progress::Failed;
            };
            let object = Regarding::of(&*claim);
            let why = running.command.method.reason();
            self.ctx
                .events
                .publish(events::disruption_launching(object.clone(), why.as_str()));
            if claim.is_true(condition::INITIALIZED) {
                replacement.initialized = true;
            } else {
                self.ctx.events.publish(events::disruption_waiting_readiness(object));
                progress = Progress::Waiting;
            }
        }
        progress
    }

    /// Deletes every candidate's claim, side by side; the termination controllers do the rest.
    async fn delete_candidates(&self, running: &mut Running) -> Result<()> {
        let left = running
            .command
            .candidates
            .iter()
            .filter(|candidate| !running.deleted.contains(candidate.name()));
        let deletions = left.map(|candidate| async {
            let deleted = self.delete_candidate(&running.command, candidate).await;
            (candidate.name().to_owned(), deleted)
        });
        let outcomes = join_all(deletions).await;
        let mut errors = Vec::new();
        for (name, deleted) in outcomes {
            match deleted {
                Ok(()) => {
                    running.deleted.insert(name);
                }
                Err(error) => errors.push(error),
            }
        }
        Error::all(errors)
    }

    async fn delete_candidate(&self, command: &Command, candidate: &Candidate) -> Result<()> {
        let claim = self.machine(candidate).and_then(|machine| machine.claim);
        let Some(claim) = claim.filter(|claim| !claim.is_terminating()) else {
            return Ok(());
        };
        // The mark may be younger than what the watch has shown.
        let claim = self.ctx.claim_writer.newest(claim);
        // Counted from here on: the time that the replacement took to come up is not the pods' loss.
        let bound = command.drain_bound(candidate);
        let deadline = bound.map(|bound| repair::deadline(self.ctx.clock.now(), bound));
        self.ctx.claim_writer.delete_by(&claim, deadline).await?;
        report::terminating(&self.ctx, candidate, command.method);
        self.count(command, candidate, &claim);
        Ok(())
    }

    fn count(&self, command: &Command, candidate: &Candidate, claim: &NodeClaim) {
        let policy = self
            .ctx
            .pools
            .named(&candidate.pool)
            .map(|pool| pool.spec.disruption.consolidation_policy);
        let policy = match command.method.consolidation_type() {
            "" => "",
            _ => policy.map_or("", policy_label),
        };
        let disrupted = Disrupted {
            reason: reason(command.method),
            nodepool: &candidate.pool,
            capacity_type: candidate.capacity_type().unwrap_or(""),
            consolidation_policy: policy,
            termination_mode: claims::termination_mode(claim),
        };
        let moving = candidate
            .node
            .pods()
            .iter()
            .filter(|pod| karpenter_engine::disruption::pods::is_reschedulable(pod));
        if let Some(ailment) = &command.ailment {
            let unhealthy = Disrupted {
                termination_mode: match command.drain_bound(candidate) {
                    None => disrupted.termination_mode,
                    Some(bound) if bound > SignedDuration::ZERO => "eventual",
                    Some(_) => "forceful",
                },
                ..disrupted.clone()
            };
            let image = claim.status.as_ref().and_then(|status| status.image_id.as_deref());
            self.ctx.metrics.shared.unhealthy_nodeclaim_disrupted(
                &ailment.condition,
                &unhealthy,
                image.unwrap_or_default(),
            );
        }
        self.ctx.metrics.shared.nodeclaim_disrupted(&disrupted);
        self.ctx
            .metrics
            .shared
            .pods_disruption_initiated(&disrupted, moving.count());
    }

    /// Takes everything back; replacements that did come up stay and are treated as any node.
    async fn roll_back(&self, running: &Running) -> Result<()> {
        for candidate in &running.command.candidates {
            if let Some(machine) = self.machine(candidate) {
                marks::clear(&self.ctx, &machine).await?;
            }
        }
        self.ctx.state.unmark_for_deletion(provider_ids(&running.command));
        let missing = running
            .replacements
            .iter()
            .filter(|replacement| !replacement.initialized)
            .count();
        self.metrics.queue_failed(&running.command, missing);
        tracing::error!(
            command = report::summary(&running.command),
            "failed to disrupt, taking it back"
        );
        Ok(())
    }

    fn candidates_in_queue(&self) -> usize {
        self.running
            .lock()
            .values()
            .map(|running| running.command.candidates.len())
            .sum()
    }
}

impl ReconcileKey<String> for Queue {
    async fn reconcile(&self, id: String) -> Result<Next> {
        let Some(mut running) = self.running.lock().get(&id).cloned() else {
            return Ok(Next::Wait);
        };
        let progress = self.check_replacements(&mut running);
        if progress == Progress::Done {
            let deleted = self.delete_candidates(&mut running).await;
            if deleted.is_ok() {
                self.running.lock().remove(&id);
                return Ok(Next::Wait);
            }
            self.running.lock().insert(id, running);
            deleted?;
            return Ok(Next::After(RETRY));
        }
        let age = self.ctx.clock.since(running.started);
        let timeout = command_timeout(self.candidates_in_queue());
        let is_late = Duration::try_from(age).is_ok_and(|age| age > timeout);
        if progress == Progress::Failed || is_late {
            self.roll_back(&running).await?;
            self.running.lock().remove(&id);
            return Ok(Next::Wait);
        }
        self.running.lock().insert(id, running);
        Ok(Next::After(RETRY))
    }
}

/// Slots of static pools, given back when the nodes they were taken for exist, or will not.
#[derive(Debug)]
struct Slots {
    state: Arc<Cluster>,
    pools: Vec<String>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        for pool in &self.pools {
            self.state.slots.release(pool, 1);
        }
    }
}

/// The metric's spelling of a policy.
fn policy_label(policy: ConsolidationPolicy) -> &'static str {
    match policy {
        ConsolidationPolicy::WhenEmpty => "when_empty",
        ConsolidationPolicy::WhenEmptyOrUnderutilized => "when_empty_or_underutilized",
        ConsolidationPolicy::Balanced => "balanced",
    }
}

fn provider_ids(command: &Command) -> impl Iterator<Item = &str> {
    command
        .candidates
        .iter()
        .filter_map(|candidate| candidate.node.provider_id.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_take_longer_when_many_nodes_are_being_disrupted() {
        let minutes = |candidates: usize| command_timeout(candidates).as_secs_f64() / 60.0;
        assert_eq!(minutes(100), 10.0);
        assert_eq!(minutes(4_000), 10.0);
        assert_eq!(command_timeout(10_000).as_secs(), 13 * 60 + 20);
        assert_eq!(command_timeout(40_000).as_secs(), 53 * 60 + 20);
        assert_eq!(minutes(45_000), 60.0);
        assert_eq!(minutes(1_000_000), 60.0);
    }
}
