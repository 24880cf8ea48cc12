//! The life of a NodeClaim: launch, registration, initialization; giving up in time; and its end.
//!
//! Each reconcile runs the steps in order on a copy of the claim and writes what they changed at the end, so that a
//! failing step still shows its reason. The finalizer comes before everything: without it, a claim could disappear
//! while its machine is being made.

mod finalization;
pub mod initialization;
mod launch;
pub mod liveness;
pub mod registration;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::{INITIALIZED, LAUNCHED, REBOOTING, REGISTERED};
use karpenter_api::node_pool::NODE_REGISTRATION_HEALTHY;
use karpenter_api::{NodeClaim, NodePool, labels};
use karpenter_cloud::provider::{LaunchHints, UnregisteredTaint};
use karpenter_cloud::registration::{HookOutcome, HookVerdict};
use kube::ResourceExt;

use crate::claims::{self, Reason};
use crate::consistency;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::events::{self, Regarding};
use crate::index::Found;
use crate::lifecycle::launch::{GivenUp, InFlight, Launched};
use crate::lifecycle::liveness::Verdict;
use crate::metrics::{Counter, Histogram, exponential_buckets};
use crate::nodepool::health::{Health, Outcome};
use crate::nodepool::rollout;
use crate::patch::Written;
use crate::runner::{Controller, Next, RateLimit, Reconcile, Runnable, linear};
use crate::watch::Key;

/// The `nodeclaim.lifecycle` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let concurrency = linear(ctx.options.cores(), 1000, 5000);
    let in_flight = Arc::new(InFlight::default());
    let given_up = Arc::new(GivenUp::default());
    let (launches, deleted) = (in_flight.clone(), given_up.clone());
    ctx.claims.observe(move |change| {
        if change.new.as_deref().is_none_or(NodeClaim::is_terminating) {
            launches.cancel(&change.key);
            for claim in change.new.iter().chain(&change.old) {
                deleted.forget(claim);
            }
        }
    });
    let relations = ctx.relations.clone();
    Controller::new(&ctx.runner, "nodeclaim.lifecycle")
        .about("karpenter.sh", "NodeClaim")
        .concurrency(concurrency)
        .rate_limit(RateLimit::lifecycle(concurrency))
        .watches(&ctx.nodes, move |change| relations.claims_of_change(change))
        .runs(
            &ctx.claims,
            ctx.manages_claim(),
            Lifecycle::new(ctx, in_flight, given_up),
        )
}

struct Lifecycle {
    ctx: Context,
    launched: Launched,
    in_flight: Arc<InFlight>,
    given_up: Arc<GivenUp>,
    metrics: LifecycleMetrics,
}

struct LifecycleMetrics {
    nodes_created: Counter<2>,
    instance_termination: Histogram<1>,
    termination: Histogram<1>,
}

/// Whether the next step makes sense.
enum Progress {
    Go,
    /// Later steps may run, and the claim wants to be looked at again.
    Stop(Next),
    /// The claim is on its way out; there is nothing more to write.
    Deleted,
}

impl Lifecycle {
    fn new(ctx: &Context, in_flight: Arc<InFlight>, given_up: Arc<GivenUp>) -> Self {
        let registry = &ctx.metrics.registry;
        let metrics = LifecycleMetrics {
            nodes_created: registry.counter(
                "karpenter_nodes_created_total",
                "Nodes that registered for a NodeClaim.",
                ["nodepool", "zone"],
            ),
            instance_termination: registry.histogram(
                "karpenter_nodeclaims_instance_termination_duration_seconds",
                "From the request to terminate a machine until the cloud says that it is gone.",
                ["nodepool"],
                &exponential_buckets(1.0, 2.0, 11),
            ),
            termination: registry.histogram(
                "karpenter_nodeclaims_termination_duration_seconds",
                "From the deletion of a NodeClaim until its finalizer is removed.",
                ["nodepool"],
                &exponential_buckets(1.0, 2.0, 12),
            ),
        };
        Self {
            ctx: ctx.clone(),
            launched: Launched::default(),
            in_flight,
            given_up,
            metrics,
        }
    }
}

