//! Publishes events: drops what was said a moment ago, keeps to the rate limits, and writes the rest in the background.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::correlate::{Correlated, Correlator};
use super::{Event, Rate};
use crate::clock::{Clock, later};
use crate::limit::TokenBucket;

const COMPONENT: &str = "karpenter";
/// Events that wait for the API server; beyond it, they are dropped rather than kept in memory.
const MOST_WAITING: usize = 1024;
/// Expired dedupe entries are swept when there are more entries than this.
const SWEEP_AT: usize = 4096;

/// Whether an event was handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It will be written.
    Queued,
    /// The same event was published a moment ago.
    Duplicate,
    /// Its rate limit is used up.
    RateLimited,
    /// Too many events wait for the API server.
    Overflowed,
}

/// The one place that publishes events.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    recent: Mutex<Recent>,
    waiting: mpsc::Sender<(Event, Timestamp)>,
    queue: Mutex<Option<mpsc::Receiver<(Event, Timestamp)>>>,
}

#[derive(Debug, Default)]
struct Recent {
    quiet_until: FxHashMap<String, Timestamp>,
    buckets: FxHashMap<Rate, TokenBucket>,
    sweep_at: usize,
}

impl Recorder {
    /// A recorder; nothing is written until [`Recorder::deliver`] runs.
    pub fn new(clock: Clock) -> Self {
        let (waiting, queue) = mpsc::channel(MOST_WAITING);
        let recent = Mutex::new(Recent {
            sweep_at: SWEEP_AT,
            ..Recent::default()
        });
        Self(Arc::new(Inner {
            clock,
            recent,
            waiting,
            queue: Mutex::new(Some(queue)),
        }))
    }

    /// Publishes an event unless it is a repetition or too much. The dedupe time starts even if the rate limit then
    /// holds the event back (lifecycle.md §0.5).
    pub fn publish(&self, event: Event) -> Published {
        let now = self.0.clock.now();
        {
            let mut recent = self.0.recent.lock();
            if let Some(key) = event.dedupe_key()
                && !recent.first_in(key, now, later(now, event.quiet_for))
            {
                return Published::Duplicate;
            }
            if let Some(rate) = event.rate
                && !recent
                    .buckets
                    .entry(rate)
                    .or_insert_with(|| TokenBucket::new(5.0, 10.0))
                    .try_take(now)
            {
                return Published::RateLimited;
            }
        }
        match self.0.waiting.try_send((event, now)) {
            Ok(()) => Published::Queued,
            Err(_) => Published::Overflowed,
        }
    }

    /// Publishes each of several events.
    pub fn publish_all(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.publish(event);
        }
    }

    /// Takes the events that wait, for tests that look at what was published. Empty while [`Recorder::deliver`] runs.
    pub fn drain(&self) -> Vec<Event> {
        let mut queue = self.0.queue.lock();
        let Some(queue) = queue.as_mut() else { return Vec::new() };
        std::iter::from_fn(|| queue.try_recv().ok())
            .map(|(event, _)| event)
            .collect()
    }

    /// Writes published events until `stop` is cancelled; then what waits is written and it returns.
    ///
    /// A write that fails is logged and forgotten: events are hints, and the next one is more useful than a retry.
    pub async fn deliver(&self, client: Client, stop: CancellationToken) {
        let Some(mut queue) = self.0.queue.lock().take() else {
            return;
        };
        let mut correlator = Correlator::default();
        loop {
            let next = tokio::select! {
                biased;
                next = queue.recv() => next,
                () = stop.cancelled() => break,
            };
            let Some((event, at)) = next else { break };
            self.write(&client, &mut correlator, event, at).await;
        }
        *self.0.queue.lock() = Some(queue);
    }

    async fn write(&self, client: &Client, correlator: &mut Correlator, event: Event, at: Timestamp) {
        let action = correlator.correlate(&event, at);
        let outcome = match action {
            Correlated::Drop => return,
            Correlated::Repeat {
                namespace,
                name,
                count,
                message,
            } => {
                let patch = serde_json::json!({
                    "count": count,
                    "lastTimestamp": Time(at),
                    "message": message,
                });
                let api: Api<core::Event> = Api::namespaced(client.clone(), &namespace);
                match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    // Events expire on the server; then the repetition starts a new one.
                    Err(kube::Error::Api(status)) if status.is_not_found() => create(client, &event, message, at).await,
                    other => other,
                }
            }
            Correlated::Create { message } => create(client, &event, message, at).await,
        };
        match outcome {
            Ok(written) => correlator.written(
                &event,
                &written.namespace().unwrap_or_default(),
                &written.name_any(),
                at,
            ),
            Err(error) => {
                tracing::debug!(reason = event.reason, object = event.regarding.name, %error, "event not written");
            }
        }
    }
}

