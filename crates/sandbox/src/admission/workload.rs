//! Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and disruption budgets.

use serde_json::{Value, json};

use super::{default, items, pod_spec};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::FieldError;

pub(super) fn on_create(resource: &Resource, body: &mut Value) {
    match resource.kind.as_str() {
        "PodDisruptionBudget" => {
            body["status"] = json!({
                "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            });
        }
        "DaemonSet" => {
            body["status"] = json!({
                "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
            });
        }
        "ReplicaSet" | "StatefulSet" => body["status"] = json!({"replicas": 0}),
        "Job" => generate_job_selector(body),
        _ => {}
    }
    defaults(resource, body);
}

pub(super) fn on_update(resource: &Resource, body: &mut Value) {
    defaults(resource, body);
}

fn defaults(resource: &Resource, body: &mut Value) {
    if let Some(spec) = body.pointer_mut("/spec/template/spec") {
        pod_spec::defaults(spec);
    }
    let generation = body["metadata"]["generation"].as_i64().unwrap_or(1);
    let spec = &mut body["spec"];
    match resource.kind.as_str() {
        "Deployment" => {
            default(spec, "replicas", 1);
            default(spec, "strategy", json!({}));
            default(&mut spec["strategy"], "type", "RollingUpdate");
            if spec["strategy"]["type"] == "RollingUpdate" {
                default(&mut spec["strategy"], "rollingUpdate", json!({}));
                default(&mut spec["strategy"]["rollingUpdate"], "maxUnavailable", "25%");
                default(&mut spec["strategy"]["rollingUpdate"], "maxSurge", "25%");
            }
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "progressDeadlineSeconds", 600);
        }
        "ReplicaSet" => default(spec, "replicas", 1),
        "StatefulSet" => {
            default(spec, "replicas", 1);
            default(spec, "podManagementPolicy", "OrderedReady");
            default(spec, "updateStrategy", json!({"type": "RollingUpdate"}));
            if spec["updateStrategy"]["type"] == "RollingUpdate" {
                default(&mut spec["updateStrategy"], "rollingUpdate", json!({"partition": 0}));
            }
            default(spec, "revisionHistoryLimit", 10);
            default(
                spec,
                "persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            );
        }
        "DaemonSet" => {
            default(spec, "updateStrategy", json!({"type": "RollingUpdate"}));
            if spec["updateStrategy"]["type"] == "RollingUpdate" {
                default(&mut spec["updateStrategy"], "rollingUpdate", json!({}));
                default(&mut spec["updateStrategy"]["rollingUpdate"], "maxUnavailable", 1);
                default(&mut spec["updateStrategy"]["rollingUpdate"], "maxSurge", 0);
            }
            default(spec, "revisionHistoryLimit", 10);
            default(&mut body["metadata"], "annotations", json!({}));
            let annotations = &mut body["metadata"]["annotations"];
            default(
                annotations,
                "deprecated.daemonset.template.generation",
                generation.to_string(),
            );
        }
        "Job" => {
            if spec["completions"].is_null() && spec["parallelism"].is_null() {
                spec["completions"] = 1.into();
            }
            default(spec, "parallelism", 1);
            default(spec, "backoffLimit", 6);
            default(spec, "completionMode", "NonIndexed");
            default(spec, "suspend", false);
            default(spec, "podReplacementPolicy", "TerminatingOrFailed");
            default(spec, "manualSelector", false);
        }
        _ => {}
    }
}

fn generate_job_selector(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let uid = job["metadata"]["uid"].clone();
    let name = job["metadata"]["name"].clone();
    let template = &mut job["spec"]["template"];
    if !template["metadata"].is_object() {
        template["metadata"] = json!({});
    }
    default(&mut template["metadata"], "labels", json!({}));
    for prefix in ["batch.kubernetes.io/", ""] {
        template["metadata"]["labels"][format!("{prefix}controller-uid")] = uid.clone();
        template["metadata"]["labels"][format!("{prefix}job-name")] = name.clone();
    }
    job["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

pub(super) fn validate(resource: &Resource, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match resource.kind.as_str() {
        "PodDisruptionBudget" => budget_errors(&body["spec"]),
        "ControllerRevision" => Vec::new(),
        kind => workload_errors(kind, body, old),
    }
}

fn workload_errors(kind: &str, body: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let spec = &body["spec"];
    let mut errors = Vec::new();
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", &spec["replicas"], why));
    }
    if !spec["selector"].is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if let Some(selector) = LabelSelector::from_object(&spec["selector"]) {
        let labels = &spec["template"]["metadata"]["labels"];
        if !selector.matches(|key| labels[key].as_str()) {
            let why = "`selector` does not match template `labels`";
            errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
        }
    }
    errors.extend(super::immutable("spec.selector", body, old));
    let template = &spec["template"]["spec"];
    errors.extend(pod_spec::validate(template, "spec.template.spec"));
    let policy = template["restartPolicy"].as_str().unwrap_or_default();
    let field = "spec.template.spec.restartPolicy";
    if kind == "Job" {
        if policy == "Always" {
            errors.push(FieldError::not_supported(field, &policy.into(), ["OnFailure", "Never"]));
        }
        errors.extend(super::immutable("spec.completions", body, old));
    } else if policy != "Always" && template.is_object() {
        errors.push(FieldError::not_supported(field, &policy.into(), ["Always"]));
    }
    errors
}

fn budget_errors(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid_without_value("spec", why));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        let field = format!("spec.{key}");
        match &spec[key] {
            Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
                errors.push(FieldError::invalid(
                    field,
                    &spec[key],
                    "must be greater than or equal to 0",
                ));
            }
            Value::String(text) => match text.strip_suffix('%').and_then(|percent| percent.parse::<i64>().ok()) {
                Some(0..=100) => {}
                Some(_) => errors.push(FieldError::invalid(field, &spec[key], "must not be greater than 100%")),
                None => {
                    let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  \
                                   or '93%', regex used for validation is '[0-9]+%')";
                    errors.push(FieldError::invalid(field, &spec[key], why));
                }
            },
            _ => {}
        }
    }
    for (index, expression) in items(&spec["selector"], "matchExpressions").iter().enumerate() {
        if !matches!(
            expression["operator"].as_str(),
            Some("In" | "NotIn" | "Exists" | "DoesNotExist")
        ) {
            let field = format!("spec.selector.matchExpressions[{index}].operator");
            let why = "not a valid selector operator";
            errors.push(FieldError::invalid(field, &expression["operator"], why));
        }
    }
    errors
}
