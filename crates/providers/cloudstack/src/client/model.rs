//! CloudStack's objects, as far as we read them. Every field is optional on the wire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    pub cloudstackversion: Option<String>,
    #[serde(deserialize_with = "number")]
    pub apilimitinterval: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub apilimitmax: Option<i64>,
    pub allowuserexpungerecovervm: bool,
    pub instanceleaseenabled: bool,
    pub securitygroupsenabled: bool,
}

/// The part of a version that features came with, such as 4.21.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Zone {
    pub id: String,
    pub name: String,
    pub networktype: String,
    pub securitygroupsenabled: bool,
    pub allocationstate: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceOffering {
    pub id: String,
    pub name: String,
    pub displaytext: String,
    pub state: String,
    #[serde(deserialize_with = "number")]
    pub cpunumber: Option<i64>,
    /// MHz.
    #[serde(deserialize_with = "number")]
    pub cpuspeed: Option<i64>,
    /// MiB.
    #[serde(deserialize_with = "number")]
    pub memory: Option<i64>,
    pub iscustomized: bool,
    pub issystem: bool,
    pub isvolatile: bool,
    pub serviceofferingdetails: BTreeMap<String, String>,
    /// Comma-separated.
    pub hosttags: Option<String>,
    pub storagetags: Option<String>,
    pub storagetype: Option<String>,
    /// Comma-separated ids of the zones that it is bound to; everywhere if absent.
    pub zoneid: Option<String>,
    /// Mbit/s.
    #[serde(deserialize_with = "number")]
    pub networkrate: Option<i64>,
    /// GiB; 0 is none of its own.
    #[serde(deserialize_with = "number")]
    pub rootdisksize: Option<i64>,
    pub diskofferingstrictness: bool,
    #[serde(deserialize_with = "number")]
    pub gpucount: Option<i64>,
    pub gpucardname: Option<String>,
    pub vgpuprofilename: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DiskOffering {
    pub id: String,
    pub name: String,
    pub state: String,
    /// GiB; 0 for custom ones.
    #[serde(deserialize_with = "number")]
    pub disksize: Option<i64>,
    pub iscustomized: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Template {
    pub id: String,
    pub name: String,
    pub isready: bool,
    pub ostypeid: Option<String>,
    pub ostypename: Option<String>,
    pub hypervisor: Option<String>,
    pub format: Option<String>,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub size: Option<i64>,
    pub created: Option<String>,
    pub zoneid: Option<String>,
    pub zonename: Option<String>,
    pub arch: Option<String>,
    pub tags: Vec<Tag>,
    pub passwordenabled: bool,
    pub templatetag: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Network {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub state: String,
    pub zoneid: String,
    pub vpcid: Option<String>,
    pub canusefordeploy: bool,
    pub traffictype: Option<String>,
    pub service: Vec<NetworkService>,
    pub tags: Vec<Tag>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkService {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AffinityGroup {
    pub id: String,
    pub name: String,
    pub description: Option<String>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "virtualmachineIds")]
    pub virtual_machine_ids: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AffinityGroupType {
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SecurityGroup {
    pub id: String,
    pub name: String,
    pub tags: Vec<Tag>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SshKeyPair {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RegisteredUserData {
    pub id: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Project {
    pub id: String,
    pub name: String,
}

/// What an account or project may still use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Account {
    pub id: String,
    pub name: String,
    pub roletype: Option<String>,
    #[serde(deserialize_with = "number")]
    pub vmavailable: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub cpuavailable: Option<i64>,
    /// MiB.
    #[serde(deserialize_with = "number")]
    pub memoryavailable: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub volumeavailable: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub gpuavailable: Option<i64>,
}

/// How much of something a zone has and uses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Capacity {
    #[serde(rename = "type")]
    pub kind: i64,
    pub zoneid: String,
    pub percentused: String,
}

impl Capacity {
    pub const MEMORY: i64 = 0;
    pub const CPU: i64 = 1;

    pub fn percent(&self) -> f64 {
        self.percentused.trim().parse().unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachine {
    pub id: String,
    pub name: String,
    pub displayname: Option<String>,
    pub account: Option<String>,
    pub projectid: Option<String>,
    pub created: Option<String>,
    pub state: String,
    pub zoneid: String,
    pub zonename: String,
    pub templateid: Option<String>,
    pub templatename: Option<String>,
    pub serviceofferingid: Option<String>,
    pub serviceofferingname: Option<String>,
    #[serde(deserialize_with = "number")]
    pub cpunumber: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub cpuspeed: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub memory: Option<i64>,
    pub hypervisor: Option<String>,
    pub nic: Vec<Nic>,
    pub securitygroup: Vec<NamedRef>,
    pub affinitygroup: Vec<NamedRef>,
    pub details: BTreeMap<String, String>,
    pub tags: Vec<Tag>,
    pub deleteprotection: bool,
    /// Of a job that is pending on this VM.
    pub jobid: Option<String>,
    #[serde(deserialize_with = "number")]
    pub jobstatus: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Nic {
    pub networkid: String,
    pub networkname: Option<String>,
    pub ipaddress: Option<String>,
    pub ip6address: Option<String>,
    pub isdefault: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamedRef {
    pub id: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub zoneid: String,
    pub virtualmachineid: Option<String>,
    #[serde(deserialize_with = "number")]
    pub deviceid: Option<i64>,
    pub state: String,
    pub tags: Vec<Tag>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Tag {
    pub key: String,
    pub value: Option<String>,
}

/// A tariff of the quota plugin.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tariff {
    pub usage_type: i64,
    pub tariff_value: f64,
    pub activation_rule: Option<String>,
    pub effective_date: Option<String>,
    pub end_date: Option<String>,
}

/// An asynchronous job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    pub jobid: String,
    #[serde(deserialize_with = "number")]
    pub jobstatus: Option<i64>,
    #[serde(deserialize_with = "number")]
    pub jobresultcode: Option<i64>,
    pub jobresult: Option<Value>,
    pub jobinstanceid: Option<String>,
    pub cmd: Option<String>,
    pub created: Option<String>,
    pub completed: Option<String>,
}

impl Capabilities {
    /// `None` if the server does not tell, or in a way that we do not know.
    pub fn version(&self) -> Option<Version> {
        let mut parts = self.cloudstackversion.as_deref()?.split(['.', '-']);
        let mut next = || parts.next()?.parse().ok();
        Some(Version {
            major: next()?,
            minor: next()?,
        })
    }
}

impl Version {
    /// From here on a deploy takes several data disks; older servers ignore what they do not know.
    const SEVERAL_DISKS: Self = Self { major: 4, minor: 21 };

    /// Whether a deploy takes all data disks of a machine. A server that does not tell its version may be an old one.
    pub fn takes_several_disks(version: Option<Self>) -> bool {
        version.is_some_and(|own| own >= Self::SEVERAL_DISKS)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl VirtualMachine {
    pub fn tag(&self, key: &str) -> Option<&str> {
        let tag = self.tags.iter().find(|tag| tag.key == key)?;
        tag.value.as_deref()
    }

    pub fn created_at(&self) -> Option<Timestamp> {
        self.created.as_deref().and_then(timestamp)
    }

    /// The NIC that the default route uses, and whose network counts as the VM's.
    pub fn default_nic(&self) -> Option<&Nic> {
        self.nic.iter().find(|nic| nic.isdefault).or_else(|| self.nic.first())
    }

    pub fn has_pending_job(&self) -> bool {
        self.jobid.is_some() && self.jobstatus.unwrap_or_default() == 0
    }
}

impl Template {
    pub fn tag(&self, key: &str) -> Option<&str> {
        let tag = self.tags.iter().find(|tag| tag.key == key)?;
        tag.value.as_deref()
    }

    pub fn created_at(&self) -> Option<Timestamp> {
        self.created.as_deref().and_then(timestamp)
    }
}

impl Network {
    /// Names of what it does for machines.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.service.iter().map(|service| service.name.as_str())
    }

    pub fn has_service(&self, name: &str) -> bool {
        self.service.iter().any(|service| service.name == name)
    }
}

/// Reads `2026-11-15T09:27:46+0000`.
pub fn timestamp(text: &str) -> Option<Timestamp> {
    let time = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text).ok()?;
    time.to_timestamp().ok()
}

/// Numbers also arrive as text, and `Unlimited` is one of them.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)),
        Value::String(text) if text.eq_ignore_ascii_case("unlimited") => Some(i64::MAX),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_servers_dates_have_no_colon_in_the_offset() {
        let read = timestamp("2026-11-15T09:27:46+0000").expect("a date");
        assert_eq!(read.to_string(), "2026-11-15T09:27:46Z");
        assert_eq!(timestamp("2026-11-15T11:27:46+0200"), Some(read));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let of = |text: &str| {
            let capabilities = Capabilities {
                cloudstackversion: Some(text.to_owned()),
                ..Capabilities::default()
            };
            capabilities.version()
        };
        let wanted = Version { major: 4, minor: 21 };
        assert!(of("4.23.0.0-SNAPSHOT") > Some(wanted));
        assert!(of("4.9.3.1").is_some_and(|own| own < wanted));
        assert_eq!(of("unknown"), None);
    }

    #[test]
    fn numbers_may_be_text_and_unlimited() {
        let account: Account =
            serde_json::from_value(json!({"vmavailable": "Unlimited", "cpuavailable": "3", "memoryavailable": 7}))
                .expect("an account");
        assert_eq!(
            (account.vmavailable, account.cpuavailable, account.memoryavailable),
            (Some(i64::MAX), Some(3), Some(7))
        );
    }
}
