//! What of a claim's machine is not what its NodeClass asks for, and what is questionable about a NodePool.

use karpenter_api::{NodeClaim, NodePool, labels, labels::LabelRules, requirement::Requirements};
use karpenter_cloud::{CloudError, DriftReason, Finding, provider::Weight};

use super::Shared;
use crate::{
    catalogue::flavors,
    client::model::Pool,
    names,
    node_class::{HASH_VERSION, OvhNodeClass},
    pool::PoolOwner,
};

impl Shared {
    pub(super) async fn drift(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        let name = &claim.spec.node_class_ref.name;
        let class = self.class(name).await?;
        let class = class.ok_or_else(|| CloudError::node_class_not_ready(name, "it does not exist"))?;
        self.any_connection().await?;
        let annotation = |key: &str| claim.metadata.annotations.as_ref()?.get(key);
        let pool = match annotation(names::POOL_ID) {
            Some(id) => self.engine.pool(id).await?.map(|(pool, _)| pool),
            None => {
                let machines = self.machines().await?;
                let is_it = |id: &str| {
                    machines
                        .iter()
                        .find(|own| own.node.provider_id().as_deref() == Some(id))
                };
                claim.provider_id().and_then(is_it).map(|machine| machine.pool.clone())
            }
        };
        let pool = pool.ok_or_else(|| CloudError::not_found(claim.provider_id().unwrap_or_default()))?;
        Ok(reason(claim, &class, &pool).map(|reason| DriftReason(reason.to_owned())))
    }
}

/// The first that applies.
fn reason(claim: &NodeClaim, class: &OvhNodeClass, pool: &Pool) -> Option<&'static str> {
    let annotation = |key: &str| claim.metadata.annotations.as_ref()?.get(key);
    if pool.monthly_billed != class.spec.is_monthly() {
        return Some("MonthlyBillingChanged");
    }
    if pool.anti_affinity != class.spec.is_anti_affine() {
        return Some("AntiAffinityChanged");
    }
    let is_comparable = annotation(names::CLASS_HASH_VERSION).is_some_and(|version| version == HASH_VERSION);
    if is_comparable && annotation(names::CLASS_HASH).is_some_and(|hash| *hash != class.spec.static_hash()) {
        return Some("NodeClassDrift");
    }
    let zones = &class.spec.availability_zones;
    if !zones.is_empty() && pool.zone().is_some_and(|zone| !zones.iter().any(|own| own == zone)) {
        return Some("ZoneDrift");
    }
    if PoolOwner::of(pool) == PoolOwner::Owned && pool.label(labels::NODEPOOL).is_none() {
        return Some("PoolTemplateDrift");
    }
    None
}

