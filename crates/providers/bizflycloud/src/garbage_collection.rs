//! Collects servers that no NodeClaim owns any more, with their root disks (§5.10).

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use karpenter_api::NodeClaim;
use karpenter_cloud::{
    CloudError,
    error::CloudContext,
    garbage_collection::{Caution, GarbageCollector, KnownClaims, Sighting, Verdict},
};
use kube::{Api, api::ListParams};
use tokio_util::sync::CancellationToken;

use crate::{account::Account, client::wire::Server, instance, metrics::DeletionReason, provider::Shared};

/// After a start orphans are likelier than later.
const FIRST_ROUNDS: u32 = 20;
const OFTEN: Duration = Duration::from_secs(10);
const SELDOM: Duration = Duration::from_secs(2 * 60);
const MARGIN: Duration = Duration::from_secs(30);

pub(crate) async fn keep(shared: Arc<Shared>, stop: CancellationToken) {
    let mut collector = GarbageCollector::new(caution(&shared));
    let mut rounds = 0;
    loop {
        match round(&shared, &mut collector, &|| listed_claims(&shared).boxed()).await {
            Ok(()) => rounds += 1,
            Err(error) => {
                let error = shared.accounts.redactor().redact(&error.to_string());
                tracing::warn!(error, "garbage collection skipped a round");
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
pub(crate) async fn round(
    shared: &Shared,
    collector: &mut GarbageCollector,
    claims: &ReadClaims<'_>,
) -> Result<(), CloudError> {
    let accounts = shared.accounts.all().await?;
    let mut sightings = Vec::new();
    let mut places: Vec<(String, Arc<Account>)> = Vec::new();
    for account in accounts {
        let servers = account.api.servers().await.map_err(CloudError::from)?;
        for server in servers.iter().filter(|server| !shared.is_launching(&account, server)) {
            sightings.push(sighting(shared, &account, server));
            places.push((server.id.clone(), account.clone()));
        }
    }
    let now = shared.clock.now();
    let orphans = match collector.round(&sightings, &claims().await?, now) {
        Verdict::Collect(orphans) => orphans,
        Verdict::Suspended { orphans, machines } => {
            tracing::warn!(
                orphans,
                machines,
                "GarbageCollectionSuspended: too many servers have no NodeClaim; is this the right cluster?"
            );
            return Ok(());
        }
    };
    for orphan in orphans {
        let Some((_, account)) = places.iter().find(|(id, _)| *id == orphan.id) else {
            continue;
        };
        let server = match account.api.server(&orphan.id).await {
            Ok(server) => server,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        let read = sighting(shared, account, &server);
        if !collector.confirm(&orphan, Some(&read), &claims().await?) {
            continue;
        }
        tracing::info!(
            "server-id" = orphan.id, NodeClaim = orphan.claim.name, why = ?orphan.why,
            "GarbageCollected: a server without a NodeClaim is deleted"
        );
        shared.metrics.orphan("server");
        shared
            .remove(account, &server, DeletionReason::GarbageCollection)
            .await?;
    }
    Ok(())
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
