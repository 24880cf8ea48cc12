//! Sets of requirements, one per key, and whether one set can serve another.

use std::fmt;

use super::{Operator, Requirement};
use crate::labels::{self, LabelRules};

/// Requirements, one a key, in the order of their keys. A key that is absent behaves as `Exists`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements(Vec<Requirement>);

/// Which keys a demand may name although the other side does not define them.
#[derive(Debug, Clone, Copy)]
pub enum Undefined<'a> {
    /// None: what is not defined is not there. For nodes that exist.
    Denied,
    /// Well-known keys: the instance type will supply them. For planned nodes and offerings.
    WellKnown(&'a LabelRules),
}

impl Undefined<'_> {
    fn allows(self, key: &str) -> bool {
        match self {
            Self::Denied => false,
            Self::WellKnown(rules) => rules.is_well_known(key),
        }
    }
}

/// The first key on which two sets do not go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incompatibility {
    /// The demand names a key that the other side does not define.
    Undefined { key: String, hint: Option<String> },
    /// Both define the key, and no value satisfies both.
    Disjoint {
        have: Box<Requirement>,
        want: Box<Requirement>,
    },
}

impl Requirements {
    pub fn new() -> Self {
        Self::default()
    }

    /// A set that says exactly these labels.
    pub fn from_labels<'a>(rules: &LabelRules, labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        labels
            .into_iter()
            .map(|(key, value)| Requirement::normalised(rules, key, Operator::In, [value]))
            .collect()
    }

    /// Tightens the entry of the requirement's key.
    pub fn add(&mut self, requirement: Requirement) {
        match self.position(requirement.key()) {
            Ok(at) => self.0[at] = self.0[at].intersection(&requirement),
            Err(at) => self.insert(at, requirement),
        }
    }

    /// Where a key's requirement is, or where it would be.
    fn position(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|present| present.key().cmp(key))
    }

    fn insert(&mut self, at: usize, requirement: Requirement) {
        // Most sets are small and stay as they were made: no room for more.
        self.0.reserve_exact(1);
        self.0.insert(at, requirement);
    }

    pub fn add_all(&mut self, other: &Self) {
        for requirement in other.iter() {
            self.add(requirement.clone());
        }
    }

    /// Replaces the entry of the requirement's key.
    pub fn replace(&mut self, requirement: Requirement) {
        match self.position(requirement.key()) {
            Ok(at) => self.0[at] = requirement,
            Err(at) => self.insert(at, requirement),
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Requirement> {
        Some(self.0.remove(self.position(key).ok()?))
    }

    pub fn get(&self, key: &str) -> Option<&Requirement> {
        Some(&self.0[self.position(key).ok()?])
    }

    /// The requirement of a key, `Exists` when there is none.
    pub fn get_or_exists(&self, key: &str) -> Requirement {
        self.get(key).cloned().unwrap_or_else(|| Requirement::exists(key))
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(Requirement::key)
    }

    pub fn has_min_values(&self) -> bool {
        self.iter().any(|requirement| requirement.min_values().is_some())
    }

    /// Whether every key that both name has a common value. Keys of one side only never fail.
    pub fn intersects(&self, other: &Self) -> Result<(), Incompatibility> {
        for want in other.iter() {
            let Some(have) = self.get(want.key()) else { continue };
            if have.has_intersection(want) || (is_negative(have) && is_negative(want)) {
                continue;
            }
            return Err(Incompatibility::Disjoint {
                have: Box::new(have.clone()),
                want: Box::new(want.clone()),
            });
        }
        Ok(())
    }

    /// Whether a node described by `self` can host something that demands `other`. Not symmetric.
    pub fn compatible(&self, other: &Self, undefined: Undefined<'_>) -> Result<(), Incompatibility> {
        for want in other.iter() {
            if undefined.allows(want.key()) || self.contains_key(want.key()) || is_negative(want) {
                continue;
            }
            return Err(Incompatibility::Undefined {
                key: want.key().to_owned(),
                hint: self.hint(want.key(), undefined),
            });
        }
        self.intersects(other)
    }

    pub fn is_compatible(&self, other: &Self, undefined: Undefined<'_>) -> bool {
        self.compatible(other, undefined).is_ok()
    }

    /// A key that the unknown one may be a misspelling of.
    fn hint(&self, unknown: &str, undefined: Undefined<'_>) -> Option<String> {
        let suffix = unknown.rsplit_once('/').map(|(_, suffix)| suffix);
        let similar = |key: &str| {
            key != unknown
                && (key.contains(unknown) || suffix.is_some_and(|suffix| !suffix.is_empty() && key.ends_with(suffix)))
        };
        let base = LabelRules::default();
        let rules = match undefined {
            Undefined::Denied => &base,
            Undefined::WellKnown(rules) => rules,
        };
        let well_known = rules.well_known().find(|key| similar(key));
        well_known
            .or_else(|| self.keys().find(|key| similar(key)))
            .map(str::to_owned)
    }
}

/// A label that must be absent also satisfies "not in", so two such demands always go together.
fn is_negative(requirement: &Requirement) -> bool {
    matches!(requirement.operator(), Operator::NotIn | Operator::DoesNotExist)
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        let mut set = Self::default();
        for requirement in requirements {
            set.add(requirement);
        }
        set
    }
}

impl fmt::Display for Requirements {
    /// Entries by key, comma-separated, without the hostname, which is an implementation detail.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self
            .iter()
            .filter(|requirement| requirement.key() != labels::HOSTNAME)
            .map(ToString::to_string)
            .collect();
        f.write_str(&shown.join(", "))
    }
}

impl fmt::Display for Incompatibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undefined { key, hint: None } => write!(f, "label \"{key}\" does not have known values"),
            Self::Undefined { key, hint: Some(hint) } => {
                write!(f, "label \"{key}\" does not have known values (typo of \"{hint}\"?)")
            }
            Self::Disjoint { have, want } => write!(f, "{have} and {want} have no value in common"),
        }
    }
}
