//! Runtime validation of NodePools.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;

use super::{Finding, entry, ignored_values, requirement};
use crate::budget::BudgetError;
use crate::duration::GoDuration;
use crate::labels::{self, LabelRules};
use crate::names::{check_label_value, check_qualified_name};
use crate::node_pool::NodePool;
use crate::taint::{NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE};

impl NodePool {
    /// Everything that makes the pool unusable although the API server admitted it.
    pub fn validate(&self, rules: &LabelRules) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.check_labels(rules, &mut findings);
        self.check_taints(&mut findings);
        self.check_requirements(rules, &mut findings);
        self.check_durations(&mut findings);
        findings
    }

    /// What does not make the pool unusable, but will not do what its author thinks.
    pub fn validation_notes(&self, rules: &LabelRules) -> Vec<Finding> {
        let requirements = self.spec.template.spec.requirements.iter().enumerate();
        let ignored = requirements.flat_map(|(position, item)| {
            ignored_values(rules, item).into_iter().map(move |value| {
                let path = format!("spec.template.spec.requirements[{position}].values");
                Finding::new(
                    path,
                    format!("\"{value}\" is not a value of {}; it is ignored", item.key),
                )
            })
        });
        let budgets = self.spec.disruption.budgets.iter().enumerate();
        let unreadable = budgets.filter_map(|(position, budget)| {
            let error: BudgetError = budget.allowed_disruptions(jiff::Timestamp::UNIX_EPOCH, 0).err()?;
            let path = format!("spec.disruption.budgets[{position}]");
            Some(Finding::new(
                path,
                format!("{error}; until then nothing in the pool is disrupted voluntarily"),
            ))
        });
        ignored.chain(unreadable).collect()
    }

    fn check_labels(&self, rules: &LabelRules, findings: &mut Vec<Finding>) {
        const PATH: &str = "spec.template.metadata.labels";
        for (key, value) in self.spec.template.metadata.labels.iter().flatten() {
            let mut found = |problem: String| findings.push(Finding::new(entry(PATH, key), problem));
            if key == labels::NODEPOOL {
                found(format!("label {key} is set by Karpenter; remove it"));
            }
            if let Err(error) = check_qualified_name(key) {
                found(format!("label key \"{key}\" {error}"));
            }
            if let Err(error) = check_label_value(value) {
                found(format!("label value \"{value}\" {error}"));
            }
            if rules.is_restricted(key) {
                found(super::requirement::restricted(rules, key));
            }
        }
    }

    fn check_taints(&self, findings: &mut Vec<Finding>) {
        let spec = &self.spec.template.spec;
        let mut seen = BTreeSet::new();
        for (path, taints) in [
            ("spec.template.spec.taints", &spec.taints),
            ("spec.template.spec.startupTaints", &spec.startup_taints),
        ] {
            for (position, taint) in taints.iter().flatten().enumerate() {
                let path = format!("{path}[{position}]");
                check_taint(&path, taint, findings);
                if !seen.insert((&taint.key, &taint.effect)) {
                    let problem = format!(
                        "taint {}:{} is there twice; keep one of them, in taints or startupTaints",
                        taint.key, taint.effect
                    );
                    findings.push(Finding::new(path, problem));
                }
            }
        }
    }

    fn check_requirements(&self, rules: &LabelRules, findings: &mut Vec<Finding>) {
        for (position, item) in self.spec.template.spec.requirements.iter().enumerate() {
            let path = format!("spec.template.spec.requirements[{position}]");
            if rules.canonical_key(&item.key) == labels::NODEPOOL {
                findings.push(Finding::new(
                    format!("{path}.key"),
                    format!("label {} is set by Karpenter; remove it", item.key),
                ));
            }
            findings.extend(requirement(rules, &path, item));
        }
    }

    /// The API's patterns admit durations longer than 64-bit nanoseconds hold.
    fn check_durations(&self, findings: &mut Vec<Finding>) {
        let spec = &self.spec.template.spec;
        let named = [
            (
                "spec.template.spec.terminationGracePeriod".to_owned(),
                spec.termination_grace_period,
            ),
            (
                "spec.template.spec.expireAfter".to_owned(),
                spec.expire_after.as_go_duration(),
            ),
            (
                "spec.disruption.consolidateAfter".to_owned(),
                self.spec.disruption.consolidate_after.as_go_duration(),
            ),
        ];
        let budgets = self.spec.disruption.budgets.iter().enumerate();
        let budgets = budgets
            .map(|(position, budget)| (format!("spec.disruption.budgets[{position}].duration"), budget.duration));
        for (path, duration) in named.into_iter().chain(budgets) {
            if duration.is_some_and(GoDuration::is_out_of_range) {
                findings.push(Finding::new(
                    path,
                    "is longer than 292 years; use less, or Never where that is allowed",
                ));
            }
        }
    }
}

