//! Deleting objects: preconditions, grace, finalizers, and the order of events that clients rely on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::definitions::DEFINITIONS;
use super::update::finalizers;
use super::{Outcome, Server, Written, time_text};
use crate::admission;
use crate::clock::later;
use crate::object::{Object, metadata_mut};
use crate::resource::{Generation, Resource};
use crate::status::ApiError;

/// `DeleteOptions` of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub precondition_uid: Option<String>,
    pub precondition_version: Option<String>,
    pub dry_run: bool,
}

/// What becomes of an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

impl DeleteOptions {
    /// At once, without waiting for the kubelet.
    pub fn now() -> Self {
        Self {
            grace_period_seconds: Some(0),
            ..Self::default()
        }
    }

    /// Only if the object is still the one with this uid.
    pub fn of_uid(mut self, uid: &str) -> Self {
        self.precondition_uid = Some(uid.to_owned());
        self
    }
}

impl Server {
    /// Deletes an object, or marks it for deletion while finalizers or a grace period keep it.
    pub fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Written, ApiError> {
        let _writer = self.writer.lock();
        self.delete_locked(resource, namespace, name, options)
    }

    /// Deletes an object for a caller that holds the writer's lock.
    pub(super) fn delete_locked(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Written, ApiError> {
        let current = self.get(resource, namespace, name)?;
        check_preconditions(resource, &current, options)?;
        admission::may_delete(resource, &current)?;
        if *resource.collection == *DEFINITIONS {
            return Ok(self.delete_definition(resource, &current, options));
        }
        let old = current.value();
        let mut value = old.clone();
        let mut warnings = Vec::new();
        self.choose_finalizers(resource, &mut value, options, &mut warnings);
        if resource.is("", "Namespace") {
            return Ok(self.delete_namespace(resource, &current, value, options, warnings));
        }
        let is_pod = resource.is("", "Pod");
        let grace = if is_pod { pod_grace(&value, options) } else { 0 };
        if current.terminating {
            if !is_pod {
                return Ok(self.delete_again(resource, &current, old, value, options, warnings));
            }
            let previous = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
            if grace >= previous {
                if previous == 0 {
                    return Ok(self.delete_again(resource, &current, old, value, options, warnings));
                }
                return Ok(Written {
                    object: current,
                    outcome: Outcome::Unchanged,
                    warnings,
                });
            }
        }
        let keeps = grace > 0 || !finalizers(&value).is_empty();
        let marked = self.mark_terminating(resource, value, &old, grace);
        if options.dry_run {
            let object = Arc::new(Object::new(marked, current.resource_version, &resource.fields, None));
            let outcome = if keeps { Outcome::Terminating } else { Outcome::Removed };
            return Ok(Written {
                object,
                outcome,
                warnings,
            });
        }
        if keeps {
            if marked == old {
                return Ok(Written {
                    object: current,
                    outcome: Outcome::Unchanged,
                    warnings,
                });
            }
            let object = self.store_marked(resource, &current, marked);
            return Ok(Written {
                object,
                outcome: Outcome::Terminating,
                warnings,
            });
        }
        if is_pod && marked != old {
            // Watchers of pods see the deletionTimestamp before the pod is gone.
            let last = self.store_marked(resource, &current, marked);
            let object = self.remove_locked(resource, &last);
            return Ok(Written {
                object,
                outcome: Outcome::Removed,
                warnings,
            });
        }
        let object = self.remove_locked(resource, &current);
        Ok(Written {
            object,
            outcome: Outcome::Removed,
            warnings,
        })
    }

    /// A second delete of a kept object: only a changed propagation policy has an effect.
    fn delete_again(
        &self,
        resource: &Resource,
        current: &Arc<Object>,
        old: Value,
        value: Value,
        options: &DeleteOptions,
        warnings: Vec<String>,
    ) -> Written {
        let unchanged = value == old || options.dry_run;
        if finalizers(&value).is_empty() && !options.dry_run {
            let object = self.remove_locked(resource, current);
            return Written {
                object,
                outcome: Outcome::Removed,
                warnings,
            };
        }
        if unchanged {
            return Written {
                object: Arc::clone(current),
                outcome: Outcome::Unchanged,
                warnings,
            };
        }
        let object = self.store_marked(resource, current, value);
        Written {
            object,
            outcome: Outcome::Terminating,
            warnings,
        }
    }

    fn delete_namespace(
        &self,
        resource: &Resource,
        current: &Arc<Object>,
        mut value: Value,
        options: &DeleteOptions,
        warnings: Vec<String>,
    ) -> Written {
        if current.terminating {
            return Written {
                object: Arc::clone(current),
                outcome: Outcome::Unchanged,
                warnings,
            };
        }
        let content_remains = value["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        value["status"]["phase"] = "Terminating".into();
        metadata_mut(&mut value).insert("deletionTimestamp".into(), self.now_text());
        if options.dry_run {
            let object = Arc::new(Object::new(value, current.resource_version, &resource.fields, None));
            return Written {
                object,
                outcome: Outcome::Terminating,
                warnings,
            };
        }
        if !content_remains && finalizers(&value).is_empty() {
            let object = self.remove_locked(resource, current);
            return Written {
                object,
                outcome: Outcome::Removed,
                warnings,
            };
        }
        let object = self.store_marked(resource, current, value);
        Written {
            object,
            outcome: Outcome::Terminating,
            warnings,
        }
    }

    fn choose_finalizers(
        &self,
        resource: &Resource,
        value: &mut Value,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) {
        let policy = options.propagation.unwrap_or_else(|| {
            if resource.is("batch", "Job") {
                warnings.push(
                    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
                     remove them or set propagationPolicy=Orphan to suppress this warning"
                        .into(),
                );
                return Propagation::Orphan;
            }
            // Without a policy, finalizers that were put on the object by hand still count.
            let held = finalizers(value);
            if held.contains(&FOREGROUND) {
                Propagation::Foreground
            } else if held.contains(&ORPHAN) {
                Propagation::Orphan
            } else {
                Propagation::Background
            }
        });
        let wanted = match policy {
            Propagation::Background => None,
            Propagation::Foreground => Some(FOREGROUND),
            Propagation::Orphan => Some(ORPHAN),
        };
        let mut list: Vec<String> = finalizers(value)
            .into_iter()
            .filter(|name| ![ORPHAN, FOREGROUND].contains(name) || Some(*name) == wanted)
            .map(str::to_owned)
            .collect();
        if let Some(wanted) = wanted
            && !list.iter().any(|name| name == wanted)
        {
            list.push(wanted.to_owned());
        }
        let metadata = metadata_mut(value);
        if list.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".into(), list.into());
        }
    }

    /// Sets the deletion fields; a pod's later delete may only shorten its grace.
    fn mark_terminating(&self, resource: &Resource, mut value: Value, old: &Value, grace: i64) -> Value {
        let now = self.clock.now();
        let seconds = |grace: i64| Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let deadline = match old["metadata"]["deletionTimestamp"]
            .as_str()
            .map(str::parse::<Timestamp>)
        {
            Some(Ok(first)) => {
                let previous = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
                let asked = first
                    .saturating_sub(jiff::SignedDuration::from_secs(previous))
                    .unwrap_or(first);
                later(asked, seconds(grace)).max(now)
            }
            _ => later(now, seconds(grace)),
        };
        let first_time = old["metadata"].get("deletionTimestamp").is_none();
        let metadata = metadata_mut(&mut value);
        metadata.insert("deletionTimestamp".into(), time_text(deadline).into());
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        if first_time && resource.generation == Generation::Counted {
            let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            metadata.insert("generation".into(), generation.into());
        }
        value
    }

    fn store_marked(&self, resource: &Resource, current: &Arc<Object>, value: Value) -> Arc<Object> {
        let owners = current.owners.clone();
        let object = self.store.put(&resource.collection, |revision| {
            Object::new(value, revision, &resource.fields, owners)
        });
        self.after_write(resource, &object);
        object
    }

    /// Takes an object out of the store for a caller that holds the writer's lock.
    pub(super) fn remove_locked(&self, resource: &Resource, current: &Arc<Object>) -> Arc<Object> {
        let removed = self.store.remove(&resource.collection, &current.key);
        self.after_removal(resource, current);
        removed.unwrap_or_else(|| Arc::clone(current))
    }
}

fn check_preconditions(resource: &Resource, current: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
    let refuse = |field: &str, wanted: &str, actual: &str| {
        let why = format!(
            "the {field} in the precondition ({wanted}) does not match the {field} in record ({actual}). The object \
             might have been deleted and then recreated"
        );
        Err(ApiError::conflict(&resource.group, &resource.kind, &current.name, why))
    };
    if let Some(uid) = options.precondition_uid.as_deref().filter(|uid| **uid != *current.uid) {
        return refuse("UID", uid, &current.uid);
    }
    let actual = current.resource_version.to_string();
    if let Some(version) = options
        .precondition_version
        .as_deref()
        .filter(|version| **version != *actual)
    {
        return refuse("ResourceVersion", version, &actual);
    }
    Ok(())
}

/// How long a pod gets: what was asked, else what its spec says; nothing if it does not run.
fn pod_grace(pod: &Value, options: &DeleteOptions) -> i64 {
    let scheduled = pod["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !scheduled || finished {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    match options.grace_period_seconds.unwrap_or(own) {
        negative if negative < 0 => 1,
        grace => grace,
    }
}
