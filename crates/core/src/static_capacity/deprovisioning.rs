//! Deletes the NodeClaims that a static NodePool has beyond its replicas.

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::pods::PodDeletionCost;
use karpenter_api::{NodeClaim, NodePool};
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::scale_down::{Candidate, victims};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Reconcile, Runnable};
use crate::watch::Key;

const CONCURRENCY: usize = 10;
const PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The `static.deprovisioning` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let managed = ctx.manages_pool();
    let pools = ctx.pools.clone();
    Controller::new(&ctx.runner, "static.deprovisioning")
        .about("karpenter.sh", "NodePool")
        .concurrency(CONCURRENCY)
        .watches(&ctx.claims, move |change| {
            let claim = change.new.as_deref().filter(|_| change.old.is_none());
            claim
                .and_then(NodeClaim::node_pool)
                .map(Key::cluster)
                .filter(|pool| pools.get(pool).is_some())
        })
        .runs(
            &ctx.pools,
            move |pool| pool.is_static() && managed(pool),
            StaticDeprovisioning {
                ctx: ctx.clone(),
                doomed: Mutex::default(),
            },
        )
}

struct StaticDeprovisioning {
    ctx: Context,
    /// UIDs of claims that we deleted and that the watch still shows as they were: they must not be counted again.
    doomed: Mutex<FxHashSet<String>>,
}

impl Reconcile<NodePool> for StaticDeprovisioning {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let Some(replicas) = pool.spec.replicas.and_then(|replicas| usize::try_from(replicas).ok()) else {
            return Ok(Next::Wait);
        };
        let candidates = self.candidates(&pool.name_any());
        let excess = candidates.len().saturating_sub(replicas);
        if excess == 0 {
            return Ok(Next::After(PERIOD));
        }
        let costs = match self.ctx.options.feature_gates.pod_deletion_cost_management {
            true => PodDeletionCost::ByKarpenter,
            false => PodDeletionCost::ByUsers,
        };
        let victims = victims(candidates, excess, costs, self.ctx.clock.now());
        let deletions = victims.iter().map(|claim| self.delete(claim));
        let outcomes = futures::future::join_all(deletions).await;
        Error::all(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(Next::After(PERIOD))
    }
}

impl StaticDeprovisioning {
    /// The claims that make up the pool's replicas: neither going away nor chosen to.
    fn candidates(&self, pool: &str) -> Vec<Candidate> {
        let claims = self.ctx.claims.list();
        let mut doomed = self.doomed.lock();
        let still_shown = |uid: &String| {
            claims
                .iter()
                .any(|claim| claim.metadata.uid.as_ref() == Some(uid) && !claim.is_terminating())
        };
        doomed.retain(still_shown);
        claims
            .iter()
            .filter(|claim| claim.node_pool() == Some(pool) && self.ctx.managed.claim(claim) && !claim.is_terminating())
            .filter(|claim| claim.metadata.uid.as_ref().is_none_or(|uid| !doomed.contains(uid)))
            .filter(|claim| !self.is_marked(claim))
            .map(|claim| Candidate {
                claim: claim.clone(),
                pods: self.pods_of(claim),
            })
            .collect()
    }

    fn is_marked(&self, claim: &NodeClaim) -> bool {
        let machine = claim.provider_id().and_then(|id| self.ctx.state.machine(id));
        machine.is_some_and(|machine| machine.is_marked_for_deletion())
    }

    fn pods_of(&self, claim: &NodeClaim) -> Vec<Arc<k8s_openapi::api::core::v1::Pod>> {
        let node = claim.provider_id().and_then(|id| self.ctx.relations.node_of(id).only());
        node.map(|node| self.ctx.relations.pods_on(&node.name_any()))
            .unwrap_or_default()
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<()> {
        self.ctx.claim_writer.delete(claim).await?;
        self.doomed.lock().extend(claim.metadata.uid.clone());
        tracing::info!(
            NodeClaim = claim.name_any(),
            "deleted static nodeclaim beyond the nodepool's replicas"
        );
        Ok(())
    }
}
