//! What the kubelet is configured with, as far as it decides what pods can use.

use std::collections::BTreeMap;

use karpenter_api::schema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the kubelet, named as in its own configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent", "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"),
    schema::rule("!has(self.evictionSoft) || (has(self.evictionSoftGracePeriod) && self.evictionSoft.all(k, k in self.evictionSoftGracePeriod))", "evictionSoft entry does not have a matching evictionSoftGracePeriod"),
]))]
pub struct Kubelet {
    /// Addresses of the cluster's DNS servers.
    #[serde(default, rename = "clusterDNS", skip_serializing_if = "Option::is_none")]
    pub cluster_dns: Option<Vec<String>>,
    /// The most pods of a node. 110 if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_pods: Option<i32>,
    /// The most pods per vCPU; the smaller of both limits holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub pods_per_core: Option<i32>,
    /// Kept for the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, x in ['cpu', 'memory', 'ephemeral-storage', 'pid'])", "valid keys for systemReserved are ['cpu','memory','ephemeral-storage','pid']"),
        schema::rule("self.all(x, !self[x].startsWith('-'))", "systemReserved value cannot be a negative resource quantity"),
    ]))]
    pub system_reserved: Option<BTreeMap<String, String>>,
    /// Kept for Kubernetes' own processes. 100m cpu and 256Mi memory if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule("self.all(x, x in ['cpu', 'memory', 'ephemeral-storage', 'pid'])", "valid keys for kubeReserved are ['cpu','memory','ephemeral-storage','pid']"),
        schema::rule("self.all(x, !self[x].startsWith('-'))", "kubeReserved value cannot be a negative resource quantity"),
    ]))]
    pub kube_reserved: Option<BTreeMap<String, String>>,
    /// When pods are evicted at once. memory.available 100Mi and nodefs.available 10% if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "eviction_signals")]
    pub eviction_hard: Option<BTreeMap<String, String>>,
    /// When pods are evicted after a grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "eviction_signals")]
    pub eviction_soft: Option<BTreeMap<String, String>>,
    /// The grace period of each soft threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "eviction_signals")]
    pub eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    /// The longest grace period of pods that are evicted by a soft threshold, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub eviction_max_pod_grace_period: Option<i32>,
    /// Disk usage above which images are removed.
    #[serde(
        default,
        rename = "imageGCHighThresholdPercent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// Disk usage down to which images are removed.
    #[serde(
        default,
        rename = "imageGCLowThresholdPercent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// Whether cpu limits are enforced.
    #[serde(default, rename = "cpuCFSQuota", skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_quota: Option<bool>,
}

fn eviction_signals(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [schema::rule(
            "self.all(x, x in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",
            "valid keys are ['memory.available','nodefs.available','nodefs.inodesFree','imagefs.available','imagefs.inodesFree','pid.available']",
        )],
    })
}
