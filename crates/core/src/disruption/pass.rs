//! The loop that looks for something to disrupt (disruption.md §1).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::node_pool::ConsolidationPolicy;
use karpenter_engine::disruption::balanced::Totals;
use karpenter_engine::disruption::blocked::Blocked;
use karpenter_engine::disruption::candidate::Candidate;
use karpenter_engine::disruption::consolidation::{multi, single};
use karpenter_engine::disruption::emptiness::Constrained;
use karpenter_engine::disruption::rehearsal::Rehearsal;
use karpenter_engine::disruption::repair::{self, Breaker};
use karpenter_engine::disruption::{
    Budgets, Command, Decision, Fleet, Method, drift, emptiness, forecast, static_drift,
};
use parking_lot::Mutex;

use super::Memories;
use super::metrics::DisruptionMetrics;
use super::queue::Queue;
use super::{fleet, marks, report, validation};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::provisioning::without_blocking;
use crate::reboot::request::{self, Commitment};
use crate::runner::{Controller, Next, Runnable, Singleton};

/// How long a search may take. Ours needs a fraction of a second for a thousand nodes; the limits are for what nobody
/// foresaw, and the same as upstream's.
const MULTI_NODE_LIMIT: SignedDuration = SignedDuration::from_mins(1);
const SINGLE_NODE_LIMIT: SignedDuration = SignedDuration::from_mins(3);
const POLL: SignedDuration = SignedDuration::from_secs(10);
/// The loop comes earlier if an empty node's time is up before, but not in a hurry: nodes that empty together go together.
const EARLIEST: SignedDuration = SignedDuration::from_secs(1);
/// For how long after an empty node's time the loop waits for it to be a candidate.
const LATE: SignedDuration = SignedDuration::from_secs(3);
const NOT_SYNCED: SignedDuration = SignedDuration::from_secs(1);

/// The `disruption` controller.
pub(super) fn controller(ctx: &Context, metrics: Arc<DisruptionMetrics>, queue: Queue, memories: Memories) -> Runnable {
    let disruption = Disruption {
        ctx: ctx.clone(),
        metrics,
        queue,
        memories,
        memory: Mutex::default(),
    };
    Controller::new(&ctx.runner, "disruption").runs_singleton(disruption)
}

/// Looks for one thing to do at a time, most urgent method first.
#[derive(Debug)]
pub struct Disruption {
    ctx: Context,
    metrics: Arc<DisruptionMetrics>,
    queue: Queue,
    memories: Memories,
    memory: Mutex<Memory>,
}

/// What one pass remembers for the next.
#[derive(Debug, Default)]
struct Memory {
    /// The consolidation state at which each method last found nothing to do.
    consolidated: BTreeMap<Method, Timestamp>,
    /// NodePools that single-node consolidation did not get to last time.
    unseen: BTreeSet<String>,
}

/// What the methods of one pass look at. It stays the same for as long as nobody has waited or searched: in a large cluster at
/// rest, putting it together anew for every method would be most of our work.
#[derive(Debug, Default)]
struct View {
    fleet: Option<Fleet>,
    /// Multi-node consolidation may choose from nothing, so single-node consolidation, which asks the same of a node, need not look.
    nothing_to_consolidate: bool,
}

impl View {
    /// The cluster for one method. [`View::keep`] gives it back.
    async fn take(&mut self, ctx: &Context, queue: &Queue, memories: &Memories) -> Fleet {
        match self.fleet.take() {
            Some(fleet) => fleet,
            None => {
                self.nothing_to_consolidate = false;
                fleet::build(ctx, &queue.machines(), memories).await
            }
        }
    }

    /// Nothing has happened since.
    fn keep(&mut self, fleet: Fleet) {
        self.fleet = Some(fleet);
    }

