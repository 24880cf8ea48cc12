//! Gauges about every pod, and how long pods take to be bound and to start.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{labels, pods};
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::error::Result;
use crate::metrics::{AgeStore, DURATION_BUCKETS, GaugeStore, Histogram, Registry, Series, Since, Summary};
use crate::nodes;
use crate::runner::{Controller, Next, ReconcileKey, Runnable};
use crate::watch::Key;

const WHILE_WAITING: SignedDuration = SignedDuration::from_secs(30);

/// The `metrics.pod` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let relations = ctx.relations.clone();
    let gauges = PodGauges {
        ctx: ctx.clone(),
        metrics: PodMetrics::register(&ctx.metrics.registry),
        watched: Mutex::default(),
    };
    Controller::new(&ctx.runner, "metrics.pod")
        .about("", "Pod")
        .watches(&ctx.pods, |change| [change.key.clone()])
        .watches(&ctx.nodes, move |change| {
            // The labels of a node are among those of its pods.
            let labels = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| node.metadata.labels.clone());
            let changed = labels(&change.old) != labels(&change.new);
            let pods = if changed {
                relations.pods_on(&change.key.name)
            } else {
                Vec::new()
            };
            pods.iter().map(|pod| Key::of(&**pod)).collect::<Vec<_>>()
        })
        .runs_keys(gauges)
}

struct PodGauges {
    ctx: Context,
    metrics: PodMetrics,
    /// Pods that this process has seen Pending, and what of them it still waits to see.
    watched: Mutex<FxHashMap<Key, Watched>>,
}

/// What is still to come of a pod that was seen Pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Watched {
    start: Wait,
    binding: Wait,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Over,
    Waiting,
}

struct PodMetrics {
    state: GaugeStore,
    startup: Summary<0>,
    unstarted: AgeStore,
    bound: Histogram<1>,
    unbound: AgeStore,
    provisioning_bound: Histogram<1>,
    provisioning_unbound: AgeStore,
    provisioning_startup: Histogram<0>,
    provisioning_unstarted: AgeStore,
    undecided: AgeStore,
}

/// What a look at a pod means for its durations.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Nothing is known or to be waited for.
    None,
    /// It is still waited for.
    Waiting,
    /// It has happened, at this time.
    Happened(Timestamp),
    /// It can no longer happen.
    Missed,
}

impl ReconcileKey<Key> for PodGauges {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let id = key.to_string();
        let Some(pod) = self.ctx.pods.get(&key) else {
            self.watched.lock().remove(&key);
            self.metrics.delete(&id);
            return Ok(Next::Wait);
        };
        self.metrics.state.update(&id, vec![self.state(&pod)]);
        let watched = self.watched.lock().get(&key).copied().unwrap_or_default();
        let (started, bound) = (start(&pod, watched.start), binding(&pod, watched.binding));
        self.measure(&key, &pod, started, bound);
        let waits = |moment: Moment| {
            if moment == Moment::Waiting {
                Wait::Waiting
            } else {
                Wait::Over
            }
        };
        self.watched.lock().insert(
            key.clone(),
            Watched {
                start: waits(started),
                binding: waits(bound),
            },
        );
        if matches!(started, Moment::Happened(_) | Moment::Missed) {
            self.ctx.state.forget_times(&key);
        }
        // Of a pod that waits, planning may learn more; of the others, nothing changes without an event.
        let waiting = started == Moment::Waiting || bound == Moment::Waiting;
        Ok(if waiting {
            Next::After(WHILE_WAITING)
        } else {
            Next::Wait
        })
    }
}

/// How the start of a pod stands. Only pods that were seen Pending are waited for.
fn start(pod: &Pod, wait: Wait) -> Moment {
    let is_pending = phase(pod) == "Pending";
    if !is_pending && wait == Wait::Over {
        return Moment::None;
    }
    if pods::is_terminal(pod) {
        return Moment::Missed;
    }
    condition_time(pod, "Ready").map_or(Moment::Waiting, Moment::Happened)
}

