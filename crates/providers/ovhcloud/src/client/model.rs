//! The objects of the API, as they are sent and received.
//!
//! Unknown fields are ignored and unknown states kept as text: OVHcloud's own clients do not agree on the lists.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

/// A managed Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    pub id: String,
    pub name: String,
    pub region: String,
    pub plan: Option<String>,
    pub version: String,
    pub status: String,
    pub update_policy: Option<String>,
}

/// Whether anything may be changed in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterClass {
    Open,
    /// It is being worked on: launches are tried, but nothing is tidied up.
    Transient,
    /// Suspended or on its way out: nothing is written.
    Closed,
}

/// A node pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    pub id: String,
    pub name: String,
    pub flavor: String,
    pub desired_nodes: u32,
    pub min_nodes: u32,
    pub max_nodes: u32,
    pub autoscale: bool,
    pub monthly_billed: bool,
    pub anti_affinity: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub availability_zones: Vec<String>,
    pub attach_floating_ips: Option<FloatingIps>,
    pub template: Option<Template>,
    pub status: String,
    pub current_nodes: u32,
    pub created_at: Option<Timestamp>,
    pub updated_at: Option<Timestamp>,
}

/// What a pool's state allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolClass {
    Usable,
    /// Upgraded, redeployed or maintained right now.
    Busy,
    Quota,
    Failing,
    /// Being deleted or suspended.
    Gone,
}

/// The request for a new pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPool {
    pub name: String,
    pub flavor_name: String,
    pub desired_nodes: u32,
    pub min_nodes: u32,
    pub max_nodes: u32,
    pub autoscale: bool,
    pub monthly_billed: bool,
    pub anti_affinity: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub availability_zones: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach_floating_ips: Option<FloatingIps>,
    pub template: Template,
}

/// A change of a pool; what is `None` stays. Sizes are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUpdate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_nodes: Option<u32>,
    /// The nodes that go when `desired_nodes` falls. Without it the newest go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes_to_remove: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloatingIps {
    pub enabled: bool,
}

/// What every Node of a pool starts with. If sent at all, it must be sent complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Template {
    pub metadata: TemplateMetadata,
    pub spec: TemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateMetadata {
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateSpec {
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<TemplateTaint>,
    pub unschedulable: bool,
}

/// All three fields are required; a taint without a value has an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateTaint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// A machine of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolNode {
    pub id: String,
    /// Unknown until the virtual machine exists.
    pub instance_id: Option<String>,
    pub node_pool_id: String,
    pub name: String,
    pub flavor: String,
    pub status: String,
    pub created_at: Option<Timestamp>,
    pub updated_at: Option<Timestamp>,
}

/// What a node's state means for its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeClass {
    Creating,
    Live,
    Going,
    Gone,
    /// Will never come: out of stock.
    OutOfStock,
    /// Will never come: over quota.
    OverQuota,
    /// Broken: never came if it is not bound, unhealthy if it is.
    Broken,
    /// A webhook of the user keeps the service from working; keep waiting.
    Blocked,
}

/// A flavor as the Kubernetes endpoints list it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Flavor {
    pub name: String,
    /// One letter.
    pub category: String,
    pub state: String,
    #[serde(rename = "vCPUs")]
    pub vcpus: u32,
    pub gpus: u32,
    /// In GiB.
    pub ram: u32,
}

/// A flavor as the project lists it; needs a right beyond the minimum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectFlavor {
    /// What some Nodes carry as their instance type.
    pub id: String,
    pub name: String,
    pub region: String,
    /// In GB.
    pub disk: u32,
    pub os_type: String,
    pub available: bool,
}

/// A region; needs a right beyond the minimum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Region {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "null_is_default")]
    pub availability_zones: Vec<String>,
}

/// What is left of a project's quota in a region; needs a right beyond the minimum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Quota {
    pub instance: InstanceQuota,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceQuota {
    pub max_cores: u32,
    pub used_cores: u32,
    pub max_instances: u32,
    pub used_instances: u32,
}

/// The key in use: its expiry and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CurrentCredential {
    pub expiration: Option<Timestamp>,
    pub rules: Vec<AccessRule>,
    #[serde(rename = "allowedIPs", deserialize_with = "null_is_default")]
    pub allowed_ips: Vec<String>,
}

/// What a key may call; every `*` in the path stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessRule {
    pub method: String,
    pub path: String,
}

impl Cluster {
    pub fn class(&self) -> ClusterClass {
        match self.status.as_str() {
            "SUSPENDING" | "SUSPENDED" | "RESETTING" | "DELETING" | "DELETED" => ClusterClass::Closed,
            "UPDATING" | "REDEPLOYING" | "MAINTENANCE" | "INSTALLING" | "REOPENING" => ClusterClass::Transient,
            // The others describe the last operation, not the ability to act.
            _ => ClusterClass::Open,
        }
    }

    /// Whether the plan is the one with three zones, floating addresses and replacing upgrades.
    pub fn is_standard(&self) -> bool {
        self.plan
            .as_deref()
            .is_some_and(|plan| plan.eq_ignore_ascii_case("standard"))
    }
}

