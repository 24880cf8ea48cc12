//! NodePool: what nodes Karpenter may make, and how it may disrupt them.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::budget::Budget;
use crate::conditions::{Condition, StatusConditions};
use crate::duration::{GoDuration, NillableDuration};
use crate::node_class::NodeClassReference;
use crate::requirement::NodeSelectorRequirementWithMinValues;
use crate::resources::ResourceList;
use crate::schema;

/// What a NodePool's nodes look like and how they are kept.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    doc = "NodePool says which nodes Karpenter may launch for pods that need room, and when it may replace or remove them.",
    status = "NodePoolStatus",
    category = "karpenter",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.nodes"),
    printcolumn(
        name = "NodeClass",
        type_ = "string",
        json_path = ".spec.template.spec.nodeClassRef.name"
    ),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.resources.cpu", priority = 1),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.resources.memory",
        priority = 1
    ),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("has(self.replicas) == has(oldSelf.replicas)", "a NodePool can't change between static (with replicas) and dynamic (without); make a new one"),
    schema::rule("!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits))", "with replicas set, only limits.nodes is supported"),
    schema::rule("!has(self.replicas) || !has(self.weight)", "replicas and weight can't both be set"),
]))]
pub struct NodePoolSpec {
    /// What each NodeClaim of the pool is made from.
    pub template: NodeClaimTemplate,
    /// When and how fast nodes may be disrupted.
    #[serde(default)]
    #[schemars(extend("default" = json!({ "consolidateAfter": "0s" })))]
    pub disruption: Disruption,
    /// Caps on the pool's total resources, such as cpu or memory; the key nodes caps the number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
    /// Pools of higher weight are tried first. Unset counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
    /// Keeps exactly so many nodes whatever pods there are, instead of following demand. Alpha.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i64>,
}

/// What the pool's NodeClaims are made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NodeClaimTemplate {
    /// Labels and annotations that every node of the pool gets.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// What every NodeClaim of the pool asks for.
    pub spec: NodeClaimTemplateSpec,
}

/// Metadata of the nodes to be.
///
/// Absent and empty maps are different things to the pool's static hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct TemplateMetadata {
    /// Labels that every node of the pool gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "template_labels")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations that every node of the pool gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "granular"))]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl TemplateMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_none() && self.annotations.is_none()
    }
}

fn template_labels(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 100,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": schema::LABEL_VALUE },
        "x-kubernetes-validations": [
            schema::rule(
                "self.all(key, key in ['karpenter.sh/capacity-type', 'karpenter.sh/nodepool'] || !key.find('^[^/]+').endsWith('karpenter.sh'))",
                "label domain karpenter.sh is restricted; use a domain of your own",
            ),
            schema::rule("self.all(key, key != 'karpenter.sh/nodepool')", "label karpenter.sh/nodepool is set by Karpenter; remove it"),
            schema::rule("self.all(key, key != 'kubernetes.io/hostname')", "label kubernetes.io/hostname is set by the node; remove it"),
        ],
    })
}

/// What every NodeClaim of the pool asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodeClaimTemplateSpec {
    /// Taints that nodes keep; pods must tolerate them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that nodes start with and that something else removes soon; scheduling looks past them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// What the nodes' labels must satisfy: instance types, zones, architectures and so on.
    #[schemars(schema_with = "schema::node_pool_requirements")]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// The provider's configuration for the machines.
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule("self.group == oldSelf.group", "nodeClassRef.group is immutable"),
        schema::rule("self.kind == oldSelf.kind", "nodeClassRef.kind is immutable"),
    ]))]
    pub node_class_ref: NodeClassReference,
    /// How long a node may drain before its remaining pods are deleted. Unset waits without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<GoDuration>,
    /// How long a node lives before it is replaced, or Never.
    #[serde(default = "default_expire_after")]
    pub expire_after: NillableDuration,
}

pub(crate) fn default_expire_after() -> NillableDuration {
    "720h".parse().expect("720h is a duration")
}

fn default_consolidate_after() -> NillableDuration {
    "0s".parse().expect("0s is a duration")
}

fn default_budgets() -> Vec<Budget> {
    vec![Budget::default()]
}

/// When and how fast nodes may be disrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct Disruption {
    /// How long a node must go without a pod coming or leaving before it may be consolidated, or Never.
    #[serde(default = "default_consolidate_after")]
    pub consolidate_after: NillableDuration,
    /// Which nodes may be consolidated.
    #[serde(default)]
    pub consolidation_policy: ConsolidationPolicy,
    /// How many nodes may be disrupted at once; the tightest budget that applies wins. An empty list sets no limit.
    #[serde(default = "default_budgets")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        schema::rule("self.all(budget, has(budget.schedule) == has(budget.duration))", "schedule and duration must be set together"),
    ]))]
    pub budgets: Vec<Budget>,
}

impl Default for Disruption {
    fn default() -> Self {
        Self {
            consolidate_after: default_consolidate_after(),
            consolidation_policy: ConsolidationPolicy::default(),
            budgets: default_budgets(),
        }
    }
}

/// Which nodes may be consolidated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ConsolidationPolicy {
    WhenEmpty,
    #[default]
    WhenEmptyOrUnderutilized,
    Balanced,
}

/// What Karpenter observed of the pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodePoolStatus {
    /// Sum of the resources of the pool's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceList>,
    /// Number of nodes in the pool.
    #[serde(default)]
    pub nodes: i64,
    /// Generation of the NodeClass that was last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// Whether the pool is usable, and what stands in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The pool's own definition passed runtime validation.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
/// The referenced NodeClass exists and is ready.
pub const NODE_CLASS_READY: &str = "NodeClassReady";
/// Recent nodes of the pool registered; informational.
pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";
/// Nothing of the pool is disrupted voluntarily; there only while that is so.
pub const DISRUPTION_PAUSED: &str = "DisruptionPaused";

impl StatusConditions for NodePool {
    const DEPENDENTS: &'static [&'static str] = &[VALIDATION_SUCCEEDED, NODE_CLASS_READY];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

impl NodePool {
    /// Whether the pool keeps a fixed number of nodes.
    pub fn is_static(&self) -> bool {
        self.spec.replicas.is_some()
    }

    /// The weight, 0 when unset.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or(0)
    }
}
