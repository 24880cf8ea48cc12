//! What a pod asks of its node and of the pods around it.

use k8s_openapi::api::core::v1 as kube;
use karpenter_api::{Requirement, labels::LabelRules, requirement::Operator};

use super::{
    ports::host_ports,
    selector::{label_selector, namespace_scope},
    taint::tolerations,
    validation::{PodProblem, check_expression, check_selector_entry, check_term},
};
use crate::model::{
    Labels, PodAffinity, PodAffinityTerm, PodSpec, PreferredNodeTerm, SpreadConstraint, SpreadPolicy, WeightedPodTerm,
    WhenUnsatisfiable,
};

/// Reads the constraints of a pod, and what is wrong with them.
///
/// An expression that can't be read is left out and named in `problems`: a pod that already runs is kept with what is
/// clear, one that is pending is refused for its problems (scheduling.md §3.3).
pub fn pod_constraints(rules: &LabelRules, spec: &kube::PodSpec, problems: &mut Vec<PodProblem>) -> PodSpec {
    let affinity = spec.affinity.as_ref();
    let node_affinity = affinity.and_then(|a| a.node_affinity.as_ref());
    let required = node_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let preferred = node_affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());

    let (node_selector, contradictions) = node_selector(rules, spec.node_selector.as_ref(), problems);
    let mut required_node_terms: Vec<Vec<Requirement>> = required
        .iter()
        .flat_map(|r| &r.node_selector_terms)
        .map(|term| required_term(rules, term, problems))
        .collect();
    if !contradictions.is_empty() && required_node_terms.is_empty() {
        required_node_terms.push(Vec::new());
    }
    for term in &mut required_node_terms {
        term.extend(contradictions.iter().cloned());
    }

    PodSpec {
        node_selector,
        required_node_terms,
        preferred_node_terms: preferred
            .into_iter()
            .flatten()
            .map(|term| preferred_term(rules, term))
            .collect(),
        affinity: affinity
            .and_then(|a| a.pod_affinity.as_ref())
            .map(pod_affinity)
            .unwrap_or_default(),
        anti_affinity: affinity
            .and_then(|a| a.pod_anti_affinity.as_ref())
            .map(pod_anti_affinity)
            .unwrap_or_default(),
        spread: spec
            .topology_spread_constraints
            .iter()
            .flatten()
            .map(spread_constraint)
            .collect(),
        tolerations: tolerations(spec.tolerations.as_deref()),
        host_ports: host_ports(spec),
        needs_dynamic_resources: needs_dynamic_resources(spec),
    }
}

