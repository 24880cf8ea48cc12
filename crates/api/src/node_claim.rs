//! NodeClaim: one machine that Karpenter asked for, from request to removal.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, StatusConditions};
use crate::duration::{GoDuration, NillableDuration};
use crate::labels;
use crate::node_class::NodeClassReference;
use crate::node_pool::default_expire_after;
use crate::requirement::NodeSelectorRequirementWithMinValues;
use crate::resources::ResourceList;
use crate::schema;

/// What the machine must offer. Immutable.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    doc = "NodeClaim is one machine that Karpenter asked its cloud for, and the node that it becomes.",
    status = "NodeClaimStatus",
    category = "karpenter",
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".metadata.labels.node\\.kubernetes\\.io/instance-type"
    ),
    printcolumn(
        name = "Capacity",
        type_ = "string",
        json_path = ".metadata.labels.karpenter\\.sh/capacity-type"
    ),
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = ".metadata.labels.topology\\.kubernetes\\.io/zone"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ImageID", type_ = "string", json_path = ".status.imageID", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.providerID", priority = 1),
    printcolumn(
        name = "NodePool",
        type_ = "string",
        json_path = ".metadata.labels.karpenter\\.sh/nodepool",
        priority = 1
    ),
    printcolumn(
        name = "NodeClass",
        type_ = "string",
        json_path = ".spec.nodeClassRef.name",
        priority = 1
    ),
    printcolumn(
        name = "Drifted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Drifted\")].status",
        priority = 1
    ),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [schema::rule("self == oldSelf", "spec is immutable")]))]
pub struct NodeClaimSpec {
    /// Taints that the node keeps; pods must tolerate them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that the node starts with and that something else removes soon; scheduling looks past them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// What the node's labels must satisfy.
    #[schemars(schema_with = "schema::node_claim_requirements")]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// What the pods that are planned for the node need together.
    #[serde(default, skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// The provider's configuration for the machine.
    pub node_class_ref: NodeClassReference,
    /// How long the node may drain before its remaining pods are deleted. Unset waits without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<GoDuration>,
    /// How long the node lives before it is replaced, or Never.
    #[serde(default = "default_expire_after")]
    pub expire_after: NillableDuration,
}

/// What the pods that are planned for a node need together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ResourceRequirements {
    /// The least amounts that the node must offer to pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
}

impl ResourceRequirements {
    fn is_empty(&self) -> bool {
        self.requests.is_none()
    }
}

/// What became of the claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodeClaimStatus {
    /// Name of the node that the machine joined as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The cloud's identifier of the machine, equal to the node's spec.providerID.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The image that the machine was made from.
    #[serde(default, rename = "imageID", skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// What the machine is expected to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceList>,
    /// What of that is expected to be left for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceList>,
    /// When a pod last came to or left the node; consolidation waits for quiet after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::date_time")]
    pub last_pod_event_time: Option<Time>,
    /// How far the claim has come, and what stands in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::lenient_conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition types of a NodeClaim.
pub mod condition {
    pub const LAUNCHED: &str = "Launched";
    pub const REGISTERED: &str = "Registered";
    pub const INITIALIZED: &str = "Initialized";
    pub const CONSOLIDATABLE: &str = "Consolidatable";
    pub const DRIFTED: &str = "Drifted";
    pub const DRAINED: &str = "Drained";
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
    pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
    pub const DISRUPTION_REASON: &str = "DisruptionReason";
    pub const REBOOTING: &str = "Rebooting";
}

impl StatusConditions for NodeClaim {
    const DEPENDENTS: &'static [&'static str] = &[condition::LAUNCHED, condition::REGISTERED, condition::INITIALIZED];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

impl NodeClaim {
    /// Name of the NodePool that the claim belongs to.
    pub fn node_pool(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(labels::NODEPOOL).map(String::as_str)
    }

    pub fn provider_id(&self) -> Option<&str> {
        self.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}
