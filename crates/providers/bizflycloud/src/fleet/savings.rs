//! What could be saved besides on nodes one by one: root disks that no server has, and spot where it is off (§6.5 e, f).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use karpenter_api::{
    NodePool, Requirements,
    labels::{CAPACITY_TYPE, CAPACITY_TYPE_SPOT},
};
use karpenter_cloud::{CloudError, error::CloudContext};
use kube::{Api, ResourceExt, api::ListParams};

use super::{Member, claim_is_leaving};
use crate::{
    account::Account,
    catalogue::{PLAN_ON_DEMAND, PLAN_SPOT},
    cost::{Saving, Way},
    instance, labels as own,
    node_class::BizflyCloudNodeClass,
    prices::Purchase,
    provider::Shared,
};

/// Everything that could be saved so. What can't be looked at is left out until the next time.
pub(super) async fn seldom(
    shared: &Shared,
    members: &[Member<'_>],
    classes: &BTreeMap<String, BizflyCloudNodeClass>,
    accounts: &[Arc<Account>],
) -> Vec<Saving> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for account in accounts {
        match orphans(shared, account, &mut seen).await {
            Ok(orphans) => found.extend(orphans),
            Err(error) => left_out(shared, "orphan volumes", &error),
        }
    }
    match spot(shared, members, classes).await {
        Ok(spot) => found.extend(spot),
        Err(error) => left_out(shared, "spot", &error),
    }
    found
}

fn left_out(shared: &Shared, what: &str, error: &CloudError) {
    let error = shared.accounts.redactor().redact(&error.to_string());
    tracing::debug!(
        error,
        what,
        "recommendations leave something out that cannot be looked at"
    );
}

/// Root disks that nobody has, and that no other ProviderConfig of the same project has shown. Those that were made for a claim
/// are deleted without anybody's doing.
async fn orphans(shared: &Shared, account: &Account, seen: &mut BTreeSet<String>) -> Result<Vec<Saving>, CloudError> {
    let volumes = shared.orphans(account).await?;
    let prices = account.prices().await;
    let savings = volumes
        .into_iter()
        .filter(|volume| !shared.ledger.is_recorded(&volume.id) && seen.insert(volume.id.clone()))
        .map(|volume| {
            let plan = match volume.billing_plan.as_str() {
                "" => PLAN_ON_DEMAND,
                plan => plan,
            };
            Saving {
                node_pool: String::new(),
                currency: account.currency.clone(),
                hourly: prices.disk(plan, volume.size),
                way: Way::OrphanVolume {
                    volume: volume.id,
                    name: volume.name,
                    size_gb: volume.size,
                    provider_config: account.name.clone(),
                },
            }
        });
    Ok(savings.collect())
}

/// Nodes on demand whose flavor is sold as spot too, and whose NodePool would take it, while their class has it off.
async fn spot(
    shared: &Shared,
    members: &[Member<'_>],
    classes: &BTreeMap<String, BizflyCloudNodeClass>,
) -> Result<Vec<Saving>, CloudError> {
    let mut savings = Vec::new();
    let mut willing: Option<BTreeSet<String>> = None;
    for member in members {
        let (Some(account), Some(server), Some(pool)) = (member.account, member.server, member.claim.node_pool())
        else {
            continue;
        };
        let Some(class) = classes.get(&member.claim.spec.node_class_ref.name) else {
            continue;
        };
        if class.spec.allows_spot()
            || server.status == "SHUTOFF"
            || claim_is_leaving(member)
            || member.label(own::BILLING_PLAN) != PLAN_ON_DEMAND
            || member.currency(account) != account.currency
        {
            continue;
        }
        let catalogue = account.catalogue().await.map_err(CloudError::from)?;
        let facts = shared.facts(class, account);
        let Some(purchase) = instance::purchase(server, &catalogue, &facts) else {
            continue;
        };
        if facts.spot_plan(purchase.flavor).is_none() {
            continue;
        }
        let willing = match &mut willing {
            Some(willing) => willing,
            none => none.insert(pools_that_allow_spot(shared).await?),
        };
        if !willing.contains(pool) {
            continue;
        }
        let price = account.prices().await.hourly(&Purchase {
            plan: PLAN_SPOT,
            ..purchase
        });
        let hourly = member.hourly_price() - price;
        if hourly > 0.0 {
            savings.push(Saving {
                node_pool: pool.to_owned(),
                way: Way::Spot,
                currency: account.currency.clone(),
                hourly,
            });
        }
    }
    Ok(savings)
}

/// NodePools that say nothing against spot.
async fn pools_that_allow_spot(shared: &Shared) -> Result<BTreeSet<String>, CloudError> {
    let pools: Api<NodePool> = Api::all(shared.kube.clone());
    let listed = pools
        .list(&ListParams::default())
        .await
        .cloud_context("listing NodePools")?;
    let willing = listed.items.iter().filter(|pool| {
        let asked = Requirements::from_wire(shared.rules(), &pool.spec.template.spec.requirements);
        let allows = |key: &str, value: &str| asked.get(key).is_none_or(|own| own.has(value));
        allows(CAPACITY_TYPE, CAPACITY_TYPE_SPOT) && allows(own::BILLING_PLAN, PLAN_SPOT)
    });
    Ok(willing.map(ResourceExt::name_any).collect())
}
