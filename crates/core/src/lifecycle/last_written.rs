//! How new the claims are that lifecycle has written, so that none is judged by what the watch said before.
//!
//! A launch is written in two steps, metadata and status. The watch shows the first while the second is on its way; judged by that,
//! the claim would be launched, logged and written once more, and the API server would refuse it.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Nobody waits longer: an API server that was set back to an older state never shows what it had answered.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// Versions and when they were written, by the claims' UIDs. Of versions that are no numbers nothing is known, and nobody waits for
/// them.
#[derive(Debug, Default)]
pub(super) struct LastWritten(Mutex<FxHashMap<String, (u64, Timestamp)>>);

impl LastWritten {
    /// The API server answered a write with this.
    pub(super) fn remember(&self, claim: &NodeClaim, now: Timestamp) {
        if let (Some(uid), Some(version)) = (claim.uid(), version(claim)) {
            self.0.lock().insert(uid, (version, now));
        }
    }

    /// How long to wait at most for the watch to show what was written; `None` if it has, or will not.
    pub(super) fn wait(&self, claim: &NodeClaim, now: Timestamp) -> Option<SignedDuration> {
        let uid = claim.metadata.uid.as_ref()?;
        let (written, at) = self.0.lock().get(uid).copied()?;
        let left = PATIENCE - now.duration_since(at);
        (written > version(claim)? && left.is_positive()).then_some(left)
    }

    /// The claim is gone, or known to be going.
    pub(super) fn forget(&self, claim: &NodeClaim) {
        if let Some(uid) = &claim.metadata.uid {
            self.0.lock().remove(uid);
        }
    }
}

/// Versions of one object are numbers that grow, by the API's own rules since Kubernetes 1.35.
fn version(claim: &NodeClaim) -> Option<u64> {
    claim.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(version: &str) -> NodeClaim {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, uid: u, resourceVersion: '{version}'}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}"
        ))
        .unwrap()
    }

    /// Whether a claim that is known at one version waits for another, so many seconds after that was written.
    fn check(written: &str, known: &str, after: i64, waits: bool) {
        let start = Timestamp::UNIX_EPOCH;
        let now = start + SignedDuration::from_secs(after);
        let last = LastWritten::default();
        last.remember(&claim(written), start);
        assert_eq!(last.wait(&claim(known), now).is_some(), waits, "{written} {known}");
        last.forget(&claim(known));
        assert_eq!(last.wait(&claim(known), now), None);
    }

    #[test]
    fn a_claim_waits_until_the_watch_has_shown_what_was_written() {
        check("10", "9", 1, true);
        check("10", "10", 1, false);
        check("9", "10", 1, false);
    }

    #[test]
    fn nobody_waits_for_ever_or_for_what_cannot_be_compared() {
        check("10", "9", 10, false);
        check("10", "b", 1, false);
        check("b", "10", 1, false);
    }
}
