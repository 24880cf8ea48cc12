//! Repair as it was before budgets (`--legacy-node-repair`): a node that is broken for too long is deleted at once.
//!
//! Knows no budgets, no `do-not-repair`, no grace periods and no reboots; only the circuit breaker keeps it from taking down
//! a pool of which a fifth is unhealthy.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::{labels, pods};
use karpenter_cloud::repair::NodeCondition;
use karpenter_cloud::repair::legacy::LegacyPolicies;
use karpenter_engine::disruption::repair::trips;
use kube::ResourceExt;

use crate::claims::{self, Reason};
use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::metrics::shared::Disrupted;
use crate::nodes;
use crate::runner::{Controller, Next, Reconcile, Runnable};

const WHILE_BLOCKED: SignedDuration = SignedDuration::from_mins(5);

/// The `node.health` controller; none when the provider has no policies, or none that can be read.
pub fn controller(ctx: &Context) -> Option<Runnable> {
    let policies = match LegacyPolicies::new(ctx.cloud.repair_policies()) {
        Ok(policies) if policies.is_empty() => return None,
        Ok(policies) => policies,
        Err(errors) => {
            for error in errors {
                tracing::error!(%error, "legacy node repair is off");
            }
            return None;
        }
    };
    let repair = LegacyRepair {
        ctx: ctx.clone(),
        policies,
    };
    let runnable = Controller::new(&ctx.runner, "node.health")
        .about("", "Node")
        .concurrency(10)
        .runs(&ctx.nodes, ctx.manages_node(), repair);
    Some(runnable)
}

struct LegacyRepair {
    ctx: Context,
    policies: LegacyPolicies,
}

impl Reconcile<Node> for LegacyRepair {
    async fn reconcile(&self, node: Arc<Node>) -> Result<Next> {
        let Some(claim) = self.ctx.relations.claim_of(&node).only() else {
            return Ok(Next::Wait);
        };
        let conditions = NodeCondition::of(&node);
        let Some((condition, due)) = self.policies.earliest(&conditions) else {
            return Ok(Next::Wait);
        };
        let now = self.ctx.clock.now();
        if claim.is_terminating() || node.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        if now < due {
            return Ok(Next::After(due.duration_since(now)));
        }
        let pool = nodes::label(&node, labels::NODEPOOL);
        if let Some(why) = self.breaker(pool) {
            let pool = self.ctx.pools.named(pool).map(|pool| Regarding::of(&*pool));
            for object in [Regarding::of(&*node), Regarding::of(&*claim)].into_iter().chain(pool) {
                self.ctx.events.publish(events::node_repair_blocked(object, &why));
            }
            return Ok(Next::After(WHILE_BLOCKED));
        }
        self.ctx
            .claim_writer
            .disrupt_by(&claim, Reason::Unhealthy, Some(now))
            .await?;
        let disrupted = Disrupted {
            reason: "unhealthy",
            nodepool: pool,
            capacity_type: claims::label(&claim, labels::CAPACITY_TYPE),
            consolidation_policy: "",
            termination_mode: claims::termination_mode(&claim),
        };
        let on_node = self.ctx.relations.pods_on(&node.name_any());
        let moving = on_node.iter().filter(|pod| pods::is_reschedulable(pod)).count();
        self.ctx.metrics.shared.pods_disruption_initiated(&disrupted, moving);
        let image = claim.status.as_ref().and_then(|status| status.image_id.as_deref());
        self.ctx.metrics.shared.unhealthy_nodeclaim_disrupted(
            &condition.condition_type,
            &disrupted,
            image.unwrap_or_default(),
        );
        Ok(Next::Wait)
    }
}

impl LegacyRepair {
    /// Why nothing is repaired now: too much of the pool is broken, or of the cluster for a node without a pool.
    fn breaker(&self, pool: &str) -> Option<String> {
        let all = self.ctx.nodes.list();
        let is_ours = |node: &&Arc<Node>| pool.is_empty() || nodes::label(node, labels::NODEPOOL) == pool;
        let ours: Vec<&Arc<Node>> = all.iter().filter(is_ours).collect();
        let is_unhealthy = |node: &&&Arc<Node>| self.policies.is_unhealthy(&NodeCondition::of(node));
        let unhealthy = ours.iter().filter(is_unhealthy).count();
        trips(ours.len(), unhealthy).then(|| {
            let whose = match pool {
                "" => "of the cluster".to_owned(),
                pool => format!("of NodePool {pool}"),
            };
            format!(
                "{unhealthy} of the {} nodes {whose} are unhealthy, more than 20 %: something else is wrong, so none is repaired",
                ours.len()
            )
        })
    }
}
