//! The loop that looks for something to disrupt (disruption.md §1).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::node_pool::ConsolidationPolicy;
use karpenter_engine::disruption::balanced::Totals;
use karpenter_engine::disruption::candidate::{Blocked, Candidate};
use karpenter_engine::disruption::consolidation::{multi, single};
use karpenter_engine::disruption::emptiness::Constrained;
use karpenter_engine::disruption::rehearsal::Rehearsal;
use karpenter_engine::disruption::{Budgets, Command, Fleet, Method, drift, emptiness, forecast};
use parking_lot::Mutex;

use super::metrics::DisruptionMetrics;
use super::queue::Queue;
use super::{fleet, marks, report, validation};
use crate::context::Context;
use crate::error::Result;
use crate::provisioning::without_blocking;
use crate::runner::{Controller, Next, Runnable, Singleton};

/// How long a search may take. Ours needs a fraction of a second for a thousand nodes; the limits are for what nobody
/// foresaw, and the same as upstream's.
const MULTI_NODE_LIMIT: SignedDuration = SignedDuration::from_mins(1);
const SINGLE_NODE_LIMIT: SignedDuration = SignedDuration::from_mins(3);
const POLL: SignedDuration = SignedDuration::from_secs(10);
const NOT_SYNCED: SignedDuration = SignedDuration::from_secs(1);

