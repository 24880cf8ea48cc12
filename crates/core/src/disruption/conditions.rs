//! Keeps `Drifted` and `Consolidatable` on NodeClaims (disruption.md §7).

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::{self, LabelRules, annotations};
use karpenter_api::node_claim::condition;
use karpenter_api::requirement::{Requirement, Requirements, Undefined};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::CloudError;
use karpenter_engine::model::InstanceType;
use kube::ResourceExt;
use moka::sync::Cache;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::runner::{Controller, Next, Reconcile, Runnable};
use crate::watch::Key;

/// How often drift is looked at when nothing wakes us.
const RECHECK: SignedDuration = SignedDuration::from_mins(5);
/// A type that a new claim was launched with cannot have vanished yet; asking would only cost.
const TYPE_CHECK_AGE: SignedDuration = SignedDuration::from_hours(1);
/// How long a found type is taken to be there.
const TYPE_FOUND_FOR: Duration = Duration::from_secs(30 * 60);

const NODE_POOL_DRIFTED: &str = "NodePoolDrifted";
const REQUIREMENTS_DRIFTED: &str = "RequirementsDrifted";
const INSTANCE_TYPE_NOT_FOUND: &str = "InstanceTypeNotFound";

/// What the pool alone says: its template changed, or the claim no longer fits its requirements.
pub fn drift_from_pool(claim: &NodeClaim, pool: &NodePool, rules: &LabelRules) -> Option<&'static str> {
    if has_other_hash(claim, pool) {
        return Some(NODE_POOL_DRIFTED);
    }
    let have = Requirements::from_labels(rules, claim.labels());
    let want: Requirements = pool
        .spec
        .template
        .spec
        .requirements
        .iter()
        .map(|requirement| requirement.parsed(rules))
        .collect();
    (!have.is_compatible(&want, Undefined::Denied)).then_some(REQUIREMENTS_DRIFTED)
}

/// Hashes are compared only when both sides have one of the same version: anything else proves nothing.
fn has_other_hash(claim: &NodeClaim, pool: &NodePool) -> bool {
    let both = |key: &str| Some((claim.annotations().get(key)?, pool.annotations().get(key)?));
    let (Some(hashes), Some(versions)) = (
        both(annotations::NODEPOOL_HASH),
        both(annotations::NODEPOOL_HASH_VERSION),
    ) else {
        return false;
    };
    versions.0 == versions.1 && hashes.0 != hashes.1
}

/// Whether the claim's instance type, in an offering that the claim could be, is still listed; for sale or not.
pub fn type_is_listed<'a>(
    claim: &NodeClaim,
    types: impl IntoIterator<Item = &'a InstanceType>,
    reservation_labels: &[&str],
    rules: &LabelRules,
) -> bool {
    let Some(name) = claim.labels().get(labels::INSTANCE_TYPE) else {
        return false;
    };
    let Some(listed) = types.into_iter().find(|instance_type| instance_type.name == *name) else {
        return false;
    };
    let mut own = Requirements::from_labels(rules, claim.labels());
    if claim
        .labels()
        .get(labels::CAPACITY_TYPE)
        .is_some_and(|kind| kind == labels::CAPACITY_TYPE_RESERVED)
    {
        // A node may outlive its reservation as on-demand capacity.
        let either = [labels::CAPACITY_TYPE_RESERVED, labels::CAPACITY_TYPE_ON_DEMAND];
        own.replace(Requirement::within(labels::CAPACITY_TYPE, either));
        for label in reservation_labels {
            own.remove(label);
        }
    }
    listed
        .offerings
        .iter()
        .any(|offering| own.is_compatible(&offering.requirements, Undefined::WellKnown(rules)))
}

/// Whether the claim's node may be consolidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consolidatable {
    Yes,
    /// Not for this pool, or not before something changes.
    No,
    /// Not before this much time has passed without pods coming or going.
    In(SignedDuration),
}

/// Whether nothing has happened on the node for as long as its pool asks.
pub fn consolidatable(claim: &NodeClaim, pool: &NodePool, now: Timestamp) -> Consolidatable {
    let Some(after) = pool.spec.disruption.consolidate_after.as_duration() else {
        return Consolidatable::No;
    };
    let Some(initialized) = claim
        .condition(condition::INITIALIZED)
        .filter(|condition| condition.is_true())
    else {
        return Consolidatable::No;
    };
    let last_event = claim
        .status
        .as_ref()
        .and_then(|status| status.last_pod_event_time.as_ref());
    let quiet_since = last_event.map_or(initialized.transitioned_at(), |time| time.0);
    let left = after - now.duration_since(quiet_since);
    if left > SignedDuration::ZERO {
        Consolidatable::In(left)
    } else {
        Consolidatable::Yes
    }
}

