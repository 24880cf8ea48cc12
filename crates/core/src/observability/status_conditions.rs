//! Metrics and events about the status conditions of NodeClaims, NodePools, Nodes and CapacityBuffers (api.md §5.3).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{Condition, StatusConditions};
use karpenter_api::{CapacityBuffer, NodeClaim, NodePool, labels};
use kube::Resource;
use parking_lot::Mutex;
use prometheus::{CounterVec, HistogramOpts, HistogramVec, Opts};
use rustc_hash::FxHashMap;

use super::transitions::{Conditions, Seen, Transition, transitions};
use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Recorder, Regarding};
use crate::metrics::{DEFAULT_BUCKETS, Registry, SeriesWriter, exponential_buckets};
use crate::runner::{Controller, Next, ReconcileKey, Runnable};
use crate::watch::{Cache, Key};

const CONCURRENCY: usize = 10;

/// The status controllers of NodeClaims, NodePools and Nodes, and of CapacityBuffers while those are on.
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
    let mut controllers = vec![
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
            Some(unprefixed.clone()),
        ),
        status::<Node>(ctx, "operatorpkg.node.status", &ctx.nodes, node_labels, None),
    ];
    if let Some(buffers) = &ctx.buffers {
        let name = "operatorpkg.capacitybuffer.status";
        controllers.push(status(ctx, name, &buffers.objects, Vec::new(), Some(unprefixed)));
    }
    controllers
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
    let known: Arc<Mutex<KnownObjects>> = Arc::default();
    let source = Source {
        kind: [K::group(&()).into_owned(), K::kind(&()).into_owned()],
        known: known.clone(),
    };
    if let Some(unprefixed) = &unprefixed {
        unprefixed.sources.lock().push(source.clone());
    }
    family.sources.lock().push(source);
    let controller = StatusMetrics {
        cache: cache.clone(),
        clock: ctx.clock.clone(),
        events: ctx.events.clone(),
        family,
        unprefixed,
        extra,
        known,
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
        ours(self.conditions())
    }
}

impl Observable for NodePool {
    fn seen(&self) -> Conditions {
        ours(self.conditions())
    }
}

impl Observable for CapacityBuffer {
    fn seen(&self) -> Conditions {
        ours(self.status.as_ref().map_or(&[], |status| &status.conditions))
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
fn ours(conditions: &[Condition]) -> Conditions {
    let one = |condition: &Condition| {
        let seen = Seen {
            status: condition.status.to_string(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.transitioned_at(),
        };
        (condition.type_.clone(), seen)
    };
    conditions.iter().map(one).collect()
}

struct StatusMetrics<K> {
    cache: Arc<Cache<K>>,
    clock: crate::clock::Clock,
    events: Recorder,
    family: Family,
    unprefixed: Option<Arc<Family>>,
    extra: Vec<String>,
    known: Arc<Mutex<KnownObjects>>,
}

/// The objects of one kind as they were last seen.
type KnownObjects = FxHashMap<Key, Known>;

/// Where a family reads what objects are like when somebody scrapes.
#[derive(Clone)]
struct Source {
    /// Group and kind.
    kind: [String; 2],
    known: Arc<Mutex<KnownObjects>>,
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

    fn gone(&self, key: &Key, now: Timestamp) {
        let Some(known) = self.known.lock().remove(key) else {
            return;
        };
        for finalizer in &known.finalizers {
            self.events
                .publish(events::finalized(known.regarding.clone(), finalizer));
        }
        for (family, extra) in self.families(&known) {
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
}

/// The six metrics of one kind, or of all kinds together under their older names.
struct Family {
    /// Who has the objects that the gauges are about.
    sources: Arc<Mutex<Vec<Source>>>,
    transitions: CounterVec,
    transition: HistogramVec,
    termination_duration: HistogramVec,
}

impl Family {
    fn of_kind<K: Resource<DynamicType = ()>>(registry: &Registry, extra: &[String]) -> Self {
        let prefix = format!("operator_{}", K::kind(&()).to_lowercase());
        let extra: Vec<String> = extra.iter().map(|label| label.replace(['/', '.', '-'], "_")).collect();
        let buckets = exponential_buckets(0.5, 2.0, 15);
        Self::register(registry, &prefix, &extra, &buckets, |_, known| &known.extra)
    }

    fn unprefixed(registry: &Registry) -> Self {
        Self::register(
            registry,
            "operator",
            &["group".to_owned(), "kind".to_owned()],
            DEFAULT_BUCKETS,
            |source, _| &source.kind,
        )
    }

    fn register(registry: &Registry, prefix: &str, extra: &[String], buckets: &[f64], extra_of: Extra) -> Self {
        let labels = |own: &[&str]| -> Vec<String> {
            own.iter()
                .map(|label| (*label).to_owned())
                .chain(extra.iter().cloned())
                .collect()
        };
        let sources: Arc<Mutex<Vec<Source>>> = Arc::default();
        let clock = registry.clock().clone();
        let per_condition = labels(&["namespace", "name", "type", "status", "reason"]);
        let shown = Shown {
            sources: sources.clone(),
            extra_of,
        };
        registry.view(
            &format!("{prefix}_status_condition_count"),
            "1 for each status condition of each object.",
            &per_condition,
            move |series| shown.conditions(series, |_| 1.0),
        );
        let shown = Shown {
            sources: sources.clone(),
            extra_of,
        };
        let time = clock.clone();
        registry.view(
            &format!("{prefix}_status_condition_current_status_seconds"),
            "How long a status condition has had its status.",
            &per_condition,
            move |series| {
                let now = time.now();
                shown.conditions(series, |seen| now.duration_since(seen.since).as_secs_f64());
            },
        );
        let shown = Shown {
            sources: sources.clone(),
            extra_of,
        };
        registry.view(
            &format!("{prefix}_termination_current_time_seconds"),
            "How long an object has been terminating.",
            &labels(&["namespace", "name"]),
            move |series| shown.terminations(series, clock.now()),
        );
        Self {
            sources,
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
}

/// The values of the labels that a family has beyond its own.
type Extra = for<'a> fn(&'a Source, &'a Known) -> &'a [String];

/// What a family's gauges are read from.
struct Shown {
    sources: Arc<Mutex<Vec<Source>>>,
    extra_of: Extra,
}

impl Shown {
    fn conditions(&self, series: &mut SeriesWriter<'_>, value: impl Fn(&Seen) -> f64) {
        self.objects(|known, extra| {
            let Regarding { namespace, name, .. } = &known.regarding;
            for (condition, seen) in &known.conditions {
                let own = [namespace, name, condition, &seen.status, &seen.reason];
                series.write(own.into_iter().chain(extra).map(String::as_str), value(seen));
            }
        });
    }

    fn terminations(&self, series: &mut SeriesWriter<'_>, now: Timestamp) {
        self.objects(|known, extra| {
            let Regarding { namespace, name, .. } = &known.regarding;
            if let Some(since) = known.deletion {
                let labels = [namespace, name].into_iter().chain(extra);
                series.write(labels.map(String::as_str), now.duration_since(since).as_secs_f64());
            }
        });
    }

    fn objects(&self, mut each: impl FnMut(&Known, &[String])) {
        for source in self.sources.lock().iter() {
            for known in source.known.lock().values() {
                each(known, (self.extra_of)(source, known));
            }
        }
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
