//! Volumes: claims are bound or provisioned, used volumes are attached, unused ones let go (sandbox.md §5.11).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::effects::{ATTACHMENTS, CLAIMS, VOLUMES};
use super::garbage::without_finalizer;
use super::manager::{Manager, Task};
use super::pod::PodFacts;
use super::scheduler::volumes::{bound_volume, is_available_for};
use super::world::parse;
use crate::clock::later;
use crate::object::Object;
use crate::server::{DeleteOptions, Endpoint};
use crate::store::Change;

const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Volumes that are on their way.
#[derive(Debug, Default)]
pub(crate) struct StorageWork {
    /// Since when a claim has been ready to be provisioned.
    provisioning: FxHashMap<Arc<str>, Timestamp>,
    /// Since when nobody on the node has used an attachment.
    unused: FxHashMap<String, Timestamp>,
}

impl Manager {
    pub(crate) fn observe_storage(&mut self, collection: &str, change: Change, object: &Object) {
        let key: Arc<str> = Arc::from(&*object.key);
        let volumes = &mut self.scheduler.view.volumes;
        match collection {
            "persistentvolumeclaims" => {
                set(&mut volumes.claims, change, object);
                self.enqueue(Task::Claim(Arc::clone(&key)));
                let bound = volumes_of(self.scheduler.view.volumes.claims.get(&*key));
                if let Some(volume) = bound {
                    self.enqueue(Task::Volume(volume));
                }
                let waiting: Vec<Arc<PodFacts>> = self.pods_using(&key).cloned().collect();
                for pod in waiting {
                    self.enqueue(Task::Reservation(Arc::clone(&pod.key)));
                    if let Some(node) = &pod.node {
                        self.enqueue(Task::Attachments(Arc::clone(node)));
                    }
                }
                if change == Change::Deleted {
                    self.recheck_volumes_of(&key);
                }
            }
            "persistentvolumes" => {
                set(&mut volumes.volumes, change, object);
                self.enqueue(Task::Volume(Arc::clone(&key)));
                let claim = self
                    .scheduler
                    .view
                    .volumes
                    .volumes
                    .get(&*key)
                    .and_then(|v| claim_key(v));
                if let Some(claim) = claim {
                    self.enqueue(Task::Claim(claim));
                }
            }
            "storageclasses.storage.k8s.io" => {
                set(&mut volumes.classes, change, object);
                let claims: Vec<Arc<str>> = self
                    .scheduler
                    .view
                    .volumes
                    .claims
                    .keys()
                    .map(|k| Arc::from(k.as_str()))
                    .collect();
                for claim in claims {
                    self.enqueue(Task::Claim(claim));
                }
            }
            "csinodes.storage.k8s.io" => set(&mut volumes.csi_nodes, change, object),
            "volumeattachments.storage.k8s.io" => {
                let old = volumes.attachments.get(&*object.key).map(|a| a.spec.node_name.clone());
                set(&mut volumes.attachments, change, object);
                let new = volumes.attachments.get(&*object.key).map(|a| a.spec.node_name.clone());
                for node in old.into_iter().chain(new).collect::<BTreeSet<_>>() {
                    self.enqueue(Task::Attachments(Arc::from(node.as_str())));
                    let pods: Vec<Arc<str>> = self.world.pods_on(&node).map(|p| Arc::clone(&p.key)).collect();
                    for pod in pods {
                        self.enqueue(Task::KubeletPod(pod));
                    }
                }
            }
            _ => {}
        }
        self.scheduler.view.improve();
    }

