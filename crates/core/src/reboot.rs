//! Restarts machines in place: drains the node, asks the cloud, waits for the new boot, and gives up if it does not come.
//!
//! A request is a NodeClaim with condition `Rebooting=True` ([`request`]). Everything else that must survive a restart of this
//! process is on the claim, too: the boot ID before the reboot and how long the drain may take. The controller always runs, so
//! that reboots under way are finished even when repair was switched off meanwhile.

pub mod request;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{Condition, ConditionStatus, StatusConditions};
use karpenter_api::labels::{self, annotations};
use karpenter_api::node_claim::condition::{INITIALIZED, REBOOTING};
use karpenter_api::{NodeClaim, taint};
use karpenter_cloud::error::RebootEffect;
use karpenter_cloud::provider::RebootOperation;
use kube::ResourceExt;
use moka::sync::Cache;

use self::request::{ISSUED, InvalidBound};
use crate::claims;
use crate::clock::later;
use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::eviction::Evictions;
use crate::eviction::request::Request;
use crate::metrics::{Counter, Histogram, Registry, exponential_buckets};
use crate::nodes;
use crate::patch::Written;
use crate::runner::{Controller, Next, RateLimit, Reconcile, Runnable};
use crate::termination::drain::{AtDeadline, Drain};

const POLL: SignedDuration = SignedDuration::from_secs(15);
const POLL_PODS: SignedDuration = SignedDuration::from_secs(1);
/// The scheduler may still bind pods that it placed before it saw the taint.
const MINIMUM_DRAIN: SignedDuration = SignedDuration::from_secs(5);
/// How long the cloud may refuse to restart a machine.
const ISSUE_WITHIN: SignedDuration = SignedDuration::from_mins(5);
/// How long a machine may take to come back.
const RECOVER_WITHIN: SignedDuration = SignedDuration::from_mins(20);

/// The `nodeclaim.reboot` controller.
pub fn controller(ctx: &Context, evictions: Arc<Evictions>) -> Runnable {
    let relations = ctx.relations.clone();
    let reboots = Reboots {
        ctx: ctx.clone(),
        evictions,
        first_tries: Cache::builder().time_to_live(Duration::from_secs(3600)).build(),
        metrics: RebootMetrics::register(&ctx.metrics.registry),
    };
    Controller::new(&ctx.runner, "nodeclaim.reboot")
        .about("karpenter.sh", "NodeClaim")
        .concurrency(10)
        .rate_limit(RateLimit::reasonable())
        .watches(&ctx.nodes, move |change| relations.claims_of_change(change))
        .runs(&ctx.claims, ctx.manages_claim(), reboots)
}

struct Reboots {
    ctx: Context,
    evictions: Arc<Evictions>,
    /// When the cloud was first asked for each operation. Not kept across restarts: the time starts over then.
    first_tries: Cache<RebootOperation, Timestamp>,
    metrics: RebootMetrics,
}

struct RebootMetrics {
    reboots: Counter<1>,
    duration: Histogram<1>,
    recovery: Histogram<0>,
}

/// Why a reboot is over without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The request itself cannot be read; the machine was not touched.
    InvalidRequest,
    /// The cloud would not restart the machine.
    ProviderError,
    /// The machine did not come back.
    RecoveryTimeout,
}

impl Failure {
    fn label(self) -> &'static str {
        match self {
            Failure::InvalidRequest => "invalid_request",
            Failure::ProviderError => "provider_error",
            Failure::RecoveryTimeout => "recovery_timeout",
        }
    }
}

impl RebootMetrics {
    fn register(registry: &Registry) -> Self {
        let buckets = exponential_buckets(10.0, 2.0, 8);
        Self {
            reboots: registry.counter(
                "karpenter_nodes_reboots_total",
                "Reboots that ended, by how.",
                ["result"],
            ),
            duration: registry.histogram(
                "karpenter_nodes_reboot_duration_seconds",
                "From the request of a reboot until it ended.",
                ["result"],
                &buckets,
            ),
            recovery: registry.histogram(
                "karpenter_nodes_reboot_recovery_duration_seconds",
                "From the moment the cloud accepted a reboot until the node was Ready again.",
                [],
                &buckets,
            ),
        }
    }

    fn ended(&self, result: &str, took: SignedDuration) {
        self.reboots.inc([result]);
        self.duration.observe([result], took.as_secs_f64());
    }
}

impl Reconcile<NodeClaim> for Reboots {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        let Some(rebooting) = claim
            .condition(REBOOTING)
            .filter(|rebooting| rebooting.is_true())
            .cloned()
        else {
            return Ok(Next::Wait);
        };
        if claim.is_terminating() {
            return Ok(Next::Wait);
        }
        let node = claim.provider_id().and_then(|id| self.ctx.relations.node_of(id).only());
        let issued = rebooting.reason == ISSUED;
        let Some(node) = node else {
            let (deadline, failure) = match issued {
                true => (issued_at(&claim, &rebooting) + RECOVER_WITHIN, Failure::RecoveryTimeout),
                false => (rebooting.transitioned_at() + ISSUE_WITHIN, Failure::ProviderError),
            };
            return if self.ctx.clock.now() > deadline {
                self.fail(&claim, &rebooting, None, failure, "its Node is gone").await
            } else {
                Ok(Next::After(POLL))
            };
        };
        if issued {
            self.observe(&claim, &rebooting, &node).await
        } else {
            self.issue(&claim, &rebooting, &node).await
        }
    }
}

