//! OVHNodeClass: which cluster the nodes are for, and what its node pools shall be like.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use std::{collections::BTreeMap, time::Duration};

use karpenter_api::{
    ResourceList,
    conditions::{Condition, StatusConditions},
    crd::Crd,
    duration::GoDuration,
    schema,
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

/// How node pools of an OVHcloud Managed Kubernetes cluster are made.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.ovhcloud.sh",
    version = "v1alpha1",
    kind = "OVHNodeClass",
    root = "OvhNodeClass",
    plural = "ovhnodeclasses",
    singular = "ovhnodeclass",
    doc = "OVHNodeClass says how Karpenter makes nodes in an OVHcloud Managed Kubernetes cluster.",
    status = "OvhNodeClassStatus",
    category = "karpenter",
    shortname = "ovhnc",
    shortname = "ovhncs",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Region", type_ = "string", json_path = ".status.cluster.region"),
    printcolumn(name = "Monthly", type_ = "boolean", json_path = ".spec.monthlyBilled", priority = 1),
    printcolumn(name = "Pools", type_ = "integer", json_path = ".status.pools.owned"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("default" = json!({}), "x-kubernetes-validations" = [
    schema::rule(
        "!has(self.maxNodesPerPool) || !has(self.antiAffinity) || !self.antiAffinity || self.maxNodesPerPool <= 5",
        "a node pool with antiAffinity holds at most 5 nodes; lower maxNodesPerPool",
    ),
]))]
pub struct OvhNodeClassSpec {
    /// The Public Cloud project. Unset is what the controller was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-f0-9]{32}$"))]
    pub service_name: Option<String>,
    /// The cluster. Unset is found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub kube_id: Option<String>,
    /// The region, as a check only: it must be the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub region: Option<String>,
    /// The API to use. Unset is what the controller was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ovh-eu", "ovh-ca", "ovh-us"]))]
    pub endpoint: Option<String>,
    /// The Secret with the API credentials. Unset is the controller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
    /// Whether nodes are billed by the month. Only flavors of generation 2 (b2, c2, d2, r2) can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly_billed: Option<bool>,
    /// Whether the nodes of a node pool are kept on different hypervisors; such pools hold at most 5 nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anti_affinity: Option<bool>,
    /// Labels that every node starts with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "tags")]
    pub tags: BTreeMap<String, String>,
    /// The zones to use. Unset is all of the region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "zones")]
    pub availability_zones: Vec<String>,
    /// Whether every node gets a public IPv4 address. Needs the Standard plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_floating_ips: Option<AttachFloatingIps>,
    /// The most nodes that a node pool is filled with; a smaller number limits what one pool's failure takes down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 999))]
    pub max_nodes_per_pool: Option<u32>,
    /// What the kubelet keeps for itself, where the estimate is wrong. MKS decides the real value.
    #[serde(default, skip_serializing_if = "is_empty")]
    #[schemars(schema_with = "reserved")]
    pub kube_reserved: ResourceList,
    /// The eviction threshold, where the estimate is wrong. MKS decides the real value.
    #[serde(default, skip_serializing_if = "is_empty")]
    #[schemars(schema_with = "reserved")]
    pub eviction_hard: ResourceList,
    /// How long a node may take to join, 5m to 4h. Unset is 15m, and 90m for flavors with GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule(
            "duration(self) >= duration('5m') && duration(self) <= duration('4h')",
            "registrationTimeout must lie between 5m and 4h",
        ),
    ]))]
    pub registration_timeout: Option<GoDuration>,
}

/// A Secret by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct SecretReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
}

/// Public addresses of nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct AttachFloatingIps {
    /// Whether nodes get one.
    pub enabled: bool,
}