    /// Whether the method can have no candidates. What keeps a node from drift keeps it from emptiness too, and was told there.
    fn rules_out(&self, method: Method, fleet: &Fleet) -> bool {
        match method {
            Method::Drift | Method::StaticDrift => {
                let mut claims = fleet.members.iter().filter_map(|member| member.claim.as_deref());
                claims.all(|claim| claim.drifted_since.is_none())
            }
            Method::SingleNodeConsolidation => self.nothing_to_consolidate,
            Method::Repair | Method::Emptiness | Method::MultiNodeConsolidation => false,
        }
    }
}

/// What a method came to.
#[derive(Debug)]
enum Found {
    /// Carry these out.
    Commands(Vec<Command>),
    /// Nothing; look again when the cluster changes.
    Nothing,
    /// Nothing, but not because there is nothing: look again next time.
    NotYet,
}

impl Found {
    /// Nothing was found, but not because there is nothing.
    fn or_not_yet(self) -> Found {
        match self {
            Found::Nothing => Found::NotYet,
            found => found,
        }
    }
}

impl Singleton for Disruption {
    async fn reconcile(&self) -> Result<Next> {
        report::unreadable_budgets(&self.ctx);
        if !self.ctx.state.synced() {
            return Ok(Next::After(NOT_SYNCED));
        }
        marks::sweep(&self.ctx, &self.queue.machines()).await?;
        let mut view = View::default();
        for method in Method::ORDER {
            if method == Method::Repair && self.memories.repairs.is_none() {
                continue;
            }
            if self.run(method, &mut view).await? {
                return Ok(Next::After(SignedDuration::ZERO));
            }
        }
        let next = match validation::next_due(&self.ctx, LATE, POLL) {
            Some(due) => due.duration_since(self.ctx.clock.now()).max(EARLIEST),
            None => POLL,
        };
        Ok(Next::After(next))
    }
}

impl Disruption {
    /// Whether the method found something and started it.
    async fn run(&self, method: Method, view: &mut View) -> Result<bool> {
        let started = Instant::now();
        let outcome = self.try_method(method, view).await;
        self.metrics.evaluated(method, started.elapsed());
        outcome
    }

