//! Sharing a project's quota between clusters: each tells the others in a hub what it uses and wants, and leaves them their part
//! (§7.3, §7.4).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::{CloudError, clock::later, error::CloudContext, kubernetes::connect, ownership::short_hash};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    account::Account,
    capacity_share::{BizflyCapacityShare, BizflyCapacityShareSpec},
    client::wire::Server,
    events,
    provider::Shared,
    provider_config::{Coordination, ProviderConfig},
    quota::{Listed, Peer, Sharing, Used},
    tags::Ownership,
};

/// What others told, by account.
#[derive(Default)]
pub(crate) struct Peers {
    told: Mutex<BTreeMap<String, Told>>,
    /// Clients of hubs, with what they were made from.
    hubs: Mutex<BTreeMap<String, (String, Client)>>,
}

#[derive(Clone, Debug)]
struct Told {
    peers: Vec<(Timestamp, Peer)>,
}

const PAUSE: Duration = Duration::from_secs(20);
const LEASE_SECONDS: u32 = 60;
/// With the pause before it, shorter than the lease: who can't hear others in time is still heard by them.
const LONGEST_EXCHANGE: Duration = Duration::from_secs(30);
/// The part of it that the cloud may take: a slow cloud is not to be told as a silent hub.
const LONGEST_COUNT: Duration = Duration::from_secs(20);
/// For each request to a hub.
const HUB_PATIENCE: Duration = Duration::from_secs(10);
/// What a cluster told that is no more is removed by whoever sees it.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
const KUBECONFIG: &str = "kubeconfig";

pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        if let Err(error) = round(&shared).await {
            let error = shared.accounts.redactor().redact(&error.to_string());
            tracing::warn!(error, "other clusters could not be told what this one uses");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep(PAUSE) => {}
        }
    }
}

/// Tells what this cluster uses and wants of every shared account, and hears what the others do.
///
/// # Errors
/// The first of what went wrong, after every account was tried. Where a hub does not answer, what others told runs out, and who
/// comes first is served first.
pub(crate) async fn round(shared: &Shared) -> Result<(), CloudError> {
    let accounts = shared.accounts.all().await?;
    let sharing = accounts.iter().filter_map(|account| {
        let coordination = account.coordination.as_ref()?;
        Some(share(shared, account, coordination))
    });
    // At once: a hub that does not answer keeps nobody from the others.
    join_all(sharing).await.into_iter().fold(Ok(()), Result::and)
}

async fn share(shared: &Shared, account: &Account, coordination: &Coordination) -> Result<(), CloudError> {
    let about = || events::named::<ProviderConfig>(&account.name);
    if !account.quota.is_divisible() {
        let message = "spec.coordination divides what spec.quota names: without vCPU, ramGiB or servers in it, whoever comes first \
                       is served first";
        shared.events.warn_of(about(), "NoQuotaToShare", message).await;
    }
    let began = shared.clock.now();
    let counting = own_share(shared, account, coordination);
    let told = match within(shared, later(began, LONGEST_COUNT), "BizFly Cloud", counting).await {
        Ok(own) => {
            let telling = exchange(shared, account, coordination, own);
            within(shared, later(began, LONGEST_EXCHANGE), "the hub", telling)
                .await
                .map_err(|error| ("HubUnreachable", error))
        }
        Err(error) => Err(("QuotaNotShared", error)),
    };
    let Err((reason, error)) = told else {
        return Ok(());
    };
    let message = format!("the quota is not shared by weight now: {error}");
    shared.events.warn_of(about(), reason, &message).await;
    Err(error)
}

/// What comes of a conversation, if it ends in time.
async fn within<T>(
    shared: &Shared,
    by: Timestamp,
    whom: &str,
    conversation: impl Future<Output = Result<T, CloudError>>,
) -> Result<T, CloudError> {
    tokio::select! {
        biased;
        answer = conversation => answer,
        () = shared.clock.sleep_until(by) => Err(CloudError::transient(format!("{whom} did not answer in time"))),
    }
}

/// What this cluster tells the others of an account.
async fn own_share(
    shared: &Shared,
    account: &Account,
    coordination: &Coordination,
) -> Result<BizflyCapacityShareSpec, CloudError> {
    let project = account.api.authenticate().await.map_err(CloudError::from)?;
    if project.is_empty() {
        return Err(CloudError::invalid(
            "which project is shared is not known: set project-id in the Secret of spec.secretRef",
        ));
    }
    let region = account.region.region.short();
    let servers = account.servers().await.map_err(CloudError::from)?;
    shared.open_ledger_for(account, &servers).await?;
    let catalogue = account.catalogue().await.map_err(CloudError::from)?;
    let now = shared.clock.now();
    let listed = Listed {
        account: &account.name,
        quota: &account.quota,
        servers: &servers,
        volumes: &[],
        catalogue: &catalogue,
        sharing: None,
        now,
    };
    let (ordered, denied) = shared.reservations.ordered_and_denied(&listed);
    let used = shared.own_use(account, &listed).with(&ordered);
    Ok(BizflyCapacityShareSpec {
        cluster: shared.settings.cluster_name.clone(),
        project,
        region: region.to_owned(),
        weight: coordination.weight,
        used: used.amounts(),
        wanted: denied.amounts(),
        renew_time: now,
        lease_duration_seconds: LEASE_SECONDS,
    })
}

