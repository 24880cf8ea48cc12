//! Where machines run and with which firmware.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Groups by which machines are kept together on hosts, or apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct AffinityGroups {
    /// Groups that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30))]
    pub selector_terms: Option<Vec<AffinityGroupTerm>>,
    /// A group that is made when it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedAffinityGroup>,
}

/// Selects affinity groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct AffinityGroupTerm {
    /// The UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The type, such as host anti-affinity.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A group that is made when it is needed, and deleted with the class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ManagedAffinityGroup {
    /// The type of the group; non-strict host anti-affinity if unset.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<AffinityType>,
    /// Which machines share a group. NodePool if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<AffinityScope>,
    /// A new group is started when this many machines are in one; 0 is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub max_size: Option<i64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AffinityType {
    #[serde(rename = "host affinity")]
    HostAffinity,
    #[serde(rename = "host anti-affinity")]
    HostAntiAffinity,
    #[serde(rename = "non-strict host affinity")]
    NonStrictHostAffinity,
    #[default]
    #[serde(rename = "non-strict host anti-affinity")]
    NonStrictHostAntiAffinity,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AffinityScope {
    #[default]
    NodePool,
    NodeClass,
    Cluster,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BootType {
    #[serde(rename = "BIOS")]
    Bios,
    #[serde(rename = "UEFI")]
    Uefi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BootMode {
    Legacy,
    Secure,
}

/// Pins machines to infrastructure. Root administrators only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Placement {
    /// A host.
    #[serde(default, rename = "hostID", skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// A cluster of hosts.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// A pod of clusters.
    #[serde(default, rename = "podID", skip_serializing_if = "Option::is_none")]
    pub pod_id: Option<String>,
    /// The planner that chooses the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_planner: Option<String>,
}

/// Knobs of the hypervisor; unset is the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Tuning {
    /// Whether cpu and memory may change while the machine runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_scaling: Option<bool>,
    /// Whether disks get threads of their own.
    #[serde(default, rename = "ioThreads", skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<bool>,
    /// native, threads, io_uring or storage_specific.
    #[serde(default, rename = "ioDriverPolicy", skip_serializing_if = "Option::is_none")]
    pub io_driver_policy: Option<String>,
    /// Number of queues of each NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_multiqueue: Option<i64>,
    /// Whether NICs use packed virtqueues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_packed_virtqueues: Option<bool>,
}

impl AffinityType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostAffinity => "host affinity",
            Self::HostAntiAffinity => "host anti-affinity",
            Self::NonStrictHostAffinity => "non-strict host affinity",
            Self::NonStrictHostAntiAffinity => "non-strict host anti-affinity",
        }
    }
}

impl BootType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bios => "BIOS",
            Self::Uefi => "UEFI",
        }
    }
}

impl BootMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "Legacy",
            Self::Secure => "Secure",
        }
    }
}
