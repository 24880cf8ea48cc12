//! The labels and annotations of BizFly Cloud nodes.

use karpenter_api::labels::{CAPACITY_TYPE, CAPACITY_TYPE_ON_DEMAND, LabelRules, ZONE};

pub const NODE_CATEGORY: &str = "karpenter.bizflycloud.com/node-category";
pub const CPU_VENDOR: &str = "karpenter.bizflycloud.com/cpu-vendor";
pub const DISK_TYPE: &str = "karpenter.bizflycloud.com/disk-type";
pub const BILLING_PLAN: &str = "karpenter.bizflycloud.com/billing-plan";
pub const NETWORK_PLAN: &str = "karpenter.bizflycloud.com/network-plan";
pub const OS_TYPE: &str = "karpenter.bizflycloud.com/os-type";
pub const INSTANCE_CPU: &str = "karpenter.bizflycloud.com/instance-cpu";
pub const INSTANCE_MEMORY: &str = "karpenter.bizflycloud.com/instance-memory";
pub const INSTANCE_GPU_COUNT: &str = "karpenter.bizflycloud.com/instance-gpu-count";
pub const INSTANCE_GPU_NAME: &str = "karpenter.bizflycloud.com/instance-gpu-name";
pub const INSTANCE_GENERATION: &str = "karpenter.bizflycloud.com/instance-generation";
pub const NODE_CLASS: &str = "karpenter.bizflycloud.com/bizflycloudnodeclass";
pub const KUBERNETES_VERSION: &str = "bizflycloud.com/kubernetes-version";
pub const IMAGE_ID: &str = "karpenter.bizflycloud.sh/image-id";

/// What nodes were selected by before NodePools.
pub const PROVISIONER_NAME: &str = "karpenter.sh/provisioner-name";

/// On claims and nodes, stating facts about the server.
pub mod annotations {
    pub const INSTANCE_ID: &str = "karpenter.bizflycloud.sh/instance-id";
    pub const INSTANCE_SPOT: &str = "karpenter.bizflycloud.sh/instance-spot";
    pub const IMAGE_UUID: &str = "karpenter.bizflycloud.com/image-uuid";
    pub const ROOT_VOLUME_ID: &str = "karpenter.bizflycloud.com/root-volume-id";
    /// Data disks that were ordered with the server, separated by commas.
    pub const DATA_VOLUME_IDS: &str = "karpenter.bizflycloud.com/data-volume-ids";
    /// The task that makes the server.
    pub const TASK_ID: &str = "karpenter.bizflycloud.com/task-id";
    /// What the server cost per hour when it was launched.
    pub const HOURLY_PRICE: &str = "karpenter.bizflycloud.com/hourly-price";
    /// What that price is counted in.
    pub const HOURLY_CURRENCY: &str = "karpenter.bizflycloud.com/hourly-currency";
    /// The last reboot that was sent.
    pub const REBOOT_OPERATION: &str = "karpenter.bizflycloud.com/reboot-operation";
    pub const CLASS_HASH: &str = "karpenter.bizflycloud.com/bizflycloudnodeclass-hash";
    pub const CLASS_HASH_VERSION: &str = "karpenter.bizflycloud.com/bizflycloudnodeclass-hash-version";
}

const WELL_KNOWN: [&str; 14] = [
    NODE_CATEGORY,
    CPU_VENDOR,
    DISK_TYPE,
    BILLING_PLAN,
    NETWORK_PLAN,
    OS_TYPE,
    INSTANCE_CPU,
    INSTANCE_MEMORY,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_NAME,
    INSTANCE_GENERATION,
    NODE_CLASS,
    KUBERNETES_VERSION,
    IMAGE_ID,
];

/// Both of the vendor's CSI drivers pin volumes by a zone label of their own.
const ZONE_ALIASES: [&str; 2] = [
    "topology.volume.csi.bizflycloud.vn/zone",
    "topology.fs.csi.bizflycloud.vn/zone",
];

/// Capacity types that manifests in the field have for servers paid by use …
pub const ON_DEMAND_SPELLINGS: [&str; 1] = ["on_demand"];
/// … and for servers paid by subscription, which are not spot and so count as on-demand too.
pub const SAVING_PLAN_SPELLINGS: [&str; 3] = ["saving_plan", "saving-plan", "subscription"];

/// Adds what is special about BizFly Cloud's labels.
pub fn extend(rules: LabelRules) -> LabelRules {
    let rules = WELL_KNOWN.into_iter().fold(rules, LabelRules::with_well_known);
    let rules = ["karpenter.bizflycloud.com", "karpenter.bizflycloud.sh"]
        .into_iter()
        .fold(rules, LabelRules::with_restricted_domain);
    let rules = ZONE_ALIASES
        .into_iter()
        .fold(rules, |rules, alias| rules.with_alias(alias, ZONE));
    ON_DEMAND_SPELLINGS
        .into_iter()
        .chain(SAVING_PLAN_SPELLINGS)
        .fold(rules, |rules, alias| {
            rules.with_value_alias(CAPACITY_TYPE, alias, CAPACITY_TYPE_ON_DEMAND)
        })
}

/// The rules of this provider, for use without one.
pub fn rules() -> LabelRules {
    extend(LabelRules::default())
}