impl Pool {
    pub fn class(&self) -> PoolClass {
        match self.status.as_str() {
            "UPDATING" | "REDEPLOYING" | "MAINTENANCE" | "REOPENING" | "RESETTING" => PoolClass::Busy,
            "USER_QUOTA_ERROR" => PoolClass::Quota,
            "ERROR"
            | "USER_ERROR"
            | "USER_NODE_NOT_FOUND_ERROR"
            | "USER_NODE_SUSPENDED_SERVICE"
            | "USER_WEBHOOK_PREVENTING_OPERATIONS_ERROR" => PoolClass::Failing,
            "DELETING" | "DELETED" | "SUSPENDING" | "SUSPENDED" => PoolClass::Gone,
            _ => PoolClass::Usable,
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.template.as_ref()?.metadata.labels.get(key).map(String::as_str)
    }

    /// The zone it says; pools of one-zone regions say none.
    pub fn zone(&self) -> Option<&str> {
        self.availability_zones.first().map(String::as_str)
    }
}

impl PoolNode {
    pub fn class(&self) -> NodeClass {
        match self.status.as_str() {
            "INSTALLING" => NodeClass::Creating,
            "DELETING" => NodeClass::Going,
            "DELETED" => NodeClass::Gone,
            "FLAVOR_OUT_OF_STOCK_ERROR" => NodeClass::OutOfStock,
            "USER_QUOTA_ERROR" => NodeClass::OverQuota,
            "ERROR" | "USER_ERROR" | "USER_NODE_NOT_FOUND_ERROR" => NodeClass::Broken,
            "USER_WEBHOOK_PREVENTING_OPERATIONS_ERROR" => NodeClass::Blocked,
            _ => NodeClass::Live,
        }
    }

    /// What its Node has as `spec.providerID`, once the machine exists.
    pub fn provider_id(&self) -> Option<String> {
        let id = self.instance_id.as_deref().filter(|id| !id.is_empty())?;
        Some(provider_id(id))
    }
}

impl Flavor {
    pub fn is_available(&self) -> bool {
        self.state == "available"
    }
}

const PROVIDER_PREFIX: &str = "openstack:///";

pub fn provider_id(instance_id: &str) -> String {
    format!("{PROVIDER_PREFIX}{instance_id}")
}

/// The instance behind a provider ID; `None` if it is not one of this cloud's, or names nothing.
pub fn instance_id(provider_id: &str) -> Option<&str> {
    provider_id.strip_prefix(PROVIDER_PREFIX).filter(|id| !id.is_empty())
}

fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_and_unknown_fields_and_states_are_accepted() {
        let pool: Pool = serde_json::from_value(json!({
            "id": "p", "name": "n", "flavor": "b3-8", "desiredNodes": 1, "status": "FOO", "sizeStatus": "BAR",
            "availabilityZones": null, "attachFloatingIps": null, "template": {"metadata": {"labels": null}},
            "autoscaling": {"scaleDownUtilizationThreshold": 0.5}, "createdAt": "2026-01-01T00:00:00Z",
        }))
        .expect("a pool");
        assert_eq!(pool.class(), PoolClass::Usable);
        let node: PoolNode =
            serde_json::from_value(json!({"id": "a", "instanceId": null, "status": "FOO", "ip": "x"})).expect("a node");
        assert_eq!((node.class(), node.provider_id()), (NodeClass::Live, None));
        let flavor: Flavor =
            serde_json::from_value(json!({"name": "z9-1", "category": "z", "vCPUs": 4, "ram": 8})).expect("a flavor");
        assert_eq!((flavor.vcpus, flavor.ram, flavor.is_available()), (4, 8, false));
    }

    #[test]
    fn a_new_pool_is_sent_with_the_apis_spelling_and_a_complete_template() {
        let pool = NewPool {
            name: "karpenter-b3-16-eu-west-par-a-9f31c0de-0".into(),
            flavor_name: "b3-16".into(),
            desired_nodes: 3,
            min_nodes: 0,
            max_nodes: 100,
            autoscale: false,
            monthly_billed: false,
            anti_affinity: false,
            availability_zones: vec!["eu-west-par-a".into()],
            attach_floating_ips: None,
            template: Template {
                spec: TemplateSpec {
                    taints: vec![TemplateTaint {
                        key: "dedicated".into(),
                        value: String::new(),
                        effect: "NoSchedule".into(),
                    }],
                    unschedulable: false,
                },
                ..Template::default()
            },
        };
        assert_eq!(
            serde_json::to_value(&pool).expect("JSON"),
            json!({
                "name": "karpenter-b3-16-eu-west-par-a-9f31c0de-0", "flavorName": "b3-16", "desiredNodes": 3,
                "minNodes": 0, "maxNodes": 100, "autoscale": false, "monthlyBilled": false, "antiAffinity": false,
                "availabilityZones": ["eu-west-par-a"],
                "template": {
                    "metadata": {"labels": {}, "annotations": {}, "finalizers": []},
                    "spec": {
                        "taints": [{"key": "dedicated", "value": "", "effect": "NoSchedule"}], "unschedulable": false,
                    },
                },
            })
        );
    }

    #[test]
    fn a_provider_id_is_the_prefix_and_something_after_it() {
        assert_eq!(instance_id("openstack:///abc"), Some("abc"));
        assert_eq!(instance_id("openstack:///"), None);
        assert_eq!(instance_id("aws:///i-1"), None);
    }
}
