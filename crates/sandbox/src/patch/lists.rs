//! How the items of a list are told apart when a strategic or server-side patch meets it.

use serde_json::Value;

use crate::crd::{AdditionalProperties, ListType, MapType, Schema};
use crate::resource::{Resource, Source};

/// What a patch does with a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListRule {
    /// It is replaced as a whole.
    Atomic,
    /// Scalars are united.
    Set,
    /// Items are merged if these keys agree.
    Keyed(Vec<String>),
}

/// Finds the rule of a list by its path (names of fields; list items add no step).
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListRules<'a> {
    BuiltIn { group: &'a str, kind: &'a str },
    Custom(&'a Schema),
}

impl<'a> ListRules<'a> {
    pub(crate) fn of(resource: &'a Resource) -> Self {
        match &resource.source {
            Source::BuiltIn(_) => Self::BuiltIn {
                group: &resource.group,
                kind: &resource.kind,
            },
            Source::Custom(version) => Self::Custom(version.schema.root()),
        }
    }

    pub(crate) fn list(&self, path: &[&str]) -> ListRule {
        match self {
            Self::BuiltIn { group, kind } => built_in(group, kind, path),
            Self::Custom(schema) => match path {
                ["metadata", "finalizers"] => ListRule::Set,
                ["metadata", "ownerReferences"] => keyed(&["uid"]),
                path => match follow(schema, path) {
                    Some(schema) => match schema.list_type {
                        ListType::Atomic => ListRule::Atomic,
                        ListType::Set => ListRule::Set,
                        ListType::Map => ListRule::Keyed(schema.list_map_keys.clone()),
                    },
                    None => ListRule::Atomic,
                },
            },
        }
    }

    /// Whether a map is owned and replaced as a whole.
    pub(crate) fn is_atomic_map(&self, path: &[&str]) -> bool {
        match self {
            Self::BuiltIn { .. } => {
                matches!(path, [.., "selector" | "labelSelector" | "namespaceSelector"] if path.len() > 1)
                    || matches!(
                        path,
                        [.., "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]
                    )
                    || matches!(
                        path,
                        [.., "configMapKeyRef" | "secretKeyRef" | "fieldRef" | "resourceFieldRef"]
                    )
            }
            Self::Custom(schema) => follow(schema, path).is_some_and(|schema| schema.map_type == MapType::Atomic),
        }
    }
}

fn follow<'s>(schema: &'s Schema, path: &[&str]) -> Option<&'s Schema> {
    path.iter().try_fold(schema, |schema, step| {
        // A list's items add no step, so look through them.
        let schema = schema.items.as_deref().unwrap_or(schema);
        schema.properties.get(*step).or(match &schema.additional_properties {
            Some(AdditionalProperties::Schema(values)) => Some(values),
            Some(AdditionalProperties::Anything) | None => None,
        })
    })
}

fn keyed(keys: &[&str]) -> ListRule {
    ListRule::Keyed(keys.iter().map(ToString::to_string).collect())
}

fn built_in(group: &str, kind: &str, path: &[&str]) -> ListRule {
    if let [.., "metadata", last] = path {
        return match *last {
            "finalizers" => ListRule::Set,
            "ownerReferences" => keyed(&["uid"]),
            _ => ListRule::Atomic,
        };
    }
    let pod_spec = match (kind, path) {
        ("Pod", ["spec", rest @ ..]) | (_, ["spec", "template", "spec", rest @ ..]) => Some(rest),
        _ => None,
    };
    if let Some(rest) = pod_spec {
        return pod_spec_list(rest);
    }
    match (group, kind, path) {
        (_, _, ["status", "conditions"]) => keyed(&["type"]),
        ("", "Pod", ["status", "podIPs" | "hostIPs"]) => keyed(&["ip"]),
        ("", "Pod", ["status", "resourceClaimStatuses"]) => keyed(&["name"]),
        ("", "Node", ["status", "addresses"]) => keyed(&["type"]),
        ("", "Node", ["spec", "podCIDRs"]) => ListRule::Set,
        ("", "Service", ["spec", "ports"]) => keyed(&["port"]),
        ("", "ServiceAccount", ["secrets" | "imagePullSecrets"]) => keyed(&["name"]),
        ("storage.k8s.io", "CSINode", ["spec", "drivers"]) => keyed(&["name"]),
        ("resource.k8s.io", "ResourceClaim", ["status", "reservedFor"]) => keyed(&["uid"]),
        ("admissionregistration.k8s.io", _, ["webhooks"]) => keyed(&["name"]),
        _ => ListRule::Atomic,
    }
}

fn pod_spec_list(path: &[&str]) -> ListRule {
    match path {
        [
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "imagePullSecrets"
            | "schedulingGates"
            | "resourceClaims",
        ] => keyed(&["name"]),
        ["hostAliases"] => keyed(&["ip"]),
        ["topologySpreadConstraints"] => keyed(&["topologyKey"]),
        ["containers" | "initContainers" | "ephemeralContainers", "env"] => keyed(&["name"]),
        ["containers" | "initContainers" | "ephemeralContainers", "ports"] => keyed(&["containerPort"]),
        ["containers" | "initContainers" | "ephemeralContainers", "volumeMounts"] => keyed(&["mountPath"]),
        ["containers" | "initContainers" | "ephemeralContainers", "volumeDevices"] => keyed(&["devicePath"]),
        _ => ListRule::Atomic,
    }
}

/// Whether two list items agree in all keys.
pub(crate) fn same_item(left: &Value, right: &Value, keys: &[String]) -> bool {
    keys.iter().all(|key| left.get(key) == right.get(key))
}
