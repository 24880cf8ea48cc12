//! What disruption reads of NodeClaims, NodePools and PodDisruptionBudgets.

use k8s_openapi::api::policy::v1::PodDisruptionBudget as KubeBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::duration::GoDuration;
use karpenter_api::labels::annotations;
use karpenter_api::node_claim::condition;
use karpenter_api::resources::NODES;
use karpenter_api::{NodeClaim, NodePool};

use super::selector::label_selector;
use crate::disruption::{ClaimFacts, FixedSize, Pause, PodDisruptionBudget, PoolPolicy, Saving, Tuning};

/// What a claim says about its own disruption.
pub fn claim_disruption(claim: &NodeClaim) -> ClaimFacts {
    let since = |type_: &str| {
        claim
            .condition(type_)
            .filter(|c| c.is_true())
            .map(|c| c.transitioned_at())
    };
    let metadata = &claim.metadata;
    ClaimFacts {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0),
        expire_after: claim.spec.expire_after.as_duration(),
        termination_grace_period: claim.spec.termination_grace_period.map(|period| period.as_signed()),
        initialized_since: since(condition::INITIALIZED),
        last_pod_event: claim
            .status
            .as_ref()
            .and_then(|status| status.last_pod_event_time.as_ref())
            .map(|time| time.0),
        consolidatable: claim.is_true(condition::CONSOLIDATABLE),
        drifted_since: since(condition::DRIFTED),
        drift_reason: claim
            .condition(condition::DRIFTED)
            .map(|condition| condition.reason.clone()),
    }
}

/// What a pool says about disrupting its nodes. How many nodes a static pool has is for the caller to fill in.
pub fn pool_policy(pool: &NodePool, tracked_cost: f64, has_instance_types: bool) -> PoolPolicy {
    let disruption = &pool.spec.disruption;
    PoolPolicy {
        fixed: fixed_size(pool),
        consolidation_policy: disruption.consolidation_policy,
        consolidate_after: disruption.consolidate_after.as_duration(),
        budgets: disruption.budgets.clone(),
        tracked_cost,
        has_instance_types,
        tuning: tuning(pool),
    }
}

/// What a pool's annotations ask for beyond upstream's rules.
pub fn tuning(pool: &NodePool) -> Tuning {
    let mut tuning = Tuning::default();
    let Some(all) = &pool.metadata.annotations else {
        return tuning;
    };
    let mut unreadable = None;
    let read = |key: &'static str| Some((key, all.get(key)?.trim()));
    let mut refuse = |(key, text): (&str, &str)| unreadable = Some(format!("{key}: {text:?}"));
    if read(annotations::PAUSE_DISRUPTION).is_some_and(|(_, text)| text == "true") {
        tuning.pause = Pause::Pool;
    }
    if let Some(entry) = read(annotations::CONSOLIDATION_MAX_REPLACEMENTS) {
        match entry.1.parse() {
            Ok(most @ 1..) => tuning.max_replacements = Some(most),
            Ok(0) | Err(_) => refuse(entry),
        }
    }
    if let Some(entry) = read(annotations::CONSOLIDATION_MINIMUM_SAVING) {
        match saving(entry.1) {
            Some(saving) => tuning.minimum_saving = Some(saving),
            None => refuse(entry),
        }
    }
    if let Some(entry) = read(annotations::CONSOLIDATION_POD_COST) {
        match amount(entry.1) {
            Some(cost) => tuning.pod_cost = cost,
            None => refuse(entry),
        }
    }
    if let Some(entry) = read(annotations::CONSOLIDATION_COOLDOWN) {
        match entry.1.parse::<GoDuration>() {
            Ok(cooldown) if cooldown > GoDuration::ZERO => tuning.cooldown = Some(cooldown.as_signed()),
            Ok(_) | Err(_) => refuse(entry),
        }
    }
    if let Some(entry) = read(annotations::DRIFT_HALT_AFTER) {
        match entry.1.parse() {
            Ok(failures @ 1..) => tuning.drift_halt_after = Some(failures),
            Ok(0) | Err(_) => refuse(entry),
        }
    }
    tuning.unreadable = unreadable;
    tuning
}

fn saving(text: &str) -> Option<Saving> {
    match text.strip_suffix('%') {
        Some(percent) => amount(percent).filter(|percent| *percent <= 100.0).map(Saving::Percent),
        None => amount(text).map(Saving::PerHour),
    }
}

fn amount(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)
}

