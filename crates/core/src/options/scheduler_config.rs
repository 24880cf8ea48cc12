//! The part of kube-scheduler's configuration that changes what pods ask for: default topology spread (api.md §4.3).

use std::str::FromStr;

use karpenter_engine::model::{LabelSelector, SpreadConstraint, SpreadPolicy, WhenUnsatisfiable};
use serde::Deserialize;

/// Default spread constraints, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Applied to pods without constraints of their own.
    pub default_constraints: Vec<DefaultSpread>,
}

/// One default spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultSpread {
    /// How uneven the spread may be; positive.
    pub max_skew: i32,
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// `DoNotSchedule` or `ScheduleAnyway`.
    pub when_unsatisfiable: String,
    /// How many domains there must be.
    #[serde(default)]
    pub min_domains: Option<i32>,
    /// `Honor` or `Ignore` the pod's node affinity.
    #[serde(default)]
    pub node_affinity_policy: Option<String>,
    /// `Honor` or `Ignore` node taints.
    #[serde(default)]
    pub node_taints_policy: Option<String>,
    #[serde(default)]
    label_selector: Option<serde_json::Value>,
    #[serde(default)]
    match_label_keys: Option<Vec<String>>,
}

/// Why a scheduler configuration cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SchedulerConfigError {
    /// Not YAML or JSON of the known shape.
    #[error("cannot be read: {0}")]
    Malformed(String),
    /// A constraint that makes no sense.
    #[error("podTopologySpread.defaultConstraints[{index}].{field} {problem}")]
    Invalid {
        /// Which constraint.
        index: usize,
        /// Which of its fields.
        field: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(default)]
    pod_topology_spread: PodTopologySpread,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodTopologySpread {
    #[serde(default)]
    default_constraints: Vec<DefaultSpread>,
}

impl FromStr for SchedulerConfig {
    type Err = SchedulerConfigError;

    fn from_str(text: &str) -> Result<Self, SchedulerConfigError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let document: Document =
            serde_norway::from_str(text).map_err(|error| SchedulerConfigError::Malformed(error.to_string()))?;
        let constraints = document.pod_topology_spread.default_constraints;
        for (index, constraint) in constraints.iter().enumerate() {
            let earlier = &constraints[..index];
            if let Some((field, problem)) = constraint.problem(earlier) {
                return Err(SchedulerConfigError::Invalid { index, field, problem });
            }
        }
        Ok(Self {
            default_constraints: constraints,
        })
    }
}

impl SchedulerConfig {
    /// The constraints as the engine wants them; whom they count follows from each pod's Services and controller.
    pub fn spread_constraints(&self) -> Vec<SpreadConstraint> {
        let policy = |given: &Option<String>, default: SpreadPolicy| match given.as_deref() {
            Some("Honor") => SpreadPolicy::Honor,
            Some("Ignore") => SpreadPolicy::Ignore,
            _ => default,
        };
        let constraint = |spread: &DefaultSpread| SpreadConstraint {
            topology_key: spread.topology_key.clone(),
            max_skew: spread.max_skew,
            min_domains: spread.min_domains,
            when_unsatisfiable: match spread.when_unsatisfiable.as_str() {
                "DoNotSchedule" => WhenUnsatisfiable::DoNotSchedule,
                _ => WhenUnsatisfiable::ScheduleAnyway,
            },
            selector: LabelSelector::Nothing,
            match_label_keys: Vec::new(),
            node_affinity_policy: policy(&spread.node_affinity_policy, SpreadPolicy::Honor),
            node_taints_policy: policy(&spread.node_taints_policy, SpreadPolicy::Ignore),
        };
        self.default_constraints.iter().map(constraint).collect()
    }
}

impl DefaultSpread {
    fn problem(&self, earlier: &[DefaultSpread]) -> Option<(&'static str, String)> {
        if self.max_skew <= 0 {
            return Some(("maxSkew", format!("is {}; it must be greater than zero", self.max_skew)));
        }
        if !is_qualified_name(&self.topology_key) {
            return Some((
                "topologyKey",
                format!(
                    "is {:?}; it must be a label key such as topology.kubernetes.io/zone",
                    self.topology_key
                ),
            ));
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&self.when_unsatisfiable.as_str()) {
            let problem = format!(
                "is {:?}; it must be DoNotSchedule or ScheduleAnyway",
                self.when_unsatisfiable
            );
            return Some(("whenUnsatisfiable", problem));
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &self.node_affinity_policy),
            ("nodeTaintsPolicy", &self.node_taints_policy),
        ] {
            if let Some(policy) = policy
                && !["Honor", "Ignore"].contains(&policy.as_str())
            {
                return Some((field, format!("is {policy:?}; it must be Honor or Ignore")));
            }
        }
        if self.label_selector.is_some() {
            return Some((
                "labelSelector",
                "must not be set: each pod's own owner is selected".to_owned(),
            ));
        }
        if self.match_label_keys.as_ref().is_some_and(|keys| !keys.is_empty()) {
            return Some(("matchLabelKeys", "must not be set".to_owned()));
        }
        let same = |other: &DefaultSpread| {
            other.topology_key == self.topology_key && other.when_unsatisfiable == self.when_unsatisfiable
        };
        earlier.iter().any(same).then(|| {
            (
                "topologyKey",
                format!("{:?} with {} appears twice", self.topology_key, self.when_unsatisfiable),
            )
        })
    }
}

/// A label key: an optional DNS subdomain and a slash, then at most 63 letters, digits, dashes, underscores and dots.
fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let edge = |c: char| c.is_ascii_alphanumeric();
    let name_ok = (1..=63).contains(&name.len())
        && name.chars().all(|c| edge(c) || "-_.".contains(c))
        && name.starts_with(edge)
        && name.ends_with(edge);
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label_ok =
        |label: &str| label.starts_with(lower) && label.ends_with(lower) && label.chars().all(|c| lower(c) || c == '-');
    name_ok && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(label_ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(constraint: &str, expect: Result<(), &str>) {
        let text = format!("podTopologySpread:\n  defaultConstraints:\n  - {constraint}\n");
        let outcome = text
            .parse::<SchedulerConfig>()
            .map(|_| ())
            .map_err(|error| error.to_string());
        match (&outcome, expect) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(part)) if error.contains(part) => {}
            other => panic!("{constraint}: {other:?}"),
        }
    }

    #[test]
    fn constraints_are_checked_one_by_one() {
        check(
            "{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}",
            Ok(()),
        );
        check(
            "{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}",
            Err("[0].maxSkew is 0"),
        );
        check(
            "{maxSkew: 1, topologyKey: '', whenUnsatisfiable: ScheduleAnyway}",
            Err("topologyKey is \"\""),
        );
        check(
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: Never}",
            Err("whenUnsatisfiable"),
        );
        check(
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}",
            Err("labelSelector"),
        );
        check(
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, colour: red}",
            Err("colour"),
        );
    }

    #[test]
    fn the_same_constraint_twice_is_refused() {
        let one = "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}";
        let text = format!("{{podTopologySpread: {{defaultConstraints: [{one}, {one}]}}}}");
        assert!(
            text.parse::<SchedulerConfig>()
                .unwrap_err()
                .to_string()
                .contains("[1].topologyKey \"zone\"")
        );
    }

    #[test]
    fn nothing_is_no_configuration_and_unknown_fields_are_refused() {
        assert_eq!("".parse::<SchedulerConfig>().unwrap(), SchedulerConfig::default());
        assert!("profiles: []".parse::<SchedulerConfig>().is_err());
    }
}
