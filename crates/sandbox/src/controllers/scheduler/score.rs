//! Which of the fitting nodes is best: kube-scheduler's default scores, with ties broken by the seed.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use super::filters::Attempt;
use super::spread::domain_counts;
use crate::controllers::node::{NodeFacts, tolerates};
use crate::controllers::pod::{SpecFacts, Spread};
use crate::controllers::resources::Resources;
use crate::controllers::selector::Selector;

/// What a container without requests is assumed to use when nodes are compared.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Picks the best of `nodes`; `salt` decides between equals.
pub(crate) fn best<'n>(attempt: &Attempt<'_>, nodes: &'n [Arc<NodeFacts>], salt: u64) -> Option<&'n Arc<NodeFacts>> {
    if nodes.len() < 2 {
        return nodes.first();
    }
    let spec = &attempt.pod.class.spec;
    let mut totals = vec![0_i64; nodes.len()];
    add(
        &mut totals,
        3,
        inverted(nodes.iter().map(|n| repelled(spec, n)).collect()),
    );
    add(
        &mut totals,
        2,
        scaled(nodes.iter().map(|n| preference(spec, n)).collect()),
    );
    add(&mut totals, 2, spreading(attempt, nodes));
    add(&mut totals, 2, scaled(affinity(attempt, nodes)));
    for (total, node) in totals.iter_mut().zip(nodes) {
        *total += allocation(attempt, node);
    }
    let highest = totals.iter().copied().max()?;
    let equals: Vec<&Arc<NodeFacts>> = nodes
        .iter()
        .zip(&totals)
        .filter(|(_, total)| **total == highest)
        .map(|(node, _)| node)
        .collect();
    let mut hasher = FxHasher::default();
    (salt, &attempt.pod.uid).hash(&mut hasher);
    let choice = usize::try_from(hasher.finish() % u64::try_from(equals.len()).ok()?).ok()?;
    equals.get(choice).copied()
}

fn add(totals: &mut [i64], weight: i64, scores: Vec<i64>) {
    for (total, score) in totals.iter_mut().zip(scores) {
        *total += weight * score;
    }
}

/// Raw points stretched to 0–100.
fn scaled(raw: Vec<i64>) -> Vec<i64> {
    let (low, high) = (
        raw.iter().copied().min().unwrap_or(0).min(0),
        raw.iter().copied().max().unwrap_or(0),
    );
    if high == low {
        return vec![0; raw.len()];
    }
    raw.into_iter()
        .map(|points| (points - low) * 100 / (high - low))
        .collect()
}

/// Raw penalties turned into 0–100 where none is best.
fn inverted(raw: Vec<i64>) -> Vec<i64> {
    let high = raw.iter().copied().max().unwrap_or(0);
    raw.into_iter()
        .map(|penalty| if high == 0 { 100 } else { 100 - penalty * 100 / high })
        .collect()
}

fn repelled(spec: &SpecFacts, node: &NodeFacts) -> i64 {
    let soft = node.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
    i64::try_from(soft.filter(|t| !tolerates(&spec.tolerations, t)).count()).unwrap_or(i64::MAX)
}

fn preference(spec: &SpecFacts, node: &NodeFacts) -> i64 {
    let matching = spec
        .preferred_nodes
        .iter()
        .filter(|(_, term)| term.matches(&node.name, &node.labels));
    matching.map(|(weight, _)| weight).sum()
}

/// Soft spread constraints; pods of a workload without any are spread over hosts and zones by default.
fn spreading(attempt: &Attempt<'_>, nodes: &[Arc<NodeFacts>]) -> Vec<i64> {
    let pod = attempt.pod;
    let soft: Vec<Spread> = pod.class.spec.spread.iter().filter(|c| !c.required).cloned().collect();
    let constraints = match soft.is_empty() {
        false => soft,
        true if pod.class.spec.spread.is_empty() && pod.controller.is_some() => {
            vec![
                implied(pod.class.as_ref(), "kubernetes.io/hostname"),
                implied(&pod.class, "topology.kubernetes.io/zone"),
            ]
        }
        true => return vec![0; nodes.len()],
    };
    let mut crowding = vec![0_i64; nodes.len()];
    for constraint in &constraints {
        let counts: BTreeMap<String, i64> = domain_counts(attempt.view, pod, constraint, &[constraint]);
        for (total, node) in crowding.iter_mut().zip(nodes) {
            let domain = node.labels.get(&constraint.key);
            *total += domain.and_then(|d| counts.get(d)).copied().unwrap_or(0);
        }
    }
    inverted(crowding)
}

fn implied(class: &crate::controllers::pod::PodClass, key: &str) -> Spread {
    Spread {
        key: key.to_owned(),
        max_skew: 3,
        min_domains: 1,
        selector: Some(Selector::from_labels(&class.labels)),
        required: false,
        honors_affinity: true,
        honors_taints: false,
    }
}

fn affinity(attempt: &Attempt<'_>, nodes: &[Arc<NodeFacts>]) -> Vec<i64> {
    let mut points = vec![0_i64; nodes.len()];
    for (weight, term) in &attempt.pod.class.spec.preferred_affinity {
        let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
        for class in attempt.view.classes.values() {
            let scope = attempt.view.namespace_labels(&class.class.namespace);
            if !term.matches(&class.class.namespace, scope, &class.class.labels) {
                continue;
            }
            for (name, placements) in &class.nodes {
                if let Some(domain) = attempt.view.node(name).and_then(|n| n.labels.get(&term.key)) {
                    *domains.entry(domain).or_default() += placements.all();
                }
            }
        }
        for (total, node) in points.iter_mut().zip(nodes) {
            let domain = node.labels.get(&term.key).and_then(|d| domains.get(d.as_str()));
            *total += weight * domain.copied().unwrap_or(0);
        }
    }
    points
}

/// LeastAllocated plus BalancedAllocation over cpu and memory.
fn allocation(attempt: &Attempt<'_>, node: &NodeFacts) -> i64 {
    let Some(state) = attempt.view.nodes.get(&node.name) else {
        return 0;
    };
    let wanted = |requests: &Resources, name: &str, default: i64| match requests.get(name) {
        0 => default,
        amount => amount,
    };
    let requests = &attempt.pod.class.spec.requests;
    let used_share = |name: &str, default: i64| -> i64 {
        let capacity = node.allocatable.get(name);
        if capacity <= 0 {
            return 1000;
        }
        let used = i128::from(state.requested.get(name)) + i128::from(wanted(requests, name, default));
        i64::try_from((used * 1000 / i128::from(capacity)).min(1000)).unwrap_or(1000)
    };
    let cpu = used_share("cpu", DEFAULT_MILLI_CPU);
    let memory = used_share("memory", DEFAULT_MEMORY);
    let least = (2000 - cpu - memory) / 20;
    let balanced = 100 - (cpu - memory).abs() / 20;
    least + balanced
}
