//! Puts firewalls back that a server's network interfaces lack; free public interfaces are born without any (§5.5).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use karpenter_cloud::CloudError;
use parking_lot::Mutex;

use super::{Member, claim_is_leaving};
use crate::{account::Account, client::wire::Nic, node_class::BizflyCloudNodeClass, provider::Shared};

/// Servers whose firewalls could not be put in place, and since when.
#[derive(Debug, Default)]
pub(crate) struct Firewalls(Mutex<BTreeMap<String, Timestamp>>);

impl Firewalls {
    pub(crate) fn unrepaired_since(&self, server: &str) -> Option<Timestamp> {
        self.0.lock().get(server).copied()
    }

    fn failed(&self, server: &str, now: Timestamp) {
        self.0.lock().entry(server.to_owned()).or_insert(now);
    }

    /// Servers that are gone need no firewalls.
    pub(super) fn forget_others(&self, members: &[Member<'_>]) {
        let known: BTreeSet<&str> = members.iter().map(Member::server_id).collect();
        self.0.lock().retain(|server, _| known.contains(server.as_str()));
    }

    fn in_place(&self, server: &str) {
        self.0.lock().remove(server);
    }
}

/// Adds what is missing, where a class asks for firewalls at all.
pub(super) async fn repair(
    shared: &Shared,
    accounts: &[Arc<Account>],
    members: &[Member<'_>],
    classes: &BTreeMap<String, BizflyCloudNodeClass>,
) -> Result<(), CloudError> {
    let wanted = |member: &Member<'_>| -> Vec<String> {
        let class = classes.get(&member.claim.spec.node_class_ref.name);
        let status = class.and_then(|class| class.status.as_ref());
        status.map(|status| status.security_groups.clone()).unwrap_or_default()
    };
    for account in accounts {
        let own: Vec<&Member<'_>> = members
            .iter()
            .filter(|member| member.account.is_some_and(|own| own.name == account.name))
            .filter(|member| !claim_is_leaving(member) && !wanted(member).is_empty())
            .collect();
        if own.is_empty() {
            continue;
        }
        let nics = account.nics().await.map_err(CloudError::from)?;
        for member in own {
            put_in_place(shared, account, member.server_id(), &nics, &wanted(member)).await;
        }
    }
    Ok(())
}

async fn put_in_place(shared: &Shared, account: &Account, server: &str, nics: &[Nic], wanted: &[String]) {
    let mut all_there = true;
    for nic in nics.iter().filter(|nic| nic.device_id == server) {
        let missing: Vec<String> = wanted
            .iter()
            .filter(|group| !nic.security_groups.contains(group))
            .cloned()
            .collect();
        if missing.is_empty() {
            continue;
        }
        all_there = false;
        match account.api.add_firewalls(&nic.id, &missing).await {
            Ok(()) => {
                account.forget_nics();
                tracing::info!(
                    "server-id" = server,
                    nic = nic.id,
                    firewalls = missing.join(","),
                    "firewalls are put in place"
                );
            }
            Err(error) => {
                tracing::warn!("server-id" = server, nic = nic.id, %error, "firewalls cannot be put in place");
            }
        }
    }
    if all_there {
        shared.firewalls.in_place(server);
    } else {
        // Believed when the next look sees them.
        shared.firewalls.failed(server, shared.clock.now());
    }
}
