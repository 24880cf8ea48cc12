//! BizflyCloudNodeClass: what a node at BizFly Cloud looks like.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

pub mod kubelet;
pub mod validation;

use std::collections::BTreeMap;

use karpenter_api::{
    conditions::{Condition, StatusConditions},
    crd::Crd,
    schema,
};
use karpenter_cloud::ownership::short_hash;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{capacity_share::BizflyCapacityShare, provider_config::ProviderConfig, provisioner::Provisioner};
pub use kubelet::Kubelet;

/// What nodes of this class look like.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.bizflycloud.com",
    version = "v1",
    kind = "BizflyCloudNodeClass",
    plural = "bizflycloudnodeclasses",
    doc = "BizflyCloudNodeClass says what nodes at BizFly Cloud look like: image, network, disk, plan and how they join.",
    status = "BizflyCloudNodeClassStatus",
    category = "karpenter",
    shortname = "bizflycloudnc",
    shortname = "bizflycloudncs",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Categories",
        type_ = "string",
        json_path = ".spec.nodeCategories",
        priority = 1
    ),
    printcolumn(name = "CPU Vendors", type_ = "string", json_path = ".spec.cpuVendors", priority = 1),
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline, extend("default" = json!({}), "x-kubernetes-validations" = [
    schema::rule(
        "!has(self.warmPool) || (has(self.bootstrap) && has(self.bootstrap.mode) && self.bootstrap.mode == 'UserData')",
        "a warm pool needs bootstrap.mode UserData: workers of BKE join when they first boot",
    ),
    schema::rule(
        "!has(self.warmPool) || (has(self.userData) && self.userData.contains('bootcmd'))",
        "a warm pool needs userData with a bootcmd that puts off joining until the server is needed",
    ),
    schema::rule(
        "!has(self.placementStrategy) || !has(self.placementStrategy.spread) || !has(self.placementStrategy.spread.zones) || \
         !has(self.zones) || self.placementStrategy.spread.zones.all(x, x in self.zones)",
        "placementStrategy.spread.zones must be among zones",
    ),
]))]
pub struct BizflyCloudNodeClassSpec {
    /// The ProviderConfig with the account to launch in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config_ref: Option<NameReference>,
    /// The region, which must be the ProviderConfig's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zones to launch in; all open zones of the region if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(max = 63)), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, self.exists_one(y, y == x))", "a zone is there twice"),
    ]))]
    pub zones: Vec<String>,
    /// An image by name, such as Ubuntu 24.04 LTS. Unused while BKE chooses the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Images by id, name or alias; the first that exists is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub image_selector_terms: Vec<ImageSelectorTerm>,
    /// Image ids by Kubernetes version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub image_mapping: BTreeMap<String, String>,
    /// Which of BKE's worker images to use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(ubuntu|flatcar)$")))]
    pub os_type: Vec<String>,
    /// Server tiers to launch; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(basic|premium|enterprise|dedicated)$")))]
    pub node_categories: Vec<String>,
    /// CPU generations to launch, such as Intel2 or AMD4; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(Intel|AMD)[0-9]+$")))]
    pub cpu_vendors: Vec<String>,
    /// Flavors to launch: those that any of the terms describes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub flavor_selector_terms: Vec<FlavorSelectorTerm>,
    /// Kinds of root disk; SSD if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(SSD|HDD)$")))]
    pub disk_types: Vec<String>,
    /// GB of the root disk, which is also what pods may use as ephemeral storage; 40 if unset, or the ProviderConfig's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 20, max = 1000))]
    pub root_disk_size: Option<u32>,
    /// More disks of every server; they are deleted with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub data_disks: Vec<DataDisk>,
    /// Network plans; the first is used unless a NodePool asks for another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(free_datatransfer|free_bandwidth)$")))]
    pub network_plans: Vec<String>,
    /// How servers are paid for; on_demand if empty. Spot also needs spot.enabled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^(on_demand|saving_plan|spot)$")))]
    pub billing_plans: Vec<String>,
    /// Private networks; that of the BKE cluster, or else the default one, if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub vpc_network_ids: Vec<String>,
    /// Whether servers get a public IPv4 address; true if unset.
    #[serde(rename = "publicIP", skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<bool>,
    /// Whether servers get a public IPv6 address.
    #[serde(rename = "enableIPv6", skip_serializing_if = "Option::is_none")]
    pub enable_ipv6: Option<bool>,
    /// Firewalls of the servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub security_groups: Vec<SecurityGroup>,
    /// The SSH key pair of the servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_key_name: Option<String>,
    /// More public SSH keys for the servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Tags of the servers, each key=value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        inner(length(max = 511), regex(pattern = r"^[!-<>-~]+=.*$")),
        extend("x-kubernetes-validations" = [schema::rule(
            "self.all(x, !x.matches('^(bke_|(karpenter-managed|karpenter-ordered-as|bizfly_cloud_service|kubernetes_version|category|os_type|network_plan|\
             billing_plan)=)'))",
            "a tag is reserved; use another key",
        )])
    )]
    pub tags: Vec<String>,
    /// Accepted for manifests of earlier providers; has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_options: Option<MetadataOptions>,
    /// How servers spread over zones where the price leaves a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_strategy: Option<PlacementStrategy>,
    /// How servers join the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// User data: a cloud-config document or a shell script, with variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 61440))]
    pub user_data: Option<String>,
    /// Settings of the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Kubelet>,
    /// Servers that may be taken away at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<Spot>,
    /// Servers that are made before they are needed. Mode UserData only: workers of BKE join when they first boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<WarmPool>,
}

