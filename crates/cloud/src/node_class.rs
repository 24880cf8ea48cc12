//! NodeClasses as core sees them: a kind that a provider owns, and whether an object of it is ready.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::Deserialize;

/// A NodeClass kind that a provider serves. All NodeClasses are cluster-scoped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeClassKind {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
}

/// Whether claims may be launched with a NodeClass, and what to tell users if not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    NotReady {
        reason: String,
        message: String,
    },
    /// No verdict yet, or one about an older generation.
    Unknown,
    Terminating,
}

/// A NodeClass object, reduced to what every kind has.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeClassState {
    pub name: String,
    pub generation: i64,
    /// The annotation in which the provider keeps the hash of the spec (`…nodeclass-hash`), and its value.
    pub hash: Option<(String, String)>,
    pub deleted_at: Option<Timestamp>,
    pub conditions: Vec<Condition>,
}

// === impl NodeClassKind ===

impl NodeClassKind {
    pub fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self {
            group: K::group(&()).into_owned(),
            version: K::version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
        }
    }

    /// True when a `nodeClassRef` with this group and kind is ours; the version does not matter.
    pub fn is_meant_by(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    /// The label that ties NodeClaims and Nodes to their NodeClass: `<group>/<lower-case kind>`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.group, self.kind.to_lowercase())
    }

    /// For dynamic watches of this kind.
    pub fn api_resource(&self) -> ApiResource {
        ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(&self.group, &self.version, &self.kind),
            &self.plural,
        )
    }
}

// === impl NodeClassState ===

impl NodeClassState {
    /// Reads any NodeClass object. Conditions that cannot be read count as absent, hence as not known to be ready.
    pub fn of(object: &DynamicObject) -> Self {
        #[derive(Deserialize)]
        struct Status {
            #[serde(default)]
            conditions: Vec<Condition>,
        }
        let status = object.data.get("status").cloned().unwrap_or_default();
        let mut annotations = object.metadata.annotations.clone().unwrap_or_default().into_iter();
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            hash: annotations.find(|(key, _)| key.ends_with("nodeclass-hash")),
            deleted_at: object.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            conditions: serde_json::from_value(status)
                .map(|status: Status| status.conditions)
                .unwrap_or_default(),
        }
    }

    pub fn readiness(&self) -> Readiness {
        if self.deleted_at.is_some() {
            return Readiness::Terminating;
        }
        let Some(ready) = self.conditions.iter().find(|condition| condition.type_ == "Ready") else {
            return Readiness::Unknown;
        };
        // A condition without observedGeneration (KWOK's is a CRD default) speaks for every generation.
        if ready
            .observed_generation
            .is_some_and(|observed| observed != self.generation)
        {
            return Readiness::Unknown;
        }
        match ready.status.as_str() {
            "True" => Readiness::Ready,
            "False" => Readiness::NotReady {
                reason: ready.reason.clone(),
                message: ready.message.clone(),
            },
            _ => Readiness::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn readiness(object: serde_json::Value) -> Readiness {
        NodeClassState::of(&serde_json::from_value(object).expect("an object")).readiness()
    }

    fn class(status: &str, observed: serde_json::Value) -> serde_json::Value {
        json!({
            "apiVersion": "example.com/v1", "kind": "ExampleNodeClass",
            "metadata": {"name": "default", "generation": 2},
            "status": {"conditions": [{
                "type": "Ready", "status": status, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed,
            }]},
        })
    }

    #[test]
    fn a_class_is_ready_when_its_condition_says_so_for_this_generation() {
        assert_eq!(readiness(class("True", json!(2))), Readiness::Ready);
        assert_eq!(readiness(class("True", json!(null))), Readiness::Ready);
        assert_eq!(readiness(class("True", json!(1))), Readiness::Unknown);
        assert_eq!(
            readiness(class("False", json!(2))),
            Readiness::NotReady {
                reason: "R".into(),
                message: "m".into()
            }
        );
    }

    #[test]
    fn a_class_without_a_verdict_is_unknown() {
        let bare = json!({"apiVersion": "example.com/v1", "kind": "E", "metadata": {"name": "default"}});
        assert_eq!(readiness(bare), Readiness::Unknown);
        assert_eq!(readiness(class("Unknown", json!(2))), Readiness::Unknown);
    }

    #[test]
    fn a_class_being_deleted_is_terminating_whatever_it_says() {
        let mut object = class("True", json!(2));
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(readiness(object), Readiness::Terminating);
    }

    #[test]
    fn the_label_of_a_kind_is_its_group_and_lower_case_name() {
        let kind = NodeClassKind {
            group: "karpenter.kwok.sh".into(),
            version: "v1alpha1".into(),
            kind: "KWOKNodeClass".into(),
            plural: "kwoknodeclasses".into(),
        };
        assert_eq!(kind.label(), "karpenter.kwok.sh/kwoknodeclass");
        assert!(kind.is_meant_by("karpenter.kwok.sh", "KWOKNodeClass"));
        assert!(!kind.is_meant_by("karpenter.kwok.sh", "Other"));
    }
}
