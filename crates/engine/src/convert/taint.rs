//! Taints and tolerations as Kubernetes writes them.

use k8s_openapi::api::core::v1 as kube;

use crate::model::{Effect, Taint, Toleration, TolerationOperator};

/// Taints whose effect Kubernetes knows; an API server stores no others.
pub fn taints(taints: Option<&[kube::Taint]>) -> Vec<Taint> {
    taints.unwrap_or_default().iter().filter_map(taint).collect()
}

fn taint(taint: &kube::Taint) -> Option<Taint> {
    let effect = Effect::parse(&taint.effect)?;
    Some(Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect,
    })
}

/// Tolerations that can match something; one with an unknown operator or effect tolerates nothing.
pub fn tolerations(tolerations: Option<&[kube::Toleration]>) -> Vec<Toleration> {
    tolerations.unwrap_or_default().iter().filter_map(toleration).collect()
}

fn toleration(toleration: &kube::Toleration) -> Option<Toleration> {
    let operator = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => TolerationOperator::Equal,
        Some("Exists") => TolerationOperator::Exists,
        Some("Lt") => TolerationOperator::Lt,
        Some("Gt") => TolerationOperator::Gt,
        Some(_) => return None,
    };
    let effect = match toleration.effect.as_deref() {
        None | Some("") => None,
        Some(effect) => Some(Effect::parse(effect)?),
    };
    Some(Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator,
        value: toleration.value.clone().unwrap_or_default(),
        effect,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tolerates;
    use serde_json::{Value, json};

    fn check(toleration: Value, expect: bool) {
        let taint = json!([{ "key": "dedicated", "value": "batch", "effect": "NoSchedule" }]);
        let taint: Vec<kube::Taint> = serde_json::from_value(taint).unwrap();
        let toleration: Vec<kube::Toleration> = serde_json::from_value(json!([toleration])).unwrap();
        assert_eq!(
            tolerates(&tolerations(Some(&toleration)), &taints(Some(&taint))),
            expect,
            "{toleration:?}"
        );
    }

    #[test]
    fn a_missing_operator_means_equal() {
        check(json!({ "key": "dedicated", "value": "batch" }), true);
        check(json!({ "key": "dedicated", "value": "web" }), false);
    }

    #[test]
    fn exists_without_a_key_tolerates_everything() {
        check(json!({ "operator": "Exists" }), true);
        check(json!({ "operator": "Exists", "effect": "NoExecute" }), false);
    }

    #[test]
    fn an_unknown_operator_tolerates_nothing() {
        check(json!({ "key": "dedicated", "operator": "Like" }), false);
    }
}
