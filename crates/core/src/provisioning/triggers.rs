//! What asks for a pass: pods without a place, nodes that lose their pods, and claims that are gone.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::taint;
use kube::ResourceExt;

use super::Batcher;
use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

/// Whoever still needs a pass asks again after this.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

pub(super) fn controllers(ctx: &Context, batcher: &Arc<Batcher>) -> Vec<Runnable> {
    let workers = linear(ctx.options.cores(), 10, 1000);
    let pod = pod_trigger(ctx, batcher);
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

/// The `provisioner.trigger.pod` controller: one observer and one timer for all pods. A burst brings thousands of them at once,
/// and all that is to be done for each is to note its name.
fn pod_trigger(ctx: &Context, batcher: &Arc<Batcher>) -> Runnable {
    let (ctx, batcher) = (ctx.clone(), batcher.clone());
    Runnable::new("provisioner.trigger.pod", move |stop| async move {
        let observing = batcher.clone();
        ctx.state.observe_demand(move |uid| observing.trigger(uid));
        let again = async {
            loop {
                ctx.clock.sleep(AGAIN.unsigned_abs()).await;
                ctx.state.waiting_uids().iter().for_each(|uid| batcher.trigger(uid));
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = again => {}
        }
    })
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
