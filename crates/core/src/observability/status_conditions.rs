//! Metrics and events about the status conditions of NodeClaims, NodePools and Nodes (api.md §5.3).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::{NodeClaim, NodePool, labels};
use kube::Resource;
use parking_lot::Mutex;
use prometheus::{CounterVec, HistogramOpts, HistogramVec, Opts};
use rustc_hash::FxHashMap;

use super::transitions::{Conditions, Seen, Transition, transitions};
use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Recorder, Regarding};
use crate::metrics::{AgeStore, DEFAULT_BUCKETS, GaugeStore, Registry, Series, Since, exponential_buckets};
use crate::runner::{Controller, Next, ReconcileKey, Runnable};
use crate::watch::{Cache, Key};

const CONCURRENCY: usize = 10;

/// The status controllers of NodeClaims, NodePools and Nodes.
pub fn controllers(ctx: &Context) -> Vec<Runnable> {
    let registry = &ctx.metrics.registry;
    let unprefixed = Arc::new(Family::unprefixed(registry));
    let mut class_labels: Vec<String> = ctx
        .cloud
        .supported_node_classes()
        .iter()
        .map(karpenter_cloud::node_class::NodeClassKind::label)
        .collect();
    class_labels.push(labels::NODEPOOL.to_owned());
    let node_labels = [class_labels.clone(), vec![labels::INITIALIZED.to_owned()]].concat();
    vec![
        status::<NodeClaim>(
            ctx,
            "operatorpkg.nodeclaim.status",
            &ctx.claims,
            class_labels,
            Some(unprefixed.clone()),
        ),
        status::<NodePool>(
            ctx,
            "operatorpkg.nodepool.status",
            &ctx.pools,
            Vec::new(),
            Some(unprefixed),
        ),
        status::<Node>(ctx, "operatorpkg.node.status", &ctx.nodes, node_labels, None),
    ]
}

/// `extra` are the labels of the objects that become labels of the metrics.
fn status<K: Observable>(
    ctx: &Context,
    name: &'static str,
    cache: &Arc<Cache<K>>,
    extra: Vec<String>,
    unprefixed: Option<Arc<Family>>,
) -> Runnable {
    let family = Family::of_kind::<K>(&ctx.metrics.registry, &extra);
    let controller = StatusMetrics {
        cache: cache.clone(),
        clock: ctx.clock.clone(),
        events: ctx.events.clone(),
        family,
        unprefixed,
        extra,
        known: Mutex::default(),
    };
    Controller::new(&ctx.runner, name)
        .concurrency(CONCURRENCY)
        .watches(cache, |change| [change.key.clone()])
        .runs_keys(controller)
}

/// Objects with status conditions.
trait Observable: Resource<DynamicType = ()> + Send + Sync + 'static {
    fn seen(&self) -> Conditions;
}

impl Observable for NodeClaim {
    fn seen(&self) -> Conditions {
        with_root(self)
    }
}

impl Observable for NodePool {
    fn seen(&self) -> Conditions {
        with_root(self)
    }
}

impl Observable for Node {
    fn seen(&self) -> Conditions {
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let one = |condition: &k8s_openapi::api::core::v1::NodeCondition| {
            let seen = Seen {
                status: condition.status.clone(),
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
                since: condition
                    .last_transition_time
                    .as_ref()
                    .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            };
            (condition.type_.clone(), seen)
        };
        conditions.map(one).collect()
    }
}

