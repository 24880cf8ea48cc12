//! A Pod read off the wire without what nobody here looks at.
//!
//! Pods are most of what a cluster has and says. Half of each is managed fields; environment, probes, mounts and container
//! states are most of the rest. Skipping them while reading costs a fraction of building them first and dropping them then.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ContainerStatus, EphemeralVolumeSource, PersistentVolumeClaimVolumeSource, Pod,
    PodCondition, PodResourceClaim, PodSpec, PodStatus, ResourceRequirements, Toleration, TopologySpreadConstraint,
    Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use karpenter_api::labels::annotations::DO_NOT_EVICT;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de};

use super::trim::POD_ANNOTATIONS;

/// The pod, with everything that scheduling, disruption and termination read of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeanPod(pub(super) Pod);

impl Resource for LeanPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

impl<'de> Deserialize<'de> for LeanPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WirePod::deserialize(deserializer)?;
        Ok(Self(Pod {
            metadata: wire.metadata.into(),
            spec: wire.spec.map(PodSpec::from),
            status: wire.status.map(PodStatus::from),
        }))
    }
}

#[derive(Deserialize)]
struct WirePod {
    #[serde(default)]
    metadata: WireMeta,
    spec: Option<WireSpec>,
    status: Option<WireStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "own_annotations")]
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    tolerations: Option<Vec<Toleration>>,
    priority: Option<i32>,
    priority_class_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    volumes: Option<Vec<WireVolume>>,
    #[serde(default)]
    containers: Option<Vec<WireContainer>>,
    init_containers: Option<Vec<WireContainer>>,
    overhead: Option<BTreeMap<String, Quantity>>,
    resources: Option<ResourceRequirements>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    #[serde(default)]
    name: String,
    resources: Option<ResourceRequirements>,
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireVolume {
    #[serde(default)]
    name: String,
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<EphemeralVolumeSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    container_statuses: Option<Vec<WireContainerStatus>>,
    init_container_statuses: Option<Vec<WireContainerStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainerStatus {
    #[serde(default)]
    name: String,
    resources: Option<ResourceRequirements>,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
}

impl From<WireMeta> for ObjectMeta {
    fn from(wire: WireMeta) -> Self {
        Self {
            name: wire.name,
            namespace: wire.namespace,
            uid: wire.uid,
            resource_version: wire.resource_version,
            generation: wire.generation,
            creation_timestamp: wire.creation_timestamp,
            deletion_timestamp: wire.deletion_timestamp,
            deletion_grace_period_seconds: wire.deletion_grace_period_seconds,
            labels: wire.labels,
            annotations: wire.annotations,
            owner_references: wire.owner_references,
            ..Self::default()
        }
    }
}

impl From<WireSpec> for PodSpec {
    fn from(wire: WireSpec) -> Self {
        let containers = |all: Vec<WireContainer>| all.into_iter().map(Container::from).collect();
        let is_claimed = |volume: &WireVolume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        Self {
            node_name: wire.node_name,
            node_selector: wire.node_selector,
            affinity: wire.affinity,
            topology_spread_constraints: wire.topology_spread_constraints,
            tolerations: wire.tolerations,
            priority: wire.priority,
            priority_class_name: wire.priority_class_name,
            termination_grace_period_seconds: wire.termination_grace_period_seconds,
            resource_claims: wire.resource_claims,
            volumes: wire
                .volumes
                .map(|all| all.into_iter().filter(is_claimed).map(Volume::from).collect::<Vec<_>>())
                .filter(|all| !all.is_empty()),
            containers: wire.containers.map(containers).unwrap_or_default(),
            init_containers: wire.init_containers.map(containers),
            overhead: wire.overhead,
            resources: wire.resources,
            ..Self::default()
        }
    }
}

impl From<WireContainer> for Container {
    fn from(wire: WireContainer) -> Self {
        Self {
            name: wire.name,
            resources: wire.resources,
            ports: wire.ports,
            restart_policy: wire.restart_policy,
            ..Self::default()
        }
    }
}

impl From<WireVolume> for Volume {
    fn from(wire: WireVolume) -> Self {
        Self {
            name: wire.name,
            persistent_volume_claim: wire.persistent_volume_claim,
            ephemeral: wire.ephemeral,
            ..Self::default()
        }
    }
}

impl From<WireStatus> for PodStatus {
    fn from(wire: WireStatus) -> Self {
        // Only a status that says what the kubelet gave the container is of interest.
        let given = |all: Vec<WireContainerStatus>| {
            let told = all.into_iter().filter(|status| status.resources.is_some());
            told.map(ContainerStatus::from).collect()
        };
        Self {
            phase: wire.phase,
            start_time: wire.start_time,
            nominated_node_name: wire.nominated_node_name,
            conditions: wire.conditions,
            container_statuses: wire.container_statuses.map(given),
            init_container_statuses: wire.init_container_statuses.map(given),
            ..Self::default()
        }
    }
}

impl From<WireContainerStatus> for ContainerStatus {
    fn from(wire: WireContainerStatus) -> Self {
        Self {
            name: wire.name,
            resources: wire.resources,
            allocated_resources: wire.allocated_resources,
            ..Self::default()
        }
    }
}

/// Annotations that mean or, by an old name, may mean something to us; others may be as long as their authors like.
fn own_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct Own;

    impl<'de> Visitor<'de> for Own {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut own = BTreeMap::new();
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                if POD_ANNOTATIONS.contains(&&*key) || key == DO_NOT_EVICT {
                    own.insert(key.into_owned(), map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok((!own.is_empty()).then_some(own))
        }
    }

    deserializer.deserialize_any(Own)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use karpenter_engine::convert::PodIntake;

    use super::*;
    use crate::watch::trim;

    const POD: &str = r#"{
      "apiVersion": "v1", "kind": "Pod",
      "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "web"}, "annotations": {"karpenter.sh/do-not-disrupt": "true", "noise": "x"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}],
        "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:metadata": {}}}]},
      "spec": {"nodeName": "n", "nodeSelector": {"a": "b"}, "priority": 3, "serviceAccountName": "default",
        "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80, "hostPort": 80}],
          "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "karpenter.sh/disrupted", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
          "labelSelector": {"matchLabels": {"app": "web"}}}]},
      "status": {"phase": "Running", "startTime": "2026-01-01T00:00:05Z", "podIP": "10.0.0.1",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
          "resources": {"requests": {"cpu": "1500m"}}}]}
    }"#;

    #[test]
    fn a_lean_pod_means_the_same_as_the_whole_one() {
        let whole: Pod = serde_json::from_str(POD).unwrap();
        let LeanPod(lean) = serde_json::from_str(POD).unwrap();
        let mut intake = PodIntake::new(Arc::default());
        let (from_whole, problems) = intake.pod(&whole).unwrap();
        let (from_lean, same_problems) = intake.pod(&lean).unwrap();
        assert_eq!(format!("{from_whole:?}"), format!("{from_lean:?}"));
        assert_eq!(problems, same_problems);
        assert_eq!(trim::pod(whole), trim::pod(lean));
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let LeanPod(lean) = serde_json::from_str(POD).unwrap();
        assert!(lean.metadata.managed_fields.is_none());
        assert_eq!(lean.metadata.annotations.unwrap().len(), 1);
        assert!(lean.spec.unwrap().containers[0].env.is_none());
    }

    #[test]
    fn a_pod_of_a_list_has_no_kind_and_may_lack_everything() {
        let LeanPod(lean) = serde_json::from_str(r#"{"metadata": {"name": "a", "annotations": null}}"#).unwrap();
        assert_eq!(lean.metadata.name.as_deref(), Some("a"));
        assert!(lean.spec.is_none());
    }
}
