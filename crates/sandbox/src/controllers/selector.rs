//! Label and node selectors, compiled once from their API types and matched often.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub(crate) type Labels = BTreeMap<String, String>;

/// A LabelSelector: all requirements must hold. Without requirements it matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Requirement {
    pub(crate) key: String,
    pub(crate) operator: Operator,
    pub(crate) values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    /// Something this server doesn't know; matches nothing.
    Unknown,
}

impl Operator {
    fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => Self::Unknown,
        }
    }
}

impl Requirement {
    fn new(key: &str, operator: &str, values: Option<&Vec<String>>) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::parse(operator),
            values: values.cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn equals(key: &str, value: &str) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec![value.to_owned()],
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.iter().any(|w| w == v)),
            Operator::NotIn => !value.is_some_and(|v| self.values.iter().any(|w| w == v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => self.compares(value, |have, want| have > want),
            Operator::Lt => self.compares(value, |have, want| have < want),
            Operator::Unknown => false,
        }
    }

    fn compares(&self, value: Option<&str>, holds: impl Fn(i64, i64) -> bool) -> bool {
        let have = value.and_then(|v| v.parse::<i64>().ok());
        let want = self.values.first().and_then(|v| v.parse::<i64>().ok());
        matches!((have, want), (Some(have), Some(want)) if holds(have, want))
    }
}

impl Selector {
    pub(crate) fn new(selector: &LabelSelector) -> Self {
        let equal = selector
            .match_labels
            .iter()
            .flatten()
            .map(|(k, v)| Requirement::equals(k, v));
        let expressions = selector.match_expressions.iter().flatten();
        let expressions = expressions.map(|e| Requirement::new(&e.key, &e.operator, e.values.as_ref()));
        Self {
            requirements: equal.chain(expressions).collect(),
        }
    }

    pub(crate) fn from_labels(labels: &Labels) -> Self {
        Self {
            requirements: labels.iter().map(|(k, v)| Requirement::equals(k, v)).collect(),
        }
    }

    pub(crate) fn with(mut self, requirement: Requirement) -> Self {
        self.requirements.push(requirement);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.requirements
            .iter()
            .all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
    }
}

/// Required node affinity: any term must match; a term without requirements matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerms(pub(crate) Vec<NodeTerm>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerm {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl NodeTerms {
    pub(crate) fn new(selector: &NodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().map(NodeTerm::new).collect())
    }

    pub(crate) fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.matches(name, labels))
    }
}

impl NodeTerm {
    pub(crate) fn new(term: &NodeSelectorTerm) -> Self {
        let compile = |list: &Option<Vec<NodeSelectorRequirement>>| -> Vec<Requirement> {
            list.iter()
                .flatten()
                .map(|e| Requirement::new(&e.key, &e.operator, e.values.as_ref()))
                .collect()
        };
        Self {
            labels: compile(&term.match_expressions),
            fields: compile(&term.match_fields),
        }
    }

    pub(crate) fn matches(&self, name: &str, labels: &Labels) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        self.labels
            .iter()
            .all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
            && self
                .fields
                .iter()
                .all(|r| r.matches((r.key == "metadata.name").then_some(name)))
    }

    /// The node names that this term pins a pod to, as DaemonSet pods are.
    pub(crate) fn pinned_names(&self) -> Option<&[String]> {
        let pin = self
            .fields
            .iter()
            .find(|r| r.key == "metadata.name" && r.operator == Operator::In)?;
        Some(&pin.values)
    }
}
