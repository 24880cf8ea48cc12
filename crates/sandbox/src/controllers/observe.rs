//! Turns events of the store into memory and work: which change concerns which controller.

use std::sync::Arc;

use super::manager::{Manager, Task};
use super::node::NodeFacts;
use super::pod::PodFacts;
use super::selector::Selector;
use super::workload::is_active;
use super::world::{PodChange, parse};
use crate::clock::later;
use crate::object::Object;
use crate::store::{Change, FeedEvent};

impl Manager {
    pub(crate) fn observe(&mut self, event: &FeedEvent) {
        let FeedEvent {
            collection,
            change,
            object,
        } = event;
        for (collection, key) in self.garbage.observe(collection, *change, object) {
            self.enqueue(Task::Garbage(collection, key));
        }
        if *change == Change::Deleted && !object.namespace.is_empty() {
            self.recheck_namespace(&object.namespace);
        }
        match &**collection {
            "pods" => self.observe_pod(*change, object),
            "nodes" => self.observe_node(*change, object),
            "leases.coordination.k8s.io" if &*object.namespace == "kube-node-lease" => {
                let now = self.effects.now();
                self.world.apply_lease(*change, object, now);
                if self.health.is_silent(&object.name) {
                    self.enqueue(Task::NodeLifecycle(Arc::from(&*object.name)));
                }
            }
            "replicasets.apps" => {
                let owner = controller_of(object);
                let (key, present) = self.world.replica_sets.apply(*change, object);
                if present.is_some() {
                    self.enqueue(Task::ReplicaSet(Arc::clone(&key)));
                }
                if let Some(name) = owner.filter(|(kind, _)| kind == "Deployment").map(|(_, name)| name) {
                    self.enqueue(Task::Deployment(format!("{}/{name}", object.namespace).into()));
                }
                self.recheck_budgets_in(&object.namespace);
            }
            "deployments.apps" => {
                let (key, _) = self.world.deployments.apply(*change, object);
                self.enqueue(Task::Deployment(key));
                self.recheck_budgets_in(&object.namespace);
            }
            "statefulsets.apps" => {
                let (key, _) = self.world.stateful_sets.apply(*change, object);
                self.enqueue(Task::StatefulSet(key));
                self.recheck_budgets_in(&object.namespace);
            }
            "daemonsets.apps" => {
                let (key, _) = self.world.daemon_sets.apply(*change, object);
                self.enqueue(Task::DaemonSet(key));
            }
            "controllerrevisions.apps" => {
                self.world.revisions.apply(*change, object);
            }
            "jobs.batch" => {
                let (key, _) = self.world.jobs.apply(*change, object);
                self.enqueue(Task::Job(key));
            }
            "poddisruptionbudgets.policy" => {
                let (key, _) = self.world.budgets.apply(*change, object);
                self.enqueue(Task::Budget(key));
            }
            "events" if *change == Change::Added => {
                let due = later(self.effects.now(), self.timing.event_ttl);
                self.arm(Task::ExpireEvent(Arc::from(&*object.key)), due);
            }
            "namespaces" => {
                let (key, present) = self.world.namespaces.apply(*change, object);
                match present {
                    Some(namespace) => {
                        let labels = namespace.metadata.labels.clone().unwrap_or_default();
                        self.scheduler.view.namespaces.insert(key.to_string(), labels);
                        self.enqueue(Task::Namespace(key));
                    }
                    None => {
                        self.scheduler.view.namespaces.remove(&*key);
                    }
                }
                self.scheduler.view.improve();
            }
            "persistentvolumeclaims"
            | "persistentvolumes"
            | "storageclasses.storage.k8s.io"
            | "csinodes.storage.k8s.io"
            | "volumeattachments.storage.k8s.io" => {
                self.observe_storage(collection, *change, object);
            }
            _ => {}
        }
    }

    fn observe_pod(&mut self, change: Change, object: &Object) {
        let now = self.effects.now();
        let PodChange { old, new } = self.world.apply_pod(change, object);
        match &new {
            Some(pod) => self.scheduler.observe(pod, now),
            None => self.scheduler.forget(&object.key),
        }
        let either = new.as_ref().or(old.as_ref()).cloned();
        let Some(pod) = either else { return };
        for owner in [old.as_ref(), new.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|p| p.controller.clone())
        {
            let key: Arc<str> = format!("{}/{}", pod.namespace, owner.name).into();
            match owner.kind.as_str() {
                "ReplicaSet" => self.enqueue(Task::ReplicaSet(key)),
                "StatefulSet" => self.enqueue(Task::StatefulSet(key)),
                "DaemonSet" => self.enqueue(Task::DaemonSet(key)),
                "Job" => self.enqueue(Task::Job(key)),
                _ => {}
            }
        }
        if new.as_ref().is_some_and(|p| p.controller.is_none() && is_active(p)) {
            self.offer_orphan(&pod);
        }
        if old.as_deref().map(budget_view) != new.as_deref().map(budget_view) {
            self.recheck_budgets_of(&pod);
        }
        for volume in &pod.class.spec.volumes {
            self.enqueue(Task::Claim(
                format!("{}/{}", pod.namespace, volume.claim_name(&pod.name)).into(),
            ));
        }
        if let Some(node) = &pod.node
            && !pod.class.spec.volumes.is_empty()
        {
            self.enqueue(Task::Attachments(Arc::clone(node)));
        }
        match new {
            Some(pod) => {
                if let Some(node) = &pod.node {
                    if self.kubelets.runs(node) {
                        self.enqueue(Task::KubeletPod(Arc::clone(&pod.key)));
                    }
                    self.check_node_of(&pod, node);
                } else if pod.deletion.is_some() {
                    self.enqueue(Task::PodGc(Arc::clone(&pod.key)));
                }
            }
            None => {
                self.kubelets.forget_pod(&pod.uid);
                self.evictions.forget(&pod.key);
            }
        }
    }

