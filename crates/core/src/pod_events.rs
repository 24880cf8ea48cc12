//! Notes on a NodeClaim when pods last came to or left its node: what `consolidateAfter` counts from.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition::CONSOLIDATABLE;
use karpenter_api::pods;

use crate::context::Context;
use crate::disruption::conditions::{Consolidatable, consolidatable};
use crate::error::Result;
use crate::runner::{Controller, Next, ReconcileKey, Runnable};
use crate::watch::{Change, Key, Origin};

/// Events closer together than this count as one: fewer writes, and still more often than the 15 s after which a
/// consolidation decision is validated, so that no decision can miss a change.
const DEDUPE: SignedDuration = SignedDuration::from_secs(10);

/// The node whose pods this change is news about, if it is.
///
/// Not every change of a pod is: it must have just been bound, have ended, or have begun to end. How the pods were found
/// at start-up is no news at all.
pub fn node_with_news(change: &Change<Pod>) -> Option<&str> {
    if change.origin == Origin::InitialList {
        return None;
    }
    let pod = change.new.as_deref()?;
    let node = pods::node_name(pod)?;
    if pods::is_owned_by_daemon_set(pod) {
        return None;
    }
    let Some(old) = change.old.as_deref() else {
        return Some(node);
    };
    let bound = !pods::is_scheduled(old);
    let ended = pods::is_terminal(pod) && !pods::is_terminal(old);
    let ending = pods::is_terminating(pod) && !pods::is_terminating(old);
    (bound || ended || ending).then_some(node)
}

/// The `nodeclaim.podevents` controller.
pub fn controller(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodeclaim.podevents")
        .about("", "Pod")
        .watches(&ctx.pods, |change| node_with_news(change).map(Key::cluster))
        .runs_keys(PodEvents { ctx: ctx.clone() })
}

/// Works on names of nodes.
struct PodEvents {
    ctx: Context,
}

impl ReconcileKey<Key> for PodEvents {
    async fn reconcile(&self, node: Key) -> Result<Next> {
        let Some(node) = self.ctx.nodes.get(&node) else {
            return Ok(Next::Wait);
        };
        let Some(claim) = self.ctx.relations.claim_of(&node).only() else {
            return Ok(Next::Wait);
        };
        let claim = self.ctx.claim_writer.newest(claim);
        let now = self.ctx.clock.now();
        let last = claim
            .status
            .as_ref()
            .and_then(|status| status.last_pod_event_time.as_ref());
        if last.is_some_and(|last| now.duration_since(last.0) < DEDUPE) {
            return Ok(Next::Wait);
        }
        let mut changed = (*claim).clone();
        changed.status.get_or_insert_default().last_pod_event_time = Some(Time(now));
        // What follows from it for `consolidateAfter` goes with the same write.
        let pool = claim.node_pool().and_then(|pool| self.ctx.pools.named(pool));
        if pool.is_some_and(|pool| consolidatable(&changed, &pool, now) != Consolidatable::Yes) {
            let _ = changed.clear_condition(CONSOLIDATABLE);
        }
        self.ctx.claim_writer.write(&claim, &changed).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pod(text: &str) -> Option<Arc<Pod>> {
        if text.is_empty() {
            return None;
        }
        let mut pod: Pod = serde_norway::from_str("{metadata: {name: p}, spec: {containers: []}, status: {}}").unwrap();
        for word in text.split_whitespace() {
            match word {
                "bound" => pod.spec.as_mut().unwrap().node_name = Some("n".to_owned()),
                "done" => pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned()),
                "ending" => pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH)),
                "daemon" => {
                    pod.metadata.owner_references =
                        serde_norway::from_str("[{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]").unwrap();
                }
                _ => {}
            }
        }
        Some(Arc::new(pod))
    }

    fn check_from(origin: Origin, old: &str, new: &str, news: bool) {
        let change = Change {
            key: Key::namespaced("ns", "p"),
            old: pod(old),
            new: pod(new),
            origin,
        };
        assert_eq!(node_with_news(&change).is_some(), news, "{old:?} → {new:?}");
    }

    fn check(old: &str, new: &str, news: bool) {
        check_from(Origin::Watch, old, new, news);
    }

    #[test]
    fn a_pod_that_is_bound_or_ends_is_news_for_its_node() {
        check("pending", "bound", true);
        check("", "bound", true);
        check("bound", "bound done", true);
        check("bound", "bound ending", true);
    }

    #[test]
    fn other_changes_of_a_pod_are_no_news() {
        check("bound", "bound", false);
        check("bound ending", "bound ending done", true);
        check("bound done", "bound done ending", true);
        check("pending", "pending", false);
        check("bound", "", false);
        check("", "bound daemon", false);
    }

    #[test]
    fn a_restart_is_no_news() {
        check_from(Origin::InitialList, "", "bound", false);
    }
}
