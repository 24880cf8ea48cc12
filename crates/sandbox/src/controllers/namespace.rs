//! Empties namespaces that are being deleted, and lets them go when they are empty (sandbox.md §5.2).

use std::sync::Arc;

use serde_json::json;

use super::effects::{Condition, NAMESPACES, set_condition};
use super::manager::{Manager, Task};
use crate::clock::later;
use crate::object::Object;
use crate::server::{DeleteOptions, Endpoint};

impl Manager {
    pub(crate) fn empty_namespace(&mut self, name: &Arc<str>) {
        let Some(namespace) = self.world.namespaces.get(name).cloned() else {
            return;
        };
        let Some(deleted_at) = namespace.metadata.deletion_timestamp.as_ref().map(|t| t.0) else {
            return;
        };
        let now = self.effects.now();
        let start = later(deleted_at, self.timing.namespace_deletion);
        if start > now {
            self.arm(Task::Namespace(Arc::clone(name)), start);
            return;
        }
        let mut remaining = Vec::new();
        for resource in self.effects.server().resources() {
            if !resource.is_namespaced() || !resource.verbs().contains(&"list") {
                continue;
            }
            for object in self.effects.server().list(&resource, name).objects {
                if !object.terminating {
                    let options = DeleteOptions::default().of_uid(&object.uid);
                    let deleted = self.effects.server().delete(&resource, name, &object.name, &options);
                    self.effects.report("empty a namespace", deleted.map(|_| ()));
                }
                if let Ok(left) = self.effects.server().get(&resource, name, &object.name)
                    && left.uid == object.uid
                {
                    remaining.push((resource.qualified_plural(), left));
                }
            }
        }
        remaining.dedup_by(|a, b| a.1.uid == b.1.uid);
        self.report_remaining(name, &remaining);
        if remaining.is_empty() {
            let finalized = self.effects.modify(NAMESPACES, "", name, Endpoint::Finalize, |object| {
                object["spec"]["finalizers"] = json!([]);
                true
            });
            self.effects.report("finalize a namespace", finalized);
        }
    }

    fn report_remaining(&self, name: &str, remaining: &[(String, Arc<Object>)]) {
        let count = |kinds: Vec<(String, usize)>| {
            let parts: Vec<String> = kinds
                .iter()
                .map(|(what, n)| format!("{what} has {n} resource instances"))
                .collect();
            parts.join(", ")
        };
        let content = count(tally(remaining.iter().map(|(plural, _)| plural.clone())));
        let held: Vec<String> = remaining
            .iter()
            .flat_map(|(_, object)| {
                let finalizers = object.value()["metadata"]["finalizers"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                finalizers
                    .into_iter()
                    .filter_map(|f| f.as_str().map(str::to_owned))
                    .collect::<Vec<_>>()
            })
            .collect();
        let finalizers: Vec<String> = tally(held.into_iter())
            .iter()
            .map(|(f, n)| format!("{f} in {n} resource instances"))
            .collect();
        let now = self.effects.now();
        let fine = [
            (
                "NamespaceDeletionDiscoveryFailure",
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            (
                "NamespaceDeletionContentFailure",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
        ];
        let written = self.effects.modify(NAMESPACES, "", name, Endpoint::Status, |object| {
            for (kind, reason, message) in fine {
                set_condition(
                    object,
                    &Condition {
                        kind,
                        status: "False",
                        reason,
                        message,
                    },
                    now,
                );
            }
            let (status, reason, message) = if content.is_empty() {
                ("False", "ContentRemoved", "All content successfully removed".to_owned())
            } else {
                (
                    "True",
                    "SomeResourcesRemain",
                    format!("Some resources are remaining: {content}"),
                )
            };
            let kind = "NamespaceContentRemaining";
            set_condition(
                object,
                &Condition {
                    kind,
                    status,
                    reason,
                    message: &message,
                },
                now,
            );
            let (status, reason, message) = if finalizers.is_empty() {
                (
                    "False",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished".to_owned(),
                )
            } else {
                let list = finalizers.join(", ");
                (
                    "True",
                    "SomeFinalizersRemain",
                    format!("Some content in the namespace has finalizers remaining: {list}"),
                )
            };
            let kind = "NamespaceFinalizersRemaining";
            set_condition(
                object,
                &Condition {
                    kind,
                    status,
                    reason,
                    message: &message,
                },
                now,
            );
            true
        });
        self.effects.report("report on a namespace", written);
    }
}

fn tally(items: impl Iterator<Item = String>) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}
