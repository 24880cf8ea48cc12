//! Collects servers that no NodeClaim owns any more, with their root disks (§5.10).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudError,
    clock::later,
    error::CloudContext,
    garbage_collection::{Caution, GarbageCollector, KnownClaims, Sighting, Verdict},
};
use kube::{Api, api::ListParams};
use tokio_util::sync::CancellationToken;

use crate::{
    account::Account, client::wire::Server, events, instance, metrics::DeletionReason, provider::Shared, tags,
};

/// After a start orphans are likelier than later.
const FIRST_ROUNDS: u32 = 20;
const OFTEN: Duration = Duration::from_secs(10);
const SELDOM: Duration = Duration::from_secs(2 * 60);
const MARGIN: Duration = Duration::from_secs(30);
/// A disk is left alone for so long after its launch.
const DISK_AGE: Duration = Duration::from_secs(10 * 60);

pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let mut collector = GarbageCollector::new(caution(&shared));
    let mut rounds = 0;
    loop {
        let servers = round(&shared, &mut collector, &|| listed_claims(&shared).boxed()).await;
        // Disks of what is gone need not wait for a server that can't be deleted.
        let disks = collect_disks(&shared).await;
        match servers.and(disks) {
            Ok(()) => rounds += 1,
            Err(error) => {
                let error = shared.accounts.redactor().redact(&error.to_string());
                tracing::warn!(error, "garbage collection did not do everything this round");
            }
        }
        let pause = if rounds < FIRST_ROUNDS { OFTEN } else { SELDOM };
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.clock.sleep(pause) => {}
        }
    }
}

/// A launch may take as long as it is waited for, and a little more.
pub(crate) fn caution(shared: &Shared) -> Caution {
    Caution {
        least_age: shared.settings.create_timeout + MARGIN,
        ..Caution::default()
    }
}

/// Reads what NodeClaims there are.
pub(crate) type ReadClaims<'a> = dyn Fn() -> BoxFuture<'a, Result<KnownClaims, CloudError>> + Send + Sync + 'a;

/// One round: servers first, then claims, so that a claim made in between counts.
///
/// # Errors
/// When servers or claims can't be listed; or the first of what went wrong, after every orphan was tried: one server that is
/// locked must not keep the others.
pub(crate) async fn round(
    shared: &Shared,
    collector: &mut GarbageCollector,
    claims: &ReadClaims<'_>,
) -> Result<(), CloudError> {
    let accounts = shared.accounts.all().await?;
    let mut sightings = Vec::new();
    let mut places: Vec<(String, Arc<Account>)> = Vec::new();
    let mut suspects: Vec<String> = Vec::new();
    for account in accounts {
        let servers = account.api.servers().await.map_err(CloudError::from)?;
        shared.open_ledger_for(&account, &servers).await?;
        suspects.extend(servers.iter().filter_map(|server| pool_of(&account, server)));
        for server in servers.iter().filter(|server| !shared.is_launching(&account, server)) {
            sightings.push(sighting(shared, &account, server));
            places.push((server.id.clone(), account.clone()));
        }
    }
    let now = shared.clock.now();
    let orphans = match collector.round(&sightings, &claims().await?, now) {
        Verdict::Collect(orphans) => orphans,
        Verdict::Suspended { orphans, machines } => {
            let message = format!(
                "{orphans} of {machines} servers have no NodeClaim; none is deleted, because this looks like a cluster that lost its \
                 NodeClaims or uses another cluster's name"
            );
            tracing::warn!(
                orphans,
                machines,
                "garbage collection is suspended: too many servers have no NodeClaim"
            );
            let pools: BTreeSet<String> = suspects.into_iter().collect();
            for pool in pools {
                let about = events::named::<NodePool>(&pool);
                shared
                    .events
                    .warn_of(about, "GarbageCollectionSuspended", &message)
                    .await;
            }
            return Ok(());
        }
    };
    let mut outcome = Ok(());
    for orphan in orphans {
        let Some((_, account)) = places.iter().find(|(id, _)| *id == orphan.id) else {
            continue;
        };
        let server = match account.api.server(&orphan.id).await {
            Ok(server) => server,
            Err(error) if error.is_not_found() => continue,
            Err(error) => {
                outcome = outcome.and(Err(error.into()));
                continue;
            }
        };
        let read = sighting(shared, account, &server);
        if !collector.confirm(&orphan, Some(&read), &claims().await?) {
            continue;
        }
        tracing::info!(
            "server-id" = orphan.id, NodeClaim = orphan.claim.name, why = ?orphan.why,
            "a server without a NodeClaim is deleted"
        );
        let removed = shared.remove(account, &server, DeletionReason::GarbageCollection).await;
        if removed.is_err() {
            outcome = outcome.and(removed);
            continue;
        }
        shared.metrics.orphan("server");
        if let Some(pool) = pool_of(account, &server) {
            let message = format!(
                "server {} ({}) has no NodeClaim and is deleted",
                orphan.id, orphan.claim.name
            );
            let about = events::named::<NodePool>(&pool);
            shared.events.tell_of(about, "GarbageCollected", &message).await;
        }
    }
    outcome
}

fn pool_of(account: &Account, server: &Server) -> Option<String> {
    let pool = tags::node_pool(server, &account.tag_prefixes)?;
    (!pool.is_empty()).then(|| pool.to_owned())
}

/// Deletes disks that were made with a server of ours and outlived it. Only those that were recorded at launch: a name alone
/// proves nothing.
pub(crate) async fn collect_disks(shared: &Shared) -> Result<(), CloudError> {
    shared.ledger.open().await?;
    let recorded = shared.ledger.volumes();
    let now = shared.clock.now();
    let mut outcome = Ok(());
    for account in shared.accounts.all().await? {
        let own: Vec<_> = recorded
            .iter()
            .filter(|(_, disk)| disk.account == account.name)
            .collect();
        if own.is_empty() {
            continue;
        }
        let volumes = account.volumes().await.map_err(CloudError::from)?;
        let servers = account.servers().await.map_err(CloudError::from)?;
        for (id, disk) in own {
            let is_young = now < later(disk.at, DISK_AGE);
            if is_young || servers.iter().any(|server| server.id == disk.server) {
                continue;
            }
            let Some(volume) = volumes.iter().find(|volume| volume.id == *id) else {
                shared.ledger.forget_volume(&account.name, id);
                continue;
            };
            if volume.is_attached() || !volume.status.eq_ignore_ascii_case("available") {
                continue;
            }
            tracing::info!(
                volume = id,
                "server-id" = disk.server,
                "a disk outlived its server and is deleted"
            );
            match shared.remove_volume(&account, id).await {
                Ok(()) => shared.metrics.orphan("volume"),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
    }
    outcome.and(shared.ledger.save().await)
}

fn sighting(shared: &Shared, account: &Account, server: &Server) -> Sighting {
    Sighting {
        id: server.id.clone(),
        provider_id: instance::provider_id(&server.id),
        owner: shared.ownership(account, server).for_collection(),
        created_at: server.created_at(),
        terminating: server.is_terminating(),
    }
}

async fn listed_claims(shared: &Shared) -> Result<KnownClaims, CloudError> {
    let claims: Api<NodeClaim> = Api::all(shared.kube.clone());
    let listed = claims
        .list(&ListParams::default())
        .await
        .cloud_context("listing NodeClaims")?;
    Ok(KnownClaims::of(&listed.items))
}
