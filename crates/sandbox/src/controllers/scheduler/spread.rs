//! The PodTopologySpread filter.

use std::collections::BTreeMap;

use super::filters::{Refusal, has_untolerated_taint, matches_affinity};
use super::view::ClusterView;
use crate::controllers::node::NodeFacts;
use crate::controllers::pod::{PodFacts, Spread};

/// Pods per domain for each `DoNotSchedule` constraint of one pod.
#[derive(Debug, Default)]
pub(super) struct SpreadNeeds {
    constraints: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    key: String,
    max_skew: i64,
    counts: BTreeMap<String, i64>,
    fewest: i64,
    self_match: i64,
}

impl SpreadNeeds {
    pub(super) fn new(view: &ClusterView, pod: &PodFacts) -> Self {
        let required: Vec<&Spread> = pod.class.spec.spread.iter().filter(|c| c.required).collect();
        Self {
            constraints: required.iter().map(|c| Counted::new(view, pod, c, &required)).collect(),
        }
    }

    pub(super) fn refuse(&self, node: &NodeFacts) -> Option<Refusal> {
        for constraint in &self.constraints {
            let Some(domain) = node.labels.get(&constraint.key) else {
                return Some(Refusal::SpreadLabelMissing);
            };
            let count = constraint.counts.get(domain).copied().unwrap_or(0);
            if count + constraint.self_match - constraint.fewest > constraint.max_skew {
                return Some(Refusal::Spread);
            }
        }
        None
    }
}

impl Counted {
    fn new(view: &ClusterView, pod: &PodFacts, constraint: &Spread, all: &[&Spread]) -> Self {
        let counts = domain_counts(view, pod, constraint, all);
        let domains = i64::try_from(counts.len()).unwrap_or(i64::MAX);
        let fewest = if domains < constraint.min_domains {
            0
        } else {
            counts.values().copied().min().unwrap_or(0)
        };
        let self_match = constraint
            .selector
            .as_ref()
            .is_some_and(|s| s.matches(&pod.class.labels));
        Self {
            key: constraint.key.clone(),
            max_skew: constraint.max_skew,
            counts,
            fewest,
            self_match: i64::from(self_match),
        }
    }
}

/// Matching pods per domain, over the nodes that count: those with all keys that pass the constraint's policies.
pub(super) fn domain_counts(
    view: &ClusterView,
    pod: &PodFacts,
    constraint: &Spread,
    all: &[&Spread],
) -> BTreeMap<String, i64> {
    let spec = &pod.class.spec;
    let eligible = |node: &NodeFacts| {
        all.iter().all(|c| node.labels.contains_key(&c.key))
            && (!constraint.honors_affinity || matches_affinity(spec, node))
            && (!constraint.honors_taints || !has_untolerated_taint(spec, node))
    };
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (node, _) in view.existing().filter(|(node, _)| eligible(node)) {
        counts.entry(&node.labels[&constraint.key]).or_default();
    }
    for class in view.classes.values() {
        if *class.class.namespace != *pod.namespace || !constraint.counts(&class.class.labels) {
            continue;
        }
        for (name, placements) in &class.nodes {
            let Some(node) = view.node(name).filter(|node| eligible(node)) else {
                continue;
            };
            *counts.entry(&node.labels[&constraint.key]).or_default() += placements.living;
        }
    }
    counts
        .into_iter()
        .map(|(domain, count)| (domain.to_owned(), count))
        .collect()
}
