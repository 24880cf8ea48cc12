//! The scale subresource: replicas without the rest of the object.

use serde_json::{Value, json};

use super::Server;
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::ApiError;

impl Server {
    /// An object's `autoscaling/v1` Scale.
    ///
    /// The outer error is about the object, the inner one about its replicas, which may be unset.
    #[allow(clippy::type_complexity)]
    pub(crate) fn scale(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Result<Value, ApiError>, ApiError> {
        let value = self.get(resource, namespace, name)?.value();
        let Some(paths) = &resource.scale else {
            return Err(ApiError::unknown_resource());
        };
        let Some(replicas) = value.pointer(&paths.spec_replicas).and_then(Value::as_i64) else {
            let path = paths.spec_replicas.replace('/', ".");
            let message = format!("the spec replicas field {path:?} does not exist");
            return Ok(Err(ApiError::new(500, "InternalError", message)));
        };
        let selector = match &paths.label_selector {
            Some(pointer) => value.pointer(pointer).and_then(Value::as_str).map(str::to_owned),
            None if resource.is_custom() => None,
            None => LabelSelector::from_object(&value["spec"]["selector"]).map(|selector| selector.to_string()),
        };
        let metadata = &value["metadata"];
        let mut scale = json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "creationTimestamp": metadata["creationTimestamp"],
            },
            "spec": {"replicas": replicas},
            "status": {"replicas": value.pointer(&paths.status_replicas).and_then(Value::as_i64).unwrap_or(0)},
        });
        if let Some(namespace) = metadata.get("namespace") {
            scale["metadata"]["namespace"] = namespace.clone();
        }
        if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
            scale["status"]["selector"] = selector.into();
        }
        Ok(Ok(scale))
    }
}
