//! CloudStackNodeClass: which zones, networks, offerings and templates machines are made from, and how they boot.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

pub mod bootstrap;
pub mod hash;
pub mod kubelet;
pub mod placement;
pub mod selectors;
pub mod status;
pub mod storage;

use std::collections::BTreeMap;

use karpenter_api::{
    conditions::{Condition, StatusConditions},
    crd::Crd,
    schema,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bootstrap::{Bootstrap, UserDataCompression, UserDataRef, UserDataTemplating};
pub use kubelet::Kubelet;
pub use placement::{AffinityGroups, BootMode, BootType, ManagedAffinityGroup, Placement, Tuning};
pub use selectors::{AdditionalNetwork, CustomOffering, NetworkTerm, OfferingTerm, SecurityGroupTerm, TemplateTerm};
pub use status::CloudStackNodeClassStatus;
pub use storage::DataDisk;

pub const GROUP: &str = "karpenter.k8s.cloudstack";
/// Keeps a class while NodeClaims use it.
pub const FINALIZER: &str = "karpenter.k8s.cloudstack/termination";
pub const HASH_ANNOTATION: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
pub const HASH_VERSION_ANNOTATION: &str = "karpenter.k8s.cloudstack/nodeclass-hash-version";
/// On a claim: the deploy job of its machine.
pub const JOB_ANNOTATION: &str = "karpenter.k8s.cloudstack/job-id";

/// How machines of the class are made.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.k8s.cloudstack",
    version = "v1",
    kind = "CloudStackNodeClass",
    plural = "cloudstacknodeclasses",
    doc = "CloudStackNodeClass says how virtual machines are made at Apache CloudStack: where, of what, and how they boot.",
    status = "CloudStackNodeClassStatus",
    category = "karpenter",
    shortname = "csnc",
    shortname = "csncs",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.zone", priority = 1),
    printcolumn(
        name = "Templates",
        type_ = "integer",
        json_path = ".status.templateCount",
        priority = 1
    ),
    printcolumn(
        name = "Offerings",
        type_ = "integer",
        json_path = ".status.offeringCount",
        priority = 1
    ),
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.zone) != has(self.zones)", "exactly one of zone and zones must be set"),
    schema::rule("!has(self.userData) || !has(self.userDataRef)", "userData and userDataRef can't both be set"),
    schema::rule("!has(self.diskOffering) || !has(self.dataDisks)", "diskOffering and dataDisks can't both be set"),
    schema::rule("!has(self.diskSize) || has(self.diskOffering)", "diskSize needs a diskOffering"),
    schema::rule("!has(self.bootMode) || has(self.bootType)", "bootMode needs a bootType"),
    schema::rule("!has(self.bootType) || self.bootType != 'UEFI' || has(self.bootMode)", "bootType UEFI needs a bootMode"),
]))]
pub struct CloudStackNodeClassSpec {
    /// The zone, by name or UUID. Exactly one of zone and zones must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub zone: Option<String>,
    /// Several zones, by name or UUID; machines may be made in any of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30), inner(length(min = 1, max = 255)), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, self.exists_one(y, x == y))", "zones must not repeat"),
    ]))]
    pub zones: Option<Vec<String>>,
    /// Which networks the first NIC may be in. A network is selected when any term matches.
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, has(x.id) || has(x.name) || has(x.tags) || has(x.vpcID) || has(x.type))", "expected at least one, got none, ['id', 'name', 'tags', 'vpcID', 'type']"),
    ]))]
    pub network_selector_terms: Vec<NetworkTerm>,
    /// Which service offerings machines may have. An offering is selected when any term matches.
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, has(x.id) || has(x.name) || has(x.tags) || has(x.nameRegex) || has(x.hostTags) || has(x.storageTags) || has(x.minCPU) || has(x.maxCPU) || has(x.minMemory) || has(x.maxMemory))", "expected at least one, got none, ['id', 'name', 'tags', 'nameRegex', 'hostTags', 'storageTags', 'minCPU', 'maxCPU', 'minMemory', 'maxMemory']"),
    ]))]
    pub service_offering_selector_terms: Vec<OfferingTerm>,
    /// Which templates machines may boot from; the newest that fits is used.
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, has(x.id) || has(x.name) || has(x.tags) || has(x.osType) || has(x.arch))", "expected at least one, got none, ['id', 'name', 'tags', 'osType', 'arch']"),
    ]))]
    pub template_selector_terms: Vec<TemplateTerm>,
    /// Further NICs, one network each, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub additional_networks: Option<Vec<AdditionalNetwork>>,
    /// Security groups of machines in zones that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, has(x.id) || has(x.name) || has(x.tags))", "expected at least one, got none, ['id', 'name', 'tags']"),
    ]))]
    pub security_group_selector_terms: Option<Vec<SecurityGroupTerm>>,
    /// Groups by which machines are kept together on hosts, or apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_groups: Option<AffinityGroups>,
    /// What machines boot with, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// User data that is kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_ref: Option<UserDataRef>,
    /// Whether ${karpenter:NAME} in user data is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_templating: Option<UserDataTemplating>,
    /// Whether user data is compressed with gzip. Auto does so when it would not fit otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_compression: Option<UserDataCompression>,
    /// How a machine joins the cluster; without it user data does everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// What the kubelet is configured with; decides how much of a machine pods can use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Kubelet>,
    /// Tags of the machines and of their data disks. Changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 40, "x-kubernetes-validations" = [
        schema::rule("self.all(k, k != '')", "empty tag keys aren't supported"),
        schema::rule("self.all(k, self[k] != '')", "empty tag values aren't supported"),
        schema::rule("self.all(k, size(k) <= 255 && size(self[k]) <= 255)", "tag keys and values have at most 255 characters"),
        schema::rule("self.all(k, k != 'karpenter.sh/nodepool')", "tag contains a restricted tag matching karpenter.sh/nodepool"),
        schema::rule("self.all(k, k != 'karpenter.sh/nodeclaim')", "tag contains a restricted tag matching karpenter.sh/nodeclaim"),
        schema::rule("self.all(k, k != 'karpenter.sh/managed-by')", "tag contains a restricted tag matching karpenter.sh/managed-by"),
        schema::rule("self.all(k, !k.startsWith('karpenter.k8s.cloudstack/'))", "tag contains a restricted tag matching karpenter.k8s.cloudstack/"),
        schema::rule("self.all(k, !k.startsWith('kubernetes.io/cluster/'))", "tag contains a restricted tag matching kubernetes.io/cluster/"),
    ]))]
    pub tags: Option<BTreeMap<String, String>>,
    /// Size of the root disk in GiB, where neither offering nor disk offering fixes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub root_disk_size: Option<i64>,
    /// The disk offering of the root disk, by name or UUID, instead of the service offering's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_disk_offering: Option<String>,
    /// The disk offering of one data disk, by name or UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_offering: Option<String>,
    /// Size of that data disk in GiB, for an offering of custom size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub disk_size: Option<i64>,
    /// Data disks, instead of diskOffering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7), extend("x-kubernetes-validations" = [
        schema::rule("self.filter(x, has(x.deviceID)).all(x, self.exists_one(y, has(y.deviceID) && y.deviceID == x.deviceID))", "deviceID must not repeat"),
    ]))]
    pub data_disks: Option<Vec<DataDisk>>,
    /// Name of an SSH key pair that may log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_pair: Option<String>,
    /// Names of further SSH key pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub ssh_key_pairs: Option<Vec<String>>,
    /// The project that machines belong to, by name or UUID, instead of the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The instance group of the machines; karpenter-<cluster> if unset, none if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub instance_group: Option<String>,
    /// Further details of the machines, as the hypervisor understands them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 40, "x-kubernetes-validations" = [
        schema::rule("self.all(k, !(k in ['cpuNumber', 'cpuSpeed', 'memory', 'rootdisksize']) && !k.startsWith('extraconfig') && !k.startsWith('karpenter.'))", "details cpuNumber, cpuSpeed, memory, rootdisksize, extraconfig* and karpenter.* are reserved"),
    ]))]
    pub details: Option<BTreeMap<String, String>>,
    /// Hypervisor configuration; the server must allow it for the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5120))]
    pub extra_config: Option<String>,
    /// The sizes in which custom service offerings are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30))]
    pub custom_offerings: Option<Vec<CustomOffering>>,
    /// How GPUs are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// The firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_type: Option<BootType>,
    /// The mode of the firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<BootMode>,
    /// Pins machines to infrastructure. Root administrators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Knobs of the hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
    /// What machines are worth per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Pricing>,
    /// What becomes of a machine that was stopped. Replace if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_instance_policy: Option<StoppedInstancePolicy>,
    /// Whether destroyed machines are expunged at once. Auto, if unset, does so where the account may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expunge: Option<Expunge>,
    /// What machines, and so their Nodes, are named after. Only the NodeClaim so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname_strategy: Option<HostnameStrategy>,
}

