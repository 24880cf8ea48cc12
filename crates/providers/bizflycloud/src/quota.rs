//! What is left of a project's quota: as the ProviderConfig tells it, or as the cloud's last refusal does (§7.4).
//!
//! The API tells no quota. What a user knows of it is kept to before anything is ordered, with the servers of everybody in the
//! project counted. Where nothing is told, a refusal teaches for an hour how much is too much.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use parking_lot::Mutex;

use crate::{
    catalogue::CloudCatalogue,
    client::wire::{self, Flavor, Server, Volume},
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

/// An account as it was listed a moment ago.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) account: &'a str,
    pub(crate) quota: &'a Quota,
    pub(crate) servers: &'a [Server],
    pub(crate) volumes: &'a [Volume],
    pub(crate) catalogue: &'a CloudCatalogue,
    pub(crate) now: Timestamp,
}

/// What was ordered, or is about to be, and may not be listed yet; and what refusals taught.
#[derive(Debug, Default)]
pub(crate) struct Reservations(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// By account and by the name that the server is ordered with.
    reserved: BTreeMap<(String, String), Reserved>,
    /// By account.
    refused: BTreeMap<String, Refused>,
}

#[derive(Debug)]
struct Reserved {
    vcpus: u64,
    ram_mib: u64,
    disks_gib: u64,
    until: Timestamp,
}

/// What a project would have used if the cloud had not refused it.
#[derive(Debug)]
struct Refused {
    total: Used,
    at: Timestamp,
}

/// An order that nobody ends is forgotten after this time: nothing will come of it.
const LONGEST_ORDER: Duration = Duration::from_secs(10 * 60);
/// Lists that were read before a server showed are in use for no longer than this.
const LIST_LAG: Duration = Duration::from_secs(30);
/// What a refusal taught is forgotten after this time: quotas are raised.
const LEARNT: Duration = Duration::from_secs(3600);

impl Reservations {
    /// Sets aside what a server takes, in one step with the question whether there is room for it.
    ///
    /// # Errors
    /// A sentence that says what there is too little of.
    pub(crate) fn reserve(&self, listed: &Listed<'_>, name: &str, wanted: &Wanted<'_>) -> Result<(), String> {
        let mut book = self.0.lock();
        let used = book.used(listed, name);
        if let Some(why) = listed.quota.refuses(&used, wanted) {
            return Err(why);
        }
        if let Some(why) = book.refused_before(listed, &used, wanted) {
            return Err(why);
        }
        let own = Reserved {
            vcpus: wanted.flavor.vcpus,
            ram_mib: wanted.flavor.ram,
            disks_gib: u64::from(wanted.disks_gib),
            until: later(listed.now, LONGEST_ORDER),
        };
        book.reserved.insert((listed.account.to_owned(), name.to_owned()), own);
        Ok(())
    }

    /// The cloud refused a server for the project's quota: so much, with it, is too much.
    pub(crate) fn learn(&self, listed: &Listed<'_>, name: &str, wanted: &Wanted<'_>) {
        let mut book = self.0.lock();
        let total = book.used(listed, name).and(wanted);
        let at = listed.now;
        book.refused.insert(listed.account.to_owned(), Refused { total, at });
    }

    /// Nothing comes of an order.
    pub(crate) fn release(&self, account: &str, name: &str) {
        self.0.lock().reserved.remove(&(account.to_owned(), name.to_owned()));
    }

    /// The server of an order is known: lists have it from now on.
    pub(crate) fn settle(&self, account: &str, name: &str, now: Timestamp) {
        let mut book = self.0.lock();
        if let Some(own) = book.reserved.get_mut(&(account.to_owned(), name.to_owned())) {
            own.until = own.until.min(later(now, LIST_LAG));
        }
    }
}

impl Book {
    /// What is listed, and what was reserved for other servers and is not listed yet.
    fn used(&mut self, listed: &Listed<'_>, own_name: &str) -> Used {
        let Listed { account, now, .. } = *listed;
        self.reserved.retain(|_, reserved| now < reserved.until);
        let mut used = Used::of(listed.servers, listed.volumes, listed.catalogue);
        for ((of, name), reserved) in &mut self.reserved {
            if of != account || name == own_name {
                continue;
            }
            let has_server = listed
                .servers
                .iter()
                .any(|server| server.ordered_name().eq_ignore_ascii_case(name));
            if has_server {
                reserved.until = reserved.until.min(later(now, LIST_LAG));
                continue;
            }
            used.vcpus += reserved.vcpus;
            used.ram_mib += reserved.ram_mib;
            used.servers += 1;
            // A server's disks are made, and listed, before it is.
            let root = wire::root_disk_name(name);
            if !listed.volumes.iter().any(|own| own.name.eq_ignore_ascii_case(&root)) {
                used.volumes_gib += reserved.disks_gib;
            }
        }
        used
    }

