//! The kinds that every cluster has, and how their objects are brought into canonical form.

use std::sync::Arc;

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authentication,
    authorization::v1 as authorization, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    events::v1 as events, policy::v1 as policy, rbac::v1 as rbac, resource::v1 as dra, scheduling::v1 as scheduling,
    storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Endpoints, Generation, Resource, ScalePaths, Scope, Source, StatusEndpoint, UpdateRules};
use crate::object::SelectableField;
use crate::status::qualified;

/// Round-trips a tree through the kind's Rust type: wrong types are refused, unknown fields dropped.
pub type Normalise = fn(Value) -> Result<Value, serde_json::Error>;

fn through<K: DeserializeOwned + Serialize>(value: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<K>(value)?)
}

/// One row of the table below, before it becomes a [`Resource`].
struct Row {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    scope: Scope,
    normalise: Normalise,
}

const fn namespaced(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    normalise: Normalise,
) -> Row {
    Row {
        group,
        kind,
        plural,
        short,
        scope: Scope::Namespaced,
        normalise,
    }
}

const fn cluster(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    normalise: Normalise,
) -> Row {
    Row {
        group,
        kind,
        plural,
        short,
        scope: Scope::Cluster,
        normalise,
    }
}

const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const DRA: &str = "resource.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

const ROWS: &[Row] = &[
    namespaced("", "Pod", "pods", &["po"], through::<core::Pod>),
    cluster("", "Node", "nodes", &["no"], through::<core::Node>),
    cluster("", "Namespace", "namespaces", &["ns"], through::<core::Namespace>),
    namespaced("", "ConfigMap", "configmaps", &["cm"], through::<core::ConfigMap>),
    namespaced("", "Secret", "secrets", &[], through::<core::Secret>),
    namespaced(
        "",
        "ServiceAccount",
        "serviceaccounts",
        &["sa"],
        through::<core::ServiceAccount>,
    ),
    namespaced("", "Service", "services", &["svc"], through::<core::Service>),
    namespaced("", "Event", "events", &["ev"], through::<core::Event>),
    cluster(
        "",
        "PersistentVolume",
        "persistentvolumes",
        &["pv"],
        through::<core::PersistentVolume>,
    ),
    namespaced(
        "",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        &["pvc"],
        through::<core::PersistentVolumeClaim>,
    ),
    namespaced("", "Binding", "bindings", &[], through::<core::Binding>),
    namespaced("", "PodTemplate", "podtemplates", &[], through::<core::PodTemplate>),
    namespaced(
        APPS,
        "Deployment",
        "deployments",
        &["deploy"],
        through::<apps::Deployment>,
    ),
    namespaced(APPS, "ReplicaSet", "replicasets", &["rs"], through::<apps::ReplicaSet>),
    namespaced(
        APPS,
        "StatefulSet",
        "statefulsets",
        &["sts"],
        through::<apps::StatefulSet>,
    ),
    namespaced(APPS, "DaemonSet", "daemonsets", &["ds"], through::<apps::DaemonSet>),
    namespaced(
        APPS,
        "ControllerRevision",
        "controllerrevisions",
        &[],
        through::<apps::ControllerRevision>,
    ),
    namespaced("batch", "Job", "jobs", &[], through::<batch::Job>),
    namespaced(
        "policy",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        &["pdb"],
        through::<policy::PodDisruptionBudget>,
    ),
    namespaced(
        "coordination.k8s.io",
        "Lease",
        "leases",
        &[],
        through::<coordination::Lease>,
    ),
    namespaced("events.k8s.io", "Event", "events", &["ev"], through::<events::Event>),
    cluster(
        STORAGE,
        "StorageClass",
        "storageclasses",
        &["sc"],
        through::<storage::StorageClass>,
    ),
    cluster(STORAGE, "CSINode", "csinodes", &[], through::<storage::CSINode>),
    cluster(STORAGE, "CSIDriver", "csidrivers", &[], through::<storage::CSIDriver>),
    cluster(
        STORAGE,
        "VolumeAttachment",
        "volumeattachments",
        &[],
        through::<storage::VolumeAttachment>,
    ),
    cluster(
        "scheduling.k8s.io",
        "PriorityClass",
        "priorityclasses",
        &["pc"],
        through::<scheduling::PriorityClass>,
    ),
    cluster(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        &["crd", "crds"],
        through::<apiextensions::CustomResourceDefinition>,
    ),
    cluster(DRA, "DeviceClass", "deviceclasses", &[], through::<dra::DeviceClass>),
    namespaced(
        DRA,
        "ResourceClaim",
        "resourceclaims",
        &[],
        through::<dra::ResourceClaim>,
    ),
    namespaced(
        DRA,
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        &[],
        through::<dra::ResourceClaimTemplate>,
    ),
    cluster(
        DRA,
        "ResourceSlice",
        "resourceslices",
        &[],
        through::<dra::ResourceSlice>,
    ),
    cluster(
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        &[],
        through::<authorization::SelfSubjectAccessReview>,
    ),
    cluster(
        "authentication.k8s.io",
        "SelfSubjectReview",
        "selfsubjectreviews",
        &[],
        through::<authentication::SelfSubjectReview>,
    ),
    namespaced(RBAC, "Role", "roles", &[], through::<rbac::Role>),
    namespaced(RBAC, "RoleBinding", "rolebindings", &[], through::<rbac::RoleBinding>),
    cluster(RBAC, "ClusterRole", "clusterroles", &[], through::<rbac::ClusterRole>),
    cluster(
        RBAC,
        "ClusterRoleBinding",
        "clusterrolebindings",
        &[],
        through::<rbac::ClusterRoleBinding>,
    ),
    cluster(
        ADMISSION,
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        &[],
        through::<admission::ValidatingWebhookConfiguration>,
    ),
    cluster(
        ADMISSION,
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        &[],
        through::<admission::MutatingWebhookConfiguration>,
    ),
];

