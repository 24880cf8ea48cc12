//! Defaults and checks of a pod's spec, alone or in a workload's template.

use serde_json::{Value, json};

use super::metadata::{is_label, label_name_problem};
use super::{default, items, items_mut};
use crate::quantity::nanos;
use crate::status::FieldError;

/// Fills in what every pod spec has.
pub(super) fn defaults(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "schedulerName", "default-scheduler");
    default(spec, "securityContext", json!({}));
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec, list) {
            container_defaults(container);
        }
    }
    if let Some(name) = spec.get("serviceAccountName").cloned() {
        default(spec, "serviceAccount", name);
    }
    for volume in items_mut(spec, "volumes") {
        for (source, key) in [
            ("configMap", "defaultMode"),
            ("secret", "defaultMode"),
            ("projected", "defaultMode"),
        ] {
            if let Some(source) = volume.get_mut(source) {
                default(source, key, 0o644);
            }
        }
    }
}

fn container_defaults(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let latest = !image.contains('@') && matches!(tag, None | Some("latest"));
    default(
        container,
        "imagePullPolicy",
        if latest { "Always" } else { "IfNotPresent" },
    );
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    default(container, "resources", json!({}));
    for port in items_mut(container, "ports") {
        default(port, "protocol", "TCP");
    }
    let limits = container["resources"]["limits"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    for (resource, limit) in limits {
        default(&mut container["resources"], "requests", json!({}));
        default(&mut container["resources"]["requests"], &resource, limit);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe) {
            default(probe, "timeoutSeconds", 1);
            default(probe, "periodSeconds", 10);
            default(probe, "successThreshold", 1);
            default(probe, "failureThreshold", 3);
            if let Some(get) = probe.get_mut("httpGet") {
                default(get, "path", "/");
                default(get, "scheme", "HTTP");
            }
        }
    }
    for variable in items_mut(container, "env") {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            default(field, "apiVersion", "v1");
        }
    }
}

pub(super) fn validate(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if items(spec, "containers").is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            container_errors(container, &path, &mut names, &mut errors);
        }
    }
    let policy = &spec["restartPolicy"];
    if !matches!(policy.as_str(), Some("Always" | "OnFailure" | "Never") | None) {
        let supported = ["Always", "OnFailure", "Never"];
        errors.push(FieldError::not_supported(
            format!("{path}.restartPolicy"),
            policy,
            supported,
        ));
    }
    for (index, toleration) in items(spec, "tolerations").iter().enumerate() {
        toleration_errors(toleration, &format!("{path}.tolerations[{index}]"), &mut errors);
    }
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        spread_errors(
            constraint,
            &format!("{path}.topologySpreadConstraints[{index}]"),
            &mut errors,
        );
    }
    errors
}

fn container_errors<'a>(container: &'a Value, path: &str, names: &mut Vec<&'a str>, errors: &mut Vec<FieldError>) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else if name.len() > 63 || !is_label(name) {
        errors.push(FieldError::invalid(
            format!("{path}.name"),
            &name.into(),
            label_name_problem(),
        ));
    } else if names.contains(&name) {
        errors.push(FieldError::duplicate(format!("{path}.name"), &name.into()));
    }
    names.push(name);
    if container["image"].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    }
    let resources = &container["resources"];
    for (kind, list) in [("limits", &resources["limits"]), ("requests", &resources["requests"])] {
        for (name, value) in list.as_object().into_iter().flatten() {
            let field = format!("{path}.resources.{kind}[{name}]");
            match value.as_str().map(nanos) {
                Some(Some(amount)) if amount >= 0 => {}
                Some(Some(_)) => {
                    errors.push(FieldError::invalid(field, value, "must be greater than or equal to 0"));
                }
                _ => errors.push(FieldError::invalid(field, value, "must be a quantity")),
            }
        }
    }
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name];
        if !may_be_overcommitted(name) && limit.is_null() {
            let why = "Limit must be set for non overcommitable resources";
            errors.push(FieldError::required(format!("{path}.resources.limits"), why));
        }
        if !may_be_overcommitted(name) && limit.is_string() && limit != request {
            let why = format!(
                "must be equal to {name} limit of {}",
                limit.as_str().unwrap_or_default()
            );
            errors.push(FieldError::invalid(format!("{path}.resources.requests"), request, &why));
            continue;
        }
        if let (Some(Some(request_amount)), Some(Some(limit_amount))) =
            (request.as_str().map(nanos), limit.as_str().map(nanos))
            && request_amount > limit_amount
        {
            let why = format!(
                "must be less than or equal to {name} limit of {}",
                limit.as_str().unwrap_or_default()
            );
            errors.push(FieldError::invalid(format!("{path}.resources.requests"), request, &why));
        }
    }
}

/// Devices and huge pages are given out whole: what is requested is also the limit.
fn may_be_overcommitted(resource: &str) -> bool {
    let native = match resource.split_once('/') {
        None => true,
        Some((domain, _)) => domain == "kubernetes.io" || domain.ends_with(".kubernetes.io"),
    };
    native && !resource.starts_with("hugepages-")
}

fn toleration_errors(toleration: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let key = toleration["key"].as_str().unwrap_or_default();
    let operator = toleration["operator"].as_str().unwrap_or("Equal");
    if key.is_empty() && operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(format!("{path}.operator"), &operator.into(), why));
    }
    if !matches!(operator, "Equal" | "Exists" | "Lt" | "Gt") {
        errors.push(FieldError::not_supported(
            format!("{path}.operator"),
            &operator.into(),
            ["Equal", "Exists"],
        ));
    }
    if operator == "Exists" && !toleration["value"].as_str().unwrap_or_default().is_empty() {
        let why = "value must be empty when `operator` is 'Exists'";
        errors.push(FieldError::invalid(
            format!("{path}.operator"),
            &toleration["value"],
            why,
        ));
    }
    let effect = toleration["effect"].as_str().unwrap_or_default();
    if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        let supported = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        errors.push(FieldError::not_supported(
            format!("{path}.effect"),
            &effect.into(),
            supported,
        ));
    }
    if toleration["tolerationSeconds"].is_number() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(format!("{path}.effect"), &effect.into(), why));
    }
}

fn spread_errors(constraint: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if constraint["maxSkew"].as_i64().unwrap_or(0) <= 0 {
        errors.push(FieldError::invalid(
            format!("{path}.maxSkew"),
            &constraint["maxSkew"],
            "must be greater than zero",
        ));
    }
    if constraint["topologyKey"].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
    }
    let when = &constraint["whenUnsatisfiable"];
    if !matches!(when.as_str(), Some("DoNotSchedule" | "ScheduleAnyway")) {
        let supported = ["DoNotSchedule", "ScheduleAnyway"];
        errors.push(FieldError::not_supported(
            format!("{path}.whenUnsatisfiable"),
            when,
            supported,
        ));
    }
}
