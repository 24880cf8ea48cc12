//! What must never happen, whatever a provider goes through: the simulator sees it all and keeps count.

use std::collections::BTreeMap;

use super::{
    machines::{Machine, VolumeFate},
    state::State,
};
use crate::machine::{CLAIM_UID_DETAIL, CLAIM_UID_TAG, CLUSTER_DETAIL};

impl State {
    pub(super) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut live: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for machine in self.machines.iter().filter(|own| own.is_live()) {
            if let Some(uid) = claim_uid(machine) {
                live.entry(uid).or_default().push(&machine.name);
            }
        }
        for (uid, machines) in live.into_iter().filter(|(_, machines)| machines.len() > 1) {
            found.push(format!("claim {uid} has {}", machines.join(" and ")));
        }
        let destroyed = self.calls.iter().filter(|call| call.command == "destroyVirtualMachine");
        for call in destroyed {
            let id = call.params.get("id").map(String::as_str).unwrap_or_default();
            if let Some(machine) = self.machine(id).filter(|own| !is_marked(own)) {
                found.push(format!("{} was to be destroyed, and is nobody's", machine.name));
            }
        }
        let lost = self
            .volumes
            .iter()
            .filter(|own| own.fate != VolumeFate::Kept && !own.is_root);
        for volume in lost.filter(|own| own.offering.is_none() && own.tags.iter().all(|(key, _)| key != CLAIM_UID_TAG))
        {
            found.push(format!("volume {} was deleted, and is not ours", volume.name));
        }
        for (account, requests) in &self.above_limit {
            found.push(format!(
                "account {account} had {requests} request(s) above its rate limit"
            ));
        }
        found
    }
}

fn claim_uid(machine: &Machine) -> Option<&str> {
    let tag = machine.tags.iter().find(|(key, _)| key == CLAIM_UID_TAG);
    let detail = || machine.details.get(CLAIM_UID_DETAIL).map(String::as_str);
    tag.map(|(_, value)| value.as_str()).or_else(detail)
}

fn is_marked(machine: &Machine) -> bool {
    let has_tag = machine
        .tags
        .iter()
        .any(|(key, _)| key.starts_with("kubernetes.io/cluster/"));
    has_tag || machine.details.contains_key(CLUSTER_DETAIL)
}
