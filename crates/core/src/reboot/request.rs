//! How a reboot is asked for: condition `Rebooting=True` on the NodeClaim, and how long its drain may take.

use jiff::SignedDuration;
use karpenter_api::NodeClaim;
use karpenter_api::conditions::{ConditionStatus, StatusConditions};
use karpenter_api::duration::GoDuration;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition::{DISRUPTION_REASON, REBOOTING};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Result;
use crate::patch::Written;

/// Reason of `Rebooting=True` until the cloud has accepted.
pub const REQUESTED: &str = "RebootRequested";
/// Reason of `Rebooting=True` from then on.
pub const ISSUED: &str = "RebootIssued";

/// A bound that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBound(pub String);

/// Whether a reboot was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commitment {
    Committed,
    /// The claim is gone, going, or rebooting already.
    NotAnyMore,
}

/// Asks for a reboot of the claim's machine because of `message`. `bound` is how long its drain may take; `None` is as
/// long as it takes.
///
/// # Errors
/// With a conflict if the claim has changed meanwhile, and with whatever else the API server refuses for.
pub async fn commit(ctx: &Context, claim: &str, bound: Option<SignedDuration>, message: &str) -> Result<Commitment> {
    let Some(claim) = ctx.claims.named(claim) else {
        return Ok(Commitment::NotAnyMore);
    };
    if claim.is_terminating() || claim.is_true(REBOOTING) {
        return Ok(Commitment::NotAnyMore);
    }
    let now = ctx.clock.now();
    let mut asked = (*claim).clone();
    let key = annotations::REBOOT_TERMINATION_GRACE_PERIOD;
    match bound {
        Some(bound) => asked
            .annotations_mut()
            .insert(key.to_owned(), GoDuration::from(bound).to_string()),
        None => asked.annotations_mut().remove(key),
    };
    // What an earlier reboot may have left must not be taken for this one's.
    asked.annotations_mut().remove(annotations::REBOOT_PRE_BOOT_ID);
    let _ = asked.set_condition(DISRUPTION_REASON, ConditionStatus::True, "Unhealthy", "Unhealthy", now);
    let _ = asked.set_condition(REBOOTING, ConditionStatus::True, REQUESTED, message, now);
    Ok(match ctx.claim_writer.write(&claim, &asked).await? {
        Written::Changed(_) | Written::Unchanged => Commitment::Committed,
        Written::Gone => Commitment::NotAnyMore,
    })
}

/// How long the drain before the reboot may take.
///
/// # Errors
/// When the annotation is no duration, or a negative one.
pub fn drain_bound(claim: &NodeClaim) -> Result<Option<SignedDuration>, InvalidBound> {
    let Some(text) = claim.annotations().get(annotations::REBOOT_TERMINATION_GRACE_PERIOD) else {
        return Ok(None);
    };
    match text.parse::<GoDuration>() {
        Ok(bound) if bound >= GoDuration::ZERO => Ok(Some(bound.as_signed())),
        Ok(_) | Err(_) => Err(InvalidBound(text.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(annotation: &str, expected: Result<Option<SignedDuration>, ()>) {
        let claim: NodeClaim = serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, annotations: {{{annotation}}}}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}"
        ))
        .unwrap();
        assert_eq!(drain_bound(&claim).map_err(drop), expected, "{annotation}");
    }

    #[test]
    fn the_bound_of_a_reboot_is_a_duration_that_is_not_negative() {
        let key = annotations::REBOOT_TERMINATION_GRACE_PERIOD;
        check("", Ok(None));
        check(&format!("{key}: 1m30s"), Ok(Some(SignedDuration::from_secs(90))));
        check(&format!("{key}: 0s"), Ok(Some(SignedDuration::ZERO)));
        check(&format!("{key}: -5s"), Err(()));
        check(&format!("{key}: soon"), Err(()));
    }
}
