//! The life of CustomResourceDefinitions: they add resources to the server, and take them away.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{DeleteOptions, Outcome, Server, Written};
use crate::crd::{self, Definition, JsonPath};
use crate::object::{Object, SelectableField, metadata_mut};
use crate::resource::{Endpoints, Generation, Resource, ScalePaths, Scope, Source, StatusEndpoint, UpdateRules};
use crate::status::{ApiError, qualified};

const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
pub(super) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

impl Server {
    /// Starts serving a definition's versions and says so in its status, unless its names are taken.
    pub(super) fn establish(&self, definitions: &Resource, object: &Arc<Object>) {
        let mut value = object.value();
        let Ok(definition) = Definition::parse(&value) else {
            return;
        };
        let taken = self.names_taken(&object.name, &definition);
        let status = self.established_status(&value, &definition, taken.as_deref());
        if taken.is_none() {
            let mut registry = self.registry.write();
            registry.remove_custom(&definition.group, &definition.names.plural);
            for version in by_priority(&definition) {
                let custom = custom_resource(&definition, version);
                self.store.open(&custom.collection);
                registry.insert(Arc::new(custom));
            }
        }
        if value["status"] != status {
            value["status"] = status;
            let owners = object.owners.clone();
            let fields = &definitions.fields;
            self.store.put(&definitions.collection, |revision| {
                Object::new(value, revision, fields, owners)
            });
        }
    }

    /// Which of a definition's names another one already has: the reason of its condition.
    fn names_taken(&self, name: &str, definition: &Definition) -> Option<String> {
        let others = self.store.list(DEFINITIONS, "").objects;
        others.iter().filter(|other| *other.name != *name).find_map(|other| {
            let other = Definition::parse(&other.value()).ok()?;
            if other.group != definition.group {
                return None;
            }
            let (ours, theirs) = (&definition.names, &other.names);
            if ours.plural == theirs.plural {
                Some("PluralConflict".to_owned())
            } else if ours.kind == theirs.kind {
                Some("KindConflict".to_owned())
            } else if ours.list_kind == theirs.list_kind {
                Some("ListKindConflict".to_owned())
            } else {
                None
            }
        })
    }

    fn established_status(&self, value: &Value, definition: &Definition, taken: Option<&str>) -> Value {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            let old = value["status"]["conditions"].as_array().into_iter().flatten();
            let since = old
                .filter(|condition| condition["type"] == kind && condition["status"] == status)
                .map(|condition| condition["lastTransitionTime"].clone())
                .next()
                .unwrap_or_else(|| self.now_text());
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
        };
        let conditions = match taken {
            None => vec![
                condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
                condition(
                    "Established",
                    "True",
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                ),
            ],
            Some(reason) => vec![
                condition("NamesAccepted", "False", reason, "the names are already in use"),
                condition("Established", "False", "NotAccepted", "not all names are accepted"),
            ],
        };
        let mut status = json!({
            "conditions": conditions,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": [definition.storage_version().map_or("", |version| &version.name)],
        });
        if taken.is_none() {
            status["acceptedNames"] = value["spec"]["names"].clone();
        }
        status
    }

    /// Deletes a definition: first its objects, then the resource itself.
    pub(super) fn delete_definition(
        &self,
        definitions: &Resource,
        current: &Arc<Object>,
        options: &DeleteOptions,
    ) -> Written {
        let mut value = current.value();
        if options.dry_run {
            return Written {
                object: Arc::clone(current),
                outcome: Outcome::Removed,
                warnings: Vec::new(),
            };
        }
        if !current.terminating {
            let now = self.now_text();
            let metadata = metadata_mut(&mut value);
            metadata.insert("deletionTimestamp".into(), now.clone());
            metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
            let held = metadata.entry("finalizers").or_insert_with(|| json!([]));
            if let Some(held) = held.as_array_mut().filter(|held| !held.contains(&CLEANUP.into())) {
                held.push(CLEANUP.into());
            }
            if let Some(conditions) = value["status"]["conditions"].as_array_mut() {
                conditions.push(json!({
                    "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
                    "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
                    "lastTransitionTime": now,
                }));
            }
            let owners = current.owners.clone();
            let fields = &definitions.fields;
            self.store.put(&definitions.collection, |revision| {
                Object::new(value, revision, fields, owners)
            });
        }
        if let Some(custom) = self.custom_resource_of(current) {
            for object in self.store.list(&custom.collection, "").objects {
                // Objects with finalizers stay until these are released; the definition waits for them.
                let _ = self.delete_locked(&custom, &object.namespace, &object.name, &DeleteOptions::default());
            }
        }
        self.finish_definition(&current.name);
        match self.store.get(DEFINITIONS, &current.name) {
            Some(object) => Written {
                object,
                outcome: Outcome::Terminating,
                warnings: Vec::new(),
            },
            None => Written {
                object: Arc::clone(current),
                outcome: Outcome::Terminating,
                warnings: Vec::new(),
            },
        }
    }

    /// Removes a terminating definition once its last object is gone.
    pub(super) fn finish_definition(&self, name: &str) {
        let Some(current) = self
            .store
            .get(DEFINITIONS, name)
            .filter(|definition| definition.terminating)
        else {
            return;
        };
        let custom = self.custom_resource_of(&current);
        if custom
            .as_ref()
            .is_some_and(|custom| !self.store.is_empty(&custom.collection))
        {
            return;
        }
        let mut value = current.value();
        let held = value["metadata"]["finalizers"].as_array_mut();
        if let Some(held) = held {
            held.retain(|finalizer| finalizer != CLEANUP);
            if !held.is_empty() {
                return;
            }
        }
        if let Some(custom) = custom {
            self.registry.write().remove_custom(&custom.group, &custom.plural);
            self.store.end_watches(&custom.collection);
        }
        self.store.remove(DEFINITIONS, name);
    }

    fn custom_resource_of(&self, definition: &Object) -> Option<Arc<Resource>> {
        let (plural, group) = definition.name.split_once('.')?;
        self.resource(group, plural).filter(|resource| resource.is_custom())
    }
}

