//! What a plan means for buffers: which nodes they keep, and whether their room is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::CapacityBuffer;
use karpenter_api::capacity_buffer::condition;
use karpenter_api::conditions::ConditionStatus;
use karpenter_engine::Plan;
use karpenter_engine::model::{Node, Pod};
use kube::Api;
use rustc_hash::FxHashSet;

use super::Buffers;
use crate::context::Context;
use crate::patch;

/// Where the virtual pods of one buffer went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    existing: usize,
    elsewhere: usize,
}

/// The condition that a buffer should have.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
}

/// Takes note of a plan; `None` is the plan for no pods at all. Never an error: buffers must not hold provisioning up.
pub(crate) async fn note(ctx: &Context, buffers: &Buffers, plan: Option<&Plan>, nodes: &[Arc<Node>]) {
    let kept = plan.map(|plan| kept_nodes(plan, nodes)).unwrap_or_default();
    ctx.state.set_buffer_nodes(kept);
    let places = plan.map(|plan| places(plan, nodes)).unwrap_or_default();
    let now = ctx.clock.now();
    for (key, buffer) in buffers.objects.entries() {
        let key_text = key.to_string();
        let Some(verdict) = verdict(&buffer, places.get(key_text.as_str()).copied()) else {
            continue;
        };
        let changed = with_verdict(&buffer, &verdict, now);
        let api: Api<CapacityBuffer> = Api::namespaced(ctx.client.clone(), &key.namespace);
        match patch::status(&api, &buffer, &changed).await {
            Ok(_) => {}
            // Whoever wrote first woke the buffer's controller, which asks for another plan.
            Err(error) if error.is_conflict() => {}
            Err(error) => tracing::error!(buffer = key_text, %error, "unable to tell whether its room is there"),
        }
    }
}

/// Claims (or nodes without one) on which virtual pods were placed: they are not empty.
fn kept_nodes(plan: &Plan, nodes: &[Arc<Node>]) -> FxHashSet<Arc<str>> {
    let with_buffer_pods = plan
        .existing
        .iter()
        .filter(|placement| placement.pods.iter().any(|pod| pod.buffer.is_some()));
    with_buffer_pods
        .map(|placement| {
            // A node is called otherwise before it registers; its claim keeps its name.
            let node = nodes.iter().find(|node| node.name == placement.node);
            node.and_then(|node| node.node_claim.clone())
                .unwrap_or_else(|| placement.node.clone())
        })
        .collect()
}

/// A claim without a machine is a plan to buy one: room on it is not there yet.
fn places<'a>(plan: &'a Plan, nodes: &[Arc<Node>]) -> BTreeMap<&'a str, Places> {
    let unlaunched: FxHashSet<&str> = nodes
        .iter()
        .filter(|node| node.provider_id.is_none() && node.node_claim.is_some())
        .map(|node| &*node.name)
        .collect();
    let mut places: BTreeMap<&str, Places> = BTreeMap::new();
    for placement in &plan.existing {
        for buffer in placement.pods.iter().filter_map(|pod| pod.buffer.as_deref()) {
            let places = places.entry(buffer).or_default();
            if unlaunched.contains(&*placement.node) {
                places.elsewhere += 1;
            } else {
                places.existing += 1;
            }
        }
    }
    let new = plan.claims.iter().flat_map(|claim| &claim.pods);
    let failed = plan.unschedulable.iter().map(|failed| &failed.pod);
    let elsewhere = new.chain(failed).filter_map(|pod: &Arc<Pod>| pod.buffer.as_deref());
    for buffer in elsewhere {
        places.entry(buffer).or_default().elsewhere += 1;
    }
    places
}

/// `None` when the plan says nothing about the buffer.
fn verdict(buffer: &CapacityBuffer, places: Option<Places>) -> Option<Verdict> {
    let no = |reason, message: String| {
        Some(Verdict {
            status: ConditionStatus::False,
            reason,
            message,
        })
    };
    let is_ready = buffer
        .condition(condition::READY_FOR_PROVISIONING)
        .is_some_and(karpenter_api::conditions::Condition::is_true);
    if !is_ready {
        return no(
            "NotReadyForProvisioning",
            "what it stands for is not resolved".to_owned(),
        );
    }
    let replicas = buffer.status.as_ref().and_then(|status| status.replicas).unwrap_or(0);
    if replicas == 0 {
        return no("BufferEmpty", "it stands for no pods".to_owned());
    }
    let places = places?;
    if places.elsewhere > 0 {
        let message = format!(
            "{} of {} pods fit existing nodes, {} need new ones",
            places.existing,
            places.existing + places.elsewhere,
            places.elsewhere
        );
        return no("RequiresNewCapacity", message);
    }
    Some(Verdict {
        status: ConditionStatus::True,
        reason: "FitsExistingCapacity",
        message: format!("all {} pods fit existing nodes", places.existing),
    })
}

fn with_verdict(buffer: &CapacityBuffer, verdict: &Verdict, now: Timestamp) -> CapacityBuffer {
    let mut changed = buffer.clone();
    changed.set_condition(
        condition::PROVISIONING,
        verdict.status,
        verdict.reason,
        &verdict.message,
        now,
    );
    changed
}
