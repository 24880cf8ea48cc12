//! Cluster-wide default spread constraints for pods that have none of their own (scheduling.md §5.9).

use crate::model::{
    ControllerRef, LabelSelector, Labels, Options, SelectorRequirement, SpreadConstraint, WorkloadSelectors,
};

/// The defaults with the selector that Kubernetes deduces for the pod; none for pods that nothing selects.
pub(crate) fn injected(
    options: &Options,
    workloads: &WorkloadSelectors,
    namespace: &str,
    labels: &Labels,
    controller: Option<&ControllerRef>,
) -> Vec<SpreadConstraint> {
    if options.default_spread.is_empty() {
        return Vec::new();
    }
    let Some(selector) = deduced_selector(workloads, namespace, labels, controller) else {
        return Vec::new();
    };
    let with_selector = |default: &SpreadConstraint| SpreadConstraint {
        selector: selector.clone(),
        ..default.clone()
    };
    options.default_spread.iter().map(with_selector).collect()
}

fn deduced_selector(
    workloads: &WorkloadSelectors,
    namespace: &str,
    labels: &Labels,
    controller: Option<&ControllerRef>,
) -> Option<LabelSelector> {
    let mut exact = Labels::new();
    for service in workloads.services.get(namespace).into_iter().flatten() {
        if service.iter().all(|(key, value)| labels.get(key) == Some(value)) {
            exact.extend(service.clone());
        }
    }
    let mut requirements: Vec<SelectorRequirement> = Vec::new();
    if let Some(ControllerRef { kind, name }) = controller
        && let Some(LabelSelector::All(own)) =
            workloads
                .controllers
                .get(&(namespace.to_owned(), kind.clone(), name.clone()))
    {
        if kind == "ReplicationController" {
            // Its selector is a plain map, whose entries win over those of Services.
            let pairs = own
                .iter()
                .filter_map(|r| Some((r.key.clone(), r.values.first()?.clone())));
            exact.extend(pairs);
        } else {
            requirements.extend(own.iter().cloned());
        }
    }
    requirements.extend(
        exact
            .into_iter()
            .map(|(key, value)| SelectorRequirement::is(key, value)),
    );
    (!requirements.is_empty()).then(|| LabelSelector::all(requirements))
}