/// A disk besides the root disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct DataDisk {
    /// GB of the disk.
    #[schemars(range(min = 10, max = 10000))]
    pub size: u32,
    /// SSD or HDD; that of the root disk if unset.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["SSD", "HDD"]))]
    pub kind: Option<String>,
}

/// Servers that are made before they are needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct WarmPool {
    /// How many servers wait.
    #[schemars(range(min = 1, max = 20))]
    pub size: u32,
    /// Their flavor.
    #[schemars(length(min = 1))]
    pub flavor: String,
    /// Stopped: they cost a part of their price while they wait. Running: they start faster.
    #[serde(default = "stopped")]
    #[schemars(extend("enum" = ["Stopped", "Running"]))]
    pub state: String,
}

fn stopped() -> String {
    "Stopped".to_owned()
}

/// An object by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NameReference {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// One way to name an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline, extend("x-kubernetes-validations" = [schema::rule(
    "[has(self.id), has(self.name), has(self.alias)].filter(x, x).size() == 1",
    "an image selector term has exactly one of id, name and alias",
)]))]
pub struct ImageSelectorTerm {
    /// The image with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The image with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The image with this alias, such as ubuntu-24.04.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// Flavors by what they have; all of it must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct FlavorSelectorTerm {
    /// A name, in which * stands for anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// At least so many vCPUs.
    #[serde(rename = "minVCPU", skip_serializing_if = "Option::is_none")]
    pub min_vcpu: Option<u32>,
    /// At most so many vCPUs.
    #[serde(rename = "maxVCPU", skip_serializing_if = "Option::is_none")]
    pub max_vcpu: Option<u32>,
    /// At least so much memory.
    #[serde(rename = "minRAMGiB", skip_serializing_if = "Option::is_none")]
    pub min_ram_gib: Option<u32>,
    /// At most so much memory.
    #[serde(rename = "maxRAMGiB", skip_serializing_if = "Option::is_none")]
    pub max_ram_gib: Option<u32>,
    /// Only flavors with a GPU, or only those without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<bool>,
}

/// A firewall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct SecurityGroup {
    /// Id of the firewall.
    #[serde(rename = "securityGroupID")]
    #[schemars(length(min = 1))]
    pub security_group_id: String,
}

/// Kept for compatibility.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct MetadataOptions {
    /// Has no effect.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Which zones to prefer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct PlacementStrategy {
    /// Spread over zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// Zones to spread over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Spread {
    /// The only zones to launch in, the preferred first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(max = 63)))]
    pub zones: Vec<String>,
}

/// How servers join the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("!(has(self.mode) && self.mode == 'UserData' && has(self.bke))", "bootstrap.bke is for mode BKE; remove it or the mode"),
]))]
pub struct Bootstrap {
    /// BKE: as workers of a BizFly Kubernetes Engine cluster. UserData: by what userData does. BKE if a cluster is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["BKE", "UserData"]))]
    pub mode: Option<String>,
    /// The BKE cluster; what is unset comes from the controller's environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bke: Option<Bke>,
    /// Worker: the image of BKE for the cluster's version. Template: that of template or imageSelectorTerms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Worker", "Template"]))]
    pub image_policy: Option<String>,
    /// Mode UserData: the token that servers join with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_token_secret_ref: Option<SecretKeyReference>,
}

/// A cluster of BizFly Kubernetes Engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Bke {
    /// Id of the cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The cluster's join token. It is visible in the servers' metadata: that is how BKE's worker images work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Where workers join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_endpoint: Option<String>,
    /// Where workers send their logs while they join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_endpoint: Option<String>,
    /// The version of the workers; the API server's if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Whether workers join from outside BizFly's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub everywhere: Option<bool>,
    /// Whether workers run a DNS cache.
    #[serde(rename = "localDNS", skip_serializing_if = "Option::is_none")]
    pub local_dns: Option<bool>,
}

/// A key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Key within the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Spot servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Spot {
    /// Whether spot servers may be launched, where flavors have such a plan.
    pub enabled: bool,
    /// Whether spot nodes get the taint karpenter.bizflycloud.sh/spot=true:NoSchedule.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub taint: bool,
}

