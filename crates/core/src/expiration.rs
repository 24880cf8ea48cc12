//! Deletes NodeClaims that have outlived their `expireAfter`.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::{NodeClaim, pods};

use crate::claims::Reason;
use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Reconcile, Runnable};

/// When a claim must go, and how long until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// It has no end.
    Never,
    /// Now.
    Due,
    /// Not yet.
    In(SignedDuration),
}

/// The expiry of a claim. Its own age and its own `expireAfter` count, not its node's or what the NodePool says today.
pub fn expiry(claim: &NodeClaim, now: Timestamp) -> Expiry {
    let (Some(lifetime), Some(created)) = (
        claim.spec.expire_after.as_duration(),
        &claim.metadata.creation_timestamp,
    ) else {
        return Expiry::Never;
    };
    match created.0.checked_add(lifetime) {
        Ok(end) if end <= now => Expiry::Due,
        Ok(end) => Expiry::In(end.duration_since(now)),
        Err(_) => Expiry::Never,
    }
}

/// The `nodeclaim.expiration` controller.
pub fn controller(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodeclaim.expiration")
        .about("karpenter.sh", "NodeClaim")
        .runs(&ctx.claims, ctx.manages_claim(), Expiration { ctx: ctx.clone() })
}

struct Expiration {
    ctx: Context,
}

impl Reconcile<NodeClaim> for Expiration {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        if claim.is_terminating() {
            return Ok(Next::Wait);
        }
        match expiry(&claim, self.ctx.clock.now()) {
            Expiry::Never => Ok(Next::Wait),
            Expiry::In(left) => Ok(Next::After(left)),
            Expiry::Due => {
                let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
                let on_node = node.map(|node| self.ctx.relations.pods_on(node)).unwrap_or_default();
                let moving = on_node.iter().filter(|pod| pods::is_reschedulable(pod)).count();
                self.ctx
                    .claim_writer
                    .disrupt_with_pods(&claim, Reason::Expired, moving)
                    .await?;
                Ok(Next::Wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(created: &str, expire_after: &str, now: &str, expected: Expiry) {
        let claim: NodeClaim = serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, creationTimestamp: '{created}'}}, \
             spec: {{expireAfter: {expire_after}, requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}"
        ))
        .unwrap();
        assert_eq!(expiry(&claim, now.parse().unwrap()), expected);
    }

    #[test]
    fn a_claim_expires_when_its_age_reaches_expire_after() {
        let one_second = SignedDuration::from_secs(1);
        check(
            "2026-01-01T00:00:00Z",
            "720h",
            "2026-01-30T23:59:59Z",
            Expiry::In(one_second),
        );
        check("2026-01-01T00:00:00Z", "720h", "2026-01-31T00:00:00Z", Expiry::Due);
        check("2026-01-01T00:00:00Z", "Never", "2036-01-01T00:00:00Z", Expiry::Never);
    }
}
