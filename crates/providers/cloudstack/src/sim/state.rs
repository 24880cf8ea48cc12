//! Everything the simulated server knows.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::{
    faults::Fault,
    jobs::Job,
    machines::{AffinityRecord, Machine, MachineState, NicRecord, Volume, VolumeFate},
    seed::{Catalogue, Host, Seed},
};
use crate::node_class::CD_ROM;

/// The whole server.
#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) accounts: Vec<Account>,
    pub(super) projects: Vec<Project>,
    pub(super) catalogue: Catalogue,
    pub(super) hosts: Vec<Host>,
    pub(super) machines: Vec<Machine>,
    pub(super) volumes: Vec<Volume>,
    pub(super) affinity_groups: Vec<AffinityRecord>,
    pub(super) jobs: Vec<Job>,
    pub(super) faults: Vec<Fault>,
    /// Limits of domains, by id and resource.
    pub(super) domain_limits: BTreeMap<(String, String), i64>,
    pub(super) calls: Vec<Call>,
    pub(super) windows: BTreeMap<String, Window>,
    /// Requests above the limit, by account.
    pub(super) above_limit: BTreeMap<String, usize>,
    numbers: u64,
    addresses: u64,
    groups: BTreeMap<String, (String, Timestamp)>,
}

/// Settings of the server, with its own defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    pub latency: Latency,
    pub page_size: usize,
    /// Old servers refuse `pagesize=-1`.
    pub unlimited_pages: bool,
    /// (interval, requests per interval); each request counts twice.
    pub throttling: Option<(Duration, u32)>,
    pub enforce_post_and_timestamps: bool,
    pub user_may_expunge: bool,
    pub user_sees_destroyed: bool,
    pub expunge_delay: Duration,
    pub user_data_limit: usize,
    pub leases: bool,
    pub extra_config: bool,
    /// The (usage type, hourly value, has a rule) of the quota service; off if `None`.
    pub tariffs: Option<Vec<(i64, f64, bool)>>,
    /// No host takes any machine.
    pub sold_out: bool,
    /// Hosts take machines, but fail to start them.
    pub starts_fail: bool,
    /// Hosts fail to stop machines.
    pub stops_fail: bool,
    /// A proxy in front adds a `Date` header.
    pub date_header: bool,
    /// By which the server's clock is ahead of the simulator's.
    pub clock_ahead: jiff::SignedDuration,
    /// Deploys are not checked for a name that was taken moments ago.
    pub name_race: bool,
    pub version: String,
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Of every answer.
    pub answer: Duration,
    pub start: Duration,
    /// Until a template is on the storage of a zone, which its first machine there waits for.
    pub first_copy: Duration,
    pub destroy: Duration,
    /// Of tags, groups, volumes and the like.
    pub small: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    User,
    DomainAdmin,
    RootAdmin,
}

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) id: String,
    pub(super) user_id: String,
    pub(super) name: String,
    pub(super) domain_id: String,
    pub(super) domain: String,
    pub(super) domain_path: String,
    pub(super) role: Role,
    pub(super) is_enabled: bool,
    pub(super) api_key: String,
    pub(super) secret_key: String,
    pub(super) limits: BTreeMap<String, i64>,
    pub(super) key_pairs: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Project {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) text: String,
    pub(super) created: Timestamp,
    pub(super) members: Vec<String>,
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub at: Timestamp,
    pub command: String,
    pub account: String,
    pub status: u16,
    pub params: BTreeMap<String, String>,
}

/// The throttling window of an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) since: Timestamp,
    pub(super) used: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            latency: Latency::default(),
            page_size: 500,
            unlimited_pages: true,
            throttling: None,
            enforce_post_and_timestamps: false,
            user_may_expunge: false,
            user_sees_destroyed: false,
            expunge_delay: Duration::from_secs(86400),
            user_data_limit: 32768,
            leases: false,
            extra_config: false,
            tariffs: None,
            sold_out: false,
            starts_fail: false,
            stops_fail: false,
            date_header: false,
            clock_ahead: jiff::SignedDuration::ZERO,
            name_race: false,
            version: "4.23.0.0-SNAPSHOT".to_owned(),
        }
    }
}