impl Reboots {
    /// Drains the node and has the cloud restart its machine.
    async fn issue(&self, claim: &NodeClaim, rebooting: &Condition, node: &Arc<Node>) -> Result<Next> {
        let requested = rebooting.transitioned_at();
        let bound = match request::drain_bound(claim) {
            Ok(bound) => bound,
            Err(InvalidBound(text)) => {
                let why = format!(
                    "annotation {} is no duration: {text:?}",
                    annotations::REBOOT_TERMINATION_GRACE_PERIOD
                );
                return self
                    .fail(claim, rebooting, Some(node), Failure::InvalidRequest, &why)
                    .await;
            }
        };
        let Some(node) = self.fence(node).await? else {
            return Ok(Next::After(POLL));
        };
        let before = claim.annotations().get(annotations::REBOOT_PRE_BOOT_ID);
        match before {
            // It happened, but the process that asked for it did not get to write so.
            Some(before) if before != boot_id(&node) => return self.issued(claim, &node).await,
            // The drain is over once the cloud has been asked.
            Some(_) => {}
            None => {
                if let Drained::Not = self.drain(&node, requested, bound) {
                    return Ok(Next::After(POLL_PODS));
                }
            }
        }
        let Some(claim) = self.remember_boot(claim, &node).await? else {
            return Ok(Next::Wait);
        };
        let operation = operation(&claim, requested, boot_id(&node));
        let first_try = self.first_tries.get_with(operation.clone(), || self.ctx.clock.now());
        let Err(error) = self.ctx.cloud.reboot(&claim, &operation).await else {
            return self.issued(&claim, &node).await;
        };
        let is_final = match error.reboot_effect() {
            RebootEffect::GiveUp => true,
            RebootEffect::Retry => self.ctx.clock.since(first_try) >= ISSUE_WITHIN,
        };
        if is_final {
            return self
                .fail(
                    &claim,
                    rebooting,
                    Some(&node),
                    Failure::ProviderError,
                    &error.to_string(),
                )
                .await;
        }
        tracing::info!(NodeClaim = claim.name_any(), %error, "could not reboot the machine, trying again");
        Ok(Next::Requeue)
    }

    /// Keeps new pods away; `None` if the node is gone.
    async fn fence(&self, node: &Arc<Node>) -> Result<Option<Arc<Node>>> {
        let mut fenced = (**node).clone();
        nodes::add_taint(&mut fenced, taint::rebooting());
        Ok(match self.ctx.node_writer.write(node, &fenced).await? {
            Written::Changed(node) => Some(Arc::new(node)),
            Written::Unchanged => Some(node.clone()),
            Written::Gone => None,
        })
    }

