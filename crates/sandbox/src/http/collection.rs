//! Requests to a collection: list, watch, create, deletecollection.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use super::continuation::Continuation;
use super::query::{ListQuery, VersionMatch, bad_option};
use super::render::{ListMeta, Renderer};
use super::{Answer, Call, Http, body};
use crate::object::Object;
use crate::resource::Endpoints;
use crate::status::{ApiError, FieldError};
use crate::store::Snapshot;

impl Http {
    pub(super) async fn collection(&self, call: &Call) -> Result<Answer, ApiError> {
        match call.method {
            Method::GET if call.query.flag("watch") || call.path.watch => self.watch(call),
            Method::GET => self.list(call).await,
            Method::POST => self.create(call),
            Method::DELETE if call.resource.endpoints == Endpoints::All => self.delete_collection(call),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    pub(super) fn renderer(&self, call: &Call) -> Renderer {
        Renderer::new(&call.resource, call.accepted.view, &call.query, self.server.clock.now())
    }

    async fn list(&self, call: &Call) -> Result<Answer, ApiError> {
        let query = call.query.list(&call.resource)?;
        check_list_options(&query)?;
        let namespace = call.path.namespace.as_deref().unwrap_or_default();
        let (snapshot, after) = self.snapshot(call, &query, namespace).await?;
        // "Anything goes" is answered from memory, which does not page.
        let limit = if query.resource_version == "0" && query.continue_token.is_empty() {
            0
        } else {
            query.limit
        };

        let from = after.map_or(0, |after| {
            snapshot.objects.partition_point(|object| *object.key <= *after)
        });
        let candidates = &snapshot.objects[from..];
        let page_size = if limit == 0 { usize::MAX } else { limit };
        let mut page: Vec<&Arc<Object>> = Vec::new();
        let mut rest = 0;
        let mut more = false;
        for (index, object) in candidates.iter().enumerate() {
            if !query.selector.is_empty() && !query.selector.matches(object) {
                continue;
            }
            if page.len() == page_size {
                more = true;
                rest = candidates.len() - index;
                break;
            }
            page.push(object);
        }
        let mut meta = ListMeta {
            resource_version: snapshot.revision.to_string(),
            ..ListMeta::default()
        };
        if let (true, Some(last)) = (more, page.last()) {
            let token = Continuation {
                revision: snapshot.revision,
                after: last.key.to_string(),
            };
            meta.continue_token = token.encode();
            meta.remaining = query.selector.is_empty().then_some(rest);
        }
        Ok(Answer::json(200, self.renderer(call).list(page.into_iter(), &meta)))
    }

    /// The objects that a list reads, at the revision it asks for, and the key it goes on after.
    async fn snapshot(
        &self,
        call: &Call,
        query: &ListQuery,
        namespace: &str,
    ) -> Result<(Snapshot, Option<String>), ApiError> {
        let collection = &call.resource.collection;
        if !query.continue_token.is_empty() {
            let token = Continuation::decode(&query.continue_token)?;
            if token.revision == 0 {
                return Ok((self.server.store.list(collection, namespace), Some(token.after)));
            }
            return match self.server.store.list_at(collection, namespace, token.revision) {
                Ok(snapshot) => Ok((snapshot, Some(token.after))),
                Err(_) => {
                    let mut error = ApiError::expired(
                        "The provided continue parameter is too old to display a consistent list result. You can start \
                         a new list without the continue parameter, or use the continue token in this response to \
                         retrieve the remainder of the results. Continuing with the provided token results in an \
                         inconsistent list - objects that were created, modified, or deleted between the time the \
                         first chunk was returned and now may show up in the list.",
                    );
                    error.continue_token = Some(
                        Continuation {
                            revision: 0,
                            after: token.after,
                        }
                        .encode(),
                    );
                    Err(error)
                }
            };
        }
        let version: u64 = match query.resource_version.as_str() {
            "" => 0,
            text => text.parse().map_err(|_| {
                let detail = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
                ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: {detail}"))
            })?,
        };
        if version > 0 {
            self.reach(version).await?;
        }
        if query.version_match == Some(VersionMatch::Exact) {
            let too_old = |_| ApiError::expired("The resourceVersion for the provided list is too old.");
            let snapshot = self
                .server
                .store
                .list_at(collection, namespace, version)
                .map_err(too_old)?;
            return Ok((snapshot, None));
        }
        Ok((self.server.store.list(collection, namespace), None))
    }

    fn create(&self, call: &Call) -> Result<Answer, ApiError> {
        let mut options = call.query.write("CreateOptions")?;
        options.repeated_fields = body::duplicates(&call.content_type, &call.body);
        let resource = &call.resource;
        let namespace = call.path.namespace.as_deref().unwrap_or_default();
        let value = body::object(resource, &call.content_type, &call.body)?;
        match resource.kind.as_str() {
            "Binding" if resource.group.is_empty() => {
                let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.server.bind(namespace, &name, &value, &options)?;
                return Ok(Answer::value(201, &created_status()));
            }
            "SelfSubjectAccessReview" | "SelfSubjectReview" if !resource.is_custom() => {
                return Ok(Answer::value(201, &review(&resource.kind, value)));
            }
            _ => {}
        }
        check_namespace(&value, namespace, resource.is_namespaced())?;
        let written = self.server.create(resource, namespace, value, &options)?;
        let body = self.renderer(call).object(&written.object);
        Ok(Answer::json(201, body).with_warnings(written.warnings))
    }

    fn delete_collection(&self, call: &Call) -> Result<Answer, ApiError> {
        let query = call.query.list(&call.resource)?;
        let options = body::delete_options(&call.content_type, &call.body, call.query.delete()?)?;
        let namespace = call.path.namespace.as_deref().unwrap_or_default();
        let snapshot = self.server.store.list(&call.resource.collection, namespace);
        let chosen: Vec<Arc<Object>> = snapshot
            .objects
            .into_iter()
            .filter(|object| query.selector.matches(object))
            .collect();
        for object in &chosen {
            match self
                .server
                .delete(&call.resource, &object.namespace, &object.name, &options)
            {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let meta = ListMeta {
            resource_version: self.server.store.revision().to_string(),
            ..ListMeta::default()
        };
        Ok(Answer::json(200, self.renderer(call).list(chosen.iter(), &meta)))
    }
}

/// Refuses combinations of list options that contradict each other.
fn check_list_options(query: &ListQuery) -> Result<(), ApiError> {
    let forbid = |field: &str, why: &str| Err(bad_option("ListOptions", FieldError::forbidden(field, why)));
    if query.send_initial_events.is_some() {
        return forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if !query.continue_token.is_empty() {
        if !query.resource_version.is_empty() && query.resource_version != "0" {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        if query.version_match.is_some() {
            return forbid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
    }
    match (query.version_match, query.resource_version.as_str()) {
        (Some(_), "") => forbid(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (Some(VersionMatch::Exact), "0") => forbid(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ),
        _ => Ok(()),
    }
}

/// The namespace in a body must be the one in the path.
pub(super) fn check_namespace(value: &Value, namespace: &str, namespaced: bool) -> Result<(), ApiError> {
    let given = value["metadata"]["namespace"].as_str().unwrap_or_default();
    if given.is_empty() || given == namespace || !namespaced {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}

/// The answer to a binding or an eviction.
pub(super) fn created_status() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// Every caller is `system:masters` and may do everything.
fn review(kind: &str, mut value: Value) -> Value {
    value["status"] = match kind {
        "SelfSubjectAccessReview" => json!({"allowed": true, "reason": "the sandbox allows everything"}),
        _ => json!({"userInfo": {"username": "sandbox", "groups": ["system:masters", "system:authenticated"]}}),
    };
    let api_version = if kind == "SelfSubjectReview" {
        "authentication.k8s.io/v1"
    } else {
        "authorization.k8s.io/v1"
    };
    value["kind"] = kind.into();
    value["apiVersion"] = api_version.into();
    value
}
