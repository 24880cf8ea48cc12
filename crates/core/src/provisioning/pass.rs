//! One pass: which pods need a place, where the engine puts them, and the NodeClaims, nominations and events of that.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_pool::NODE_REGISTRATION_HEALTHY;
use karpenter_cloud::provider::Weight;
use karpenter_engine::convert::{self, PodProblem};
use karpenter_engine::model::{Node, Pod, Snapshot, VolumeFacts};
use karpenter_engine::plan::{NodePlacement, PlannedClaim};
use karpenter_engine::reason::Reason;
use karpenter_engine::{Plan, solve_within};
use kube::ResourceExt;

use super::headroom::Headroom;
use super::holding::Undecided;
use super::provisioning_metrics::SchedulerMetrics;
use super::snapshot;
use crate::capacity_buffers;
use crate::claim_creation::{ClaimCreator, planned_claim};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::events::{self, Regarding};
use crate::state::{Pending, PoolRegistration};
use crate::watch::Key;

/// A pass plans no longer than this; what is decided by then is launched, and the rest is the next pass's.
const TIME_BOX: Duration = Duration::from_secs(10);

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every pod was decided on.
    Complete,
    /// Some were not reached.
    OutOfTime,
}

#[derive(Debug)]
pub(super) struct Pass {
    ctx: Context,
    creator: ClaimCreator,
    metrics: SchedulerMetrics,
}

/// What a pass plans with.
struct Input {
    snapshot: Snapshot,
    /// Machines that are coming up, whether launched or not: pods placed there wait for that claim.
    coming_up: Vec<Arc<Node>>,
}

impl Pass {
    pub(super) fn new(ctx: Context, creator: ClaimCreator) -> Self {
        let metrics = SchedulerMetrics::register(&ctx.metrics.registry);
        Self { ctx, creator, metrics }
    }

    pub(super) async fn run(&self) -> Result<Outcome> {
        let started = Instant::now();
        self.creator.forget_lost().await?;
        let Some(input) = self.input().await else {
            self.metrics.ended("", 0);
            self.metrics.pending_by_zone(&BTreeMap::new());
            self.note_buffers(None).await;
            return Ok(Outcome::Complete);
        };
        let plan = self.solve(&input.snapshot);
        self.metrics.took(started.elapsed());
        self.use_existing(&plan.existing, &input.coming_up);
        let created = self.create(&plan, &input).await;
        self.note_buffers(Some((&plan, &input))).await;
        // Last: the provider may have to look something up, and nobody's node should wait for that.
        self.explain(&plan).await;
        created?;
        Ok(if plan.not_reached.is_empty() {
            Outcome::Complete
        } else {
            Outcome::OutOfTime
        })
    }

    /// Everything the engine needs, or nothing if no pod needs a place.
    async fn input(&self) -> Option<Input> {
        let facts = self.ctx.state.facts();
        let volumes = self.ctx.state.volume_facts(&self.ctx.cloud.volume_requirements());
        let mut pods = self.valid_pods(&facts.pending, &volumes);
        pods.extend(snapshot::movable_pods(&self.ctx, &facts.leaving));
        pods.extend(snapshot::buffer_pods(&self.ctx));
        if pods.is_empty() {
            return None;
        }
        let catalog = self.ctx.catalogs.current().await;
        let in_flight = snapshot::in_flight(&self.ctx, &facts, &catalog);
        let undecided = Undecided::new(&in_flight, &facts.namespaces);
        pods.retain(|pod| !undecided.holds_back(pod));
        if pods.is_empty() {
            return None;
        }
        let real = pods.iter().filter(|pod| pod.buffer.is_none()).count();
        if real > 0 {
            tracing::info!(pods = real, "found provisionable pod(s)");
        }
        let comes_up = |node: &&Arc<Node>| node.node_claim.is_some() && !node.is_initialized();
        let coming_up = facts.nodes.iter().filter(comes_up).chain(&in_flight).cloned().collect();
        let snapshot = snapshot::assemble(&self.ctx, facts, volumes, catalog, in_flight, pods);
        Some(Input { snapshot, coming_up })
    }

    /// Pending pods that a plan can look at; the others are told why not (scheduling.md §3.3).
    fn valid_pods(&self, pending: &[Pending], volumes: &VolumeFacts) -> Vec<Arc<Pod>> {
        let mut valid = Vec::with_capacity(pending.len());
        for Pending { key, entry } in pending {
            let mut problems = entry.problems.to_vec();
            problems.extend(convert::volume_problems(&entry.pod, volumes));
            if problems.is_empty() {
                valid.push(entry.pod.clone());
                continue;
            }
            self.ctx.state.failed_to_schedule(key);
            // A pod that avoids our nodes is none of our business, and it would be told so for ever.
            if !problems.contains(&PodProblem::AvoidsNodePools) {
                let why = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                self.ctx
                    .events
                    .publish(events::pod_failed_to_schedule(regarding(&entry.pod), &why));
            }
        }
        self.metrics.ignored(pending.len() - valid.len());
        valid
    }

