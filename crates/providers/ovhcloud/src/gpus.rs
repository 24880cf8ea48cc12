//! Says which Nodes with GPUs cannot offer them: MKS does not install what makes them a resource.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_cloud::{clock::later, events::Announcement};
use kube::{Api, api::ListParams};

use crate::{names, pool::PoolOwner, provider::Shared};

/// So long after its creation a Node should have the resource.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
const REPEATED_AFTER: Duration = Duration::from_secs(60 * 60);

/// Looks at all Nodes of pools whose flavor has GPUs.
pub(crate) async fn check(shared: &Shared) {
    // A list that is a while old will do: flavors of pools never change.
    let pools = match shared.engine.pools(PATIENCE).await {
        Ok(pools) => pools,
        Err(error) => {
            tracing::warn!(%error, "it is not known which Nodes should have GPUs: node pools cannot be listed");
            return;
        }
    };
    let with_gpus: BTreeMap<String, String> = pools
        .into_iter()
        .filter(|pool| PoolOwner::of(pool) == PoolOwner::Owned && shared.engine.has_gpus(&pool.flavor))
        .map(|pool| (pool.name, pool.flavor))
        .collect();
    if with_gpus.is_empty() {
        return;
    }
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let ours = ListParams::default().labels(names::POOL_KEY);
    let nodes = match nodes.list(&ours).await {
        Ok(nodes) => nodes,
        Err(error) => {
            tracing::warn!(%error, "Nodes cannot be listed");
            return;
        }
    };
    for node in nodes.iter().filter(|node| lacks_gpus(node, shared.clock.now())) {
        let own = node.metadata.labels.as_ref();
        let Some(flavor) = own.and_then(|own| with_gpus.get(own.get(names::MKS_POOL)?)) else {
            continue;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let message = format!(
            "flavor {flavor} has GPUs, but the Node does not offer {}: install NVIDIA's GPU operator or device plugin",
            names::GPU_RESOURCE
        );
        let told = Announcement::warning("GPUResourceMissing", message).quiet_for(REPEATED_AFTER);
        shared.events.on_node(name, &told).await;
        let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        let entries = shared.engine.ledger().entries();
        let holder = entries.iter().find(|entry| entry.provider_id == provider_id);
        if let Some(holder) = holder.filter(|_| provider_id.is_some()) {
            shared.events.on_claim(&holder.claim, &told).await;
        }
    }
}

fn lacks_gpus(node: &Node, now: Timestamp) -> bool {
    let registered = node
        .metadata
        .labels
        .as_ref()
        .and_then(|own| own.get(labels::REGISTERED));
    let created = node.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let is_due = created.is_some_and(|at| later(at, PATIENCE) <= now);
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let offers = capacity.is_some_and(|capacity| capacity.contains_key(names::GPU_RESOURCE));
    registered.is_some_and(|value| value == "true") && is_due && !offers
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(registered: &str, minutes: i64, capacity: Value, expected: bool) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": "n", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"karpenter.sh/registered": registered},
            },
            "status": {"capacity": capacity},
        }))
        .expect("a Node");
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let now = now + jiff::SignedDuration::from_mins(minutes);
        assert_eq!(lacks_gpus(&node, now), expected, "{registered} {minutes} {capacity}");
    }

    #[test]
    fn a_registered_node_without_the_resource_is_told_of_after_ten_minutes() {
        check("true", 10, json!({"cpu": "8"}), true);
        check("true", 9, json!({"cpu": "8"}), false);
        check("true", 60, json!({"nvidia.com/gpu": "1"}), false);
        check("false", 60, json!({}), false);
    }
}
