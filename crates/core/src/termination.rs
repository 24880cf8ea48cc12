//! The end of a Node: no new pods, the old ones leave in order, volumes come off, the machine goes, then the Node.
//!
//! Acts on Nodes that are being deleted and carry our finalizer, whoever asked for the deletion. Every reconcile walks
//! the same stages from the start and stops at the first that is not finished, so a restart loses nothing.

pub mod drain;
pub mod volumes;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::annotations::TERMINATION_TIMESTAMP;
use karpenter_api::node_claim::condition::{
    DISRUPTION_REASON, DRAINED, INSTANCE_TERMINATING, REBOOTING, VOLUMES_DETACHED,
};
use karpenter_api::{NodeClaim, labels, pods, taint};
use karpenter_cloud::provider::Deletion;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::events::{self, Regarding};
use crate::eviction::Evictions;
use crate::eviction::request::Request;
use crate::metrics::{Counter, Histogram, Registry, Summary};
use crate::nodes;
use crate::patch::Written;
use crate::runner::{Controller, Next, RateLimit, Reconcile, Runnable, linear};
use crate::termination::drain::{AtDeadline, Drain};
use crate::watch::{Cache, Change, Key};

/// How long a node must have been tainted before it counts as drained: the scheduler may still bind pods that it placed before it
/// saw the taint.
const MINIMUM_DRAIN: SignedDuration = SignedDuration::from_secs(5);
/// For what no event tells: a pod that has been stuck for a minute, a deadline that comes near.
const POLL_PODS: SignedDuration = SignedDuration::from_secs(1);

/// The `node.termination` controller.
pub fn controller(ctx: &Context, evictions: Arc<Evictions>) -> Runnable {
    let concurrency = linear(ctx.options.cores(), 100, 5000);
    let termination = Termination {
        ctx: ctx.clone(),
        evictions,
        metrics: TerminationMetrics::register(&ctx.metrics.registry),
    };
    let (nodes, nodes_of_volumes) = (ctx.nodes.clone(), ctx.nodes.clone());
    Controller::new(&ctx.runner, "node.termination")
        .about("", "Node")
        .concurrency(concurrency)
        .rate_limit(RateLimit::termination(concurrency))
        .watches(&ctx.pods, move |change| node_that_a_pod_left(change, &nodes))
        .watches(&ctx.volume_attachments, move |change| {
            let gone = change.old.as_deref().filter(|_| change.new.is_none());
            gone.and_then(|gone| leaving_node(&gone.spec.node_name, &nodes_of_volumes))
        })
        .runs(&ctx.nodes, ctx.manages_node(), termination)
}

/// The node that waits for this pod to be gone, if it just went.
fn node_that_a_pod_left(change: &Change<Pod>, nodes: &Cache<Node>) -> Option<Key> {
    if change.new.as_deref().is_some_and(|pod| !pods::is_terminal(pod)) {
        return None;
    }
    leaving_node(pods::node_name(change.old.as_deref()?)?, nodes)
}

fn leaving_node(name: &str, nodes: &Cache<Node>) -> Option<Key> {
    let node = nodes.named(name)?;
    node.metadata.deletion_timestamp.is_some().then(|| Key::cluster(name))
}

struct Termination {
    ctx: Context,
    evictions: Arc<Evictions>,
    metrics: TerminationMetrics,
}

struct TerminationMetrics {
    terminated: Counter<2>,
    drained: Counter<1>,
    duration: Summary<1>,
    lifetime: Histogram<1>,
}