impl Reconcile<NodeClaim> for Lifecycle {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        let claim = self.ctx.claim_writer.newest(claim);
        if claim.is_terminating() {
            return self.finalize(&claim).await;
        }
        let Some(claim) = self.hold(&claim).await? else {
            return Ok(Next::Wait);
        };
        let mut changed = claim.clone();
        let _ = changed.initialize_conditions(self.ctx.clock.now());
        let hints = self.ctx.cloud.launch_hints(&claim).await;
        let mut steps = Steps::default();

        let deadline = liveness::launch_deadline(&changed, &hints, self.ctx.clock.now());
        match self.launch(&mut changed, deadline).await {
            Ok(Progress::Deleted) => return Ok(Next::Wait),
            progress => steps.add(progress),
        }
        let (progress, node) = self.register(&mut changed, &hints).await;
        steps.add(progress);
        steps.add(self.initialize(&mut changed, node).await);
        match self.check_liveness(&changed, &hints).await {
            Ok(Progress::Deleted) => return Ok(Next::Wait),
            progress => steps.add(progress),
        }

        if let Err(error) = self.record(&claim, &changed).await {
            steps.errors.push(error);
        }
        Error::all(steps.errors)?;
        Ok(steps.next)
    }
}

/// What the steps of a reconcile ask for together.
struct Steps {
    next: Next,
    errors: Vec<Error>,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            next: Next::Wait,
            errors: Vec::new(),
        }
    }
}

impl Steps {
    fn add(&mut self, progress: Result<Progress>) {
        match progress {
            Ok(Progress::Go | Progress::Deleted) => {}
            Ok(Progress::Stop(next)) => self.next = sooner(self.next, next),
            Err(error) => self.errors.push(error),
        }
    }
}

fn sooner(a: Next, b: Next) -> Next {
    match (a, b) {
        (Next::Requeue, _) | (_, Next::Requeue) => Next::Requeue,
        (Next::Wait, other) | (other, Next::Wait) => other,
        (Next::After(a), Next::After(b)) => Next::After(a.min(b)),
    }
}

impl Lifecycle {
    /// Puts the finalizer on the claim; `None` if it is gone.
    async fn hold(&self, claim: &NodeClaim) -> Result<Option<NodeClaim>> {
        let mut held = claim.clone();
        let finalizers = held.metadata.finalizers.get_or_insert_default();
        if finalizers
            .iter()
            .any(|finalizer| finalizer == labels::TERMINATION_FINALIZER)
        {
            return Ok(Some(held));
        }
        finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
        match self.ctx.claim_writer.write(claim, &held).await? {
            Written::Changed(held) => Ok(Some(held)),
            Written::Unchanged => Ok(Some(held)),
            Written::Gone => Ok(None),
        }
    }

    /// Writes the claim; logs and counts what is only true once it is written.
    async fn record(&self, before: &NodeClaim, after: &NodeClaim) -> Result<()> {
        let written = match self.ctx.claim_writer.write(before, after).await {
            // Before a claim is launched, nobody else writes its conditions.
            Err(error) if error.is_conflict() && after.is_unknown(LAUNCHED) => {
                return self.ctx.claim_writer.write_conditions(after).await;
            }
            written => written?,
        };
        let Written::Changed(_) = written else {
            return Ok(());
        };
        log_steps(before, after);
        if after.is_true(REGISTERED) && !before.is_true(REGISTERED) {
            let (pool, zone) = (
                claims::label(after, labels::NODEPOOL),
                claims::label(after, labels::ZONE),
            );
            self.metrics.nodes_created.inc([pool, zone]);
            self.record_pool_success(after).await?;
        }
        Ok(())
    }

