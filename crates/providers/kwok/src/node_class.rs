//! KWOKNodeClass: the settings of simulated nodes.

// Every print column has a name and a path; clippy takes them for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use std::time::Duration;

use karpenter_api::{
    conditions::{Condition, StatusConditions},
    crd::Crd,
    duration::GoDuration,
    schema,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How simulated nodes behave.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.kwok.sh",
    version = "v1alpha1",
    kind = "KWOKNodeClass",
    root = "KwokNodeClass",
    plural = "kwoknodeclasses",
    doc = "KWOKNodeClass says how the nodes of the KWOK provider, which has no machines, behave.",
    status = "KwokNodeClassStatus",
    category = "karpenter",
    shortname = "kwoknc",
    shortname = "kwokncs",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
// Everything in it is optional, so a manifest may leave it out.
#[schemars(inline, extend("default" = json!({})))]
pub struct KwokNodeClassSpec {
    /// How long after its launch a node joins the cluster. Unset is at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration_delay: Option<GoDuration>,
}

/// What is known about the class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// There is nothing to find out about a simulated cloud, so a class is ready as soon as it exists.
#[schemars(inline, extend("default" = json!({ "conditions": [ready()] })))]
pub struct KwokNodeClassStatus {
    /// Whether nodes can be launched with the class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The condition that a class has from the start.
pub(crate) fn ready() -> serde_json::Value {
    json!({
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    })
}

/// The CRD documents of this provider.
pub fn crds() -> Vec<Crd> {
    vec![Crd::of::<KwokNodeClass>()]
}

impl KwokNodeClass {
    /// How long nodes wait before they join.
    pub fn registration_delay(&self) -> Duration {
        let delay = self.spec.node_registration_delay.unwrap_or_default();
        Duration::try_from(delay.as_signed()).unwrap_or_default()
    }
}

impl StatusConditions for KwokNodeClass {
    const DEPENDENTS: &'static [&'static str] = &[];

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;

    use super::*;

    #[test]
    fn the_crd_is_named_as_upstreams() {
        let crd = KwokNodeClass::crd();
        assert_eq!(crd.metadata.name.as_deref(), Some("kwoknodeclasses.karpenter.kwok.sh"));
        assert_eq!(crd.spec.names.kind, "KWOKNodeClass");
        assert_eq!(crd.spec.names.short_names.expect("short names"), ["kwoknc", "kwokncs"]);
        assert_eq!(crd.spec.scope, "Cluster");
    }

    #[test]
    fn a_class_is_ready_by_default() {
        let crds = crds();
        let default = crds[0]
            .schema()
            .pointer("/properties/status/default/conditions/0")
            .expect("a default");
        assert_eq!(default["type"], "Ready");
        assert_eq!(default["status"], "True");
    }

    #[test]
    fn the_delay_is_a_go_duration_and_none_is_zero() {
        let class = |spec: serde_json::Value| -> KwokNodeClass {
            let object = json!({
                "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
                "metadata": {"name": "default"}, "spec": spec,
            });
            serde_json::from_value(object).expect("a class")
        };
        let delayed = class(json!({"nodeRegistrationDelay": "1m30s"}));
        assert_eq!(delayed.registration_delay(), Duration::from_secs(90));
        assert_eq!(class(json!({})).registration_delay(), Duration::ZERO);
    }
}
