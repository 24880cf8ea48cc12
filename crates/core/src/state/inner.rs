//! The indexed facts themselves, and the transitions that watch events cause. No clock, no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::kube::ResourceExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1 as kube;
use k8s_openapi::api::storage::v1::CSINode;
use karpenter_api::labels::{self, LabelRules};
use karpenter_api::{NodeClaim, Quantity, ResourceList, pods};
use karpenter_cloud::VolumeRequirements;
use karpenter_engine::convert::{self, NodeObjects, PodIntake, PodProblem};
use karpenter_engine::disruption::pods::is_reschedulable;
use karpenter_engine::model::{DaemonPod, Labels, Node, Owner, Pod, VolumeFacts};
use rustc_hash::{FxHashMap, FxHashSet};

use super::assignments::Assignments;
use super::kindred::{Kindred, Standing};
use super::machine::{Departure, EmptySince, Machine, Mark};
use crate::context::Managed;
use crate::watch::Key;

/// Shared parts that no pod uses any more are dropped after this many pods went away.
const SWEEP_EVERY: u32 = 1000;

/// A pod that is not terminal.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// As the engine sees it.
    pub pod: Arc<Pod>,
    /// What keeps a pass from looking at it while it is pending; its volumes are judged separately.
    pub problems: Arc<[PodProblem]>,
    /// What the scheduler said about it.
    pub standing: Standing,
}

/// What a pod's update brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodNews {
    pub(super) change: PodChange,
    pub(super) demand: Demand,
}

/// Whether a pod needs a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// It does, and that was not known before or is said again.
    News,
    /// It does not, or was expected to.
    Known,
}

/// What changed about a pod, as far as others care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodChange {
    /// It is now bound to a node that it was not bound to before.
    Bound,
    /// It ended.
    Ended,
    /// Neither.
    Other,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) intake: PodIntake,
    pub(super) pods: FxHashMap<Key, PodEntry>,
    /// Pods that the scheduler refused.
    pub(super) waiting: BTreeSet<Key>,
    pub(super) kindred: Kindred,
    pods_by_node: FxHashMap<Arc<str>, BTreeSet<Key>>,
    pub(super) machines: FxHashMap<Arc<str>, Machine>,
    ids_by_node: FxHashMap<Arc<str>, Arc<str>>,
    /// Provider IDs by NodeClaim; launched ones only.
    ids_by_claim: FxHashMap<Arc<str>, Arc<str>>,
    /// Managed NodeClaims without a provider ID.
    pub(super) unlaunched: BTreeMap<Arc<str>, Arc<NodeClaim>>,
    /// NodeClaims that we created and the watch has not shown yet.
    pub(super) unseen: BTreeMap<Arc<str>, (Arc<NodeClaim>, Timestamp)>,
    pub(super) assignments: Assignments,
    csi_nodes: FxHashMap<Arc<str>, Arc<CSINode>>,
    daemon_sets: BTreeMap<Key, Arc<DaemonSet>>,
    newest_daemon_pods: FxHashMap<Key, Arc<Pod>>,
    daemons: Option<Arc<[Arc<DaemonPod>]>>,
    pub(super) namespaces: Arc<BTreeMap<String, Labels>>,
    /// Resolved with what the cloud said of them.
    pub(super) volumes: Option<(VolumeRequirements, Arc<VolumeFacts>)>,
    gone_since_sweep: u32,
    /// Claims, and nodes without one, that hold virtual pods of CapacityBuffers.
    buffer_nodes: FxHashSet<Arc<str>>,
}

impl Inner {
    pub(super) fn new(rules: Arc<LabelRules>) -> Self {
        Self {
            intake: PodIntake::new(rules),
            pods: FxHashMap::default(),
            waiting: BTreeSet::new(),
            kindred: Kindred::default(),
            pods_by_node: FxHashMap::default(),
            machines: FxHashMap::default(),
            ids_by_node: FxHashMap::default(),
            ids_by_claim: FxHashMap::default(),
            unlaunched: BTreeMap::new(),
            unseen: BTreeMap::new(),
            assignments: Assignments::default(),
            csi_nodes: FxHashMap::default(),
            daemon_sets: BTreeMap::new(),
            newest_daemon_pods: FxHashMap::default(),
            daemons: None,
            namespaces: Arc::default(),
            volumes: None,
            gone_since_sweep: 0,
            buffer_nodes: FxHashSet::default(),
        }
    }