impl TerminationMetrics {
    fn register(registry: &Registry) -> Self {
        const MINUTE: f64 = 60.0;
        const HOUR: f64 = 60.0 * MINUTE;
        const DAY: f64 = 24.0 * HOUR;
        let lifetimes = [
            [15.0, 30.0, 45.0].map(|minutes| minutes * MINUTE).to_vec(),
            [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0]
                .map(|hours| hours * HOUR)
                .to_vec(),
            [1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
                .map(|days| days * DAY)
                .to_vec(),
        ];
        Self {
            terminated: registry.counter(
                "karpenter_nodes_terminated_total",
                "Nodes that are gone.",
                ["nodepool", "zone"],
            ),
            drained: registry.counter(
                "karpenter_nodes_drained_total",
                "Nodes that were drained.",
                ["nodepool"],
            ),
            duration: registry.summary(
                "karpenter_nodes_termination_duration_seconds",
                "From the deletion of a Node until its finalizer is removed.",
                ["nodepool"],
            ),
            lifetime: registry.histogram(
                "karpenter_nodes_lifetime_duration_seconds",
                "From the creation of a Node until its finalizer is removed.",
                ["nodepool"],
                &lifetimes.concat(),
            ),
        }
    }
}

/// When a node was closed to new pods, as far as that is known, and by when it must be empty.
#[derive(Clone, Copy)]
struct Times {
    tainted: Option<Timestamp>,
    deadline: Option<Timestamp>,
}

/// Whether a stage lets the next one begin.
enum Stage {
    Done,
    Again(SignedDuration),
}

impl Reconcile<Node> for Termination {
    async fn reconcile(&self, node: Arc<Node>) -> Result<Next> {
        if node.metadata.deletion_timestamp.is_none() || !nodes::is_held(&node) {
            return Ok(Next::Wait);
        }
        let claim = self.ctx.relations.claim_of(&node).only();
        // Pods wake us before the watch shows what was written a moment ago.
        let claim = claim.map(|claim| self.ctx.claim_writer.newest(claim));
        if let Some(claim) = claim.as_deref().filter(|claim| !claim.is_terminating()) {
            self.ctx.claim_writer.delete(claim).await?;
        }
        if self.machine_is_gone(&node).await? {
            // Nothing can be drained any more: the pods went with the machine.
            return self.release(&node).await;
        }
        let times = Times {
            tainted: claim.as_deref().and_then(|claim| tainted_since(&node, claim)),
            deadline: claim.as_deref().map(deadline).transpose()?.flatten(),
        };
        if let Some(deadline) = times.deadline {
            self.ctx.events.publish(events::termination_grace_period_expiring(
                Regarding::of(&*node),
                deadline,
            ));
        }
        let Some(node) = self.mark(&node).await? else {
            return Ok(Next::Wait);
        };
        let Some(claim) = claim else {
            return match self.drain(&node, None, times) {
                Stage::Again(after) => Ok(Next::After(after)),
                Stage::Done => match self.detach_volumes(&node, None, times.deadline) {
                    Stage::Again(after) => Ok(Next::After(after)),
                    Stage::Done => self.release(&node).await,
                },
            };
        };
        let mut changed = (*claim).clone();
        let stage = self.stages(&node, &mut changed, times).await;
        self.record(&claim, &changed).await?;
        match stage? {
            Stage::Again(after) => Ok(Next::After(after)),
            Stage::Done => self.release(&node).await,
        }
    }
}

impl Termination {
    async fn stages(&self, node: &Node, claim: &mut NodeClaim, times: Times) -> Result<Stage> {
        if let again @ Stage::Again(_) = self.drain(node, Some(claim), times) {
            return Ok(again);
        }
        if let again @ Stage::Again(_) = self.detach_volumes(node, Some(claim), times.deadline) {
            return Ok(again);
        }
        self.terminate_instance(claim).await
    }

    /// A node that is not Ready may have lost its machine; a Ready one has not, whatever the cloud says.
    async fn machine_is_gone(&self, node: &Node) -> Result<bool> {
        if nodes::is_ready(node) {
            return Ok(false);
        }
        let Some(provider_id) = nodes::provider_id(node) else {
            return Ok(false);
        };
        match self.ctx.cloud.get(provider_id).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(Error::failed(format!(
                "looking up the instance of node {}: {error}",
                node.name_any()
            ))),
        }
    }

    /// Keeps pods and traffic away; `None` if the node is gone.
    async fn mark(&self, node: &Arc<Node>) -> Result<Option<Arc<Node>>> {
        let mut marked = (**node).clone();
        nodes::mark_disrupted(&mut marked);
        match self.ctx.node_writer.write(node, &marked).await? {
            Written::Changed(marked) => {
                tracing::info!(Node = node.name_any(), "tainted node");
                Ok(Some(Arc::new(marked)))
            }
            Written::Unchanged => Ok(Some(node.clone())),
            Written::Gone => Ok(None),
        }
    }

