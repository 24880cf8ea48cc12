//! NodeClaims as this process wrote them, until the watch shows as much.
//!
//! Whoever is woken in between by something else (a pod, a Node, the first of two writes) would judge the claim by what it was before,
//! take the same step once more, and be refused with a conflict.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::NodeClaim;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Nobody goes by it for longer: an API server that was set back to an older state never shows what it had answered.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// What the API server answered to the last write of each claim and when, by the claims' UIDs.
#[derive(Debug, Default)]
pub(super) struct LastWritten(Mutex<FxHashMap<String, (Arc<NodeClaim>, Timestamp)>>);

impl LastWritten {
    /// The API server answered a write with this.
    pub(super) fn remember(&self, claim: NodeClaim, now: Timestamp) {
        if let Some(uid) = claim.metadata.uid.clone() {
            self.0.lock().insert(uid, (Arc::new(claim), now));
        }
    }

    /// The claim as it was last written, if that is newer than what is `known`; of versions that are no numbers nobody can tell.
    pub(super) fn newer_than(&self, known: &NodeClaim, now: Timestamp) -> Option<Arc<NodeClaim>> {
        let written = self.0.lock();
        let (written, at) = written.get(known.metadata.uid.as_ref()?)?;
        let is_newer = version(written)? > version(known)? && now.duration_since(*at) < PATIENCE;
        is_newer.then(|| written.clone())
    }

    /// This is how the watch shows the claim by now, if it does: only what it lags behind is worth remembering.
    pub(super) fn shown(&self, claim: &NodeClaim, now: Option<&NodeClaim>) {
        let Some(uid) = &claim.metadata.uid else { return };
        let mut written = self.0.lock();
        let lags = |shown: &NodeClaim| {
            let (written, _) = written.get(uid)?;
            Some(shown.metadata.uid.as_ref() == Some(uid) && version(written)? > version(shown)?)
        };
        if !now.and_then(lags).unwrap_or(false) {
            written.remove(uid);
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

    /// Whether what was written counts for somebody who knows another version, so many seconds later.
    fn check(written: &str, known: &str, after: i64, counts: bool) {
        let start = Timestamp::UNIX_EPOCH;
        let last = LastWritten::default();
        last.remember(claim(written), start);
        let newer = last.newer_than(&claim(known), start + SignedDuration::from_secs(after));
        assert_eq!(newer.map(|claim| (*claim).clone()), counts.then(|| claim(written)));
    }

    #[test]
    fn what_was_written_counts_until_the_watch_shows_it() {
        check("10", "9", 1, true);
        check("10", "10", 1, false);
        check("9", "10", 1, false);
    }

    #[test]
    fn it_counts_neither_for_ever_nor_where_versions_cannot_be_compared() {
        check("10", "9", 10, false);
        check("10", "b", 1, false);
        check("b", "10", 1, false);
    }

    #[test]
    fn it_is_kept_for_as_long_as_the_watch_lags_behind() {
        let last = LastWritten::default();
        let kept = |shown: Option<NodeClaim>| {
            last.remember(claim("10"), Timestamp::UNIX_EPOCH);
            last.shown(&claim("8"), shown.as_ref());
            !last.0.lock().is_empty()
        };
        assert!(kept(Some(claim("9"))));
        assert!(!kept(Some(claim("10"))));
        assert!(!kept(Some(claim("b"))));
        assert!(!kept(None), "the claim is gone");
        let mut another = claim("9");
        another.metadata.uid = Some("v".to_owned());
        assert!(!kept(Some(another)), "its name belongs to another one");
    }
}
