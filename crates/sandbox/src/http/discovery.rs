//! Discovery: which groups, versions and resources there are, in the aggregated and in the legacy form.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::Answer;
use crate::resource::{Endpoints, Resource};
use crate::server::Server;
use crate::status::ApiError;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Which half of the aggregated form is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// `/api`
    Core,
    /// `/apis`
    Groups,
}

/// A subresource as discovery shows it.
struct Subresource {
    name: &'static str,
    group: &'static str,
    version: &'static str,
    kind: String,
    verbs: &'static [&'static str],
}

fn subresources(resource: &Resource) -> Vec<Subresource> {
    const OBJECT: &[&str] = &["get", "patch", "update"];
    let own = |name, verbs| Subresource {
        name,
        group: "",
        version: "",
        kind: resource.kind.clone(),
        verbs,
    };
    let mut found = Vec::new();
    if resource.has_status() {
        found.push(own("status", OBJECT));
    }
    if resource.scale.is_some() {
        found.push(Subresource {
            name: "scale",
            group: "autoscaling",
            version: "v1",
            kind: "Scale".into(),
            verbs: OBJECT,
        });
    }
    if resource.is("", "Pod") {
        found.push(Subresource {
            name: "binding",
            group: "",
            version: "",
            kind: "Binding".into(),
            verbs: &["create"],
        });
        found.push(Subresource {
            name: "eviction",
            group: "policy",
            version: "v1",
            kind: "Eviction".into(),
            verbs: &["create"],
        });
        found.push(own("log", &["get"]));
    }
    if resource.is("", "Namespace") {
        found.push(own("finalize", &["update"]));
    }
    found
}

/// Resources by group, then by version, in order of preference.
fn by_group(server: &Server) -> IndexMap<String, IndexMap<String, Vec<Arc<Resource>>>> {
    let mut groups: IndexMap<String, IndexMap<String, Vec<Arc<Resource>>>> = IndexMap::new();
    for resource in server.resources() {
        groups
            .entry(resource.group.clone())
            .or_default()
            .entry(resource.version.clone())
            .or_default()
            .push(resource);
    }
    for versions in groups.values_mut() {
        versions.sort_by(|left, _, right, _| {
            crate::server::version_priority(right).cmp(&crate::server::version_priority(left))
        });
    }
    groups
}

pub(crate) fn aggregated(server: &Server, part: Part) -> Answer {
    let items: Vec<Value> = by_group(server)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == (part == Part::Core))
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .map(|(version, resources)| {
                    let resources: Vec<Value> =
                        resources.iter().map(|resource| aggregated_resource(resource)).collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    Answer {
        content_type: Some(AGGREGATED),
        ..Answer::value(200, &list)
    }
}

fn aggregated_resource(resource: &Resource) -> Value {
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": if resource.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = resource.short_names.clone().into();
    }
    if !resource.categories.is_empty() {
        entry["categories"] = resource.categories.clone().into();
    }
    let subs: Vec<Value> = subresources(resource)
        .into_iter()
        .map(|sub| {
            let (group, version) = match sub.version {
                "" => (resource.group.as_str(), resource.version.as_str()),
                version => (sub.group, version),
            };
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": sub.kind},
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subs.is_empty() {
        entry["subresources"] = subs.into();
    }
    entry
}

pub(crate) fn core_versions() -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
    })
}

fn group_entry(name: &str, versions: &IndexMap<String, Vec<Arc<Resource>>>) -> Value {
    let versions: Vec<Value> = versions
        .keys()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

pub(crate) fn groups(server: &Server) -> Value {
    let groups: Vec<Value> = by_group(server)
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_entry(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

pub(crate) fn group(server: &Server, name: &str) -> Result<Value, ApiError> {
    let groups = by_group(server);
    let versions = groups
        .get(name)
        .filter(|_| !name.is_empty())
        .ok_or_else(ApiError::page_not_found)?;
    let mut entry = group_entry(name, versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Ok(entry)
}

pub(crate) fn resources(server: &Server, group: &str, version: &str) -> Result<Value, ApiError> {
    let groups = by_group(server);
    let versions = groups.get(group).ok_or_else(ApiError::page_not_found)?;
    let custom = versions.values().flatten().all(|resource| resource.is_custom());
    let resources = versions.get(version).ok_or_else(|| {
        if custom {
            ApiError::page_not_found()
        } else {
            ApiError::unknown_resource()
        }
    })?;
    let mut entries = Vec::new();
    for resource in resources {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.is_namespaced(),
            "kind": resource.kind, "verbs": resource.verbs(),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = resource.short_names.clone().into();
        }
        if !resource.categories.is_empty() {
            entry["categories"] = resource.categories.clone().into();
        }
        entries.push(entry);
        for sub in subresources(resource) {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.is_namespaced(), "kind": sub.kind, "verbs": sub.verbs,
            });
            if !sub.version.is_empty() {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            entries.push(entry);
        }
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Ok(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}))
}

/// The paths that `/` lists.
pub(crate) fn paths(server: &Server) -> Vec<String> {
    let mut paths: Vec<String> = ["/api", "/api/v1", "/apis"].map(String::from).into();
    for (group, versions) in by_group(server).iter().filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.keys().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"].map(String::from));
    paths
}

/// Whether objects of a resource can be patched, which is what OpenAPI shows.
pub(crate) fn is_stored(resource: &Resource) -> bool {
    resource.endpoints != Endpoints::CreateOnly
}
