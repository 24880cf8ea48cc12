//! Pods: defaults, priority, tolerations, and what may change after creation.

use serde_json::{Value, json};

use super::{default, items, pod_spec};
use crate::server::Server;
use crate::status::{ApiError, FieldError};

const DEFAULT_TOLERATION_SECONDS: i64 = 300;

pub(super) fn on_create(server: &Server, pod: &mut Value) -> Result<(), ApiError> {
    if !pod["spec"].is_object() {
        pod["spec"] = json!({});
    }
    pod_spec::defaults(&mut pod["spec"]);
    let spec = &mut pod["spec"];
    default(spec, "enableServiceLinks", true);
    default(spec, "serviceAccountName", "default");
    let account = spec["serviceAccountName"].clone();
    default(spec, "serviceAccount", account);
    check_account(server, pod)?;
    set_priority(server, pod)?;
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        add_toleration(&mut pod["spec"], key);
    }
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(&pod["spec"])});
    if !items(&pod["spec"], "schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": server.now_text(),
        }]);
    }
    pod["status"] = status;
    Ok(())
}

fn forbidden(pod: &Value, why: String) -> ApiError {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    ApiError::forbidden("", "pods", name, why)
}

fn check_account(server: &Server, pod: &Value) -> Result<(), ApiError> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    if server
        .store
        .get("serviceaccounts", &format!("{namespace}/{account}"))
        .is_some()
    {
        return Ok(());
    }
    Err(forbidden(
        pod,
        format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"),
    ))
}

/// Works the priority out from the class, which a client can't choose freely.
fn set_priority(server: &Server, pod: &mut Value) -> Result<(), ApiError> {
    let classes = server.store.list("priorityclasses.scheduling.k8s.io", "").objects;
    let named = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let class = if named.is_empty() {
        classes
            .iter()
            .map(|class| class.value())
            .find(|class| class["globalDefault"] == true)
    } else {
        let Some(found) = classes.iter().find(|class| *class.name == *named) else {
            return Err(forbidden(pod, format!("no PriorityClass with name {named} was found")));
        };
        Some(found.value())
    };
    let priority = class.as_ref().and_then(|class| class["value"].as_i64()).unwrap_or(0);
    if pod["spec"]["priority"].as_i64().is_some_and(|given| given != priority) {
        let why = format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed \
             {priority} from the given PriorityClass name",
            pod["spec"]["priority"]
        );
        return Err(forbidden(pod, why));
    }
    let policy = class
        .as_ref()
        .and_then(|class| class["preemptionPolicy"].as_str())
        .unwrap_or("PreemptLowerPriority")
        .to_owned();
    if let Some(name) = class.as_ref().map(|class| class["metadata"]["name"].clone()) {
        default(&mut pod["spec"], "priorityClassName", name);
    }
    pod["spec"]["priority"] = priority.into();
    default(&mut pod["spec"], "preemptionPolicy", policy);
    Ok(())
}

/// Lets a pod stay on a lost node for five minutes, unless it says something about that itself.
fn add_toleration(spec: &mut Value, key: &str) {
    let tolerates = items(spec, "tolerations").iter().any(|toleration| {
        let own = toleration["key"].as_str().unwrap_or_default();
        let effect = toleration["effect"].as_str().unwrap_or_default();
        (own == key || own.is_empty()) && matches!(effect, "NoExecute" | "")
    });
    if tolerates {
        return;
    }
    default(spec, "tolerations", json!([]));
    if let Some(list) = spec["tolerations"].as_array_mut() {
        list.push(json!({
            "key": key, "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": DEFAULT_TOLERATION_SECONDS,
        }));
    }
}

fn qos_class(spec: &Value) -> &'static str {
    let containers = || items(spec, "containers").iter().chain(items(spec, "initContainers"));
    let any = containers().any(|container| {
        ["limits", "requests"].iter().any(|kind| {
            let map = container["resources"][kind].as_object();
            map.is_some_and(|map| map.keys().any(|key| key == "cpu" || key == "memory"))
        })
    });
    if !any {
        return "BestEffort";
    }
    let guaranteed = containers().all(|container| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit = &container["resources"]["limits"][resource];
            limit.is_string() && container["resources"]["requests"][resource] == *limit
        })
    });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}

pub(super) fn on_update(pod: &mut Value) {
    pod_spec::defaults(&mut pod["spec"]);
    if pod["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|grace| grace < 0)
    {
        pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    }
}

pub(super) fn validate(pod: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match old {
        None => pod_spec::validate(&pod["spec"], "spec"),
        Some(old) => change_errors(pod, old),
    }
}

const UNCHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn change_errors(pod: &Value, old: &Value) -> Vec<FieldError> {
    let (new, before) = (&pod["spec"], &old["spec"]);
    if new == before {
        return Vec::new();
    }
    let mut allowed = before.clone();
    for list in ["containers", "initContainers"] {
        let wanted = items(new, list);
        for (index, container) in super::items_mut(&mut allowed, list).iter_mut().enumerate() {
            if let Some(image) = wanted.get(index).and_then(|container| container.get("image")) {
                container["image"] = image.clone();
            }
        }
    }
    let mut copy = |key: &str| match new.get(key) {
        Some(value) => allowed[key] = value.clone(),
        None => {
            if let Some(map) = allowed.as_object_mut() {
                map.remove(key);
            }
        }
    };
    if deadline_may_become(&before["activeDeadlineSeconds"], &new["activeDeadlineSeconds"]) {
        copy("activeDeadlineSeconds");
    }
    if before["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|grace| grace < 0)
    {
        copy("terminationGracePeriodSeconds");
    }
    if only_adds_tolerations(items(before, "tolerations"), items(new, "tolerations")) {
        copy("tolerations");
    }
    let gates = items(before, "schedulingGates");
    if items(new, "schedulingGates").iter().all(|gate| gates.contains(gate)) {
        copy("schedulingGates");
    }
    if !gates.is_empty() {
        copy("nodeSelector");
        copy("affinity");
    }
    if allowed == *new {
        return pod_spec::validate(new, "spec");
    }
    vec![FieldError::forbidden("spec", UNCHANGEABLE)]
}

fn deadline_may_become(old: &Value, new: &Value) -> bool {
    match (old.as_i64(), new.as_i64()) {
        (None, Some(new)) => new >= 0,
        (Some(old), Some(new)) => new >= 0 && new <= old,
        (None, None) => true,
        (Some(_), None) => false,
    }
}

/// Existing tolerations must stay, apart from their seconds.
fn only_adds_tolerations(old: &[Value], new: &[Value]) -> bool {
    let bare = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(map) = toleration.as_object_mut() {
            map.remove("tolerationSeconds");
        }
        toleration
    };
    let new: Vec<Value> = new.iter().map(bare).collect();
    old.iter().all(|toleration| new.contains(&bare(toleration)))
}
