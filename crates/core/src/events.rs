//! Kubernetes Events: what this controller tells users about their objects.
//!
//! [`Recorder::publish`] takes an [`Event`] made by one of the constructors of the catalogue (api.md §6), so texts,
//! dedupe keys and rates are in one place. Publishing never waits: a background task ([`Recorder::deliver`]) writes to
//! the API server.

mod catalogue;
mod correlate;
mod recorder;

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

pub use catalogue::*;
pub use recorder::{Published, Recorder};

/// How grave an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Things go as planned.
    Normal,
    /// Somebody may have to act.
    Warning,
}

impl Severity {
    /// The value of the event's `type` field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Such as `karpenter.sh/v1`.
    pub api_version: String,
    /// Such as `NodeClaim`.
    pub kind: String,
    /// Empty for cluster-scoped objects, whose events land in `default`.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID; empty when unknown.
    pub uid: String,
}

impl Regarding {
    /// Any object as the subject of an event.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        }
    }

    /// A pod of which only namespace, name and UID are at hand.
    pub fn pod(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    pub(crate) fn reference(&self) -> ObjectReference {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ObjectReference {
            api_version: some(&self.api_version),
            kind: some(&self.kind),
            namespace: some(&self.namespace),
            name: some(&self.name),
            uid: some(&self.uid),
            ..ObjectReference::default()
        }
    }
}

/// Something worth telling a user.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object it is about.
    pub regarding: Regarding,
    /// Normal or warning.
    pub severity: Severity,
    /// CamelCase reason, such as `FailedScheduling`.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Together with the reason: what counts as the same event. Empty: never deduplicated.
    pub dedupe: Vec<String>,
    /// How long the same event is not repeated.
    pub quiet_for: Duration,
    /// The process-wide budget it draws from, if any.
    pub rate: Option<Rate>,
}

/// Process-wide limits on noisy events: five per second, ten at once, each reason by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// `Nominated` events of pods.
    PodNomination,
    /// `InsufficientCapacityError` events of pods.
    PodInsufficientCapacity,
}

impl Event {
    /// An event with the usual dedupe time of two minutes. Prefer a constructor of the catalogue.
    pub fn new(regarding: Regarding, severity: Severity, reason: &str, message: impl Into<String>) -> Self {
        Self {
            regarding,
            severity,
            reason: reason.to_owned(),
            message: message.into(),
            dedupe: Vec::new(),
            quiet_for: Duration::from_secs(120),
            rate: None,
        }
    }

    /// Says what counts as the same event.
    pub fn deduped_on(mut self, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.dedupe = values.into_iter().map(Into::into).collect();
        self
    }

    /// Says how long the same event is not repeated.
    pub fn quiet_for(mut self, duration: Duration) -> Self {
        self.quiet_for = duration;
        self
    }

    /// Draws from a process-wide budget.
    pub fn limited_by(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    fn dedupe_key(&self) -> Option<String> {
        (!self.dedupe.is_empty()).then(|| format!("{}-{}", self.reason.to_lowercase(), self.dedupe.join("-")))
    }
}
