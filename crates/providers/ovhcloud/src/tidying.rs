//! Looks after pools that no launch looks after: gives every pool its actor, and deletes the empty ones.

use std::{collections::BTreeSet, sync::Arc};

use karpenter_api::{NodePool, labels};
use karpenter_cloud::{CloudError, error::CloudContext};
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::{gpus, names, node_class::OvhNodeClass, provider::Shared};

/// Tidies until `stop`.
pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let pause = shared.settings.engine.cadence.tidy;
    let work = async {
        loop {
            if shared.engine.is_connected() {
                if let Err(error) = round(&shared).await {
                    tracing::warn!(%error, "node pools cannot be tidied up");
                }
                shared.watch_released().await;
                gpus::check(&shared).await;
            }
            shared.clock.sleep(pause).await;
        }
    };
    stop.run_until_cancelled_owned(work).await;
    shared.engine.stop();
}

async fn round(shared: &Shared) -> Result<(), CloudError> {
    let classes: Api<OvhNodeClass> = Api::all(shared.client.clone());
    let classes = classes
        .list(&Default::default())
        .await
        .cloud_context("listing OVHNodeClasses")?;
    let kept: BTreeSet<String> = classes
        .iter()
        .filter(|class| class.metadata.deletion_timestamp.is_none())
        .map(ResourceExt::name_any)
        .collect();
    let pools: Api<NodePool> = Api::all(shared.client.clone());
    let pools = pools
        .list(&Default::default())
        .await
        .cloud_context("listing NodePools")?;
    let pools: BTreeSet<String> = pools.iter().map(ResourceExt::name_any).collect();
    let is_abandoned = |pool: &crate::client::model::Pool| {
        let lacks = |known: &BTreeSet<String>, key: &str| pool.label(key).is_some_and(|name| !known.contains(name));
        lacks(&kept, names::NODE_CLASS) || lacks(&pools, labels::NODEPOOL)
    };
    shared.engine.tidy(is_abandoned).await
}
