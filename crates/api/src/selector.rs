//! Label selectors, parsed once from objects or from `kubectl -l` text and matched against labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A conjunction of demands on labels. The empty selector matches everything.
///
/// A selector that is absent from an object is not an empty one: callers decide what "none" means (usually: nothing).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Vec<Term>);

/// One demand of a selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Term {
    In {
        key: String,
        values: BTreeSet<String>,
    },
    /// Also satisfied when the label is absent.
    NotIn {
        key: String,
        values: BTreeSet<String>,
    },
    Exists {
        key: String,
    },
    DoesNotExist {
        key: String,
    },
}

/// Why a selector can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("\"{0}\" is not a label selector operator; use In, NotIn, Exists or DoesNotExist")]
    UnknownOperator(String),
    #[error("operator {operator} on label \"{key}\" needs at least one value")]
    NeedsValues { operator: &'static str, key: String },
    #[error("operator {operator} on label \"{key}\" takes no values")]
    TakesNoValues { operator: &'static str, key: String },
    #[error("\"{0}\" is not a label selector; write terms such as app=web, tier!=db, env in (a,b), gpu or !gpu")]
    Malformed(String),
}

impl Selector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    pub fn terms(&self) -> &[Term] {
        &self.0
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|term| term.matches(labels))
    }

    fn from_terms(mut terms: Vec<Term>) -> Self {
        terms.sort();
        terms.dedup();
        Self(terms)
    }
}

impl Term {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::In { key, values } => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn { key, values } => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists { key } => labels.contains_key(key),
            Self::DoesNotExist { key } => !labels.contains_key(key),
        }
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = SelectorError;

    fn try_from(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let equalities = selector.match_labels.iter().flatten();
        let mut terms: Vec<Term> = equalities
            .map(|(key, value)| Term::In {
                key: key.clone(),
                values: [value.clone()].into(),
            })
            .collect();
        for expression in selector.match_expressions.iter().flatten() {
            let key = expression.key.clone();
            let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
            terms.push(match expression.operator.as_str() {
                "In" if values.is_empty() => return Err(SelectorError::NeedsValues { operator: "In", key }),
                "NotIn" if values.is_empty() => return Err(SelectorError::NeedsValues { operator: "NotIn", key }),
                "In" => Term::In { key, values },
                "NotIn" => Term::NotIn { key, values },
                operator @ ("Exists" | "DoesNotExist") if !values.is_empty() => {
                    let operator = if operator == "Exists" { "Exists" } else { "DoesNotExist" };
                    return Err(SelectorError::TakesNoValues { operator, key });
                }
                "Exists" => Term::Exists { key },
                "DoesNotExist" => Term::DoesNotExist { key },
                other => return Err(SelectorError::UnknownOperator(other.to_owned())),
            });
        }
        Ok(Self::from_terms(terms))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    /// The text form of `kubectl -l`.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let malformed = || SelectorError::Malformed(text.chars().take(64).collect());
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut terms = Vec::new();
        for part in split_outside_parentheses(text) {
            terms.push(parse_term(part.trim()).ok_or_else(malformed)?);
        }
        Ok(Self::from_terms(terms))
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(move |c| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .collect()
}

fn parse_term(text: &str) -> Option<Term> {
    let key_of = |text: &str| {
        let key = text.trim();
        let plain = !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || "()!=,".contains(c));
        plain.then(|| key.to_owned())
    };
    if let Some(key) = text.strip_prefix('!') {
        return Some(Term::DoesNotExist { key: key_of(key)? });
    }
    if let Some(listed) = text.strip_suffix(')') {
        let (head, values) = listed.split_once('(')?;
        if values.contains('(') || values.contains(')') {
            return None;
        }
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, operator) = head.trim_end().rsplit_once(char::is_whitespace)?;
        let key = key_of(key)?;
        return match operator {
            "in" => Some(Term::In { key, values }),
            "notin" => Some(Term::NotIn { key, values }),
            _ => None,
        };
    }
    let value_of = |text: &str| {
        let value = text.trim();
        (!value.contains(|c: char| c.is_whitespace() || "()!=,".contains(c)))
            .then(|| BTreeSet::from([value.to_owned()]))
    };
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Term::NotIn {
            key: key_of(key)?,
            values: value_of(value)?,
        });
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Term::In {
            key: key_of(key)?,
            values: value_of(value)?,
        });
    }
    Some(Term::Exists { key: key_of(text)? })
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, term) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        match self {
            Self::In { key, values } if values.len() == 1 => write!(f, "{key}={}", listed(values)),
            Self::In { key, values } => write!(f, "{key} in ({})", listed(values)),
            Self::NotIn { key, values } if values.len() == 1 => write!(f, "{key}!={}", listed(values)),
            Self::NotIn { key, values } => write!(f, "{key} notin ({})", listed(values)),
            Self::Exists { key } => f.write_str(key),
            Self::DoesNotExist { key } => write!(f, "!{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn selectors_match_as_kubernetes_does() {
        for (selector, object, expected) in [
            ("", "", true),
            ("", "a=1", true),
            ("a=1", "a=1", true),
            ("a==1", "a=1", true),
            ("a=1", "a=2", false),
            ("a=1", "", false),
            ("a!=1", "a=2", true),
            ("a!=1", "", true),
            ("a in (1, 2)", "a=2", true),
            ("a in (1,2),b", "a=2", false),
            ("a notin (1,2)", "a=3", true),
            ("a notin (1,2)", "", true),
            ("a", "a=", true),
            ("!a", "a=1", false),
            ("!a", "b=1", true),
            ("a=", "a=", true),
        ] {
            let parsed: Selector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&labels(object)), expected, "{selector} on {object}");
        }
    }

    #[test]
    fn texts_that_are_no_selector_are_refused() {
        for text in [
            "=",
            "a b",
            "a in",
            "a in (",
            "a in 1",
            "in (a)",
            "a=b=c",
            "a=(b)",
            "!",
            ",",
            "a,,b",
            "a like (b)",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }

    #[test]
    fn objects_selectors_are_checked_for_their_values() {
        let parse = |value: serde_json::Value| {
            let selector: LabelSelector = serde_json::from_value(value).unwrap();
            Selector::try_from(&selector)
        };
        let both =
            parse(json!({ "matchLabels": { "a": "1" }, "matchExpressions": [{ "key": "b", "operator": "Exists" }] }));
        assert_eq!(both.unwrap().to_string(), "a=1,b");
        assert_eq!(parse(json!({})).unwrap(), Selector::everything());
        for (operator, values) in [
            ("In", json!([])),
            ("NotIn", json!([])),
            ("Exists", json!(["x"])),
            ("Near", json!(["x"])),
        ] {
            let result = parse(json!({ "matchExpressions": [{ "key": "b", "operator": operator, "values": values }] }));
            assert!(result.is_err(), "{operator}");
        }
    }
}
