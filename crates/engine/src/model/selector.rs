//! Label selectors, parsed once, and the namespaces that a pod (anti-)affinity term looks into.

use std::collections::BTreeSet;

use super::Labels;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SelectorRequirement {
    pub key: String,
    pub operator: SelectorOperator,
    /// Sorted, so that equal selectors are equal values.
    pub values: Vec<String>,
}

impl SelectorRequirement {
    pub fn is(key: impl Into<String>, value: impl Into<String>) -> SelectorRequirement {
        SelectorRequirement {
            key: key.into(),
            operator: SelectorOperator::In,
            values: vec![value.into()],
        }
    }

    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            SelectorOperator::In => value.is_some_and(|value| self.values.contains(value)),
            SelectorOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            SelectorOperator::Exists => value.is_some(),
            SelectorOperator::DoesNotExist => value.is_none(),
        }
    }
}

/// Which labels are selected. A missing or invalid selector selects nothing; an empty one selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum LabelSelector {
    #[default]
    Nothing,
    /// All of these hold. Sorted by key, so that equal selectors are equal values.
    All(Vec<SelectorRequirement>),
}

impl LabelSelector {
    pub fn everything() -> LabelSelector {
        LabelSelector::All(Vec::new())
    }

    /// All of `requirements`, in canonical order.
    pub fn all(mut requirements: Vec<SelectorRequirement>) -> LabelSelector {
        for requirement in &mut requirements {
            requirement.values.sort();
            requirement.values.dedup();
        }
        requirements.sort();
        requirements.dedup();
        LabelSelector::All(requirements)
    }

    pub fn labels<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> LabelSelector {
        LabelSelector::all(
            labels
                .into_iter()
                .map(|(key, value)| SelectorRequirement::is(key, value))
                .collect(),
        )
    }

    /// This selector and `more`; nothing stays nothing.
    pub fn and(&self, more: impl IntoIterator<Item = SelectorRequirement>) -> LabelSelector {
        match self {
            LabelSelector::Nothing => LabelSelector::Nothing,
            LabelSelector::All(own) => LabelSelector::all(own.iter().cloned().chain(more).collect()),
        }
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            LabelSelector::Nothing => false,
            LabelSelector::All(requirements) => requirements.iter().all(|requirement| requirement.matches(labels)),
        }
    }

    /// The label keys whose values decide; two label sets that agree on them are selected alike.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let requirements = match self {
            LabelSelector::Nothing => &[][..],
            LabelSelector::All(requirements) => requirements,
        };
        requirements.iter().map(|requirement| requirement.key.as_str())
    }
}

/// The namespaces of a pod (anti-)affinity term, before the namespaces of the cluster are known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum NamespaceScope {
    /// Neither list nor selector: the pod's own namespace.
    #[default]
    Own,
    /// Exactly the list.
    Listed(BTreeSet<String>),
    /// The namespaces that the selector matches (an empty one matches all), and those of the list.
    Selected {
        selector: LabelSelector,
        listed: BTreeSet<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operator: SelectorOperator, values: &[&str], labels: &[(&str, &str)], expect: bool) {
        let labels: Labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let selector = LabelSelector::all(vec![SelectorRequirement {
            key: "app".into(),
            operator,
            values,
        }]);
        assert_eq!(selector.matches(&labels), expect, "{selector:?} on {labels:?}");
    }

    #[test]
    fn selectors_follow_kubernetes() {
        check(SelectorOperator::In, &["a", "b"], &[("app", "b")], true);
        check(SelectorOperator::In, &["a"], &[], false);
        check(SelectorOperator::NotIn, &["a"], &[], true);
        check(SelectorOperator::NotIn, &["a"], &[("app", "a")], false);
        check(SelectorOperator::Exists, &[], &[("app", "")], true);
        check(SelectorOperator::DoesNotExist, &[], &[("app", "")], false);
    }

    #[test]
    fn nothing_selects_nothing_and_everything_selects_everything() {
        let labels = Labels::new();
        assert!(!LabelSelector::Nothing.matches(&labels));
        assert!(LabelSelector::everything().matches(&labels));
        assert_eq!(
            LabelSelector::Nothing.and([SelectorRequirement::is("a", "b")]),
            LabelSelector::Nothing
        );
    }
}
