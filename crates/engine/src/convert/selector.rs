//! Label selectors and the namespaces of pod affinity terms.

use k8s_openapi::{api::core::v1 as kube, apimachinery::pkg::apis::meta::v1 as meta};

use crate::model::{LabelSelector, NamespaceScope, SelectorOperator, SelectorRequirement};

/// A selector that is missing or invalid selects nothing, an empty one everything.
pub fn label_selector(selector: Option<&meta::LabelSelector>) -> LabelSelector {
    let Some(selector) = selector else {
        return LabelSelector::Nothing;
    };
    let labels = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| SelectorRequirement::is(key, value));
    let mut requirements: Vec<SelectorRequirement> = labels.collect();
    for expression in selector.match_expressions.iter().flatten() {
        let Some(requirement) = selector_requirement(expression) else {
            return LabelSelector::Nothing;
        };
        requirements.push(requirement);
    }
    LabelSelector::all(requirements)
}

fn selector_requirement(expression: &meta::LabelSelectorRequirement) -> Option<SelectorRequirement> {
    let values = expression.values.clone().unwrap_or_default();
    let operator = match (expression.operator.as_str(), values.is_empty()) {
        ("In", false) => SelectorOperator::In,
        ("NotIn", false) => SelectorOperator::NotIn,
        ("Exists", true) => SelectorOperator::Exists,
        ("DoesNotExist", true) => SelectorOperator::DoesNotExist,
        _ => return None,
    };
    Some(SelectorRequirement {
        key: expression.key.clone(),
        operator,
        values,
    })
}

/// Which namespaces a pod (anti-)affinity term looks into (scheduling.md §5.2).
pub fn namespace_scope(term: &kube::PodAffinityTerm) -> NamespaceScope {
    let listed = term.namespaces.iter().flatten().cloned().collect();
    match &term.namespace_selector {
        Some(selector) => NamespaceScope::Selected {
            selector: label_selector(Some(selector)),
            listed,
        },
        None if listed.is_empty() => NamespaceScope::Own,
        None => NamespaceScope::Listed(listed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Labels;
    use serde_json::{Value, json};

    fn check(selector: Value, label: (&str, &str), expect: bool) {
        let selector: Option<meta::LabelSelector> = serde_json::from_value(selector).unwrap();
        let labels = Labels::from([(label.0.to_owned(), label.1.to_owned())]);
        assert_eq!(
            label_selector(selector.as_ref()).matches(&labels),
            expect,
            "{selector:?}"
        );
    }

    #[test]
    fn labels_and_expressions_must_all_hold() {
        let both = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["db"] }] });
        check(both.clone(), ("app", "web"), true);
        check(both, ("app", "db"), false);
    }

    #[test]
    fn a_missing_or_invalid_selector_selects_nothing() {
        check(json!(null), ("app", "web"), false);
        check(
            json!({ "matchExpressions": [{ "key": "app", "operator": "In" }] }),
            ("app", "web"),
            false,
        );
        check(
            json!({ "matchExpressions": [{ "key": "app", "operator": "Like", "values": ["w"] }] }),
            ("app", "web"),
            false,
        );
    }

    #[test]
    fn an_empty_selector_selects_everything() {
        check(json!({}), ("app", "web"), true);
    }

    fn scope(term: Value) -> NamespaceScope {
        namespace_scope(&serde_json::from_value(term).unwrap())
    }

    #[test]
    fn a_term_looks_into_its_own_namespace_unless_it_says_otherwise() {
        assert_eq!(scope(json!({ "topologyKey": "k" })), NamespaceScope::Own);
        assert_eq!(
            scope(json!({ "topologyKey": "k", "namespaces": ["a"] })),
            NamespaceScope::Listed(["a".to_owned()].into())
        );
        assert_eq!(
            scope(json!({ "topologyKey": "k", "namespaces": ["a"], "namespaceSelector": {} })),
            NamespaceScope::Selected {
                selector: LabelSelector::everything(),
                listed: ["a".to_owned()].into()
            }
        );
    }
}
