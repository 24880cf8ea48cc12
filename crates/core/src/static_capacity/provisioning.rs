//! Creates the NodeClaims that a static NodePool lacks.

use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_api::NodePool;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::resources::NODES;
use kube::ResourceExt;

use crate::claim_creation::{ClaimCreator, static_claim};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Reconcile, Runnable};
use crate::state::SlotCounts;
use crate::watch::Key;

const CONCURRENCY: usize = 10;
const WHILE_UNSYNCED: SignedDuration = SignedDuration::from_secs(1);
const PERIOD: SignedDuration = SignedDuration::from_mins(1);
const AT_LIMIT: SignedDuration = SignedDuration::from_secs(30);

/// How many NodeClaims a pool with `replicas` lacks. Those that are about to be replaced still count: their replacement is
/// somebody else's business.
pub fn missing(replicas: usize, counts: SlotCounts) -> usize {
    replicas.saturating_sub(counts.active + counts.pending_disruption)
}

/// The `static.provisioning` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let creator = ClaimCreator::new(ctx.client.clone(), ctx.state.clone(), ctx.metrics.shared.clone());
    let managed = ctx.manages_pool();
    let pools = ctx.pools.clone();
    Controller::new(&ctx.runner, "static.provisioning")
        .about("karpenter.sh", "NodePool")
        .concurrency(CONCURRENCY)
        .watches(&ctx.claims, move |change| {
            // A claim that goes leaves a gap.
            let going = change.new.as_deref().is_none_or(|claim| claim.is_terminating());
            let claim = change.new.as_deref().or(change.old.as_deref()).filter(|_| going);
            claim
                .and_then(|claim| claim.node_pool())
                .map(Key::cluster)
                .filter(|pool| pools.get(pool).is_some())
        })
        .runs(
            &ctx.pools,
            move |pool| pool.is_static() && managed(pool),
            StaticProvisioning {
                ctx: ctx.clone(),
                creator,
            },
        )
}

struct StaticProvisioning {
    ctx: Context,
    creator: ClaimCreator,
}

impl Reconcile<NodePool> for StaticProvisioning {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let Some(replicas) = pool.spec.replicas.and_then(|replicas| usize::try_from(replicas).ok()) else {
            return Ok(Next::Wait);
        };
        if !pool.is_ready() || pool.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        // After a restart, claims that are not known yet would be created again.
        if !self.ctx.state.synced() {
            return Ok(Next::After(WHILE_UNSYNCED));
        }
        self.creator.forget_lost().await?;
        let name = pool.name_any();
        let missing = missing(replicas, self.ctx.state.slots.counts(&name));
        if missing == 0 {
            return Ok(Next::After(PERIOD));
        }
        let granted = self.ctx.state.slots.reserve(&name, node_limit(&pool), missing);
        if granted == 0 {
            tracing::info!(NodePool = name, missing, "limits.nodes leaves no room for more nodes");
            return Ok(Next::After(AT_LIMIT));
        }
        let creations = (0..granted).map(|_| self.create(&pool));
        let outcomes = futures::future::join_all(creations).await;
        Error::all(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(Next::After(PERIOD))
    }
}

impl StaticProvisioning {
    async fn create(&self, pool: &NodePool) -> Result<()> {
        let claim = static_claim(pool, &self.ctx.rules);
        let created = self.creator.create(&claim, &[], "provisioned").await;
        self.ctx.state.slots.release(&pool.name_any(), 1);
        tracing::info!(
            NodePool = pool.name_any(),
            NodeClaim = created?.name_any(),
            "created static nodeclaim"
        );
        Ok(())
    }
}

/// How many nodes `limits.nodes` allows.
pub(crate) fn node_limit(pool: &NodePool) -> usize {
    let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get(NODES));
    limit.map_or(usize::MAX, |limit| usize::try_from(limit.value()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_on_their_way_out_do_not_count_and_those_to_be_replaced_do() {
        let check = |active, deleting, pending_disruption, expected| {
            assert_eq!(
                missing(
                    5,
                    SlotCounts {
                        active,
                        deleting,
                        pending_disruption,
                        reserved: 0,
                    }
                ),
                expected
            );
        };
        check(0, 0, 0, 5);
        check(3, 4, 0, 2);
        check(4, 0, 1, 0);
        check(8, 0, 0, 0);
    }
}
