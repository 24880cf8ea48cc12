//! What a buffer stands for: how many pods, of which template.

use std::sync::Arc;

use karpenter_api::CapacityBuffer;
use karpenter_engine::convert::buffer::{buffer_replicas, template_requests};
use kube::ResourceExt;

use super::sources::{Source, Sources, WorkloadKind};

/// What became of a buffer's reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolution {
    Resolved(Resolved),
    NoReference,
    TemplateNotFound(String),
    /// Kind and name.
    WorkloadNotFound(String),
    /// It can't be resolved as it is written; the sentence says why.
    Unsupported(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) replicas: i32,
    /// Of a PodTemplate; workloads have none.
    pub(super) template_generation: Option<i64>,
}

/// The object that says what the buffer's pods look like.
pub(super) fn source(buffer: &CapacityBuffer, sources: &Sources) -> Result<Arc<Source>, Resolution> {
    let namespace = buffer.namespace().unwrap_or_default();
    if let Some(named) = &buffer.spec.pod_template_ref {
        let found = sources.template(&namespace, &named.name);
        return found.ok_or_else(|| Resolution::TemplateNotFound(named.name.clone()));
    }
    let Some(named) = &buffer.spec.scalable_ref else {
        return Err(Resolution::NoReference);
    };
    let kind = WorkloadKind::of(named).map_err(Resolution::Unsupported)?;
    let found = sources.workload(kind, &namespace, &named.name);
    found.ok_or_else(|| Resolution::WorkloadNotFound(format!("{} {}", named.kind, named.name)))
}

pub(super) fn resolve(buffer: &CapacityBuffer, sources: &Sources) -> Resolution {
    let source = match source(buffer, sources) {
        Ok(source) => source,
        Err(resolution) => return resolution,
    };
    let requests = match template_requests(&source.template) {
        Ok(requests) => requests,
        Err(error) => return Resolution::Unsupported(format!("its pod template cannot be read: {error}")),
    };
    Resolution::Resolved(Resolved {
        replicas: buffer_replicas(&buffer.spec, &requests, source.replicas),
        template_generation: source.generation.filter(|_| source.replicas.is_none()),
    })
}
