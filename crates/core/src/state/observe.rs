//! Connects the facts to the watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use karpenter_cloud::VolumeRequirements;
use karpenter_engine::convert;
use karpenter_engine::model::{Labels, VolumeFacts};
use kube::ResourceExt;

use super::Cluster;
use super::inner::{Demand, PodChange};
use super::machine::Mark;
use crate::watch::{Change, Key, Watches};

impl Cluster {
    /// Hears of every change that `watches` sees. Must be connected before any controller, so that whoever is woken by
    /// a change finds it here.
    pub fn observe(self: &Arc<Self>, watches: &Watches) {
        self.sync.write().watches = Some(watches.clone());
        let state = self.clone();
        watches.nodes.observe(move |change| state.node_changed(change));
        let state = self.clone();
        watches.claims.observe(move |change| state.claim_changed(change));
        let state = self.clone();
        watches.pools.observe(move |change| {
            let generation =
                |pool: &Option<Arc<karpenter_api::NodePool>>| pool.as_ref().and_then(|p| p.metadata.generation);
            if generation(&change.old) != generation(&change.new) {
                state.mark_unconsolidated();
            }
            if change.new.is_none() {
                state.cost.forget_pool(&change.key.name);
            }
        });
        let state = self.clone();
        watches.pods.observe(move |change| {
            if change.new.is_none() {
                state.pod_deleted(&change.key);
            }
        });
        let state = self.clone();
        watches.daemon_sets.observe(move |change| {
            state.inner.write().update_daemon_set(&change.key, change.new.as_ref());
        });
        let state = self.clone();
        watches.csi_nodes.observe(move |change| {
            state
                .inner
                .write()
                .update_csi_node(&change.key.name, change.new.as_ref());
        });
        let state = self.clone();
        watches.namespaces.observe(move |change| {
            let labels: Option<Labels> = change
                .new
                .as_ref()
                .map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
            let mut inner = state.inner.write();
            let namespaces: &mut BTreeMap<String, Labels> = Arc::make_mut(&mut inner.namespaces);
            match labels {
                Some(labels) => namespaces.insert(change.key.name.to_string(), labels),
                None => namespaces.remove(&*change.key.name),
            };
        });
        self.observe_volumes(watches);
    }

    /// Volumes are resolved across three kinds; any change of one makes the whole stale.
    fn observe_volumes(self: &Arc<Self>, watches: &Watches) {
        let state = self.clone();
        watches
            .volume_claims
            .observe(move |_| state.inner.write().volumes = None);
        let state = self.clone();
        watches.volumes.observe(move |_| state.inner.write().volumes = None);
        let state = self.clone();
        watches
            .storage_classes
            .observe(move |_| state.inner.write().volumes = None);
    }

    /// Takes in a whole pod, before the watch cache cuts it down.
    pub fn pod_seen(&self, pod: &Pod) {
        let news = self.inner.write().update_pod(pod, self.clock.now());
        match news.change {
            PodChange::Bound => self.mark_unconsolidated(),
            PodChange::Ended => self.times.forget(&Key::of(pod)),
            PodChange::Other => {}
        }
        match news.demand {
            Demand::News => {
                self.times.acknowledge(&Key::of(pod), self.clock.now());
                self.demand.report(pod.metadata.uid.as_deref().unwrap_or_default());
            }
            Demand::Known => {}
        }
    }

    /// Calls `hears` with the UID of every pod that needs a node, now and from now on.
    pub fn observe_demand(&self, hears: impl Fn(&str) + Send + Sync + 'static) {
        self.demand.add(hears, || self.inner.read().pods_in_need());
    }

    fn pod_deleted(&self, key: &Key) {
        self.inner.write().delete_pod(key, self.clock.now());
        self.times.forget(key);
        self.mark_unconsolidated();
    }

    fn node_changed(&self, change: &Change<k8s_openapi::api::core::v1::Node>) {
        let mut inner = self.inner.write();
        let changed = match &change.new {
            Some(node) => inner.update_node(node, &self.managed),
            None => inner.remove_node(&change.key.name),
        };
        self.metrics.nodes.set([], inner.machines.len() as f64);
        drop(inner);
        if changed {
            self.mark_unconsolidated();
        }
    }

    fn claim_changed(&self, change: &Change<karpenter_api::NodeClaim>) {
        let name = &*change.key.name;
        let claim = change.new.as_ref().filter(|claim| self.managed.claim(claim));
        let mut inner = self.inner.write();
        let changed = match claim {
            Some(claim) => {
                let changed = inner.update_claim(claim);
                let mark = claim
                    .provider_id()
                    .and_then(|id| inner.machine(id))
                    .map_or(Mark::Kept, |machine| machine.mark);
                self.slots.update(claim, mark);
                self.cost.update_claim(claim, inner.intake.rules());
                changed
            }
            None => {
                self.slots.remove(name);
                self.cost.remove_claim(name);
                inner.remove_claim(name)
            }
        };
        self.metrics.nodes.set([], inner.machines.len() as f64);
        drop(inner);
        if changed {
            self.mark_unconsolidated();
        }
    }

    /// What scheduling knows of volumes, resolved again if any part changed, or what the cloud knows of them.
    pub fn volume_facts(&self, of_cloud: &VolumeRequirements) -> Arc<VolumeFacts> {
        if let Some((known, volumes)) = &self.inner.read().volumes
            && (Arc::ptr_eq(known, of_cloud) || known == of_cloud)
        {
            return volumes.clone();
        }
        let Some(watches) = self.sync.read().watches.clone() else {
            return Arc::default();
        };
        let mut facts = VolumeFacts::default();
        let mut inner = self.inner.write();
        for claim in watches.volume_claims.list() {
            let key = Key::of(&*claim);
            let spec = claim.spec.as_ref();
            let volume = spec
                .and_then(|spec| spec.volume_name.as_deref())
                .and_then(|name| watches.volumes.named(name));
            let class = spec
                .and_then(|spec| spec.storage_class_name.as_deref())
                .and_then(|name| watches.storage_classes.named(name));
            let mut resolved = convert::claim_facts(inner.intake.rules(), &claim, volume.as_deref(), class.as_deref());
            let bound = volume.as_deref().and_then(|volume| of_cloud.get(&volume.name_any()));
            if let Some(asked) = bound {
                resolved.topology = resolved.topology.and(asked);
            }
            facts.insert(key.namespace, &*key.name, resolved);
        }
        let facts = Arc::new(facts);
        inner.volumes = Some((of_cloud.clone(), facts.clone()));
        facts
    }
}
