//! Data disks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A data disk of every machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct DataDisk {
    /// The disk offering, by name or UUID.
    #[schemars(length(min = 1))]
    pub offering: String,
    /// In GiB, for an offering of custom size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub size: Option<i64>,
    /// For an offering of custom IOPS.
    #[serde(default, rename = "minIOPS", skip_serializing_if = "Option::is_none")]
    pub min_iops: Option<i64>,
    /// For an offering of custom IOPS.
    #[serde(default, rename = "maxIOPS", skip_serializing_if = "Option::is_none")]
    pub max_iops: Option<i64>,
    /// Its number at the machine, from 1; not 3, which is the CD-ROM's. If unset, its position in the list, or the next number that is free.
    #[serde(default, rename = "deviceID", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub device_id: Option<i64>,
    /// Whether it goes with its machine. True if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
}
