//! The OVHcloud provider passes the suite that every provider has to pass.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Method;
use karpenter_api::{NodeClaim, NodePool, labels::LabelRules};
use karpenter_cloud::{
    CloudError, CloudProvider, Deletion, DriftReason, Instance, InstanceTypes, NodeClassKind, RepairPolicy,
    conformance::{Environment, Fault, Support},
};
use karpenter_ovhcloud::{
    OvhProvider,
    sim::{Effect, HttpFault},
};
use karpenter_sandbox::Sandbox;
use parking_lot::Mutex;
use serde_json::json;

use crate::environment::{Cluster, HOUR, parsed_node_pool};

/// The suite's claims exist only in its memory, and MKS machines are known by their claims' annotations: this stores each
/// claim in the cluster before it is launched, as core does, and translates the UIDs that the cluster gives out.
struct Stored {
    inner: OvhProvider,
    sandbox: Sandbox,
    uids: Arc<Mutex<BTreeMap<String, String>>>,
}

struct OvhEnvironment {
    cluster: Cluster,
    uids: Arc<Mutex<BTreeMap<String, String>>>,
}

async fn environment() -> OvhEnvironment {
    OvhEnvironment {
        cluster: Cluster::start().await,
        uids: Arc::default(),
    }
}

karpenter_cloud::conformance_tests!(environment);

impl OvhEnvironment {
    fn stored(&self, inner: OvhProvider) -> Arc<dyn CloudProvider> {
        Arc::new(Stored {
            inner,
            sandbox: self.cluster.sandbox.clone(),
            uids: self.uids.clone(),
        })
    }
}

impl Stored {
    /// The claim with the UID that the cluster knows it by, stored if it never was.
    fn store(&self, claim: &NodeClaim) -> NodeClaim {
        let mut own = claim.clone();
        let given = claim.metadata.uid.clone().unwrap_or_default();
        let name = claim.metadata.name.clone().unwrap_or_default();
        let mut uids = self.uids.lock();
        if !uids.contains_key(&given) {
            let objects = self.sandbox.objects();
            if objects.get::<NodeClaim>("", &name).is_some() {
                objects
                    .delete::<NodeClaim>("", &name, &Default::default())
                    .expect("deleted");
            }
            let mut new = claim.clone();
            new.metadata.uid = None;
            let stored = objects.create(&new).expect("accepted");
            uids.insert(given.clone(), stored.metadata.uid.expect("a uid"));
        }
        own.metadata.uid = uids.get(&given).cloned();
        own
    }

    fn known(&self, claim: &NodeClaim) -> NodeClaim {
        let mut own = claim.clone();
        let given = claim.metadata.uid.clone().unwrap_or_default();
        if let Some(uid) = self.uids.lock().get(&given) {
            own.metadata.uid = Some(uid.clone());
        }
        own
    }

    fn back(&self, mut instance: Instance) -> Instance {
        if let Some(claim) = &mut instance.claim {
            let uids = self.uids.lock();
            if let Some((given, _)) = uids.iter().find(|(_, real)| **real == claim.uid) {
                claim.uid = given.clone();
            }
        }
        instance
    }
}

#[async_trait]
impl CloudProvider for Stored {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        self.inner.supported_node_classes()
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        self.inner.extend_label_rules(rules)
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.inner.repair_policies()
    }

    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let claim = self.store(claim);
        self.inner.create(&claim).await.map(|instance| self.back(instance))
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.inner.abandon(&self.known(claim)).await
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.inner.delete(&self.known(claim)).await
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        self.inner.get(provider_id).await.map(|instance| self.back(instance))
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let list = self.inner.list().await?;
        Ok(list.into_iter().map(|instance| self.back(instance)).collect())
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.inner.instance_types(pool).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.inner.is_drifted(&self.known(claim)).await
    }
}

#[async_trait]
impl Environment for OvhEnvironment {
    fn provider(&self) -> Arc<dyn CloudProvider> {
        self.stored(self.cluster.provider())
    }

    fn node_pool(&self) -> NodePool {
        parsed_node_pool()
    }

    async fn restart(&self) -> Arc<dyn CloudProvider> {
        self.stored(self.cluster.crash())
    }

    async fn machines(&self) -> Vec<String> {
        self.cluster.sim(|sim| sim.machines())
    }

    async fn pass(&self, duration: Duration) {
        self.cluster.pass(duration).await;
    }

    async fn inject(&self, fault: Fault) -> Support {
        self.cluster.sim(|sim| match fault {
            Fault::LoseLaunchAnswer => {
                for method in [Method::POST, Method::PUT] {
                    sim.faults
                        .push(HttpFault::new(method, "/nodepool", Effect::Reset).once());
                }
            }
            Fault::FailLaunch => {
                for method in [Method::POST, Method::PUT] {
                    sim.faults.push(HttpFault::server_error(method, "/nodepool").once());
                }
            }
            Fault::SellOutEverything => {
                sim.everything_sold_out = true;
                sim.sold_out_at_once = true;
            }
            Fault::FailReads => sim.faults.push(HttpFault::server_error(Method::GET, "/nodepool")),
            Fault::FailTerminations => sim.faults.push(HttpFault::server_error(Method::PUT, "/nodepool")),
        });
        Support::Yes
    }

    async fn heal(&self) {
        self.cluster.sim(|sim| {
            sim.faults.clear();
            sim.everything_sold_out = false;
        });
    }

    async fn add_foreign_machine(&self) -> Option<String> {
        let pool = self.cluster.sim(|sim| sim.foreign_pool("karpenter-system", 1));
        let machine = self.cluster.sim(|sim| {
            let node = sim.nodes.values().find(|node| node.pool == pool);
            node.and_then(|node| node.instance.clone())
        });
        Some(format!("openstack:///{}", machine.expect("made at once")))
    }

    async fn vanish(&self, provider_id: &str) -> Support {
        self.cluster.sim(|sim| sim.vanish(provider_id));
        Support::Yes
    }

    async fn cause_drift(&self, _claim: &NodeClaim) -> Support {
        self.cluster.patch_class(&json!({"spec": {"tags": {"team": "web"}}}));
        Support::Yes
    }

    async fn unready_node_class(&self) -> Support {
        self.cluster.patch_class(&json!({"spec": {"region": "ELSEWHERE"}}));
        let is_false = || self.cluster.condition("Ready").0 == "False";
        assert!(self.cluster.until(is_false).await, "the class is out of service");
        Support::Yes
    }

    async fn collect_garbage(&self, claims: &[NodeClaim]) -> Support {
        let kept: Vec<&str> = claims
            .iter()
            .filter_map(|claim| claim.metadata.name.as_deref())
            .collect();
        for claim in self.cluster.sandbox.objects().list::<NodeClaim>("") {
            let name = claim.metadata.name.expect("a name");
            if !kept.contains(&name.as_str()) {
                self.cluster.forget(&name);
            }
        }
        self.cluster.pass(HOUR).await;
        Support::Yes
    }
}
