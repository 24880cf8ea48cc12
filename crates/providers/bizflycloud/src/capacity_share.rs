//! BizflyCapacityShare: what a cluster uses and wants of a project that several clusters share, told to the others in a hub (§7.3).

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use jiff::Timestamp;
use karpenter_api::schema;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One per cluster and account; written by the cluster's controller and read by those of the others.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "bizflycloud.karpenter.sh",
    version = "v1alpha1",
    kind = "BizflyCapacityShare",
    plural = "bizflycapacityshares",
    doc = "BizflyCapacityShare says what a cluster uses and wants of a project that it shares with others. Controllers write it; it is not for users.",
    category = "karpenter",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".spec.used.vCPU"),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".spec.wanted.vCPU"),
    printcolumn(name = "Renewed", type_ = "date", json_path = ".spec.renewTime"),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct BizflyCapacityShareSpec {
    /// The cluster that speaks.
    pub cluster: String,
    /// The project that is shared.
    pub project: String,
    /// The region that this is about.
    pub region: String,
    /// How much the cluster counts.
    #[schemars(range(min = 1, max = 100))]
    pub weight: u32,
    /// What its servers have, those that are ordered included.
    pub used: Amounts,
    /// What it would have ordered too, but for the quota.
    pub wanted: Amounts,
    /// When this was true.
    #[schemars(schema_with = "schema::date_time")]
    pub renew_time: Timestamp,
    /// For how long it is believed.
    #[schemars(range(min = 1))]
    pub lease_duration_seconds: u32,
}

/// Amounts of what a quota is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Amounts {
    /// vCPUs.
    #[serde(rename = "vCPU")]
    #[schemars(extend("minimum" = 0))]
    pub vcpu: u64,
    /// GiB of memory.
    #[serde(rename = "ramGiB")]
    #[schemars(extend("minimum" = 0))]
    pub ram_gib: u64,
    /// Servers.
    #[schemars(extend("minimum" = 0))]
    pub servers: u64,
}