/// How the binding of a pod stands.
fn binding(pod: &Pod, wait: Wait) -> Moment {
    let bound = condition_time(pod, "PodScheduled");
    match (phase(pod) == "Pending", wait, bound) {
        (true, _, _) => Moment::Waiting,
        (false, Wait::Over, _) => Moment::None,
        (false, Wait::Waiting, Some(at)) => Moment::Happened(at),
        (false, Wait::Waiting, None) if pods::is_terminal(pod) => Moment::Missed,
        (false, Wait::Waiting, None) => Moment::Waiting,
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Since when a condition of the pod is True.
fn condition_time(pod: &Pod, condition: &str) -> Option<Timestamp> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.find(|found| found.type_ == condition && found.status == "True")?;
    Some(found.last_transition_time.as_ref()?.0)
}

impl PodGauges {
    fn measure(&self, key: &Key, pod: &Pod, started: Moment, bound: Moment) {
        let now = self.ctx.clock.now();
        let (id, name) = (key.to_string(), [key.name.to_string(), key.namespace.to_string()]);
        let dynamic = pods::uses_dynamic_resources(pod).to_string();
        let with_dynamic = [name.clone().to_vec(), vec![dynamic.clone()]].concat();
        let created = pod
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(now, |created| created.0);
        let times = self.ctx.state.pod_times(key);
        let since = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
        let show = |ages: &AgeStore, labels: &[String], from: Option<Timestamp>| {
            let series = from.map(|since| Since {
                labels: labels.to_vec(),
                since,
            });
            ages.update(&id, series.into_iter().collect());
        };
        let metrics = &self.metrics;

        let unstarted = started == Moment::Waiting;
        show(&metrics.unstarted, &name, unstarted.then_some(created));
        show(
            &metrics.provisioning_unstarted,
            &name,
            times.schedulable.filter(|_| unstarted),
        );
        if let Moment::Happened(at) = started {
            metrics.startup.observe([], since(created, at));
            if let Some(schedulable) = times.schedulable {
                metrics.provisioning_startup.observe([], since(schedulable, at));
            }
        }

        let unbound = bound == Moment::Waiting && condition_time(pod, "PodScheduled").is_none();
        show(&metrics.unbound, &with_dynamic, unbound.then_some(created));
        show(
            &metrics.provisioning_unbound,
            &with_dynamic,
            times.schedulable.filter(|_| unbound),
        );
        if let Moment::Happened(at) = bound {
            metrics.bound.observe([&dynamic], since(created, at));
            if let Some(schedulable) = times.schedulable {
                metrics.provisioning_bound.observe([&dynamic], since(schedulable, at));
            }
        }

        let open = times.attempted.is_none() && !pods::is_scheduled(pod) && !pods::is_terminal(pod);
        show(&metrics.undecided, &name, times.acknowledged.filter(|_| open));
    }

    fn state(&self, pod: &Pod) -> Series {
        let node = pods::node_name(pod).and_then(|name| self.ctx.nodes.named(name));
        Series {
            labels: state_labels(pod, node.as_ref()),
            value: 1.0,
        }
    }
}

fn state_labels(pod: &Pod, node: Option<&Arc<Node>>) -> Vec<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let owner = pod.metadata.owner_references.iter().flatten().next().map(|owner| {
        let kind = owner.kind.to_lowercase();
        format!(
            "/apis/{}/namespaces/{namespace}/{kind}s/{}",
            owner.api_version, owner.name
        )
    });
    let label = |key: &str| node.map_or("", |node| nodes::label(node, key)).to_owned();
    let node_pool = label(labels::NODEPOOL);
    let managed = !node_pool.is_empty();
    vec![
        pod.name_any(),
        namespace,
        owner.unwrap_or_default(),
        pods::node_name(pod).unwrap_or_default().to_owned(),
        pods::is_scheduled(pod).to_string(),
        node_pool,
        label(labels::ZONE),
        label(labels::ARCH),
        label(labels::CAPACITY_TYPE),
        label(labels::INSTANCE_TYPE),
        phase(pod).to_owned(),
        condition_time(pod, "Ready").is_some().to_string(),
        managed.to_string(),
    ]
}

const STATE_LABELS: [&str; 13] = [
    "name",
    "namespace",
    "owner",
    "node",
    "scheduled",
    "nodepool",
    "zone",
    "arch",
    "capacity_type",
    "instance_type",
    "phase",
    "ready",
    "managed",
];