impl State {
    pub(super) fn new(seed: Seed, now: Timestamp) -> Self {
        Self {
            settings: seed.settings,
            accounts: seed.accounts.into_iter().map(Account::from).collect(),
            projects: seed
                .projects
                .into_iter()
                .map(|(name, members)| Project {
                    id: new_id(),
                    text: name.clone(),
                    name,
                    created: now,
                    members,
                })
                .collect(),
            catalogue: seed.catalogue,
            hosts: seed.hosts,
            machines: Vec::new(),
            volumes: Vec::new(),
            affinity_groups: Vec::new(),
            jobs: Vec::new(),
            faults: Vec::new(),
            domain_limits: BTreeMap::new(),
            calls: Vec::new(),
            windows: BTreeMap::new(),
            above_limit: BTreeMap::new(),
            numbers: 4,
            addresses: 0,
            groups: BTreeMap::new(),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn account(&self, name: &str) -> Option<&Account> {
        self.accounts.iter().find(|own| own.name == name)
    }

    pub(super) fn machine(&self, id: &str) -> Option<&Machine> {
        self.machines.iter().find(|own| own.id == id)
    }

    pub(super) fn machine_mut(&mut self, id: &str) -> Option<&mut Machine> {
        self.machines.iter_mut().find(|own| own.id == id)
    }

    /// Instance groups are made on demand.
    pub(super) fn make_group(&mut self, name: &str, now: Timestamp) {
        self.groups.entry(name.to_owned()).or_insert_with(|| (new_id(), now));
    }

    /// The id of an instance group, and since when it exists.
    pub(super) fn known_group(&self, name: &str) -> Option<&(String, Timestamp)> {
        self.groups.get(name)
    }

    /// A free address of a network; `None` where addresses are not managed.
    pub(super) fn new_nic(&mut self, network: &str) -> Option<NicRecord> {
        self.addresses += 1;
        let number = self.addresses;
        let found = self.catalogue.networks.iter().find(|own| own["id"] == network)?;
        let is_managed = found["type"] != "L2";
        let address = is_managed.then(|| {
            let free = self.catalogue.free_addresses.get_mut(network);
            if let Some(free) = free {
                *free = free.saturating_sub(1);
            }
            format!("10.1.{}.{}", (number / 250) % 250, 2 + number % 250)
        });
        let bound = found["state"] == "Implemented" || found["type"] == "Shared";
        Some(NicRecord {
            bound,
            id: new_id(),
            network: network.to_owned(),
            address,
            mac: format!("02:02:00:{:02x}:{:02x}:01", (number >> 8) & 0xff, number & 0xff),
        })
    }

    pub(super) fn add_nic(&mut self, machine: &str, network: &str) {
        if let Some(nic) = self.new_nic(network)
            && let Some(machine) = self.machine_mut(machine)
        {
            machine.nics.push(nic);
        }
    }

    pub(super) fn has_free_address(&self, network: &str) -> bool {
        self.catalogue.free_addresses.get(network).is_none_or(|free| *free > 0)
    }

    pub(super) fn attach_foreign_volume(&mut self, machine: &str, name: &str, now: Timestamp) {
        let Some(found) = self.machine(machine).cloned() else {
            return;
        };
        let attached = self.volumes.iter();
        let attached = attached.filter(|own| own.machine.as_deref() == Some(machine));
        let taken: Vec<i64> = attached.map(|own| own.device).collect();
        let device = (1..).find(|own| *own != CD_ROM && !taken.contains(own));
        self.volumes.push(Volume {
            id: new_id(),
            name: name.to_owned(),
            is_root: false,
            account: found.account,
            project: found.project,
            zone: found.zone,
            machine: Some(machine.to_owned()),
            device: device.unwrap_or_default(),
            size: 3,
            offering: None,
            created: now,
            attached: None,
            is_on_storage: true,
            tags: Vec::new(),
            fate: VolumeFate::Kept,
        });
    }

    /// What an account, or a project, uses of each limited resource.
    pub(super) fn usage(&self, owner: (&str, Option<&str>)) -> BTreeMap<&'static str, i64> {
        let mut used = BTreeMap::from([
            ("user_vm", 0),
            ("cpu", 0),
            ("memory", 0),
            ("volume", 0),
            ("primary_storage", 0),
        ]);
        let counted = |machine: &&Machine| {
            !machine.removed && !matches!(machine.state, MachineState::Error) && !machine.state.is_hidden()
        };
        let is_own = |account: &str, project: &Option<String>| match owner.1 {
            Some(wanted) => project.as_deref() == Some(wanted),
            None => project.is_none() && account == owner.0,
        };
        for machine in self.machines.iter().filter(counted) {
            if is_own(&machine.account, &machine.project) {
                *used.entry("user_vm").or_default() += 1;
                *used.entry("cpu").or_default() += machine.cpu;
                *used.entry("memory").or_default() += machine.memory;
                let does = match machine.state {
                    MachineState::Running => "running",
                    _ => "stopped",
                };
                *used.entry(does).or_default() += 1;
            }
        }
        for volume in self.volumes.iter().filter(|own| own.fate == VolumeFate::Kept) {
            if is_own(&volume.account, &volume.project) {
                *used.entry("volume").or_default() += 1;
                *used.entry("primary_storage").or_default() += volume.size;
            }
        }
        used
    }

    /// A host of the zone that takes the machine.
    pub(super) fn place(&self, machine: &Machine) -> Result<String, Placement> {
        if self.settings.sold_out {
            return Err(Placement::Full);
        }
        let offering = self.catalogue.offering(&machine.offering);
        let template = self
            .catalogue
            .templates
            .iter()
            .find(|own| own["id"] == machine.template.as_str());
        let tags: Vec<&str> = offering
            .and_then(|own| own["hosttags"].as_str())
            .into_iter()
            .flat_map(|tags| tags.split(','))
            .chain(template.and_then(|own| own["templatetag"].as_str()))
            .collect();
        let apart: Vec<&AffinityRecord> = self
            .affinity_groups
            .iter()
            .filter(|own| machine.affinity_groups.contains(&own.id) && own.kind == "host anti-affinity")
            .collect();
        let mut tagged = false;
        let mut room = false;
        for host in self.hosts.iter().filter(|own| own.zone == machine.zone) {
            if !tags.iter().all(|tag| host.tags.iter().any(|own| own == tag)) {
                continue;
            }
            tagged = true;
            let (mut mhz, mut memory) = (0, 0);
            let mut shared = false;
            for other in self
                .machines
                .iter()
                .filter(|own| own.host.as_deref() == Some(&host.id) && own.id != machine.id)
            {
                mhz += other.cpu * other.cpu_speed;
                memory += other.memory;
                shared |= apart.iter().any(|group| other.affinity_groups.contains(&group.id));
            }
            if mhz + machine.cpu * machine.cpu_speed > host.mhz || memory + machine.memory > host.memory {
                continue;
            }
            room = true;
            if !shared {
                return Ok(host.id.clone());
            }
        }
        Err(match (tagged, room) {
            (false, _) => Placement::NoTaggedHost,
            (true, true) => Placement::Affinity,
            (true, false) => Placement::Full,
        })
    }

    /// Removes a machine and everything that only it had.
    pub(super) fn expunge(&mut self, id: &str, now: Timestamp) {
        let Some(machine) = self.machine_mut(id) else { return };
        machine.removed = true;
        machine.host = None;
        machine.state = MachineState::Expunging;
        machine.updated = Some(now);
        let nics = std::mem::take(&mut machine.nics);
        for nic in nics {
            if let Some(free) = self.catalogue.free_addresses.get_mut(&nic.network) {
                *free += 1;
            }
        }
        for volume in &mut self.volumes {
            if volume.machine.as_deref() == Some(id) {
                volume.machine = None;
                if volume.is_root {
                    volume.fate = VolumeFate::Gone;
                }
            }
        }
    }

    /// The value of a settings-like flag of a zone.
    pub(super) fn zone(&self, id: &str) -> Option<&Value> {
        self.catalogue.zones.iter().find(|own| own["id"] == id)
    }
}

/// Why no host takes a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    Full,
    NoTaggedHost,
    Affinity,
}

pub(super) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

/// The server's way to write a moment.
pub(super) fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string()
}
