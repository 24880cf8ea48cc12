//! Volumes and servers of different billing plans can't be attached to each other: which plan each volume has, which nodes it so
//! asks for, and which pods ended on a node that their volume will not come to (§5.12).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use karpenter_api::Requirement;
use karpenter_cloud::{CloudError, VolumeRequirements, clock::later, error::CloudContext};
use karpenter_engine::convert::volume_claims;
use kube::{Api, Resource, ResourceExt, api::ListParams};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::{
    catalogue::{CSI_DRIVER, PLAN_ON_DEMAND, PLAN_SPOT},
    labels::BILLING_PLAN,
    provider::Shared,
    settings::VolumePlanRule,
};

/// The plans of volumes, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct VolumePlans {
    /// By the CSI driver's handle, which is the volume's id.
    known: Mutex<BTreeMap<String, Known>>,
    required: Mutex<VolumeRequirements>,
}

#[derive(Clone, Debug)]
struct Known {
    /// `None` where no account has the volume, or the API does not tell its plan.
    plan: Option<String>,
    at: Timestamp,
}

const PAUSE: Duration = Duration::from_secs(60);
/// Plans are switched seldom.
const BELIEVED: Duration = Duration::from_secs(3600);

pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        if let Err(error) = round(&shared).await {
            let error = shared.accounts.redactor().redact(&error.to_string());
            tracing::warn!(error, "billing plans of volumes could not be looked at");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep(PAUSE) => {}
        }
    }
}

/// Learns the plans of the cluster's volumes, and tells of pods whose node has another.
///
/// # Errors
/// When the cluster or the cloud could not be asked; what was known stays known.
pub(crate) async fn round(shared: &Shared) -> Result<(), CloudError> {
    let volumes = volumes(shared, &ListParams::default().match_any()).await?;
    let handles: BTreeMap<String, String> = volumes.iter().filter_map(block_volume).collect();
    shared.volume_plans.learn(shared, &handles).await?;
    let plans = shared.volume_plans.of(&handles);
    if shared.settings.volume_plans == VolumePlanRule::Enforced {
        shared.volume_plans.require(&plans);
    }
    tell_of_mismatches(shared, &plans).await
}

/// The handles of the cluster's volumes, whatever driver they have: the newest list, since what is not in it may be deleted.
///
/// # Errors
/// When the cluster could not be asked.
pub(crate) async fn handles(shared: &Shared) -> Result<BTreeSet<String>, CloudError> {
    let volumes = volumes(shared, &ListParams::default()).await?;
    let csi = volumes.into_iter().filter_map(|volume| volume.spec?.csi);
    Ok(csi.map(|own| own.volume_handle).collect())
}

async fn volumes(shared: &Shared, how: &ListParams) -> Result<Vec<PersistentVolume>, CloudError> {
    let volumes: Api<PersistentVolume> = Api::all(shared.kube.clone());
    let listed = volumes.list(how).await.cloud_context("listing PersistentVolumes")?;
    Ok(listed.items)
}

/// Name and handle of a volume of the vendor's block storage.
fn block_volume(volume: &PersistentVolume) -> Option<(String, String)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == CSI_DRIVER).then(|| (volume.name_any(), csi.volume_handle.clone()))
}

impl VolumePlans {
    /// What volumes ask of the nodes of their pods.
    pub(crate) fn required(&self) -> VolumeRequirements {
        self.required.lock().clone()
    }

    async fn learn(&self, shared: &Shared, handles: &BTreeMap<String, String>) -> Result<(), CloudError> {
        let now = shared.clock.now();
        let own: BTreeSet<&String> = handles.values().collect();
        let is_news = {
            let mut known = self.known.lock();
            known.retain(|handle, _| own.contains(handle));
            let is_current = |handle: &&String| known.get(*handle).is_some_and(|own| now < later(own.at, BELIEVED));
            !own.iter().all(is_current)
        };
        if !is_news {
            return Ok(());
        }
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for account in shared.accounts.all().await? {
            let listed = account.volumes().await.map_err(CloudError::from)?;
            let told = listed.iter().filter(|volume| !volume.billing_plan.is_empty());
            found.extend(told.map(|volume| (volume.id.clone(), volume.billing_plan.clone())));
        }
        let mut known = self.known.lock();
        for handle in own {
            let plan = found.remove(handle);
            known.insert(handle.clone(), Known { plan, at: now });
        }
        Ok(())
    }

