//! What can be said of the account and its pools, for `karpenter doctor`. Only reads.

use std::time::Duration;

use karpenter_cloud::diagnosis::Diagnosis;
use kube::Api;

use super::Shared;
use crate::{node_class::OvhNodeClass, pool::PoolOwner};

impl Shared {
    pub(super) async fn diagnose(&self) -> Vec<Diagnosis> {
        let classes: Api<OvhNodeClass> = Api::all(self.client.clone());
        let classes = match classes.list(&Default::default()).await {
            Ok(classes) => classes.items,
            Err(error) => {
                let message = format!("OVHNodeClasses cannot be listed: {error}");
                return vec![Diagnosis::fail(
                    "node classes",
                    message,
                    "install the CRDs and check the role",
                )];
            }
        };
        if classes.is_empty() {
            let remedy = "apply one, such as examples/ovhcloud/nodeclass.yaml";
            return vec![Diagnosis::warn("node classes", "there is no OVHNodeClass", remedy)];
        }
        let mut found = Vec::new();
        let mut is_reached = false;
        for class in &classes {
            let subject = format!("class {}", class.name());
            match self.connect(class).await {
                Ok(connection) => {
                    is_reached = true;
                    let cluster = &connection.cluster;
                    let message = format!(
                        "reaches cluster {} in {} ({}, zones {})",
                        cluster.id,
                        cluster.region,
                        cluster.status,
                        connection.zones.names.join(", ")
                    );
                    found.push(Diagnosis::ok(&subject, message));
                }
                Err(problem) => {
                    let message = format!("{}: {}", problem.reason, problem.message);
                    found.push(Diagnosis::fail(
                        &subject,
                        message,
                        "see docs/providers/ovhcloud/troubleshooting.md",
                    ));
                }
            }
        }
        if is_reached {
            found.extend(self.diagnose_pools().await);
        }
        found
    }

    async fn diagnose_pools(&self) -> Vec<Diagnosis> {
        let pools = match self.engine.pools(Duration::ZERO).await {
            Ok(pools) => pools,
            Err(error) => {
                let message = error.to_string();
                return vec![Diagnosis::fail(
                    "node pools",
                    message,
                    "grant the eight rights of the security page",
                )];
            }
        };
        let limit = self.settings.engine.max_pools as usize;
        let ours = |pool: &&crate::client::model::Pool| PoolOwner::of(pool) != PoolOwner::Foreign;
        let message = format!(
            "{} of {limit} in use, {} of them Karpenter's",
            pools.len(),
            pools.iter().filter(ours).count()
        );
        let mut found = vec![if pools.len() * 10 >= limit * 9 {
            Diagnosis::warn("node pools", message, "use fewer NodePools, flavors or taints")
        } else {
            Diagnosis::ok("node pools", message)
        }];
        let autoscaled: Vec<&str> = pools
            .iter()
            .filter(|pool| !ours(pool) && pool.autoscale)
            .map(|pool| pool.name.as_str())
            .collect();
        if !autoscaled.is_empty() {
            found.push(Diagnosis::warn(
                "other autoscaler",
                format!("OVHcloud's own autoscaler runs for {}", autoscaled.join(", ")),
                "two autoscalers answer the same pending pods: switch it off or keep its pods away by taints",
            ));
        }
        found
    }
}
