//! Label and field selectors: which objects a list or a watch is about.

use serde_json::Value;

use crate::object::Object;
use crate::resource::Resource;
use crate::status::ApiError;

/// Both selectors of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl Selector {
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.fields.matches(object) && self.labels.matches(|key| object.label(key))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.0.is_empty() && self.fields.0.is_empty()
    }
}

/// All requirements must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Parses the text form: `a=b,c in (d,e),!f`.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        split_requirements(text)
            .into_iter()
            .map(|part| {
                Requirement::parse(part)
                    .ok_or_else(|| ApiError::bad_request(format!("unable to parse requirement: {part:?} is malformed")))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Reads a `LabelSelector` object; `None` if it has an operator that does not exist.
    pub(crate) fn from_object(selector: &Value) -> Option<Self> {
        let mut requirements: Vec<Requirement> = selector["matchLabels"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::In(vec![value.as_str().unwrap_or_default().to_owned()]),
            })
            .collect();
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let values = || expression["values"].as_array().into_iter().flatten();
            let values = || values().filter_map(Value::as_str).map(str::to_owned).collect();
            let operator = match expression["operator"].as_str()? {
                "In" => Operator::In(values()),
                "NotIn" => Operator::NotIn(values()),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::Absent,
                _ => return None,
            };
            requirements.push(Requirement {
                key: expression["key"].as_str()?.to_owned(),
                operator,
            });
        }
        Some(Self(requirements))
    }

    pub(crate) fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = label(&requirement.key);
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|value| values.iter().any(|candidate| candidate == value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.iter().any(|candidate| candidate == value)),
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
                Operator::Greater(bound) => number(value).is_some_and(|value| value > *bound),
                Operator::Less(bound) => number(value).is_some_and(|value| value < *bound),
            }
        })
    }
}

impl std::fmt::Display for LabelSelector {
    /// The text form, as a Scale's `status.selector` shows it.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, Requirement { key, operator }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match operator {
                Operator::In(values) if values.len() == 1 => write!(formatter, "{comma}{key}={}", values[0])?,
                Operator::In(values) => write!(formatter, "{comma}{key} in ({})", values.join(","))?,
                Operator::NotIn(values) => write!(formatter, "{comma}{key} notin ({})", values.join(","))?,
                Operator::Exists => write!(formatter, "{comma}{key}")?,
                Operator::Absent => write!(formatter, "{comma}!{key}")?,
                Operator::Greater(bound) => write!(formatter, "{comma}{key}>{bound}")?,
                Operator::Less(bound) => write!(formatter, "{comma}{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

/// Splits at commas outside parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if parts.iter().all(|part| part.trim().is_empty()) && parts.len() == 1 {
        Vec::new()
    } else {
        parts
    }
}

impl Requirement {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(key) = text.strip_prefix('!') {
            return Self::new(key, Operator::Absent);
        }
        if let Some((key, value)) = text.split_once("!=") {
            return Self::new(key, Operator::NotIn(vec![label_value(value)?]));
        }
        if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return Self::new(key, Operator::In(vec![label_value(value)?]));
        }
        if let Some((key, value)) = text.split_once('>') {
            return Self::new(key, Operator::Greater(value.trim().parse().ok()?));
        }
        if let Some((key, value)) = text.split_once('<') {
            return Self::new(key, Operator::Less(value.trim().parse().ok()?));
        }
        if let Some(open) = text.find('(') {
            let values: Option<Vec<String>> = text[open + 1..]
                .strip_suffix(')')?
                .split(',')
                .map(label_value)
                .collect();
            let mut head = text[..open].split_whitespace();
            let key = head.next()?;
            let operator = match (head.next()?, head.next()) {
                ("in", None) => Operator::In(values?),
                ("notin", None) => Operator::NotIn(values?),
                _ => return None,
            };
            return Self::new(key, operator);
        }
        Self::new(text, Operator::Exists)
    }

    fn new(key: &str, operator: Operator) -> Option<Self> {
        let key = key.trim();
        let legal = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
        (!key.is_empty() && key.chars().all(legal)).then(|| Self {
            key: key.to_owned(),
            operator,
        })
    }
}

fn label_value(text: &str) -> Option<String> {
    let text = text.trim();
    let legal = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    (text.len() <= 63 && text.chars().all(legal)).then(|| text.to_owned())
}

/// All comparisons must hold; each names a field by its index in the resource's list.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelector(Vec<(usize, Comparison, String)>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
}

impl FieldSelector {
    pub(crate) fn parse(resource: &Resource, text: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, comparison, value) = if let Some((name, value)) = part.split_once("!=") {
                (name, Comparison::NotEqual, value)
            } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (name, Comparison::Equal, value)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: {part:?}; can't understand {part:?}"
                )));
            };
            let name = name.trim();
            let Some(index) = resource.fields.iter().position(|field| field.name == name) else {
                return Err(ApiError::bad_request(unknown_field(resource, name)));
            };
            terms.push((index, comparison, value.trim().to_owned()));
        }
        Ok(Self(terms))
    }

    fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|(index, comparison, value)| {
            let actual = object.fields.get(*index).map_or("", |text| text);
            (actual == value) == (*comparison == Comparison::Equal)
        })
    }
}

fn unknown_field(resource: &Resource, name: &str) -> String {
    let own_list = !resource.is_custom() && resource.fields.iter().any(|field| !field.name.starts_with("metadata."));
    if own_list || resource.is_custom() {
        return format!("field label not supported: {name}");
    }
    let known: Vec<String> = resource
        .fields
        .iter()
        .map(|field| format!("{:?}", field.name))
        .collect();
    format!("{name:?} is not a known field selector: only {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selector: &str, labels: &[(&str, &str)], expected: bool) {
        let parsed = LabelSelector::parse(selector).unwrap();
        let find = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        assert_eq!(parsed.matches(find), expected, "{selector} on {labels:?}");
    }

    #[test]
    fn every_operator_selects_as_kubectl_users_expect() {
        check("a=b", &[("a", "b")], true);
        check("a==b", &[("a", "c")], false);
        check("a!=b", &[], true);
        check("a in (x, y)", &[("a", "y")], true);
        check("a notin (x,y)", &[("a", "y")], false);
        check("a notin (x,y)", &[], true);
        check("a", &[("a", "")], true);
        check("!a", &[("a", "")], false);
        check("a>5", &[("a", "6")], true);
        check("a<5", &[("a", "six")], false);
        check("a=b,c", &[("a", "b")], false);
        check("", &[], true);
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for text in ["a=b=c d", "a in x", "=", "a in (x", "a,,b", "a>x", "(("] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().code, 400, "{text}");
        }
    }
}
