//! NodeOverlay: corrections to what the cloud says of price and extended resources.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, StatusConditions};
use crate::requirement::NodeSelectorRequirement;
use crate::resources::ResourceList;
use crate::schema;

/// Which instance types the overlay selects and what it changes.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha1",
    kind = "NodeOverlay",
    doc = "NodeOverlay changes the price or adds extended resources of the instance types that it selects, as Karpenter's decisions see them.",
    status = "NodeOverlayStatus",
    category = "karpenter",
    shortname = "overlays",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("!has(self.price) || !has(self.priceAdjustment)", "price and priceAdjustment can't both be set"),
]))]
pub struct NodeOverlaySpec {
    /// Which instance types and offerings are selected, by their labels.
    #[schemars(schema_with = "schema::node_overlay_requirements")]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// The price that replaces the cloud's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE))]
    pub price: Option<String>,
    /// A signed change of the cloud's price: an amount such as -0.05, or a percentage such as +10%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::PRICE_ADJUSTMENT))]
    pub price_adjustment: Option<String>,
    /// Extended resources that the instance types have besides what the cloud reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule("self.all(resource, !(resource in ['cpu', 'memory', 'ephemeral-storage', 'pods']))", "cpu, memory, ephemeral-storage and pods can't be changed"),
    ]))]
    pub capacity: Option<ResourceList>,
    /// Overlays of higher weight win. Unset counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub weight: Option<i32>,
}

/// What Karpenter made of the overlay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NodeOverlayStatus {
    /// Whether the overlay is applied, and what stands in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";

impl StatusConditions for NodeOverlay {
    const DEPENDENTS: &'static [&'static str] = &[VALIDATION_SUCCEEDED];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

impl NodeOverlay {
    /// The weight, 0 when unset.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or(0)
    }
}