/// What the owner of a NodePool should know.
pub(super) fn findings(pool: &NodePool, class: &OvhNodeClass, rules: &LabelRules) -> Vec<Finding> {
    let mut findings = Vec::new();
    let requirements = Requirements::from_wire(rules, &pool.spec.template.spec.requirements);
    let capacity = requirements.get_or_exists(labels::CAPACITY_TYPE);
    if !capacity.has(labels::CAPACITY_TYPE_ON_DEMAND) {
        findings.push(Finding {
            reason: "NoSpotCapacity".to_owned(),
            message: "OVHcloud has on-demand machines only; the NodePool's capacity type excludes them".to_owned(),
            weight: Weight::NothingToLaunch,
        });
    }
    if !class.spec.is_monthly() {
        return findings;
    }
    let policy = serde_json::to_value(pool.spec.disruption.consolidation_policy).unwrap_or_default();
    if policy == "WhenEmptyOrUnderutilized" {
        findings.push(Finding {
            reason: "MonthlyBilledConsolidation".to_owned(),
            message: format!(
                "nodes of OVHNodeClass {} are billed by the month and a node that goes early is not refunded; use \
                 consolidationPolicy WhenEmpty with a long consolidateAfter",
                class.name()
            ),
            weight: Weight::Advice,
        });
    }
    let types = requirements.get_or_exists(labels::INSTANCE_TYPE);
    let families = requirements.get_or_exists(names::FAMILY);
    let sold = |flavor: &crate::client::model::Flavor| {
        flavors::is_monthly_family(&flavor.name)
            && types.has(&flavor.name)
            && families.has(flavors::family(&flavor.name))
    };
    if !flavors::all().iter().any(sold) {
        findings.push(Finding {
            reason: "NoFlavorForMonthlyBilling".to_owned(),
            message: "monthly billing needs flavors of the families b2, c2, d2 and r2, and the NodePool allows none"
                .to_owned(),
            weight: Weight::NothingToLaunch,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(spec: Value) -> OvhNodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
            "metadata": {"name": "default"}, "spec": spec,
        }))
        .expect("a class")
    }

    fn claim(hash: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "a", "annotations": {names::CLASS_HASH: hash, names::CLASS_HASH_VERSION: "v1"}},
            "spec": {"requirements": [], "nodeClassRef": {"group": names::GROUP, "kind": "OVHNodeClass", "name": "default"}},
        }))
        .expect("a claim")
    }

    fn check(spec: Value, pool: Value, expected: Option<&str>) {
        let plain = class(json!({})).spec.static_hash();
        let mut base = json!({
            "id": "p", "name": "karpenter-x", "availabilityZones": ["a"],
            "template": {"metadata": {"labels": {names::POOL_KEY: "k", "karpenter.sh/nodepool": "default"}}},
        });
        for (key, value) in pool.as_object().expect("an object") {
            base[key] = value.clone();
        }
        let pool: Pool = serde_json::from_value(base).expect("a pool");
        assert_eq!(reason(&claim(&plain), &class(spec.clone()), &pool), expected, "{spec}");
    }

    #[test]
    fn every_reason_in_its_order() {
        check(json!({}), json!({}), None);
        check(json!({"monthlyBilled": true}), json!({}), Some("MonthlyBillingChanged"));
        check(json!({}), json!({"monthlyBilled": true}), Some("MonthlyBillingChanged"));
        check(json!({"antiAffinity": true}), json!({}), Some("AntiAffinityChanged"));
        check(json!({"tags": {"a": "b"}}), json!({}), Some("NodeClassDrift"));
        check(json!({"availabilityZones": ["b"]}), json!({}), Some("ZoneDrift"));
        let unlabelled = json!({"template": {"metadata": {"labels": {names::POOL_KEY: "k"}}}});
        check(json!({}), unlabelled, Some("PoolTemplateDrift"));
    }

    #[test]
    fn what_pools_do_not_fix_is_no_drift() {
        let spec = json!({"region": "X", "maxNodesPerPool": 3, "kubeReserved": {"cpu": "1"}, "endpoint": "ovh-ca"});
        check(spec, json!({}), None);
    }

    fn pool(template: Value, policy: &str) -> NodePool {
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "x"},
            "spec": {
                "disruption": {"consolidationPolicy": policy, "consolidateAfter": "30s"},
                "template": {"spec": {
                    "requirements": [],
                    "nodeClassRef": {"group": names::GROUP, "kind": "OVHNodeClass", "name": "default"},
                }},
            },
        });
        pool["spec"]["template"]["spec"]["requirements"] = template;
        serde_json::from_value(pool).expect("a pool")
    }

    #[test]
    fn owners_are_told_of_spot_and_of_consolidated_monthly_nodes() {
        let reasons = |pool: &NodePool, spec: Value| -> Vec<String> {
            findings(pool, &class(spec), &names::rules())
                .into_iter()
                .map(|own| own.reason)
                .collect()
        };
        let spot = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]);
        assert_eq!(reasons(&pool(spot, "WhenEmpty"), json!({})), ["NoSpotCapacity"]);
        let monthly = json!({"monthlyBilled": true});
        let any = pool(json!([]), "WhenEmptyOrUnderutilized");
        assert_eq!(reasons(&any, monthly.clone()), ["MonthlyBilledConsolidation"]);
        assert!(reasons(&any, json!({})).is_empty());
        let b3 = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b3-8"]}]);
        assert_eq!(reasons(&pool(b3, "WhenEmpty"), monthly), ["NoFlavorForMonthlyBilling"]);
    }
}
