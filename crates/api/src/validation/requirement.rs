//! Rule set V: what a requirement on node labels must look like, wherever it is written.

use super::Finding;
use crate::labels::LabelRules;
use crate::names::{check_label_value, check_qualified_name};
use crate::requirement::{NodeSelectorRequirement, NodeSelectorRequirementWithMinValues, Operator};

/// A requirement as it was written; pods may write operators that do not exist.
#[derive(Debug, Clone, Copy)]
pub struct RequirementText<'a> {
    pub key: &'a str,
    pub operator: &'a str,
    pub values: &'a [String],
    pub min_values: Option<u32>,
}

impl<'a> From<&'a NodeSelectorRequirementWithMinValues> for RequirementText<'a> {
    fn from(requirement: &'a NodeSelectorRequirementWithMinValues) -> Self {
        let NodeSelectorRequirementWithMinValues {
            key,
            operator,
            values,
            min_values,
        } = requirement;
        Self {
            key,
            operator: operator.as_str(),
            values,
            min_values: *min_values,
        }
    }
}

impl<'a> From<&'a NodeSelectorRequirement> for RequirementText<'a> {
    fn from(requirement: &'a NodeSelectorRequirement) -> Self {
        let NodeSelectorRequirement { key, operator, values } = requirement;
        Self {
            key,
            operator: operator.as_str(),
            values,
            min_values: None,
        }
    }
}

impl<'a> From<&'a k8s_openapi::api::core::v1::NodeSelectorRequirement> for RequirementText<'a> {
    fn from(requirement: &'a k8s_openapi::api::core::v1::NodeSelectorRequirement) -> Self {
        let values = requirement.values.as_deref().unwrap_or_default();
        Self {
            key: &requirement.key,
            operator: &requirement.operator,
            values,
            min_values: None,
        }
    }
}

/// Everything that is wrong with a requirement that stands at `path`.
pub fn requirement<'a>(rules: &LabelRules, path: &str, text: impl Into<RequirementText<'a>>) -> Vec<Finding> {
    let RequirementText {
        key,
        operator,
        values,
        min_values,
    } = text.into();
    let key = rules.canonical_key(key);
    let mut findings = Vec::new();
    let mut found = |field: &str, problem: String| findings.push(Finding::new(format!("{path}.{field}"), problem));

    let operator: Option<Operator> = match operator.parse() {
        Ok(operator) => Some(operator),
        Err(error) => {
            found("operator", format!("{error}"));
            None
        }
    };
    if rules.is_restricted(key) {
        found("key", restricted(rules, key));
    }
    if let Err(error) = check_qualified_name(key) {
        found("key", format!("\"{key}\" {error}"));
    }
    for (position, value) in values.iter().enumerate() {
        if let Err(error) = check_label_value(value) {
            found(&format!("values[{position}]"), format!("\"{value}\" {error}"));
        }
    }
    let wanted = min_values.unwrap_or(0) as usize;
    match operator {
        Some(Operator::In) if values.is_empty() => found("values", "operator In needs at least one value".to_owned()),
        Some(Operator::In) if values.len() < wanted => {
            found(
                "values",
                format!("has {} values; minValues asks for at least {wanted}", values.len()),
            );
        }
        Some(Operator::In) => {
            if let Some(problem) = too_few_known(rules, key, values, min_values) {
                found("values", problem);
            }
        }
        Some(numeric) if numeric.is_numeric() => {
            let single = matches!(values, [value] if value.parse::<i64>().is_ok_and(|number| number >= 0));
            if !single {
                found(
                    "values",
                    format!("operator {numeric} needs exactly one whole number that is not negative"),
                );
            }
        }
        Some(_) | None => {}
    }
    findings
}

/// Values that no node can have and that scheduling therefore ignores; worth telling, not worth refusing.
pub fn ignored_values<'a>(rules: &LabelRules, text: impl Into<RequirementText<'a>>) -> Vec<&'a str> {
    let text = text.into();
    let key = rules.canonical_key(text.key);
    match rules.known_values(key) {
        Some(known) if text.operator == Operator::In.as_str() => text
            .values
            .iter()
            .map(String::as_str)
            .filter(|value| !known.contains(rules.canonical_value(key, value)))
            .collect(),
        Some(_) | None => Vec::new(),
    }
}

fn too_few_known(rules: &LabelRules, key: &str, values: &[String], min_values: Option<u32>) -> Option<String> {
    let known = rules.known_values(key).filter(|_| rules.is_well_known(key))?;
    // A provider's other spelling of a value is that value.
    let is_known = |value: &&String| known.contains(rules.canonical_value(key, value));
    let usable = values.iter().filter(is_known).count();
    let listed = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if usable == 0 {
        return Some(format!("none of the values is possible for {key}; use {listed}"));
    }
    let wanted = min_values? as usize;
    (usable < wanted)
        .then(|| format!("{usable} of the values are possible for {key}, minValues asks for {wanted}; use {listed}"))
}

/// Why users may not use a restricted key.
pub(super) fn restricted(rules: &LabelRules, key: &str) -> String {
    match rules.restricted_domain_of(key) {
        Some(domain) => {
            let usable: Vec<&str> = rules
                .well_known()
                .filter(|known| rules.restricted_domain_of(known) == Some(domain))
                .collect();
            format!(
                "label {key} is in the reserved domain {domain}; use one of {}, or a domain of your own",
                usable.join(", ")
            )
        }
        None => format!("label {key} is set by the node itself; use another label"),
    }
}
