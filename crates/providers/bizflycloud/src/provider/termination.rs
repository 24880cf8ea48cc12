//! Terminating: the server and its root disk, and never a disk that is somebody's data (§5.6).

use std::{sync::Arc, time::Duration};

use karpenter_api::{NodeClaim, labels};
use karpenter_cloud::{CloudError, Deletion, clock::later};

use super::{Shared, mark_of};
use crate::{
    account::{Account, AccountError},
    bootstrap::Join,
    client::{ErrorClass, wire::Server},
    instance,
    labels::annotations,
    metrics::DeletionReason,
    resolution,
    tags::Ownership,
};

/// How long the start of a deletion is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

impl Shared {
    pub(super) async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let provider_id = claim.provider_id().unwrap_or_default();
        let id = instance::server_id(provider_id).ok_or_else(|| CloudError::not_found(provider_id))?;
        let Some((account, server)) = self.server_of_claim(claim, id).await? else {
            return self.settle(claim, id).await;
        };
        if server.is_terminating() {
            return Ok(Deletion::InProgress);
        }
        self.check_ownership(claim, &account, &server)?;
        self.remove(&account, &server, DeletionReason::NodeClaim).await?;
        Ok(Deletion::InProgress)
    }

    /// In the account of the claim's class if that can be told, else in any.
    async fn server_of_claim(&self, claim: &NodeClaim, id: &str) -> Result<Option<(Arc<Account>, Server)>, CloudError> {
        let Some(account) = self.account_of(claim).await? else {
            return self.find_server(id).await;
        };
        match account.api.server(id).await {
            Ok(server) => Ok(Some((account, server))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn account_of(&self, claim: &NodeClaim) -> Result<Option<Arc<Account>>, CloudError> {
        let Some(class) = self.node_class(&claim.spec.node_class_ref.name).await? else {
            return Ok(None);
        };
        match self.accounts.get(class.spec.provider_config()).await {
            Ok(account) => Ok(Some(account)),
            Err(AccountError::Problem(problem)) => Err(CloudError::auth(problem.message)),
            Err(AccountError::Cluster(error)) => Err(error),
        }
    }

    fn check_ownership(&self, claim: &NodeClaim, account: &Account, server: &Server) -> Result<(), CloudError> {
        let mark = mark_of(claim);
        let is_its = match self.ownership(account, server) {
            Ownership::Ours(own) => own.uid == mark.uid || own.name == mark.name,
            // The claim names it, and nobody else's claim could.
            Ownership::Legacy => true,
            Ownership::Foreign => false,
        };
        if is_its {
            return Ok(());
        }
        Err(CloudError::invalid(format!(
            "OwnershipMismatch: server {} does not carry the marks of this claim; it is left alone",
            server.id
        )))
    }

    /// Deletes a server with its root disk. Other disks are volumes of pods: they stay.
    pub(crate) async fn remove(
        &self,
        account: &Account,
        server: &Server,
        reason: DeletionReason,
    ) -> Result<(), CloudError> {
        let disks: Vec<String> = server
            .volumes
            .iter()
            .filter(|volume| volume.attached_type == "rootdisk")
            .map(|volume| volume.id.clone())
            .collect();
        let answer = account.api.delete_server(&server.id, &disks).await;
        account.changed();
        match answer {
            Ok(()) => {
                let now = self.clock.now();
                let mut deletions = self.deletions.lock();
                deletions.retain(|_, at| now < later(*at, MEMORY));
                deletions.entry(server.id.clone()).or_insert(now);
                self.metrics.deleted(server.flavor(), server.zone(), reason);
                tracing::info!(
                    "server-id" = server.id,
                    flavor = server.flavor(),
                    zone = server.zone(),
                    event = "node_deletion",
                    "server is being deleted with its root disk"
                );
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if error.class == ErrorClass::Conflict => Err(CloudError::transient(format!(
                "server {} is locked or busy and cannot be deleted now: {error}",
                server.id
            ))),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn remove_volume(&self, account: &Account, id: &str) -> Result<(), CloudError> {
        let answer = account.api.delete_volume(id).await;
        account.changed();
        match answer {
            Ok(()) => {
                tracing::info!(volume = id, "root disk deleted");
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The server is gone: so must be its root disk, and BKE is told.
    async fn settle(&self, claim: &NodeClaim, id: &str) -> Result<Deletion, CloudError> {
        let account = self.account_of(claim).await?;
        let recorded = claim
            .metadata
            .annotations
            .iter()
            .flatten()
            .find(|(key, _)| *key == annotations::ROOT_VOLUME_ID);
        if let (Some(account), Some((_, volume))) = (&account, recorded) {
            match account.api.volume(volume).await {
                Ok(found) if !found.is_attached() && !found.status.eq_ignore_ascii_case("deleting") => {
                    self.metrics.orphan("volume");
                    self.remove_volume(account, &found.id).await?;
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(account) = &account {
            self.leave_cluster(claim, account).await;
            self.refusals.forget_quotas(&account.name);
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        self.launching.forget(&uid);
        if let Some(memory) = self.drift.lock().remove(&uid)
            && let Some(reason) = memory.reason()
        {
            self.metrics.forget_node(
                claim
                    .status
                    .as_ref()
                    .and_then(|own| own.node_name.as_deref())
                    .unwrap_or(id),
                reason,
            );
        }
        if let Some(started) = self.deletions.lock().remove(id) {
            let took = Duration::try_from(self.clock.since(started)).unwrap_or_default();
            self.metrics.deletion_took(took.as_secs_f64());
        }
        tracing::info!(
            NodeClaim = claim.metadata.name,
            "server-id" = id,
            event = "instance_lifecycle",
            capacity = claim
                .metadata
                .labels
                .iter()
                .flatten()
                .find(|(key, _)| *key == labels::INSTANCE_TYPE)
                .map(|own| own.1),
            "server is gone"
        );
        Ok(Deletion::Gone)
    }

    /// Never holds a deletion back: BKE forgets nodes by itself after a while.
    async fn leave_cluster(&self, claim: &NodeClaim, account: &Account) {
        let Ok(Some(class)) = self.node_class(&claim.spec.node_class_ref.name).await else {
            return;
        };
        let Ok(Ok(Join::Bke(join))) = resolution::join(&self.kube, &class.spec, &self.settings, None).await else {
            return;
        };
        let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
        let Some(node) = node else { return };
        if let Err(error) = account.api.leave_cluster(&join.cluster_id, &join.token, &node).await {
            tracing::warn!(NodeClaim = claim.metadata.name, %error, "ClusterLeaveFailed: BKE was not told that the node left");
        }
    }
}