/// What is known about the class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct BizflyCloudNodeClassStatus {
    /// Whether nodes can be launched with the class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The images that new servers boot from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ResolvedImage>,
    /// The zones that servers are launched in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// The private networks of new servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vpc_networks: Vec<ResolvedVpc>,
    /// The firewalls of new servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// The flavors that the class allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instance_types: Vec<String>,
    /// The region.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Image aliases that mean nothing here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unresolved_aliases: Vec<String>,
    /// What works but deserves a look.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// When something of this last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::date_time")]
    pub last_updated: Option<jiff::Timestamp>,
}

/// An image that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct ResolvedImage {
    /// Its id.
    pub id: String,
    /// How it was asked for: the label karpenter.bizflycloud.sh/image-id of its nodes.
    pub name: String,
    /// Its operating system.
    pub os_type: String,
    /// The Kubernetes version that it is for, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
}

/// A private network that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct ResolvedVpc {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The zones that it reaches; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
}

/// The conditions of a NodeClass.
pub mod conditions {
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    pub const CREDENTIALS_READY: &str = "CredentialsReady";
    pub const IMAGES_READY: &str = "ImagesReady";
    pub const NETWORKS_READY: &str = "NetworksReady";
    pub const SECURITY_GROUPS_READY: &str = "SecurityGroupsReady";
    pub const ZONES_READY: &str = "ZonesReady";
    pub const INSTANCE_TYPES_READY: &str = "InstanceTypesReady";
    pub const BOOTSTRAP_READY: &str = "BootstrapReady";
    /// What the earlier provider called `Ready`; dashboards read it.
    pub const INSTANCE_READY: &str = "InstanceReady";
}

/// Holds a class while NodeClaims use it.
pub const FINALIZER: &str = "karpenter.bizflycloud.com/termination";
/// GB of the root disk where neither class nor ProviderConfig says.
pub const DEFAULT_ROOT_DISK: u32 = 40;

/// The CRD documents of this provider.
pub fn crds() -> Vec<Crd> {
    vec![
        Crd::of::<BizflyCloudNodeClass>(),
        Crd::of::<ProviderConfig>(),
        Crd::of::<BizflyCapacityShare>(),
        Crd::of::<Provisioner>(),
    ]
}

impl StatusConditions for BizflyCloudNodeClass {
    const DEPENDENTS: &'static [&'static str] = &[
        conditions::VALIDATION_SUCCEEDED,
        conditions::CREDENTIALS_READY,
        conditions::ZONES_READY,
        conditions::IMAGES_READY,
        conditions::NETWORKS_READY,
        conditions::SECURITY_GROUPS_READY,
        conditions::INSTANCE_TYPES_READY,
        conditions::BOOTSTRAP_READY,
    ];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

impl BizflyCloudNodeClassSpec {
    pub fn provider_config(&self) -> &str {
        let named = self.provider_config_ref.as_ref();
        named.map_or(crate::provider_config::DEFAULT_NAME, |reference| &reference.name)
    }

    pub fn allows_spot(&self) -> bool {
        self.spot.as_ref().is_some_and(|spot| spot.enabled)
    }

    /// What a running server must agree with: fields that only a new server can follow (§5.11).
    ///
    /// Tags, lists to choose from and selectors are not part of it.
    pub fn static_hash(&self) -> String {
        let hashed = json!({
            "rootDiskSize": self.root_disk_size, "dataDisks": self.data_disks, "sshKeyName": self.ssh_key_name, "sshKeys": self.ssh_keys,
            "publicIP": self.public_ip, "enableIPv6": self.enable_ipv6, "bootstrap": self.bootstrap,
            "userData": self.user_data, "kubelet": self.kubelet,
        });
        short_hash(&hashed.to_string())
    }
}

/// Changes with what [`BizflyCloudNodeClassSpec::static_hash`] covers, so that an upgrade does not look like drift.
pub const HASH_VERSION: &str = "v1";

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: serde_json::Value) -> BizflyCloudNodeClassSpec {
        serde_json::from_value(value).expect("a spec")
    }

    #[test]
    fn the_hash_follows_what_a_server_is_made_of_and_nothing_else() {
        let base = spec(json!({"rootDiskSize": 40}));
        let same = spec(json!({"rootDiskSize": 40, "tags": ["a=b"], "zones": ["HN1"], "nodeCategories": ["basic"]}));
        let other = spec(json!({"rootDiskSize": 60}));
        assert_eq!(base.static_hash(), same.static_hash());
        assert_ne!(base.static_hash(), other.static_hash());
    }

    #[test]
    fn the_crd_is_named_as_the_earlier_providers() {
        use kube::CustomResourceExt;
        let crd = BizflyCloudNodeClass::crd();
        assert_eq!(
            crd.metadata.name.as_deref(),
            Some("bizflycloudnodeclasses.karpenter.bizflycloud.com")
        );
        assert_eq!(
            crd.spec.names.short_names.expect("short names"),
            ["bizflycloudnc", "bizflycloudncs"]
        );
    }
}