    /// Whether the cloud refused as much lately. Where a user tells the quota, that counts and nothing else.
    fn refused_before(&mut self, listed: &Listed<'_>, used: &Used, wanted: &Wanted<'_>) -> Option<String> {
        let now = listed.now;
        self.refused.retain(|_, refused| now < later(refused.at, LEARNT));
        let Refused { total, at } = self.refused.get(listed.account)?;
        if *listed.quota != Quota::default() {
            return None;
        }
        let then = used.and(wanted);
        // Which of the two the quota is of is not told: something smaller in either may fit.
        let is_as_much = then.vcpus >= total.vcpus && then.ram_mib >= total.ram_mib;
        is_as_much.then(|| {
            format!(
                "{} would make {} vCPUs and {} GiB of memory in the project, and at {at} the cloud refused {} and {} for its quota",
                wanted.flavor.name,
                then.vcpus,
                then.ram_mib / 1024,
                total.vcpus,
                total.ram_mib / 1024,
            )
        })
    }
}

impl Used {
    fn of(servers: &[Server], volumes: &[Volume], catalogue: &CloudCatalogue) -> Self {
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

    fn and(self, wanted: &Wanted<'_>) -> Self {
        Self {
            vcpus: self.vcpus + wanted.flavor.vcpus,
            ram_mib: self.ram_mib + wanted.flavor.ram,
            servers: self.servers + 1,
            volumes_gib: self.volumes_gib + u64::from(wanted.disks_gib),
        }
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

    fn flavors() -> CloudCatalogue {
        CloudCatalogue {
            flavors: vec![flavor(2, 4), flavor(4, 8), flavor(16, 32)],
            ..CloudCatalogue::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// Whether a project of which these servers are listed has room for a machine of this size.
    fn reserve(
        book: &Reservations,
        quota: &Quota,
        servers: &[&str],
        (name, vcpus, gib): (&str, u64, u64),
        second: i64,
    ) -> Result<(), String> {
        let listed: Vec<Server> = servers.iter().map(|name| listed_server(name)).collect();
        let listed = Listed {
            account: "default",
            quota,
            servers: &listed,
            volumes: &[],
            catalogue: &flavors(),
            now: at(second),
        };
        let wanted = flavor(vcpus, gib);
        book.reserve(
            &listed,
            name,
            &Wanted {
                flavor: &wanted,
                disks_gib: 40,
            },
        )
    }

    fn listed_server(name: &str) -> Server {
        serde_json::from_value(serde_json::json!({"id": name, "name": name, "flavor": {"name": "nix.4c_8g"}}))
            .expect("a server")
    }

    #[test]
    fn what_is_ordered_counts_before_it_is_listed_and_once_after() {
        let book = Reservations::default();
        let quota = Quota {
            vcpu: Some(8),
            ..Quota::default()
        };
        let four = |name, servers: &[&str], second| reserve(&book, &quota, servers, (name, 4, 8), second);
        assert_eq!(four("a", &[], 0), Ok(()));
        assert_eq!(
            four("a", &[], 1),
            Ok(()),
            "its own reservation does not stand in its way"
        );
        assert_eq!(four("b", &["a"], 2), Ok(()), "listed and reserved is one");
        assert!(four("c", &["a"], 3).is_err());
        assert!(four("c", &[], 4).is_err(), "a list that was read before shows nothing");
        book.release("default", "b");
        assert_eq!(four("c", &["a"], 5), Ok(()));
    }

    #[test]
    fn disks_of_what_is_ordered_count() {
        let book = Reservations::default();
        let quota = Quota {
            volumes_gib: Some(100),
            ..Quota::default()
        };
        let order = |name| reserve(&book, &quota, &[], (name, 4, 8), 0);
        assert!(order("a").is_ok() && order("b").is_ok());
        let why = order("c").expect_err("40 GiB each");
        assert!(why.contains("80 of the 100"), "{why}");
    }

    #[test]
    fn a_refusal_teaches_for_an_hour_what_is_too_much() {
        let book = Reservations::default();
        let none = Quota::default();
        let listed = Listed {
            account: "default",
            quota: &none,
            servers: &[listed_server("a")],
            volumes: &[],
            catalogue: &flavors(),
            now: at(0),
        };
        let big = flavor(16, 32);
        let wanted = Wanted {
            flavor: &big,
            disks_gib: 40,
        };
        book.learn(&listed, "b", &wanted);
        let try_it = |name, vcpus, gib, servers: &[&str], second| {
            let answer = reserve(&book, &none, servers, (name, vcpus, gib), second);
            book.release("default", name);
            answer
        };
        let why = try_it("b", 16, 32, &["a"], 200).expect_err("as much as was refused");
        assert!(why.contains("20 vCPUs and 40 GiB"), "{why}");
        assert_eq!(try_it("b", 4, 8, &["a"], 200), Ok(()), "less may fit");
        assert_eq!(try_it("b", 16, 32, &[], 200), Ok(()), "room was made");
        assert_eq!(try_it("b", 16, 32, &["a"], 3600), Ok(()), "quotas are raised");
        book.learn(&listed, "b", &wanted);
        let told = Quota {
            vcpu: Some(100),
            ..Quota::default()
        };
        assert_eq!(
            reserve(&book, &told, &["a"], ("b", 16, 32), 1),
            Ok(()),
            "the user knows"
        );
    }
}
