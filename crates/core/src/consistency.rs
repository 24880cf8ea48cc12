//! Reports nodes that are smaller than their NodeClaim promised.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::{CONSISTENT_STATE_FOUND, INITIALIZED};
use karpenter_api::{NodeClaim, Quantity};
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

/// How often a claim is looked at.
const PERIOD: SignedDuration = SignedDuration::from_mins(10);
/// A claim that comes up is written to often enough: what this controller has to say waits so long, or until it is initialized.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);
/// A node may be this much smaller than expected: hypervisors and kernels take their share.
const LEAST_SHARE: f64 = 0.9;

/// What is wrong with the size of `node`, as sentences. Nothing is before it is initialized, or while the claim goes.
pub fn shortfalls(claim: &NodeClaim, node: &Node) -> Vec<String> {
    if claim.is_terminating() || !claim.is_true(INITIALIZED) {
        return Vec::new();
    }
    let expected = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let requested = claim.spec.resources.requests.as_ref();
    let (Some(expected), Some(requested)) = (expected, requested) else {
        return Vec::new();
    };
    let found = |name: &str| {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let amount = capacity.and_then(|capacity| capacity.get(name));
        amount
            .and_then(|amount| Quantity::try_from(amount).ok())
            .unwrap_or_default()
    };
    let mut shortfalls = Vec::new();
    for (name, _) in requested.iter().filter(|(_, amount)| !amount.is_zero()) {
        let (wanted, found) = (expected.amount(name), found(name));
        if wanted.is_zero() {
            continue;
        }
        let share = found.to_f64() / wanted.to_f64();
        if share < LEAST_SHARE {
            let percent = share * 100.0;
            shortfalls.push(format!(
                "expected {wanted} of resource {name}, but found {found} ({percent:.1}% of expected)"
            ));
        }
    }
    shortfalls
}

/// Says on a claim that was just initialized that its node is as large as promised, if it is: with the write of that news, which
/// happens anyway. What is wrong is for the controller to find and to report.
pub fn note_consistent(claim: &mut NodeClaim, node: &Node, now: Timestamp) {
    if claim.condition(CONSISTENT_STATE_FOUND).is_none() && shortfalls(claim, node).is_empty() {
        let _ = claim.set_true(CONSISTENT_STATE_FOUND, now);
    }
}

/// The `nodeclaim.consistency` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let relations = ctx.relations.clone();
    Controller::new(&ctx.runner, "nodeclaim.consistency")
        .about("karpenter.sh", "NodeClaim")
        .concurrency(linear(ctx.options.cores(), 10, 1000))
        .watches(&ctx.nodes, move |change| relations.claims_of_change(change))
        .runs(
            &ctx.claims,
            ctx.manages_claim(),
            Consistency {
                ctx: ctx.clone(),
                scanned: Mutex::default(),
            },
        )
}

struct Consistency {
    ctx: Context,
    scanned: Mutex<FxHashMap<String, Timestamp>>,
}

impl Reconcile<NodeClaim> for Consistency {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        let Some(provider_id) = claim.provider_id() else {
            return Ok(Next::Wait);
        };
        let now = self.ctx.clock.now();
        if let Some(wait) = comes_up(&claim, now) {
            return Ok(Next::After(wait));
        }
        if let Some(wait) = self.wait(&claim, now) {
            return Ok(Next::After(wait));
        }
        let Some(node) = self.ctx.relations.node_of(provider_id).only() else {
            return Ok(Next::Wait);
        };
        let shortfalls = shortfalls(&claim, &node);
        for shortfall in &shortfalls {
            tracing::error!(error = shortfall, "consistency error");
            self.ctx
                .events
                .publish(events::failed_consistency_check(Regarding::of(&*claim), shortfall));
        }
        let mut changed = (*claim).clone();
        if shortfalls.is_empty() {
            let _ = changed.set_true(CONSISTENT_STATE_FOUND, now);
        } else {
            let message = "Consistency Check Failed";
            let _ = changed.set_false(CONSISTENT_STATE_FOUND, "ConsistencyCheckFailed", message, now);
        }
        self.ctx.claim_writer.write(&claim, &changed).await?;
        Ok(Next::After(PERIOD))
    }
}

/// How long a claim that is not initialized yet may take for it, before it is looked at all the same.
fn comes_up(claim: &NodeClaim, now: Timestamp) -> Option<SignedDuration> {
    if claim.is_true(INITIALIZED) {
        return None;
    }
    let left = PATIENCE - now.duration_since(claim.creation_timestamp()?.0);
    left.is_positive().then_some(left)
}

impl Consistency {
    /// How long until the claim is due again; notes the scan when it is due now.
    fn wait(&self, claim: &NodeClaim, now: Timestamp) -> Option<SignedDuration> {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let mut scanned = self.scanned.lock();
        if let Some(last) = scanned.get(&uid) {
            let left = PERIOD - now.duration_since(*last);
            if left.is_positive() {
                return Some(left);
            }
        }
        scanned.retain(|_, last| now.duration_since(*last) < PERIOD);
        scanned.insert(uid, now);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim that expects 10Gi of memory, and a node that has `found`.
    fn check(initialized: &str, found: &str, consistent: bool) {
        let claim: NodeClaim = serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}, \
               resources: {{requests: {{memory: 1Gi, cpu: '0'}}}}}}, \
             status: {{capacity: {{memory: 10Gi, cpu: '4'}}, conditions: \
               [{{type: Initialized, status: '{initialized}', lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}}}"
        ))
        .unwrap();
        let node: Node = serde_norway::from_str(&format!("{{status: {{capacity: {{memory: {found}}}}}}}")).unwrap();
        assert_eq!(
            shortfalls(&claim, &node).is_empty(),
            consistent,
            "{initialized} {found}"
        );
    }

    #[test]
    fn a_node_may_lack_a_tenth_of_what_was_expected() {
        check("True", "8Gi", false);
        check("True", "9Gi", true);
        check("True", "9.5Gi", true);
        check("True", "0", false);
    }

    #[test]
    fn a_node_that_is_still_coming_up_is_not_measured() {
        check("Unknown", "1Gi", true);
    }
}
