//! What users read on their objects: everything that happened to them at the cloud, each told once in ten minutes (§6.2).

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_cloud::{
    clock::Clock,
    events::{Announcement, EventWriter, Severity},
    http::Redactor,
};
use kube::{Client, Resource};

/// Writes events, without secrets in them.
#[derive(Debug)]
pub(crate) struct Events {
    writer: EventWriter,
    redactor: Redactor,
}

const QUIET: Duration = Duration::from_secs(10 * 60);

impl Events {
    pub(crate) fn new(kube: Client, clock: Clock, redactor: Redactor) -> Self {
        Self {
            writer: EventWriter::new(kube, clock),
            redactor,
        }
    }

    /// Something went as it should.
    pub(crate) async fn tell<K>(&self, about: &K, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.tell_of(about.object_ref(&()), reason, message).await;
    }

    /// Something that somebody should look at.
    pub(crate) async fn warn<K>(&self, about: &K, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.warn_of(about.object_ref(&()), reason, message).await;
    }

    /// As [`tell`](Self::tell), about an object of which only this is known.
    pub(crate) async fn tell_of(&self, about: ObjectReference, reason: &str, message: &str) {
        self.publish(about, Severity::Normal, reason, message).await;
    }

    /// As [`warn`](Self::warn), about an object of which only this is known.
    pub(crate) async fn warn_of(&self, about: ObjectReference, reason: &str, message: &str) {
        self.publish(about, Severity::Warning, reason, message).await;
    }

    async fn publish(&self, about: ObjectReference, severity: Severity, reason: &str, message: &str) {
        let announcement = Announcement {
            severity,
            reason: reason.to_owned().into(),
            message: self.redactor.redact(message),
            quiet_for: QUIET,
        };
        self.writer.write(&about, &announcement).await;
    }
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
