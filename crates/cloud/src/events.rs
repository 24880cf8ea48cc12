//! Kubernetes Events about what only a provider knows: what its cloud did by itself, and what it refused.
//!
//! Core tells users what controllers decided; a provider's own events are written here, in the same form and to the same
//! place, each no more often than is worth reading.

use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};

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
    pub reason: Cow<'static, str>,
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

/// About which object what was said. An object that was made again under an old name is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: String,
    name: String,
    uid: String,
    reason: Cow<'static, str>,
    message: String,
}

const COMPONENT: &str = "karpenter";
/// Events of objects without a namespace land here.
const NAMESPACE: &str = "default";
const USUALLY_QUIET_FOR: Duration = Duration::from_secs(120);
/// Longer messages are cut by the API server's own limit.
const LONGEST_MESSAGE: usize = 1000;

impl Announcement {
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(Severity::Normal, reason.into(), message.into())
    }

    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, reason.into(), message.into())
    }

    fn new(severity: Severity, reason: Cow<'static, str>, message: String) -> Self {
        Self {
            severity,
            reason,
            message,
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
        let Some(key) = self.claim(about, announcement) else {
            return;
        };
        let namespace = about.namespace.as_deref().filter(|own| !own.is_empty());
        let namespace = namespace.unwrap_or(NAMESPACE);
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let event = event(about, namespace, announcement, self.clock.now());
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            let (reason, message) = (&*announcement.reason, &announcement.message);
            tracing::warn!(%error, reason, message, "an event could not be written");
            // Nobody read it: the next time it is news again.
            self.written.lock().remove(&key);
        }
    }

    /// Reserves what is to be said; `None` if it was said a short time ago.
    fn claim(&self, about: &ObjectReference, announcement: &Announcement) -> Option<Key> {
        let text = |own: &Option<String>| own.clone().unwrap_or_default();
        let key = Key {
            kind: text(&about.kind),
            name: text(&about.name),
            uid: text(&about.uid),
            reason: announcement.reason.clone(),
            message: announcement.message.clone(),
        };
        let now = self.clock.now();
        let mut written = self.written.lock();
        written.retain(|_, until| now < *until);
        if written.contains_key(&key) {
            return None;
        }
        written.insert(key.clone(), later(now, announcement.quiet_for));
        Some(key)
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
        reason: Some(announcement.reason.clone().into_owned()),
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
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http::{Request, Response, StatusCode};
    use kube::client::Body;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let long = Announcement::warning("Long", "ä".repeat(2000));
        let event = event(&ObjectReference::default(), "default", &long, Timestamp::UNIX_EPOCH);
        let message = event.message.expect("a message");
        assert!(message.len() < 1010 && message.ends_with("ä…"), "{}", message.len());
    }

    /// An API server that counts the events it is sent, and refuses the first `refused` of them.
    fn writer(refused: usize) -> (EventWriter, ManualClock, Arc<AtomicUsize>) {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let (status, body) = if count.fetch_add(1, Ordering::SeqCst) < refused {
                let status =
                    r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#;
                (StatusCode::FORBIDDEN, status)
            } else {
                let event = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"},"involvedObject":{}}"#;
                (StatusCode::CREATED, event)
            };
            let mut answer = Response::new(Body::from(body.as_bytes().to_vec()));
            *answer.status_mut() = status;
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let writer = EventWriter::new(Client::new(service, "default"), clock.clock());
        (writer, clock, sent)
    }

    fn object(uid: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("NodeClaim".to_owned()),
            name: Some("a".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    #[tokio::test]
    async fn the_same_is_said_once_in_a_while_about_each_object() {
        let (writer, clock, sent) = writer(0);
        let told = Announcement::warning("Full", "no room");
        writer.write(&object("1"), &told).await;
        writer.write(&object("1"), &told).await;
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        writer.write(&object("2"), &told).await;
        assert_eq!(sent.load(Ordering::SeqCst), 2, "another object of the same name");
        clock.advance(USUALLY_QUIET_FOR);
        writer.write(&object("1"), &told).await;
        assert_eq!(sent.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn an_event_that_could_not_be_written_is_tried_again() {
        let (writer, _, sent) = writer(1);
        let told = Announcement::normal(format!("Made{}", "Up"), "at run time");
        for _ in 0..3 {
            writer.write(&object("1"), &told).await;
        }
        assert_eq!(sent.load(Ordering::SeqCst), 2, "refused, then written, then known");
    }
}