    /// Makes the node that joined for this claim what the claim says.
    async fn register(&self, claim: &mut NodeClaim, hints: &LaunchHints) -> (Result<Progress>, Option<Arc<Node>>) {
        let now = self.ctx.clock.now();
        let Some(provider_id) = claim.provider_id().map(str::to_owned) else {
            return (Ok(Progress::Go), None);
        };
        let found = self.ctx.relations.node_of(&provider_id);
        if !claim.is_unknown(REGISTERED) {
            touch(claim, REGISTERED, now);
            return (Ok(Progress::Go), found.only());
        }
        let node = match found {
            Found::One(node) => node,
            Found::None => {
                let _ = claim.set_unknown(REGISTERED, "NodeNotFound", "Node not registered with cluster", now);
                return (Ok(Progress::Go), None);
            }
            Found::Several => {
                let message = "Invariant violated, matched multiple nodes";
                let _ = claim.set_false(REGISTERED, "MultipleNodesFound", message, now);
                return (Ok(Progress::Go), None);
            }
        };
        if registration::joined_unguarded(&node) && hints.unregistered_taint == UnregisteredTaint::Expected {
            self.ctx
                .events
                .publish(events::unregistered_taint_missing(Regarding::of(claim)));
        }
        match self.register_node(claim, &node).await {
            Ok((progress, node)) => (Ok(progress), Some(node)),
            Err(error) => (Err(error), None),
        }
    }

    async fn register_node(&self, claim: &mut NodeClaim, node: &Arc<Node>) -> Result<(Progress, Arc<Node>)> {
        let mut changed = (**node).clone();
        registration::sync(&mut changed, claim);
        let (outcome, failures) = self.ask_hooks(claim).await;
        if outcome == HookOutcome::Proceed {
            registration::sync(&mut changed, claim);
            registration::admit(&mut changed);
        }
        // Also while hooks are pending: labels, taints and finalizer had better arrive early.
        let written = match self.ctx.node_writer.write(node, &changed).await? {
            Written::Changed(node) => Arc::new(node),
            Written::Unchanged => node.clone(),
            Written::Gone => {
                let _ = claim.set_unknown(
                    REGISTERED,
                    "NodeNotFound",
                    "Node not registered with cluster",
                    self.ctx.clock.now(),
                );
                return Ok((Progress::Go, node.clone()));
            }
        };
        let now = self.ctx.clock.now();
        match outcome {
            HookOutcome::Proceed => {
                let _ = claim.set_true(REGISTERED, now);
                claim.status.get_or_insert_default().node_name = Some(written.name_any());
                Ok((Progress::Go, written))
            }
            HookOutcome::Pending { hooks, retry_after } => {
                let _ = claim.set_unknown(REGISTERED, "RegistrationHookPending", &hooks.join(", "), now);
                Error::all(failures)?;
                let next = match retry_after.and_then(|after| after.try_into().ok()) {
                    Some(after) => Next::After(after),
                    None => Next::Requeue,
                };
                Ok((Progress::Stop(next), written))
            }
        }
    }

    async fn ask_hooks(&self, claim: &mut NodeClaim) -> (HookOutcome, Vec<Error>) {
        let hooks = self.ctx.cloud.registration_hooks();
        let mut verdicts: Vec<(&str, Option<HookVerdict>)> = Vec::with_capacity(hooks.len());
        let mut failures = Vec::new();
        for hook in &hooks {
            match hook.registered(claim).await {
                Ok(verdict) => verdicts.push((hook.name(), Some(verdict))),
                Err(error) => {
                    failures.push(Error::failed(format!("registration hook {}: {error}", hook.name())));
                    verdicts.push((hook.name(), None));
                }
            }
        }
        (HookOutcome::of(verdicts), failures)
    }

    /// Declares the node fit for use once it has all that its claim promised.
    async fn initialize(&self, claim: &mut NodeClaim, node: Option<Arc<Node>>) -> Result<Progress> {
        let now = self.ctx.clock.now();
        if !claim.is_unknown(INITIALIZED) {
            touch(claim, INITIALIZED, now);
            return Ok(Progress::Go);
        }
        // What the node reports while it reboots is about the boot before.
        if claim.is_true(REBOOTING) || !claim.is_true(REGISTERED) {
            return Ok(Progress::Go);
        }
        let unmet = match &node {
            None => Some(initialization::Unmet::NodeNotFound),
            Some(node) => initialization::unmet(claim, node),
        };
        if let Some(unmet) = unmet {
            let _ = claim.set_unknown(INITIALIZED, unmet.reason(), &unmet.message(), now);
            return Ok(Progress::Go);
        }
        if let Some(node) = &node {
            let mut changed = (**node).clone();
            changed
                .metadata
                .labels
                .get_or_insert_default()
                .insert(labels::INITIALIZED.to_owned(), "true".to_owned());
            self.ctx.node_writer.write(node, &changed).await?;
        }
        let _ = claim.set_true(INITIALIZED, now);
        if let Some(node) = &node {
            consistency::note_consistent(claim, node, now);
        }
        Ok(Progress::Go)
    }

