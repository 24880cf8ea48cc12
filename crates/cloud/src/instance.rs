//! A machine as a provider reports it, and how it becomes part of its NodeClaim.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::{NodeClaim, ResourceList};

/// On a NodeClaim: the provider ID of an existing machine that `create` shall bind instead of launching one.
pub const ADOPT_ANNOTATION: &str = "karpenter.sh/adopt-provider-id";

/// A machine at a cloud that belongs to this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// Equal to the `spec.providerID` of the Node it becomes.
    pub provider_id: String,
    pub image_id: Option<String>,
    /// Instance type, zone, region, arch, os, capacity type and the provider's own labels.
    pub labels: BTreeMap<String, String>,
    /// E.g. the provider's hash of the NodeClass it was made from.
    pub annotations: BTreeMap<String, String>,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
    pub created_at: Option<Timestamp>,
    pub phase: InstancePhase,
    /// The claim it was made for, as marked on the machine.
    pub claim: Option<ClaimMark>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InstancePhase {
    #[default]
    Live,
    /// On its way out; core treats it as gone when it looks for vanished instances.
    Terminating,
}

/// Which claim a machine was made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimMark {
    pub name: String,
    pub uid: String,
}

/// A machine that a NodePool should take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    pub node_pool: String,
    pub instance: Instance,
}

impl Instance {
    pub fn is_terminating(&self) -> bool {
        self.phase == InstancePhase::Terminating
    }

    /// Writes what the launch found out into the claim.
    ///
    /// Labels already on the claim win, because users wrote them; the provider's annotations win, because they state
    /// facts (api.md §7.1).
    pub fn apply_to(&self, claim: &mut NodeClaim) {
        let labels = claim.metadata.labels.get_or_insert_default();
        for (key, value) in &self.labels {
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.extend(self.annotations.clone());
        let status = claim.status.get_or_insert_default();
        status.provider_id = Some(self.provider_id.clone());
        status.image_id = self.image_id.clone();
        status.capacity = Some(self.capacity.clone());
        status.allocatable = Some(self.allocatable.clone());
    }
}

impl ClaimMark {
    /// The mark of a claim as the API server stores it.
    pub fn of(claim: &NodeClaim) -> Self {
        Self {
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_labels_and_provider_annotations_win_when_a_launch_is_merged() {
        let mut claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "a", "uid": "u", "labels": {"team": "blue"}, "annotations": {"hash": "old"}},
            "spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            },
        }))
        .expect("a NodeClaim");
        let instance = Instance {
            provider_id: "kwok://a".into(),
            labels: [("team".into(), "red".into()), ("zone".into(), "z".into())].into(),
            annotations: [("hash".into(), "new".into())].into(),
            ..Instance::default()
        };
        instance.apply_to(&mut claim);
        let labels = claim.metadata.labels.clone().expect("labels");
        assert_eq!((labels["team"].as_str(), labels["zone"].as_str()), ("blue", "z"));
        assert_eq!(claim.metadata.annotations.as_ref().expect("annotations")["hash"], "new");
        assert_eq!(claim.provider_id(), Some("kwok://a"));
        assert_eq!(
            ClaimMark::of(&claim),
            ClaimMark {
                name: "a".into(),
                uid: "u".into()
            }
        );
    }
}