    fn pods_using<'m>(&'m self, claim: &str) -> impl Iterator<Item = &'m Arc<PodFacts>> {
        let (namespace, name) = claim.split_once('/').unwrap_or(("", claim));
        let name = name.to_owned();
        self.world
            .pods_in(namespace)
            .filter(move |pod| pod.class.spec.volumes.iter().any(|v| v.claim_name(&pod.name) == name))
    }

    fn recheck_volumes_of(&mut self, claim: &str) {
        let affected: Vec<Arc<str>> = self
            .scheduler
            .view
            .volumes
            .volumes
            .iter()
            .filter(|(_, volume)| claim_key(volume).as_deref() == Some(claim))
            .map(|(name, _)| Arc::from(name.as_str()))
            .collect();
        for volume in affected {
            self.enqueue(Task::Volume(volume));
        }
    }

    pub(crate) fn sync_claim(&mut self, key: &Arc<str>) {
        let Some(claim) = self.scheduler.view.volumes.claims.get(&**key).cloned() else {
            return;
        };
        let Some((namespace, name)) = key.split_once('/') else {
            return;
        };
        if claim.metadata.deletion_timestamp.is_some() {
            let in_use = self.pods_using(key).any(|p| !p.phase.is_terminal());
            if !in_use {
                let released = self.effects.modify(CLAIMS, namespace, name, Endpoint::Main, |object| {
                    without_finalizer(object, CLAIM_PROTECTION)
                });
                self.effects.report("release a claim", released);
            }
            return;
        }
        if bound_volume(&claim).is_some() {
            self.storage.provisioning.remove(key);
            return;
        }
        if let Some(volume) = self.static_volume(&claim) {
            self.bind_claim(key, &claim, &volume);
            return;
        }
        let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref());
        let class = class.and_then(|c| self.scheduler.view.volumes.classes.get(c)).cloned();
        let Some(class) = class.filter(|c| c.provisioner != "kubernetes.io/no-provisioner") else {
            return;
        };
        let selected = claim
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(SELECTED_NODE))
            .cloned();
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        if waits && selected.is_none() {
            return;
        }
        let now = self.effects.now();
        let since = *self.storage.provisioning.entry(Arc::clone(key)).or_insert(now);
        let due = later(since, self.timing.provision_delay);
        if due > now {
            self.arm(Task::Claim(Arc::clone(key)), due);
            return;
        }
        let volume = self.provisioned(&claim, &class, selected.as_deref());
        let volume_name = volume["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match self.effects.create(VOLUMES, "", &volume) {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => {}
            Err(error) => {
                self.effects.report("provision a volume", Err(error));
                return;
            }
        }
        self.finish_binding(key, &claim, &volume_name, &volume);
    }

    /// An existing volume that serves the claim: the one it names, or one that fits and is reachable.
    fn static_volume(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        let volumes = &self.scheduler.view.volumes;
        let named = claim
            .spec
            .as_ref()
            .and_then(|s| s.volume_name.as_deref())
            .filter(|v| !v.is_empty());
        if let Some(named) = named {
            return volumes.volumes.get(named).cloned();
        }
        let own = |v: &&Arc<PersistentVolume>| {
            let reference = v.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            reference.is_some_and(|r| r.uid.is_some() && r.uid == claim.metadata.uid)
        };
        if let Some(volume) = volumes.volumes.values().find(own) {
            return Some(Arc::clone(volume));
        }
        let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref());
        let waits = class
            .and_then(|c| volumes.classes.get(c))
            .is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let node = claim.metadata.annotations.as_ref().and_then(|a| a.get(SELECTED_NODE));
        if waits && node.is_none() {
            return None;
        }
        let reaches = |volume: &PersistentVolume| {
            let affinity = volume
                .spec
                .as_ref()
                .and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
            let facts = node.and_then(|n| self.world.nodes.get(n.as_str()));
            match (affinity, facts) {
                (Some(terms), Some(facts)) => {
                    super::selector::NodeTerms::new(terms).matches(&facts.name, &facts.labels)
                }
                _ => true,
            }
        };
        volumes
            .volumes
            .values()
            .find(|v| is_available_for(v, claim) && reaches(v))
            .cloned()
    }

    fn bind_claim(&mut self, key: &Arc<str>, claim: &PersistentVolumeClaim, volume: &PersistentVolume) {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let reference = claim_reference(claim);
        let written = self.effects.modify(VOLUMES, "", &name, Endpoint::Main, |object| {
            if object["spec"]["claimRef"]["uid"] == reference["uid"] {
                return false;
            }
            object["spec"]["claimRef"] = reference;
            true
        });
        self.effects.report("bind a volume", written);
        let tree = serde_json::to_value(volume).unwrap_or_default();
        self.finish_binding(key, claim, &name, &tree);
    }

    /// Both sides say that they belong together.
    fn finish_binding(&mut self, key: &Arc<str>, claim: &PersistentVolumeClaim, volume: &str, tree: &Value) {
        self.storage.provisioning.remove(key);
        let phase = self.effects.modify(VOLUMES, "", volume, Endpoint::Status, |object| {
            object["status"] = json!({"phase": "Bound"});
            true
        });
        self.effects.report("mark a volume as bound", phase);
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let bound = self.effects.modify(CLAIMS, namespace, name, Endpoint::Main, |object| {
            object["spec"]["volumeName"] = json!(volume);
            if !object["metadata"]["annotations"].is_object() {
                object["metadata"]["annotations"] = json!({});
            }
            object["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
            object["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = json!("yes");
            true
        });
        self.effects.report("bind a claim", bound);
        let phase = self
            .effects
            .modify(CLAIMS, namespace, name, Endpoint::Status, |object| {
                object["status"] = json!({
                    "phase": "Bound", "capacity": tree["spec"]["capacity"], "accessModes": tree["spec"]["accessModes"],
                });
                true
            });
        self.effects.report("mark a claim as bound", phase);
    }

    /// The volume that a provisioner would make.
    fn provisioned(&self, claim: &PersistentVolumeClaim, class: &StorageClass, node: Option<&str>) -> Value {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let name = format!("pvc-{uid}");
        let want = claim.spec.clone().unwrap_or_default();
        let size = want.resources.and_then(|r| r.requests?.get("storage").cloned());
        let mut volume = json!({
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": class.provisioner},
                "finalizers": [VOLUME_PROTECTION]},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": want.access_modes,
                "volumeMode": want.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
                "claimRef": claim_reference(claim),
                "storageClassName": want.storage_class_name,
                "persistentVolumeReclaimPolicy": class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
                "csi": {"driver": class.provisioner, "volumeHandle": name},
            },
        });
        if let Some((key, zone)) = self.zone_for(class, node) {
            volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": key, "operator": "In", "values": [zone]}]}]}});
        }
        volume
    }

    /// The zone of the selected node, or one that the class allows, or the first there is.
    fn zone_for(&self, class: &StorageClass, node: Option<&str>) -> Option<(String, String)> {
        let of_node = node
            .and_then(|n| self.world.nodes.get(n))
            .and_then(|n| n.zone().map(str::to_owned));
        if let Some(zone) = of_node {
            return Some((ZONE.to_owned(), zone));
        }
        let allowed = class
            .allowed_topologies
            .iter()
            .flatten()
            .flat_map(|t| t.match_label_expressions.iter().flatten());
        if let Some(expression) = allowed.into_iter().next() {
            return Some((expression.key.clone(), expression.values.first()?.clone()));
        }
        if node.is_some() {
            return None;
        }
        let zones: BTreeSet<&str> = self.world.nodes.values().filter_map(|n| n.zone()).collect();
        zones.first().map(|zone| (ZONE.to_owned(), (*zone).to_owned()))
    }

    pub(crate) fn sync_volume(&mut self, name: &Arc<str>) {
        let Some(volume) = self.scheduler.view.volumes.volumes.get(&**name).cloned() else {
            return;
        };
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let claim = claim_key(&volume).and_then(|key| self.scheduler.view.volumes.claims.get(&*key));
        let claim_uid = spec.claim_ref.as_ref().and_then(|r| r.uid.as_ref());
        let has_claim = claim.is_some_and(|c| claim_uid.is_none() || c.metadata.uid.as_ref() == claim_uid);
        if volume.metadata.deletion_timestamp.is_some() {
            if !has_claim {
                let released = self.effects.modify(VOLUMES, "", name, Endpoint::Main, |object| {
                    without_finalizer(object, VOLUME_PROTECTION)
                });
                self.effects.report("release a volume", released);
            }
            return;
        }
        match (&spec.claim_ref, has_claim) {
            (None, _) if phase.is_empty() || phase == "Pending" => self.set_phase(name, "Available"),
            (None, _) | (Some(_), true) => {}
            (Some(_), false) if claim_uid.is_none() => {}
            (Some(_), false) if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") => {
                let uid = volume.metadata.uid.clone().unwrap_or_default();
                let deleted = self.effects.delete(VOLUMES, "", name, &uid, DeleteOptions::default());
                self.effects.report("reclaim a volume", deleted);
            }
            (Some(_), false) if phase != "Released" => self.set_phase(name, "Released"),
            (Some(_), false) => {}
        }
    }

    fn set_phase(&self, volume: &str, phase: &str) {
        let written = self.effects.modify(VOLUMES, "", volume, Endpoint::Status, |object| {
            object["status"]["phase"] = json!(phase);
            true
        });
        self.effects.report("write a volume's phase", written);
    }

    pub(crate) fn sync_attachments(&mut self, node: &Arc<str>) {
        let now = self.effects.now();
        let wanted: BTreeMap<String, (String, String)> = self
            .world
            .pods_on(node)
            .filter(|pod| !pod.phase.is_terminal())
            .flat_map(|pod| self.attachable(pod))
            .map(|(volume, driver, handle)| (attachment_name(&handle, &driver, node), (volume, driver)))
            .collect();
        for (name, (volume, driver)) in &wanted {
            self.storage.unused.remove(name);
            if self.scheduler.view.volumes.attachments.contains_key(name) {
                continue;
            }
            let attachment = json!({
                "metadata": {"name": name},
                "spec": {"attacher": driver, "nodeName": &**node, "source": {"persistentVolumeName": volume}},
            });
            let created = self.effects.create(ATTACHMENTS, "", &attachment);
            self.effects.report("attach a volume", created.map(|_| ()));
        }
        let here: Vec<_> = self
            .scheduler
            .view
            .volumes
            .attachments
            .iter()
            .filter(|(_, a)| a.spec.node_name == **node)
            .map(|(name, a)| (name.clone(), Arc::clone(a)))
            .collect();
        let mut look_again: Option<Timestamp> = None;
        for (name, attachment) in here {
            let due = if wanted.contains_key(&name) {
                if attachment.status.as_ref().is_some_and(|s| s.attached) {
                    continue;
                }
                let made = attachment.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
                later(made, self.timing.attach_delay)
            } else {
                let since = *self.storage.unused.entry(name.clone()).or_insert(now);
                later(since, self.timing.detach_delay)
            };
            if due > now {
                look_again = look_again.into_iter().chain([due]).min();
            } else if wanted.contains_key(&name) {
                let attached = self
                    .effects
                    .set_status(ATTACHMENTS, "", &name, &json!({"attached": true}));
                self.effects.report("mark a volume as attached", attached);
            } else {
                self.storage.unused.remove(&name);
                let uid = attachment.metadata.uid.clone().unwrap_or_default();
                let deleted = self
                    .effects
                    .delete(ATTACHMENTS, "", &name, &uid, DeleteOptions::default());
                self.effects.report("detach a volume", deleted);
            }
        }
        if let Some(at) = look_again {
            self.arm(Task::Attachments(Arc::clone(node)), at);
        }
    }

    /// Whether a pod's volumes are on its node, so that it can start.
    pub(crate) fn volumes_attached(&self, pod: &PodFacts, node: &str) -> bool {
        self.attachable(pod).all(|(_, driver, handle)| {
            let attachment = self
                .scheduler
                .view
                .volumes
                .attachments
                .get(&attachment_name(&handle, &driver, node));
            attachment.is_some_and(|a| a.status.as_ref().is_some_and(|s| s.attached))
        })
    }

    /// Volume, driver and handle of each CSI volume of a pod.
    fn attachable(&self, pod: &PodFacts) -> impl Iterator<Item = (String, String, String)> {
        let volumes = &self.scheduler.view.volumes;
        pod.class.spec.volumes.iter().filter_map(|v| {
            let claim = volumes
                .claims
                .get(&format!("{}/{}", pod.namespace, v.claim_name(&pod.name)))?;
            let name = bound_volume(claim)?;
            let csi = volumes.volumes.get(name)?.spec.as_ref()?.csi.as_ref()?;
            Some((name.to_owned(), csi.driver.clone(), csi.volume_handle.clone()))
        })
    }
}

fn set<T: serde::de::DeserializeOwned>(map: &mut BTreeMap<String, Arc<T>>, change: Change, object: &Object) {
    match change {
        Change::Deleted => {
            map.remove(&*object.key);
        }
        Change::Added | Change::Modified => {
            if let Some(parsed) = parse::<T>(object) {
                map.insert(object.key.to_string(), Arc::new(parsed));
            }
        }
    }
}

fn volumes_of(claim: Option<&Arc<PersistentVolumeClaim>>) -> Option<Arc<str>> {
    let name = claim?.spec.as_ref()?.volume_name.as_deref().filter(|v| !v.is_empty())?;
    Some(Arc::from(name))
}

fn claim_key(volume: &PersistentVolume) -> Option<Arc<str>> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(format!("{}/{}", reference.namespace.as_deref()?, reference.name.as_deref()?).into())
}

fn claim_reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
        "name": claim.metadata.name, "uid": claim.metadata.uid,
    })
}

/// The name that the attach-detach controller gives.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    let mut name = String::from("csi-");
    for byte in digest {
        write!(name, "{byte:02x}").expect("a string takes everything");
    }
    name
}