    fn drain(&self, node: &Node, claim: Option<&mut NodeClaim>, times: Times) -> Stage {
        let now = self.ctx.clock.now();
        let deadline = times.deadline;
        let pods = self.ctx.relations.pods_on(&node.name_any());
        let drain = Drain::plan(&pods, deadline, AtDeadline::ForceDelete, now);
        let request = Request {
            deadline,
            at_deadline: AtDeadline::ForceDelete,
        };
        drain.force.iter().for_each(|pod| self.evictions.add_now(pod, request));
        drain.evict.iter().for_each(|pod| self.evictions.add(pod, request));
        let drained_for = match claim {
            None => MINIMUM_DRAIN,
            Some(claim) => {
                if claim.condition(DRAINED).is_none() {
                    let _ = claim.set_unknown(DRAINED, "Draining", "Draining", now);
                }
                let begun = claim.condition(DRAINED).map(|drained| drained.transitioned_at());
                let since = times.tainted.into_iter().chain(begun).min().unwrap_or(now);
                let waited = if claim.is_true(DRAINED) {
                    MINIMUM_DRAIN
                } else {
                    now.duration_since(since)
                };
                if drain.is_done() && waited >= MINIMUM_DRAIN {
                    let _ = claim.set_true(DRAINED, now);
                }
                waited
            }
        };
        if !drain.is_done() {
            let why = format!("{} pods are waiting to be evicted", drain.waiting);
            self.ctx
                .events
                .publish(events::failed_draining(Regarding::of(node), &why));
            return Stage::Again(POLL_PODS);
        }
        if drained_for < MINIMUM_DRAIN {
            Stage::Again(MINIMUM_DRAIN - drained_for)
        } else {
            Stage::Done
        }
    }

    fn detach_volumes(&self, node: &Node, claim: Option<&mut NodeClaim>, deadline: Option<Timestamp>) -> Stage {
        let now = self.ctx.clock.now();
        let pods = self.ctx.relations.pods_on(&node.name_any());
        let attachments = self.ctx.relations.attachments_on(&node.name_any());
        let claim_of = |namespace: &str, name: &str| self.ctx.relations.volume_claim(namespace, name);
        let pending = volumes::pending_attachments(&attachments, &pods, claim_of, now);
        let overdue = deadline.is_some_and(|deadline| deadline <= now);
        match (pending.is_empty(), overdue) {
            (true, _) => {
                if let Some(claim) = claim {
                    let _ = claim.set_true(VOLUMES_DETACHED, now);
                }
                Stage::Done
            }
            (false, true) => {
                if let Some(claim) = claim {
                    let reason = "TerminationGracePeriodElapsed";
                    let _ = claim.set_false(VOLUMES_DETACHED, reason, reason, now);
                }
                Stage::Done
            }
            (false, false) => {
                if let Some(claim) = claim {
                    let reason = "AwaitingVolumeDetachment";
                    let _ = claim.set_unknown(VOLUMES_DETACHED, reason, reason, now);
                }
                let names: Vec<String> = pending.iter().map(|attachment| attachment.name_any()).collect();
                self.ctx
                    .events
                    .publish(events::awaiting_volume_detachment(Regarding::of(node), &names));
                Stage::Again(POLL_PODS)
            }
        }
    }

    async fn terminate_instance(&self, claim: &mut NodeClaim) -> Result<Stage> {
        let deletion = Deletion::settle(self.ctx.cloud.delete(claim).await);
        let deletion = deletion
            .map_err(|error| Error::failed(format!("terminating the instance of {}: {error}", claim.name_any())))?;
        let now = self.ctx.clock.now();
        let _ = claim.set_true(INSTANCE_TERMINATING, now);
        Ok(match deletion {
            Deletion::InProgress => Stage::Again(instance_poll(claim, now)),
            Deletion::Gone => Stage::Done,
        })
    }

    /// Writes the claim's conditions; a node counts as drained once that is written.
    async fn record(&self, before: &NodeClaim, after: &NodeClaim) -> Result<()> {
        let written = self.ctx.claim_writer.write(before, after).await?;
        if matches!(written, Written::Changed(_)) && after.is_true(DRAINED) && !before.is_true(DRAINED) {
            self.metrics
                .drained
                .inc([crate::claims::label(after, labels::NODEPOOL)]);
        }
        Ok(())
    }