    /// Plans, while watches and other controllers go on.
    fn solve(&self, snapshot: &Snapshot) -> Plan {
        let id = uuid::Uuid::new_v4().to_string();
        let progress = self.metrics.started(&id);
        let started = Instant::now();
        let mut budget = |left: usize| {
            let elapsed = started.elapsed();
            progress.is_at(left, elapsed);
            if elapsed < TIME_BOX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let plan = without_blocking(snapshot, || solve_within(snapshot, &mut budget));
        self.metrics.took(started.elapsed());
        let real = plan.unschedulable.iter().filter(|failed| failed.pod.buffer.is_none());
        self.metrics.ended(&id, real.count());
        self.metrics.pending_by_zone(&plan.pending_by_zone);
        plan
    }

    /// Tells users why pods found no place and which pools cannot offer anything.
    async fn explain(&self, plan: &Plan) {
        let real = plan.unschedulable.iter().filter(|failed| failed.pod.buffer.is_none());
        let lacks_types = |reason: &Reason| matches!(reason, Reason::NoInstanceTypes { .. });
        let known = match real.clone().any(|failed| lacks_types(&failed.reason)) {
            true => self.known_obstacles(plan).await,
            false => Vec::new(),
        };
        for failed in real {
            self.ctx.state.failed_to_schedule(&key(&failed.pod));
            let mut why = failed.reason.to_string();
            if lacks_types(&failed.reason) {
                for known in &known {
                    why += &format!("; {known}");
                }
            }
            self.ctx
                .events
                .publish(events::pod_failed_to_schedule(regarding(&failed.pod), &why));
        }
        for deferred in &plan.deferred {
            tracing::debug!(pod = deferred.pod.key(), reason = %deferred.reason, "deferred");
        }
        for empty in &plan.empty_pools {
            let Some(pool) = self.ctx.pools.named(&empty.node_pool.name) else {
                continue;
            };
            let pool = Regarding::of(&*pool);
            let event = match empty.min_values_unmet {
                true => events::too_few_instance_types(pool),
                false => events::no_compatible_instance_types(pool),
            };
            self.ctx.events.publish(event);
        }
    }

    /// What the provider knows to be the reason that pools have nothing to offer.
    async fn known_obstacles(&self, plan: &Plan) -> Vec<String> {
        let mut known = Vec::new();
        for empty in &plan.empty_pools {
            let Some(pool) = self.ctx.pools.named(&empty.node_pool.name) else {
                continue;
            };
            match self.ctx.cloud.validate_node_pool(&pool).await {
                Ok(findings) => known.extend(
                    findings
                        .into_iter()
                        .filter(|own| own.weight == Weight::NothingToLaunch)
                        .map(|own| format!("NodePool {}: {}", empty.node_pool.name, own.message)),
                ),
                Err(error) => {
                    tracing::debug!(NodePool = empty.node_pool.name, %error, "the provider could not judge the nodepool");
                }
            }
        }
        known
    }

    /// Nominates the nodes that take pods. Pods on a machine that is still coming up wait for its claim.
    fn use_existing(&self, placements: &[NodePlacement], coming_up: &[Arc<Node>]) {
        for placement in placements {
            let pods: Vec<Arc<Pod>> = placement
                .pods
                .iter()
                .filter(|pod| pod.buffer.is_none())
                .cloned()
                .collect();
            if pods.is_empty() {
                continue;
            }
            let machine = coming_up.iter().find(|node| node.name == placement.node);
            let claim = machine.and_then(|node| node.node_claim.clone());
            if let Some(claim) = &claim {
                self.ctx.state.assign(claim, &pods);
            }
            self.ctx.state.nominate([&*placement.node]);
            let pool = machine.and_then(|node| node.node_pool.as_deref());
            let node = machine.is_none_or(|node| node.has_node).then_some(&*placement.node);
            for pod in &pods {
                self.found_place(pod, pool);
                self.ctx
                    .events
                    .publish(events::nominate_pod(regarding(pod), claim.as_deref(), node));
            }
        }
    }

    /// Creates the planned NodeClaims side by side. One that fails does not stop the others.
    async fn create(&self, plan: &Plan, input: &Input) -> Result<()> {
        if plan.claims.is_empty() {
            return Ok(());
        }
        let mut headroom = Headroom::new(input.snapshot.nodes.iter());
        let mut errors = Vec::new();
        let mut creations = Vec::new();
        for planned in &plan.claims {
            match headroom.take(planned) {
                Ok(()) => creations.push(self.create_one(planned)),
                Err(resource) => {
                    let why = format!(
                        "NodePool {}: its limit of {resource} leaves no room for another node",
                        planned.node_pool.name
                    );
                    for pod in planned.pods.iter().filter(|pod| pod.buffer.is_none()) {
                        self.ctx.state.failed_to_schedule(&key(pod));
                        self.ctx
                            .events
                            .publish(events::pod_failed_to_schedule(regarding(pod), &why));
                    }
                }
            }
        }
        tracing::info!(
            nodeclaims = creations.len(),
            pods = placed(plan),
            "computed new nodeclaim(s) to fit pod(s)"
        );
        for outcome in futures::future::join_all(creations).await {
            errors.extend(outcome.err());
        }
        Error::all(errors)
    }

    async fn create_one(&self, planned: &PlannedClaim) -> Result<()> {
        let name = &planned.node_pool.name;
        // Looked up again: it may have been deleted while the engine was planning.
        let Some(pool) = self.ctx.pools.named(name) else {
            return Err(Error::failed(format!(
                "NodePool {name} is gone, not creating a NodeClaim of it"
            )));
        };
        let claim = planned_claim(&pool, planned, &self.ctx.rules);
        let pods: Vec<Arc<Pod>> = planned
            .pods
            .iter()
            .filter(|pod| pod.buffer.is_none())
            .cloned()
            .collect();
        let created = self.creator.create(&claim, &pods, "provisioned").await?;
        let created_name = created.name_any();
        let types: Vec<&str> = planned
            .instance_types
            .iter()
            .take(5)
            .map(|own| own.name.as_str())
            .collect();
        tracing::info!(
            NodePool = name,
            NodeClaim = created_name,
            pods = pods.len(),
            requests = %shown(&planned.requests),
            instance_types = %listed(&types, planned.instance_types.len()),
            "created nodeclaim"
        );
        for pod in &pods {
            self.found_place(pod, Some(name));
            self.ctx
                .events
                .publish(events::nominate_pod(regarding(pod), Some(&created_name), None));
        }
        Ok(())
    }

    /// Tells CapacityBuffers what a plan means for them. A pass that held everybody back says nothing.
    async fn note_buffers(&self, planned: Option<(&Plan, &Input)>) {
        let Some(buffers) = &self.ctx.buffers else { return };
        match planned {
            Some((plan, input)) => {
                capacity_buffers::provisioning::note(&self.ctx, buffers, Some(plan), &input.snapshot.nodes).await;
            }
            None if buffers.pods().is_empty() => {
                capacity_buffers::provisioning::note(&self.ctx, buffers, None, &[]).await;
            }
            None => {}
        }
    }

    fn found_place(&self, pod: &Pod, pool: Option<&str>) {
        // A pod that still runs on a node that goes away is not waiting for its first place.
        if pod.node_name.is_some() {
            return;
        }
        let pool = pool.and_then(|name| self.ctx.pools.named(name));
        let registration = match pool.is_some_and(|pool| pool.is_true(NODE_REGISTRATION_HEALTHY)) {
            true => PoolRegistration::Healthy,
            false => PoolRegistration::Unproven,
        };
        self.ctx.state.found_place(&key(pod), registration);
    }
}

/// With so many pods and nodes in the cluster, a computation about them is over within milliseconds.
const FEW: usize = 2_000;

/// Runs a computation over `snapshot`. If it may take its time, the other tasks of this thread move away first.
///
/// Where they move to is another thread, with memory of its own for what it allocates: not worth it for milliseconds.
pub(crate) fn without_blocking<T>(snapshot: &Snapshot, compute: impl FnOnce() -> T) -> T {
    let nodes = snapshot.nodes.iter().map(|node| 1 + node.pods().len());
    match snapshot.pods.len() + nodes.sum::<usize>() {
        ..=FEW => compute(),
        _ => aside(compute),
    }
}

/// A runtime with one thread belongs to a test, which wants the computation to be over before time goes on.
fn aside<T>(compute: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::current().runtime_flavor() {
        tokio::runtime::RuntimeFlavor::MultiThread => tokio::task::block_in_place(compute),
        _ => compute(),
    }
}

fn placed(plan: &Plan) -> usize {
    plan.claims.iter().map(|claim| claim.pods.len()).sum()
}

fn key(pod: &Pod) -> Key {
    Key::namespaced(pod.namespace.clone(), &*pod.name)
}

fn regarding(pod: &Pod) -> Regarding {
    Regarding::pod(&pod.namespace, &pod.name, &pod.uid)
}

fn shown(requests: &karpenter_api::ResourceList) -> String {
    requests
        .iter()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn listed(first: &[&str], total: usize) -> String {
    let more = total.saturating_sub(first.len());
    let first = first.join(", ");
    if more == 0 {
        first
    } else {
        format!("{first} and {more} other(s)")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::aside;

    /// The Lease is renewed by tasks like the second one, over connections and timers of the same runtime.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_computation_on_the_only_thread_leaves_it_to_the_others() {
        let (tell, told) = mpsc::channel();
        let computing = tokio::spawn(async move { aside(|| told.recv_timeout(Duration::from_secs(60)).is_ok()) });
        let renewing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(()).is_ok()
        });
        assert!(renewing.await.unwrap());
        assert!(computing.await.unwrap(), "the other task had to wait");
    }
}
