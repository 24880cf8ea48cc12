//! `karpenter doctor --orphan-volumes`: root disks at BizFly Cloud that no server has, and their deletion if it is asked for.

use karpenter_bizflycloud::BizflyCloudProvider;
use karpenter_bizflycloud::provider::orphans::{OrphanEnd, OrphanVolume};
use karpenter_cloud::{CloudError, Diagnosis};
use karpenter_core::clock::Clock;

use super::{Report, reach};
use crate::providers::{ProviderFlags, bizfly};

/// What is done about the disks that are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Orphans {
    List,
    DeleteAll,
    /// Those with these IDs.
    Delete(Vec<String>),
}

const SUBJECT: &str = "orphan-volumes";

/// Lists the disks and, if asked to, deletes them. What goes wrong is a finding.
pub(crate) async fn look(orphans: Orphans, flags: &ProviderFlags) -> Report {
    let mut report = Report::default();
    let Some((_, client)) = reach(&mut report).await else {
        return report;
    };
    let found = match bizfly(client, Clock::system(), flags).await {
        Ok(provider) => provider.orphan_volumes().await.map(|found| (provider, found)),
        Err(error) => Err(CloudError::invalid(error.to_string())),
    };
    let (provider, found) = match found {
        Ok(found) => found,
        Err(error) => {
            let remedy =
                "check credentials, permissions and the network; karpenter doctor --provider bizflycloud says more";
            report.add(Diagnosis::fail(SUBJECT, error.to_string(), remedy));
            return report;
        }
    };
    if found.is_empty() {
        report.add(Diagnosis::ok(SUBJECT, "every root disk has a server"));
    }
    for orphan in &found {
        let is_wanted = match &orphans {
            Orphans::List => false,
            Orphans::DeleteAll => true,
            Orphans::Delete(ids) => ids.contains(&orphan.id),
        };
        report.add(if is_wanted {
            deleted(&provider, orphan).await
        } else {
            let remedy = format!("if it is nobody's: --orphan-volumes --delete={}", orphan.id);
            Diagnosis::warn(SUBJECT, format!("{} has no server", sentence(orphan)), remedy)
        });
    }
    if let Orphans::Delete(ids) = &orphans {
        for id in ids.iter().filter(|id| found.iter().all(|orphan| orphan.id != **id)) {
            let remedy = "only root disks that no server has are deleted; --orphan-volumes lists them";
            report.add(Diagnosis::fail(
                SUBJECT,
                format!("{id} is none of them, and stays"),
                remedy,
            ));
        }
    }
    report
}

/// Deletes a disk and tells what became of it.
async fn deleted(provider: &BizflyCloudProvider, orphan: &OrphanVolume) -> Diagnosis {
    match provider.delete_orphan_volume(orphan).await {
        Ok(OrphanEnd::Deleted) => Diagnosis::ok(SUBJECT, format!("{} is deleted", sentence(orphan))),
        Ok(OrphanEnd::InUse) => Diagnosis::ok(SUBJECT, format!("{} is somebody's by now and stays", sentence(orphan))),
        Err(error) => Diagnosis::fail(SUBJECT, format!("{} can't be deleted: {error}", sentence(orphan)), ""),
    }
}

fn sentence(orphan: &OrphanVolume) -> String {
    let since = orphan.created_at.map(|at| format!(", made {at}")).unwrap_or_default();
    format!(
        "{}: {} ({}, {} GB{since})",
        orphan.account, orphan.id, orphan.name, orphan.size_gb
    )
}