    async fn release(&self, node: &Node) -> Result<Next> {
        let mut released = node.clone();
        nodes::release(&mut released);
        let Written::Changed(_) = self.ctx.node_writer.write(node, &released).await? else {
            return Ok(Next::Wait);
        };
        let (pool, zone) = (nodes::label(node, labels::NODEPOOL), nodes::label(node, labels::ZONE));
        self.metrics.terminated.inc([pool, zone]);
        let now = self.ctx.clock.now();
        if let Some(deleted) = &node.metadata.deletion_timestamp {
            self.metrics
                .duration
                .observe([pool], now.duration_since(deleted.0).as_secs_f64());
        }
        if let Some(created) = &node.metadata.creation_timestamp {
            self.metrics
                .lifetime
                .observe([pool], now.duration_since(created.0).as_secs_f64());
        }
        tracing::info!(Node = node.name_any(), "deleted node");
        Ok(Next::Wait)
    }
}

/// When to ask the cloud again whether a claim's machine is gone: as long from now as it has taken so far, but from one to five
/// seconds. Some clouds are done at once, and most take minutes.
pub(crate) fn instance_poll(claim: &NodeClaim, now: Timestamp) -> SignedDuration {
    let asked = claim.condition(INSTANCE_TERMINATING).filter(|asked| asked.is_true());
    let taken = asked.map_or(SignedDuration::ZERO, |asked| {
        now.duration_since(asked.transitioned_at())
    });
    taken.clamp(SignedDuration::from_secs(1), SignedDuration::from_secs(5))
}

/// Since when the node has been tainted, if it was chosen to go before its deletion: who chooses a node taints it first and then says
/// why on its claim. A reboot says so first, and when it tainted the node nobody knows.
fn tainted_since(node: &Node, claim: &NodeClaim) -> Option<Timestamp> {
    if claim.condition(REBOOTING).is_some() {
        return None;
    }
    let chosen = claim.condition(DISRUPTION_REASON).filter(|chosen| chosen.is_true())?;
    nodes::has_taint(node, &taint::disrupted()).then(|| chosen.transitioned_at())
}

/// By when the claim's node must be empty, if it says so.
fn deadline(claim: &NodeClaim) -> Result<Option<Timestamp>> {
    let text = claim
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(TERMINATION_TIMESTAMP));
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|error| {
        let name = claim.name_any();
        Error::failed(format!(
            "annotation {TERMINATION_TIMESTAMP} of NodeClaim {name} is no RFC 3339 time: {text:?}: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is known since when a node with these taints, whose claim has these conditions, takes no pods.
    fn check_tainted(taints: &str, conditions: &[&str], known: bool) {
        let node: Node = serde_norway::from_str(&format!("{{spec: {{taints: {taints}}}}}")).unwrap();
        let mut claim = claim();
        for condition in conditions {
            let _ = claim.set_true(condition, Timestamp::UNIX_EPOCH);
        }
        let expected = known.then_some(Timestamp::UNIX_EPOCH);
        assert_eq!(tainted_since(&node, &claim), expected, "{taints} {conditions:?}");
    }

    #[test]
    fn a_node_that_was_chosen_to_go_is_tainted_since_then_unless_it_was_for_a_reboot() {
        let tainted = "[{key: karpenter.sh/disrupted, effect: NoSchedule}]";
        check_tainted(tainted, &[DISRUPTION_REASON], true);
        check_tainted("[]", &[DISRUPTION_REASON], false);
        check_tainted(tainted, &[], false);
        check_tainted(tainted, &[DISRUPTION_REASON, REBOOTING], false);
    }

    fn claim() -> NodeClaim {
        serde_norway::from_str(
            "{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {name: c}, \
             spec: {requirements: [], nodeClassRef: {group: g, kind: K, name: n}}}",
        )
        .unwrap()
    }

    #[test]
    fn an_unreadable_deadline_is_an_error_that_names_it() {
        let mut claim = claim();
        assert_eq!(deadline(&claim).unwrap(), None);
        let mut annotate = |text: &str| {
            claim
                .annotations_mut()
                .insert(TERMINATION_TIMESTAMP.to_owned(), text.to_owned());
            deadline(&claim)
        };
        assert_eq!(
            annotate("2026-01-01T00:00:00Z").unwrap(),
            Some("2026-01-01T00:00:00Z".parse().unwrap())
        );
        assert!(annotate("soon").unwrap_err().to_string().contains("\"soon\""));
    }
}