impl Recent {
    /// Whether nothing has been recorded under `key` that still holds; if so, it now has.
    fn first_in(&mut self, key: String, now: Timestamp, until: Timestamp) -> bool {
        if self.quiet_until.get(&key).is_some_and(|until| *until > now) {
            return false;
        }
        self.quiet_until.insert(key, until);
        if self.quiet_until.len() > self.sweep_at {
            self.quiet_until.retain(|_, until| *until > now);
            self.sweep_at = (2 * self.quiet_until.len()).max(SWEEP_AT);
        }
        true
    }
}

async fn create(client: &Client, event: &Event, message: String, at: Timestamp) -> Result<core::Event, kube::Error> {
    let namespace = if event.regarding.namespace.is_empty() {
        "default"
    } else {
        &event.regarding.namespace
    };
    let suffix = format!("{:x}", at.as_nanosecond());
    let object = core::Event {
        metadata: ObjectMeta {
            // The name that Kubernetes' own recorders use: object, dot, time in hexadecimal.
            name: Some(format!("{}.{suffix}", event.regarding.name)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: event.regarding.reference(),
        reason: Some(event.reason.clone()),
        message: Some(message),
        type_: Some(event.severity.as_str().to_owned()),
        source: Some(core::EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        count: Some(1),
        ..core::Event::default()
    };
    Api::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &object)
        .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::events::{Regarding, nominate_pod, pod_failed_to_schedule, pod_insufficient_capacity};

    fn pod(uid: &str) -> Regarding {
        Regarding::pod("default", "web", uid)
    }

    #[test]
    fn the_same_event_is_published_once_within_its_quiet_time() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let recorder = Recorder::new(manual.clock());
        let publish = |uid| recorder.publish(pod_failed_to_schedule(pod(uid), "no room"));
        assert_eq!(publish("1"), Published::Queued);
        assert_eq!((0..100).filter(|_| publish("1") == Published::Queued).count(), 0);
        assert_eq!(publish("2"), Published::Queued);
        manual.advance(Duration::from_secs(300));
        assert_eq!(publish("1"), Published::Queued);
        assert_eq!(recorder.drain().len(), 3);
    }

    #[test]
    fn another_reason_why_a_node_stays_waits_until_the_first_has_been_read() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let recorder = Recorder::new(manual.clock());
        let publish = |why| recorder.publish(crate::events::disruption_blocked(pod("1"), why));
        assert_eq!(publish("a pod is protected"), Published::Queued);
        manual.advance(Duration::from_secs(119));
        assert_eq!(publish("a budget is used up"), Published::Duplicate);
        manual.advance(Duration::from_secs(1));
        assert_eq!(publish("a budget is used up"), Published::Queued);
    }

    #[test]
    fn events_of_many_pods_are_limited_and_a_held_back_one_stays_quiet() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let recorder = Recorder::new(manual.clock());
        let publish = |uid: usize| recorder.publish(nominate_pod(pod(&uid.to_string()), Some("claim"), None));
        assert_eq!((0..20).filter(|uid| publish(*uid) == Published::Queued).count(), 10);
        manual.advance(Duration::from_secs(1));
        assert_eq!(publish(19), Published::Duplicate);
        assert_eq!((100..120).filter(|uid| publish(*uid) == Published::Queued).count(), 5);
        let sold_out = |uid: usize| {
            let pod = pod(&format!("s{uid}"));
            recorder.publish(pod_insufficient_capacity(pod, "claim", "sold out"))
        };
        assert_eq!((0..20).filter(|uid| sold_out(*uid) == Published::Queued).count(), 10);
        manual.advance(Duration::from_secs(1));
        assert_eq!((100..120).filter(|uid| sold_out(*uid) == Published::Queued).count(), 5);
    }
}
