//! `karpenter.sh/v1alpha5` Provisioner: the kind that manifests of the earlier product have, kept so that they can be applied.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use karpenter_api::{
    ResourceList,
    conditions::{Condition, StatusConditions},
    requirement::NodeSelectorRequirement,
    schema,
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which nodes to make, in the words of Karpenter before NodePools.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha5",
    kind = "Provisioner",
    plural = "provisioners",
    doc = "Provisioner is what NodePools were called before v1. It is carried out as a NodePool of the same name.",
    status = "ProvisionerStatus",
    category = "karpenter",
    printcolumn(name = "Template", type_ = "string", json_path = ".spec.providerRef.name"),
    printcolumn(name = "Weight", type_ = "string", json_path = ".spec.weight", priority = 1),
    printcolumn(
        name = "Converted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Converted\")].status"
    ),
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline, extend("default" = serde_json::json!({})))]
pub struct ProvisionerSpec {
    /// Annotations of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints that nodes keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Vec<Taint>,
    /// Taints that nodes start with and that something else removes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::taints")]
    pub startup_taints: Vec<Taint>,
    /// What nodes must be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "requirements")]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// Settings of the kubelet; they move to the NodeClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub kubelet_configuration: Option<Value>,
    /// Settings of the provider, inline; not supported, use providerRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub provider: Option<Value>,
    /// The ProviderConfig or BizflyCloudNodeClass to launch with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_ref: Option<ProviderRef>,
    /// Seconds after which an empty node is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_empty: Option<i64>,
    /// Seconds after which a node is replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_until_expired: Option<i64>,
    /// Caps on the total of all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Higher weights are tried first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub weight: Option<i32>,
    /// Whether nodes are removed or replaced when cheaper ones suffice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consolidation: Option<Consolidation>,
}

/// What to launch with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ProviderRef {
    /// Name of the object.
    pub name: String,
    /// ProviderConfig or BizflyCloudNodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its group and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
}

/// Caps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Limits {
    /// By resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceList>,
}

/// Removal and replacement of nodes to save money.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Consolidation {
    /// Whether to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// What became of the Provisioner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct ProvisionerStatus {
    /// Whether it is carried out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The total of its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceList>,
    /// What changed in the conversion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

pub const CONVERTED: &str = "Converted";

impl StatusConditions for Provisioner {
    const DEPENDENTS: &'static [&'static str] = &[CONVERTED];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn requirements(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "description": "A demand on a label of the node.",
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": {"description": "The label.", "type": "string"},
                "operator": {
                    "description": "How the label's value relates to values.",
                    "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
                },
                "values": {
                    "description": "What the operator compares with.",
                    "type": "array", "items": {"type": "string"},
                },
            },
        },
    })
}