    /// Lets ReplicaSets know of a pod that has no controller but looks like one of theirs.
    fn offer_orphan(&mut self, pod: &PodFacts) {
        let sets = self.world.replica_sets.in_namespace(&pod.namespace);
        let matching = sets.filter(|(_, set)| {
            let selector = set.spec.as_ref().map(|s| Selector::new(&s.selector));
            selector.is_some_and(|s| !s.is_empty() && s.matches(&pod.class.labels))
        });
        let keys: Vec<Arc<str>> = matching.map(|(key, _)| Arc::clone(key)).collect();
        for key in keys {
            self.enqueue(Task::ReplicaSet(key));
        }
    }

    fn check_node_of(&mut self, pod: &Arc<PodFacts>, node: &Arc<str>) {
        match self.world.nodes.get(node) {
            None => self.enqueue(Task::PodGc(Arc::clone(&pod.key))),
            Some(facts) if has_no_execute(facts) || self.evictions.knows(&pod.key) => {
                self.enqueue(Task::TaintEviction(Arc::clone(&pod.key)));
            }
            Some(_) => {}
        }
    }

    fn observe_node(&mut self, change: Change, object: &Object) {
        let name: Arc<str> = Arc::from(&*object.name);
        let old = self.world.nodes.get(&name).cloned();
        let Some(facts) = self.world.apply_node(change, object) else {
            if let Some(old) = &old {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                self.node_event(old, "RemovingNode", "node-controller", message);
            }
            self.scheduler.view.remove_node(&name);
            self.health.forget(&name);
            self.kubelets.node_deleted(&name);
            let pods: Vec<Arc<str>> = self.world.pods_on(&name).map(|p| Arc::clone(&p.key)).collect();
            for key in pods {
                self.enqueue(Task::PodGc(key));
            }
            self.recheck_daemon_sets();
            return;
        };
        self.missing_nodes.remove(&name);
        if old.is_none() && change == Change::Added {
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            self.node_event(&facts, "RegisteredNode", "node-controller", message);
        }
        if facts.is_ready() && old.as_ref().is_some_and(|old| !old.is_ready()) && self.kubelets.runs(&name) {
            let message = format!("Node {name} status is now: NodeReady");
            self.node_event(&facts, "NodeReady", "kubelet", message);
        }
        self.scheduler.view.set_node(Arc::clone(&facts));
        self.health.hear(&facts, old.as_deref(), self.effects.now());
        self.kubelets.consider(&facts);
        self.enqueue(Task::KubeletNode(Arc::clone(&name)));
        self.enqueue(Task::NodeLifecycle(Arc::clone(&name)));
        let placement_changed = old.as_ref().is_none_or(|old| {
            old.labels != facts.labels || old.taints != facts.taints || old.unschedulable != facts.unschedulable
        });
        if placement_changed {
            self.recheck_daemon_sets();
            let pods: Vec<Arc<str>> = self.world.pods_on(&name).map(|p| Arc::clone(&p.key)).collect();
            for key in pods {
                if has_no_execute(&facts) || self.evictions.knows(&key) {
                    self.enqueue(Task::TaintEviction(Arc::clone(&key)));
                }
            }
        }
        if old.is_none() {
            let pods: Vec<Arc<str>> = self.world.pods_on(&name).map(|p| Arc::clone(&p.key)).collect();
            for key in pods {
                self.enqueue(Task::KubeletPod(key));
            }
        }
    }

    pub(crate) fn expire_event(&mut self, key: &Arc<str>) {
        let Some((namespace, name)) = key.split_once('/') else {
            return;
        };
        if let Some(due) = self.effects.expire_event(namespace, name, self.timing.event_ttl) {
            self.arm(Task::ExpireEvent(Arc::clone(key)), due);
        }
    }

    fn recheck_daemon_sets(&mut self) {
        let keys: Vec<Arc<str>> = self.world.daemon_sets.0.keys().cloned().collect();
        for key in keys {
            self.enqueue(Task::DaemonSet(key));
        }
    }

    fn recheck_budgets_in(&mut self, namespace: &str) {
        let keys: Vec<Arc<str>> = self
            .world
            .budgets
            .in_namespace(namespace)
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in keys {
            self.enqueue(Task::Budget(key));
        }
    }

    fn recheck_budgets_of(&mut self, pod: &PodFacts) {
        let matching = self.world.budgets.in_namespace(&pod.namespace).filter(|(_, budget)| {
            let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
            selector.is_some_and(|s| Selector::new(s).matches(&pod.class.labels))
        });
        let keys: Vec<Arc<str>> = matching.map(|(key, _)| Arc::clone(key)).collect();
        for key in keys {
            self.enqueue(Task::Budget(key));
        }
    }
}

/// What a budget's status depends on.
fn budget_view(pod: &PodFacts) -> (u64, bool, bool, bool) {
    (
        pod.class.id,
        pod.ready_since.is_some(),
        pod.deletion.is_some(),
        pod.phase.is_terminal(),
    )
}

fn has_no_execute(node: &NodeFacts) -> bool {
    node.taints.iter().any(|t| t.effect == "NoExecute")
}

/// Kind and name of an object's controller.
fn controller_of(object: &Object) -> Option<(String, String)> {
    #[derive(serde::Deserialize)]
    struct Owned {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    }
    let owned: Owned = parse(object)?;
    let owner = owned
        .metadata
        .owner_references
        .into_iter()
        .flatten()
        .find(|o| o.controller == Some(true))?;
    Some((owner.kind, owner.name))
}