    /// Plans by the name of the PersistentVolume.
    fn of(&self, handles: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let known = self.known.lock();
        let told = handles
            .iter()
            .filter_map(|(name, handle)| Some((name.clone(), known.get(handle)?.plan.clone()?)));
        told.collect()
    }

    fn require(&self, plans: &BTreeMap<String, String>) {
        let of_plan = |plan: &String| vec![Requirement::within(BILLING_PLAN, attachable(plan))];
        let now: BTreeMap<String, Vec<Requirement>> =
            plans.iter().map(|(name, plan)| (name.clone(), of_plan(plan))).collect();
        let mut required = self.required.lock();
        if **required != now {
            *required = Arc::new(now);
        }
    }
}

/// The plans of servers that a volume of this plan can be attached to.
fn attachable(plan: &str) -> Vec<&str> {
    match plan {
        PLAN_ON_DEMAND => vec![PLAN_ON_DEMAND, PLAN_SPOT],
        own => vec![own],
    }
}

/// Warns of pods that wait on their node for a volume of another plan. Those that run prove that it came.
async fn tell_of_mismatches(shared: &Shared, plans: &BTreeMap<String, String>) -> Result<(), CloudError> {
    if plans.is_empty() {
        return Ok(());
    }
    let pods: Api<Pod> = Api::all(shared.kube.clone());
    let pending = ListParams::default().fields("status.phase=Pending");
    let pending = pods.list(&pending).await.cloud_context("listing pending Pods")?;
    let nodes: Api<Node> = Api::all(shared.kube.clone());
    for pod in pending.items {
        let Some(spec) = &pod.spec else { continue };
        let claims = volume_claims(&pod.name_any(), spec);
        let Some(node) = spec.node_name.as_ref().filter(|_| !claims.is_empty()) else {
            continue;
        };
        let node = read(&nodes, node).await?;
        let Some(server) = node.as_ref().and_then(|node| node.labels().get(BILLING_PLAN)) else {
            continue;
        };
        let namespace = pod.namespace().unwrap_or_default();
        let bound: Api<PersistentVolumeClaim> = Api::namespaced(shared.kube.clone(), &namespace);
        for claim in claims {
            let own = read(&bound, &claim).await?;
            let volume = own.and_then(|own| own.spec?.volume_name).unwrap_or_default();
            let Some(plan) = plans.get(&volume) else { continue };
            if attachable(plan).contains(&server.as_str()) {
                continue;
            }
            let message = format!(
                "volume {volume} of claim {claim} is billed by {plan} and the pod's node by {server}; BizFly Cloud attaches \
                 volumes to servers of the same plan only. Ask for {BILLING_PLAN}: {plan}, or set BIZFLY_ENFORCE_VOLUME_BILLING_PLAN=true"
            );
            shared.events.warn(&pod, "VolumeBillingPlanMismatch", &message).await;
        }
    }
    Ok(())
}

/// An object by its name, by a list: the controller may list these kinds, but not get one.
async fn read<K>(objects: &Api<K>, name: &str) -> Result<Option<K>, CloudError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = objects
        .list(&only)
        .await
        .cloud_context(format!("reading {} {name}", K::kind(&())))?;
    Ok(listed.items.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_paid_by_use_can_go_to_spot_too() {
        assert_eq!(attachable("on_demand"), ["on_demand", "spot"]);
        assert_eq!(attachable("saving_plan"), ["saving_plan"]);
    }
}
