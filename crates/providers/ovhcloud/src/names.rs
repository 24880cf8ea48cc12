//! The labels and annotations of this provider.

use karpenter_api::{labels, labels::LabelRules};

pub const GROUP: &str = "karpenter.ovhcloud.sh";

/// On pool templates, claims and Nodes: the NodeClass's name.
pub const NODE_CLASS: &str = "karpenter.ovhcloud.sh/ovhnodeclass";
/// On pool templates and Nodes: which pool key they belong to; the mark of a pool that is ours.
pub const POOL_KEY: &str = "karpenter.ovhcloud.sh/pool-key";
/// On claims (annotation and label) and Nodes (label).
pub const POOL_ID: &str = "karpenter.ovhcloud.sh/pool-id";
/// On claims: the reservation, written before anything is asked of OVHcloud. Also a label of Nodes.
pub const POOL_NAME: &str = "karpenter.ovhcloud.sh/pool-name";
/// On claims: the binding. Once published it never changes.
pub const NODE_ID: &str = "karpenter.ovhcloud.sh/node-id";
pub const NODE_NAME: &str = "karpenter.ovhcloud.sh/node-name";
/// On claims: when the reservation was made; waiting claims are served in this order.
pub const RESERVED_AT: &str = "karpenter.ovhcloud.sh/reserved-at";
/// On claims: `<flavor>/<zone>`, enough to make the reserved pool after a crash.
pub const RESERVED_OFFERING: &str = "karpenter.ovhcloud.sh/reserved-offering";
/// On claims: `true` if the claim was made for a machine that MKS had made by itself.
pub const ADOPTED: &str = "karpenter.ovhcloud.sh/adopted";
pub const CLASS_HASH: &str = "karpenter.ovhcloud.sh/ovhnodeclass-hash";
pub const CLASS_HASH_VERSION: &str = "karpenter.ovhcloud.sh/ovhnodeclass-hash-version";
pub const FINALIZER: &str = "karpenter.ovhcloud.sh/termination";

pub const CATEGORY: &str = "karpenter.ovhcloud.sh/instance-category";
pub const FAMILY: &str = "karpenter.ovhcloud.sh/instance-family";
pub const SIZE: &str = "karpenter.ovhcloud.sh/instance-size";
pub const CPU: &str = "karpenter.ovhcloud.sh/instance-cpu";
/// In MiB.
pub const MEMORY: &str = "karpenter.ovhcloud.sh/instance-memory";
pub const GENERATION: &str = "karpenter.ovhcloud.sh/instance-generation";
pub const GPU_COUNT: &str = "karpenter.ovhcloud.sh/instance-gpu-count";
pub const GPU_NAME: &str = "karpenter.ovhcloud.sh/instance-gpu-name";
pub const GPU_MANUFACTURER: &str = "karpenter.ovhcloud.sh/instance-gpu-manufacturer";
/// In MiB.
pub const GPU_MEMORY: &str = "karpenter.ovhcloud.sh/instance-gpu-memory";
pub const BILLING: &str = "karpenter.ovhcloud.sh/billing-mode";

/// What MKS calls the pool of a Node.
pub const MKS_POOL: &str = "nodepool";
/// The CSI driver's name for the zone, found on volumes.
pub const CINDER_ZONE: &str = "topology.cinder.csi.openstack.org/zone";
pub const CINDER_DRIVER: &str = "cinder.csi.openstack.org";
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// On Nodes of Standard clusters.
pub const CLUSTER_ANNOTATION: &str = "cluster.x-k8s.io/cluster-name";

const WELL_KNOWN: [&str; 11] = [
    CATEGORY,
    FAMILY,
    SIZE,
    CPU,
    MEMORY,
    GENERATION,
    GPU_COUNT,
    GPU_NAME,
    GPU_MANUFACTURER,
    GPU_MEMORY,
    BILLING,
];

/// Adds what this provider's labels mean.
pub fn extend(rules: LabelRules) -> LabelRules {
    WELL_KNOWN
        .into_iter()
        .fold(rules, LabelRules::with_well_known)
        .with_restricted_domain(GROUP)
        .with_alias(CINDER_ZONE, labels::ZONE)
}

/// The rules that instance types of this provider are judged by.
pub fn rules() -> LabelRules {
    extend(LabelRules::default())
}