/// The `nodeclaim.disruption` controller.
pub fn controller(ctx: &Context) -> Runnable {
    let (claims, relations) = (ctx.claims.clone(), ctx.relations.clone());
    Controller::new(&ctx.runner, "nodeclaim.disruption")
        .about("karpenter.sh", "NodeClaim")
        .concurrency(10)
        .watches(&ctx.pools, move |change| {
            let of_pool = |claim: &Arc<NodeClaim>| claim.node_pool() == Some(&*change.key.name);
            claims
                .list()
                .iter()
                .filter(|claim| of_pool(claim))
                .map(|claim| Key::of(&**claim))
                .collect::<Vec<_>>()
        })
        .watches(&ctx.nodes, move |change| relations.claims_of_change(change))
        .runs(&ctx.claims, ctx.manages_claim(), Conditions::new(ctx))
}

struct Conditions {
    ctx: Context,
    found_types: Cache<String, ()>,
}

impl Conditions {
    fn new(ctx: &Context) -> Self {
        Self {
            ctx: ctx.clone(),
            found_types: Cache::builder().time_to_live(TYPE_FOUND_FOR).build(),
        }
    }

    async fn drift(&self, claim: &NodeClaim, pool: &NodePool, now: Timestamp) -> Result<Option<String>> {
        if let Some(reason) = drift_from_pool(claim, pool, &self.ctx.rules) {
            return Ok(Some(reason.to_owned()));
        }
        if !self.type_found(claim, pool, now).await? {
            return Ok(Some(INSTANCE_TYPE_NOT_FOUND.to_owned()));
        }
        match self.ctx.cloud.is_drifted(claim).await {
            Ok(reason) => Ok(reason.map(|reason| reason.to_string())),
            Err(CloudError::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::failed(format!(
                "asking for drift of {}: {error}",
                claim.name_any()
            ))),
        }
    }

    async fn type_found(&self, claim: &NodeClaim, pool: &NodePool, now: Timestamp) -> Result<bool> {
        let uid = claim.uid().unwrap_or_default();
        let age = claim
            .creation_timestamp()
            .map_or(SignedDuration::ZERO, |created| now.duration_since(created.0));
        if age <= TYPE_CHECK_AGE || self.found_types.contains_key(&uid) {
            return Ok(true);
        }
        let types = self.ctx.cloud.instance_types(pool).await;
        let types = types.map_err(|error| {
            Error::failed(format!(
                "listing instance types of NodePool {}: {error}",
                pool.name_any()
            ))
        })?;
        let reservations = self.ctx.cloud.reservation_labels();
        let labels: Vec<&str> = reservations
            .iter()
            .flat_map(|labels| labels.others.iter().chain([&labels.id]))
            .map(String::as_str)
            .collect();
        let found = type_is_listed(claim, types.iter().map(|listed| &**listed), &labels, &self.ctx.rules);
        if found {
            self.found_types.insert(uid, ());
        }
        Ok(found)
    }
}

