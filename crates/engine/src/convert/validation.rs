//! What makes a pending pod one that no solve should look at (scheduling.md §3.3).

use std::fmt;

use k8s_openapi::api::core::v1 as kube;
use karpenter_api::{
    Requirement,
    labels::{HOSTNAME, LabelRules},
    requirement::Operator,
};

/// One thing that is wrong with a pending pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodProblem {
    /// It asks for a node without a NodePool label: not Karpenter's business, and no event is due.
    AvoidsNodePools,
    /// A node selector entry or node affinity expression can't be used.
    Requirement { key: String, problem: String },
    /// A required term selects by node fields.
    MatchFields,
    /// A PersistentVolumeClaim that can't be placed.
    Volume { claim: String, problem: String },
}

impl PodProblem {
    /// A stable name for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AvoidsNodePools => "AvoidsNodePools",
            Self::Requirement { .. } => "InvalidRequirement",
            Self::MatchFields => "UnsupportedMatchFields",
            Self::Volume { .. } => "VolumeUnresolved",
        }
    }
}

impl fmt::Display for PodProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AvoidsNodePools => f.write_str("the pod asks for a node without the label karpenter.sh/nodepool"),
            Self::Requirement { key, problem } => write!(f, "the pod's requirement on label {key} {problem}"),
            Self::MatchFields => f.write_str(
                "the pod's required node affinity uses matchFields, which can't be honoured; use matchExpressions",
            ),
            Self::Volume { claim, problem } => write!(f, "volume claim {claim} {problem}"),
        }
    }
}

pub(super) fn check_selector_entry(rules: &LabelRules, key: &str, value: &str, problems: &mut Vec<PodProblem>) {
    let expression = kube::NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![value.to_owned()]),
    };
    check_expression(rules, &expression, problems);
}

pub(super) fn check_term(term: &kube::NodeSelectorTerm, problems: &mut Vec<PodProblem>) {
    let fields = term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty());
    if fields && !problems.contains(&PodProblem::MatchFields) {
        problems.push(PodProblem::MatchFields);
    }
}

/// The requirement that an expression states, and every rule that it breaks.
pub(super) fn check_expression(
    rules: &LabelRules,
    expression: &kube::NodeSelectorRequirement,
    problems: &mut Vec<PodProblem>,
) -> Option<Requirement> {
    let key = rules.canonical_key(&expression.key);
    let mut wrong = |problem: String| {
        problems.push(PodProblem::Requirement {
            key: key.to_owned(),
            problem,
        });
    };
    let Ok(operator) = expression.operator.parse::<Operator>() else {
        wrong(format!(
            "has operator \"{}\"; use In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte",
            expression.operator
        ));
        return None;
    };
    let values = expression.values.as_deref().unwrap_or_default();
    if rules.is_restricted(key) {
        match rules.restricted_domain_of(key) {
            Some(domain) => wrong(format!("is not allowed: labels of {domain} are set by Karpenter")),
            None => wrong(format!("is not allowed: {HOSTNAME} is only known once the node exists")),
        }
    }
    if !is_qualified_name(key) {
        wrong("is not a valid label key; use [prefix/]name of letters, digits, '-', '_' and '.'".to_owned());
    }
    for value in values.iter().filter(|value| !is_label_value(value)) {
        wrong(format!("has value \"{value}\", which no label can have"));
    }
    if operator == Operator::In && values.is_empty() {
        wrong("uses In without values".to_owned());
    }
    if operator.is_numeric() {
        let number = match values {
            [value] => value.parse::<i64>().ok().filter(|number| *number >= 0),
            _ => None,
        };
        if number.is_none() {
            wrong(format!(
                "uses {} without exactly one whole number of at least 0",
                expression.operator
            ));
        }
    }
    if let Some(known) = rules.known_values(key)
        && operator == Operator::In
        && !values.is_empty()
        && !values.iter().any(|value| known.contains(value))
    {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        wrong(format!("allows none of {}", known.join(", ")));
    }
    Some(Requirement::normalised(rules, key, operator, values))
}

/// `[prefix/]name`, as Kubernetes checks label keys.
fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_dns_subdomain(prefix: &str) -> bool {
    let lower = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter().all(|end| end.is_some_and(lower)) && bytes.iter().all(|b| lower(b) || *b == b'-')
    };
    prefix.len() <= 253 && prefix.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, operator: &str, values: &[&str], expect: &[&str]) {
        let expression = kube::NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        };
        let mut problems = Vec::new();
        check_expression(&LabelRules::default(), &expression, &mut problems);
        let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(sentences.len(), expect.len(), "{sentences:?}");
        for (sentence, part) in sentences.iter().zip(expect) {
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn good_expressions_pass() {
        check("example.com/team", "In", &["a"], &[]);
        check("node.kubernetes.io/x", "Exists", &[], &[]);
        check("cpu", "Gt", &["4"], &[]);
        check("karpenter.sh/capacity-type", "In", &["spot", "weird"], &[]);
        check("topology.kubernetes.io/zone", "NotIn", &["a"], &[]);
    }

    #[test]
    fn restricted_labels_are_refused() {
        check("karpenter.sh/custom", "Exists", &[], &["labels of karpenter.sh"]);
        check("sub.karpenter.sh/custom", "Exists", &[], &["labels of karpenter.sh"]);
        check(
            "kubernetes.io/hostname",
            "In",
            &["a"],
            &["only known once the node exists"],
        );
    }

    #[test]
    fn broken_expressions_say_what_is_wrong() {
        check("team", "Like", &["a"], &["operator \"Like\""]);
        check("team", "In", &[], &["without values"]);
        check("cpu", "Gt", &["four"], &["whole number"]);
        check("cpu", "Lt", &["1", "2"], &["whole number"]);
        check("cpu", "Gte", &["-1"], &["has value \"-1\"", "whole number"]);
        check("-team", "Exists", &[], &["not a valid label key"]);
        check("Example.com/team", "Exists", &[], &["not a valid label key"]);
        check(
            "karpenter.sh/capacity-type",
            "In",
            &["weird"],
            &["allows none of on-demand, reserved, spot"],
        );
    }
}
