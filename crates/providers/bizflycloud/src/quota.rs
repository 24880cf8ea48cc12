//! What is left of a project's quota: as the ProviderConfig tells it, or as the cloud's last refusal does (§7.4).
//!
//! The API tells no quota. What a user knows of it is kept to before anything is ordered, with the servers of everybody in the
//! project counted. Where nothing is told, a refusal teaches for an hour how much is too much.

mod division;
mod fair;
mod wording;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_api::NodeClaim;
use karpenter_cloud::clock::later;
use parking_lot::Mutex;

use crate::{
    capacity_share::Amounts,
    catalogue::CloudCatalogue,
    client::wire::{self, Flavor, Server, Volume},
    instance,
    provider_config::Quota,
};
pub(crate) use division::{Peer, Sharing};
pub(crate) use wording::{is_about_disks_alone, may_be_about_size};

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
    /// `None` where the quota is not shared with other clusters.
    pub(crate) sharing: Option<&'a Sharing>,
    pub(crate) now: Timestamp,
}

/// What was ordered, or is about to be, and may not be listed yet; and what refusals taught.
#[derive(Debug, Default)]
pub(crate) struct Reservations(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// By account and by the name that the server is ordered with.
    reserved: BTreeMap<(String, String), Reserved>,
    /// What found no room, by account and by the name of the NodeClaim that asked for it.
    denied: BTreeMap<(String, String), Denied>,
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

#[derive(Debug)]
struct Denied {
    pool: String,
    vcpus: u64,
    ram_mib: u64,
    until: Timestamp,
    asker: Asker,
    /// What the server is called that was ordered since.
    server: Option<String>,
}

/// The claim that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    Waits,
    /// Its pods have another planned for them, under another name, once the refusal is forgotten.
    GaveUp,
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
/// What found no room is wanted for so long. It is asked for again when its refusal is forgotten, which is sooner.
const DENIED: Duration = Duration::from_secs(5 * 60);

impl Reservations {
    /// Sets aside what a server takes, in one step with the question whether there is room for it.
    ///
    /// # Errors
    /// A sentence that says what there is too little of.
    pub(crate) fn reserve(&self, listed: &Listed<'_>, name: &str, wanted: &Wanted<'_>) -> Result<(), String> {
        let mut book = self.0.lock();
        let key = (listed.account.to_owned(), name.to_owned());
        let own = Reserved {
            vcpus: wanted.flavor.vcpus,
            ram_mib: wanted.flavor.ram,
            disks_gib: u64::from(wanted.disks_gib),
            until: later(listed.now, LONGEST_ORDER),
        };
        if let Some(why) = book.refusal(listed, name, wanted) {
            return Err(why);
        }
        book.reserved.insert(key, own);
        Ok(())
    }

    /// A claim finds no room for what it wants most.
    pub(crate) fn deny(&self, account: &str, claim: &NodeClaim, wanted: &Wanted<'_>, now: Timestamp) {
        let mut book = self.0.lock();
        book.supersede(account, claim);
        let own = Denied {
            pool: claim.node_pool().unwrap_or_default().to_owned(),
            vcpus: wanted.flavor.vcpus,
            ram_mib: wanted.flavor.ram,
            until: later(now, DENIED),
            asker: Asker::Waits,
            server: None,
        };
        book.denied.insert(denied_key(account, claim), own);
    }

    /// A server is asked for: what the claim, or one that gave up before it, found no room for is not wanted as long as something
    /// is set aside for that server.
    pub(crate) fn ask(&self, account: &str, claim: &NodeClaim, server: &str) {
        let mut book = self.0.lock();
        let Some(own) = book.supersede(account, claim) else {
            return;
        };
        let own = Denied {
            asker: Asker::Waits,
            server: Some(server.to_owned()),
            ..own
        };
        book.denied.insert(denied_key(account, claim), own);
    }

    /// A claim has its server.
    pub(crate) fn serve(&self, claim: &str) {
        self.0.lock().denied.retain(|(_, name), _| name != claim);
    }

    /// A claim is gone without a server. What it wanted still is, until another asks in its place or nobody does for long.
    pub(crate) fn give_up(&self, claim: &str) {
        let mut book = self.0.lock();
        for ((_, name), own) in &mut book.denied {
            if name == claim {
                own.asker = Asker::GaveUp;
            }
        }
    }

    /// What was ordered for an account and is not listed yet, and what found no room.
    pub(crate) fn ordered_and_denied(&self, listed: &Listed<'_>) -> (Used, Used) {
        let mut book = self.0.lock();
        let ordered = book.coming(listed, "");
        let is_ordered = |own: &Denied| {
            let server = own.server.as_ref();
            server.is_some_and(|name| book.reserved.contains_key(&(listed.account.to_owned(), name.clone())))
        };
        let denied = book.denied.iter().filter(|((account, _), _)| account == listed.account);
        let denied = denied
            .filter(|(_, own)| !is_ordered(own))
            .fold(Used::default(), |sum, (_, own)| sum.plus(own.vcpus, own.ram_mib, 0));
        (ordered, denied)
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

fn denied_key(account: &str, claim: &NodeClaim) -> (String, String) {
    (account.to_owned(), claim.metadata.name.clone().unwrap_or_default())
}

impl Book {
    /// Takes out what a claim was denied; if that is nothing, what one of its NodePool was that gave up: it asks in that one's
    /// place.
    fn supersede(&mut self, account: &str, claim: &NodeClaim) -> Option<Denied> {
        if let Some(own) = self.denied.remove(&denied_key(account, claim)) {
            return Some(own);
        }
        let pool = claim.node_pool().unwrap_or_default();
        let given_up = self
            .denied
            .iter()
            .filter(|((of, _), own)| of == account && own.pool == pool && own.asker == Asker::GaveUp);
        let oldest = given_up.min_by_key(|(_, own)| own.until).map(|(key, _)| key.clone())?;
        self.denied.remove(&oldest)
    }

    fn refusal(&mut self, listed: &Listed<'_>, name: &str, wanted: &Wanted<'_>) -> Option<String> {
        let coming = self.coming(listed, name);
        let used = Used::of(listed.servers, listed.volumes, listed.catalogue).with(&coming);
        listed
            .quota
            .refuses(&used, wanted)
            .or_else(|| self.refused_before(listed, &used, wanted))
            .or_else(|| {
                let sharing = listed.sharing?;
                sharing.refuses(listed.quota, &used, &sharing.own.with(&coming), wanted)
            })
    }

    /// What is listed, and what was reserved for other servers and is not listed yet.
    fn used(&mut self, listed: &Listed<'_>, own_name: &str) -> Used {
        let coming = self.coming(listed, own_name);
        Used::of(listed.servers, listed.volumes, listed.catalogue).with(&coming)
    }

    /// What was reserved for other servers and is not listed yet.
    fn coming(&mut self, listed: &Listed<'_>, own_name: &str) -> Used {
        let Listed { account, now, .. } = *listed;
        self.reserved.retain(|_, reserved| now < reserved.until);
        self.denied.retain(|_, denied| now < denied.until);
        let mut coming = Used::default();
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
            // A server's disks are made, and listed, before it is.
            let root = wire::root_disk_name(name);
            let has_disks = listed.volumes.iter().any(|own| own.name.eq_ignore_ascii_case(&root));
            let disks = if has_disks { 0 } else { reserved.disks_gib };
            coming = coming.plus(reserved.vcpus, reserved.ram_mib, disks);
        }
        coming
    }

    /// Whether the cloud refused as much lately. Where a user tells the quota, that counts and nothing else.
    fn refused_before(&mut self, listed: &Listed<'_>, used: &Used, wanted: &Wanted<'_>) -> Option<String> {
        let now = listed.now;
        self.refused.retain(|_, refused| now < later(refused.at, LEARNT));
        let Refused { total, at } = self.refused.get(listed.account)?;
        let there = Used::of(listed.servers, &[], listed.catalogue);
        if there.vcpus >= total.vcpus && there.ram_mib >= total.ram_mib {
            // The project has as much by now: that was not the limit, or it was raised.
            self.refused.remove(listed.account);
            return None;
        }
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
    /// As other clusters are told.
    pub(crate) fn amounts(&self) -> Amounts {
        Amounts {
            vcpu: self.vcpus,
            ram_gib: self.ram_mib.div_ceil(1024),
            servers: self.servers,
        }
    }

    pub(crate) fn with(self, other: &Self) -> Self {
        Self {
            vcpus: self.vcpus + other.vcpus,
            ram_mib: self.ram_mib + other.ram_mib,
            servers: self.servers + other.servers,
            volumes_gib: self.volumes_gib + other.volumes_gib,
        }
    }

    /// With one more server.
    fn plus(self, vcpus: u64, ram_mib: u64, volumes_gib: u64) -> Self {
        self.with(&Self {
            vcpus,
            ram_mib,
            servers: 1,
            volumes_gib,
        })
    }

    pub(crate) fn of<'a>(
        servers: impl IntoIterator<Item = &'a Server>,
        volumes: &[Volume],
        catalogue: &CloudCatalogue,
    ) -> Self {
        let mut used = Self {
            volumes_gib: volumes.iter().map(|volume| volume.size).sum(),
            ..Self::default()
        };
        for server in servers {
            used.servers += 1;
            if let Some(flavor) = catalogue.flavor(instance::canonical_flavor(server, catalogue)) {
                used.vcpus += flavor.vcpus;
                used.ram_mib += flavor.ram;
            }
        }
        used
    }

    fn and(self, wanted: &Wanted<'_>) -> Self {
        self.plus(wanted.flavor.vcpus, wanted.flavor.ram, u64::from(wanted.disks_gib))
    }
}

impl Quota {
    /// Whether it limits anything that clusters divide by weight.
    pub(crate) fn is_divisible(&self) -> bool {
        self.vcpu.or(self.ram_gib).or(self.servers).is_some()
    }

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
            sharing: None,
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
            sharing: None,
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
        let five = ["a", "c", "d", "e", "f"];
        assert_eq!(try_it("b", 16, 32, &five, 200), Ok(()), "there is as much by now");
        assert_eq!(try_it("b", 16, 32, &["a"], 200), Ok(()), "and that is remembered");
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

    fn claim(name: &str, pool: &str) -> NodeClaim {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {karpenter_api::labels::NODEPOOL: pool}},
            "spec": {"requirements": [], "nodeClassRef": {"group": "a", "kind": "b", "name": "c"}},
        }))
        .expect("a NodeClaim")
    }

    #[test]
    fn what_is_asked_for_again_under_another_name_is_wanted_once() {
        let book = Reservations::default();
        let four = flavor(4, 8);
        let deny = |name: &str, pool: &str, second| {
            let wanted = Wanted {
                flavor: &four,
                disks_gib: 40,
            };
            book.deny("default", &claim(name, pool), &wanted, at(second));
        };
        let wanted = |second| {
            let listed = Listed {
                account: "default",
                quota: &Quota::default(),
                servers: &[],
                volumes: &[],
                catalogue: &flavors(),
                sharing: None,
                now: at(second),
            };
            book.ordered_and_denied(&listed).1.servers
        };
        deny("a-1", "a", 0);
        deny("a-2", "a", 0);
        deny("b-1", "b", 0);
        assert_eq!(wanted(1), 3);
        for name in ["a-1", "a-2", "b-1"] {
            book.give_up(name);
        }
        assert_eq!(wanted(2), 3, "the pods still wait");
        deny("a-3", "a", 200);
        deny("a-4", "a", 200);
        assert_eq!(wanted(200), 3, "they ask in the place of those that gave up");
        deny("a-5", "a", 200);
        assert_eq!(wanted(200), 4, "this one is new");
        book.ask("default", &claim("b-2", "b"), "b-2");
        book.serve("b-2");
        assert_eq!(wanted(200), 3, "it has what another of its pool waited for");
        book.serve("a-3");
        assert_eq!(wanted(200), 2);
        deny("a-4", "a", 450);
        assert_eq!(wanted(501), 1, "asked for again is wanted for longer; a-5 is forgotten");
        assert_eq!(wanted(751), 0);
    }

    #[test]
    fn what_is_ordered_is_not_wanted_meanwhile_and_again_if_nothing_comes_of_it() {
        let book = Reservations::default();
        let (four, quota) = (flavor(4, 8), Quota::default());
        let small = Wanted {
            flavor: &four,
            disks_gib: 40,
        };
        let wanted = || {
            let listed = Listed {
                account: "default",
                quota: &quota,
                servers: &[],
                volumes: &[],
                catalogue: &flavors(),
                sharing: None,
                now: at(1),
            };
            let (ordered, denied) = book.ordered_and_denied(&listed);
            (ordered.servers, denied.servers)
        };
        let earlier = ["a-1", "a-2", "a-3"];
        for name in earlier {
            book.deny("default", &claim(name, "a"), &small, at(0));
        }
        for name in earlier {
            book.give_up(name);
        }
        assert_eq!(wanted(), (0, 3));
        // Every offer that another claim tries is sold out.
        for server in ["a-4-1", "a-4-2", "a-4-3"] {
            reserve(&book, &quota, &[], (server, 4, 8), 1).expect("there is room");
            book.ask("default", &claim("a-4", "a"), server);
            assert_eq!(wanted(), (1, 2), "it asks in the place of one");
            book.release("default", server);
            assert_eq!(wanted(), (0, 3), "and none of them has anything");
        }
        reserve(&book, &quota, &[], ("a-4-4", 4, 8), 1).expect("there is room");
        book.ask("default", &claim("a-4", "a"), "a-4-4");
        book.serve("a-4");
        assert_eq!(wanted(), (1, 2));
    }
}