fn fixed_size(pool: &NodePool) -> Option<FixedSize> {
    let replicas = usize::try_from(pool.spec.replicas?).unwrap_or(0);
    let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get(NODES));
    Some(FixedSize {
        replicas,
        limit: limit.map_or(usize::MAX, |limit| usize::try_from(limit.value()).unwrap_or(0)),
        active: 0,
        pending_disruption: 0,
        deleting: 0,
        reserved: 0,
        refills: pool.is_ready() && pool.metadata.deletion_timestamp.is_none(),
    })
}

/// A budget that evictions must keep. Without a status it allows nothing: its controller has not looked at it yet.
pub fn pod_disruption_budget(budget: &KubeBudget) -> PodDisruptionBudget {
    let spec = budget.spec.clone().unwrap_or_default();
    let never_allows = match (&spec.max_unavailable, &spec.min_available) {
        (Some(IntOrString::Int(0)), _) => true,
        (Some(IntOrString::String(text)), _) if text == "0%" => true,
        (_, Some(IntOrString::String(text))) if text == "100%" => true,
        _ => false,
    };
    PodDisruptionBudget {
        namespace: budget
            .metadata
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned()),
        name: budget.metadata.name.clone().unwrap_or_default(),
        selector: label_selector(spec.selector.as_ref()),
        disruptions_allowed: budget.status.as_ref().map_or(0, |status| status.disruptions_allowed),
        never_allows,
        allows_unhealthy: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(annotations: serde_json::Value, expected: Tuning) {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "p", "annotations": annotations },
            "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" } } } },
        }))
        .unwrap();
        assert_eq!(tuning(&pool), expected);
    }

    #[test]
    fn annotations_tune_a_pool_and_without_them_nothing_is_tuned() {
        check(json!({ "other": "x" }), Tuning::default());
        check(
            json!({
                "karpenter.sh/pause-disruption": "true", "karpenter.sh/consolidation-max-replacements": "3",
                "karpenter.sh/consolidation-minimum-saving": "10%", "karpenter.sh/consolidation-pod-cost": "0.002",
                "karpenter.sh/consolidation-cooldown": "1h", "karpenter.sh/drift-halt-after": "2",
            }),
            Tuning {
                pause: Pause::Pool,
                max_replacements: Some(3),
                minimum_saving: Some(Saving::Percent(10.0)),
                pod_cost: 0.002,
                cooldown: Some(jiff::SignedDuration::from_hours(1)),
                drift_halt_after: Some(2),
                drift_halted: false,
                unreadable: None,
            },
        );
    }

    #[test]
    fn an_annotation_that_cannot_be_read_is_named() {
        for (key, text) in [
            ("karpenter.sh/consolidation-max-replacements", "0"),
            ("karpenter.sh/consolidation-minimum-saving", "much"),
            ("karpenter.sh/consolidation-minimum-saving", "101%"),
            ("karpenter.sh/consolidation-pod-cost", "-1"),
            ("karpenter.sh/consolidation-cooldown", "soon"),
            ("karpenter.sh/drift-halt-after", "0"),
        ] {
            let unreadable = Some(format!("{key}: {text:?}"));
            check(
                json!({ key: text }),
                Tuning {
                    unreadable,
                    ..Tuning::default()
                },
            );
        }
    }

    #[test]
    fn a_budget_that_can_never_allow_anything_is_told_from_one_that_is_used_up() {
        let never = |spec: serde_json::Value| {
            let budget = json!({ "metadata": { "name": "b", "namespace": "a" }, "spec": spec });
            pod_disruption_budget(&serde_json::from_value(budget).unwrap()).never_allows
        };
        assert!(never(json!({ "maxUnavailable": 0 })));
        assert!(never(json!({ "maxUnavailable": "0%" })));
        assert!(never(json!({ "minAvailable": "100%" })));
        assert!(!never(json!({ "maxUnavailable": 1 })));
        assert!(
            !never(json!({ "minAvailable": 1 })),
            "how many pods there are is not looked at"
        );
        assert!(!never(json!({})));
    }

    #[test]
    fn a_budget_whose_controller_has_not_looked_at_it_allows_nothing() {
        let budget = json!({ "metadata": { "name": "b" }, "spec": {
            "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow" } });
        let budget = pod_disruption_budget(&serde_json::from_value(budget).unwrap());
        assert_eq!((budget.disruptions_allowed, budget.allows_unhealthy), (0, true));
    }
}
