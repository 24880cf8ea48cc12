//! What a pod asks of a node, from its containers, init containers, sidecars, overhead and pod-level requests.

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as KubeQuantity,
};
use karpenter_api::{
    Quantity, ResourceList,
    quantity::QuantityError,
    resources::{CPU, HUGEPAGES_PREFIX, MEMORY, PODS},
};

/// The pod's requests as the scheduler counts them, with `pods: 1` (scheduling.md §2.3).
///
/// While a pod is being resized, the status says what the kubelet has given it, and the larger of wish and gift counts.
pub fn pod_requests(spec: &PodSpec, status: Option<&PodStatus>) -> Result<ResourceList, QuantityError> {
    let mut total = totals(spec, status, Side::Requests)?;
    if let Some(overhead) = &spec.overhead {
        total.merge(&ResourceList::from_kube(overhead)?);
    }
    total.insert(PODS.to_owned(), Quantity::ONE);
    Ok(total)
}

/// The pod's limits, counted like its requests. What is not limited stays so: overhead only adds to limits that are there.
pub fn pod_limits(spec: &PodSpec, status: Option<&PodStatus>) -> Result<ResourceList, QuantityError> {
    let mut total = totals(spec, status, Side::Limits)?;
    if let Some(overhead) = &spec.overhead {
        let mut overhead = ResourceList::from_kube(overhead)?;
        overhead.0.retain(|resource, _| !total.amount(resource).is_zero());
        total.merge(&overhead);
    }
    total.insert(PODS.to_owned(), Quantity::ONE);
    Ok(total)
}

/// Which of a container's two amounts is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Limits,
}

/// Everything but overhead.
fn totals(spec: &PodSpec, status: Option<&PodStatus>, side: Side) -> Result<ResourceList, QuantityError> {
    let resize = Resize::of(status);
    let mut running = ResourceList::new();
    for container in &spec.containers {
        running.merge(&container_amounts(container, resize.status_of(&container.name), side)?);
    }

    let mut sidecars = ResourceList::new();
    let mut init_peak = ResourceList::new();
    for container in spec.init_containers.iter().flatten() {
        let restartable = is_sidecar(container);
        let status = if restartable {
            resize.init_status_of(&container.name)
        } else {
            Resize::unchanged()
        };
        let amounts = container_amounts(container, status, side)?;
        if restartable {
            sidecars.merge(&amounts);
            init_peak = init_peak.max(&sidecars);
        } else {
            init_peak = init_peak.max(&amounts.merged(&sidecars));
        }
    }

    let mut total = running.merged(&sidecars).max(&init_peak);
    for (resource, amount) in amounts_of(spec.resources.as_ref(), side)? {
        if resource == CPU || resource == MEMORY || resource.starts_with(HUGEPAGES_PREFIX) {
            total.insert(resource, amount);
        }
    }
    Ok(total)
}

/// Copies limits into requests that are missing, as the API server does when it admits a pod.
///
/// Manifests and pod templates have not been through admission; objects read from a cluster have, and don't change.
pub fn default_requests(spec: &mut PodSpec) {
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let Some(resources) = &mut container.resources else {
            continue;
        };
        let Some(limits) = &resources.limits else { continue };
        let requests = resources.requests.get_or_insert_default();
        for (resource, limit) in limits {
            requests.entry(resource.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// An init container that keeps running beside the others.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn amounts_of(resources: Option<&ResourceRequirements>, side: Side) -> Result<ResourceList, QuantityError> {
    let amounts = resources.and_then(|resources| match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    });
    match amounts {
        Some(amounts) => ResourceList::from_kube(amounts),
        None => Ok(ResourceList::new()),
    }
}

fn container_amounts(container: &Container, given: Given<'_>, side: Side) -> Result<ResourceList, QuantityError> {
    let wished = amounts_of(container.resources.as_ref(), side)?;
    let Given::Resources {
        actuated,
        allocated,
        infeasible,
    } = given
    else {
        return Ok(wished);
    };
    // What is allocated is about requests; a limit has no such thing.
    let allocated = allocated.filter(|_| side == Side::Requests);
    let given = amounts_of(Some(actuated), side)?.max(&match allocated {
        Some(allocated) => ResourceList::from_kube(allocated)?,
        None => ResourceList::new(),
    });
    Ok(match infeasible {
        true => given,
        false => wished.max(&given),
    })
}

/// What the pod's status says about in-place resizing.
struct Resize<'a> {
    status: Option<&'a PodStatus>,
    infeasible: bool,
}

enum Given<'a> {
    /// The status says nothing; the spec counts.
    Nothing,
    Resources {
        actuated: &'a ResourceRequirements,
        allocated: Option<&'a std::collections::BTreeMap<String, KubeQuantity>>,
        infeasible: bool,
    },
}

impl<'a> Resize<'a> {
    fn of(status: Option<&'a PodStatus>) -> Self {
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let infeasible = conditions
            .iter()
            .any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"));
        Self { status, infeasible }
    }

