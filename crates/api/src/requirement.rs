//! Requirements on node labels: what values a key may have, and how such demands combine (scheduling.md §1).
//!
//! This is the string-level form that providers, validation and drift use; the scheduling engine has its own.

mod operator;
mod set;
mod wire;

pub use operator::{Operator, OperatorError};
pub use set::{Incompatibility, Requirements, Undefined};
pub use wire::{NodeSelectorRequirement, NodeSelectorRequirementWithMinValues};

use std::fmt;

use crate::labels::{self, LabelRules};

/// The set of values that one label key may have.
///
/// There is no separate "impossible" value: a contradiction is `DoesNotExist`, which is the same as an empty `In`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    /// Whether `values` are the ones excluded rather than the ones allowed.
    complement: bool,
    /// In order, each once. Catalogues hold thousands of requirements with one value, which a tree would give room for eleven.
    values: Box<[String]>,
    gte: Option<i64>,
    lte: Option<i64>,
    min_values: Option<u32>,
}

impl Requirement {
    /// Builds a requirement, with Kubernetes' old label names mapped to today's.
    ///
    /// A numeric operand that is no integer counts as 0, and values beyond the first are not read; validation refuses both.
    pub fn new<V: Into<String>>(key: &str, operator: Operator, values: impl IntoIterator<Item = V>) -> Self {
        Self::build(
            labels::canonical_key(key).into_owned(),
            operator,
            values.into_iter().map(Into::into).collect(),
        )
    }

    /// Builds a requirement with the key and values normalised by the provider's rules too.
    pub fn normalised<V: AsRef<str>>(
        rules: &LabelRules,
        key: &str,
        operator: Operator,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let key = rules.canonical_key(key);
        let values = values
            .into_iter()
            .map(|value| rules.canonical_value(key, value.as_ref()).to_owned())
            .collect();
        Self::build(key.to_owned(), operator, values)
    }

    fn build(key: String, operator: Operator, values: Vec<String>) -> Self {
        let operand = || values.first().and_then(|value| value.parse::<i64>().ok()).unwrap_or(0);
        let exists = |gte, lte| Self {
            complement: true,
            gte,
            lte,
            ..Self::none(key.clone())
        };
        match operator {
            Operator::In => Self {
                values: in_order(values),
                ..Self::none(key)
            },
            Operator::NotIn => Self {
                complement: true,
                values: in_order(values),
                ..Self::none(key)
            },
            Operator::Exists => exists(None, None),
            Operator::DoesNotExist => Self::none(key),
            // Nothing is greater than the largest integer, and nothing smaller than the smallest.
            Operator::Gt => match operand().checked_add(1) {
                Some(gte) => exists(Some(gte), None),
                None => Self::none(key),
            },
            Operator::Lt => match operand().checked_sub(1) {
                Some(lte) => exists(None, Some(lte)),
                None => Self::none(key),
            },
            Operator::Gte => exists(Some(operand()), None),
            Operator::Lte => exists(None, Some(operand())),
        }
    }

    fn none(key: String) -> Self {
        Self {
            key,
            complement: false,
            values: Box::default(),
            gte: None,
            lte: None,
            min_values: None,
        }
    }

    pub fn exists(key: &str) -> Self {
        Self::new(key, Operator::Exists, [""; 0])
    }

    pub fn does_not_exist(key: &str) -> Self {
        Self::new(key, Operator::DoesNotExist, [""; 0])
    }

    pub fn within<V: Into<String>>(key: &str, values: impl IntoIterator<Item = V>) -> Self {
        Self::new(key, Operator::In, values)
    }