    // === Pods ===

    /// Takes in a whole pod. One that cannot be read is left out and logged: the API server would not accept it.
    pub(super) fn update_pod(&mut self, object: &kube::Pod, now: Timestamp) -> PodNews {
        let key = Key::of(object);
        let no_demand = |change| PodNews {
            change,
            demand: Demand::Known,
        };
        if pods::is_terminal(object) {
            return no_demand(match self.delete_pod(&key, now) {
                true => PodChange::Ended,
                false => PodChange::Other,
            });
        }
        let (pod, problems) = match self.intake.pod(object) {
            Ok(converted) => converted,
            Err(error) => {
                tracing::error!(pod = %key, %error, "ignoring a pod that cannot be read");
                self.delete_pod(&key, now);
                return no_demand(PodChange::Other);
            }
        };
        let pod = Arc::new(pod);
        let standing = Standing::of(object);
        let old = self.pods.get(&key).map(|entry| (entry.pod.clone(), entry.standing));
        let newly_bound = pod.node_name.is_some()
            && old
                .as_ref()
                .is_none_or(|(old, _)| old.uid != pod.uid || old.node_name != pod.node_name);
        let mut was_expected = false;
        if let Some((old, stood)) = &old {
            was_expected = old.uid == pod.uid && self.kindred.expects(old, *stood);
            self.kindred.leave(&key, old, *stood);
            self.unbind(&key, old);
            let stays = is_reschedulable(&pod) && old.node_name == pod.node_name;
            if !stays {
                self.note_departure(old, now);
            }
            if old.uid != pod.uid {
                self.assignments.release(&key);
            }
        }
        self.bind(&key, &pod);
        self.kindred.enter(&key, &pod, standing);
        let needs_node = standing == Standing::Refused || self.kindred.expects(&pod, standing);
        if standing == Standing::Refused {
            self.waiting.insert(key.clone());
        } else {
            self.waiting.remove(&key);
        }
        if newly_bound {
            self.assignments.release(&key);
        }
        self.note_daemon_pod(&pod);
        self.pods.insert(
            key,
            PodEntry {
                pod,
                problems: problems.into(),
                standing,
            },
        );
        PodNews {
            change: if newly_bound {
                PodChange::Bound
            } else {
                PodChange::Other
            },
            demand: if needs_node && !was_expected {
                Demand::News
            } else {
                Demand::Known
            },
        }
    }

    /// Forgets a pod; whether it was known.
    pub(super) fn delete_pod(&mut self, key: &Key, now: Timestamp) -> bool {
        self.assignments.release(key);
        self.waiting.remove(key);
        let Some(entry) = self.pods.remove(key) else {
            return false;
        };
        self.kindred.leave(key, &entry.pod, entry.standing);
        self.unbind(key, &entry.pod);
        self.note_departure(&entry.pod, now);
        self.gone_since_sweep += 1;
        if self.gone_since_sweep >= SWEEP_EVERY {
            self.gone_since_sweep = 0;
            drop(entry);
            self.intake.interner().forget_unused();
        }
        true
    }

    fn bind(&mut self, key: &Key, pod: &Arc<Pod>) {
        let Some(node) = &pod.node_name else { return };
        self.pods_by_node.entry(node.clone()).or_default().insert(key.clone());
        if let Some(machine) = self.ids_by_node.get(node).and_then(|id| self.machines.get_mut(id)) {
            Arc::make_mut(&mut machine.view).bind(pod.clone());
        }
    }

    fn unbind(&mut self, key: &Key, pod: &Pod) {
        let Some(node) = &pod.node_name else { return };
        if let Some(keys) = self.pods_by_node.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
        if let Some(machine) = self.ids_by_node.get(node).and_then(|id| self.machines.get_mut(id)) {
            Arc::make_mut(&mut machine.view).unbind(&pod.uid);
        }
    }