    fn unchanged() -> Given<'a> {
        Given::Nothing
    }

    fn status_of(&self, container: &str) -> Given<'a> {
        self.find(self.status.and_then(|s| s.container_statuses.as_deref()), container)
    }

    fn init_status_of(&self, container: &str) -> Given<'a> {
        self.find(
            self.status.and_then(|s| s.init_container_statuses.as_deref()),
            container,
        )
    }

    fn find(&self, statuses: Option<&'a [ContainerStatus]>, container: &str) -> Given<'a> {
        let found = statuses
            .unwrap_or_default()
            .iter()
            .find(|status| status.name == container);
        let Some((status, actuated)) = found.and_then(|s| Some((s, s.resources.as_ref()?))) else {
            return Given::Nothing;
        };
        Given::Resources {
            actuated,
            allocated: status.allocated_resources.as_ref(),
            infeasible: self.infeasible,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(pod: Value, cpu: &str, memory: &str) {
        let spec: PodSpec = serde_json::from_value(pod["spec"].clone()).unwrap();
        let status: Option<PodStatus> = serde_json::from_value(pod["status"].clone()).unwrap();
        let total = pod_requests(&spec, status.as_ref()).unwrap();
        assert_eq!(
            (total.cpu(), total.memory()),
            (cpu.parse().unwrap(), memory.parse().unwrap())
        );
        assert_eq!(total.amount(PODS), Quantity::ONE);
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({ "name": "c", "image": "x", "resources": { "requests": { "cpu": cpu, "memory": memory } } })
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut container = container(cpu, memory);
        container["name"] = "s".into();
        container["restartPolicy"] = "Always".into();
        container
    }

    #[test]
    fn limits_are_counted_like_requests_and_overhead_adds_only_to_what_is_limited() {
        let spec: PodSpec =
            serde_json::from_value(json!({ "overhead": { "cpu": "250m", "memory": "1Gi" }, "containers": [
            { "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" } } },
            { "name": "b", "resources": { "limits": { "cpu": "1" } } } ] }))
            .unwrap();
        let limits = pod_limits(&spec, None).unwrap();
        assert_eq!(limits.cpu(), "3250m".parse().unwrap());
        assert!(limits.get(MEMORY).is_none());
        assert_eq!(limits.amount(PODS), Quantity::ONE);
    }

    #[test]
    fn an_init_container_runs_beside_the_sidecars_started_before_it() {
        check(
            json!({ "spec": { "containers": [container("2", "1Gi")], "initContainers": [sidecar("4", "2Gi"), container("10", "2Gi")] } }),
            "14",
            "4Gi",
        );
    }

    #[test]
    fn an_init_container_before_a_sidecar_does_not_add_to_it() {
        check(
            json!({ "spec": {
                "containers": [container("2", "1Gi")],
                "initContainers": [container("4", "2Gi"), sidecar("3", "3Gi")],
                "overhead": { "cpu": "5", "memory": "1Gi" } } }),
            "10",
            "5Gi",
        );
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        check(
            json!({ "spec": {
                "containers": [container("1", "1Gi")],
                "initContainers": [sidecar("1", "1Gi")],
                "resources": { "requests": { "cpu": "10", "memory": "10Gi" } } } }),
            "10",
            "10Gi",
        );
    }

    fn resizing(spec: &str, allocated: &str, conditions: Value) -> Value {
        json!({
            "spec": { "containers": [container(spec, "1Gi")] },
            "status": {
                "conditions": conditions,
                "containerStatuses": [{ "name": "c", "image": "x", "imageID": "x", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": allocated, "memory": "1Gi" },
                    "resources": { "requests": { "cpu": allocated, "memory": "1Gi" } } }] } })
    }

    #[test]
    fn a_pod_being_shrunk_still_counts_what_it_holds() {
        check(resizing("2", "6", json!([])), "6", "1Gi");
    }

    #[test]
    fn a_pod_being_grown_counts_what_it_wants() {
        check(resizing("8", "2", json!([])), "8", "1Gi");
    }

    #[test]
    fn an_infeasible_resize_counts_what_the_pod_holds() {
        let infeasible = json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        check(resizing("8", "2", infeasible), "2", "1Gi");
    }

    #[test]
    fn limits_stand_in_for_missing_requests() {
        let mut spec: PodSpec = serde_json::from_value(json!({ "containers": [
            { "name": "c", "resources": { "limits": { "cpu": "2", "memory": "1Gi" }, "requests": { "cpu": "1" } } }] }))
        .unwrap();
        default_requests(&mut spec);
        let total = pod_requests(&spec, None).unwrap();
        assert_eq!((total.cpu(), total.memory()), (Quantity::ONE, "1Gi".parse().unwrap()));
    }

    #[test]
    fn text_that_is_no_quantity_is_an_error() {
        let spec: PodSpec = serde_json::from_value(json!({ "containers": [container("lots", "1Gi")] })).unwrap();
        assert!(pod_requests(&spec, None).is_err());
    }
}
