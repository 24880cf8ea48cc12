//! Interning of pods: pods that share their `Arc`s are recognised by pointer, without looking inside.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::resources::ResourceList;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{bound_but_scheduled, selector_keys};
use crate::model::{ControllerRef, LabelSelector, Labels, Pod, PodSpec, Snapshot};
use crate::tables::{Amounts, Dims};

/// What decides about a pod: constraints and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PodKey {
    pub(crate) kind: u32,
    pub(crate) requests: u32,
}

/// Everything that tells kinds apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    spec: u32,
    namespace: u32,
    pub(crate) labels: u32,
    controller: u32,
    pub(crate) requests: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Pods {
    selector_keys: BTreeSet<String>,
    scheduled: FxHashSet<Box<str>>,
    /// By address; the `Arc` is kept so that the address stays taken.
    specs: FxHashMap<usize, (Arc<PodSpec>, u32)>,
    labels_by_address: FxHashMap<usize, (Arc<Labels>, u32)>,
    requests_by_address: FxHashMap<usize, (Arc<ResourceList>, u32)>,
    namespaces: FxHashMap<Arc<str>, u32>,
    controllers: FxHashMap<Arc<ControllerRef>, u32>,
    projections: FxHashMap<Arc<Labels>, u32>,
    projected: Vec<Arc<Labels>>,
    amounts: Vec<Amounts>,
    amount_ids: FxHashMap<Amounts, u32>,
    kinds: FxHashMap<(u32, u32, u32, u32), u32>,
}

impl Pods {
    pub(crate) fn new(snapshot: &Snapshot, dims: &mut Dims) -> Pods {
        let mut pods = Pods {
            scheduled: bound_but_scheduled(snapshot),
            ..Pods::default()
        };
        let bound = snapshot.nodes.iter().flat_map(|node| node.pods());
        for pod in snapshot.pods.iter().chain(bound) {
            let next = pods.specs.len() as u32;
            let address = Arc::as_ptr(&pod.spec) as usize;
            if let std::collections::hash_map::Entry::Vacant(entry) = pods.specs.entry(address) {
                selector_keys(&pod.spec, &mut pods.selector_keys);
                entry.insert((pod.spec.clone(), next));
            }
            pods.requests_id(&pod.requests, dims);
        }
        if !snapshot.options.default_spread.is_empty() {
            let services = snapshot.workloads.services.values().flatten();
            pods.selector_keys
                .extend(services.flat_map(|selector| selector.keys().cloned()));
            let selectors = snapshot.workloads.controllers.values();
            pods.selector_keys
                .extend(selectors.flat_map(LabelSelector::keys).map(str::to_owned));
        }
        pods
    }

    pub(crate) fn is_scheduled(&self, uid: &str) -> bool {
        self.scheduled.contains(uid)
    }

    pub(crate) fn requests(&self, id: u32) -> &[i64] {
        &self.amounts[id as usize]
    }

    pub(crate) fn labels(&self, id: u32) -> &Arc<Labels> {
        &self.projected[id as usize]
    }

    fn requests_id(&mut self, requests: &Arc<ResourceList>, dims: &mut Dims) -> u32 {
        let address = Arc::as_ptr(requests) as usize;
        if let Some((_, id)) = self.requests_by_address.get(&address) {
            return *id;
        }
        let amounts = dims.demand(requests);
        let next = self.amounts.len() as u32;
        let id = *self.amount_ids.entry(amounts.clone()).or_insert_with(|| {
            self.amounts.push(amounts);
            next
        });
        self.requests_by_address.insert(address, (requests.clone(), id));
        id
    }

    /// The labels that selectors look at; pods that agree on them are the same to every selector.
    pub(crate) fn labels_id(&mut self, labels: &Arc<Labels>) -> u32 {
        let address = Arc::as_ptr(labels) as usize;
        if let Some((_, id)) = self.labels_by_address.get(&address) {
            return *id;
        }
        let seen = |(key, _): &(&String, &String)| self.selector_keys.contains(*key);
        let projection: Arc<Labels> = Arc::new(
            labels
                .iter()
                .filter(seen)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        );
        let next = self.projected.len() as u32;
        let id = *self.projections.entry(projection.clone()).or_insert_with(|| {
            self.projected.push(projection);
            next
        });
        self.labels_by_address.insert(address, (labels.clone(), id));
        id
    }

    pub(crate) fn namespace_id(&mut self, namespace: &Arc<str>) -> u32 {
        if let Some(id) = self.namespaces.get(namespace) {
            return *id;
        }
        let id = self.namespaces.len() as u32;
        self.namespaces.insert(namespace.clone(), id);
        id
    }

    pub(crate) fn key(&mut self, pod: &Pod, dims: &mut Dims, with_controller: bool) -> Identity {
        let next = self.specs.len() as u32;
        let spec = self
            .specs
            .entry(Arc::as_ptr(&pod.spec) as usize)
            .or_insert_with(|| (pod.spec.clone(), next))
            .1;
        let controller = match &pod.controller {
            Some(controller) if with_controller => {
                let next = self.controllers.len() as u32 + 1;
                *self.controllers.entry(controller.clone()).or_insert(next)
            }
            _ => 0,
        };
        Identity {
            spec,
            namespace: self.namespace_id(&pod.namespace),
            labels: self.labels_id(&pod.labels),
            controller,
            requests: self.requests_id(&pod.requests, dims),
        }
    }

    pub(crate) fn kind(&self, key: &Identity) -> Option<u32> {
        self.kinds
            .get(&(key.spec, key.namespace, key.labels, key.controller))
            .copied()
    }

    pub(crate) fn remember(&mut self, key: &Identity, kind: u32) {
        self.kinds
            .insert((key.spec, key.namespace, key.labels, key.controller), kind);
    }
}
