//! Terminating: the server and its root disk, and never a disk that is somebody's data (§5.6).

use std::{sync::Arc, time::Duration};

use karpenter_api::{NodeClaim, conditions::StatusConditions, labels, node_claim::condition::DRIFTED};
use karpenter_cloud::{CloudError, Deletion, clock::later};

use super::{Shared, mark_of};
use crate::{
    account::{Account, AccountError},
    bootstrap::{BkeJoin, Join},
    client::{
        ErrorClass,
        wire::{AttachedVolume, Server},
    },
    events, instance,
    labels::annotations,
    metrics::DeletionReason,
    resolution::{self, JoinMode},
    tags::{self, Ownership},
};

/// How long the start of a deletion is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// A server that refuses its deletion this often is told about.
const LOCKED_AFTER: u32 = 3;

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
        self.open_ledger_for(&account, std::slice::from_ref(&server)).await?;
        if let Err(error) = self.check_ownership(claim, &account, &server) {
            self.events.warn(claim, "OwnershipMismatch", &error.to_string()).await;
            return Err(error);
        }
        let removed = self.remove(&account, &server, DeletionReason::NodeClaim).await;
        if removed.is_err() && claim.is_true(DRIFTED) {
            self.metrics.remediation_failed();
        }
        removed?;
        Ok(Deletion::InProgress)
    }

    async fn server_of_claim(&self, claim: &NodeClaim, id: &str) -> Result<Option<(Arc<Account>, Server)>, CloudError> {
        for account in self.accounts_of(claim, id).await? {
            match account.api.server(id).await {
                Ok(server) => return Ok(Some((account, server))),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Where a claim's server may be: in the account of its class, which may name another one by now, and in the one that the
    /// ledger has. Where neither is known, in any.
    async fn accounts_of(&self, claim: &NodeClaim, server: &str) -> Result<Vec<Arc<Account>>, CloudError> {
        self.ledger.open().await?;
        let mut accounts: Vec<Arc<Account>> = self.account_of(claim).await?.into_iter().collect();
        if let Some(recorded) = self.ledger.account_of(server)
            && accounts.iter().all(|own| own.name != recorded)
            && self.accounts.names().await?.contains(&recorded)
        {
            accounts.push(self.accounts.get(&recorded).await?);
        }
        if accounts.is_empty() {
            return self.accounts.all().await;
        }
        Ok(accounts)
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
            Ownership::Warm(_) | Ownership::Foreign => false,
        };
        if is_its {
            return Ok(());
        }
        Err(CloudError::invalid(format!(
            "OwnershipMismatch: server {} does not carry the marks of this claim; it is left alone",
            server.id
        )))
    }

    /// The disks that go with a server: its root disk, and data disks that were ordered with it. A data disk is believed to be
    /// ours if it has the name that the API gives to such disks, and if it was seen at launch or there are no more of that
    /// name than were ordered. Everything else is a volume of a pod.
    pub(crate) fn own_disks(&self, account: &Account, server: &Server) -> Vec<String> {
        let ordered = tags::data_disks(server, &account.tag_prefixes);
        let named: Vec<&AttachedVolume> = server.named_data_disks().collect();
        let is_complete = named.len() <= ordered;
        let data = named
            .into_iter()
            .filter(|disk| is_complete || self.ledger.is_recorded(&disk.id));
        let root = server
            .volumes
            .iter()
            .filter(|volume| volume.attached_type == "rootdisk");
        root.chain(data).map(|volume| volume.id.clone()).collect()
    }

    /// Deletes a server with its own disks. Other disks are volumes of pods: they stay.
    pub(crate) async fn remove(
        &self,
        account: &Account,
        server: &Server,
        reason: DeletionReason,
    ) -> Result<(), CloudError> {
        let disks = self.own_disks(account, server);
        let answer = account.api.delete_server(&server.id, &disks).await;
        account.changed();
        match answer {
            Ok(()) => {
                let now = self.clock.now();
                let mut deletions = self.deletions.lock();
                deletions.retain(|_, at| now < later(*at, MEMORY));
                deletions.entry(server.id.clone()).or_insert(now);
                drop(deletions);
                self.refused_deletions.lock().remove(&server.id);
                // A spot server that was taken away is counted as that, and once.
                if !self.fleet.was_interrupted(&server.id) {
                    self.metrics.deleted(server.flavor(), server.zone(), reason);
                }
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
            Err(error) if error.class == ErrorClass::Conflict => {
                let message = format!(
                    "server {} is locked or busy and cannot be deleted now: {error}",
                    server.id
                );
                self.tell_of_lock(account, server, &message).await;
                Err(CloudError::transient(message))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A server may be busy for a moment; one that stays so is somebody's to unlock.
    async fn tell_of_lock(&self, account: &Account, server: &Server, message: &str) {
        let refusals = {
            let mut refused = self.refused_deletions.lock();
            let count = refused.entry(server.id.clone()).or_default();
            *count += 1;
            *count
        };
        let owner = self.ownership(account, server);
        if refusals >= LOCKED_AFTER
            && let Some(claim) = owner.claim()
        {
            let about = events::named::<NodeClaim>(&claim.name);
            self.events.warn_of(about, "ServerLocked", message).await;
        }
    }

    pub(crate) async fn remove_volume(&self, account: &Account, id: &str) -> Result<(), CloudError> {
        let answer = account.api.delete_volume(id).await;
        account.changed();
        match answer {
            Ok(()) => {
                tracing::info!(volume = id, "disk deleted");
                self.ledger.forget_volume(&account.name, id);
                Ok(())
            }
            Err(error) if error.is_not_found() => {
                self.ledger.forget_volume(&account.name, id);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The server is gone: so must be its disks, and BKE is told.
    async fn settle(&self, claim: &NodeClaim, id: &str) -> Result<Deletion, CloudError> {
        let accounts = self.accounts_of(claim, id).await?;
        for account in &accounts {
            for volume in recorded_disks(claim) {
                self.remove_left_disk(claim, account, volume).await?;
            }
            self.refusals.forget_quotas(&account.name);
        }
        if let Some(account) = accounts.first() {
            self.leave_cluster(claim, account).await;
        }
        self.ledger.forget_warm(id);
        self.ledger.save_or_warn().await;
        self.count_termination(claim);
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
        let message = format!("server {id} and its disks are gone");
        self.events.tell(claim, "ServerDeleted", &message).await;
        Ok(Deletion::Gone)
    }

    /// A disk that should have gone with its server, and did not.
    async fn remove_left_disk(&self, claim: &NodeClaim, account: &Account, id: &str) -> Result<(), CloudError> {
        match account.api.volume(id).await {
            Ok(found) if found.is_attached() || found.status.eq_ignore_ascii_case("deleting") => {}
            Ok(found) => {
                self.metrics.orphan("volume");
                self.remove_volume(account, &found.id).await?;
                let message = format!("disk {id} was left by its server and is deleted");
                self.events.tell(claim, "RootVolumeDeleted", &message).await;
            }
            Err(error) if error.is_not_found() => self.ledger.forget_volume(&account.name, id),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn count_termination(&self, claim: &NodeClaim) {
        let now = self.clock.now();
        let seconds = |from: jiff::Timestamp| {
            let took = Duration::try_from(now.duration_since(from)).unwrap_or_default();
            took.as_secs_f64()
        };
        if let Some(deleted) = &claim.metadata.deletion_timestamp {
            self.metrics.termination_took(seconds(deleted.0));
        }
        if let Some(drifted) = claim.condition(DRIFTED).filter(|own| own.is_true()) {
            self.metrics.remediated(seconds(drifted.transitioned_at()));
        }
    }

    /// Never holds a deletion back: BKE forgets nodes by itself after a while. But somebody is told.
    async fn leave_cluster(&self, claim: &NodeClaim, account: &Account) {
        let Some(node) = claim.status.as_ref().and_then(|status| status.node_name.clone()) else {
            tracing::debug!(
                NodeClaim = claim.metadata.name,
                "it never was a node: there is nothing to leave"
            );
            return;
        };
        let left = match self.bke_of(claim).await {
            // The client itself tries several times.
            Ok(Some(join)) => {
                let told = account.api.leave_cluster(&join.cluster_id, &join.token, &node).await;
                told.map_err(|error| error.to_string())
            }
            // Clusters that are not BKE's know nothing of their servers.
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        if let Err(why) = left {
            let why = self.accounts.redactor().redact(&why);
            tracing::warn!(
                NodeClaim = claim.metadata.name,
                error = why,
                "BKE was not told that the node left"
            );
            let message = format!("BKE was not told that node {node} left: {why}");
            self.events.warn(claim, "ClusterLeaveFailed", &message).await;
        }
    }

    /// The BKE cluster that a claim's node joined, if it did; without its class, as the controller's settings say.
    async fn bke_of(&self, claim: &NodeClaim) -> Result<Option<BkeJoin>, String> {
        let class = self.node_class(&claim.spec.node_class_ref.name).await;
        let class = class.map_err(|error| error.to_string())?;
        let spec = class.map(|class| class.spec).unwrap_or_default();
        if JoinMode::of(&spec, &self.settings) == JoinMode::UserData {
            return Ok(None);
        }
        let join = resolution::join(&self.kube, &spec, &self.settings, None).await;
        match join.map_err(|error| error.to_string())? {
            Ok(Join::Bke(join)) => Ok(Some(join)),
            Ok(Join::UserData(_)) => Ok(None),
            Err(problem) => Err(problem.message),
        }
    }
}

/// The disks that were made with the claim's server, as noted at launch.
fn recorded_disks(claim: &NodeClaim) -> impl Iterator<Item = &str> {
    let note = |key: &str| {
        let notes = claim.metadata.annotations.as_ref();
        notes.and_then(|notes| notes.get(key)).map_or("", String::as_str)
    };
    let root = note(annotations::ROOT_VOLUME_ID).split(',');
    let data = note(annotations::DATA_VOLUME_IDS).split(',');
    root.chain(data).filter(|id| !id.is_empty())
}