    /// A pod that would have to be placed elsewhere is no longer on its node.
    fn note_departure(&mut self, pod: &Pod, now: Timestamp) {
        let Some(node) = pod.node_name.as_ref().filter(|_| is_reschedulable(pod)) else {
            return;
        };
        if let Some(machine) = self.ids_by_node.get(node).and_then(|id| self.machines.get_mut(id)) {
            machine.last_departure = Some(now);
        }
    }

    pub(super) fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let keys = self.pods_by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key))
            .map(|entry| entry.pod.clone())
            .collect()
    }

    /// Has pods wait for a claim, unless the scheduler has found them a place since they were planned: it does not stand still while
    /// claims are created. Such a pod would take up room here as well as there.
    pub(super) fn assign(&mut self, claim: &str, pods: &[Arc<Pod>]) {
        let is_as_planned = |planned: &&Arc<Pod>| {
            let known = self
                .pods
                .get(&Key::namespaced(planned.namespace.clone(), &*planned.name));
            known.is_some_and(|known| known.pod.uid == planned.uid && known.pod.node_name == planned.node_name)
        };
        let pods: Vec<Arc<Pod>> = pods.iter().filter(is_as_planned).cloned().collect();
        self.assignments.assign(claim, &pods);
    }

    // === Machines ===

    /// Takes in a Node; whether the set of machines or their readiness changed.
    pub(super) fn update_node(&mut self, node: &Arc<kube::Node>, managed: &Managed) -> bool {
        let name: Arc<str> = node.name_any().into();
        let Some(id) = tracked_id(node, managed) else {
            return false;
        };
        let changed_id = self.ids_by_node.get(&name).filter(|known| ***known != *id).cloned();
        if changed_id.is_some() {
            self.remove_node(&name);
        }
        self.ids_by_node.insert(name, id.clone());
        let before = self.machines.get(&id).cloned();
        let claim = before.as_ref().and_then(|machine| machine.claim.clone());
        self.rebuild(&id, Some(node.clone()), claim)
    }

    /// Forgets a Node; whether it was known.
    pub(super) fn remove_node(&mut self, name: &str) -> bool {
        let Some(id) = self.ids_by_node.remove(name) else {
            return false;
        };
        let Some(machine) = self.machines.get(&id).cloned() else {
            return false;
        };
        self.rebuild(&id, None, machine.claim)
    }

    /// Takes in a managed NodeClaim; whether the set of machines or their readiness changed.
    pub(super) fn update_claim(&mut self, claim: &Arc<NodeClaim>) -> bool {
        let name: Arc<str> = claim.name_any().into();
        self.unseen.remove(&name);
        let Some(id) = claim.provider_id().map(Arc::<str>::from) else {
            self.forget_pairing(&name);
            self.unlaunched.insert(name, claim.clone());
            return false;
        };
        self.unlaunched.remove(&name);
        if self.ids_by_claim.get(&name).is_some_and(|known| *known != id) {
            self.forget_pairing(&name);
        }
        self.ids_by_claim.insert(name, id.clone());
        let node = self.machines.get(&id).and_then(|machine| machine.node.clone());
        self.rebuild(&id, node, Some(claim.clone()))
    }

    /// Forgets a NodeClaim; whether that changed a machine.
    pub(super) fn remove_claim(&mut self, name: &str) -> bool {
        self.unlaunched.remove(name);
        self.unseen.remove(name);
        self.assignments.claim_gone(name);
        self.forget_pairing(name)
    }

    fn forget_pairing(&mut self, claim: &str) -> bool {
        let Some(id) = self.ids_by_claim.remove(claim) else {
            return false;
        };
        let Some(machine) = self.machines.get(&id).cloned() else {
            return false;
        };
        // Another claim may have taken the machine over meanwhile.
        if machine
            .claim
            .as_ref()
            .is_some_and(|current| current.name_any() != claim)
        {
            return false;
        }
        self.rebuild(&id, machine.node, None)
    }

    pub(super) fn claim_created(&mut self, claim: Arc<NodeClaim>, now: Timestamp) {
        let name: Arc<str> = claim.name_any().into();
        // The watch was faster.
        if self.unlaunched.contains_key(&name) || self.ids_by_claim.contains_key(&name) {
            return;
        }
        self.unseen.insert(name, (claim, now));
    }

    /// Builds the machine anew from its objects, keeping what we decided about it. Whether it came, went, or changed
    /// in a way that consolidation should look at.
    fn rebuild(&mut self, id: &Arc<str>, node: Option<Arc<kube::Node>>, claim: Option<Arc<NodeClaim>>) -> bool {
        let name = node.as_ref().map(|node| node.name_any());
        let csi = name.as_deref().and_then(|name| self.csi_nodes.get(name)).cloned();
        let objects = NodeObjects {
            node: node.as_deref(),
            claim: claim.as_deref(),
            csi: csi.as_deref(),
        };
        let view = match convert::node(self.intake.interner(), objects) {
            Ok(Some(view)) => view,
            Ok(None) => return self.machines.remove(id).is_some(),
            Err(error) => {
                tracing::error!(machine = %id, %error, "ignoring a node that cannot be read");
                return self.machines.remove(id).is_some();
            }
        };
        let before = self.machines.get(id);
        let mark = before.map_or(Mark::Kept, |machine| machine.mark);
        let nominated_until = before.and_then(|machine| machine.nominated_until);
        let last_departure = before.and_then(|machine| machine.last_departure);
        let readiness = |view: &Node| (view.is_initialized(), view.deleting);
        let old_readiness = before.map(|machine| readiness(&machine.view));
        let mut view = view;
        view.deleting |= mark == Mark::Deleting;
        for pod in name.as_deref().map(|name| self.pods_on(name)).unwrap_or_default() {
            view.bind(pod);
        }
        let changed = old_readiness != Some(readiness(&view));
        let mut machine = Machine {
            node,
            claim,
            view: Arc::new(view),
            mark,
            nominated_until,
            last_departure,
            holds_buffer_pods: false,
        };
        machine.holds_buffer_pods = self.buffer_nodes.contains(machine.lasting_name());
        self.machines.insert(id.clone(), machine);
        changed
    }

    pub(super) fn machines(&self) -> Vec<Machine> {
        let mut machines: Vec<Machine> = self.machines.values().cloned().collect();
        machines.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        machines
    }

    pub(super) fn departures(&self, earliest: Timestamp) -> Vec<Departure> {
        let candidates = self.machines.values().filter(|machine| {
            let latest = machine.last_departure.max(machine.nominated_until);
            let lately = latest.is_some_and(|at| at > earliest);
            lately && !machine.is_marked_for_deletion() && !machine.holds_buffer_pods()
        });
        candidates
            .filter_map(|machine| match machine.empty_since()? {
                EmptySince::Departure(at) => Some(Departure {
                    pool: machine.claim.as_ref()?.node_pool()?.to_owned(),
                    at,
                    nominated_until: machine.nominated_until,
                }),
                EmptySince::Unused(_) => None,
            })
            .collect()
    }

    pub(super) fn machine(&self, id: &str) -> Option<Machine> {
        self.machines.get(id).cloned()
    }

    pub(super) fn machine_of_node(&self, name: &str) -> Option<Machine> {
        self.machine(self.ids_by_node.get(name)?)
    }

    /// Marks or unmarks a machine; `None` if that changes nothing, else its NodeClaim.
    pub(super) fn set_mark(&mut self, id: &str, mark: Mark) -> Option<Option<Arc<NodeClaim>>> {
        let machine = self.machines.get_mut(id).filter(|machine| machine.mark != mark)?;
        machine.mark = mark;
        let (node, claim) = (machine.node.clone(), machine.claim.clone());
        self.rebuild(&Arc::from(id), node, claim.clone());
        Some(claim)
    }

    pub(super) fn nominate(&mut self, name: &str, until: Timestamp) {
        let machine = match self.ids_by_node.get(name).or_else(|| self.ids_by_claim.get(name)) {
            Some(id) => self.machines.get_mut(id),
            None => None,
        };
        if let Some(machine) = machine {
            machine.nominated_until = Some(until);
        }
    }

    pub(super) fn set_buffer_nodes(&mut self, names: FxHashSet<Arc<str>>) {
        self.buffer_nodes = names;
        for machine in self.machines.values_mut() {
            machine.holds_buffer_pods = self.buffer_nodes.contains(machine.lasting_name());
        }
    }

    pub(super) fn pool_resources(&self, pool: &str) -> ResourceList {
        let mut sum = ResourceList::new();
        for machine in self.machines.values() {
            let view = &machine.view;
            if view.deleting || view.node_pool.as_deref() != Some(pool) {
                continue;
            }
            sum.merge(&view.capacity);
            sum.merge(&ResourceList::new().with("nodes", Quantity::from_units(1)));
        }
        sum
    }

    pub(super) fn update_csi_node(&mut self, name: &str, csi: Option<&Arc<CSINode>>) {
        match csi {
            Some(csi) => self.csi_nodes.insert(name.into(), csi.clone()),
            None => self.csi_nodes.remove(name),
        };
        if let Some(id) = self.ids_by_node.get(name).cloned()
            && let Some(machine) = self.machines.get(&id).cloned()
        {
            self.rebuild(&id, machine.node, machine.claim);
        }
    }

    // === Daemons ===

    pub(super) fn update_daemon_set(&mut self, key: &Key, daemon_set: Option<&Arc<DaemonSet>>) {
        match daemon_set {
            Some(daemon_set) => {
                self.daemon_sets.insert(key.clone(), daemon_set.clone());
            }
            None => {
                self.daemon_sets.remove(key);
                self.newest_daemon_pods.remove(key);
            }
        }
        self.daemons = None;
    }

    /// Of a DaemonSet's pods the newest shows what the next one will ask for: admission may have changed it.
    fn note_daemon_pod(&mut self, pod: &Arc<Pod>) {
        let (Owner::DaemonSet, Some(controller)) = (pod.owner, &pod.controller) else {
            return;
        };
        let key = Key::namespaced(pod.namespace.clone(), controller.name.as_str());
        let newest = self.newest_daemon_pods.get(&key);
        if newest.is_some_and(|newest| newest.created > pod.created) {
            return;
        }
        let unchanged = newest
            .is_some_and(|newest| Arc::ptr_eq(&newest.spec, &pod.spec) && Arc::ptr_eq(&newest.requests, &pod.requests));
        self.newest_daemon_pods.insert(key, pod.clone());
        if !unchanged {
            self.daemons = None;
        }
    }

    pub(super) fn daemons(&mut self) -> Arc<[Arc<DaemonPod>]> {
        if let Some(daemons) = &self.daemons {
            return daemons.clone();
        }
        let mut daemons = Vec::new();
        for (key, daemon_set) in &self.daemon_sets {
            let newest = self.newest_daemon_pods.get(key);
            match convert::daemon_pod(&mut self.intake, daemon_set, newest.map(Arc::as_ref)) {
                Ok(daemon) => daemons.push(Arc::new(daemon)),
                Err(error) => tracing::error!(daemonset = %key, %error, "ignoring a DaemonSet that cannot be read"),
            }
        }
        let daemons: Arc<[Arc<DaemonPod>]> = daemons.into();
        self.daemons = Some(daemons.clone());
        daemons
    }
}

/// The key that a Node is tracked under; `None` while it is not worth tracking (lifecycle.md §2.4 rule 3).
fn tracked_id(node: &kube::Node, managed: &Managed) -> Option<Arc<str>> {
    let label = |key: &str| {
        let value = node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        value.map(String::as_str).filter(|value| !value.is_empty())
    };
    let provider_id = node
        .spec
        .as_ref()
        .and_then(|spec| spec.provider_id.as_deref())
        .filter(|id| !id.is_empty());
    let Some(provider_id) = provider_id else {
        // One of ours gets its provider ID soon; anybody else's may never have one.
        return label(labels::NODEPOOL).is_none().then(|| node.name_any().into());
    };
    if managed.node(node) && label(labels::INSTANCE_TYPE).is_none() && label(labels::INITIALIZED).is_none() {
        return None;
    }
    Some(provider_id.into())
}
