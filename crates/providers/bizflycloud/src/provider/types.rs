//! The instance types of a pool, computed when something changed and the same `Arc` otherwise.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{NodeClaim, NodePool, labels::CAPACITY_TYPE, requirement::Operator};
use karpenter_cloud::{CloudError, InstanceType, InstanceTypes, error::CloudContext, ownership::short_hash};
use kube::Api;

use super::Shared;
use crate::{
    account::Account,
    catalogue::{self, Availability, ClassFacts, CloudCatalogue, PLAN_ON_DEMAND, PLAN_SAVING},
    client::wire::Flavor,
    labels::{ON_DEMAND_SPELLINGS, SAVING_PLAN_SPELLINGS},
    node_class::BizflyCloudNodeClass,
    prices::Prices,
};

/// What was computed last, by class and plans.
pub(super) type TypesMemory = BTreeMap<(String, Option<Vec<String>>), Computed>;

pub(super) struct Computed {
    from: Inputs,
    region: String,
    types: InstanceTypes,
}

/// Everything the types depend on.
#[derive(PartialEq)]
struct Inputs {
    class: String,
    account: String,
    catalogue: Arc<CloudCatalogue>,
    prices: Arc<Prices>,
    refusals: u64,
    memory: u64,
}

struct NothingRefused;

impl Availability for NothingRefused {
    fn is_refused(&self, _: &Flavor, _: &str, _: &str) -> bool {
        false
    }
}

impl Shared {
    pub(super) async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let Some(class) = self.node_class(name).await? else {
            return Ok(Arc::from([]));
        };
        let account = self.accounts.get(class.spec.provider_config()).await?;
        self.types_of(&class, &account, plans_of(pool)).await
    }

    pub(crate) async fn types_of(
        &self,
        class: &BizflyCloudNodeClass,
        account: &Account,
        plans: Option<Vec<String>>,
    ) -> Result<InstanceTypes, CloudError> {
        let catalogue = account.catalogue().await.map_err(CloudError::from)?;
        let facts = ClassFacts {
            plans: plans.clone(),
            ..self.facts(class, account)
        };
        let prices = account.prices().await;
        let inputs = Inputs {
            class: fingerprint(class),
            account: account.fingerprint.clone(),
            catalogue: catalogue.clone(),
            prices: prices.clone(),
            refusals: self.refusals.version(),
            memory: self.ledger.memory_version(),
        };
        let slot = (facts.name.clone(), plans);
        if let Some(known) = self.types.lock().get(&slot)
            && known.from == inputs
        {
            return Ok(known.types.clone());
        }
        let refused = self.refusals.of(&account.name);
        let types: InstanceTypes = catalogue::instance_types(&catalogue, &facts, &prices, &refused).into();
        let region = account.region.region.short();
        for plan in [PLAN_ON_DEMAND, PLAN_SAVING] {
            self.metrics.quota_blocked(region, plan, refused.blocks(plan));
        }
        let computed = Computed {
            from: inputs,
            region: region.to_owned(),
            types: types.clone(),
        };
        self.types.lock().insert(slot, computed);
        self.count_offers();
        Ok(types)
    }

    /// The types as if nothing had been refused: what exists already takes neither stock nor quota.
    pub(super) async fn types_regardless(
        &self,
        class: &BizflyCloudNodeClass,
        account: &Account,
        plans: Option<Vec<String>>,
    ) -> Result<Vec<Arc<InstanceType>>, CloudError> {
        let catalogue = account.catalogue().await.map_err(CloudError::from)?;
        let facts = ClassFacts {
            plans,
            ..self.facts(class, account)
        };
        let prices = account.prices().await;
        Ok(catalogue::instance_types(&catalogue, &facts, &prices, &NothingRefused))
    }

    /// Tells what is for sale to any class.
    fn count_offers(&self) {
        let types = self.types.lock();
        let all: Vec<(String, InstanceTypes)> = types
            .values()
            .map(|own| (own.region.clone(), own.types.clone()))
            .collect();
        drop(types);
        self.metrics.offers(&all);
        self.metrics.refusals(self.refusals.all().counts());
    }

    /// Classes that are gone need no types.
    pub(crate) fn forget_types_of_others(&self, classes: &BTreeMap<String, BizflyCloudNodeClass>) {
        let mut types = self.types.lock();
        let before = types.len();
        types.retain(|(class, _), _| classes.contains_key(class));
        let is_less = types.len() < before;
        drop(types);
        if is_less {
            self.count_offers();
        }
    }

    /// The plans that a claim's pool restricts itself to by old capacity types.
    pub(super) async fn plans_of_claim(&self, claim: &NodeClaim) -> Result<Option<Vec<String>>, CloudError> {
        Ok(self.pool_of(claim).await?.as_ref().and_then(plans_of))
    }

    /// How a claim's pool spells the capacity type of servers that are paid so, if in an old way.
    pub(super) async fn capacity_type_of(&self, claim: &NodeClaim, plan: &str) -> Result<Option<String>, CloudError> {
        let pool = self.pool_of(claim).await?;
        Ok(pool.and_then(|pool| spelling_of(&pool, plan)))
    }

    async fn pool_of(&self, claim: &NodeClaim) -> Result<Option<NodePool>, CloudError> {
        let Some(name) = claim.node_pool() else { return Ok(None) };
        let pools: Api<NodePool> = Api::all(self.kube.clone());
        pools
            .get_opt(name)
            .await
            .cloud_context(format!("reading NodePool {name}"))
    }
}