    /// Demands that at least so many distinct values stay possible. Kept off a contradiction from `Gt` of the largest integer.
    pub fn with_min_values(mut self, min_values: Option<u32>) -> Self {
        self.min_values = min_values;
        self
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn min_values(&self) -> Option<u32> {
        self.min_values
    }

    /// The inclusive lower bound.
    pub fn gte(&self) -> Option<i64> {
        self.gte
    }

    /// The inclusive upper bound.
    pub fn lte(&self) -> Option<i64> {
        self.lte
    }

    /// The allowed values of a concrete requirement, or the excluded ones of a complement; in order, each once.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether infinitely many values are allowed (`Exists`, `NotIn`, bounds).
    pub fn is_complement(&self) -> bool {
        self.complement
    }

    /// The operator that the requirement amounts to; bounds do not show in it.
    pub fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, true) => Operator::Exists,
            (true, false) => Operator::NotIn,
            (false, false) => Operator::In,
            (false, true) => Operator::DoesNotExist,
        }
    }

    /// How many values are possible; a complement has more than anyone will count.
    pub fn len(&self) -> usize {
        match self.complement {
            true => usize::MAX - self.values.len(),
            false => self.values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one value that is possible, if there is exactly one.
    pub fn single_value(&self) -> Option<&str> {
        match (self.complement, self.values.len()) {
            (false, 1) => self.values.first().map(String::as_str),
            _ => None,
        }
    }

    /// Some value that satisfies the requirement, the smallest by name or number: what a node's label becomes.
    pub fn any_value(&self) -> Option<String> {
        if !self.complement {
            return self.values.first().cloned();
        }
        let start = self.gte.unwrap_or_else(|| self.lte.map_or(0, |lte| lte.min(0)));
        let end = self.lte.unwrap_or(i64::MAX);
        (start..=end)
            .map(|number| number.to_string())
            .find(|value| !self.lists(value))
    }

    /// Whether a label with this value satisfies the requirement.
    pub fn has(&self, value: &str) -> bool {
        self.lists(value) != self.complement && self.in_bounds(value)
    }

    /// Whether the value is among [`Requirement::values`].
    fn lists(&self, value: &str) -> bool {
        self.values
            .binary_search_by(|listed| listed.as_str().cmp(value))
            .is_ok()
    }

    fn in_bounds(&self, value: &str) -> bool {
        in_bounds(value, self.gte, self.lte)
    }

    /// What satisfies both. Commutative; both must be about the same key.
    pub fn intersection(&self, other: &Self) -> Self {
        let gte = self.gte.max(other.gte);
        let lte = tighter_upper(self.lte, other.lte);
        let min_values = self.min_values.max(other.min_values);
        if empty_range(gte, lte) {
            return Self {
                min_values,
                ..Self::none(self.key.clone())
            };
        }
        let listed = |of: &Self, keep: &dyn Fn(&str) -> bool| -> Box<[String]> {
            let values = of.values.iter();
            let kept = values.filter(|value| keep(value) && in_bounds(value, gte, lte));
            kept.cloned().collect()
        };
        let values = match (self.complement, other.complement) {
            (true, true) => {
                let both = [listed(self, &|_| true), listed(other, &|_| true)];
                in_order(both.into_iter().flatten().collect())
            }
            (true, false) => listed(other, &|value| !self.lists(value)),
            (false, true) => listed(self, &|value| !other.lists(value)),
            (false, false) => listed(self, &|value| other.lists(value)),
        };
        let complement = self.complement && other.complement;
        // A concrete set has the bounds applied already.
        let (gte, lte) = if complement { (gte, lte) } else { (None, None) };
        Self {
            key: self.key.clone(),
            complement,
            values,
            gte,
            lte,
            min_values,
        }
    }

    /// Whether some value satisfies both. Two complements always meet when their bounds do: whether exclusions use up a
    /// finite range is not checked (scheduling.md §1.4).
    pub fn has_intersection(&self, other: &Self) -> bool {
        let gte = self.gte.max(other.gte);
        let lte = tighter_upper(self.lte, other.lte);
        if empty_range(gte, lte) {
            return false;
        }
        match (self.complement, other.complement) {
            (true, true) => true,
            (true, false) => other.values.iter().any(|v| !self.lists(v) && in_bounds(v, gte, lte)),
            (false, true) => self.values.iter().any(|v| !other.lists(v) && in_bounds(v, gte, lte)),
            (false, false) => self.values.iter().any(|v| other.lists(v) && in_bounds(v, gte, lte)),
        }
    }
}

fn in_order(mut values: Vec<String>) -> Box<[String]> {
    values.sort_unstable();
    values.dedup();
    values.into_boxed_slice()
}

fn tighter_upper(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (bound, None) | (None, bound) => bound,
    }
}

fn empty_range(gte: Option<i64>, lte: Option<i64>) -> bool {
    gte.zip(lte).is_some_and(|(gte, lte)| gte > lte)
}

/// With any bound set, a value that is no integer is outside.
fn in_bounds(value: &str, gte: Option<i64>, lte: Option<i64>) -> bool {
    if gte.is_none() && lte.is_none() {
        return true;
    }
    let Ok(number) = value.parse::<i64>() else { return false };
    gte.is_none_or(|gte| number >= gte) && lte.is_none_or(|lte| number <= lte)
}

impl fmt::Display for Requirement {
    /// `key Op [v1 v2 …]` with at most five values, then bounds and minValues (scheduling.md §1.7).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        write!(f, "{} {}", self.key, self.operator())?;
        if !self.values.is_empty() {
            let shown: Vec<&str> = self.values.iter().take(SHOWN).map(String::as_str).collect();
            write!(f, " [{}", shown.join(" "))?;
            match self.values.len() - shown.len() {
                0 => f.write_str("]")?,
                hidden => write!(f, " and {hidden} others]")?,
            }
        }
        if let Some(gte) = self.gte {
            write!(f, " >={gte}")?;
        }
        if let Some(lte) = self.lte {
            write!(f, " <={lte}")?;
        }
        if let Some(min_values) = self.min_values {
            write!(f, " minValues {min_values}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
