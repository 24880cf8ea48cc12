//! What disruption reads of NodeClaims, NodePools and PodDisruptionBudgets.

use k8s_openapi::api::policy::v1::PodDisruptionBudget as KubeBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_claim::condition;
use karpenter_api::resources::NODES;
use karpenter_api::{NodeClaim, NodePool};

use super::selector::label_selector;
use crate::disruption::{ClaimFacts, FixedSize, PodDisruptionBudget, PoolPolicy};

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
    }
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