/// What of a class its types depend on.
fn fingerprint(class: &BizflyCloudNodeClass) -> String {
    let status = class.status.clone().unwrap_or_default();
    let parts = serde_json::json!([class.metadata.uid, class.spec, status.zones, status.images]);
    short_hash(&parts.to_string())
}

/// Old capacity types name a billing plan: `saving_plan` means on-demand capacity paid by subscription. A pool that says
/// nothing of the kind leaves the choice to its class.
pub(super) fn plans_of(pool: &NodePool) -> Option<Vec<String>> {
    let mut plans = Vec::new();
    for value in capacity_types(pool)? {
        if SAVING_PLAN_SPELLINGS.contains(&value.as_str()) {
            plans.push(PLAN_SAVING.to_owned());
        } else if ON_DEMAND_SPELLINGS.contains(&value.as_str()) {
            plans.push(PLAN_ON_DEMAND.to_owned());
        } else {
            // A current value: the class decides.
            return None;
        }
    }
    plans.sort();
    plans.dedup();
    (!plans.is_empty()).then_some(plans)
}

/// The first old spelling of a pool that means this plan: claims name the current one, whatever their pods select by.
fn spelling_of(pool: &NodePool, plan: &str) -> Option<String> {
    let spellings: &[&str] = match plan {
        PLAN_SAVING => &SAVING_PLAN_SPELLINGS,
        PLAN_ON_DEMAND => &ON_DEMAND_SPELLINGS,
        _ => &[],
    };
    let mut own = capacity_types(pool)?.iter();
    own.find(|value| spellings.contains(&value.as_str())).cloned()
}

/// The capacity types that a pool names.
fn capacity_types(pool: &NodePool) -> Option<&[String]> {
    let mut requirements = pool.spec.template.spec.requirements.iter();
    let asked = requirements.find(|own| own.key == CAPACITY_TYPE && own.operator == Operator::In)?;
    Some(&asked.values)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(values: &[&str], plans: Option<&[&str]>) {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"},
            "spec": {"template": {"spec": {
                "nodeClassRef": {"group": "g", "kind": "K", "name": "n"},
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": values}],
            }}},
        }))
        .expect("a pool");
        let plans = plans.map(|plans| plans.iter().map(|plan| (*plan).to_owned()).collect());
        assert_eq!(plans_of(&pool), plans, "{values:?}");
    }

    #[test]
    fn old_capacity_types_choose_a_plan() {
        check(&["saving_plan"], Some(&["saving_plan"]));
        check(&["subscription", "saving-plan"], Some(&["saving_plan"]));
        check(&["on_demand"], Some(&["on_demand"]));
        check(&["on-demand"], None);
        check(&["on_demand", "spot"], None);
    }
}
