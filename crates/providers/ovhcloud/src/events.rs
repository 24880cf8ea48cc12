//! What users read on their objects about node pools and machines.

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::NodePool;
use karpenter_cloud::{
    ClaimMark,
    clock::Clock,
    events::{Announcement, EventWriter},
};
use kube::{Api, Client, Resource, api::ObjectMeta};

use crate::node_class::OvhNodeClass;

/// Writes the events of this provider.
#[derive(Debug)]
pub struct Events {
    classes: Api<OvhNodeClass>,
    node_pools: Api<NodePool>,
    writer: EventWriter,
}

impl Events {
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            classes: Api::all(client.clone()),
            node_pools: Api::all(client.clone()),
            writer: EventWriter::new(client, clock),
        }
    }

    /// About an OVHNodeClass. Nothing is said about one that is gone.
    pub async fn on_class(&self, name: &str, announcement: Announcement) {
        match self.classes.get_opt(name).await {
            Ok(Some(class)) => {
                let about = reference::<OvhNodeClass>(&class.metadata);
                self.writer.write(&about, &announcement).await;
            }
            Ok(None) => {}
            Err(error) => unwritten(&error, &announcement),
        }
    }

    /// About a Karpenter NodePool.
    pub async fn on_node_pool(&self, name: &str, announcement: Announcement) {
        match self.node_pools.get_opt(name).await {
            Ok(Some(pool)) => {
                let about = reference::<NodePool>(&pool.metadata);
                self.writer.write(&about, &announcement).await;
            }
            Ok(None) => {}
            Err(error) => unwritten(&error, &announcement),
        }
    }

    pub async fn on_claim(&self, claim: &ClaimMark, announcement: &Announcement) {
        let metadata = ObjectMeta {
            name: Some(claim.name.clone()),
            uid: Some(claim.uid.clone()),
            ..ObjectMeta::default()
        };
        let about = reference::<karpenter_api::NodeClaim>(&metadata);
        self.writer.write(&about, announcement).await;
    }

    /// About a Node; kubelets put its name where the UID belongs, and `kubectl describe` looks for both.
    pub async fn on_node(&self, name: &str, announcement: &Announcement) {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let about = reference::<k8s_openapi::api::core::v1::Node>(&metadata);
        self.writer.write(&about, announcement).await;
    }
}

fn reference<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn unwritten(error: &kube::Error, announcement: &Announcement) {
    tracing::warn!(%error, reason = %announcement.reason, message = announcement.message, "an event could not be written");
}
