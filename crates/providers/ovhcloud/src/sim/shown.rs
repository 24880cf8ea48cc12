//! What reads of the simulated API show of pools and machines: with every field of the real one, and as late.

use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::state::{PoolState, SimNode, SimState};

impl SimState {
    /// A pool as reads show it.
    pub(super) fn shown(&self, pool: &PoolState) -> Value {
        let mut shown = self.documented(pool);
        if self.world.odd {
            shown["mood"] = json!({"level": 3, "because": ["weather"]});
        }
        shown
    }

    fn documented(&self, pool: &PoolState) -> Value {
        let nodes = self.nodes.values().filter(|node| node.pool == pool.id);
        let (current, ready) = nodes.fold((0, 0), |(all, ready), node| {
            (all + 1, ready + u32::from(node.status == "READY"))
        });
        let zones = (!pool.zones.is_empty()).then_some(&pool.zones);
        json!({
            "id": pool.id, "projectId": super::SERVICE_NAME, "name": pool.name, "flavor": pool.flavor,
            "desiredNodes": self.stale_size(pool), "minNodes": pool.min, "maxNodes": pool.max, "autoscale": pool.autoscale,
            "autoscaling": {"scaleDownUtilizationThreshold": 0.5, "scaleDownUnneededTimeSeconds": 600,
                            "scaleDownUnreadyTimeSeconds": 1200},
            "monthlyBilled": pool.monthly, "antiAffinity": pool.anti_affinity, "availabilityZones": zones,
            "attachFloatingIps": null, "template": pool.template, "status": self.status(pool),
            "sizeStatus": if current == pool.desired { "CAPACITY_OK" } else { "UNDER_CAPACITY" },
            "currentNodes": current, "availableNodes": ready, "upToDateNodes": current,
            "createdAt": pool.created_at.to_string(), "updatedAt": self.now.to_string(),
        })
    }

    /// What a pool says it does.
    fn status(&self, pool: &PoolState) -> String {
        if pool.status != "READY" {
            return pool.status.clone();
        }
        let nodes = || self.nodes.values().filter(|node| node.pool == pool.id);
        let is_growing = !pool.due.is_empty() || nodes().any(|node| node.status == "INSTALLING");
        let was_ready = nodes().any(|node| node.status == "READY");
        let status = if is_growing && !was_ready {
            "INSTALLING"
        } else if is_growing {
            "UPSCALING"
        } else if nodes().any(|node| node.status == "DELETING") {
            "DOWNSCALING"
        } else if self.world.odd {
            "CONTEMPLATING"
        } else {
            "READY"
        };
        status.to_owned()
    }

    /// The size as it was before the last writes, if reads are stale.
    fn stale_size(&self, pool: &PoolState) -> u32 {
        let seen = pool
            .history
            .iter()
            .rev()
            .find(|(at, _)| later(*at, self.world.delays.stale) <= self.now);
        seen.or(pool.history.first())
            .map_or(pool.desired, |(_, desired)| *desired)
    }

    pub(super) fn shown_node(&self, node: &SimNode) -> Value {
        json!({
            "id": node.id, "instanceId": node.instance, "nodePoolId": node.pool, "projectId": super::SERVICE_NAME,
            "name": node.name, "flavor": node.flavor, "version": node.version, "isUpToDate": true, "status": node.status,
            "createdAt": node.created_at.to_string(), "updatedAt": node.created_at.to_string(),
        })
    }
}
