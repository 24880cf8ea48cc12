//! Reading text that users write never panics, and what is written back reads the same.

use jiff::Timestamp;
use karpenter_api::cron::Schedule;
use karpenter_api::duration::{GoDuration, NillableDuration};
use karpenter_api::labels::LabelRules;
use karpenter_api::percent::PercentOrInt;
use karpenter_api::selector::Selector;
use karpenter_api::{CapacityBuffer, NodeClaim, NodeOverlay, NodePool, Requirement};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Any JSON, biased towards the field names and values that our kinds have.
fn document() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "spec",
        "template",
        "metadata",
        "labels",
        "requirements",
        "key",
        "operator",
        "values",
        "taints",
        "effect",
        "nodeClassRef",
        "disruption",
        "budgets",
        "nodes",
        "schedule",
        "duration",
        "limits",
        "expireAfter",
        "weight",
        "status",
        "conditions",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "In",
            "Gt",
            "Never",
            "720h",
            "10%",
            "@daily",
            "1Gi",
            "karpenter.sh/nodepool"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

fn instant() -> impl Strategy<Value = Timestamp> {
    (0_i64..4_000_000_000).prop_map(|second| Timestamp::from_second(second).unwrap())
}

proptest! {
    #[test]
    fn durations_never_panic(text in ".*") {
        let _ = text.parse::<GoDuration>();
        let _ = text.parse::<NillableDuration>();
    }

    #[test]
    fn a_duration_reads_back_as_it_was_written(nanos in any::<i64>()) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
    }

    #[test]
    fn schedules_never_panic(text in ".*", now in instant()) {
        if let Ok(schedule) = text.parse::<Schedule>() {
            let _ = schedule.next_after(now);
        }
        let _ = Schedule::parse_with_zone(&text);
    }

    #[test]
    fn what_looks_like_a_schedule_never_panics_and_hits_later(text in "([*?]|[0-9]{1,2})(/[0-9]{1,2})?( ([*?]|[0-9]{1,2}(-[0-9]{1,2})?)(/[0-9])?){4}", now in instant()) {
        if let Ok(schedule) = text.parse::<Schedule>()
            && let Some(hit) = schedule.next_after(now)
        {
            prop_assert!(hit > now);
            prop_assert_eq!(hit.as_second() % 60, 0);
            // There is no hit in between: asking again from just before finds the same one.
            let before = Timestamp::from_second(hit.as_second() - 1).unwrap();
            prop_assert_eq!(schedule.next_after(before.max(now)), Some(hit));
        }
    }

    #[test]
    fn selectors_never_panic(text in ".*") {
        let _ = text.parse::<Selector>();
    }

    #[test]
    fn a_selector_reads_back_as_it_was_written(text in "(!?[a-z]{1,3}|[a-z]{1,3}(=|!=|==)[a-z]{0,3}|[a-z]{1,3} (in|notin) \\([a-z]{1,2}(,[a-z]{1,2}){0,2}\\))(, ?[a-z]{1,2}=[a-z]){0,3}") {
        let selector: Selector = text.parse().unwrap();
        prop_assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
    }

    #[test]
    fn percentages_never_panic(text in ".*", total in any::<u32>()) {
        if let Ok(limit) = text.parse::<PercentOrInt>() {
            let _ = limit.of(total);
        }
    }

    #[test]
    fn any_yaml_is_read_or_refused_without_a_panic(text in ".*") {
        let _ = serde_norway::from_str::<NodePool>(&text);
        let _ = serde_norway::from_str::<Value>(&text);
    }

    #[test]
    fn any_object_is_read_validated_and_hashed_without_a_panic(fields in document(), now in instant()) {
        let rules = LabelRules::default();
        let mut object = json!({ "apiVersion": "karpenter.sh/v1", "kind": "X", "metadata": { "name": "x" }, "spec": fields });
        if let Some(status) = fields.get("status") {
            object["status"] = status.clone();
        }
        if let Ok(pool) = serde_json::from_value::<NodePool>(object.clone()) {
            let _ = (pool.validate(&rules), pool.static_hash());
        }
        let _ = serde_json::from_value::<NodeClaim>(object.clone());
        if let Ok(overlay) = serde_json::from_value::<NodeOverlay>(object.clone()) {
            let _ = overlay.validate(&rules);
        }
        if let Ok(buffer) = serde_json::from_value::<CapacityBuffer>(object.clone()) {
            let _ = buffer.validate();
        }
        // The same fields as a template, so that they reach deeper than the required ones let them.
        let mut template = json!({ "spec": {
            "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" },
        } });
        for (key, value) in fields.as_object().into_iter().flatten() {
            template["spec"][key] = value.clone();
        }
        object["spec"] = json!({ "template": template, "disruption": fields["disruption"] });
        if let Ok(pool) = serde_json::from_value::<NodePool>(object) {
            let _ = (pool.validate(&rules), pool.validation_notes(&rules), pool.static_hash());
            for reason in karpenter_api::budget::DisruptionReason::ALL {
                let _ = pool.allowed_disruptions(now, 7, reason);
            }
            for item in &pool.spec.template.spec.requirements {
                let requirement: Requirement = item.parsed(&rules);
                let _ = (requirement.any_value(), requirement.to_string(), requirement.to_wire());
            }
        }
    }
}
