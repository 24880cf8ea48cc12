//! Learns from Nodes that run how much memory machines of their kind really have (cloudstack.md §9.9).

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{Quantity, labels::INITIALIZED};
use karpenter_cloud::{CloudError, error::CloudContext};
use kube::{Api, api::ListParams};

use crate::{catalogue::discovered::Kind, labels, provider::Shared};

pub(crate) async fn round(shared: &Shared) -> Result<(), CloudError> {
    let nodes: Api<Node> = Api::all(shared.kube.clone());
    let wanted = format!("{INITIALIZED}=true,{}", labels::SERVICE_OFFERING_ID);
    let listed = nodes
        .list(&ListParams::default().labels(&wanted))
        .await
        .cloud_context("listing nodes")?;
    for node in &listed.items {
        let Some((kind, bytes)) = seen(node) else { continue };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        shared.discovered.note(kind, name, bytes);
    }
    Ok(())
}

fn seen(node: &Node) -> Option<(Kind, i64)> {
    let own = node.metadata.labels.as_ref()?;
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    let memory: Quantity = capacity.get("memory")?.0.parse().ok()?;
    let kind = Kind {
        offering: own.get(labels::SERVICE_OFFERING_ID)?.clone(),
        template: own.get(labels::TEMPLATE_ID)?.clone(),
        given: own.get(labels::INSTANCE_MEMORY)?.parse().ok()?,
    };
    Some((kind, memory.value()))
}
