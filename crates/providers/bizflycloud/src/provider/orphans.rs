//! Root disks that no server has, whoever left them: the earlier provider left every one. Listed for an administrator, and deleted
//! only if one says so (§5.10).

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::{CloudError, clock::later};

use super::{BizflyCloudProvider, Shared};
use crate::{
    account::Account,
    client::wire::{self, Server, Volume},
    volume_plans,
};

/// A root disk that no server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanVolume {
    /// The ProviderConfig whose account pays for it.
    pub account: String,
    pub id: String,
    pub name: String,
    pub size_gb: u64,
    pub created_at: Option<Timestamp>,
}

/// What became of a disk that was to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanEnd {
    Deleted,
    /// It has a server by now, or belongs to a PersistentVolume.
    InUse,
}

/// A disk is there before its server is: a younger one may be that of a launch.
const LEAST_AGE: Duration = Duration::from_secs(10 * 60);

impl BizflyCloudProvider {
    /// The root disks without a server, of all accounts.
    ///
    /// # Errors
    /// When there is no account, or one could not be read.
    pub async fn orphan_volumes(&self) -> Result<Vec<OrphanVolume>, CloudError> {
        let accounts = self.shared.accounts.all().await?;
        if accounts.is_empty() {
            return Err(CloudError::invalid(
                "there is no ProviderConfig, and the environment has no credentials",
            ));
        }
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for account in accounts {
            let mut orphans = self.shared.orphans(&account).await?;
            // ProviderConfigs of one project show the same disks.
            orphans.retain(|volume| seen.insert(volume.id.clone()));
            let told = orphans.into_iter().map(|volume| OrphanVolume {
                account: account.name.clone(),
                created_at: volume.created_at(),
                id: volume.id,
                name: volume.name,
                size_gb: volume.size,
            });
            found.extend(told);
        }
        Ok(found)
    }

    /// Deletes such a disk, if it still is one.
    ///
    /// # Errors
    /// When the account could not be read, or the disk not be deleted.
    pub async fn delete_orphan_volume(&self, orphan: &OrphanVolume) -> Result<OrphanEnd, CloudError> {
        let accounts = self.shared.accounts.all().await?;
        let Some(account) = accounts.into_iter().find(|account| account.name == orphan.account) else {
            return Err(CloudError::not_found(format!("ProviderConfig {}", orphan.account)));
        };
        let servers = account.api.servers().await.map_err(CloudError::from)?;
        let claimed = volume_plans::handles(&self.shared).await?;
        // Last, so that nothing comes between this look and the deletion: the volume itself knows best who has it.
        let volume = match account.api.volume(&orphan.id).await {
            Ok(volume) => volume,
            Err(error) if error.is_not_found() => return Ok(OrphanEnd::Deleted),
            Err(error) => return Err(error.into()),
        };
        if !is_orphan(&volume, &servers, &claimed, self.shared.clock.now()) {
            return Ok(OrphanEnd::InUse);
        }
        self.shared.remove_volume(&account, &orphan.id).await?;
        Ok(OrphanEnd::Deleted)
    }
}

impl Shared {
    pub(crate) async fn orphans(&self, account: &Account) -> Result<Vec<Volume>, CloudError> {
        // Volumes first: a server that shows in between has its disk in no older list.
        let volumes = account.api.volumes().await.map_err(CloudError::from)?;
        let servers = account.api.servers().await.map_err(CloudError::from)?;
        let claimed = volume_plans::handles(self).await?;
        let now = self.clock.now();
        let mut orphans = volumes;
        orphans.retain(|volume| is_orphan(volume, &servers, &claimed, now));
        Ok(orphans)
    }
}

/// Whether nobody has this disk, as far as can be told; `claimed` are the handles of this cluster's PersistentVolumes. What is not
/// known to be old may be that of a launch.
fn is_orphan(volume: &Volume, servers: &[Server], claimed: &BTreeSet<String>, now: Timestamp) -> bool {
    let has_server = servers.iter().any(|server| {
        let is_attached = server.volumes.iter().any(|own| own.id == volume.id);
        let is_named = [server.name.as_str(), server.ordered_name()]
            .iter()
            .any(|name| wire::root_disk_name(name).eq_ignore_ascii_case(&volume.name));
        is_attached || is_named
    });
    let is_old = volume.created_at().is_some_and(|at| now >= later(at, LEAST_AGE));
    let is_at_rest = ["available", "error"]
        .iter()
        .any(|status| volume.status.eq_ignore_ascii_case(status));
    volume.name.ends_with(&wire::root_disk_name(""))
        && is_at_rest
        && !volume.is_attached()
        && !has_server
        && !claimed.contains(&volume.id)
        && is_old
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(volume: serde_json::Value, orphan: bool) {
        let mut all =
            json!({"id": "v", "name": "old_rootdisk", "status": "available", "created_at": "2026-01-01T00:00:00"});
        for (key, value) in volume.as_object().expect("fields") {
            all[key] = value.clone();
        }
        let volume: Volume = serde_json::from_value(all).expect("a volume");
        let server = json!({
            "id": "s", "name": "web", "status": "BUILD", "os-extended-volumes:volumes_attached": [{"id": "attached"}],
        });
        let servers: Vec<Server> = vec![serde_json::from_value(server).expect("a server")];
        let now = "2026-01-01T00:10:00Z".parse().expect("a time");
        let claimed = BTreeSet::from(["claimed".to_owned()]);
        assert_eq!(is_orphan(&volume, &servers, &claimed, now), orphan, "{volume:?}");
    }

    #[test]
    fn only_root_disks_that_nobody_has_or_will_have_are_orphans() {
        check(json!({}), true);
        check(json!({"status": "error"}), true);
        check(json!({"created_at": ""}), false);
        check(json!({"created_at": "yesterday"}), false);
        check(json!({"id": "attached"}), false);
        check(json!({"id": "claimed"}), false);
        check(json!({"created_at": "2026-01-01T00:00:01"}), false);
        check(json!({"name": "pvc-1"}), false);
        check(json!({"name": "old_datadisk"}), false);
        check(json!({"name": "WEB_rootdisk"}), false);
        check(json!({"status": "in-use"}), false);
        check(json!({"status": "creating"}), false);
        check(json!({"attachments": [{"server_id": "s"}]}), false);
    }
}
