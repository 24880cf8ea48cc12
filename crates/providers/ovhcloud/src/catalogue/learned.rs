//! What Nodes of a flavor really had: the next plan relies on that instead of on an estimate.
//!
//! OVHcloud's pages give two formulas for reserved memory. An estimate that is too high makes a loop: a node is launched,
//! its pod does not fit, another is launched.

use std::collections::BTreeMap;

use karpenter_api::{ResourceList, resources};
use parking_lot::Mutex;

/// The least that was seen, by flavor.
#[derive(Debug, Default)]
pub struct Learned {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    version: u64,
    flavors: BTreeMap<String, Observed>,
}

/// Capacity and allocatable of a flavor's smallest Node.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
}

impl Learned {
    /// Takes in what an initialized Node of a flavor reports.
    pub fn observe(&self, flavor: &str, capacity: &ResourceList, allocatable: &ResourceList) {
        let new = Observed {
            capacity: relevant(capacity),
            allocatable: relevant(allocatable),
        };
        if new.capacity.is_empty() || new.allocatable.is_empty() {
            return;
        }
        let mut seen = self.seen.lock();
        let merged = match seen.flavors.get(flavor) {
            Some(old) => Observed {
                capacity: least(&old.capacity, &new.capacity),
                allocatable: least(&old.allocatable, &new.allocatable),
            },
            None => new,
        };
        if seen.flavors.get(flavor) != Some(&merged) {
            seen.flavors.insert(flavor.to_owned(), merged);
            seen.version += 1;
        }
    }

    pub fn get(&self, flavor: &str) -> Option<Observed> {
        self.seen.lock().flavors.get(flavor).cloned()
    }

    /// Grows with every observation that changed something.
    pub fn version(&self) -> u64 {
        self.seen.lock().version
    }
}

fn relevant(list: &ResourceList) -> ResourceList {
    let own = list
        .iter()
        .filter(|(name, _)| resources::WELL_KNOWN.contains(&name.as_str()));
    ResourceList(own.map(|(name, amount)| (name.clone(), *amount)).collect())
}

fn least(a: &ResourceList, b: &ResourceList) -> ResourceList {
    let mut least = a.clone();
    for (name, amount) in &b.0 {
        least
            .entry(name.clone())
            .and_modify(|own| *own = (*own).min(*amount))
            .or_insert(*amount);
    }
    least
}

#[cfg(test)]
mod tests {
    use karpenter_api::Quantity;

    use super::*;

    fn amounts(memory: i64) -> ResourceList {
        ResourceList::new()
            .with(resources::CPU, Quantity::from_units(2))
            .with(resources::MEMORY, Quantity::from_bytes(memory))
            .with("example.com/thing", Quantity::ONE)
    }

    #[test]
    fn the_least_seen_counts_and_only_news_change_the_version() {
        let learned = Learned::default();
        learned.observe("b3-8", &amounts(100), &amounts(80));
        learned.observe("b3-8", &amounts(110), &amounts(70));
        let version = learned.version();
        learned.observe("b3-8", &amounts(120), &amounts(90));
        assert_eq!(learned.version(), version);
        let seen = learned.get("b3-8").expect("seen");
        assert_eq!(seen.capacity.memory(), Quantity::from_bytes(100));
        assert_eq!(seen.allocatable.memory(), Quantity::from_bytes(70));
        assert!(!seen.capacity.contains_key("example.com/thing"));
    }

    #[test]
    fn a_node_that_reports_nothing_teaches_nothing() {
        let learned = Learned::default();
        learned.observe("b3-8", &ResourceList::new(), &ResourceList::new());
        assert_eq!(learned.get("b3-8"), None);
    }
}
