//! What the NodeClaims of each NodePool cost per hour (lifecycle.md §3.2).

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::NodeClaim;
use karpenter_api::labels::{self, LabelRules};
use karpenter_cloud::InstanceType;
use kube::ResourceExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::metrics::{Counter, Registry};

/// Instance type, zone and capacity type: what has a price.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfferingKey {
    /// `node.kubernetes.io/instance-type`.
    pub instance_type: String,
    /// `topology.kubernetes.io/zone`.
    pub zone: String,
    /// `karpenter.sh/capacity-type`.
    pub capacity_type: String,
}

/// Running NodeClaims by NodePool and offering, and the prices that were last heard of.
#[derive(Debug)]
pub struct ClusterCost {
    ledger: Mutex<Ledger>,
    errors: Counter<1>,
}

#[derive(Debug, Default)]
struct Ledger {
    claims: FxHashMap<String, (String, OfferingKey)>,
    prices: BTreeMap<String, BTreeMap<OfferingKey, f64>>,
}

impl ClusterCost {
    pub(super) fn new(registry: &Registry) -> Self {
        let errors = registry.counter(
            "karpenter_nodepools_cost_tracker_errors_total",
            "Failures to learn what the nodes of a NodePool cost.",
            ["nodepool"],
        );
        Self {
            ledger: Mutex::default(),
            errors,
        }
    }

    /// Starts counting a NodeClaim once it carries the labels that give it a price.
    pub(super) fn update_claim(&self, claim: &NodeClaim, rules: &LabelRules) {
        let label = |key: &str| claim.labels().get(key).filter(|value| !value.is_empty()).cloned();
        let (Some(instance_type), Some(zone), Some(capacity_type), Some(pool)) = (
            label(labels::INSTANCE_TYPE),
            label(labels::ZONE),
            label(labels::CAPACITY_TYPE),
            label(labels::NODEPOOL),
        ) else {
            return;
        };
        let key = OfferingKey {
            instance_type,
            zone: rules.canonical_value(labels::ZONE, &zone).to_owned(),
            capacity_type: rules.canonical_value(labels::CAPACITY_TYPE, &capacity_type).to_owned(),
        };
        self.ledger.lock().claims.entry(claim.name_any()).or_insert((pool, key));
    }

    pub(super) fn remove_claim(&self, claim: &str) {
        self.ledger.lock().claims.remove(claim);
    }

    pub(super) fn forget_pool(&self, pool: &str) {
        let mut ledger = self.ledger.lock();
        ledger.prices.remove(pool);
        ledger.claims.retain(|_, (owner, _)| owner != pool);
    }

    /// Takes in the prices of a pool's offerings. A price that is no longer offered keeps its last value: the machine
    /// still runs, and still costs what it did.
    pub fn update_prices(&self, pool: &str, types: &[Arc<InstanceType>]) {
        let mut ledger = self.ledger.lock();
        let prices = ledger.prices.entry(pool.to_owned()).or_default();
        for instance_type in types {
            for offering in &instance_type.offerings {
                let single = |key: &str| {
                    let values = offering.requirements.get(key)?;
                    values.single_value().map(str::to_owned)
                };
                let (Some(zone), Some(capacity_type)) = (single(labels::ZONE), single(labels::CAPACITY_TYPE)) else {
                    continue;
                };
                let key = OfferingKey {
                    instance_type: instance_type.name.clone(),
                    zone,
                    capacity_type,
                };
                prices.insert(key, offering.price);
            }
        }
    }

    /// Notes that a pool's prices could not be had.
    pub fn failed(&self, pool: &str) {
        self.errors.inc([pool]);
    }

    /// What the pool's NodeClaims cost per hour together; unknown prices count 0.
    pub fn pool_cost(&self, pool: &str) -> f64 {
        let ledger = self.ledger.lock();
        let Some(prices) = ledger.prices.get(pool) else {
            return 0.0;
        };
        let owned = ledger.claims.values().filter(|(owner, _)| owner == pool);
        owned.filter_map(|(_, key)| prices.get(key)).sum()
    }
}
