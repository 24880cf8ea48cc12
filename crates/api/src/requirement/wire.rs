//! Requirements as users write them in manifests, and back.

use k8s_openapi::api::core::v1::NodeSelectorRequirement as KubeRequirement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operator, OperatorError, Requirement, Requirements};
use crate::labels::LabelRules;

/// A requirement of a NodePool or NodeClaim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodeSelectorRequirementWithMinValues {
    /// The label key that the requirement is about.
    #[schemars(length(max = 316), regex(pattern = crate::schema::QUALIFIED_NAME))]
    pub key: String,
    /// How the values restrict the label.
    pub operator: Operator,
    /// The values: at least one for In, exactly one whole number for Gt, Lt, Gte and Lte, none for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// How many distinct values of the key must stay possible after scheduling, so that the cloud has a choice. Alpha.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 50))]
    pub min_values: Option<u32>,
}

/// A requirement of a NodeOverlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct NodeSelectorRequirement {
    /// The label key that the requirement is about.
    #[schemars(length(max = 316), regex(pattern = crate::schema::QUALIFIED_NAME))]
    pub key: String,
    /// How the values restrict the label.
    pub operator: Operator,
    /// The values: at least one for In and NotIn, exactly one whole number for Gt, Lt, Gte and Lte, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl NodeSelectorRequirementWithMinValues {
    pub fn new<V: Into<String>>(key: &str, operator: Operator, values: impl IntoIterator<Item = V>) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self {
            key: key.to_owned(),
            operator,
            values,
            min_values: None,
        }
    }

    /// The requirement with key and values normalised by the rules.
    pub fn parsed(&self, rules: &LabelRules) -> Requirement {
        let requirement = Requirement::normalised(rules, &self.key, self.operator, &self.values);
        // `Gt` of the largest integer is a contradiction from the start and carries no minValues (scheduling.md §1.1).
        let contradiction = self.operator.is_numeric() && requirement.operator() == Operator::DoesNotExist;
        requirement.with_min_values(if contradiction { None } else { self.min_values })
    }
}

impl NodeSelectorRequirement {
    /// The requirement with key and values normalised by the rules.
    pub fn parsed(&self, rules: &LabelRules) -> Requirement {
        Requirement::normalised(rules, &self.key, self.operator, &self.values)
    }
}

impl Requirement {
    /// A requirement of a pod's node affinity or of a volume's topology.
    pub fn from_kube(rules: &LabelRules, requirement: &KubeRequirement) -> Result<Self, OperatorError> {
        let values = requirement.values.as_deref().unwrap_or_default();
        Ok(Self::normalised(
            rules,
            &requirement.key,
            requirement.operator.parse()?,
            values,
        ))
    }

    /// The entries that say the same in a NodeClaim's `spec.requirements`, values sorted.
    ///
    /// Bounds become `Gte`/`Lte` entries; excluded values next to bounds keep their own `NotIn` entry, which upstream loses
    /// (scheduling.md Q-8).
    pub fn to_wire(&self) -> Vec<NodeSelectorRequirementWithMinValues> {
        let entry = |operator, values: Vec<String>| NodeSelectorRequirementWithMinValues {
            key: self.key.clone(),
            operator,
            values,
            min_values: self.min_values,
        };
        let mut entries = Vec::new();
        if let Some(gte) = self.gte {
            entries.push(entry(Operator::Gte, vec![gte.to_string()]));
        }
        if let Some(lte) = self.lte {
            entries.push(entry(Operator::Lte, vec![lte.to_string()]));
        }
        let bounded = !entries.is_empty();
        match self.operator() {
            Operator::Exists if bounded => {}
            operator => entries.push(entry(operator, self.values.to_vec())),
        }
        entries
    }
}

impl Requirements {
    /// The entries of a NodeClaim's `spec.requirements`, ordered by key.
    pub fn to_wire(&self) -> Vec<NodeSelectorRequirementWithMinValues> {
        self.iter().flat_map(Requirement::to_wire).collect()
    }

    pub fn from_wire<'a>(
        rules: &LabelRules,
        entries: impl IntoIterator<Item = &'a NodeSelectorRequirementWithMinValues>,
    ) -> Self {
        entries.into_iter().map(|entry| entry.parsed(rules)).collect()
    }
}