    /// Evicts pods as far as they let themselves be evicted; those that remain at the deadline ride along.
    fn drain(&self, node: &Node, requested: Timestamp, bound: Option<SignedDuration>) -> Drained {
        if bound == Some(SignedDuration::ZERO) {
            return Drained::Enough;
        }
        let now = self.ctx.clock.now();
        let deadline = bound.map(|bound| requested + bound.max(MINIMUM_DRAIN));
        let pods = self.ctx.relations.pods_on(&node.name_any());
        let drain = Drain::plan(&pods, deadline, AtDeadline::GiveUp, now);
        let request = Request {
            deadline,
            at_deadline: AtDeadline::GiveUp,
        };
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Drained::Enough;
        }
        drain.evict.iter().for_each(|pod| self.evictions.add(pod, request));
        match drain.is_done() && now.duration_since(requested) >= MINIMUM_DRAIN {
            true => Drained::Enough,
            false => Drained::Not,
        }
    }

    /// Writes down which boot the reboot is to end, before anything happens; `None` if the claim is gone.
    async fn remember_boot(&self, claim: &NodeClaim, node: &Node) -> Result<Option<NodeClaim>> {
        let mut noted = claim.clone();
        let key = annotations::REBOOT_PRE_BOOT_ID.to_owned();
        noted
            .annotations_mut()
            .entry(key)
            .or_insert_with(|| boot_id(node).to_owned());
        Ok(match self.ctx.claim_writer.write(claim, &noted).await? {
            Written::Changed(claim) => Some(claim),
            Written::Unchanged => Some(noted),
            Written::Gone => None,
        })
    }

    /// The cloud has accepted: until the node is back it does not count as initialized.
    async fn issued(&self, claim: &NodeClaim, node: &Arc<Node>) -> Result<Next> {
        self.unlabel(node).await?;
        let now = self.ctx.clock.now();
        let mut changed = claim.clone();
        let _ = changed.set_condition(
            REBOOTING,
            ConditionStatus::True,
            ISSUED,
            "waiting for the machine to come back",
            now,
        );
        let _ = changed.set_unknown(INITIALIZED, REBOOTING, "the node is rebooting", now);
        self.ctx.claim_writer.write(claim, &changed).await?;
        tracing::info!(NodeClaim = claim.name_any(), Node = node.name_any(), "rebooting node");
        Ok(Next::After(POLL))
    }

    async fn unlabel(&self, node: &Arc<Node>) -> Result<()> {
        let mut changed = (**node).clone();
        changed.labels_mut().remove(labels::INITIALIZED);
        self.ctx.node_writer.write(node, &changed).await?;
        Ok(())
    }

    /// Waits for another boot and a Ready node.
    async fn observe(&self, claim: &NodeClaim, rebooting: &Condition, node: &Arc<Node>) -> Result<Next> {
        let now = self.ctx.clock.now();
        let requested = rebooting.transitioned_at();
        let issued = issued_at(claim, rebooting);
        let before = claim.annotations().get(annotations::REBOOT_PRE_BOOT_ID);
        let has_rebooted = before.is_none_or(|before| before != boot_id(node));
        if has_rebooted {
            self.lift(node).await?;
            let event = events::reboot_observed(Regarding::of(claim), requested);
            self.ctx.events.publish(event);
        }
        if has_rebooted && nodes::is_ready(node) {
            let mut changed = claim.clone();
            changed.annotations_mut().remove(annotations::REBOOT_PRE_BOOT_ID);
            let _ = changed.set_false(REBOOTING, "RebootSucceeded", "the node is Ready after its reboot", now);
            self.ctx.claim_writer.write(claim, &changed).await?;
            self.metrics.ended("succeeded", now.duration_since(requested));
            self.metrics
                .recovery
                .observe([], now.duration_since(issued).as_secs_f64());
            tracing::info!(NodeClaim = claim.name_any(), Node = node.name_any(), "rebooted node");
            return Ok(Next::Wait);
        }
        if now.duration_since(issued) > RECOVER_WITHIN {
            let why = "the node did not come back within 20 minutes";
            return self
                .fail(claim, rebooting, Some(node), Failure::RecoveryTimeout, why)
                .await;
        }
        Ok(Next::After(POLL))
    }

    /// Takes the taint away.
    async fn lift(&self, node: &Arc<Node>) -> Result<()> {
        let mut lifted = (**node).clone();
        nodes::remove_taint(&mut lifted, &taint::rebooting());
        self.ctx.node_writer.write(node, &lifted).await?;
        Ok(())
    }

    /// Gives up: a machine that cannot be rebooted is replaced, unless the request was at fault and not the machine.
    async fn fail(
        &self,
        claim: &NodeClaim,
        rebooting: &Condition,
        node: Option<&Arc<Node>>,
        failure: Failure,
        why: &str,
    ) -> Result<Next> {
        let now = self.ctx.clock.now();
        let requested = rebooting.transitioned_at();
        if let Some(node) = node {
            self.lift(node).await?;
        }
        match failure {
            Failure::InvalidRequest => {
                let mut changed = claim.clone();
                let _ = changed.set_false(REBOOTING, "RebootFailed", why, now);
                self.ctx.claim_writer.write(claim, &changed).await?;
            }
            Failure::ProviderError | Failure::RecoveryTimeout => {
                let bound = request::drain_bound(claim).ok().flatten();
                let deadline = bound.map(|bound| later(now, bound.try_into().unwrap_or_default()));
                self.ctx.claim_writer.delete_by(claim, deadline).await?;
            }
        }
        self.ctx
            .events
            .publish(events::reboot_failed(Regarding::of(claim), requested, why));
        self.metrics.ended(failure.label(), now.duration_since(requested));
        tracing::error!(
            NodeClaim = claim.name_any(),
            nodepool = claims::label(claim, labels::NODEPOOL),
            result = failure.label(),
            reason = why,
            "reboot failed"
        );
        Ok(Next::Wait)
    }
}

/// Whether a node is empty enough to restart it.
enum Drained {
    Enough,
    Not,
}

/// When the cloud accepted: then the claim stopped being initialized.
fn issued_at(claim: &NodeClaim, rebooting: &Condition) -> Timestamp {
    let initialized = claim
        .condition(INITIALIZED)
        .map(|initialized| initialized.transitioned_at());
    initialized.map_or(rebooting.transitioned_at(), |at| at.max(rebooting.transitioned_at()))
}

/// The same for every try of one reboot, and another for the next.
fn operation(claim: &NodeClaim, requested: Timestamp, boot_id: &str) -> RebootOperation {
    let uid = claim.uid().unwrap_or_default();
    let before = claim
        .annotations()
        .get(annotations::REBOOT_PRE_BOOT_ID)
        .map_or(boot_id, String::as_str);
    RebootOperation(format!("{uid}-{}-{before}", requested.as_nanosecond()))
}

fn boot_id(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| &info.boot_id)
}
