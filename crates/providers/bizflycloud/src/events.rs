//! What users read beside their objects: one event per thing that happened, not repeated for ten minutes (§6.2).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use karpenter_cloud::{
    clock::{Clock, later},
    http::Redactor,
    ownership::short_hash,
};
use kube::{Api, Client, Resource, api::PostParams};
use parking_lot::Mutex;

/// Writes events. What can't be written is logged: an event is a hint, and nothing waits for it.
pub(crate) struct Events {
    kube: Client,
    clock: Clock,
    redactor: Redactor,
    told: Mutex<BTreeMap<String, Timestamp>>,
}

/// What kind of news it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Warning,
}

const QUIET: Duration = Duration::from_secs(10 * 60);
const COMPONENT: &str = "karpenter-bizflycloud";
/// Where events about objects without a namespace live.
const NAMESPACE: &str = "default";
/// The API server takes no longer text.
const LONGEST: usize = 1024;

impl Events {
    pub(crate) fn new(kube: Client, clock: Clock, redactor: Redactor) -> Self {
        Self {
            kube,
            clock,
            redactor,
            told: Mutex::default(),
        }
    }

    /// Something went as it should.
    pub(crate) async fn tell<K>(&self, about: &K, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.publish(about.object_ref(&()), Kind::Normal, reason, message).await;
    }

    /// Something that somebody should look at.
    pub(crate) async fn warn<K>(&self, about: &K, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.publish(about.object_ref(&()), Kind::Warning, reason, message)
            .await;
    }

    /// As [`warn`](Self::warn), about an object of which only this is known.
    pub(crate) async fn warn_of(&self, about: ObjectReference, reason: &str, message: &str) {
        self.publish(about, Kind::Warning, reason, message).await;
    }

    /// As [`tell`](Self::tell), about an object of which only this is known.
    pub(crate) async fn tell_of(&self, about: ObjectReference, reason: &str, message: &str) {
        self.publish(about, Kind::Normal, reason, message).await;
    }

    async fn publish(&self, about: ObjectReference, kind: Kind, reason: &str, message: &str) {
        let message = self.redactor.redact(message);
        let now = self.clock.now();
        let object = format!(
            "{}/{}/{}",
            about.kind.as_deref().unwrap_or_default(),
            about.name.as_deref().unwrap_or_default(),
            about.uid.as_deref().unwrap_or_default()
        );
        let key = format!("{object}/{reason}/{message}");
        {
            let mut told = self.told.lock();
            told.retain(|_, until| now < *until);
            if told.contains_key(&key) {
                return;
            }
            told.insert(key.clone(), later(now, QUIET));
        }
        let event = self.event(about, kind, reason, &message, &key, now);
        let events: Api<Event> = Api::namespaced(self.kube.clone(), event_namespace(&event));
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, object, reason, message, "an event could not be written");
        }
    }

    fn event(
        &self,
        about: ObjectReference,
        kind: Kind,
        reason: &str,
        message: &str,
        key: &str,
        now: Timestamp,
    ) -> Event {
        let namespace = about.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let name = about.name.clone().unwrap_or_default();
        let unique = short_hash(&format!("{key}/{}", now.as_nanosecond()));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{unique}")),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(kind.as_str().to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(LONGEST).collect()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                ..EventSource::default()
            }),
            ..Event::default()
        }
    }
}

fn event_namespace(event: &Event) -> &str {
    event.metadata.namespace.as_deref().unwrap_or(NAMESPACE)
}

/// An object of ours without a namespace, by its name alone.
pub(crate) fn named<K: Resource<DynamicType = ()>>(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}
