//! What is questionable about a NodePool of ours, told as warnings (§3.3).

use karpenter_api::{
    NodePool,
    labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE},
    requirement::Operator,
};
use karpenter_cloud::{Finding, provider::Weight};

use crate::{
    catalogue::CloudCatalogue,
    flavor::Size,
    labels::{ON_DEMAND_SPELLINGS, SAVING_PLAN_SPELLINGS},
    region::Region,
};

/// A shorter grace period ends workloads before they can end themselves.
const SHORT_GRACE: i64 = 60;

pub fn findings(pool: &NodePool, catalogue: &CloudCatalogue, region: Region) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tell = |reason: &str, message: String| {
        findings.push(Finding {
            reason: reason.to_owned(),
            message,
            weight: Weight::Advice,
        });
    };
    let template = &pool.spec.template.spec;
    for requirement in template.requirements.iter().filter(|own| own.operator == Operator::In) {
        for value in &requirement.values {
            match requirement.key.as_str() {
                INSTANCE_TYPE if catalogue.flavor(value).is_none() => {
                    let hint = match Size::parse(value) {
                        Some(size) => {
                            let mut names: Vec<&str> = catalogue
                                .flavors
                                .iter()
                                .filter(|flavor| Size::of_name(&flavor.name) == Some(size))
                                .map(|flavor| flavor.name.as_str())
                                .collect();
                            names.sort_unstable();
                            format!("; the cloud lists this size as {}", names.join(", "))
                        }
                        None => String::new(),
                    };
                    tell("UnknownInstanceType", format!("there is no flavor {value}{hint}"));
                }
                ZONE if !region.zones().contains(&value.as_str()) => {
                    let zones = region.zones().join(", ");
                    tell(
                        "ZoneNotInRegion",
                        format!("{value} is not a zone of {region}; it has {zones}"),
                    );
                }
                CAPACITY_TYPE
                    if ON_DEMAND_SPELLINGS.contains(&value.as_str())
                        || SAVING_PLAN_SPELLINGS.contains(&value.as_str()) =>
                {
                    let message = format!(
                        "capacity type {value} is an old spelling; use on-demand, and karpenter.bizflycloud.com/billing-plan \
                         for the plan"
                    );
                    tell("DeprecatedCapacityType", message);
                }
                _ => {}
            }
        }
        if requirement.key == CAPACITY_TYPE
            && let Some(message) = ambiguous_spellings(&requirement.values)
        {
            tell("AmbiguousCapacityType", message);
        }
    }
    let grace = template
        .termination_grace_period
        .map(|grace| grace.as_signed().as_secs());
    if let Some(seconds) = grace.filter(|seconds| *seconds < SHORT_GRACE) {
        tell(
            "ShortTerminationGracePeriod",
            format!("terminationGracePeriod of {seconds}s ends workloads that need longer to stop"),
        );
    }
    for taint in template.startup_taints.iter().flatten() {
        if taint.key.starts_with("karpenter.sh/") {
            tell(
                "ReservedStartupTaint",
                format!("startup taint {} is Karpenter's own; remove it", taint.key),
            );
        }
    }
    findings
}

/// All old spellings mean on-demand capacity, and a node has one label: pods that select by one of several may be given a node that
/// carries another.
fn ambiguous_spellings(values: &[String]) -> Option<String> {
    let old: Vec<&str> = values
        .iter()
        .map(String::as_str)
        .filter(|value| ON_DEMAND_SPELLINGS.contains(value) || SAVING_PLAN_SPELLINGS.contains(value))
        .collect();
    (old.len() > 1).then(|| {
        format!(
            "capacity types {} all mean on-demand, and a node carries one of them: pods that select by another never run there; name \
             one in each NodePool",
            old.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_mistake_is_told_with_what_would_be_right() {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"},
            "spec": {"template": {"spec": {
                "nodeClassRef": {"group": "g", "kind": "K", "name": "n"},
                "terminationGracePeriod": "30s",
                "startupTaints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
                "requirements": [
                    {"key": INSTANCE_TYPE, "operator": "In", "values": ["4c_8g"]},
                    {"key": ZONE, "operator": "In", "values": ["HN1", "HCM1"]},
                    {"key": CAPACITY_TYPE, "operator": "In", "values": ["saving_plan"]},
                ],
            }}},
        }))
        .expect("a pool");
        let catalogue = CloudCatalogue {
            flavors: serde_json::from_value(json!([{"name": "nix.4c_8g", "ram": 8192, "vcpus": 4}])).expect("flavors"),
            volume_types: Vec::new(),
        };
        let findings = findings(&pool, &catalogue, Region::HaNoi);
        let reasons: Vec<&str> = findings.iter().map(|own| own.reason.as_str()).collect();
        let expected = [
            "UnknownInstanceType",
            "ZoneNotInRegion",
            "DeprecatedCapacityType",
            "ShortTerminationGracePeriod",
            "ReservedStartupTaint",
        ];
        assert_eq!(reasons, expected);
        assert!(findings[0].message.contains("nix.4c_8g"), "{}", findings[0].message);
    }

    #[test]
    fn several_old_spellings_in_one_pool_are_told() {
        let told = |values: &[&str]| ambiguous_spellings(&values.iter().map(ToString::to_string).collect::<Vec<_>>());
        let message = told(&["subscription", "on_demand", "saving_plan"]).expect("told");
        assert!(
            message.contains("subscription and on_demand and saving_plan"),
            "{message}"
        );
        assert!(told(&["subscription", "on_demand"]).is_some());
        assert_eq!(told(&["subscription", "on-demand"]), None);
        assert_eq!(told(&["on-demand"]), None);
    }
}
