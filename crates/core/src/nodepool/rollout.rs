//! Stops a rollout that does not work: counts the nodes that failed to register with what a NodePool makes nodes from now
//! (opt-in, by the NodePool's annotation `karpenter.sh/drift-halt-after`).
//!
//! The count is an annotation of the NodePool, so that a restart does not begin anew, and so that it can be read and removed
//! by hand.

use std::sync::atomic::{AtomicU32, Ordering};

use karpenter_api::labels::annotations;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::node_class::NodeClassState;
use karpenter_engine::convert;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};

/// How many nodes in a row failed to register, and what they were made from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failures {
    count: u32,
    version: String,
}

impl Failures {
    fn of(pool: &NodePool) -> Option<Failures> {
        let text = pool.annotations().get(annotations::FAILED_REGISTRATIONS)?;
        let (count, version) = text.split_once(" of ")?;
        Some(Failures {
            count: count.parse().ok()?,
            version: version.to_owned(),
        })
    }
}

/// After how many failures the pool wants its drift to stop; `None` when it does not ask for that.
fn halt_after(pool: &NodePool) -> Option<u32> {
    convert::tuning(pool).drift_halt_after
}

/// What new nodes of the pool are made from: the hashes of its template and of its NodeClass. A class whose provider writes
/// no hash counts by its generation.
fn version(pool: &NodePool, class: Option<&NodeClassState>) -> String {
    let class = class.map_or_else(String::new, |class| match &class.hash {
        Some((_, hash)) => hash.clone(),
        None => format!("generation {}", class.generation),
    });
    format!("nodepool {}, nodeclass {class}", pool.static_hash())
}

/// Whether a claim was made from what the pool and its class say now, as far as its annotations tell.
fn is_current(claim: &NodeClaim, pool: &NodePool, class: Option<&NodeClassState>) -> bool {
    let own = claim.annotations();
    let same_pool = own
        .get(annotations::NODEPOOL_HASH)
        .is_none_or(|hash| *hash == pool.static_hash());
    let class_hash = class.and_then(|class| class.hash.as_ref());
    let same_class = class_hash.is_none_or(|(key, hash)| own.get(key).is_none_or(|own| own == hash));
    same_pool && same_class
}

/// Whether so many nodes of the present version failed in a row that drift is to wait for another.
pub(crate) fn is_halted(ctx: &Context, pool: &NodePool) -> bool {
    let (Some(after), Some(failures)) = (halt_after(pool), Failures::of(pool)) else {
        return false;
    };
    let class = ctx.node_classes.get(&pool.spec.template.spec.node_class_ref);
    failures.count >= after && failures.version == version(pool, class.as_deref())
}

/// A claim of the pool did not become a node in time.
pub(crate) async fn failed(ctx: &Context, pool: &NodePool, claim: &NodeClaim) -> Result<()> {
    let class = ctx.node_classes.get(&pool.spec.template.spec.node_class_ref);
    let Some(after) = halt_after(pool).filter(|_| is_current(claim, pool, class.as_deref())) else {
        return Ok(());
    };
    let version = version(pool, class.as_deref());
    // What was written in the end: others may fail at the same time, and then the pool is read again.
    let count = AtomicU32::new(0);
    let note = |pool: &mut NodePool| {
        let before = Failures::of(pool).filter(|failures| failures.version == version);
        let failures = before.map_or(1, |failures| failures.count.saturating_add(1));
        count.store(failures, Ordering::Relaxed);
        pool.annotations_mut().insert(
            annotations::FAILED_REGISTRATIONS.to_owned(),
            format!("{failures} of {version}"),
        );
    };
    ctx.pool_writer.update_metadata(pool, note).await?;
    if count.into_inner() == after {
        ctx.events.publish(events::drift_halted(Regarding::of(pool), after));
    }
    Ok(())
}

/// A claim of the pool registered: what is rolled out works.
pub(crate) async fn succeeded(ctx: &Context, pool: &NodePool, claim: &NodeClaim) -> Result<()> {
    let class = ctx.node_classes.get(&pool.spec.template.spec.node_class_ref);
    if Failures::of(pool).is_none() || !is_current(claim, pool, class.as_deref()) {
        return Ok(());
    }
    let forget = |pool: &mut NodePool| {
        pool.annotations_mut().remove(annotations::FAILED_REGISTRATIONS);
    };
    ctx.pool_writer.update_metadata(pool, forget).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(annotations: &str) -> NodePool {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: p, annotations: {{{annotations}}}}}, \
             spec: {{template: {{spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}}}}}"
        ))
        .unwrap()
    }

    fn claim(annotations: &str) -> NodeClaim {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, annotations: {{{annotations}}}}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}"
        ))
        .unwrap()
    }

    fn class(hash: Option<&str>) -> NodeClassState {
        NodeClassState {
            name: "n".to_owned(),
            generation: 4,
            hash: hash.map(|hash| ("g/nodeclass-hash".to_owned(), hash.to_owned())),
            deleted_at: None,
            conditions: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let failures = |text: &str| Failures::of(&pool(&format!("karpenter.sh/failed-registrations: '{text}'")));
        let version = version(&pool(""), Some(&class(Some("7"))));
        assert_eq!(
            failures(&format!("2 of {version}")),
            Some(Failures { count: 2, version })
        );
        for text in ["", "two of x", "2"] {
            assert_eq!(failures(text), None, "{text}");
        }
    }

    #[test]
    fn another_class_is_another_version_by_its_hash_or_else_by_its_generation() {
        let of = |hash: Option<&str>| version(&pool(""), Some(&class(hash)));
        assert_ne!(of(Some("7")), of(Some("8")));
        assert!(of(None).ends_with("generation 4"), "{}", of(None));
    }

    #[test]
    fn a_claim_from_before_the_change_says_nothing_about_it() {
        let is_current = |own: &str| is_current(&claim(own), &pool(""), Some(&class(Some("7"))));
        assert!(is_current(""));
        assert!(is_current("g/nodeclass-hash: '7'"));
        assert!(!is_current("g/nodeclass-hash: '6'"));
        assert!(!is_current("karpenter.sh/nodepool-hash: old"));
    }

    #[test]
    fn a_pool_that_does_not_ask_is_not_halted() {
        assert_eq!(halt_after(&pool("")), None);
        assert_eq!(halt_after(&pool("karpenter.sh/drift-halt-after: '3'")), Some(3));
        assert_eq!(halt_after(&pool("karpenter.sh/drift-halt-after: '0'")), None);
    }
}
