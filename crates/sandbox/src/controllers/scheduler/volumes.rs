//! Volumes in scheduling: which nodes can reach a pod's claims, and which claims are still to be provisioned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};

use super::filters::Refusal;
use super::view::{ClusterView, NodeState};
use crate::controllers::node::NodeFacts;
use crate::controllers::pod::PodFacts;
use crate::controllers::selector::NodeTerms;

/// Claims, volumes and drivers of the cluster.
#[derive(Debug, Default)]
pub(crate) struct VolumeFacts {
    pub(crate) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(crate) classes: BTreeMap<String, Arc<StorageClass>>,
    pub(crate) csi_nodes: BTreeMap<String, Arc<CSINode>>,
    pub(crate) attachments: BTreeMap<String, Arc<VolumeAttachment>>,
}

/// What a pod's claims demand of a node.
#[derive(Debug, Default)]
pub(crate) struct VolumeNeeds {
    reachable_from: Vec<NodeTerms>,
    zones: Vec<(String, BTreeSet<String>)>,
    pub(crate) delayed: Vec<DelayedClaim>,
    /// Volume identities per CSI driver.
    drivers: BTreeMap<String, BTreeSet<String>>,
    exclusive: Vec<String>,
}

/// A claim whose volume is made once a node is chosen.
#[derive(Debug, Clone)]
pub(crate) struct DelayedClaim {
    pub(crate) key: String,
    topologies: Vec<TopologySelectorTerm>,
    /// Existing volumes that would do, with the nodes that reach them.
    candidates: Vec<Option<NodeTerms>>,
    provisioned: bool,
}

const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

impl VolumeFacts {
    /// Reads a pod's claims; the error is a message about the pod, whatever the node.
    pub(crate) fn needs(&self, pod: &PodFacts) -> Result<VolumeNeeds, String> {
        let mut needs = VolumeNeeds::default();
        for volume in &pod.class.spec.volumes {
            let name = volume.claim_name(&pod.name);
            let key = format!("{}/{name}", pod.namespace);
            let Some(claim) = self.claims.get(&key) else {
                return Err(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            let modes = claim
                .spec
                .as_ref()
                .and_then(|s| s.access_modes.as_deref())
                .unwrap_or_default();
            if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                needs.exclusive.push(key.clone());
            }
            match bound_volume(claim) {
                Some(volume) => self.add_bound(volume, &mut needs),
                None => self.add_unbound(key, claim, &mut needs)?,
            }
        }
        Ok(needs)
    }

    fn add_bound(&self, volume: &str, needs: &mut VolumeNeeds) {
        let Some(volume) = self.volumes.get(volume) else { return };
        needs.reachable_from.extend(reach(volume));
        for key in ZONE_LABELS {
            if let Some(value) = volume.metadata.labels.as_ref().and_then(|l| l.get(key)) {
                // Volumes replicated over zones join their names.
                let zones = value.split("__").map(str::to_owned).collect();
                needs.zones.push((key.to_owned(), zones));
            }
        }
        if let Some((driver, handle)) = csi_identity(volume) {
            needs.drivers.entry(driver).or_default().insert(handle);
        }
    }

    fn add_unbound(&self, key: String, claim: &PersistentVolumeClaim, needs: &mut VolumeNeeds) -> Result<(), String> {
        let class_name = claim
            .spec
            .as_ref()
            .and_then(|s| s.storage_class_name.as_deref())
            .unwrap_or_default();
        let class = self.classes.get(class_name);
        let waits = class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let Some(class) = class.filter(|_| waits) else {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        };
        let provisioned = class.provisioner != "kubernetes.io/no-provisioner";
        if provisioned {
            needs
                .drivers
                .entry(class.provisioner.clone())
                .or_default()
                .insert(key.clone());
        }
        let candidates = self
            .volumes
            .values()
            .filter(|v| is_available_for(v, claim))
            .map(|v| reach(v))
            .collect();
        needs.delayed.push(DelayedClaim {
            key,
            topologies: class.allowed_topologies.clone().unwrap_or_default(),
            candidates,
            provisioned,
        });
        Ok(())
    }

    /// Volumes of a driver that are attached to the node or used by pods on it.
    fn in_use(&self, driver: &str, node: &str, state: &NodeState) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for claim in state.claims.keys() {
            let volume = self
                .claims
                .get(claim)
                .and_then(|c| bound_volume(c))
                .and_then(|v| self.volumes.get(v));
            match volume.and_then(|v| csi_identity(v)) {
                Some((of, handle)) if of == driver => {
                    used.insert(handle);
                }
                _ => {}
            }
        }
        for attachment in self
            .attachments
            .values()
            .filter(|a| a.spec.node_name == node && a.spec.attacher == driver)
        {
            let volume = attachment
                .spec
                .source
                .persistent_volume_name
                .as_ref()
                .and_then(|v| self.volumes.get(v));
            if let Some((_, handle)) = volume.and_then(|v| csi_identity(v)) {
                used.insert(handle);
            }
        }
        used
    }
}

