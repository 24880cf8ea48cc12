//! Gauges about every pod, and how long pods take to be bound and to start.
//!
//! What pods are like now is read off the caches when somebody scrapes. How long they took is noted at the moment of the
//! change, by an observer of the pods: a queue would make the same few comparisons cost a hundred times as much.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{labels, pods};
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::metrics::{DURATION_BUCKETS, Histogram, Registry, SeriesWriter, Summary};
use crate::nodes;
use crate::runner::Runnable;
use crate::state::PodTimes;
use crate::watch::{Change, Key};

/// The `metrics.pod` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let gauges = Arc::new(PodGauges {
        ctx: ctx.clone(),
        metrics: PodMetrics::register(&ctx.metrics.registry),
        watched: Mutex::default(),
    });
    gauges.register_views();
    Runnable::new("metrics.pod", move |stop| async move {
        let pods = gauges.ctx.pods.clone();
        pods.observe(move |change| gauges.note(change));
        stop.cancelled().await;
    })
}

struct PodGauges {
    ctx: Context,
    metrics: PodMetrics,
    /// Pods that this process has seen Pending and of which it still waits to see something.
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
    startup: Summary<0>,
    bound: Histogram<1>,
    provisioning_bound: Histogram<1>,
    provisioning_startup: Histogram<0>,
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

impl Moment {
    fn wait(self) -> Wait {
        match self {
            Self::Waiting => Wait::Waiting,
            Self::None | Self::Happened(_) | Self::Missed => Wait::Over,
        }
    }
}

impl PodGauges {
    /// Observes the durations that end with this change.
    fn note(&self, change: &Change<Pod>) {
        let key = &change.key;
        let Some(pod) = change.new.as_deref() else {
            self.watched.lock().remove(key);
            return;
        };
        let watched = self.watched.lock().get(key).copied().unwrap_or_default();
        let (started, bound) = (start(pod, watched.start), binding(pod, watched.binding));
        self.measure(key, pod, started, bound);
        let left = Watched {
            start: started.wait(),
            binding: bound.wait(),
        };
        if left == Watched::default() {
            self.watched.lock().remove(key);
        } else {
            self.watched.lock().insert(key.clone(), left);
        }
        if matches!(started, Moment::Happened(_) | Moment::Missed) {
            self.ctx.state.forget_times(key);
        }
    }

    fn measure(&self, key: &Key, pod: &Pod, started: Moment, bound: Moment) {
        let happened = |moment: Moment| matches!(moment, Moment::Happened(_));
        if !happened(started) && !happened(bound) {
            return;
        }
        let created = self.created(pod);
        let times = self.ctx.state.pod_times(key);
        let since = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
        let metrics = &self.metrics;
        if let Moment::Happened(at) = started {
            metrics.startup.observe([], since(created, at));
            if let Some(schedulable) = times.schedulable {
                metrics.provisioning_startup.observe([], since(schedulable, at));
            }
        }
        if let Moment::Happened(at) = bound {
            let dynamic = uses_dynamic_resources(pod);
            metrics.bound.observe([dynamic], since(created, at));
            if let Some(schedulable) = times.schedulable {
                metrics.provisioning_bound.observe([dynamic], since(schedulable, at));
            }
        }
    }

