//! Counts of matching pods per topology domain, and the choice of a domain (scheduling.md §5.5).

use crate::tables::{KeyId, Names, ValueId, ValueSet};

/// Counts of a group whose key is not the hostname.
#[derive(Debug, Clone, Default)]
pub(crate) struct Domains {
    /// Sorted by name, which breaks ties.
    sorted: Vec<Domain>,
}

#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub(crate) value: ValueId,
    pub(crate) count: u32,
    /// A new node could be here.
    in_universe: bool,
    /// Existing nodes that are here.
    nodes: u32,
}

impl Domain {
    fn is_known(&self) -> bool {
        self.in_universe || self.nodes > 0 || self.count > 0
    }
}

impl Domains {
    pub(crate) fn new(names: &Names, key: KeyId, universe: &ValueSet) -> Domains {
        let mut sorted: Vec<Domain> = universe
            .iter()
            .map(|value| Domain {
                value,
                count: 0,
                in_universe: true,
                nodes: 0,
            })
            .collect();
        sorted.sort_by(|a, b| names.value_name(key, a.value).cmp(names.value_name(key, b.value)));
        Domains { sorted }
    }

    fn entry(&mut self, names: &Names, key: KeyId, value: ValueId) -> &mut Domain {
        let name = names.value_name(key, value);
        let at = self
            .sorted
            .binary_search_by(|domain| names.value_name(key, domain.value).cmp(name));
        let at = at.unwrap_or_else(|at| {
            self.sorted.insert(
                at,
                Domain {
                    value,
                    count: 0,
                    in_universe: false,
                    nodes: 0,
                },
            );
            at
        });
        &mut self.sorted[at]
    }

    pub(crate) fn add_node(&mut self, names: &Names, key: KeyId, value: ValueId) {
        self.entry(names, key, value).nodes += 1;
    }

    pub(crate) fn remove_node(&mut self, names: &Names, key: KeyId, value: ValueId) {
        let domain = self.entry(names, key, value);
        domain.nodes = domain.nodes.saturating_sub(1);
    }

    pub(crate) fn add_pod(&mut self, names: &Names, key: KeyId, value: ValueId) {
        self.entry(names, key, value).count += 1;
    }

    pub(crate) fn remove_pod(&mut self, names: &Names, key: KeyId, value: ValueId) {
        let domain = self.entry(names, key, value);
        domain.count = domain.count.saturating_sub(1);
    }

    pub(crate) fn known(&self) -> impl Iterator<Item = &Domain> {
        self.sorted.iter().filter(|domain| domain.is_known())
    }

    pub(crate) fn find(&self, value: ValueId) -> Option<&Domain> {
        self.known().find(|domain| domain.value == value)
    }

    /// The least count over the domains that the pod could be in, and 0 while there are fewer of them than `min_domains`.
    pub(crate) fn least(&self, allowed: &impl Fn(ValueId) -> bool, min_domains: Option<usize>) -> u32 {
        let mut least = u32::MAX;
        let mut domains = 0;
        for domain in self.known().filter(|domain| allowed(domain.value)) {
            least = least.min(domain.count);
            domains += 1;
        }
        if domains == 0 || min_domains.is_some_and(|wanted| domains < wanted) {
            0
        } else {
            least
        }
    }

    /// The emptiest domain that keeps the skew, smallest name first.
    pub(crate) fn spread(&self, node: &impl Fn(ValueId) -> bool, limit: i64) -> Option<ValueId> {
        let mut best: Option<&Domain> = None;
        for domain in self.known().filter(|domain| i64::from(domain.count) <= limit) {
            if best.is_some_and(|best| best.count <= domain.count) || !node(domain.value) {
                continue;
            }
            best = Some(domain);
        }
        best.map(|domain| domain.value)
    }

    /// Domains with matching pods that both sides allow.
    pub(crate) fn occupied(&self, both: &impl Fn(ValueId) -> bool) -> ValueSet {
        self.collect(|domain| domain.count > 0 && both(domain.value))
    }

    /// Known domains without matching pods that both sides allow.
    pub(crate) fn empty(&self, both: &impl Fn(ValueId) -> bool) -> ValueSet {
        self.collect(|domain| domain.count == 0 && both(domain.value))
    }

    /// Known domains with at most this many matching pods that the pod allows.
    pub(crate) fn within(&self, most: i64, pod: &impl Fn(ValueId) -> bool) -> ValueSet {
        self.collect(|domain| i64::from(domain.count) <= most && pod(domain.value))
    }

    /// Where the first of a group of pods that want each other's company starts: the smallest name both sides allow.
    pub(crate) fn bootstrap(&self, pod: &impl Fn(ValueId) -> bool, node: &impl Fn(ValueId) -> bool) -> Option<ValueId> {
        let taken = self.sorted.iter().any(|domain| domain.count > 0 && pod(domain.value));
        if taken {
            return None;
        }
        self.known()
            .map(|domain| domain.value)
            .find(|value| pod(*value) && node(*value))
    }

    fn collect(&self, keep: impl Fn(&Domain) -> bool) -> ValueSet {
        let mut values = ValueSet::default();
        for domain in self.known().filter(|domain| keep(domain)) {
            values.insert(domain.value);
        }
        values
    }
}

/// Counts of a group whose key is the hostname, by host index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts {
    counts: Vec<u32>,
    occupied: u32,
}

impl Hosts {
    pub(crate) fn count(&self, host: usize) -> u32 {
        self.counts.get(host).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, host: usize) {
        if self.counts.len() <= host {
            self.counts.resize(host + 1, 0);
        }
        self.counts[host] += 1;
        self.occupied += u32::from(self.counts[host] == 1);
    }

    pub(crate) fn remove(&mut self, host: usize) {
        if let Some(count) = self.counts.get_mut(host).filter(|count| **count > 0) {
            *count -= 1;
            self.occupied -= u32::from(*count == 0);
        }
    }

    pub(crate) fn has_pods(&self) -> bool {
        self.occupied > 0
    }

    pub(crate) fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(host, _)| host)
    }
}

/// What a group has counted.
#[derive(Debug, Clone)]
pub(crate) enum Counts {
    Domains(Domains),
    Hosts(Hosts),
}