/// What is known about the class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct OvhNodeClassStatus {
    /// Whether nodes can be launched with the class, and what is wrong if not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The flavors that can be had now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub discovered_flavors: Vec<String>,
    /// The cluster that the class resolved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// The zones that nodes are launched in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// How many node pools there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<PoolsStatus>,
    /// The credentials in use, without anything secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialStatus>,
    /// Rights beyond the minimum that the credentials have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub optional_rights: Vec<String>,
    /// Where prices come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pricing: Option<PricingStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct ClusterStatus {
    /// Its id.
    pub kube_id: String,
    /// Its name.
    pub name: String,
    /// Its region.
    pub region: String,
    /// Its plan, free or standard.
    pub plan: String,
    /// Its Kubernetes version.
    pub version: String,
    /// Its state.
    pub status: String,
    /// How MKS updates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_policy: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct PoolsStatus {
    /// Node pools that Karpenter made.
    pub owned: u32,
    /// Node pools of others.
    pub foreign: u32,
    /// How many node pools the cluster may have.
    pub limit: u32,
    /// Nodes wanted in node pools that Karpenter made.
    pub nodes: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct CredentialStatus {
    /// ApplicationKeys, ServiceAccount or AccessToken.
    pub method: String,
    /// When the key expires, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The addresses that the key may be used from, if it is limited to some.
    #[serde(rename = "allowedIPs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_ips: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct PricingStatus {
    /// Whose price list it is.
    pub subsidiary: String,
    /// The currency of the prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// When the price list was last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refreshed_at: Option<String>,
    /// Catalog or Estimate.
    pub source: String,
}

/// The conditions that `Ready` sums up, and those that only inform.
pub mod condition {
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    pub const CREDENTIALS_READY: &str = "CredentialsReady";
    pub const CLUSTER_READY: &str = "ClusterReady";
    pub const FLAVORS_READY: &str = "FlavorsReady";
    pub const PRICING_READY: &str = "PricingReady";
    pub const POOL_CAPACITY_AVAILABLE: &str = "PoolCapacityAvailable";
}

/// Changes when the hash of an unchanged class would.
pub const HASH_VERSION: &str = "v1";
/// The most nodes of a pool with anti-affinity.
pub const ANTI_AFFINITY_NODES: u32 = 5;
const LABEL_DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "karpenter.sh", "karpenter.ovhcloud.sh"];

/// The CRD documents of this provider.
pub fn crds() -> Vec<Crd> {
    vec![Crd::of::<OvhNodeClass>()]
}

impl OvhNodeClass {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl OvhNodeClassSpec {
    pub fn is_monthly(&self) -> bool {
        self.monthly_billed.unwrap_or_default()
    }

    pub fn is_anti_affine(&self) -> bool {
        self.anti_affinity.unwrap_or_default()
    }

    pub fn has_floating_ips(&self) -> bool {
        self.attach_floating_ips.unwrap_or_default().enabled
    }

    /// How many nodes a pool of this class is filled with.
    pub fn pool_cap(&self, default: u32) -> u32 {
        let cap = self.max_nodes_per_pool.unwrap_or(default).max(1);
        if self.is_anti_affine() {
            cap.min(ANTI_AFFINITY_NODES)
        } else {
            cap
        }
    }

    /// A number that changes exactly when pools would have to be made anew.
    pub fn static_hash(&self) -> String {
        let canonical = json!({
            "antiAffinity": self.is_anti_affine(),
            "attachFloatingIps": self.has_floating_ips(),
            "monthlyBilled": self.is_monthly(),
            "tags": self.tags,
        });
        let digest = Sha256::digest(canonical.to_string().as_bytes());
        let bytes: [u8; 8] = digest[..8].try_into().expect("a SHA-256 has 32 bytes");
        u64::from_be_bytes(bytes).to_string()
    }

    /// How long a node may take to join.
    pub fn registration_timeout(&self, has_gpu: bool) -> Duration {
        const USUAL: Duration = Duration::from_secs(15 * 60);
        const WITH_GPU: Duration = Duration::from_secs(90 * 60);
        let default = if has_gpu { WITH_GPU } else { USUAL };
        let own = self
            .registration_timeout
            .map(|own| Duration::try_from(own.as_signed()).unwrap_or(default));
        own.unwrap_or(default)
    }

    /// A tag that would be a label which is not the user's to set.
    pub fn forbidden_tag(&self) -> Option<&str> {
        self.tags.keys().map(String::as_str).find(|key| is_forbidden_tag(key))
    }
}

fn is_empty(amounts: &ResourceList) -> bool {
    amounts.0.is_empty()
}

fn is_forbidden_tag(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return key == "nodepool";
    };
    let within = |own: &str| domain == own || domain.ends_with(&format!(".{own}"));
    LABEL_DOMAINS.into_iter().chain(["ovh"]).any(within)
}

fn tags(_: &mut SchemaGenerator) -> Schema {
    let domain = |domain: &str| {
        let message = format!("label domain {domain} is not for tags; use a domain of your own");
        let pattern = domain.replace('.', "[.]");
        schema::rule(
            &format!("self.all(key, key.find('^([^/]*[.])?{pattern}/') == '')"),
            &message,
        )
    };
    let mut rules: Vec<_> = LABEL_DOMAINS.into_iter().chain(["ovh"]).map(domain).collect();
    rules.push(schema::rule(
        "self.all(key, key != 'nodepool')",
        "label nodepool is set by the service; use another key",
    ));
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": schema::LABEL_VALUE },
        "x-kubernetes-validations": rules,
    })
}