    fn created(&self, pod: &Pod) -> Timestamp {
        let created = pod.metadata.creation_timestamp.as_ref();
        created.map_or_else(|| self.ctx.clock.now(), |created| created.0)
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
    fn register_views(self: &Arc<Self>) {
        let registry = self.ctx.metrics.registry.clone();
        let owned = |labels: &[&str]| -> Vec<String> { labels.iter().map(|label| (*label).to_owned()).collect() };
        let gauges = self.clone();
        registry.view(
            "karpenter_pods_state",
            "1 for each pod; the labels say how it is.",
            &owned(&STATE_LABELS),
            move |series| gauges.write_states(series),
        );
        let age = |name: &str, help: &str, labels: &[&str], since: Since| {
            let gauges = self.clone();
            registry.view(name, help, &owned(labels), move |series| {
                gauges.write_ages(series, since);
            });
        };
        let name = ["name", "namespace"];
        let with_dynamic = ["name", "namespace", "dynamic_resources"];
        age(
            "karpenter_pods_unstarted_time_seconds",
            "How long a pod has waited to be ready.",
            &name,
            |waiting| waiting.created.filter(|_| waiting.unstarted),
        );
        age(
            "karpenter_pods_unbound_time_seconds",
            "How long a pod has waited to be bound.",
            &with_dynamic,
            |waiting| waiting.created.filter(|_| waiting.unbound),
        );
        age(
            "karpenter_pods_provisioning_unbound_time_seconds",
            "How long a pod has waited to be bound since the first plan that has room for it.",
            &with_dynamic,
            |waiting| waiting.times.schedulable.filter(|_| waiting.unbound),
        );
        age(
            "karpenter_pods_provisioning_unstarted_time_seconds",
            "How long a pod has waited to be ready since the first plan that has room for it.",
            &name,
            |waiting| waiting.times.schedulable.filter(|_| waiting.unstarted),
        );
        age(
            "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
            "How long a pod has waited for the first decision about it.",
            &name,
            |waiting| waiting.times.acknowledged.filter(|_| waiting.undecided),
        );
    }

    fn write_states(&self, series: &mut SeriesWriter<'_>) {
        for pod in self.ctx.pods.list() {
            let node = pods::node_name(&pod).and_then(|name| self.ctx.nodes.named(name));
            let labels = state_labels(&pod, node.as_ref());
            series.write(labels.iter().map(String::as_str), 1.0);
        }
    }

    fn write_ages(&self, series: &mut SeriesWriter<'_>, since: Since) {
        let now = self.ctx.clock.now();
        let watched: Vec<(Key, Watched)> = self
            .watched
            .lock()
            .iter()
            .map(|(key, left)| (key.clone(), *left))
            .collect();
        for (key, left) in watched {
            let Some(pod) = self.ctx.pods.get(&key) else { continue };
            let times = self.ctx.state.pod_times(&key);
            let waiting = Waiting {
                created: Some(self.created(&pod)),
                unstarted: left.start == Wait::Waiting,
                unbound: left.binding == Wait::Waiting && condition_time(&pod, "PodScheduled").is_none(),
                undecided: times.attempted.is_none() && !pods::is_scheduled(&pod) && !pods::is_terminal(&pod),
                times,
            };
            if let Some(since) = since(&waiting) {
                let labels = [&*key.name, &*key.namespace, uses_dynamic_resources(&pod)];
                series.write(labels, now.duration_since(since).as_secs_f64());
            }
        }
    }
}

/// How long a pod has waited, and for what.
struct Waiting {
    created: Option<Timestamp>,
    times: PodTimes,
    unstarted: bool,
    unbound: bool,
    undecided: bool,
}

/// Since when a pod waits for what a gauge is about; `None` when it does not.
type Since = fn(&Waiting) -> Option<Timestamp>;

fn uses_dynamic_resources(pod: &Pod) -> &'static str {
    if pods::uses_dynamic_resources(pod) {
        "true"
    } else {
        "false"
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
        let histogram =
            |name: &str, help: &str| registry.histogram(name, help, ["dynamic_resources"], DURATION_BUCKETS);
        Self {
            startup: registry.summary(
                "karpenter_pods_startup_duration_seconds",
                "From the creation of a pod until it is ready.",
                [],
            ),
            bound: histogram(
                "karpenter_pods_bound_duration_seconds",
                "From the creation of a pod until it is bound.",
            ),
            provisioning_bound: histogram(
                "karpenter_pods_provisioning_bound_duration_seconds",
                "From the first plan that has room for a pod until it is bound.",
            ),
            provisioning_startup: registry.histogram(
                "karpenter_pods_provisioning_startup_duration_seconds",
                "From the first plan that has room for a pod until it is ready.",
                [],
                DURATION_BUCKETS,
            ),
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
