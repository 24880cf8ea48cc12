//! Kubernetes Events about what only a provider knows: what its cloud did by itself, and what it refused.
//!
//! Core tells users what controllers decided; a provider's own events are written here, in the same form and to the same
//! place, each no more often than is worth reading.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;

use crate::clock::{Clock, later};

/// Writes events. The same event about the same object is not repeated for a while.
pub struct EventWriter {
    client: Client,
    clock: Clock,
    written: Mutex<BTreeMap<Key, Timestamp>>,
}

/// Something worth telling a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub severity: Severity,
    /// CamelCase.
    pub reason: &'static str,
    pub message: String,
    /// How long the same is not said again.
    pub quiet_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Things go as planned.
    Normal,
    /// Somebody may have to act.
    Warning,
}

/// Kind, name and reason, and what was said.
type Key = (String, String, &'static str, String);

const COMPONENT: &str = "karpenter";
/// Events of objects without a namespace land here.
const NAMESPACE: &str = "default";
const USUALLY_QUIET_FOR: Duration = Duration::from_secs(120);
/// Longer messages are cut by the API server's own limit.
const LONGEST_MESSAGE: usize = 1000;

impl Announcement {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Normal, reason, message)
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, reason, message)
    }

    fn new(severity: Severity, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity,
            reason,
            message: message.into(),
            quiet_for: USUALLY_QUIET_FOR,
        }
    }

    #[must_use]
    pub fn quiet_for(self, duration: Duration) -> Self {
        Self {
            quiet_for: duration,
            ..self
        }
    }
}

impl EventWriter {
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            written: Mutex::default(),
        }
    }

    /// Writes an event about an object. One that cannot be written is logged: it must not hold up the work it tells of.
    pub async fn write(&self, about: &ObjectReference, announcement: &Announcement) {
        if !self.is_news(about, announcement) {
            return;
        }
        let namespace = about.namespace.as_deref().filter(|own| !own.is_empty());
        let namespace = namespace.unwrap_or(NAMESPACE);
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let event = event(about, namespace, announcement, self.clock.now());
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            let (reason, message) = (announcement.reason, &announcement.message);
            tracing::warn!(%error, reason, message, "an event could not be written");
        }
    }

    fn is_news(&self, about: &ObjectReference, announcement: &Announcement) -> bool {
        let text = |own: &Option<String>| own.clone().unwrap_or_default();
        let key = (
            text(&about.kind),
            text(&about.name),
            announcement.reason,
            announcement.message.clone(),
        );
        let now = self.clock.now();
        let mut written = self.written.lock();
        written.retain(|_, until| now < *until);
        if written.contains_key(&key) {
            return false;
        }
        written.insert(key, later(now, announcement.quiet_for));
        true
    }
}

fn event(about: &ObjectReference, namespace: &str, announcement: &Announcement, now: Timestamp) -> Event {
    let severity = match announcement.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let mut message = announcement.message.clone();
    if message.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or_default());
        message.push('…');
    }
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", about.name.as_deref().unwrap_or("event"))),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: about.clone(),
        type_: Some(severity.to_owned()),
        reason: Some(announcement.reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        ..Event::default()
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let long = Announcement::warning("Long", "ä".repeat(2000));
        let event = event(&ObjectReference::default(), "default", &long, Timestamp::UNIX_EPOCH);
        let message = event.message.expect("a message");
        assert!(message.len() < 1010 && message.ends_with("ä…"), "{}", message.len());
    }
}
