//! ProviderConfig: how an account of BizFly Cloud is reached, and what holds for everything launched with it.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

pub mod validation;

use std::collections::BTreeMap;

use karpenter_api::{
    conditions::{Condition, StatusConditions},
    duration::GoDuration,
    schema,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::billing;

/// The connection to an account and account-wide policy.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bizflycloud.karpenter.sh",
    version = "v1alpha1",
    kind = "ProviderConfig",
    plural = "providerconfigs",
    doc = "ProviderConfig says how an account of BizFly Cloud is reached, and what holds for everything launched with it.",
    status = "ProviderConfigStatus",
    category = "karpenter",
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ProviderConfigSpec {
    /// The region to launch in. A zone (HN1, HN2, HCM1) selects its region and is preferred among equally cheap offers.
    #[schemars(extend("enum" = ["HN1", "HN2", "HCM1", "HN", "HCM", "HaNoi", "HoChiMinh"]))]
    pub region: String,
    /// The only zone of NodeClasses that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["HN1", "HN2", "HCM1"]))]
    pub zone: Option<String>,
    /// The Secret with the credentials.
    pub secret_ref: SecretReference,
    /// How servers are tagged.
    #[serde(default)]
    pub tagging: Tagging,
    /// How the API is called.
    #[serde(default)]
    pub cloud_config: CloudConfig,
    /// What NodeClasses that say nothing else launch.
    #[serde(default)]
    pub image_config: ImageConfig,
    /// Whether nodes that are no longer as their NodeClass asks are replaced.
    #[serde(default)]
    pub drift_detection: DriftDetection,
    /// Where prices come from; built-in estimates if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Pricing>,
    /// How much the project may use, servers of everybody counted; what would exceed it is not ordered. Unlimited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// How clusters that share the project divide its quota; first come, first served if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordination: Option<Coordination>,
}

/// How clusters that share a project divide its quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Coordination {
    /// Ledger: each cluster tells the others what it uses and wants by a BizflyCapacityShare in the hub.
    #[schemars(extend("enum" = ["Ledger"]))]
    pub mode: String,
    /// How much of what is scarce this cluster gets, compared with the others.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: u32,
    /// The Secret whose key kubeconfig leads to the hub; this cluster is the hub if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_secret_ref: Option<SecretReference>,
}

fn one() -> u32 {
    1
}

/// How much a project may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Quota {
    /// vCPUs of all servers.
    #[serde(rename = "vCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub vcpu: Option<u64>,
    /// GiB of memory of all servers.
    #[serde(rename = "ramGiB", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub ram_gib: Option<u64>,
    /// How many servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub servers: Option<u64>,
    /// GiB of all disks.
    #[serde(rename = "volumesGiB", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub volumes_gib: Option<u64>,
}

/// A Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1))]
    pub namespace: String,
}

/// Tags of servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Tagging {
    /// Whether servers get more tags than those by which they are recognised as ours.
    pub enable_resource_tags: bool,
    /// What the keys of our tags begin with.
    #[schemars(length(max = 100), regex(pattern = r"^([a-z0-9.-]+/)?$"))]
    pub tag_prefix: String,
    /// More tags of every server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = [schema::rule(
        "self.all(x, !x.startsWith('bke_') && !(x in ['karpenter-managed', 'karpenter-ordered-as', 'bizfly_cloud_service', 'kubernetes_version', 'category', \
         'os_type', 'network_plan', 'billing_plan', 'cluster', 'nodeclaim-uid', 'nodeclaim', 'nodepool', 'nodeclass', 'capacity-type', \
         'version', 'data-disks', 'warm-pool', 'warm-pool-hash']))",
        "a tag is reserved; use another key",
    )]))]
    pub additional_tags: BTreeMap<String, String>,
}

/// How the API is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct CloudConfig {
    /// Where the API is. Plain http is for addresses of this machine only.
    #[schemars(regex(pattern = r"^(https://[^?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?(/[^?#]*)?)$"))]
    pub api_endpoint: String,
    /// How often a call is tried in total.
    #[schemars(range(min = 1, max = 10))]
    pub retry_max_attempts: u32,
    /// The pause before the second try, up to 60s; it doubles with every further one.
    #[schemars(extend("maxLength" = 32, "x-kubernetes-validations" = [schema::rule(
        "duration(self) > duration('0s') && duration(self) <= duration('60s')", "must be more than 0s and at most 60s",
    )]))]
    pub retry_initial_delay: GoDuration,
    /// How long one try may take, 1s to 5m.
    #[schemars(extend("maxLength" = 32, "x-kubernetes-validations" = [schema::rule(
        "duration(self) >= duration('1s') && duration(self) <= duration('5m')", "must be between 1s and 5m",
    )]))]
    pub timeout: GoDuration,
    /// Calls per second.
    #[schemars(range(min = 0.1, max = 1000))]
    pub qps: f64,
    /// Calls at once.
    #[schemars(range(min = 1, max = 1000))]
    pub burst: u32,
    /// Token: log in and use tokens. Header: send the application credential with every call.
    #[schemars(extend("enum" = ["Token", "Header"]))]
    pub auth_mode: String,
}

