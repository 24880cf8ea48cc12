//! The InterPodAffinity filter: a pod's own affinity and anti-affinity, and the anti-affinity of pods already placed.

use std::collections::{BTreeMap, BTreeSet};

use super::filters::Refusal;
use super::view::ClusterView;
use crate::controllers::node::NodeFacts;
use crate::controllers::pod::{AffinityTerm, PodFacts};

/// Where pods that matter to one pod are, by topology domain.
#[derive(Debug, Default)]
pub(super) struct AffinityNeeds {
    affinity: Vec<TermDomains>,
    anti_affinity: Vec<TermDomains>,
    /// Domains that placed pods want for themselves.
    forbidden: BTreeSet<(String, String)>,
    /// The pod may found its own group: nothing matches anywhere and it matches its own terms.
    may_start_group: bool,
}

#[derive(Debug)]
struct TermDomains {
    key: String,
    domains: BTreeMap<String, i64>,
}

impl AffinityNeeds {
    pub(super) fn new(view: &ClusterView, pod: &PodFacts) -> Self {
        let spec = &pod.class.spec;
        let own = view.namespace_labels(&pod.namespace);
        // A pod counts for affinity only if it matches all of the terms.
        let matches_all = |namespace: &str, labels: &_| {
            let scope = view.namespace_labels(namespace);
            spec.affinity.iter().all(|t| t.matches(namespace, scope, labels))
        };
        let affinity: Vec<TermDomains> = spec
            .affinity
            .iter()
            .map(|t| TermDomains::new(view, t, &matches_all))
            .collect();
        let anti_affinity = spec
            .anti_affinity
            .iter()
            .map(|t| {
                TermDomains::new(view, t, &|namespace: &str, labels: &_| {
                    t.matches(namespace, view.namespace_labels(namespace), labels)
                })
            })
            .collect();
        let may_start_group = affinity.iter().all(|t| t.domains.is_empty())
            && spec
                .affinity
                .iter()
                .all(|t| t.matches(&pod.namespace, own, &pod.class.labels));
        Self {
            affinity,
            anti_affinity,
            forbidden: forbidden_domains(view, pod),
            may_start_group,
        }
    }

    pub(super) fn refuse(&self, node: &NodeFacts) -> Option<Refusal> {
        let present = |t: &TermDomains| {
            node.labels
                .get(&t.key)
                .is_some_and(|d| t.domains.get(d).is_some_and(|count| *count > 0))
        };
        if !self.affinity.is_empty() {
            let has_keys = self.affinity.iter().all(|t| node.labels.contains_key(&t.key));
            if !has_keys || !(self.affinity.iter().all(present) || self.may_start_group) {
                return Some(Refusal::Affinity);
            }
        }
        if self.anti_affinity.iter().any(present) {
            return Some(Refusal::AntiAffinity);
        }
        let is_forbidden = |(key, domain): &(String, String)| node.labels.get(key).is_some_and(|have| have == domain);
        self.forbidden
            .iter()
            .any(is_forbidden)
            .then_some(Refusal::ExistingAntiAffinity)
    }
}

impl TermDomains {
    fn new(
        view: &ClusterView,
        term: &AffinityTerm,
        matches: &dyn Fn(&str, &crate::controllers::selector::Labels) -> bool,
    ) -> Self {
        let mut domains = BTreeMap::new();
        for class in view
            .classes
            .values()
            .filter(|c| matches(&c.class.namespace, &c.class.labels))
        {
            for (name, placements) in &class.nodes {
                let domain = view.node(name).and_then(|node| node.labels.get(&term.key));
                if let Some(domain) = domain {
                    *domains.entry(domain.clone()).or_default() += placements.all();
                }
            }
        }
        Self {
            key: term.key.clone(),
            domains,
        }
    }
}

fn forbidden_domains(view: &ClusterView, pod: &PodFacts) -> BTreeSet<(String, String)> {
    let own = view.namespace_labels(&pod.namespace);
    let mut forbidden = BTreeSet::new();
    for class in view.classes.values() {
        for term in &class.class.spec.anti_affinity {
            if !term.matches(&pod.namespace, own, &pod.class.labels) {
                continue;
            }
            for name in class.nodes.keys() {
                let domain = view.node(name).and_then(|node| node.labels.get(&term.key));
                if let Some(domain) = domain {
                    forbidden.insert((term.key.clone(), domain.clone()));
                }
            }
        }
    }
    forbidden
}