/// The conditions of one of our kinds.
fn with_root<K: StatusConditions>(object: &K) -> Conditions {
    let one = |condition: &karpenter_api::conditions::Condition| {
        let seen = Seen {
            status: condition.status.to_string(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.transitioned_at(),
        };
        (condition.type_.clone(), seen)
    };
    object.conditions().iter().map(one).collect()
}

struct StatusMetrics<K> {
    cache: Arc<Cache<K>>,
    clock: crate::clock::Clock,
    events: Recorder,
    family: Family,
    unprefixed: Option<Arc<Family>>,
    extra: Vec<String>,
    known: Mutex<FxHashMap<Key, Known>>,
}

/// What was seen of an object the last time.
struct Known {
    conditions: Conditions,
    finalizers: Vec<String>,
    deletion: Option<Timestamp>,
    regarding: Regarding,
    extra: Vec<String>,
}

impl<K: Observable> ReconcileKey<Key> for StatusMetrics<K> {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let now = self.clock.now();
        let Some(object) = self.cache.get(&key) else {
            self.gone(&key, now);
            return Ok(Next::Wait);
        };
        let known = self.look(&object);
        let before = self.known.lock().remove(&key);
        let (old, had) = before.map_or_else(Default::default, |before| (before.conditions, before.finalizers));
        for transition in transitions(&old, &known.conditions) {
            self.count(&known, &transition);
        }
        for finalizer in had.iter().filter(|finalizer| !known.finalizers.contains(finalizer)) {
            self.events
                .publish(events::finalized(known.regarding.clone(), finalizer));
        }
        self.show(&key, &known);
        self.known.lock().insert(key, known);
        Ok(Next::Wait)
    }
}

impl<K: Observable> StatusMetrics<K> {
    fn look(&self, object: &K) -> Known {
        let meta = object.meta();
        let label = |key: &String| {
            meta.labels
                .as_ref()
                .and_then(|labels| labels.get(key))
                .cloned()
                .unwrap_or_default()
        };
        Known {
            conditions: object.seen(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            deletion: meta.deletion_timestamp.as_ref().map(|time| time.0),
            regarding: Regarding::of(object),
            extra: self.extra.iter().map(label).collect(),
        }
    }

    fn count(&self, known: &Known, transition: &Transition) {
        for (family, extra) in self.families(known) {
            family.transition(transition, &extra);
        }
        if let Some(left) = &transition.left {
            let event = events::condition_transitioned(
                known.regarding.clone(),
                &transition.condition,
                &left.status,
                &transition.now.status,
                &transition.now.reason,
                &transition.now.message,
            );
            self.events.publish(event);
        }
    }

    fn show(&self, key: &Key, known: &Known) {
        for (family, extra) in self.families(known) {
            family.show(&self.id(key), known, &extra);
        }
    }

    fn gone(&self, key: &Key, now: Timestamp) {
        let Some(known) = self.known.lock().remove(key) else {
            return;
        };
        for finalizer in &known.finalizers {
            self.events
                .publish(events::finalized(known.regarding.clone(), finalizer));
        }
        for (family, extra) in self.families(&known) {
            family.remove(&self.id(key));
            if let Some(deletion) = known.deletion {
                let seconds = now.duration_since(deletion).as_secs_f64();
                family.termination_duration.with_label_values(&extra).observe(seconds);
            }
        }
    }

    /// The families to write, each with the values of the labels that it has beyond its own.
    fn families<'a>(&'a self, known: &Known) -> Vec<(&'a Family, Vec<String>)> {
        let group = K::group(&()).into_owned();
        let unprefixed = self
            .unprefixed
            .as_deref()
            .map(|family| (family, vec![group, K::kind(&()).into_owned()]));
        [(&self.family, known.extra.clone())]
            .into_iter()
            .chain(unprefixed)
            .collect()
    }

    fn id(&self, key: &Key) -> String {
        format!("{}/{key}", K::kind(&()))
    }
}

/// The six metrics of one kind, or of all kinds together under their older names.
struct Family {
    count: GaugeStore,
    current_status: AgeStore,
    transitions: CounterVec,
    transition: HistogramVec,
    termination: AgeStore,
    termination_duration: HistogramVec,
}

impl Family {
    fn of_kind<K: Resource<DynamicType = ()>>(registry: &Registry, extra: &[String]) -> Self {
        let prefix = format!("operator_{}", K::kind(&()).to_lowercase());
        let extra: Vec<String> = extra.iter().map(|label| label.replace(['/', '.', '-'], "_")).collect();
        Self::register(registry, &prefix, &extra, &exponential_buckets(0.5, 2.0, 15))
    }