impl PodMetrics {
    fn register(registry: &Registry) -> Self {
        let owned = |labels: &[&str]| -> Vec<String> { labels.iter().map(|label| (*label).to_owned()).collect() };
        let age = |name: &str, help: &str, labels: &[&str]| registry.age_store(name, help, &owned(labels));
        let name = ["name", "namespace"];
        let with_dynamic = ["name", "namespace", "dynamic_resources"];
        let histogram =
            |name: &str, help: &str| registry.histogram(name, help, ["dynamic_resources"], DURATION_BUCKETS);
        Self {
            state: registry.gauge_store(
                "karpenter_pods_state",
                "1 for each pod; the labels say how it is.",
                &owned(&STATE_LABELS),
            ),
            startup: registry.summary(
                "karpenter_pods_startup_duration_seconds",
                "From the creation of a pod until it is ready.",
                [],
            ),
            unstarted: age(
                "karpenter_pods_unstarted_time_seconds",
                "How long a pod has waited to be ready.",
                &name,
            ),
            bound: histogram(
                "karpenter_pods_bound_duration_seconds",
                "From the creation of a pod until it is bound.",
            ),
            unbound: age(
                "karpenter_pods_unbound_time_seconds",
                "How long a pod has waited to be bound.",
                &with_dynamic,
            ),
            provisioning_bound: histogram(
                "karpenter_pods_provisioning_bound_duration_seconds",
                "From the first plan that has room for a pod until it is bound.",
            ),
            provisioning_unbound: age(
                "karpenter_pods_provisioning_unbound_time_seconds",
                "How long a pod has waited to be bound since the first plan that has room for it.",
                &with_dynamic,
            ),
            provisioning_startup: registry.histogram(
                "karpenter_pods_provisioning_startup_duration_seconds",
                "From the first plan that has room for a pod until it is ready.",
                [],
                DURATION_BUCKETS,
            ),
            provisioning_unstarted: age(
                "karpenter_pods_provisioning_unstarted_time_seconds",
                "How long a pod has waited to be ready since the first plan that has room for it.",
                &name,
            ),
            undecided: age(
                "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
                "How long a pod has waited for the first decision about it.",
                &name,
            ),
        }
    }

    fn delete(&self, id: &str) {
        self.state.delete(id);
        for ages in [
            &self.unstarted,
            &self.unbound,
            &self.provisioning_unbound,
            &self.provisioning_unstarted,
            &self.undecided,
        ] {
            ages.delete(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str, conditions: &str) -> Pod {
        let one = |condition: &str| {
            format!("{{type: {condition}, status: 'True', lastTransitionTime: '2026-01-01T00:00:30Z'}}")
        };
        let conditions: Vec<String> = conditions.split_whitespace().map(one).collect();
        let yaml = format!(
            "{{status: {{phase: {phase}, conditions: [{}]}}}}",
            conditions.join(", ")
        );
        serde_norway::from_str(&yaml).unwrap()
    }

    const AT: &str = "2026-01-01T00:00:30Z";

    #[test]
    fn a_pod_seen_pending_has_started_once_it_is_ready() {
        assert_eq!(start(&pod("Pending", ""), Wait::Over), Moment::Waiting);
        assert_eq!(start(&pod("Running", ""), Wait::Waiting), Moment::Waiting);
        assert_eq!(
            start(&pod("Running", "Ready"), Wait::Waiting),
            Moment::Happened(AT.parse().unwrap())
        );
    }

    #[test]
    fn a_pod_that_ends_without_being_ready_never_started() {
        assert_eq!(start(&pod("Failed", ""), Wait::Waiting), Moment::Missed);
    }

    #[test]
    fn a_pod_never_seen_pending_is_not_measured() {
        assert_eq!(start(&pod("Running", "Ready"), Wait::Over), Moment::None);
        assert_eq!(binding(&pod("Running", "PodScheduled"), Wait::Over), Moment::None);
    }

    #[test]
    fn a_pod_counts_as_bound_when_it_leaves_pending() {
        assert_eq!(binding(&pod("Pending", "PodScheduled"), Wait::Over), Moment::Waiting);
        assert_eq!(
            binding(&pod("Running", "PodScheduled"), Wait::Waiting),
            Moment::Happened(AT.parse().unwrap())
        );
        assert_eq!(binding(&pod("Failed", ""), Wait::Waiting), Moment::Missed);
    }
}
