//! When the process counts as ready: watches are complete, the CRDs are there, the cloud answers, and it answers at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use karpenter_cloud::CloudProvider;
use kube::Client;

use crate::health::Readiness;
use crate::watch::Watches;

/// The kinds without which nothing works.
const NEEDED: [&str; 2] = ["NodePool", "NodeClaim"];

/// The checks `manager`, `crd`, `cloudprovider` and `readyz` (api.md §4.4). A replica that only waits for leadership watches nothing yet
/// and is ready all the same.
pub(super) fn checks(watches: Watches, client: Client, cloud: Arc<dyn CloudProvider>) -> Readiness {
    let found = Arc::new(AtomicBool::new(false));
    Readiness::default()
        .with("manager", move || {
            let watches = watches.clone();
            async move {
                if watches.are_running() {
                    watches.synced().await;
                }
                Ok(())
            }
        })
        .with("crd", move || {
            let (client, found) = (client.clone(), found.clone());
            async move {
                // Once found they stay found: a probe every few seconds need not ask the API server each time.
                if !found.load(Ordering::Relaxed) {
                    resolve(&client).await?;
                    found.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        })
        .with("cloudprovider", move || {
            let cloud = cloud.clone();
            async move { cloud.readiness().await }
        })
        .with("readyz", || async { Ok(()) })
}

async fn resolve(client: &Client) -> Result<(), String> {
    let served = client
        .list_api_group_resources("karpenter.sh/v1")
        .await
        .map_err(|error| {
            format!(
                "karpenter.sh/v1 is not served ({error}); install the CRDs, e.g. `karpenter crds | kubectl apply -f -`"
            )
        })?;
    let missing = NEEDED
        .into_iter()
        .find(|kind| !served.resources.iter().any(|resource| resource.kind == *kind));
    match missing {
        Some(kind) => Err(format!(
            "{kind} is not installed; `karpenter crds | kubectl apply -f -` installs it"
        )),
        None => Ok(()),
    }
}