    fn unprefixed(registry: &Registry) -> Self {
        Self::register(
            registry,
            "operator",
            &["group".to_owned(), "kind".to_owned()],
            DEFAULT_BUCKETS,
        )
    }

    fn register(registry: &Registry, prefix: &str, extra: &[String], buckets: &[f64]) -> Self {
        let labels = |own: &[&str]| -> Vec<String> {
            own.iter()
                .map(|label| (*label).to_owned())
                .chain(extra.iter().cloned())
                .collect()
        };
        let per_condition = labels(&["namespace", "name", "type", "status", "reason"]);
        Self {
            count: registry.gauge_store(
                &format!("{prefix}_status_condition_count"),
                "1 for each status condition of each object.",
                &per_condition,
            ),
            current_status: registry.age_store(
                &format!("{prefix}_status_condition_current_status_seconds"),
                "How long a status condition has had its status.",
                &per_condition,
            ),
            transitions: counter(
                registry,
                &format!("{prefix}_status_condition_transitions_total"),
                "How often status conditions took on a status.",
                &labels(&["type", "status", "reason"]),
            ),
            transition: histogram(
                registry,
                &format!("{prefix}_status_condition_transition_seconds"),
                "How long a status lasted before it changed.",
                &labels(&["type", "status", "to_status"]),
                buckets,
            ),
            termination: registry.age_store(
                &format!("{prefix}_termination_current_time_seconds"),
                "How long an object has been terminating.",
                &labels(&["namespace", "name"]),
            ),
            termination_duration: histogram(
                registry,
                &format!("{prefix}_termination_duration_seconds"),
                "How long objects took to terminate.",
                &labels(&[]),
                buckets,
            ),
        }
    }

    fn transition(&self, transition: &Transition, extra: &[String]) {
        let Seen { status, reason, .. } = &transition.now;
        let condition = &transition.condition;
        self.transitions
            .with_label_values(&values(&[condition, status, reason], extra))
            .inc();
        if let Some(left) = &transition.left {
            let labels = values(&[condition, &left.status, status], extra);
            self.transition
                .with_label_values(&labels)
                .observe(left.lasted.as_secs_f64());
        }
    }

    fn show(&self, id: &str, known: &Known, extra: &[String]) {
        let Regarding { namespace, name, .. } = &known.regarding;
        let labels =
            |condition: &String, seen: &Seen| values(&[namespace, name, condition, &seen.status, &seen.reason], extra);
        let one = |(condition, seen): (&String, &Seen)| Series {
            labels: labels(condition, seen),
            value: 1.0,
        };
        self.count.update(id, known.conditions.iter().map(one).collect());
        let age = |(condition, seen): (&String, &Seen)| Since {
            labels: labels(condition, seen),
            since: seen.since,
        };
        self.current_status
            .update(id, known.conditions.iter().map(age).collect());
        let terminating = known.deletion.map(|since| Since {
            labels: values(&[namespace, name], extra),
            since,
        });
        self.termination.update(id, terminating.into_iter().collect());
    }

    fn remove(&self, id: &str) {
        self.count.delete(id);
        self.current_status.delete(id);
        self.termination.delete(id);
    }
}

fn values(own: &[&String], extra: &[String]) -> Vec<String> {
    own.iter().copied().chain(extra).cloned().collect()
}

fn counter(registry: &Registry, name: &str, help: &str, labels: &[String]) -> CounterVec {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let counter = CounterVec::new(Opts::new(name, help), &labels).expect("metric and label names are valid");
    registry.register(name, counter.clone());
    counter
}

fn histogram(registry: &Registry, name: &str, help: &str, labels: &[String], buckets: &[f64]) -> HistogramVec {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    let histogram = HistogramVec::new(opts, &labels).expect("metric and label names are valid");
    registry.register(name, histogram.clone());
    histogram
}
