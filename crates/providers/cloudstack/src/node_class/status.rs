//! What was found out about a class: resolved resources and conditions.

use karpenter_api::{conditions::Condition, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const CREDENTIALS_READY: &str = "CredentialsReady";
pub const ZONE_READY: &str = "ZoneReady";
pub const NETWORK_READY: &str = "NetworkReady";
pub const TEMPLATE_READY: &str = "TemplateReady";
pub const OFFERINGS_READY: &str = "OfferingsReady";
pub const SECURITY_GROUPS_READY: &str = "SecurityGroupsReady";
pub const AFFINITY_GROUPS_READY: &str = "AffinityGroupsReady";
pub const STORAGE_READY: &str = "StorageReady";
pub const BOOTSTRAP_READY: &str = "BootstrapReady";

/// Everything that `Ready` sums up.
pub const CONDITIONS: [&str; 9] = [
    CREDENTIALS_READY,
    ZONE_READY,
    NETWORK_READY,
    TEMPLATE_READY,
    OFFERINGS_READY,
    SECURITY_GROUPS_READY,
    AFFINITY_GROUPS_READY,
    STORAGE_READY,
    BOOTSTRAP_READY,
];

/// Longer lists are cut in the status; the provider itself knows all of them.
pub const MOST_LISTED: usize = 100;

/// What the selectors of the class found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct CloudStackNodeClassStatus {
    /// The zones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneStatus>,
    /// The networks that the first NIC may be in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStatus>,
    /// The networks of further NICs, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_networks: Vec<NetworkStatus>,
    /// The service offerings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_offerings: Vec<OfferingStatus>,
    /// The templates, newest first in each zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<TemplateStatus>,
    /// The security groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<NamedStatus>,
    /// The affinity groups that exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinity_groups: Vec<NamedStatus>,
    /// The disk offerings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk_offerings: Vec<NamedStatus>,
    /// How many templates were found, also those that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_count: Option<i64>,
    /// How many service offerings were found, also those that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering_count: Option<i64>,
    /// The names of the SSH key pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_key_pairs: Vec<String>,
    /// The project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<NamedStatus>,
    /// Whether machines can be made with the class, and what stands in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ZoneStatus {
    /// The UUID.
    pub id: String,
    /// The name.
    pub name: String,
    /// Advanced or Basic.
    #[serde(default)]
    pub network_type: String,
    /// Whether security groups apply.
    #[serde(default)]
    pub security_groups_enabled: bool,
}

/// A network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NetworkStatus {
    /// The UUID.
    pub id: String,
    /// The name.
    pub name: String,
    /// Name of its zone.
    pub zone: String,
    /// UUID of its zone.
    #[serde(default, rename = "zoneID")]
    pub zone_id: String,
    /// Isolated, Shared or L2.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// The VPC that it is a tier of.
    #[serde(default, rename = "vpcID", skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// Whether machines can be made in it now.
    #[serde(default)]
    pub can_use_for_deploy: bool,
    /// What it does for machines, such as UserData.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
}

/// A service offering.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct OfferingStatus {
    /// The UUID.
    pub id: String,
    /// The name at CloudStack.
    pub name: String,
    /// vCPUs; absent for custom offerings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_number: Option<i64>,
    /// MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_speed: Option<i64>,
    /// MiB; absent for custom offerings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<i64>,
    /// Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_rate: Option<i64>,
    /// Whether its size is chosen by customOfferings.
    #[serde(default)]
    pub customized: bool,
    /// on-demand or spot.
    #[serde(default)]
    pub capacity_type: String,
    /// The value of node.kubernetes.io/instance-type; absent for custom offerings, which have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// GPUs of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<i64>,
    /// The card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_name: Option<String>,
    /// Names of the zones where machines of it can be made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// What a machine is worth per hour; of a custom offering, the smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
}

/// A template in a zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct TemplateStatus {
    /// The UUID.
    pub id: String,
    /// The name.
    pub name: String,
    /// The OS type.
    #[serde(default)]
    pub os_type: String,
    /// Name of the zone.
    pub zone: String,
    /// UUID of the zone.
    #[serde(default, rename = "zoneID")]
    pub zone_id: String,
    /// The architecture, as Kubernetes names it.
    #[serde(default)]
    pub arch: String,
    /// When it came into the zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// What a claim must allow for machines to boot from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<TemplateRequirement>,
}

/// Values of a label that a template stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct TemplateRequirement {
    /// The label.
    pub key: String,
    /// Its values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Something with an id and a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NamedStatus {
    /// The UUID.
    pub id: String,
    /// The name.
    pub name: String,
}
