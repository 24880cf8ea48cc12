//! `karpenter doctor --orphan-volumes`: root disks at BizFly Cloud that no server has, and their deletion if it is asked for.

use karpenter_bizflycloud::provider::orphans::{OrphanEnd, OrphanVolume};
use karpenter_cloud::{CloudError, Diagnosis};
use karpenter_core::clock::Clock;

use super::{Report, connect};
use crate::providers::{ProviderFlags, bizfly};

/// What is done about the disks that are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orphans {
    List,
    Delete,
}

const SUBJECT: &str = "orphan-volumes";

/// Lists the disks and, if asked to, deletes them. What goes wrong is a finding.
pub(crate) async fn look(orphans: Orphans, flags: &ProviderFlags) -> Report {
    let mut report = Report::default();
    let client = match connect().await {
        Ok((_, client)) => client,
        Err(error) => {
            report.unreachable(&error.to_string());
            return report;
        }
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
        report.add(match orphans {
            Orphans::List => Diagnosis::warn(
                SUBJECT,
                format!("{} has no server", sentence(orphan)),
                "if it is nobody's: --orphan-volumes --delete",
            ),
            Orphans::Delete => match provider.delete_orphan_volume(orphan).await {
                Ok(OrphanEnd::Deleted) => Diagnosis::ok(SUBJECT, format!("{} is deleted", sentence(orphan))),
                Ok(OrphanEnd::InUse) => {
                    Diagnosis::ok(SUBJECT, format!("{} has a server by now and stays", sentence(orphan)))
                }
                Err(error) => Diagnosis::fail(SUBJECT, format!("{} can't be deleted: {error}", sentence(orphan)), ""),
            },
        });
    }
    report
}

fn sentence(orphan: &OrphanVolume) -> String {
    let since = orphan.created_at.map(|at| format!(", made {at}")).unwrap_or_default();
    format!(
        "{}: {} ({}, {} GB{since})",
        orphan.account, orphan.id, orphan.name, orphan.size_gb
    )
}
