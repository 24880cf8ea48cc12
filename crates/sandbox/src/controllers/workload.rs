//! What all workload controllers share: pods from templates, owner references, hashes, counts.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustc_hash::FxHasher;

use super::pod::PodFacts;
use crate::clock::later;

/// The reference by which a controller marks its own.
pub(crate) fn controller_reference(api_version: &str, kind: &str, meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod as the template describes it, with a generated name.
pub(crate) fn pod_from_template(template: &PodTemplateSpec, namespace: &str, owner: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name)),
            namespace: Some(namespace.to_owned()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A short name for the content of a template.
pub(crate) fn template_hash(template: &PodTemplateSpec) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = serde_json::to_string(template).unwrap_or_default();
    let mut hasher = FxHasher::default();
    text.hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut hash = String::new();
    for _ in 0..10 {
        let index = usize::try_from(rest % 27).unwrap_or(0);
        hash.push(char::from(ALPHABET[index]));
        rest /= 27;
    }
    hash
}

/// Whether the pod counts as one of a controller's replicas.
pub(crate) fn is_active(pod: &PodFacts) -> bool {
    !pod.phase.is_terminal() && pod.deletion.is_none()
}

/// Since when, or from when on, a ready pod counts as available.
pub(crate) fn available_from(pod: &PodFacts, min_ready_seconds: i32) -> Option<Timestamp> {
    let seconds = u64::try_from(min_ready_seconds).unwrap_or(0);
    pod.ready_since.map(|since| later(since, Duration::from_secs(seconds)))
}

pub(crate) fn is_available(pod: &PodFacts, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_from(pod, min_ready_seconds).is_some_and(|from| from <= now)
}

/// Which way a percentage that doesn't come out even goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

/// A number, or a percentage of `total`.
pub(crate) fn resolve(value: &IntOrString, total: i32, rounding: Rounding) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or(0);
            let exact = percent.saturating_mul(total);
            match rounding {
                Rounding::Up => (exact + 99).div_euclid(100),
                Rounding::Down => exact.div_euclid(100),
            }
        }
    }
}

pub(crate) fn count(items: impl Iterator) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}
