//! Terms that select what CloudStack has: fields of a term are ANDed, terms are ORed.

use std::collections::BTreeMap;

use karpenter_api::schema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CapacityType;

/// Selects networks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NetworkTerm {
    /// The UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags that must be there; * stands for any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = [
        schema::rule("self.all(k, k != '' && self[k] != '')", "empty tag keys or values aren't supported"),
    ]))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The VPC that the network is a tier of.
    #[serde(default, rename = "vpcID", skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// Isolated, Shared or L2.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<NetworkType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum NetworkType {
    Isolated,
    Shared,
    L2,
}

/// Selects service offerings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct OfferingTerm {
    /// The UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name at CloudStack, which is not always the label of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Service offerings cannot be tagged: these match their details, host tags and storage tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = [
        schema::rule("self.all(k, k != '' && self[k] != '')", "empty tag keys or values aren't supported"),
    ]))]
    pub tags: Option<BTreeMap<String, String>>,
    /// A regular expression that the whole name matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub name_regex: Option<String>,
    /// Host tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub host_tags: Option<Vec<String>>,
    /// Storage tags that must all be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub storage_tags: Option<Vec<String>>,
    /// At least this many vCPUs.
    #[serde(default, rename = "minCPU", skip_serializing_if = "Option::is_none")]
    pub min_cpu: Option<i64>,
    /// At most this many vCPUs.
    #[serde(default, rename = "maxCPU", skip_serializing_if = "Option::is_none")]
    pub max_cpu: Option<i64>,
    /// At least this much memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory: Option<i64>,
    /// At most this much memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<i64>,
    /// Spot says that machines of these offerings may be reclaimed; CloudStack itself has no such product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
}

/// Selects templates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct TemplateTerm {
    /// The UUID. Machines of a template selected so do not drift when a newer one appears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags that must be there; * stands for any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = [
        schema::rule("self.all(k, k != '' && self[k] != '')", "empty tag keys or values aren't supported"),
    ]))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The OS type, by name or UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_type: Option<String>,
    /// The architecture, as Kubernetes names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// Only the newest template that this term matches, per zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Arch {
    Amd64,
    Arm64,
    S390x,
}

/// Selects security groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct SecurityGroupTerm {
    /// The UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags that must be there; * stands for any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// One more NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct AdditionalNetwork {
    /// Which network; the first match, by name, is taken in each zone.
    #[schemars(length(min = 1, max = 30))]
    pub selector_terms: Vec<NetworkTerm>,
    /// Whether a zone without such a network is left out. True if unset; otherwise machines there go without the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
}

/// Sizes of a custom service offering.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.memoryMiB) != has(self.ratios)", "exactly one of memoryMiB and ratios must be set"),
]))]
pub struct CustomOffering {
    /// The offering, by name or UUID; every selected custom offering if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
    /// Numbers of vCPUs.
    #[schemars(length(min = 1, max = 50))]
    pub cpu: Vec<i64>,
    /// Amounts of memory, in MiB; each is combined with each number of vCPUs.
    #[serde(default, rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 50))]
    pub memory_mib: Option<Vec<i64>>,
    /// MiB of memory per vCPU, instead of memoryMiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 50))]
    pub ratios: Option<Vec<i64>>,
    /// In MHz, where the offering leaves it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_speed: Option<i64>,
}

impl Arch {
    pub fn label(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
            Self::S390x => "s390x",
        }
    }
}

impl NetworkType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Isolated => "Isolated",
            Self::Shared => "Shared",
            Self::L2 => "L2",
        }
    }
}

impl AdditionalNetwork {
    pub fn is_required(&self) -> bool {
        self.required.unwrap_or(true)
    }
}
