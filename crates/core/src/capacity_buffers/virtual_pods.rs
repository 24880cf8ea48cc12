//! The virtual pods themselves, worked out again only when a buffer or its template changed.

use std::sync::Arc;

use karpenter_api::CapacityBuffer;
use karpenter_api::capacity_buffer::condition;
use karpenter_api::labels::LabelRules;
use karpenter_engine::convert::{PodIntake, buffer};
use karpenter_engine::model::Pod;
use rustc_hash::FxHashMap;

use super::resolution;
use super::sources::{Source, Sources};
use crate::watch::Key;

/// The pods of all buffers as of the last time that somebody asked.
#[derive(Debug)]
pub(super) struct VirtualPods {
    intake: PodIntake,
    known: FxHashMap<Key, Known>,
}

/// The pods of one buffer, and what they were made from.
#[derive(Debug)]
struct Known {
    buffer: Arc<CapacityBuffer>,
    source: Arc<Source>,
    pods: Vec<Arc<Pod>>,
}

impl VirtualPods {
    pub(super) fn new(rules: Arc<LabelRules>) -> Self {
        Self {
            intake: PodIntake::new(rules),
            known: FxHashMap::default(),
        }
    }

    /// The pods of `buffers`, which are in the order that the pods shall have.
    pub(super) fn of(&mut self, buffers: &[(Key, Arc<CapacityBuffer>)], sources: &Sources) -> Vec<Arc<Pod>> {
        let mut before = std::mem::take(&mut self.known);
        let mut pods = Vec::new();
        for (key, buffer) in buffers {
            let Some(replicas) = replicas(buffer) else { continue };
            // The status says that it was found; if it is gone by now, the controller is about to say so.
            let Ok(source) = resolution::source(buffer, sources) else {
                continue;
            };
            let known = before
                .remove(key)
                .filter(|known| Arc::ptr_eq(&known.buffer, buffer) && Arc::ptr_eq(&known.source, &source));
            let known = known.unwrap_or_else(|| self.make(buffer, source, replicas));
            pods.extend(known.pods.iter().cloned());
            self.known.insert(key.clone(), known);
        }
        pods
    }

    fn make(&mut self, buffer: &Arc<CapacityBuffer>, source: Arc<Source>, replicas: i32) -> Known {
        let pods = buffer::virtual_pods(&mut self.intake, buffer, &source.template, replicas);
        let pods = pods.unwrap_or_else(|error| {
            tracing::debug!(buffer = %Key::of(&**buffer), %error, "no virtual pods");
            Vec::new()
        });
        Known {
            buffer: buffer.clone(),
            source,
            pods: pods.into_iter().map(Arc::new).collect(),
        }
    }
}

/// How many pods a buffer has; `None` unless it is ready and has some.
fn replicas(buffer: &CapacityBuffer) -> Option<i32> {
    let ready = buffer.condition(condition::READY_FOR_PROVISIONING)?;
    let replicas = buffer.status.as_ref()?.replicas.filter(|replicas| *replicas > 0)?;
    ready.is_true().then_some(replicas)
}