fn zones(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "set",
        "items": { "type": "string", "minLength": 1, "maxLength": 63 },
    })
}

fn reserved(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 3,
        "additionalProperties": {
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": schema::QUANTITY,
            "x-kubernetes-int-or-string": true,
        },
        "x-kubernetes-validations": [
            schema::rule(
                "self.all(key, key in ['cpu', 'memory', 'ephemeral-storage'])",
                "only cpu, memory and ephemeral-storage can be reserved",
            ),
            schema::rule("self.all(key, !string(self[key]).startsWith('-'))", "an amount may not be negative"),
        ],
    })
}

impl StatusConditions for OvhNodeClass {
    const DEPENDENTS: &'static [&'static str] = &[
        condition::VALIDATION_SUCCEEDED,
        condition::CREDENTIALS_READY,
        condition::CLUSTER_READY,
        condition::FLAVORS_READY,
    ];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;

    use super::*;

    fn spec(value: serde_json::Value) -> OvhNodeClassSpec {
        serde_json::from_value(value).expect("a spec")
    }

    #[test]
    fn the_crd_has_its_names_and_no_default_status() {
        let crd = OvhNodeClass::crd();
        assert_eq!(
            crd.metadata.name.as_deref(),
            Some("ovhnodeclasses.karpenter.ovhcloud.sh")
        );
        assert_eq!(crd.spec.names.kind, "OVHNodeClass");
        assert_eq!(crd.spec.names.short_names.expect("short names"), ["ovhnc", "ovhncs"]);
        assert_eq!(crd.spec.scope, "Cluster");
        let own = crds();
        assert!(own[0].schema().pointer("/properties/status/default").is_none());
    }

    #[test]
    fn the_hash_follows_exactly_what_pools_are_made_of() {
        let plain = spec(json!({})).static_hash();
        for same in [
            json!({"monthlyBilled": false, "antiAffinity": false, "tags": {}}),
            json!({"region": "GRA11", "kubeId": "k", "maxNodesPerPool": 7, "availabilityZones": ["a"]}),
            json!({"kubeReserved": {"cpu": "1"}, "registrationTimeout": "30m", "attachFloatingIps": {"enabled": false}}),
        ] {
            assert_eq!(spec(same.clone()).static_hash(), plain, "{same}");
        }
        for other in [
            json!({"monthlyBilled": true}),
            json!({"antiAffinity": true}),
            json!({"tags": {"team": "web"}}),
            json!({"attachFloatingIps": {"enabled": true}}),
        ] {
            assert_ne!(spec(other.clone()).static_hash(), plain, "{other}");
        }
    }

    #[test]
    fn a_pool_with_anti_affinity_holds_five_nodes_at_most() {
        assert_eq!(spec(json!({"antiAffinity": true})).pool_cap(100), 5);
        assert_eq!(
            spec(json!({"antiAffinity": true, "maxNodesPerPool": 3})).pool_cap(100),
            3
        );
        assert_eq!(spec(json!({"maxNodesPerPool": 30})).pool_cap(100), 30);
        assert_eq!(spec(json!({})).pool_cap(100), 100);
    }

    #[test]
    fn tags_may_not_be_labels_of_others() {
        for key in [
            "karpenter.sh/nodepool",
            "node.kubernetes.io/instance-type",
            "x.k8s.io/y",
            "karpenter.ovhcloud.sh/pool-key",
            "node.k8s.ovh/type",
            "nodepool",
        ] {
            assert_eq!(spec(json!({"tags": {key: "x"}})).forbidden_tag(), Some(key));
        }
        for key in ["team", "example.com/nodepool", "mykubernetes.io/x"] {
            assert_eq!(spec(json!({"tags": {key: "x"}})).forbidden_tag(), None, "{key}");
        }
    }

    #[test]
    fn gpus_have_longer_to_join() {
        assert_eq!(spec(json!({})).registration_timeout(false), Duration::from_secs(900));
        assert_eq!(spec(json!({})).registration_timeout(true), Duration::from_secs(5400));
        let own = spec(json!({"registrationTimeout": "30m"}));
        assert_eq!(own.registration_timeout(true), Duration::from_secs(1800));
    }
}