/// Fills in the defaults of a definition and checks it.
pub(crate) fn admit(body: &mut Value) -> Result<(), Vec<crd::FieldError>> {
    let kind = body["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(names) = body["spec"]["names"].as_object_mut() {
        names.entry("singular").or_insert_with(|| kind.to_lowercase().into());
        names.entry("listKind").or_insert_with(|| format!("{kind}List").into());
    }
    if let Some(spec) = body["spec"].as_object_mut() {
        spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    }
    Definition::parse(body).map(|_| ())
}

/// Served versions, the preferred one first: v2 > v1 > v1beta1 > v1alpha1.
fn by_priority(definition: &Definition) -> Vec<&crd::Version> {
    let mut versions: Vec<&crd::Version> = definition.versions.iter().filter(|version| version.served).collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version_priority(&version.name)));
    versions
}

/// Sorts as Kubernetes does: stable above beta above alpha, then by number; other names last.
pub(crate) fn version_priority(name: &str) -> (u8, u64, u64) {
    let parse = || -> Option<(u8, u64, u64)> {
        let rest = name.strip_prefix('v')?;
        let digits = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let (level, minor) = match &rest[digits..] {
            "" => (3, 0),
            beta if beta.starts_with("beta") => (2, beta[4..].parse().ok()?),
            alpha if alpha.starts_with("alpha") => (1, alpha[5..].parse().ok()?),
            _ => return None,
        };
        Some((level, major, minor))
    };
    parse().unwrap_or((0, 0, 0))
}

fn custom_resource(definition: &Definition, version: &crd::Version) -> Resource {
    let names = &definition.names;
    let scope = match definition.scope {
        crd::Scope::Namespaced => Scope::Namespaced,
        crd::Scope::Cluster => Scope::Cluster,
    };
    let mut fields = vec![SelectableField {
        name: "metadata.name".into(),
        pointer: "/metadata/name".into(),
    }];
    if scope == Scope::Namespaced {
        let pointer = "/metadata/namespace".into();
        fields.push(SelectableField {
            name: "metadata.namespace".into(),
            pointer,
        });
    }
    fields.extend(version.selectable_fields.iter().map(|path| SelectableField {
        name: path.as_str().trim_start_matches('.').to_owned(),
        pointer: json_pointer(path),
    }));
    Resource {
        group: definition.group.clone(),
        version: version.name.clone(),
        kind: names.kind.clone(),
        list_kind: names.list_kind.clone(),
        plural: names.plural.clone(),
        singular: names.singular.clone(),
        short_names: names.short_names.clone(),
        categories: names.categories.clone(),
        scope,
        collection: qualified(&names.plural, &definition.group).into(),
        generation: Generation::Counted,
        status: if version.has_status {
            StatusEndpoint::Separate
        } else {
            StatusEndpoint::Absent
        },
        scale: version.scale.as_ref().map(|scale| ScalePaths {
            spec_replicas: json_pointer(&scale.spec_replicas),
            status_replicas: json_pointer(&scale.status_replicas),
            label_selector: scale.label_selector.as_ref().map(json_pointer),
        }),
        update: UpdateRules::Versioned,
        endpoints: Endpoints::All,
        fields,
        source: Source::Custom(Arc::new(version.clone())),
    }
}

fn json_pointer(path: &JsonPath) -> String {
    path.plain_fields()
        .unwrap_or_default()
        .iter()
        .map(|field| format!("/{field}"))
        .collect()
}

impl Server {
    /// Refuses a definition that a real server would refuse.
    pub(super) fn check_definition(body: &mut Value, name: &str) -> Result<(), ApiError> {
        admit(body)
            .map_err(|errors| ApiError::invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, errors))
    }
}
