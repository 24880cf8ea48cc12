//! What is left of a project's quota, where the ProviderConfig tells how much there is (§7.4).
//!
//! The API tells no quota. What it refuses is remembered as a refusal; what a user knows of it is kept to before anything is
//! ordered, with the servers of everybody in the project counted.

use crate::{
    catalogue::CloudCatalogue,
    client::wire::{Flavor, Server, Volume},
    instance,
    provider_config::Quota,
};

/// What a project uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    vcpus: u64,
    ram_mib: u64,
    servers: u64,
    volumes_gib: u64,
}

/// A machine that is to be added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) flavor: &'a Flavor,
    pub(crate) disks_gib: u32,
}

impl Used {
    pub(crate) fn of(servers: &[Server], volumes: &[Volume], catalogue: &CloudCatalogue) -> Self {
        let mut used = Self {
            servers: servers.len() as u64,
            volumes_gib: volumes.iter().map(|volume| volume.size).sum(),
            ..Self::default()
        };
        for server in servers {
            if let Some(flavor) = catalogue.flavor(instance::canonical_flavor(server, catalogue)) {
                used.vcpus += flavor.vcpus;
                used.ram_mib += flavor.ram;
            }
        }
        used
    }

    /// With a machine that was ordered and does not show yet. Its disks show before it does.
    pub(crate) fn and(mut self, flavor: &Flavor) -> Self {
        self.vcpus += flavor.vcpus;
        self.ram_mib += flavor.ram;
        self.servers += 1;
        self
    }
}

impl Quota {
    /// What a machine does not fit into, in a sentence; `None` if there is room.
    pub(crate) fn refuses(&self, used: &Used, wanted: &Wanted<'_>) -> Option<String> {
        let Wanted { flavor, disks_gib } = wanted;
        let limits = [
            ("vCPUs", self.vcpu, used.vcpus, flavor.vcpus),
            ("GiB of memory", self.ram_gib, used.ram_mib / 1024, flavor.ram / 1024),
            ("servers", self.servers, used.servers, 1),
            ("GiB of disk", self.volumes_gib, used.volumes_gib, u64::from(*disks_gib)),
        ];
        limits.into_iter().find_map(|(what, limit, used, more)| {
            let limit = limit?;
            (used + more > limit).then(|| {
                format!(
                    "{} needs {more} {what}, and {used} of the {limit} of spec.quota are used",
                    flavor.name
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flavor(vcpus: u64, gib: u64) -> Flavor {
        Flavor {
            name: format!("nix.{vcpus}c_{gib}g"),
            vcpus,
            ram: gib * 1024,
            ..Flavor::default()
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_is_used_and_what_there_is() {
        let used = Used {
            vcpus: 6,
            ram_mib: 8 * 1024,
            servers: 3,
            volumes_gib: 120,
        };
        let (small, big) = (flavor(2, 4), flavor(4, 8));
        let refused = |quota: Quota, flavor: &Flavor| quota.refuses(&used, &Wanted { flavor, disks_gib: 40 });
        assert_eq!(refused(Quota::default(), &big), None, "nothing is said");
        let vcpu = Quota {
            vcpu: Some(8),
            ..Quota::default()
        };
        assert_eq!(refused(vcpu.clone(), &small), None);
        let sentence = "nix.4c_8g needs 4 vCPUs, and 6 of the 8 of spec.quota are used";
        assert_eq!(refused(vcpu, &big).as_deref(), Some(sentence));
        let servers = Quota {
            servers: Some(3),
            ..Quota::default()
        };
        assert!(refused(servers, &small).is_some());
        let disks = Quota {
            volumes_gib: Some(159),
            ..Quota::default()
        };
        assert!(refused(disks, &small).is_some());
    }
}