impl VolumeNeeds {
    /// The volume filters, in kube-scheduler's order.
    pub(super) fn refuse(&self, view: &ClusterView, node: &NodeFacts, state: &NodeState) -> Option<Refusal> {
        if self.exclusive.iter().any(|claim| view.claim_is_used(claim)) {
            return Some(Refusal::ExclusiveClaimInUse);
        }
        if self.exceeds_limit(view, node, state) {
            return Some(Refusal::VolumeLimit);
        }
        if self
            .reachable_from
            .iter()
            .any(|terms| !terms.matches(&node.name, &node.labels))
        {
            return Some(Refusal::VolumeAffinity);
        }
        if self.delayed.iter().any(|claim| !claim.fits(node)) {
            return Some(Refusal::NoVolume);
        }
        let in_zone =
            |(key, zones): &(String, BTreeSet<String>)| node.labels.get(key).is_none_or(|zone| zones.contains(zone));
        if !self.zones.iter().all(in_zone) {
            return Some(Refusal::VolumeZone);
        }
        None
    }

    fn exceeds_limit(&self, view: &ClusterView, node: &NodeFacts, state: &NodeState) -> bool {
        let Some(csi) = view.volumes.csi_nodes.get(&*node.name) else {
            return false;
        };
        self.drivers.iter().any(|(driver, wanted)| {
            let limit = csi.spec.drivers.iter().find(|d| d.name == *driver);
            let Some(limit) = limit.and_then(|d| d.allocatable.as_ref()?.count) else {
                return false;
            };
            let used = view.volumes.in_use(driver, &node.name, state);
            let total = used.union(wanted).count();
            wanted.iter().any(|w| !used.contains(w)) && i64::try_from(total).unwrap_or(i64::MAX) > i64::from(limit)
        })
    }
}

impl DelayedClaim {
    fn fits(&self, node: &NodeFacts) -> bool {
        let reaches = |terms: &Option<NodeTerms>| terms.as_ref().is_none_or(|t| t.matches(&node.name, &node.labels));
        if self.candidates.iter().any(reaches) {
            return true;
        }
        self.provisioned && (self.topologies.is_empty() || self.topologies.iter().any(|t| topology_matches(t, node)))
    }
}

fn topology_matches(term: &TopologySelectorTerm, node: &NodeFacts) -> bool {
    term.match_label_expressions
        .iter()
        .flatten()
        .all(|e| node.labels.get(&e.key).is_some_and(|value| e.values.contains(value)))
}

/// The volume a claim is bound to, once both sides know it.
pub(crate) fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let completed = claim
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key("pv.kubernetes.io/bind-completed"));
    let volume = claim.spec.as_ref()?.volume_name.as_deref().filter(|v| !v.is_empty())?;
    (bound || completed).then_some(volume)
}

/// Whether a static volume could serve the claim.
pub(crate) fn is_available_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(spec), Some(want)) = (&volume.spec, &claim.spec) else {
        return false;
    };
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let reserved = spec
        .claim_ref
        .as_ref()
        .is_some_and(|r| r.name != claim.metadata.name || r.namespace != claim.metadata.namespace);
    let request = want
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref()?.get("storage"));
    let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage"));
    let size = |q: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        q.and_then(|q| crate::quantity::nanos(&q.0)).unwrap_or(0)
    };
    let offered = spec.access_modes.as_deref().unwrap_or_default();
    let modes = want.access_modes.as_deref().unwrap_or_default();
    !reserved
        && !matches!(phase, Some("Released" | "Failed" | "Bound"))
        && spec.storage_class_name.as_deref().unwrap_or_default()
            == want.storage_class_name.as_deref().unwrap_or_default()
        && size(capacity) >= size(request)
        && modes.iter().all(|m| offered.contains(m))
}

fn reach(volume: &PersistentVolume) -> Option<NodeTerms> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    affinity.required.as_ref().map(NodeTerms::new)
}

fn csi_identity(volume: &PersistentVolume) -> Option<(String, String)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((csi.driver.clone(), csi.volume_handle.clone()))
}