    /// Deletes the claim if it has not become a node in time.
    async fn check_liveness(&self, claim: &NodeClaim, hints: &LaunchHints) -> Result<Progress> {
        let now = self.ctx.clock.now();
        let reason = match liveness::verdict(claim, hints, now) {
            Verdict::Settled => return Ok(Progress::Go),
            Verdict::Until(at) => return Ok(Progress::Stop(Next::After(at.duration_since(now)))),
            Verdict::LaunchTimedOut => Reason::LaunchTimeout,
            Verdict::RegistrationTimedOut => Reason::RegistrationTimeout,
        };
        // Deleting comes first: only the reconcile whose decision stands may count the failure.
        self.ctx.claim_writer.disrupt(claim, reason).await?;
        self.given_up.remember(claim);
        self.record_pool_failure(claim, now).await?;
        Ok(Progress::Deleted)
    }

    async fn record_pool_success(&self, claim: &NodeClaim) -> Result<()> {
        let Some((pool, uid)) = self.pool_of(claim) else {
            return Ok(());
        };
        let health = self.ctx.pool_health.after(&uid, Outcome::Registered);
        self.ctx.pool_health.record(&uid, Outcome::Registered);
        rollout::succeeded(&self.ctx, &pool, claim).await?;
        if health != Health::Healthy || pool.is_true(NODE_REGISTRATION_HEALTHY) {
            return Ok(());
        }
        let now = self.ctx.clock.now();
        let set = |pool: &mut NodePool| {
            let _ = pool.set_true(NODE_REGISTRATION_HEALTHY, now);
        };
        self.ctx.pool_writer.update_status(&pool, set).await
    }

    async fn record_pool_failure(&self, claim: &NodeClaim, now: Timestamp) -> Result<()> {
        let Some((pool, uid)) = self.pool_of(claim) else {
            return Ok(());
        };
        let health = self.ctx.pool_health.after(&uid, Outcome::TimedOut);
        self.ctx.pool_health.record(&uid, Outcome::TimedOut);
        rollout::failed(&self.ctx, &pool, claim).await?;
        if health != Health::Unhealthy || pool.is_false(NODE_REGISTRATION_HEALTHY) {
            return Ok(());
        }
        let (reason, message) = match claim.condition(LAUNCHED) {
            Some(launched) if !launched.is_true() => (launched.reason.clone(), launched.message.clone()),
            Some(_) | None => ("RegistrationFailed".to_owned(), "Failed to register node".to_owned()),
        };
        let set = |pool: &mut NodePool| {
            let _ = pool.set_false(NODE_REGISTRATION_HEALTHY, &reason, &message, now);
        };
        self.ctx.pool_writer.update_status(&pool, set).await
    }

    /// The pool that made this claim, if it is still the same one.
    fn pool_of(&self, claim: &NodeClaim) -> Option<(Arc<NodePool>, String)> {
        let pool = self.ctx.pools.get(&Key::cluster(claim.node_pool()?))?;
        let uid = pool.uid()?;
        let owners = claim.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.uid == uid).then_some((pool, uid))
    }
}

/// Says which steps a claim has taken. A step whose write met a conflict is taken again, and told when that is written.
fn log_steps(before: &NodeClaim, after: &NodeClaim) {
    let node = after.status.as_ref().and_then(|status| status.node_name.as_deref());
    for (step, message) in [
        (LAUNCHED, "launched nodeclaim"),
        (REGISTERED, "registered nodeclaim"),
        (INITIALIZED, "initialized nodeclaim"),
    ] {
        if after.is_true(step) && !before.is_true(step) {
            tracing::info!(
                NodeClaim = after.name_any(),
                Node = node,
                provider_id = after.provider_id(),
                "{message}"
            );
        }
    }
}

/// Brings a settled condition to the object's generation, so that `Ready` does not fall behind an edit.
fn touch(claim: &mut NodeClaim, condition: &str, now: Timestamp) {
    let Some(known) = claim.condition(condition).cloned() else {
        return;
    };
    let _ = claim.set_condition(condition, known.status, &known.reason, &known.message, now);
}