/// The `disruption` controller.
pub(super) fn controller(ctx: &Context, metrics: Arc<DisruptionMetrics>, queue: Queue) -> Runnable {
    let disruption = Disruption {
        ctx: ctx.clone(),
        metrics,
        queue,
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

/// What a method came to.
#[derive(Debug)]
enum Found {
    /// Carry this out.
    Command(Box<Command>),
    /// Nothing; look again when the cluster changes.
    Nothing,
    /// Nothing, but not because there is nothing: look again next time.
    NotYet,
}

impl Singleton for Disruption {
    async fn reconcile(&self) -> Result<Next> {
        if !self.ctx.state.synced() {
            return Ok(Next::After(NOT_SYNCED));
        }
        marks::sweep(&self.ctx, &self.queue.machines()).await?;
        for method in Method::ORDER {
            if self.run(method).await? {
                return Ok(Next::After(SignedDuration::ZERO));
            }
        }
        Ok(Next::After(POLL))
    }
}

impl Disruption {
    /// Whether the method found something and started it.
    async fn run(&self, method: Method) -> Result<bool> {
        let started = Instant::now();
        let outcome = self.try_method(method).await;
        self.metrics.evaluated(method, started.elapsed());
        outcome
    }

    async fn try_method(&self, method: Method) -> Result<bool> {
        let state = self.ctx.state.consolidation_state();
        let uses_marker = method != Method::Drift;
        if uses_marker && self.memory.lock().consolidated.get(&method) == Some(&state) {
            return Ok(false);
        }
        let fleet = fleet::build(&self.ctx, &self.queue.machines()).await;
        let survey = forecast::survey(&fleet, method);
        for (node, blocked) in &survey.blocked {
            report::blocked(&self.ctx, node, blocked);
        }
        self.metrics.eligible(method, survey.candidates.len());
        if survey.candidates.is_empty() {
            return Ok(false);
        }
        let mut budgets = Budgets::of(&fleet, method.reason());
        self.metrics.budgets(&budgets);
        report::exhausted_budgets(&self.ctx, &budgets);

        let found = without_blocking(|| self.search(method, &fleet, survey, &mut budgets));
        let command = match found {
            Found::Command(command) => *command,
            Found::NotYet => return Ok(false),
            Found::Nothing => {
                if uses_marker {
                    self.memory.lock().consolidated.insert(method, state);
                }
                return Ok(false);
            }
        };
        if matches!(method, Method::MultiNodeConsolidation | Method::SingleNodeConsolidation) {
            self.metrics.moved(&command, |pool| policy_name(&fleet, pool));
            report::found(&self.ctx, &command);
            report::approved(&self.ctx, &command);
        }
        let command = match method {
            Method::Drift => command,
            Method::Emptiness | Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                let validated = validation::validate(&self.ctx, &self.metrics, &self.queue.machines(), command).await;
                match validated {
                    Ok(command) => command,
                    Err((command, invalid)) => {
                        tracing::debug!(
                            command = report::summary(&command),
                            reason = invalid.as_str(),
                            "abandoned"
                        );
                        if method != Method::Emptiness {
                            report::rejected(&self.ctx, &command, invalid.as_str());
                        }
                        return Ok(false);
                    }
                }
            }
        };
        self.queue.start(command).await?;
        Ok(true)
    }

    fn search(&self, method: Method, fleet: &Fleet, survey: forecast::Survey, budgets: &mut Budgets) -> Found {
        let mut rehearsal = Rehearsal::new(fleet);
        let totals = Totals::of(fleet, &survey.all);
        let mut candidates = survey.candidates;
        let started = self.ctx.clock.now();
        let is_late = |limit: SignedDuration| self.ctx.clock.since(started) > limit;
        match method {
            Method::Emptiness => found(emptiness::compute(candidates, budgets)),
            Method::MultiNodeConsolidation => {
                let mut timed_out = false;
                let mut budget = || match is_late(MULTI_NODE_LIMIT) {
                    true => {
                        timed_out = true;
                        ControlFlow::Break(())
                    }
                    false => ControlFlow::Continue(()),
                };
                let outcome = multi::search(&mut rehearsal, candidates, &totals, budgets, &mut budget);
                if timed_out {
                    self.metrics.timed_out(method);
                }
                match found(outcome) {
                    Found::Nothing if timed_out => Found::NotYet,
                    found => found,
                }
            }
            Method::Drift => {
                drift::order(&mut candidates);
                let attempt = |candidate: &Candidate| drift::attempt(&mut rehearsal, candidate, budgets);
                self.first(fleet, candidates, attempt)
            }
            Method::SingleNodeConsolidation => {
                let candidates = single::order(candidates, &self.memory.lock().unseen);
                let mut unseen: BTreeSet<String> = candidates.iter().map(|candidate| candidate.pool.clone()).collect();
                let mut timed_out = false;
                let in_time = candidates.into_iter().take_while(|candidate| {
                    timed_out = is_late(SINGLE_NODE_LIMIT);
                    unseen.remove(&candidate.pool);
                    !timed_out
                });
                let attempt = |candidate: &Candidate| single::attempt(&mut rehearsal, candidate, &totals, budgets);
                let found = self.first(fleet, in_time, attempt);
                if matches!(found, Found::Command(_)) {
                    return found;
                }
                self.memory.lock().unseen = unseen;
                if timed_out {
                    self.metrics.timed_out(method);
                    return Found::NotYet;
                }
                found
            }
        }
    }

    fn first(
        &self,
        fleet: &Fleet,
        candidates: impl IntoIterator<Item = Candidate>,
        mut attempt: impl FnMut(&Candidate) -> Result<Command, Blocked>,
    ) -> Found {
        let mut constrained = false;
        for candidate in candidates {
            match attempt(&candidate) {
                Ok(command) => return Found::Command(Box::new(command)),
                Err(reason) => {
                    constrained |= matches!(reason, Blocked::BudgetUsedUp { .. });
                    if let Blocked::NotWorthIt { pool, score } = &reason {
                        self.metrics.not_worth_it(pool, policy_name(fleet, pool), *score);
                    }
                    report::blocked(&self.ctx, candidate.name(), &reason);
                }
            }
        }
        if constrained { Found::NotYet } else { Found::Nothing }
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
        (Some(command), _) => Found::Command(Box::new(command)),
        (None, Constrained::ByBudget) => Found::NotYet,
        (None, Constrained::No) => Found::Nothing,
    }
}
