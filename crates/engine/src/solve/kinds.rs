//! Pod kinds: everything that pods with the same constraints share, worked out once, with every step of relaxation.

use std::sync::Arc;

use super::demand::Demand;
use super::groups::{Group, GroupId, Groups, Namespaces, NodeFilter, Rule};
use crate::catalog::Universe;
use crate::model::{
    HostPort, Labels, PodAffinityTerm, PodSpec, PreferencePolicy, SelectorRequirement, SpreadConstraint, SpreadPolicy,
    Toleration, WhenUnsatisfiable, tolerates,
};
use crate::plan::Relaxation;
use crate::tables::Tables;

/// Pods with equal constraints, in one namespace, that all selectors see alike.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub(crate) namespace: Arc<str>,
    /// Only the labels that some selector looks at.
    pub(crate) labels: Arc<Labels>,
    pub(crate) ports: Box<[HostPort]>,
    pub(crate) needs_dynamic_resources: bool,
    /// From all preferences to none; never empty.
    pub(crate) steps: Vec<Step>,
    /// Inverse groups of the kind's own required anti-affinity.
    pub(crate) inverse: Vec<GroupId>,
    /// Groups that count these pods.
    pub(crate) counted_by: Vec<GroupId>,
    /// Inverse groups that keep these pods away from somewhere.
    pub(crate) kept_away_by: Vec<GroupId>,
}

/// What the pods demand after some preferences were given up.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// With the heaviest preferred term.
    pub(crate) full: Demand,
    /// Without preferences: the domains over which skew is computed.
    pub(crate) strict: Demand,
    pub(crate) tolerations: Arc<[Toleration]>,
    pub(crate) owned: Vec<Owned>,
    /// What was given up to get here from the step before.
    pub(crate) relaxed: Option<Relaxation>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) group: GroupId,
    /// The group counts the pods that it constrains.
    pub(crate) selects_itself: bool,
}

/// Where kinds are built.
pub(crate) struct Builder<'a> {
    pub(crate) tables: &'a mut Tables,
    pub(crate) groups: &'a mut Groups,
    pub(crate) universe: &'a Universe,
    pub(crate) namespaces: &'a std::collections::BTreeMap<String, Labels>,
    pub(crate) policy: PreferencePolicy,
    /// Something that pods could run on has a PreferNoSchedule taint.
    pub(crate) prefer_no_schedule: bool,
}

/// What is still left of the soft constraints: indices into the spec, heaviest first.
#[derive(Clone)]
struct Soft {
    required_from: usize,
    affinity: Vec<usize>,
    anti_affinity: Vec<usize>,
    node: Vec<usize>,
    spread: Vec<usize>,
    tolerations: Arc<[Toleration]>,
}

