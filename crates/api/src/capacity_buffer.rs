//! CapacityBuffer: room that is kept ready for pods to come.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, ConditionStatus};
use crate::resources::ResourceList;
use crate::schema;

/// The provisioning strategy that a buffer has unless it names another.
pub const ACTIVE_CAPACITY: &str = "buffer.x-k8s.io/active-capacity";

/// How much room is kept, and for what kind of pod.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1beta1",
    kind = "CapacityBuffer",
    doc = "CapacityBuffer keeps room ready for pods that are yet to come, so that they start without waiting for a node.",
    namespaced,
    status = "CapacityBufferStatus",
    category = "autoscaling",
    shortname = "cb",
    printcolumn(
        name = "Strategy",
        type_ = "string",
        description = "How the room is kept.",
        json_path = ".spec.provisioningStrategy"
    ),
    printcolumn(
        name = "PodTemplate",
        type_ = "string",
        description = "The pod template that the room is for.",
        json_path = ".status.podTemplateRef.name"
    ),
    printcolumn(
        name = "Replicas",
        type_ = "integer",
        description = "How many pods there is room for.",
        json_path = ".status.replicas"
    ),
    printcolumn(
        name = "ConditionsType",
        type_ = "string",
        description = "The buffer's condition types.",
        json_path = ".status.conditions[*].type"
    ),
    printcolumn(
        name = "ConditionsStatus",
        type_ = "string",
        description = "The statuses of the buffer's conditions.",
        json_path = ".status.conditions[*].status"
    ),
    printcolumn(
        name = "ConditionsReason",
        type_ = "string",
        description = "The reasons of the buffer's conditions.",
        json_path = ".status.conditions[*].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "How long the buffer has existed.",
        json_path = ".metadata.creationTimestamp"
    ),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [
    schema::rule("!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)", "with podTemplateRef, replicas or limits must be set"),
    schema::rule("!has(self.podTemplateRef) || !has(self.scalableRef)", "podTemplateRef and scalableRef can't both be set"),
]))]
pub struct CapacityBufferSpec {
    /// How the room is kept.
    #[serde(default = "default_strategy")]
    pub provisioning_strategy: String,
    /// A PodTemplate in the same namespace that says what the room must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// A workload in the same namespace whose pods say what the room must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_ref: Option<ScalableRef>,
    /// Room for so many pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Room for so many percent of the workload's pods, rounded up. Of this and replicas, the larger counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub percentage: Option<i32>,
    /// Caps on the room's total resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

fn default_strategy() -> String {
    ACTIVE_CAPACITY.to_owned()
}

/// The name of an object in the buffer's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LocalObjectRef {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// A workload in the buffer's namespace that has a scale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct ScalableRef {
    /// API group of the workload; empty means apps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind of the workload: Deployment, StatefulSet or ReplicaSet.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Name of the workload.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// What Karpenter resolved and provisioned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct CapacityBufferStatus {
    /// The pod template that the room is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// Generation of the pod template that was last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_generation: Option<i64>,
    /// How many pods there is room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The strategy in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
    /// Whether the buffer could be resolved and whether its room is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl CapacityBuffer {
    /// A condition as it was last written.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Sets a condition at the buffer's generation; its time changes only with its status.
    pub fn set_condition(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str, now: Timestamp) {
        let since = match self.condition(type_) {
            Some(present) if present.status == status => present.last_transition_time.clone(),
            Some(_) | None => Time(now),
        };
        let wanted = Condition {
            type_: type_.to_owned(),
            status,
            observed_generation: self.metadata.generation,
            last_transition_time: since,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let conditions = &mut self.status.get_or_insert_default().conditions;
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(present) => *present = wanted,
            None => conditions.push(wanted),
        }
    }
}

/// Condition types of a CapacityBuffer; there is no root condition.
pub mod condition {
    pub const READY_FOR_PROVISIONING: &str = "ReadyForProvisioning";
    pub const PROVISIONING: &str = "Provisioning";
    /// Reserved; never written.
    pub const LIMITED_BY_QUOTAS: &str = "LimitedByQuotas";
}
