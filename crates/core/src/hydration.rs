//! Labels NodeClaims and Nodes from before the label existed with the NodeClass they were made from.
//!
//! Whether a Node is ours is told by that label (lifecycle.md §0.2), so an upgraded cluster needs it before anything else.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;

use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, RateLimit, Reconcile, Runnable, linear};
use crate::watch::Key;

/// The `nodeclaim.hydration` controller.
pub fn claims(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodeclaim.hydration")
        .about("karpenter.sh", "NodeClaim")
        .concurrency(linear(ctx.options.cores(), 1000, 5000))
        .rate_limit(RateLimit::reasonable())
        .runs(&ctx.claims, ctx.manages_claim(), ClaimHydration { ctx: ctx.clone() })
}

/// The `node.hydration` controller.
pub fn nodes(ctx: &Context) -> Runnable {
    let relations = ctx.relations.clone();
    Controller::new(&ctx.runner, "node.hydration")
        .about("", "Node")
        .concurrency(linear(ctx.options.cores(), 1000, 5000))
        .rate_limit(RateLimit::reasonable())
        .watches(&ctx.claims, move |change| {
            let provider_id = change.new.as_deref().and_then(NodeClaim::provider_id);
            let nodes = provider_id
                .map(|provider_id| relations.nodes_of(provider_id))
                .unwrap_or_default();
            nodes.iter().map(|node| Key::of(&**node)).collect::<Vec<_>>()
        })
        .runs(&ctx.nodes, |_| true, NodeHydration { ctx: ctx.clone() })
}

struct ClaimHydration {
    ctx: Context,
}

impl Reconcile<NodeClaim> for ClaimHydration {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        let mut changed = (*claim).clone();
        add_class_label(changed.metadata.labels.get_or_insert_default(), &claim);
        self.ctx.claim_writer.write(&claim, &changed).await?;
        Ok(Next::Wait)
    }
}

struct NodeHydration {
    ctx: Context,
}

impl Reconcile<Node> for NodeHydration {
    async fn reconcile(&self, node: Arc<Node>) -> Result<Next> {
        let Some(claim) = self.ctx.relations.claim_of(&node).only() else {
            return Ok(Next::Wait);
        };
        let mut changed = (*node).clone();
        add_class_label(changed.metadata.labels.get_or_insert_default(), &claim);
        self.ctx.node_writer.write(&node, &changed).await?;
        Ok(Next::Wait)
    }
}

fn add_class_label(labels: &mut BTreeMap<String, String>, claim: &NodeClaim) {
    let class = &claim.spec.node_class_ref;
    labels.entry(class.label_key()).or_insert_with(|| class.name.clone());
}