/// The selector under today's label names, and entries that contradict it: old and new name with different values.
fn node_selector(
    rules: &LabelRules,
    selector: Option<&Labels>,
    problems: &mut Vec<PodProblem>,
) -> (Labels, Vec<Requirement>) {
    let mut labels = Labels::new();
    let mut contradictions = Vec::new();
    for (key, value) in selector.into_iter().flatten() {
        check_selector_entry(rules, key, value, problems);
        let key = rules.canonical_key(key);
        let value = rules.canonical_value(key, value);
        match labels.get(key) {
            Some(present) if present != value => contradictions.push(Requirement::within(key, [value])),
            Some(_) => {}
            None => {
                labels.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    (labels, contradictions)
}

fn required_term(
    rules: &LabelRules,
    term: &kube::NodeSelectorTerm,
    problems: &mut Vec<PodProblem>,
) -> Vec<Requirement> {
    check_term(term, problems);
    let expressions = term.match_expressions.iter().flatten();
    expressions
        .filter_map(|expression| check_expression(rules, expression, problems))
        .collect()
}

/// Preferences are not validated; what can't be read is no preference.
fn preferred_term(rules: &LabelRules, term: &kube::PreferredSchedulingTerm) -> PreferredNodeTerm {
    let expressions = term.preference.match_expressions.iter().flatten();
    let expressions = expressions
        .filter_map(|e| Requirement::from_kube(rules, e).ok())
        .collect();
    PreferredNodeTerm {
        weight: term.weight,
        expressions,
    }
}

fn pod_affinity(affinity: &kube::PodAffinity) -> PodAffinity {
    PodAffinity {
        required: required_terms(affinity.required_during_scheduling_ignored_during_execution.as_deref()),
        preferred: preferred_terms(affinity.preferred_during_scheduling_ignored_during_execution.as_deref()),
    }
}

fn pod_anti_affinity(affinity: &kube::PodAntiAffinity) -> PodAffinity {
    PodAffinity {
        required: required_terms(affinity.required_during_scheduling_ignored_during_execution.as_deref()),
        preferred: preferred_terms(affinity.preferred_during_scheduling_ignored_during_execution.as_deref()),
    }
}

fn required_terms(terms: Option<&[kube::PodAffinityTerm]>) -> Vec<PodAffinityTerm> {
    terms.unwrap_or_default().iter().map(pod_term).collect()
}

fn preferred_terms(terms: Option<&[kube::WeightedPodAffinityTerm]>) -> Vec<WeightedPodTerm> {
    let weighted = |t: &kube::WeightedPodAffinityTerm| WeightedPodTerm {
        weight: t.weight,
        term: pod_term(&t.pod_affinity_term),
    };
    terms.unwrap_or_default().iter().map(weighted).collect()
}

fn pod_term(term: &kube::PodAffinityTerm) -> PodAffinityTerm {
    PodAffinityTerm {
        topology_key: term.topology_key.clone(),
        selector: label_selector(term.label_selector.as_ref()),
        namespaces: namespace_scope(term),
    }
}

/// A spread constraint with Kubernetes' defaults filled in.
pub fn spread_constraint(constraint: &kube::TopologySpreadConstraint) -> SpreadConstraint {
    let policy = |text: Option<&String>, default| match text.map(String::as_str) {
        Some("Honor") => SpreadPolicy::Honor,
        Some("Ignore") => SpreadPolicy::Ignore,
        _ => default,
    };
    SpreadConstraint {
        topology_key: constraint.topology_key.clone(),
        max_skew: constraint.max_skew,
        min_domains: constraint.min_domains,
        when_unsatisfiable: match constraint.when_unsatisfiable.as_str() {
            "ScheduleAnyway" => WhenUnsatisfiable::ScheduleAnyway,
            _ => WhenUnsatisfiable::DoNotSchedule,
        },
        selector: label_selector(constraint.label_selector.as_ref()),
        match_label_keys: constraint.match_label_keys.clone().unwrap_or_default(),
        node_affinity_policy: policy(constraint.node_affinity_policy.as_ref(), SpreadPolicy::Honor),
        node_taints_policy: policy(constraint.node_taints_policy.as_ref(), SpreadPolicy::Ignore),
    }
}

fn needs_dynamic_resources(spec: &kube::PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let claims = containers.filter_map(|container| container.resources.as_ref()?.claims.as_ref());
    spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) || claims.flatten().next().is_some()
}

/// Whether the pod keeps away from nodes that Karpenter makes, by what it requires or prefers most (scheduling.md §3.3).
pub(super) fn avoids_node_pools(spec: &PodSpec) -> bool {
    let heaviest = spec
        .preferred_node_terms
        .iter()
        .enumerate()
        .max_by_key(|(at, term)| (term.weight, std::cmp::Reverse(*at)));
    let preferred = heaviest
        .map(|(_, term)| term.expressions.as_slice())
        .unwrap_or_default();
    let required = spec.required_node_terms.first().map(Vec::as_slice).unwrap_or_default();
    required
        .iter()
        .chain(preferred)
        .any(|r| r.key() == karpenter_api::labels::NODEPOOL && r.operator() == Operator::DoesNotExist)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> (PodSpec, Vec<PodProblem>) {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let mut problems = Vec::new();
        let spec = pod_constraints(
            &LabelRules::default(),
            &serde_json::from_value(spec).unwrap(),
            &mut problems,
        );
        (spec, problems)
    }

    #[test]
    fn old_label_names_become_todays() {
        let (spec, problems) = read(json!({ "nodeSelector": { "failure-domain.beta.kubernetes.io/zone": "a" } }));
        assert_eq!(
            spec.node_selector
                .get("topology.kubernetes.io/zone")
                .map(String::as_str),
            Some("a")
        );
        assert!(problems.is_empty());
    }

    #[test]
    fn old_and_new_name_with_different_values_contradict() {
        let (spec, _) =
            read(json!({ "nodeSelector": { "beta.kubernetes.io/arch": "arm64", "kubernetes.io/arch": "amd64" } }));
        assert_eq!(spec.required_node_terms.len(), 1);
        assert!(spec.required_node_terms[0][0].has("amd64"));
        assert_eq!(spec.node_selector["kubernetes.io/arch"], "arm64");
    }

    #[test]
    fn spread_policies_default_to_honouring_affinity_and_ignoring_taints() {
        let (spec, _) = read(json!({ "topologySpreadConstraints": [
            { "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }] }));
        assert_eq!(spec.spread[0].node_affinity_policy, SpreadPolicy::Honor);
        assert_eq!(spec.spread[0].node_taints_policy, SpreadPolicy::Ignore);
    }

    #[test]
    fn a_pod_that_wants_no_node_pool_avoids_them() {
        let term = |operator: &str| {
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": operator }] }] } } } })
        };
        assert!(avoids_node_pools(&read(term("DoesNotExist")).0));
        assert!(!avoids_node_pools(&read(term("Exists")).0));
    }

    #[test]
    fn the_first_of_the_heaviest_preferences_counts() {
        let preference = |weight: i32, operator: &str| {
            json!({ "weight": weight, "preference": {
            "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": operator }] } })
        };
        let prefer = |terms: Value| json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": terms } } });
        assert!(avoids_node_pools(
            &read(prefer(json!([preference(1, "Exists"), preference(9, "DoesNotExist")]))).0
        ));
        assert!(!avoids_node_pools(
            &read(prefer(json!([preference(9, "Exists"), preference(9, "DoesNotExist")]))).0
        ));
    }

    #[test]
    fn resource_claims_of_a_container_need_dynamic_resources() {
        let spec: kube::PodSpec = serde_json::from_value(
            json!({ "containers": [{ "name": "c", "resources": { "claims": [{ "name": "gpu" }] } }] }),
        )
        .unwrap();
        assert!(needs_dynamic_resources(&spec));
    }
}
