//! Works out how many pods a PodDisruptionBudget lets go (sandbox.md §5.7).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::effects::BUDGETS;
use super::manager::{Manager, Task};
use super::pod::PodFacts;
use super::selector::Selector;
use super::workload::{Rounding, count, resolve};
use super::world::World;
use crate::clock::later;
use crate::server::Server;

/// The size that a pod's controller is meant to have, or why it can't be told.
pub(crate) type Scale = Result<Option<(String, i32)>, String>;

/// A budget's status for the pods that it covers.
pub(crate) fn status(
    budget: &PodDisruptionBudget,
    pods: &[&Arc<PodFacts>],
    scale_of: impl Fn(&PodFacts) -> Scale,
    now: Timestamp,
    expiry: Duration,
) -> PodDisruptionBudgetStatus {
    let old = budget.status.clone().unwrap_or_default();
    let disrupted: BTreeMap<String, Time> = old
        .disrupted_pods
        .clone()
        .unwrap_or_default()
        .into_iter()
        .filter(|(name, since)| {
            let waits = pods.iter().any(|p| *p.name == **name && p.deletion.is_none());
            waits && later(since.0, expiry) > now
        })
        .collect();
    let mut status = PodDisruptionBudgetStatus {
        observed_generation: budget.metadata.generation,
        disrupted_pods: Some(disrupted.clone()).filter(|d| !d.is_empty()),
        conditions: old.conditions.clone(),
        ..PodDisruptionBudgetStatus::default()
    };
    let (expected, desired) = match expectation(budget, pods, scale_of) {
        Ok(numbers) => numbers,
        Err(problem) => {
            set_allowed(&mut status, budget, "False", "SyncFailed", &problem, now);
            return status;
        }
    };
    let is_healthy = |p: &&&Arc<PodFacts>| {
        p.ready_since.is_some() && p.deletion.is_none() && !p.phase.is_terminal() && !disrupted.contains_key(&*p.name)
    };
    status.expected_pods = expected;
    status.desired_healthy = desired;
    status.current_healthy = count(pods.iter().filter(is_healthy));
    status.disruptions_allowed = if expected <= 0 {
        0
    } else {
        (status.current_healthy - status.desired_healthy).max(0)
    };
    if status.disruptions_allowed > 0 {
        set_allowed(&mut status, budget, "True", "SufficientPods", "", now);
    } else {
        set_allowed(&mut status, budget, "False", "InsufficientPods", "", now);
    }
    status
}

/// How many pods there should be, and how many of them healthy.
fn expectation(
    budget: &PodDisruptionBudget,
    pods: &[&Arc<PodFacts>],
    scale_of: impl Fn(&PodFacts) -> Scale,
) -> Result<(i32, i32), String> {
    let spec = budget.spec.clone().unwrap_or_default();
    let controllers_total = || -> Result<i32, String> {
        let mut controllers = BTreeMap::new();
        for pod in pods {
            if let Some((uid, size)) = scale_of(pod)? {
                controllers.insert(uid, size);
            }
        }
        Ok(controllers.values().sum())
    };
    match (spec.max_unavailable, spec.min_available) {
        (Some(limit), _) => {
            let expected = controllers_total()?;
            Ok((expected, (expected - resolve(&limit, expected, Rounding::Up)).max(0)))
        }
        (None, Some(limit @ IntOrString::String(_))) => {
            let expected = controllers_total()?;
            Ok((expected, resolve(&limit, expected, Rounding::Up)))
        }
        (None, Some(IntOrString::Int(limit))) => Ok((count(pods.iter()), limit)),
        (None, None) => Ok((0, 0)),
    }
}

fn set_allowed(
    status: &mut PodDisruptionBudgetStatus,
    budget: &PodDisruptionBudget,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|c| c.type_ == "DisruptionAllowed");
    let since = known
        .map(|i| &conditions[i])
        .filter(|c| c.status == value)
        .map(|c| c.last_transition_time.clone());
    let condition = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: budget.metadata.generation,
    };
    match known {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
}

impl Manager {
    pub(crate) fn sync_budget(&mut self, key: &Arc<str>) {
        let Some(budget) = self.world.budgets.get(key).cloned() else {
            return;
        };
        let namespace = budget.metadata.namespace.clone().unwrap_or_default();
        let name = budget.metadata.name.clone().unwrap_or_default();
        let selector = budget
            .spec
            .as_ref()
            .and_then(|s| s.selector.as_ref())
            .map(Selector::new);
        let covered = |p: &&Arc<PodFacts>| selector.as_ref().is_some_and(|s| s.matches(&p.class.labels));
        let pods: Vec<&Arc<PodFacts>> = self.world.pods_in(&namespace).filter(covered).collect();
        let server = self.effects.server();
        let now = self.effects.now();
        let scale_of = |pod: &PodFacts| scale_of(&self.world, server, pod);
        let status = status(&budget, &pods, scale_of, now, self.timing.disrupted_pod_expiry);
        let written = self.effects.set_status(BUDGETS, &namespace, &name, &status);
        self.effects.report("write a budget's status", written);
        let oldest = status.disrupted_pods.iter().flatten().map(|(_, since)| since.0).min();
        if let Some(since) = oldest {
            self.arm(
                Task::Budget(Arc::clone(key)),
                later(since, self.timing.disrupted_pod_expiry),
            );
        }
    }
}

/// The uid and size of the workload behind a pod: its Deployment, StatefulSet, or anything with a scale subresource.
fn scale_of(world: &World, server: &Server, pod: &PodFacts) -> Scale {
    let Some(owner) = &pod.controller else { return Ok(None) };
    let key = format!("{}/{}", pod.namespace, owner.name);
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    if group == "apps" && owner.kind == "ReplicaSet" {
        let Some(set) = world.replica_sets.get(&key) else {
            return Ok(None);
        };
        let deployment = set
            .metadata
            .owner_references
            .iter()
            .flatten()
            .find(|o| o.controller == Some(true));
        if let Some(owner) = deployment.filter(|o| o.kind == "Deployment") {
            let deployment = world.deployments.get(&format!("{}/{}", pod.namespace, owner.name));
            let size = deployment.and_then(|d| d.spec.as_ref()?.replicas).unwrap_or(1);
            return Ok(Some((owner.uid.clone(), size)));
        }
        return Ok(Some((
            owner.uid.clone(),
            set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1),
        )));
    }
    if group == "apps" && owner.kind == "StatefulSet" {
        let set = world.stateful_sets.get(&key);
        return Ok(set.map(|s| (owner.uid.clone(), s.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1))));
    }
    let scalable = server
        .resource_of_kind(group, &owner.kind)
        .and_then(|r| Some((r.scale.clone()?, r)));
    let Some((paths, resource)) = scalable else {
        let plural = owner.kind.to_lowercase();
        return Err(format!("{plural}s.{group} does not implement the scale subresource"));
    };
    let object = server
        .get(&resource, &pod.namespace, &owner.name)
        .map_err(|e| e.message)?;
    let size = object
        .value()
        .pointer(&paths.spec_replicas)
        .and_then(serde_json::Value::as_i64)
        .unwrap_or(0);
    Ok(Some((owner.uid.clone(), i32::try_from(size).unwrap_or(i32::MAX))))
}