/// Tells the hub of an account what this cluster uses, and hears what the others do.
async fn exchange(
    shared: &Shared,
    account: &Account,
    coordination: &Coordination,
    own: BizflyCapacityShareSpec,
) -> Result<(), CloudError> {
    let hub = shared.peers.hub(shared, account, coordination).await?;
    let now = own.renew_time;
    let (cluster, project, region) = (own.cluster.clone(), own.project.clone(), own.region.clone());
    let shares: Api<BizflyCapacityShare> = Api::all(hub);
    tell(&shares, &share_name(&cluster, &project, &region), own).await?;
    let all = shares
        .list(&ListParams::default())
        .await
        .cloud_context("listing BizflyCapacityShares")?;
    let mut peers = Vec::new();
    for share in all.items {
        let spec = share.spec;
        if now >= later(spec.renew_time, FORGOTTEN) {
            let name = share.metadata.name.unwrap_or_default();
            let gone = shares.delete(&name, &DeleteParams::default()).await;
            if let Err(error) = gone {
                tracing::debug!(name, %error, "a share that nobody renews could not be removed");
            }
            continue;
        }
        if spec.cluster == cluster || spec.project != project || spec.region != region {
            continue;
        }
        let until = later(
            spec.renew_time,
            Duration::from_secs(u64::from(spec.lease_duration_seconds)),
        );
        let peer = Peer {
            cluster: spec.cluster,
            weight: spec.weight,
            used: spec.used,
            wanted: spec.wanted,
        };
        peers.push((until, peer));
    }
    shared.peers.told.lock().insert(account.name.clone(), Told { peers });
    Ok(())
}

async fn tell(shares: &Api<BizflyCapacityShare>, name: &str, spec: BizflyCapacityShareSpec) -> Result<(), CloudError> {
    let context = || format!("writing BizflyCapacityShare {name}");
    let patch = json!({ "spec": spec });
    match shares.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let share = BizflyCapacityShare::new(name, spec);
            let made = shares.create(&PostParams::default(), &share).await;
            made.cloud_context(context()).map(drop)
        }
        Err(error) => Err(error).cloud_context(context()),
    }
}

/// Cluster names need not be names of objects, and one cluster may share several projects.
fn share_name(cluster: &str, project: &str, region: &str) -> String {
    format!("share-{}", short_hash(&format!("{cluster}/{project}/{region}")))
}

impl Peers {
    async fn hub(&self, shared: &Shared, account: &Account, coordination: &Coordination) -> Result<Client, CloudError> {
        let Some(reference) = &coordination.hub_secret_ref else {
            return Ok(shared.kube.clone());
        };
        let origin = format!("secret {}/{}", reference.namespace, reference.name);
        let secrets: Api<Secret> = Api::namespaced(shared.kube.clone(), &reference.namespace);
        let secret = secrets
            .get_opt(&reference.name)
            .await
            .cloud_context(format!("reading {origin}"))?
            .ok_or_else(|| CloudError::invalid(format!("{origin} of the hub does not exist")))?;
        let text = secret.data.and_then(|mut data| data.remove(KUBECONFIG));
        let text = text.and_then(|bytes| String::from_utf8(bytes.0).ok());
        let text = text.ok_or_else(|| CloudError::invalid(format!("{origin} has no {KUBECONFIG}")))?;
        let made_from = short_hash(&text);
        if let Some((known, client)) = self.hubs.lock().get(&account.name)
            && *known == made_from
        {
            return Ok(client.clone());
        }
        // What can't be read is not repeated: it has credentials in it.
        let unusable = |_| CloudError::invalid(format!("the {KUBECONFIG} of {origin} leads to no cluster"));
        let read = Kubeconfig::from_yaml(&text).map_err(unusable)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let mut config = config.map_err(unusable)?;
        config.connect_timeout = Some(HUB_PATIENCE);
        config.read_timeout = Some(HUB_PATIENCE);
        config.write_timeout = Some(HUB_PATIENCE);
        let client = connect(config)
            .map_err(|_| CloudError::invalid(format!("the {KUBECONFIG} of {origin} leads to no cluster")))?;
        let known = (made_from, client.clone());
        self.hubs.lock().insert(account.name.clone(), known);
        Ok(client)
    }
}

impl Shared {
    /// How an account's quota is shared now, as far as others told lately.
    pub(crate) fn sharing(&self, account: &Account, listed: &Listed<'_>) -> Option<Sharing> {
        let coordination = account.coordination.as_ref()?;
        let told = self.peers.told.lock().get(&account.name).cloned()?;
        let current = told.peers.into_iter().filter(|(until, _)| listed.now < *until);
        Some(Sharing {
            cluster: self.settings.cluster_name.clone(),
            weight: coordination.weight,
            own: self.own_use(account, listed),
            peers: current.map(|(_, peer)| peer).collect(),
        })
    }

    /// What this cluster's listed servers have.
    fn own_use(&self, account: &Account, listed: &Listed<'_>) -> Used {
        let is_own = |server: &&Server| !matches!(self.ownership(account, server), Ownership::Foreign);
        Used::of(listed.servers.iter().filter(is_own), &[], listed.catalogue)
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers")
            .field("told", &self.told.lock())
            .finish_non_exhaustive()
    }
}
