//! Stamps NodePools with the hash of what makes their nodes drift, and carries claims over to a new kind of hash.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::conditions::StatusConditions;
use karpenter_api::hash::HASH_VERSION;
use karpenter_api::labels::annotations::{NODEPOOL_HASH, NODEPOOL_HASH_VERSION};
use karpenter_api::node_claim::condition::DRIFTED;
use karpenter_api::{NodeClaim, NodePool};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

/// The annotations of a claim after the way of hashing has changed; `None` if it has the new version already.
///
/// The claim takes on its pool's new hash, so that a new algorithm drifts nobody. A claim that had drifted keeps its old
/// hash, which can't equal a new one, so that it stays drifted.
pub fn migrated(claim: &NodeClaim, pool_hash: &str) -> Option<BTreeMap<String, String>> {
    let mut annotations = claim.metadata.annotations.clone().unwrap_or_default();
    if annotations.get(NODEPOOL_HASH_VERSION).map(String::as_str) == Some(HASH_VERSION) {
        return None;
    }
    annotations.insert(NODEPOOL_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
    if claim.condition(DRIFTED).is_none() {
        annotations.insert(NODEPOOL_HASH.to_owned(), pool_hash.to_owned());
    }
    Some(annotations)
}

/// The `nodepool.hash` controller.
pub fn controller(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodepool.hash")
        .about("karpenter.sh", "NodePool")
        .concurrency(linear(ctx.options.cores(), 10, 1000))
        .runs(&ctx.pools, ctx.manages_pool(), Hash { ctx: ctx.clone() })
}

struct Hash {
    ctx: Context,
}

impl Reconcile<NodePool> for Hash {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let hash = pool.static_hash();
        let version = pool.annotations().get(NODEPOOL_HASH_VERSION).map(String::as_str);
        if version != Some(HASH_VERSION) {
            // The claims go first: if this stops half-way, the pool's old version brings us back here.
            self.migrate_claims(&pool.name_any(), &hash).await?;
        }
        let mut changed = (*pool).clone();
        changed.annotations_mut().insert(NODEPOOL_HASH.to_owned(), hash);
        changed
            .annotations_mut()
            .insert(NODEPOOL_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
        self.ctx.pool_writer.write(&pool, &changed).await?;
        Ok(Next::Wait)
    }
}

impl Hash {
    async fn migrate_claims(&self, pool: &str, hash: &str) -> Result<()> {
        let manages = self.ctx.manages_claim();
        let mut errors = Vec::new();
        for claim in self
            .ctx
            .claims
            .list()
            .iter()
            .filter(|claim| manages(claim) && claim.node_pool() == Some(pool))
        {
            let Some(annotations) = migrated(claim, hash) else {
                continue;
            };
            let mut changed = (**claim).clone();
            changed.metadata.annotations = Some(annotations);
            if let Err(error) = self.ctx.claim_writer.write(claim, &changed).await {
                errors.push(error);
            }
        }
        Error::all(errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(version: &str, conditions: &str) -> NodeClaim {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, annotations: \
             {{karpenter.sh/nodepool-hash: old, karpenter.sh/nodepool-hash-version: {version}}}}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}, status: {{conditions: [{conditions}]}}}}"
        ))
        .unwrap()
    }

    #[test]
    fn a_claim_takes_on_the_new_hash_unless_it_had_drifted() {
        let drifted = "{type: Drifted, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}";
        let hash = |claim: &NodeClaim| migrated(claim, "new").map(|annotations| annotations[NODEPOOL_HASH].clone());
        assert_eq!(hash(&claim("v2", "")).as_deref(), Some("new"));
        assert_eq!(hash(&claim("v2", drifted)).as_deref(), Some("old"));
        assert_eq!(hash(&claim(HASH_VERSION, "")), None);
    }
}