impl Reconcile<NodeClaim> for Conditions {
    async fn reconcile(&self, claim: Arc<NodeClaim>) -> Result<Next> {
        if claim.is_terminating() {
            return Ok(Next::Wait);
        }
        let Some(pool) = claim.node_pool().and_then(|pool| self.ctx.pools.named(pool)) else {
            return Ok(Next::Wait);
        };
        let now = self.ctx.clock.now();
        let mut after = (*claim).clone();
        let mut recheck = RECHECK;

        let drift = match claim.is_true(condition::LAUNCHED) {
            true => self.drift(&claim, &pool, now).await?,
            false => None,
        };
        let _ = match &drift {
            Some(reason) => after.set_condition(
                condition::DRIFTED,
                karpenter_api::conditions::ConditionStatus::True,
                reason,
                reason,
                now,
            ),
            None => after.clear_condition(condition::DRIFTED),
        };
        if !pool.is_static() {
            let _ = match consolidatable(&claim, &pool, now) {
                Consolidatable::Yes => after.set_true(condition::CONSOLIDATABLE, now),
                Consolidatable::No => after.clear_condition(condition::CONSOLIDATABLE),
                Consolidatable::In(left) => {
                    recheck = recheck.min(left);
                    after.clear_condition(condition::CONSOLIDATABLE)
                }
            };
        }
        self.ctx.claim_writer.write(&claim, &after).await?;
        Ok(Next::After(recheck))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(metadata: &str, status: &str) -> NodeClaim {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, metadata: {{name: c, {metadata}}}, \
             spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}, status: {{{status}}}}}"
        ))
        .unwrap()
    }

    fn pool(metadata: &str, requirements: &str, disruption: &str) -> NodePool {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: p, {metadata}}}, \
             spec: {{disruption: {{{disruption}}}, template: {{spec: {{requirements: {requirements}, \
             nodeClassRef: {{group: g, kind: K, name: n}}}}}}}}}}"
        ))
        .unwrap()
    }

    fn hashes(hash: &str, version: &str) -> String {
        format!("annotations: {{karpenter.sh/nodepool-hash: '{hash}', karpenter.sh/nodepool-hash-version: {version}}}")
    }

    #[test]
    fn hashes_count_only_when_both_sides_have_one_of_the_same_version() {
        let check = |own: &str, pools: &str, expected: Option<&str>| {
            let drift = drift_from_pool(&claim(own, ""), &pool(pools, "[]", ""), &LabelRules::default());
            assert_eq!(drift, expected, "{own} {pools}");
        };
        check(&hashes("1", "v3"), &hashes("2", "v3"), Some(NODE_POOL_DRIFTED));
        check(&hashes("1", "v3"), &hashes("1", "v3"), None);
        check(&hashes("1", "v2"), &hashes("2", "v3"), None);
        check("", &hashes("2", "v3"), None);
        check(&hashes("1", "v3"), "", None);
    }

    #[test]
    fn a_claim_drifts_when_the_pool_asks_for_what_its_labels_do_not_have() {
        let check = |requirements: &str, expected: bool| {
            let own = claim("labels: {team: a}", "");
            let drift = drift_from_pool(&own, &pool("", requirements, ""), &LabelRules::default());
            assert_eq!(drift.is_some(), expected, "{requirements}");
        };
        check("[{key: team, operator: In, values: [a, b]}]", false);
        check("[{key: team, operator: Exists}]", false);
        check("[{key: team, operator: In, values: [b]}]", true);
        check("[{key: team, operator: DoesNotExist}]", true);
        check("[{key: other, operator: In, values: [x]}]", true);
        check("[{key: other, operator: NotIn, values: [x]}]", false);
    }

    #[test]
    fn a_node_is_consolidatable_once_it_was_quiet_for_long_enough() {
        let check = |after: &str, status: &str, expected: Consolidatable| {
            let pool = pool("", "[]", &format!("consolidateAfter: {after}"));
            let now = "2026-01-01T00:10:00Z".parse().unwrap();
            assert_eq!(
                consolidatable(&claim("", status), &pool, now),
                expected,
                "{after} {status}"
            );
        };
        let initialized = "conditions: [{type: Initialized, status: 'True', reason: Initialized, message: '', \
             lastTransitionTime: '2026-01-01T00:00:00Z'}]";
        check("30s", initialized, Consolidatable::Yes);
        check("0s", initialized, Consolidatable::Yes);
        check("Never", initialized, Consolidatable::No);
        check("30s", "", Consolidatable::No);
        let disturbed = format!("lastPodEventTime: '2026-01-01T00:09:50Z', {initialized}");
        check("30s", &disturbed, Consolidatable::In(SignedDuration::from_secs(20)));
    }

    fn listed(capacity_type: &str, offered: &[&str]) -> bool {
        let own = format!(
            "labels: {{node.kubernetes.io/instance-type: m1, topology.kubernetes.io/zone: test-zone-1, \
             karpenter.sh/capacity-type: {capacity_type}, example.com/reservation: r1}}"
        );
        let types = [karpenter_cloud::fake::TypeBuilder::new("m1", 2, 8)
            .capacity_types(offered)
            .build()];
        let types = types.iter().map(|kind| &**kind);
        let rules = LabelRules::default().with_well_known("example.com/reservation");
        type_is_listed(&claim(&own, ""), types, &["example.com/reservation"], &rules)
    }

    #[test]
    fn a_type_counts_as_gone_when_no_offering_could_be_the_claims() {
        assert!(listed("on-demand", &["on-demand", "spot"]));
        assert!(!listed("on-demand", &["spot"]));
        assert!(
            listed("reserved", &["on-demand"]),
            "a node may outlive its reservation as on-demand capacity"
        );
        assert!(!listed("reserved", &["spot"]));
    }
}