/// Every built-in resource, in the order of discovery.
pub(crate) fn resources() -> Vec<Arc<Resource>> {
    ROWS.iter().map(|row| Arc::new(row.resource())).collect()
}

impl Row {
    fn resource(&self) -> Resource {
        let collection = match (self.group, self.plural) {
            // One store, two views (sandbox.md §4.5).
            ("events.k8s.io", "events") => "events".into(),
            (group, plural) => qualified(plural, group).into(),
        };
        Resource {
            group: self.group.into(),
            version: "v1".into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase(),
            short_names: self.short.iter().map(ToString::to_string).collect(),
            categories: self.categories(),
            scope: self.scope,
            collection,
            generation: self.generation(),
            status: self.status(),
            scale: self.scale(),
            update: self.update(),
            endpoints: self.endpoints(),
            fields: self.fields(),
            source: Source::BuiltIn(self.normalise),
        }
    }

    fn categories(&self) -> Vec<String> {
        match self.kind {
            "Pod" | "Service" | "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" | "Job" => {
                vec!["all".into()]
            }
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" | "CustomResourceDefinition" => {
                vec!["api-extensions".into()]
            }
            _ => Vec::new(),
        }
    }

    fn generation(&self) -> Generation {
        match self.kind {
            "Pod"
            | "PodTemplate"
            | "Deployment"
            | "ReplicaSet"
            | "StatefulSet"
            | "DaemonSet"
            | "Job"
            | "PodDisruptionBudget"
            | "CustomResourceDefinition"
            | "PriorityClass"
            | "DeviceClass"
            | "ResourceSlice" => Generation::Counted,
            _ => Generation::Absent,
        }
    }

    fn status(&self) -> StatusEndpoint {
        match self.kind {
            "Pod"
            | "Node"
            | "Namespace"
            | "Service"
            | "PersistentVolume"
            | "PersistentVolumeClaim"
            | "Deployment"
            | "ReplicaSet"
            | "StatefulSet"
            | "DaemonSet"
            | "Job"
            | "PodDisruptionBudget"
            | "VolumeAttachment"
            | "CustomResourceDefinition"
            | "ResourceClaim" => StatusEndpoint::Separate,
            _ => StatusEndpoint::Absent,
        }
    }

    fn scale(&self) -> Option<ScalePaths> {
        matches!(self.kind, "Deployment" | "ReplicaSet" | "StatefulSet").then(|| ScalePaths {
            spec_replicas: "/spec/replicas".into(),
            status_replicas: "/status/replicas".into(),
            label_selector: None,
        })
    }

    fn update(&self) -> UpdateRules {
        match (self.group, self.kind) {
            ("coordination.k8s.io", "Lease") => UpdateRules::VersionedUpsert,
            (_, "Event" | "Service") | (RBAC, _) => UpdateRules::Upsert,
            ("policy", _) | (ADMISSION, _) | (STORAGE, "CSINode" | "CSIDriver" | "VolumeAttachment") => {
                UpdateRules::Versioned
            }
            _ => UpdateRules::Unconditional,
        }
    }

    fn endpoints(&self) -> Endpoints {
        match self.kind {
            "Namespace" => Endpoints::NoDeleteCollection,
            "Binding" | "SelfSubjectAccessReview" | "SelfSubjectReview" => Endpoints::CreateOnly,
            _ => Endpoints::All,
        }
    }

    fn fields(&self) -> Vec<SelectableField> {
        let mut names: Vec<(&str, &str)> = vec![("metadata.name", "/metadata/name")];
        if (self.group, self.kind) != ("", "Node") && self.kind != "ResourceSlice" {
            names.push(("metadata.namespace", "/metadata/namespace"));
        }
        names.extend_from_slice(match (self.group, self.kind) {
            ("", "Pod") => &[
                ("spec.nodeName", "/spec/nodeName"),
                ("spec.restartPolicy", "/spec/restartPolicy"),
                ("spec.schedulerName", "/spec/schedulerName"),
                ("spec.serviceAccountName", "/spec/serviceAccountName"),
                ("spec.hostNetwork", "/spec/hostNetwork"),
                ("status.phase", "/status/phase"),
                ("status.podIP", "/status/podIP"),
                ("status.podIPs", "/status/podIPs/0/ip"),
                ("status.nominatedNodeName", "/status/nominatedNodeName"),
            ],
            ("", "Node") => &[("spec.unschedulable", "/spec/unschedulable")],
            // Stored in the core form; the selectors of both groups look at it.
            ("" | "events.k8s.io", "Event") => &[
                ("involvedObject.kind", "/involvedObject/kind"),
                ("involvedObject.namespace", "/involvedObject/namespace"),
                ("involvedObject.name", "/involvedObject/name"),
                ("involvedObject.uid", "/involvedObject/uid"),
                ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
                ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
                ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
                ("reason", "/reason"),
                ("reportingComponent", "/reportingComponent"),
                ("source", "/source/component"),
                ("type", "/type"),
            ],
            ("", "Namespace") => &[("status.phase", "/status/phase")],
            ("", "Secret") => &[("type", "/type")],
            ("", "Service") => &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
            ("batch", "Job") => &[("status.successful", "/status/succeeded")],
            (DRA, "ResourceSlice") => &[("spec.nodeName", "/spec/nodeName"), ("spec.driver", "/spec/driver")],
            _ => &[],
        });
        names
            .into_iter()
            .map(|(name, pointer)| SelectableField {
                name: if self.group == "events.k8s.io" {
                    regarding_name(name)
                } else {
                    name.into()
                },
                pointer: pointer.into(),
            })
            .collect()
    }
}

/// The events.k8s.io name of a core event's field selector.
fn regarding_name(name: &str) -> String {
    match name {
        "reportingComponent" => "reportingController".into(),
        name => name.replace("involvedObject.", "regarding."),
    }
}
