//! A virtual machine as the simulator keeps it.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// A virtual machine, or what is left of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub id: String,
    /// The server's own number.
    pub number: u64,
    pub name: String,
    pub display_name: String,
    pub account: String,
    pub project: Option<String>,
    pub zone: String,
    pub template: String,
    pub offering: String,
    pub cpu: i64,
    pub cpu_speed: i64,
    /// MiB.
    pub memory: i64,
    pub nics: Vec<NicRecord>,
    /// As stored; ordinary users do not see all of them.
    pub details: BTreeMap<String, String>,
    pub tags: Vec<(String, String)>,
    pub group: Option<String>,
    pub affinity_groups: Vec<String>,
    pub security_groups: Vec<String>,
    pub key_pairs: Vec<String>,
    pub user_data: Option<String>,
    /// Its id, and the values of its variables.
    pub registered_user_data: Option<(String, String)>,
    pub boot: Option<(String, String)>,
    pub state: MachineState,
    pub created: Timestamp,
    pub updated: Option<Timestamp>,
    pub host: Option<String>,
    /// When it first ran.
    pub first_ran: Option<Timestamp>,
    pub delete_protection: bool,
    /// When the server stops it, if its offering has a lease that the deploy did not decline.
    pub lease_ends: Option<Timestamp>,
    /// Expunged: only its id still resolves.
    pub removed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicRecord {
    pub id: String,
    pub network: String,
    pub address: Option<String>,
    pub mac: String,
    /// Whether the network lent it its VLAN, which it does while the machine runs.
    pub bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineState {
    Stopped,
    Starting,
    Running,
    Stopping,
    Error,
    Destroyed,
    Expunging,
}

impl MachineState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "Stopped",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Error => "Error",
            Self::Destroyed => "Destroyed",
            Self::Expunging => "Expunging",
        }
    }

    /// Gone as far as an ordinary user can see.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Destroyed | Self::Expunging)
    }
}

impl Machine {
    /// Whether it exists and was not told to go.
    pub fn is_live(&self) -> bool {
        !self.removed && !self.state.is_hidden() && self.state != MachineState::Error
    }
}

/// Details that only root administrators are shown.
pub(super) const HIDDEN_DETAILS: [&str; 2] = ["rootdisksize", "Message.ReservedCapacityFreed.Flag"];

/// A disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) is_root: bool,
    pub(super) account: String,
    pub(super) project: Option<String>,
    pub(super) zone: String,
    pub(super) machine: Option<String>,
    pub(super) device: i64,
    /// GiB.
    pub(super) size: i64,
    pub(super) offering: Option<String>,
    pub(super) created: Timestamp,
    pub(super) attached: Option<Timestamp>,
    /// Whether it was ever written to.
    pub(super) is_on_storage: bool,
    pub(super) tags: Vec<(String, String)>,
    pub(super) fate: VolumeFate,
}

/// How far a disk is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum VolumeFate {
    #[default]
    Kept,
    /// Deleted, but still listed.
    Destroyed,
    Gone,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct AffinityRecord {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) description: Option<String>,
    pub(super) account: String,
    pub(super) project: Option<String>,
}