    async fn try_method(&self, method: Method, view: &mut View) -> Result<bool> {
        let state = self.ctx.state.consolidation_state();
        let uses_marker = !method.consolidation_type().is_empty();
        if uses_marker && self.memory.lock().consolidated.get(&method) == Some(&state) {
            return Ok(false);
        }
        let fleet = view.take(&self.ctx, &self.queue, &self.memories).await;
        if view.rules_out(method, &fleet) {
            self.metrics.eligible(method, 0);
            view.keep(fleet);
            return Ok(false);
        }
        let survey = forecast::survey(&fleet, method);
        if method == Method::Emptiness {
            report::protections(&self.ctx, &fleet);
        }
        for (node, blocked) in &survey.blocked {
            report::blocked(&self.ctx, node, blocked);
        }
        self.metrics.eligible(method, survey.candidates.len());
        if survey.candidates.is_empty() {
            view.nothing_to_consolidate |= method == Method::MultiNodeConsolidation;
            view.keep(fleet);
            return Ok(false);
        }
        let mut budgets = Budgets::of(&fleet, method.reason());
        self.metrics.budgets(&budgets);
        report::exhausted_budgets(&self.ctx, &budgets);

        if method == Method::Repair {
            return self.repair(&fleet, survey.candidates, &budgets).await;
        }
        let found = without_blocking(&fleet.snapshot, || self.search(method, &fleet, survey, &mut budgets));
        let commands = match found {
            Found::Commands(commands) => commands,
            Found::NotYet => return Ok(false),
            Found::Nothing => {
                if uses_marker {
                    self.memory.lock().consolidated.insert(method, state);
                }
                return Ok(false);
            }
        };
        if matches!(method, Method::MultiNodeConsolidation | Method::SingleNodeConsolidation) {
            for command in &commands {
                self.metrics.moved(command, |pool| policy_name(&fleet, pool));
                report::found(&self.ctx, command);
                report::approved(&self.ctx, command);
            }
        }
        let commands = match method {
            Method::Repair | Method::StaticDrift | Method::Drift => commands,
            Method::Emptiness | Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                self.validated(commands).await
            }
        };
        self.start(commands).await
    }

    /// The commands that are still a good idea after a second look.
    async fn validated(&self, commands: Vec<Command>) -> Vec<Command> {
        let mut valid = Vec::new();
        for mut command in commands {
            let queued = self.queue.machines();
            match validation::validate(&self.ctx, &self.metrics, &queued, &self.memories, &mut command).await {
                Ok(()) => valid.push(command),
                Err(invalid) => {
                    tracing::debug!(
                        command = report::summary(&command),
                        reason = invalid.as_str(),
                        "abandoned"
                    );
                    if command.method != Method::Emptiness {
                        report::rejected(&self.ctx, &command, invalid.as_str());
                    }
                }
            }
        }
        valid
    }

    /// Starts all commands at once; one that cannot be started does not keep the others.
    async fn start(&self, commands: Vec<Command>) -> Result<bool> {
        if commands.is_empty() {
            return Ok(false);
        }
        let started = join_all(commands.into_iter().map(|command| self.queue.start(command))).await;
        Error::all(started.into_iter().filter_map(Result::err).collect())?;
        Ok(true)
    }

    /// Treats the most urgent node that can be treated now.
    async fn repair(&self, fleet: &Fleet, mut candidates: Vec<Candidate>, budgets: &Budgets) -> Result<bool> {
        repair::order(fleet, &mut candidates);
        let breaker = Breaker::of(fleet);
        while !candidates.is_empty() {
            let found = without_blocking(&fleet.snapshot, || {
                let mut rehearsal = Rehearsal::new(fleet);
                let attempt = |candidate: &Candidate| repair::attempt(&mut rehearsal, candidate, &breaker, budgets);
                self.first(fleet, candidates.iter().cloned(), attempt)
            });
            let Found::Commands(commands) = found else {
                return Ok(false);
            };
            let reboot = commands.iter().find(|command| command.decision() == Decision::Reboot);
            let Some(reboot) = reboot else {
                return self.start(commands).await;
            };
            if self.commit_reboot(reboot).await? {
                return self.start(commands).await;
            }
            // Somebody else was faster; the candidates before it were looked at already.
            let after = candidates
                .iter()
                .position(|candidate| candidate.name() == reboot.candidates[0].name());
            candidates.drain(..=after.unwrap_or(candidates.len() - 1));
        }
        Ok(false)
    }

    async fn commit_reboot(&self, command: &Command) -> Result<bool> {
        let (Some(candidate), Some(ailment), Some(repairs)) =
            (command.candidates.first(), &command.ailment, &self.memories.repairs)
        else {
            return Ok(false);
        };
        let bound = command
            .drain_bound(candidate)
            .or(candidate.claim.termination_grace_period);
        let message = format!(
            "condition {}={} ({})",
            ailment.condition, ailment.status, ailment.reason
        );
        let commitment = request::commit(&self.ctx, &candidate.claim.name, bound, &message).await?;
        if commitment == Commitment::Committed {
            repairs.reboot_requested(&candidate.claim.uid, self.ctx.clock.now());
        }
        Ok(commitment == Commitment::Committed)
    }

    fn search(&self, method: Method, fleet: &Fleet, survey: forecast::Survey, budgets: &mut Budgets) -> Found {
        let totals = || Totals::of(fleet, &survey.all);
        let mut candidates = survey.candidates;
        let started = self.ctx.clock.now();
        let in_time = |limit: SignedDuration| match self.ctx.clock.since(started) > limit {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        match method {
            Method::Emptiness => {
                let before = candidates.len();
                candidates.retain(|candidate| validation::is_due_soon(&self.ctx, candidate));
                let left = before - candidates.len();
                let found = found(emptiness::compute(candidates, budgets));
                match left {
                    0 => found,
                    _ => found.or_not_yet(),
                }
            }
            Method::MultiNodeConsolidation => {
                let mut time = || in_time(MULTI_NODE_LIMIT);
                let search = multi::search(&mut Rehearsal::new(fleet), candidates, &totals(), budgets, &mut time);
                if let Some(refused) = &search.refused {
                    self.metrics.refused(refused, |pool| policy_name(fleet, pool));
                }
                let found = found((search.command, search.constrained));
                match search.end {
                    multi::End::Searched => found,
                    multi::End::Late => {
                        self.metrics.timed_out(method);
                        found.or_not_yet()
                    }
                }
            }
            Method::Repair => Found::Nothing,
            Method::StaticDrift => {
                let (commands, refused) = static_drift::compute(fleet, candidates, budgets);
                for (node, blocked) in &refused {
                    report::blocked(&self.ctx, node, blocked);
                }
                match commands.is_empty() {
                    true => Found::NotYet,
                    false => Found::Commands(commands),
                }
            }
            Method::Drift => {
                drift::order(&mut candidates);
                let mut rehearsal = Rehearsal::new(fleet);
                let attempt = |candidate: &Candidate| drift::attempt(&mut rehearsal, candidate, budgets);
                self.first(fleet, candidates, attempt)
            }
            Method::SingleNodeConsolidation => {
                let mut unseen = self.memory.lock().unseen.clone();
                let mut time = || in_time(SINGLE_NODE_LIMIT);
                let (mut rehearsal, totals) = (Rehearsal::new(fleet), totals());
                let search = single::search(&mut rehearsal, candidates, &totals, budgets, &mut unseen, &mut time);
                self.memory.lock().unseen = unseen;
                let mut left = Found::Nothing;
                for (node, reason) in &search.refused {
                    left = self.refused(fleet, node, reason, left);
                }
                match search.end {
                    single::End::Found(command) => Found::Commands(vec![*command]),
                    single::End::Exhausted => left,
                    single::End::Late => {
                        self.metrics.timed_out(method);
                        Found::NotYet
                    }
                }
            }
        }
    }

    fn first(
        &self,
        fleet: &Fleet,
        candidates: impl IntoIterator<Item = Candidate>,
        mut attempt: impl FnMut(&Candidate) -> Result<Command, Blocked>,
    ) -> Found {
        let mut left = Found::Nothing;
        for candidate in candidates {
            match attempt(&candidate) {
                Ok(command) => return Found::Commands(vec![command]),
                Err(reason) => left = self.refused(fleet, candidate.name(), &reason, left),
            }
        }
        left
    }

    /// Tells users why a candidate stays. One that only a budget keeps must be looked at again, whatever else happens.
    fn refused(&self, fleet: &Fleet, node: &str, reason: &Blocked, left: Found) -> Found {
        if let Blocked::NotWorthIt { pool, score } = reason {
            self.metrics.not_worth_it(pool, policy_name(fleet, pool), *score);
        }
        report::blocked(&self.ctx, node, reason);
        match reason {
            Blocked::BudgetUsedUp { .. } => Found::NotYet,
            _ => left,
        }
    }
}

/// A pool's consolidation policy as users write it.
fn policy_name<'a>(fleet: &'a Fleet, pool: &str) -> &'a str {
    match fleet.pools.get(pool).map(|policy| policy.consolidation_policy) {
        Some(ConsolidationPolicy::WhenEmpty) => "WhenEmpty",
        Some(ConsolidationPolicy::WhenEmptyOrUnderutilized) => "WhenEmptyOrUnderutilized",
        Some(ConsolidationPolicy::Balanced) => "Balanced",
        None => "",
    }
}

fn found((command, constrained): (Option<Command>, Constrained)) -> Found {
    match (command, constrained) {
        (Some(command), _) => Found::Commands(vec![command]),
        (None, Constrained::ByBudget) => Found::NotYet,
        (None, Constrained::No) => Found::Nothing,
    }
}
