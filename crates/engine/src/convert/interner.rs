//! Shares what pods have in common: equal labels, constraints and requests are kept once.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use karpenter_api::ResourceList;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::model::{ControllerRef, Labels, PodSpec};

/// Remembers every shared part it has handed out.
///
/// Fifty thousand pods of a few hundred workloads then cost a few hundred sets of constraints. Parts that nobody holds any
/// more are dropped by [`Interner::forget_unused`], which a long-lived owner calls now and then.
#[derive(Debug, Default)]
pub struct Interner {
    text: FxHashSet<Arc<str>>,
    labels: FxHashSet<Arc<Labels>>,
    controllers: FxHashSet<Arc<ControllerRef>>,
    claims: FxHashSet<Arc<[Box<str>]>>,
    /// By content hash, since amounts and constraints have no total hash of their own.
    requests: FxHashMap<u64, Vec<Arc<ResourceList>>>,
    specs: FxHashMap<u64, Vec<Arc<PodSpec>>>,
}

impl Interner {
    pub fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.text.get(text) {
            return known.clone();
        }
        let shared: Arc<str> = text.into();
        self.text.insert(shared.clone());
        shared
    }

    pub fn labels(&mut self, labels: &Labels) -> Arc<Labels> {
        if let Some(known) = self.labels.get(labels) {
            return known.clone();
        }
        let shared = Arc::new(labels.clone());
        self.labels.insert(shared.clone());
        shared
    }

    pub fn controller(&mut self, controller: ControllerRef) -> Arc<ControllerRef> {
        if let Some(known) = self.controllers.get(&controller) {
            return known.clone();
        }
        let shared = Arc::new(controller);
        self.controllers.insert(shared.clone());
        shared
    }

    pub fn claims(&mut self, claims: Vec<Box<str>>) -> Arc<[Box<str>]> {
        if let Some(known) = self.claims.get(claims.as_slice()) {
            return known.clone();
        }
        let shared: Arc<[Box<str>]> = claims.into();
        self.claims.insert(shared.clone());
        shared
    }

    pub fn requests(&mut self, requests: ResourceList) -> Arc<ResourceList> {
        let mut hasher = FxBuildHasher.build_hasher();
        for (resource, amount) in &requests {
            (resource, amount).hash(&mut hasher);
        }
        share(self.requests.entry(hasher.finish()).or_default(), requests)
    }

    pub fn spec(&mut self, spec: PodSpec) -> Arc<PodSpec> {
        let mut hasher = FxBuildHasher.build_hasher();
        spec.node_selector.hash(&mut hasher);
        spec.affinity.hash(&mut hasher);
        spec.anti_affinity.hash(&mut hasher);
        spec.spread.hash(&mut hasher);
        spec.tolerations.hash(&mut hasher);
        spec.host_ports.hash(&mut hasher);
        spec.required_node_terms
            .iter()
            .map(Vec::len)
            .for_each(|length| length.hash(&mut hasher));
        for term in &spec.preferred_node_terms {
            (term.weight, term.expressions.len()).hash(&mut hasher);
        }
        share(self.specs.entry(hasher.finish()).or_default(), spec)
    }

    /// Drops parts that no pod uses any more.
    pub fn forget_unused(&mut self) {
        self.text.retain(|shared| Arc::strong_count(shared) > 1);
        self.labels.retain(|shared| Arc::strong_count(shared) > 1);
        self.controllers.retain(|shared| Arc::strong_count(shared) > 1);
        self.claims.retain(|shared| Arc::strong_count(shared) > 1);
        self.requests.retain(|_, bucket| retain_used(bucket));
        self.specs.retain(|_, bucket| retain_used(bucket));
    }
}

fn share<T: PartialEq>(bucket: &mut Vec<Arc<T>>, value: T) -> Arc<T> {
    if let Some(known) = bucket.iter().find(|known| ***known == value) {
        return known.clone();
    }
    let shared = Arc::new(value);
    bucket.push(shared.clone());
    shared
}

fn retain_used<T>(bucket: &mut Vec<Arc<T>>) -> bool {
    bucket.retain(|shared| Arc::strong_count(shared) > 1);
    !bucket.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_api::{Quantity, resources::CPU};

    #[test]
    fn equal_parts_are_kept_once() {
        let mut interner = Interner::default();
        let one = interner.requests(ResourceList::new().with(CPU, "1000m".parse().unwrap()));
        let same = interner.requests(ResourceList::new().with(CPU, Quantity::ONE));
        let other = interner.requests(ResourceList::new().with(CPU, "2".parse().unwrap()));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &other));
        let spec = interner.spec(PodSpec::default());
        assert!(Arc::ptr_eq(&spec, &interner.spec(PodSpec::default())));
    }

    #[test]
    fn unused_parts_are_forgotten() {
        let mut interner = Interner::default();
        let kept = interner.text("kept");
        drop(interner.text("dropped"));
        interner.forget_unused();
        assert_eq!(interner.text.len(), 1);
        assert!(Arc::ptr_eq(&kept, &interner.text("kept")));
    }
}
