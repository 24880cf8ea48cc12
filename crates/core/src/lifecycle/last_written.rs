//! How new the claims are that lifecycle has written, so that none is judged by what the watch said before.
//!
//! A launch is written in two steps, metadata and status. The watch shows the first while the second is on its way; judged by that,
//! the claim would be launched, logged and written once more, and the API server would refuse it.

use karpenter_api::NodeClaim;
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Versions by the claims' UIDs. Of versions that are no numbers nothing is known, and nobody waits for them.
#[derive(Debug, Default)]
pub(super) struct LastWritten(Mutex<FxHashMap<String, u64>>);

impl LastWritten {
    /// The API server answered a write with this.
    pub(super) fn remember(&self, claim: &NodeClaim) {
        if let (Some(uid), Some(version)) = (claim.uid(), version(claim)) {
            self.0.lock().insert(uid, version);
        }
    }

    /// Whether what was written is yet to come.
    pub(super) fn is_newer_than(&self, claim: &NodeClaim) -> bool {
        let written = claim
            .metadata
            .uid
            .as_ref()
            .and_then(|uid| self.0.lock().get(uid).copied());
        written
            .zip(version(claim))
            .is_some_and(|(written, known)| written > known)
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

    #[test]
    fn a_claim_waits_until_the_watch_has_shown_what_was_written() {
        let check = |written: &str, known: &str, waits: bool| {
            let last = LastWritten::default();
            last.remember(&claim(written));
            assert_eq!(last.is_newer_than(&claim(known)), waits, "{written} {known}");
            last.forget(&claim(known));
            assert!(!last.is_newer_than(&claim(known)));
        };
        check("10", "9", true);
        check("10", "10", false);
        check("9", "10", false);
        check("10", "b", false);
        check("b", "10", false);
    }
}