/// Defaults for NodeClasses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct ImageConfig {
    /// An image by id or alias, for NodeClasses that choose none.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// The SSH key pair of NodeClasses that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_key_name: Option<String>,
    /// GB of the root disk of NodeClasses that say nothing. The cloud's minimum is 20; less is raised to that.
    #[schemars(range(min = 10, max = 1000))]
    pub root_disk_size: u32,
    /// Whether servers of NodeClasses that do not say get a public IPv6 address.
    #[serde(rename = "enableIPv6")]
    pub enable_ipv6: bool,
    /// User data of NodeClasses that have none; a cloud-config document is merged with the NodeClass's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_template: Option<String>,
}

/// Drift of running servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct DriftDetection {
    /// Whether servers are compared with their NodeClass at all.
    pub enabled: bool,
    /// A server is compared at most once in this time.
    pub reconcile_interval: GoDuration,
    /// If false, drift is logged and counted but nodes are not replaced.
    pub auto_remediate: bool,
}

/// Where prices come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("self.source != 'ConfigMap' || has(self.configMapRef)", "source ConfigMap needs configMapRef"),
    schema::rule("self.source != 'Static' || !has(self.configMapRef)", "source Static uses no configMapRef; choose ConfigMap or BillingAPI"),
    schema::rule("self.source == 'BillingAPI' || !has(self.billingEndpoint)", "billingEndpoint needs source BillingAPI"),
]))]
pub struct Pricing {
    /// Static: built-in estimates. ConfigMap: prices that you write. BillingAPI: the vendor's list of plans, as far as it can be
    /// read, where configMapRef says nothing else.
    #[schemars(extend("enum" = ["Static", "ConfigMap", "BillingAPI"]))]
    pub source: String,
    /// What prices are counted in; VND if unset. Only shown: decisions follow from proportions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Z]{3}$"))]
    pub currency: Option<String>,
    /// The ConfigMap whose key prices.json has the prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<SecretReference>,
    /// Where the billing API lists its plans; the vendor's address if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(https://[^?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?(/[^?#]*)?)$"))]
    pub billing_endpoint: Option<String>,
}

impl Pricing {
    /// The ConfigMap to read prices from, if any.
    pub(crate) fn config_map(&self) -> Option<&SecretReference> {
        self.config_map_ref.as_ref().filter(|_| self.source != "Static")
    }

    /// Where the billing API is asked, if it is.
    pub(crate) fn billing_url(&self) -> Option<&str> {
        let url = self.billing_endpoint.as_deref().unwrap_or(billing::DEFAULT_URL);
        (self.source == "BillingAPI").then_some(url)
    }
}

/// What is known about the account.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct ProviderConfigStatus {
    /// Whether nodes can be launched with the account.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// When the account was last looked at and something had changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::date_time")]
    pub last_updated: Option<jiff::Timestamp>,
    /// Flavors that can be had in the region, at most 500.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instance_types: Vec<String>,
    /// Regions that the account may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Zones of the region that are open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// The project that servers are launched in.
    #[serde(rename = "projectID", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The account's balance, where it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<Billing>,
    /// Every tag prefix that servers may still carry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tag_prefixes: Vec<String>,
    /// The generation that this was found out for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The account's balance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Billing {
    /// In VND.
    pub balance: f64,
    /// Whether more was used than paid for.
    pub negative: bool,
    /// Whether an invoice is overdue.
    pub expired_invoice: bool,
}

/// The conditions of a ProviderConfig.
pub mod conditions {
    pub const CREDENTIALS_READY: &str = "CredentialsReady";
    pub const REGION_READY: &str = "RegionReady";
    pub const BILLING_READY: &str = "BillingReady";
    /// False while the API is left alone because it kept failing.
    pub const API_REACHABLE: &str = "APIReachable";
}

/// The ProviderConfig of NodeClasses that name none.
pub const DEFAULT_NAME: &str = "default";
pub const DEFAULT_TAG_PREFIX: &str = "karpenter.bizflycloud.sh/";
pub const DEFAULT_ENDPOINT: &str = "https://manage.bizflycloud.vn/api";
/// The cloud makes no smaller root disk.
pub const LEAST_ROOT_DISK: u32 = 20;

impl StatusConditions for ProviderConfig {
    const DEPENDENTS: &'static [&'static str] = &[conditions::CREDENTIALS_READY, conditions::REGION_READY];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

impl Default for Tagging {
    fn default() -> Self {
        Self {
            enable_resource_tags: true,
            tag_prefix: DEFAULT_TAG_PREFIX.to_owned(),
            additional_tags: BTreeMap::new(),
        }
    }
}

impl Default for CloudConfig {
    fn default() -> Self {
        Self {
            api_endpoint: DEFAULT_ENDPOINT.to_owned(),
            retry_max_attempts: 5,
            retry_initial_delay: seconds(1),
            timeout: seconds(30),
            qps: 10.0,
            burst: 20,
            auth_mode: "Token".to_owned(),
        }
    }
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            image_id: "ubuntu-20.04".to_owned(),
            ssh_key_name: None,
            root_disk_size: LEAST_ROOT_DISK,
            enable_ipv6: false,
            user_data_template: None,
        }
    }
}

impl Default for DriftDetection {
    fn default() -> Self {
        Self {
            enabled: true,
            reconcile_interval: seconds(300),
            auto_remediate: true,
        }
    }
}

fn seconds(seconds: i64) -> GoDuration {
    jiff::SignedDuration::from_secs(seconds).into()
}
