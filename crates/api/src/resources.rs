//! Amounts by resource name, with the arithmetic of scheduling.md §2.4.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::{Deref, DerefMut};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{Quantity, QuantityError};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";
/// The key under which a NodePool counts and limits its nodes.
pub const NODES: &str = "nodes";
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// The resources that every node has; everything else is an extended resource.
pub const WELL_KNOWN: [&str; 4] = [CPU, MEMORY, EPHEMERAL_STORAGE, PODS];

/// Resource name → amount, ordered by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResourceList(pub BTreeMap<String, Quantity>);

impl ResourceList {
    pub fn new() -> Self {
        Self::default()
    }

    /// The amount of a resource; a missing one is zero.
    pub fn amount(&self, resource: &str) -> Quantity {
        self.0.get(resource).copied().unwrap_or_default()
    }

    pub fn cpu(&self) -> Quantity {
        self.amount(CPU)
    }

    pub fn memory(&self) -> Quantity {
        self.amount(MEMORY)
    }

    pub fn with(mut self, resource: &str, amount: Quantity) -> Self {
        self.0.insert(resource.to_owned(), amount);
        self
    }

    /// Adds every amount of `other`; the result has the keys of both.
    pub fn merge(&mut self, other: &Self) {
        for (resource, amount) in &other.0 {
            match self.0.get_mut(resource) {
                Some(present) => *present += *amount,
                None => {
                    self.0.insert(resource.clone(), *amount);
                }
            }
        }
    }

    pub fn merged(mut self, other: &Self) -> Self {
        self.merge(other);
        self
    }

    /// `self − other` over the keys of `self` only.
    pub fn subtract(&self, other: &Self) -> Self {
        self.0
            .iter()
            .map(|(resource, amount)| (resource.clone(), *amount - other.amount(resource)))
            .collect()
    }

    /// `self − other` in place; keys that only `other` has appear, negative.
    pub fn subtract_from(&mut self, other: &Self) {
        for (resource, amount) in &other.0 {
            *self.0.entry(resource.clone()).or_default() -= *amount;
        }
    }

    /// Whether a request of `self` fits into `total`: nothing does once any total is negative, and a missing total is 0.
    pub fn fits(&self, total: &Self) -> bool {
        total.0.values().all(|amount| !amount.is_negative())
            && self
                .0
                .iter()
                .all(|(resource, amount)| *amount <= total.amount(resource))
    }

    /// The larger amount of each resource that either side names.
    pub fn max(&self, other: &Self) -> Self {
        let mut largest = self.clone();
        for (resource, amount) in &other.0 {
            largest
                .0
                .entry(resource.clone())
                .and_modify(|present| *present = (*present).max(*amount))
                .or_insert(*amount);
        }
        largest
    }

    /// The smaller amount of each resource that both sides name.
    pub fn min(&self, other: &Self) -> Self {
        self.0
            .iter()
            .filter_map(|(resource, amount)| Some((resource.clone(), *amount.min(other.0.get(resource)?))))
            .collect()
    }

    /// Reads the amounts of a Kubernetes object; fails on the first that is no quantity.
    pub fn from_kube<'a>(
        amounts: impl IntoIterator<Item = (&'a String, &'a KubeQuantity)>,
    ) -> Result<Self, QuantityError> {
        amounts
            .into_iter()
            .map(|(resource, amount)| Ok((resource.clone(), Quantity::try_from(amount)?)))
            .collect()
    }

    pub fn to_kube(&self) -> BTreeMap<String, KubeQuantity> {
        self.0
            .iter()
            .map(|(resource, amount)| (resource.clone(), (*amount).into()))
            .collect()
    }
}

impl Deref for ResourceList {
    type Target = BTreeMap<String, Quantity>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ResourceList {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<K: Into<String>> FromIterator<(K, Quantity)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (K, Quantity)>>(amounts: I) -> Self {
        Self(
            amounts
                .into_iter()
                .map(|(resource, amount)| (resource.into(), amount))
                .collect(),
        )
    }
}

impl<'a> IntoIterator for &'a ResourceList {
    type Item = (&'a String, &'a Quantity);
    type IntoIter = btree_map::Iter<'a, String, Quantity>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for ResourceList {
    type Item = (String, Quantity);
    type IntoIter = btree_map::IntoIter<String, Quantity>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> ResourceList {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(resource, amount)| (resource, amount.parse().unwrap()))
            .collect()
    }

    #[test]
    fn arithmetic_follows_the_table_of_the_scheduling_spec() {
        assert_eq!(
            list("cpu=1 memory=1Gi").merged(&list("cpu=500m pods=1")),
            list("cpu=1500m memory=1Gi pods=1")
        );
        assert_eq!(list("cpu=1").subtract(&list("cpu=2 memory=1Gi")), list("cpu=-1"));
        let mut remaining = list("cpu=1");
        remaining.subtract_from(&list("cpu=2 memory=1Gi"));
        assert_eq!(remaining, list("cpu=-1 memory=-1Gi"));
        assert_eq!(
            list("cpu=1 memory=1").max(&list("cpu=2 pods=1")),
            list("cpu=2 memory=1 pods=1")
        );
        assert_eq!(list("cpu=1 memory=1").min(&list("cpu=2 pods=1")), list("cpu=1"));
    }

    #[test]
    fn requests_fit_unless_they_exceed_or_anything_is_negative() {
        assert!(list("cpu=1").fits(&list("cpu=1 memory=1Gi")));
        assert!(list("cpu=1 example.com/x=0").fits(&list("cpu=1")));
        assert!(!list("example.com/x=1").fits(&list("cpu=1")));
        assert!(!list("cpu=1").fits(&list("cpu=999m")));
        assert!(!list("cpu=1").fits(&list("cpu=2 memory=-1")));
        assert!(list("").fits(&list("")));
    }

    #[test]
    fn lists_are_read_from_and_written_to_kubernetes_objects() {
        let kube = list("cpu=100m memory=1.5Gi").to_kube();
        assert_eq!(kube["memory"].0, "1536Mi");
        assert_eq!(ResourceList::from_kube(&kube).unwrap(), list("cpu=100m memory=1.5Gi"));
    }
}
