//! Requests to one object and to its subresources.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::collection::{check_namespace, created_status};
use super::query::bad_option;
use super::{Answer, AnswerBody, Call, Http, body};
use crate::object::metadata_mut;
use crate::server::{Endpoint, Outcome, Patch, WriteOptions, Written};
use crate::status::{ApiError, FieldError};

impl Http {
    pub(super) async fn item(&self, call: &Call, name: &str) -> Result<Answer, ApiError> {
        match call.method {
            Method::GET => {
                if call.path.watch {
                    return Err(ApiError::unknown_resource());
                }
                let version = call.query.get("resourceVersion").parse().unwrap_or(0);
                self.reach(version).await?;
                let object = self.server.get(&call.resource, namespace(call), name)?;
                Ok(Answer::json(200, self.renderer(call).object(&object)))
            }
            Method::PUT => self.put(call, name, Endpoint::Main),
            Method::PATCH => self.patch(call, name, Endpoint::Main),
            Method::DELETE => self.delete(call, name),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    pub(super) fn subresource(&self, call: &Call, name: &str, subresource: &str) -> Result<Answer, ApiError> {
        let resource = &call.resource;
        match (subresource, &call.method) {
            ("status", method) if resource.has_status() => match *method {
                Method::GET => {
                    let object = self.server.get(resource, namespace(call), name)?;
                    Ok(Answer::json(200, self.renderer(call).object(&object)))
                }
                Method::PUT => self.put(call, name, Endpoint::Status),
                Method::PATCH => self.patch(call, name, Endpoint::Status),
                _ => Err(ApiError::method_not_allowed()),
            },
            ("scale", method) if resource.scale.is_some() => self.scale(call, name, method),
            ("finalize", &Method::PUT) if resource.is("", "Namespace") => self.put(call, name, Endpoint::Finalize),
            ("binding", &Method::POST) if resource.is("", "Pod") => {
                let options = call.query.write("CreateOptions")?;
                let value = body::tree(&call.content_type, &call.body, "Binding")?;
                self.server.bind(namespace(call), name, &value, &options)?;
                Ok(Answer::value(201, &created_status()))
            }
            ("eviction", &Method::POST) if resource.is("", "Pod") => self.evict(call, name),
            ("log", &Method::GET) if resource.is("", "Pod") => self.log(call, name),
            ("exec" | "attach" | "portforward" | "proxy", _) if resource.is("", "Pod") => Err(no_containers()),
            (sub, _) if resource.is("", "Node") && sub.starts_with("proxy") => Err(no_containers()),
            ("binding" | "eviction" | "finalize", _) if resource.is("", "Pod") || resource.is("", "Namespace") => {
                Err(ApiError::method_not_allowed())
            }
            _ => Err(if resource.is_custom() {
                ApiError::page_not_found()
            } else {
                ApiError::unknown_resource()
            }),
        }
    }

    fn put(&self, call: &Call, name: &str, endpoint: Endpoint) -> Result<Answer, ApiError> {
        let mut options = call.query.write("UpdateOptions")?;
        options.repeated_fields = body::duplicates(&call.content_type, &call.body);
        let value = body::object(&call.resource, &call.content_type, &call.body)?;
        check_name(&value, name)?;
        check_namespace(&value, namespace(call), call.resource.is_namespaced())?;
        let written = self
            .server
            .update(&call.resource, namespace(call), name, endpoint, value, &options)?;
        Ok(self.written(call, &written))
    }

    fn patch(&self, call: &Call, name: &str, endpoint: Endpoint) -> Result<Answer, ApiError> {
        let options = call.query.write("PatchOptions")?;
        let patch = body::patch(&call.resource, &call.content_type, &call.body, call.query.flag("force"))?;
        if let Patch::Apply { wanted, .. } = &patch {
            if options.field_manager.is_empty() {
                let error = FieldError::required("fieldManager", "is required for apply patch");
                return Err(bad_option("PatchOptions", error));
            }
            if let Some(given) = wanted["metadata"]["name"].as_str().filter(|given| *given != name) {
                let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
                return Err(ApiError::bad_request(message));
            }
            check_namespace(wanted, namespace(call), call.resource.is_namespaced())?;
        } else if call.query.has("force") {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(bad_option("PatchOptions", error));
        }
        let written = self
            .server
            .patch(&call.resource, namespace(call), name, endpoint, &patch, &options)?;
        Ok(self.written(call, &written))
    }

    fn written(&self, call: &Call, written: &Written) -> Answer {
        let code = if written.outcome == Outcome::Created { 201 } else { 200 };
        Answer::json(code, self.renderer(call).object(&written.object)).with_warnings(written.warnings.clone())
    }

    fn delete(&self, call: &Call, name: &str) -> Result<Answer, ApiError> {
        let options = body::delete_options(&call.content_type, &call.body, call.query.delete()?)?;
        let resource = &call.resource;
        let written = self.server.delete(resource, namespace(call), name, &options)?;
        let body: Bytes = match written.outcome {
            // Pods show their last state; other kinds that are gone answer with a Status.
            Outcome::Removed if !resource.is("", "Pod") => {
                let mut details = json!({"name": name, "kind": resource.plural, "uid": &*written.object.uid});
                if !resource.group.is_empty() {
                    details["group"] = resource.group.as_str().into();
                }
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
                    .to_string()
                    .into()
            }
            _ => self.renderer(call).object(&written.object),
        };
        Ok(Answer::json(200, body).with_warnings(written.warnings))
    }

    fn scale(&self, call: &Call, name: &str, method: &Method) -> Result<Answer, ApiError> {
        let resource = &call.resource;
        let current = self.server.scale(resource, namespace(call), name)?;
        let wanted = match *method {
            Method::GET => return Ok(Answer::value(200, &current?)),
            Method::PUT => body::tree(&call.content_type, &call.body, "Scale")?,
            Method::PATCH => {
                let mut value = match current {
                    Ok(current) => current,
                    Err(_) => json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": name}}),
                };
                // Only a version that the patch itself names is a precondition.
                metadata_mut(&mut value).remove("resourceVersion");
                match body::patch(resource, &call.content_type, &call.body, false)? {
                    Patch::Json(operations) => crate::patch::json::apply(&mut value, &operations)?,
                    Patch::Merge(change) | Patch::Strategic(change) => crate::patch::merge::merge(&mut value, &change),
                    Patch::Apply { wanted, .. } => crate::patch::merge::merge(&mut value, &wanted),
                }
                value
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        let options = call.query.write("UpdateOptions")?;
        let scaled = self
            .server
            .set_scale(resource, namespace(call), name, &wanted, &options)?;
        Ok(Answer::value(200, &scaled))
    }

    fn evict(&self, call: &Call, name: &str) -> Result<Answer, ApiError> {
        let value = body::tree(&call.content_type, &call.body, "Eviction")?;
        let given = value["metadata"]["name"].as_str().unwrap_or_default();
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options = body::merge_delete_options(&value["deleteOptions"], Default::default())?;
        options.dry_run |= call.query.dry_run("CreateOptions")?;
        self.server.evict(namespace(call), name, &options)?;
        // kube-rs 5 spells the options wrongly; a real server warns and goes on without them.
        let warnings = value
            .get("delete_options")
            .map(|_| "unknown field \"delete_options\"".to_owned())
            .into_iter()
            .collect();
        Ok(Answer::value(201, &created_status()).with_warnings(warnings))
    }

    fn log(&self, call: &Call, name: &str) -> Result<Answer, ApiError> {
        let pod = self.server.get(&call.resource, namespace(call), name)?.value();
        if pod["spec"]["nodeName"].as_str().is_none() {
            return Ok(Answer {
                body: AnswerBody::Text(String::new()),
                ..Answer::value(200, &Value::Null)
            });
        }
        Err(no_containers())
    }
}

fn no_containers() -> ApiError {
    ApiError::new(
        405,
        "MethodNotAllowed",
        "the sandbox runs no containers: there is no output to read, nothing to execute in and nothing to connect to",
    )
}

fn namespace(call: &Call) -> &str {
    call.path.namespace.as_deref().unwrap_or_default()
}

fn check_name(value: &Value, name: &str) -> Result<(), ApiError> {
    match value["metadata"]["name"].as_str().unwrap_or_default() {
        "" => Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        given if given == name => Ok(()),
        given => Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
    }
}

impl crate::server::Server {
    /// Sets the number of replicas through the scale subresource.
    pub(super) fn set_scale(
        &self,
        resource: &crate::resource::Resource,
        namespace: &str,
        name: &str,
        wanted: &Value,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let replicas = match &wanted["spec"]["replicas"] {
            Value::Null => 0,
            value => value.as_i64().ok_or_else(|| {
                ApiError::bad_request(
                    "Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is no integer",
                )
            })?,
        };
        if replicas < 0 {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", &replicas.into(), why);
            return Err(ApiError::invalid("autoscaling", "Scale", name, vec![error]));
        }
        let Some(paths) = &resource.scale else {
            return Err(ApiError::unknown_resource());
        };
        let mut change = Value::from(replicas);
        for step in paths
            .spec_replicas
            .split('/')
            .skip(1)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            change = json!({step: change});
        }
        if let Some(version) = wanted["metadata"]["resourceVersion"]
            .as_str()
            .filter(|version| !version.is_empty())
        {
            metadata_mut(&mut change).insert("resourceVersion".into(), version.into());
        }
        self.patch(
            resource,
            namespace,
            name,
            Endpoint::Main,
            &Patch::Merge(change),
            options,
        )?;
        self.scale(resource, namespace, name)?
    }
}