fn check_taint(path: &str, taint: &Taint, findings: &mut Vec<Finding>) {
    if let Err(error) = check_qualified_name(&taint.key) {
        findings.push(Finding::new(
            format!("{path}.key"),
            format!("taint key \"{}\" {error}", taint.key),
        ));
    }
    let value = taint.value.as_deref().unwrap_or_default();
    if let (false, Err(error)) = (value.is_empty(), check_qualified_name(value)) {
        findings.push(Finding::new(
            format!("{path}.value"),
            format!("taint value \"{value}\" {error}"),
        ));
    }
    if !["", NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE].contains(&taint.effect.as_str()) {
        let problem = format!(
            "\"{}\" is not a taint effect; use NoSchedule, PreferNoSchedule or NoExecute",
            taint.effect
        );
        findings.push(Finding::new(format!("{path}.effect"), problem));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(template: serde_json::Value) -> Vec<String> {
        let mut template = template;
        template["spec"]["nodeClassRef"] = json!({ "group": "g.sh", "kind": "K", "name": "n" });
        if template["spec"]["requirements"].is_null() {
            template["spec"]["requirements"] = json!([]);
        }
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "p" }, "spec": { "template": template },
        }))
        .unwrap();
        pool.validate(&LabelRules::default())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn requirement_findings(item: serde_json::Value) -> Vec<String> {
        findings(json!({ "spec": { "requirements": [item] } }))
    }

    #[track_caller]
    fn refused(findings: Vec<String>, parts: &[&str]) {
        let [finding] = &findings[..] else {
            panic!("one finding expected: {findings:?}")
        };
        for part in parts {
            assert!(finding.contains(part), "{finding} does not say {part}");
        }
    }

    #[test]
    fn labels_are_checked_beyond_the_schema() {
        refused(
            findings(json!({ "metadata": { "labels": { "a b": "c" } } })),
            &["spec.template.metadata.labels[a b]", "letters"],
        );
        refused(
            findings(json!({ "metadata": { "labels": { "sub.karpenter.sh/a": "c" } } })),
            &["reserved domain karpenter.sh"],
        );
        refused(
            findings(json!({ "metadata": { "labels": { "kubernetes.io/hostname": "c" } } })),
            &["set by the node"],
        );
        refused(
            findings(json!({ "metadata": { "labels": { "karpenter.sh/nodepool": "c" } } })),
            &["remove it"],
        );
        refused(
            findings(json!({ "metadata": { "labels": { "a": "x".repeat(64) } } })),
            &["at most 63"],
        );
        assert!(
            findings(json!({ "metadata": { "labels": { "notkarpenter.sh/x": "c", "kubernetes.io/x": "y" } } }))
                .is_empty()
        );
    }

    #[test]
    fn a_taint_may_stand_once_in_both_lists_together() {
        let taint = json!({ "key": "a", "effect": "NoSchedule" });
        let other_effect = json!({ "key": "a", "effect": "NoExecute" });
        assert!(findings(json!({ "spec": { "taints": [taint, other_effect] } })).is_empty());
        refused(
            findings(json!({ "spec": { "taints": [taint], "startupTaints": [taint] } })),
            &["spec.template.spec.startupTaints[0]", "twice"],
        );
    }

    #[test]
    fn taints_are_checked_for_their_shape() {
        refused(
            findings(json!({ "spec": { "taints": [{ "key": "", "effect": "NoSchedule" }] } })),
            &["taints[0].key"],
        );
        refused(
            findings(json!({ "spec": { "taints": [{ "key": "a", "value": "???", "effect": "NoSchedule" }] } })),
            &["taints[0].value"],
        );
        refused(
            findings(json!({ "spec": { "taints": [{ "key": "a", "effect": "Never" }] } })),
            &["taints[0].effect", "NoExecute"],
        );
    }

    #[test]
    fn capacity_types_must_exist() {
        let item = |values: &[&str], min: Option<u32>| {
            let mut item = json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": values });
            if let Some(min) = min {
                item["minValues"] = min.into();
            }
            requirement_findings(item)
        };
        refused(item(&["foo"], None), &["none of the values", "on-demand"]);
        assert!(item(&["spot", "foo"], None).is_empty());
        refused(item(&["spot", "foo"], Some(2)), &["1 of the values"]);
    }

    #[test]
    fn a_capacity_type_that_does_not_exist_is_worth_a_note() {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "p" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "g.sh", "kind": "K", "name": "n" },
                    "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "foo"] }],
                } },
                "disruption": { "budgets": [{ "nodes": "1", "schedule": "@dailyfoo", "duration": "1h" }] },
            },
        }))
        .unwrap();
        let notes = pool.validation_notes(&LabelRules::default());
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].problem.contains("\"foo\"") && notes[1].problem.contains("@dailyfoo"),
            "{notes:?}"
        );
    }

    #[test]
    fn requirements_are_checked_by_rule_set_v() {
        refused(
            requirement_findings(json!({ "key": "karpenter.sh/foo", "operator": "Exists" })),
            &["reserved domain"],
        );
        refused(
            requirement_findings(json!({ "key": "karpenter.sh/nodepool", "operator": "Exists" })),
            &["remove it"],
        );
        refused(
            requirement_findings(json!({ "key": "a", "operator": "In" })),
            &["at least one value"],
        );
        refused(
            requirement_findings(json!({ "key": "a", "operator": "In", "values": ["x"], "minValues": 2 })),
            &["at least 2"],
        );
        refused(
            requirement_findings(json!({ "key": "a", "operator": "In", "values": ["???"] })),
            &["values[0]"],
        );
        let long = "a".repeat(250);
        refused(
            requirement_findings(json!({ "key": long, "operator": "Exists" })),
            &["at most 63"],
        );
        for operator in ["Gt", "Lt", "Gte", "Lte"] {
            for values in [json!([]), json!(["1", "2"]), json!(["-1"])] {
                let found = requirement_findings(json!({ "key": "a", "operator": operator, "values": values }));
                assert!(!found.is_empty(), "{operator} {values}");
            }
            assert!(requirement_findings(json!({ "key": "a", "operator": operator, "values": ["1"] })).is_empty());
        }
        assert!(
            requirement_findings(json!({ "key": "beta.kubernetes.io/arch", "operator": "In", "values": ["arm64"] }))
                .is_empty()
        );
    }

    #[test]
    fn durations_beyond_64_bit_nanoseconds_are_reported_and_readable() {
        refused(
            findings(json!({ "spec": { "expireAfter": "99999999h" } })),
            &["expireAfter", "292 years"],
        );
    }
}
