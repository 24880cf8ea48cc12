//! What asks for a pass: pods without a place, nodes that lose their pods, and claims that are gone.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{pods, taint};
use kube::ResourceExt;

use super::Batcher;
use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};
use crate::watch::Key;

/// Whoever still needs a pass asks again after this.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

pub(super) fn controllers(ctx: &Context, batcher: &Arc<Batcher>) -> Vec<Runnable> {
    let workers = linear(ctx.options.cores(), 10, 1000);
    let pod_trigger = PodTrigger {
        ctx: ctx.clone(),
        batcher: batcher.clone(),
    };
    let pod = Controller::new(&ctx.runner, "provisioner.trigger.pod")
        .about("", "Pod")
        .concurrency(workers)
        .runs(&ctx.pods, pods::is_provisionable, pod_trigger);
    let node = Controller::new(&ctx.runner, "provisioner.trigger.node")
        .about("", "Node")
        .concurrency(workers)
        .runs(
            &ctx.nodes,
            is_disrupted,
            NodeTrigger {
                batcher: batcher.clone(),
            },
        );
    let claim_trigger = batcher.clone();
    ctx.claims.observe(move |change| {
        // Whoever waited for a claim that is gone needs another place.
        if change.new.is_none() {
            claim_trigger.trigger_unkeyed();
        }
    });
    vec![pod, node]
}

fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints
        .into_iter()
        .flatten()
        .any(|present| taint::same(present, &taint::disrupted()))
}

struct PodTrigger {
    ctx: Context,
    batcher: Arc<Batcher>,
}

impl Reconcile<Pod> for PodTrigger {
    async fn reconcile(&self, pod: Arc<Pod>) -> Result<Next> {
        self.ctx.state.acknowledge(&Key::of(&*pod));
        self.batcher.trigger(&pod.uid().unwrap_or_default());
        Ok(Next::After(AGAIN))
    }
}

struct NodeTrigger {
    batcher: Arc<Batcher>,
}

impl Reconcile<Node> for NodeTrigger {
    async fn reconcile(&self, node: Arc<Node>) -> Result<Next> {
        self.batcher.trigger(&node.uid().unwrap_or_default());
        Ok(Next::After(AGAIN))
    }
}
