//! What runs beside the calls of core (cloudstack.md §9).

pub mod class;
pub mod garbage;
pub mod identity;
pub mod memory;
pub mod sweep;
pub(crate) mod tagging;

use std::{sync::Arc, time::Duration};

use karpenter_api::NodeClaim;
use karpenter_cloud::{
    BackgroundTask, CloudError,
    error::CloudContext,
    garbage_collection::{Caution, GarbageCollector},
};
use kube::{Api, api::ListParams};
use tokio_util::sync::CancellationToken;

use crate::{
    client::Keys,
    credentials,
    provider::Shared,
    settings::{CredentialsFrom, Switch},
};

pub(crate) const PROBE: Duration = Duration::from_secs(30);

pub(crate) fn all(shared: &Arc<Shared>) -> Vec<BackgroundTask> {
    let own = || shared.clone();
    let (classes, garbage, sweeps, identities, probes) = (own(), own(), own(), own(), own());
    let (sizes, hangups) = (own(), own());
    let mut tasks = vec![
        BackgroundTask::new("cloudstack.nodeclass", move |stop| async move {
            stop.run_until_cancelled(class::run(&classes)).await;
        }),
        BackgroundTask::new("cloudstack.instance.garbagecollection", move |stop| async move {
            stop.run_until_cancelled(collect(&garbage)).await;
        }),
        BackgroundTask::new("cloudstack.instance.state", move |stop| sweep_on(sweeps, stop)),
        BackgroundTask::new("cloudstack.capabilities", move |stop| async move {
            stop.run_until_cancelled(probe(&probes)).await;
        }),
        BackgroundTask::new("cloudstack.instancetype.capacity", move |stop| async move {
            stop.run_until_cancelled(discover(&sizes)).await;
        }),
        BackgroundTask::new("cloudstack.flush", move |stop| async move {
            stop.run_until_cancelled(flush_on_hangup(&hangups)).await;
        }),
    ];
    if shared.settings.credentials != CredentialsFrom::Environment {
        let keys = own();
        tasks.push(BackgroundTask::new("cloudstack.credentials", move |stop| async move {
            stop.run_until_cancelled(follow_keys(&keys)).await;
        }));
    }
    if shared.settings.node_identity == Switch::On {
        tasks.push(BackgroundTask::new(
            "cloudstack.node.identity",
            move |stop| async move {
                stop.run_until_cancelled(identify(&identities)).await;
            },
        ));
    }
    tasks
}

/// Every NodeClaim of the cluster.
pub(crate) async fn claims(kube: &kube::Client) -> Result<Vec<NodeClaim>, CloudError> {
    let api: Api<NodeClaim> = Api::all(kube.clone());
    let listed = api
        .list(&ListParams::default())
        .await
        .cloud_context("listing NodeClaims")?;
    Ok(listed.items)
}

/// Often at first, when a crash may have left something, then calmly.
async fn collect(shared: &Shared) {
    const EAGER: u32 = 20;
    let mut collector = GarbageCollector::new(caution());
    let mut successes = 0;
    loop {
        let pause = Duration::from_secs(if successes < EAGER { 10 } else { 120 });
        shared.clock.sleep(pause).await;
        match garbage::round(shared, &mut collector).await {
            Ok(_) => successes += 1,
            Err(error) => tracing::warn!(%error, "garbage collection skipped a round"),
        }
    }
}

/// Two sightings half a minute apart are enough: the claim's UID is on the machine from its first moment.
pub fn caution() -> Caution {
    Caution {
        least_age: Duration::ZERO,
        ..Caution::default()
    }
}

async fn sweep_on(shared: Arc<Shared>, stop: CancellationToken) {
    let mut memory = sweep::Memory::default();
    loop {
        let pause = shared.clock.sleep(shared.settings.sweep_interval);
        if stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
        let round = stop.run_until_cancelled(sweep::round(&shared, &mut memory)).await;
        match round {
            None => return,
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "the machines could not be looked at"),
        }
    }
}

async fn discover(shared: &Shared) {
    loop {
        if let Err(error) = memory::round(shared).await {
            tracing::warn!(%error, "the memory of nodes could not be read");
        }
        shared.clock.sleep(Duration::from_secs(60)).await;
    }
}

/// An operator who changed something at CloudStack need not wait for caches: SIGHUP empties them.
async fn flush_on_hangup(shared: &Shared) {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP cannot be followed; caches are only emptied by time");
            return;
        }
    };
    while hangups.recv().await.is_some() {
        tracing::info!("what is known of CloudStack is forgotten and asked for again");
        shared.inventory.flush();
    }
}

async fn identify(shared: &Shared) {
    loop {
        if let Err(error) = identity::round(shared).await {
            tracing::warn!(%error, "nodes could not be matched with machines");
        }
        shared.clock.sleep(Duration::from_secs(10)).await;
    }
}

async fn follow_keys(shared: &Shared) {
    loop {
        shared.clock.sleep(credentials::LOOK_EVERY).await;
        look_at_keys(shared).await;
    }
}

/// Takes rotated keys into use; wrong ones are told, on every class too, and the old ones stay.
pub(crate) async fn look_at_keys(shared: &Shared) {
    let read = match credentials::read(&shared.settings, &shared.kube).await {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%error, "CloudStack's keys cannot be read; the known ones stay in use");
            return;
        }
    };
    if read.same_as(&shared.client.keys()) {
        *shared.refused_keys.lock() = None;
        return;
    }
    let is_refused = |own: &RefusedKeys| own.keys.same_as(&read);
    if shared.refused_keys.lock().as_ref().is_some_and(is_refused) {
        return;
    }
    let rotated = credentials::rotate(&shared.client, read.clone(), shared.settings.account_change).await;
    let refused = rotated.err().and_then(|error| {
        tracing::error!(%error, "the new CloudStack keys are not used; the old ones stay");
        // An outage says nothing about keys: they are tried again.
        (!error.is_temporary()).then(|| RefusedKeys {
            keys: read,
            why: error.to_string(),
        })
    });
    *shared.refused_keys.lock() = refused;
}

/// Keys that were given, tried and not taken into use.
pub(crate) struct RefusedKeys {
    keys: Keys,
    pub(crate) why: String,
}

/// Keeps `karpenter_cloudstack_up` true to the facts while nothing else is asked.
async fn probe(shared: &Shared) {
    loop {
        shared.clock.sleep(PROBE).await;
        let answered = shared.client.answered_at();
        let is_recent = answered.is_some_and(|at| karpenter_cloud::clock::later(at, PROBE) > shared.clock.now());
        if !is_recent && let Err(error) = shared.client.capabilities().await {
            tracing::warn!(%error, "CloudStack does not answer");
        }
    }
}