impl Builder<'_> {
    /// Builds a kind; selections (`counted_by`, `kept_away_by`, `selects_itself`) are filled in when all groups exist.
    pub(crate) fn build(
        &mut self,
        spec: &PodSpec,
        spread: &[SpreadConstraint],
        namespace: &Arc<str>,
        labels: &Arc<Labels>,
    ) -> Kind {
        let inverse = spec
            .anti_affinity
            .required
            .iter()
            .map(|term| self.term(term, Rule::Inverse, namespace, None))
            .collect();
        let mut soft = Soft {
            required_from: 0,
            affinity: by_weight(spec.affinity.preferred.iter().map(|term| term.weight)),
            anti_affinity: by_weight(spec.anti_affinity.preferred.iter().map(|term| term.weight)),
            node: by_weight(spec.preferred_node_terms.iter().map(|term| term.weight)),
            spread: (0..spread.len()).collect(),
            tolerations: spec.tolerations.clone().into(),
        };
        if self.policy == PreferencePolicy::Ignore {
            soft.affinity.clear();
            soft.anti_affinity.clear();
            soft.node.clear();
            soft.spread
                .retain(|at| spread[*at].when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule);
        }
        let mut steps = vec![self.step(spec, spread, namespace, labels, &soft, None)];
        while let Some(relaxed) = self.relax(spec, spread, &mut soft) {
            steps.push(self.step(spec, spread, namespace, labels, &soft, Some(relaxed)));
        }
        Kind {
            namespace: namespace.clone(),
            labels: labels.clone(),
            ports: spec.host_ports.clone().into(),
            needs_dynamic_resources: spec.needs_dynamic_resources,
            steps,
            inverse,
            counted_by: Vec::new(),
            kept_away_by: Vec::new(),
        }
    }

    /// Gives up one soft constraint, in the order of scheduling.md §6.
    fn relax(&self, spec: &PodSpec, spread: &[SpreadConstraint], soft: &mut Soft) -> Option<Relaxation> {
        if soft.required_from + 1 < spec.required_node_terms.len() {
            soft.required_from += 1;
            let remaining = spec.required_node_terms.len() - soft.required_from;
            return Some(Relaxation::RequiredNodeTerm { remaining });
        }
        if !soft.affinity.is_empty() {
            let at = soft.affinity.remove(0);
            let topology_key = spec.affinity.preferred[at].term.topology_key.clone();
            return Some(Relaxation::PreferredPodAffinity { topology_key });
        }
        if !soft.anti_affinity.is_empty() {
            let at = soft.anti_affinity.remove(0);
            let topology_key = spec.anti_affinity.preferred[at].term.topology_key.clone();
            return Some(Relaxation::PreferredPodAntiAffinity { topology_key });
        }
        if !soft.node.is_empty() {
            let at = soft.node.remove(0);
            return Some(Relaxation::PreferredNodeTerm {
                weight: spec.preferred_node_terms[at].weight,
            });
        }
        let is_soft = |at: &usize| spread[*at].when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway;
        if let Some(first) = soft.spread.iter().position(is_soft) {
            let at = soft.spread.swap_remove(first);
            return Some(Relaxation::ScheduleAnywaySpread {
                topology_key: spread[at].topology_key.clone(),
            });
        }
        let blanket = Toleration::prefer_no_schedule();
        if self.prefer_no_schedule && !soft.tolerations.contains(&blanket) {
            soft.tolerations = soft.tolerations.iter().cloned().chain([blanket]).collect();
            return Some(Relaxation::ToleratePreferNoSchedule);
        }
        None
    }

    fn step(
        &mut self,
        spec: &PodSpec,
        spread: &[SpreadConstraint],
        namespace: &Arc<str>,
        labels: &Labels,
        soft: &Soft,
        relaxed: Option<Relaxation>,
    ) -> Step {
        let required = spec.required_node_terms.get(soft.required_from).into_iter().flatten();
        let strict = Demand::new(self.tables, &spec.node_selector, required.clone());
        let full = match soft.node.first() {
            None => strict,
            Some(heaviest) => {
                let preferred = &spec.preferred_node_terms[*heaviest].expressions;
                Demand::new(self.tables, &spec.node_selector, required.chain(preferred))
            }
        };
        let mut groups: Vec<GroupId> = Vec::new();
        for at in &soft.spread {
            groups.push(self.spread(spec, &spread[*at], namespace, labels, soft));
        }
        let tolerations = Some(&soft.tolerations);
        for term in &spec.affinity.required {
            groups.push(self.term(term, Rule::Affinity, namespace, tolerations));
        }
        for at in &soft.affinity {
            groups.push(self.term(
                &spec.affinity.preferred[*at].term,
                Rule::Affinity,
                namespace,
                tolerations,
            ));
        }
        for term in &spec.anti_affinity.required {
            groups.push(self.term(term, Rule::AntiAffinity, namespace, tolerations));
        }
        for at in &soft.anti_affinity {
            let term = &spec.anti_affinity.preferred[*at].term;
            groups.push(self.term(term, Rule::AntiAffinity, namespace, tolerations));
        }
        let mut owned: Vec<Owned> = Vec::with_capacity(groups.len());
        for group in groups {
            if owned.iter().all(|present| present.group != group) {
                owned.push(Owned {
                    group,
                    selects_itself: false,
                });
            }
        }
        Step {
            full,
            strict,
            tolerations: soft.tolerations.clone(),
            owned,
            relaxed,
        }
    }

    fn spread(
        &mut self,
        spec: &PodSpec,
        constraint: &SpreadConstraint,
        namespace: &Arc<str>,
        labels: &Labels,
        soft: &Soft,
    ) -> GroupId {
        let pinned = constraint.match_label_keys.iter().filter_map(|key| {
            let value = labels.get(key)?;
            Some(SelectorRequirement::is(key.clone(), value.clone()))
        });
        let selector = constraint.selector.and(pinned);
        let key = self.topology_key(&constraint.topology_key);
        let honors_taints = constraint.node_taints_policy == SpreadPolicy::Honor;
        let universe = self
            .universe
            .domains(key, |taints| !honors_taints || tolerates(&soft.tolerations, taints));
        let terms = (constraint.node_affinity_policy == SpreadPolicy::Honor).then(|| self.filter_terms(spec, soft));
        let filter = NodeFilter {
            terms: terms.filter(|terms| !terms.contains(&Demand::NONE)),
            tolerations: honors_taints.then(|| soft.tolerations.clone()),
        };
        let filter = (filter.terms.is_some() || filter.tolerations.is_some()).then_some(filter);
        let rule = Rule::Spread {
            max_skew: i64::from(constraint.max_skew),
            min_domains: constraint.min_domains.map(|wanted| wanted.max(0) as usize),
        };
        self.groups.intern(Group {
            key,
            rule,
            namespaces: Namespaces::own(namespace),
            selector,
            universe,
            filter,
        })
    }

    /// The node selector with each required term that is still considered.
    fn filter_terms(&mut self, spec: &PodSpec, soft: &Soft) -> Vec<Demand> {
        let terms = spec.required_node_terms.get(soft.required_from..).unwrap_or_default();
        if terms.is_empty() {
            return vec![Demand::new(self.tables, &spec.node_selector, [])];
        }
        terms
            .iter()
            .map(|term| Demand::new(self.tables, &spec.node_selector, term))
            .collect()
    }

    /// An affinity group; its universe is what the tolerations reach (all of it for inverse groups, whose selected pods
    /// tolerate other things than their owner).
    fn term(
        &mut self,
        term: &PodAffinityTerm,
        rule: Rule,
        namespace: &Arc<str>,
        tolerations: Option<&Arc<[Toleration]>>,
    ) -> GroupId {
        let key = self.topology_key(&term.topology_key);
        let reachable = |taints: &[_]| tolerations.is_none_or(|tolerations| tolerates(tolerations, taints));
        let universe = self.universe.domains(key, reachable);
        let namespaces = Namespaces::of(&term.namespaces, namespace, self.namespaces);
        let selector = term.selector.clone();
        self.groups.intern(Group {
            key,
            rule,
            namespaces,
            selector,
            universe,
            filter: None,
        })
    }

    fn topology_key(&mut self, key: &str) -> crate::tables::KeyId {
        let key = self.tables.rules().canonical_key(key).to_owned();
        self.tables.names.key(&key)
    }
}

/// Positions by weight, heaviest first; equal weights keep their order.
fn by_weight(weights: impl Iterator<Item = i32>) -> Vec<usize> {
    let weights: Vec<i32> = weights.collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(weights[*at]));
    order
}
