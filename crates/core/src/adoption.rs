//! Makes NodeClaims for machines that the cloud made by itself and that a NodePool should take over.
//!
//! Some clouds replace nodes on their own: to heal them, or while they upgrade a cluster. Their provider names such machines,
//! and the claim that is created here names the machine, so that the launch binds it instead of buying another.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use karpenter_api::labels::{self, LabelRules};
use karpenter_api::requirement::{Requirement, Requirements};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::instance::{ADOPT_ANNOTATION, Adoption};
use kube::ResourceExt;

use crate::claim_creation::{ClaimCreator, static_claim};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Runnable, Singleton};

const PERIOD: SignedDuration = SignedDuration::from_secs(30);
const WHILE_UNSYNCED: SignedDuration = SignedDuration::from_secs(1);

/// The `nodeclaim.adoption` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let creator = ClaimCreator::new(ctx.client.clone(), ctx.state.clone(), ctx.metrics.shared.clone());
    Controller::new(&ctx.runner, "nodeclaim.adoption")
        .about("karpenter.sh", "NodeClaim")
        .runs_singleton(Adopter {
            ctx: ctx.clone(),
            creator,
        })
}

struct Adopter {
    ctx: Context,
    creator: ClaimCreator,
}

impl Singleton for Adopter {
    async fn reconcile(&self) -> Result<Next> {
        // A claim that is not known yet would be created again.
        if !self.ctx.state.synced() {
            return Ok(Next::After(WHILE_UNSYNCED));
        }
        let offered = self
            .ctx
            .cloud
            .adoptable()
            .await
            .map_err(|error| Error::failed(format!("asking the cloud for machines to take over: {error}")))?;
        if offered.is_empty() {
            return Ok(Next::After(PERIOD));
        }
        let taken = self.taken();
        let mut errors = Vec::new();
        for adoption in &offered {
            if !taken.contains(&adoption.instance.provider_id) {
                errors.extend(self.adopt(adoption).await.err());
            }
        }
        Error::all(errors)?;
        Ok(Next::After(PERIOD))
    }
}

impl Adopter {
    /// Machines that have a claim, or are about to be bound by one.
    fn taken(&self) -> BTreeSet<String> {
        let claims = self.ctx.claims.list();
        let unseen = self.ctx.state.unseen_claims();
        let claims = claims.iter().chain(&unseen);
        claims.flat_map(|claim| machines_of(claim)).map(str::to_owned).collect()
    }

    /// Limits are not asked: the machine exists and is paid for already. Consolidation may end it later.
    async fn adopt(&self, adoption: &Adoption) -> Result<()> {
        let Some(pool) = self.ctx.pools.named(&adoption.node_pool) else {
            return Ok(());
        };
        if !self.ctx.managed.pool(&pool) || pool.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let claim = adopting_claim(&pool, adoption, &self.ctx.rules);
        let created = self.creator.create(&claim, &[], "adopted").await?;
        tracing::info!(
            NodePool = adoption.node_pool,
            NodeClaim = created.name_any(),
            provider_id = adoption.instance.provider_id,
            "created nodeclaim to take a machine over"
        );
        Ok(())
    }
}

fn machines_of(claim: &NodeClaim) -> impl Iterator<Item = &str> {
    let named = claim.annotations().get(ADOPT_ANNOTATION).map(String::as_str);
    named.into_iter().chain(claim.provider_id())
}

/// The claim of the pool's template that binds the machine; its requirements say what the machine is.
fn adopting_claim(pool: &NodePool, adoption: &Adoption, rules: &LabelRules) -> NodeClaim {
    let mut claim = static_claim(pool, rules);
    let mut requirements = Requirements::from_wire(rules, &claim.spec.requirements);
    for key in [labels::INSTANCE_TYPE, labels::ZONE, labels::CAPACITY_TYPE] {
        if let Some(value) = adoption.instance.labels.get(key) {
            requirements.replace(Requirement::within(key, [value.as_str()]));
        }
    }
    claim.spec.requirements = requirements.to_wire();
    claim
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(ADOPT_ANNOTATION.to_owned(), adoption.instance.provider_id.clone());
    claim
}
