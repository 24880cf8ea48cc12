//! What makes a pending pod one that no solve should look at (scheduling.md §3.3).

use std::fmt;

use k8s_openapi::api::core::v1 as kube;
use karpenter_api::{Requirement, labels::LabelRules, validation};

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
            Self::Requirement { key, problem } => {
                write!(f, "the pod's requirement on label {key} can't be used: {problem}")
            }
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
    let findings = validation::requirement(rules, "", expression);
    problems.extend(findings.into_iter().map(|finding| PodProblem::Requirement {
        key: key.to_owned(),
        problem: finding.problem,
    }));
    Requirement::from_kube(rules, expression).ok()
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
        check("karpenter.sh/custom", "Exists", &[], &["reserved domain karpenter.sh"]);
        check(
            "sub.karpenter.sh/custom",
            "Exists",
            &[],
            &["reserved domain karpenter.sh"],
        );
        check("kubernetes.io/hostname", "In", &["a"], &["set by the node itself"]);
    }

    #[test]
    fn broken_expressions_say_what_is_wrong() {
        check("team", "Like", &["a"], &["Like"]);
        check("team", "In", &[], &["at least one value"]);
        check("cpu", "Gt", &["four"], &["whole number"]);
        check(
            "karpenter.sh/capacity-type",
            "In",
            &["weird"],
            &["on-demand, reserved, spot"],
        );
    }
}