/// How GPUs are named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Gpu {
    /// The extended resource; by the card's name if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
}

/// Prices per hour; CloudStack has no price list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Pricing {
    /// Prices of single instance types or offerings; the first that matches wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub overrides: Option<Vec<PriceOverride>>,
    /// Formula: from resources. Quota: from the tariffs of the quota service, and by formula without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PriceSource>,
    /// Per vCPU.
    #[serde(default, rename = "perVCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub per_vcpu: Option<String>,
    /// Per GiB of memory.
    #[serde(default, rename = "perGiB", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub per_gib: Option<String>,
    /// Per GPU.
    #[serde(default, rename = "perGPU", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub per_gpu: Option<String>,
    /// Per GiB of the root disk.
    #[serde(default, rename = "perDiskGiB", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub per_disk_gib: Option<String>,
    /// What spot machines cost in parts of on-demand ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub spot_factor: Option<String>,
}

/// The price of some machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.instanceType) != has(self.offering)", "exactly one of instanceType and offering must be set"),
]))]
pub struct PriceOverride {
    /// The instance type, as nodes are labelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The service offering, by name or UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
    /// Only for this capacity type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Per hour.
    #[schemars(regex(pattern = schema::PRICE))]
    pub price: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PriceSource {
    Formula,
    Quota,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum CapacityType {
    OnDemand,
    Spot,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum StoppedInstancePolicy {
    #[default]
    Replace,
    Restart,
    Ignore,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum HostnameStrategy {
    #[default]
    NodeClaimName,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Expunge {
    #[default]
    Auto,
    Always,
    Never,
}

/// The device number that CloudStack keeps for the CD-ROM of every machine.
pub(crate) const CD_ROM: i64 = 3;

/// The CRD documents of this provider.
pub fn crds() -> Vec<Crd> {
    vec![Crd::of::<CloudStackNodeClass>()]
}

impl CapacityType {
    pub fn label(self) -> &'static str {
        match self {
            Self::OnDemand => karpenter_api::labels::CAPACITY_TYPE_ON_DEMAND,
            Self::Spot => karpenter_api::labels::CAPACITY_TYPE_SPOT,
        }
    }
}

impl CloudStackNodeClass {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The zones as users wrote them, names or UUIDs.
    pub fn wanted_zones(&self) -> Vec<&str> {
        let several = self.spec.zones.iter().flatten().map(String::as_str);
        self.spec.zone.as_deref().into_iter().chain(several).collect()
    }

    /// Whether affinity groups are made for its machines.
    pub fn manages_affinity_groups(&self) -> bool {
        let groups = self.spec.affinity_groups.as_ref();
        groups.is_some_and(|own| own.managed.is_some())
    }

    /// Whether its machines have data disks.
    pub fn has_data_disks(&self) -> bool {
        self.spec.disk_offering.is_some() || self.spec.data_disks.is_some()
    }

    /// The data disks with their numbers at the machine: what is not said is the position, or the next that is free
    /// and not the CD-ROM's.
    pub fn data_disks(&self) -> impl Iterator<Item = (i64, &DataDisk)> {
        let disks = self.spec.data_disks.as_deref().unwrap_or_default();
        let mut taken: Vec<i64> = disks.iter().filter_map(|disk| disk.device_id).collect();
        disks.iter().zip(1..).map(move |(disk, position)| {
            let device = disk.device_id.unwrap_or_else(|| {
                let free = (position..).find(|own| *own != CD_ROM && !taken.contains(own));
                free.expect("more numbers than disks")
            });
            taken.push(device);
            (device, disk)
        })
    }

    /// What may go wrong with the numbers of its data disks.
    pub(crate) fn device_advice(&self) -> Option<&'static str> {
        let mut disks = self.spec.data_disks.iter().flatten();
        disks.any(|disk| disk.device_id == Some(CD_ROM)).then_some(
            "a data disk has deviceID 3, which CloudStack keeps for the CD-ROM: machines may not start with it; choose another number",
        )
    }

    pub fn ssh_key_pairs(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let further = self.spec.ssh_key_pairs.iter().flatten();
        for name in self.spec.ssh_key_pair.iter().chain(further) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

impl StatusConditions for CloudStackNodeClass {
    const DEPENDENTS: &'static [&'static str] = &status::CONDITIONS;

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

    #[test]
    fn the_crd_is_named_as_the_prototypes() {
        let crd = CloudStackNodeClass::crd();
        assert_eq!(
            crd.metadata.name.as_deref(),
            Some("cloudstacknodeclasses.karpenter.k8s.cloudstack")
        );
        assert_eq!(crd.spec.names.short_names.expect("short names"), ["csnc", "csncs"]);
        assert_eq!(crd.spec.scope, "Cluster");
        assert_eq!(crd.spec.versions[0].name, "v1");
    }
}
