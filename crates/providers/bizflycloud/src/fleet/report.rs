//! What nodes have, use and cost, and what could be saved, as metrics (§6.1, §6.5).

use std::{collections::BTreeMap, time::Duration};

use karpenter_api::{
    Quantity,
    conditions::StatusConditions,
    labels::{INSTANCE_TYPE, ZONE},
    node_claim::condition::CONSOLIDATABLE,
};
use karpenter_cloud::{clock::later, selection};

use super::{Member, Usage, claim_is_leaving};
use crate::{
    account::Account,
    catalogue::{PLAN_ON_DEMAND, PLAN_SAVING},
    client::wire::Server,
    cost::{Saving, Way},
    instance, labels as own,
    metrics::{FleetReport, NodeCost},
    node_class::BizflyCloudNodeClass,
    prices::Purchase,
    provider::Shared,
};

/// At 1.5 times the price of a subscription, a node that lives longer than this is cheaper by subscription.
const SUBSCRIPTION_PAYS: Duration = Duration::from_secs(20 * 24 * 3600);

pub(super) async fn of(
    shared: &Shared,
    members: &[Member<'_>],
    classes: &BTreeMap<String, BizflyCloudNodeClass>,
    usage: &Usage,
) -> FleetReport {
    let mut report = FleetReport {
        underutilized: members.iter().filter(|own| own.claim.is_true(CONSOLIDATABLE)).count(),
        ..FleetReport::default()
    };
    if members.len() <= shared.settings.most_node_series {
        report.nodes = utilization(members, usage);
    }
    for member in members {
        let Some(account) = member.account else { continue };
        let class = classes.get(&member.claim.spec.node_class_ref.name);
        let node_pool = member.claim.node_pool().unwrap_or_default();
        let (hourly, currency) = (
            costs_now(shared, member, account, class).await,
            member.currency(account),
        );
        report.costs.push(NodeCost {
            node_pool: node_pool.to_owned(),
            instance_type: member.label(INSTANCE_TYPE).to_owned(),
            zone: member.label(ZONE).to_owned(),
            billing_plan: member.label(own::BILLING_PLAN).to_owned(),
            currency: currency.to_owned(),
            hourly,
            since: member.server.and_then(Server::created_at),
        });
        let saving = match (member.stopped(), class) {
            _ if claim_is_leaving(member) => None,
            (Some(server), _) => {
                let server = server.id.clone();
                Some((Way::StoppedServer { server }, hourly))
            }
            // Prices in another currency tell nothing of what was paid.
            (None, Some(class)) if currency == account.currency => saving(shared, member, account, class).await,
            (None, _) => None,
        };
        report.savings.extend(saving.map(|(way, hourly)| Saving {
            node_pool: node_pool.to_owned(),
            way,
            currency: currency.to_owned(),
            hourly,
        }));
    }
    report
}

/// What was paid at launch, or the part of it that a stopped server costs, as far as can be told.
async fn costs_now(
    shared: &Shared,
    member: &Member<'_>,
    account: &Account,
    class: Option<&BizflyCloudNodeClass>,
) -> f64 {
    let paid = member.hourly_price();
    let (Some(server), Some(class)) = (member.stopped(), class) else {
        return paid;
    };
    let Ok(catalogue) = account.catalogue().await else {
        return paid;
    };
    match instance::purchase(server, &catalogue, &shared.facts(class, account)) {
        Some(purchase) => paid * account.prices().await.stopped_share(&purchase),
        None => paid,
    }
}

fn utilization(members: &[Member<'_>], usage: &Usage) -> Vec<(String, &'static str, f64, f64)> {
    let requests = usage.by_node();
    let mut nodes = Vec::new();
    for node in members.iter().filter_map(|member| member.node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let used = requests.get(name.as_str()).copied().unwrap_or_default();
        for (index, resource) in ["cpu", "memory"].into_iter().enumerate() {
            let amount = allocatable
                .and_then(|allocatable| allocatable.get(resource))
                .and_then(|amount| amount.0.parse::<Quantity>().ok())
                .map_or(0.0, Quantity::to_f64);
            let share = if amount > 0.0 { used[index] / amount } else { 0.0 };
            nodes.push((name.clone(), resource, amount, share));
        }
    }
    nodes
}

/// The one thing that would save most on a node: another plan, or a cheaper flavor of its size that its claim allows.
async fn saving(
    shared: &Shared,
    member: &Member<'_>,
    account: &Account,
    class: &BizflyCloudNodeClass,
) -> Option<(Way, f64)> {
    let server = member.server?;
    let paid = member.hourly_price();
    let catalogue = account.catalogue().await.ok()?;
    let purchase = instance::purchase(server, &catalogue, &shared.facts(class, account))?;
    let flavor = purchase.flavor;
    let mut savings = Vec::new();
    let is_old = server
        .created_at()
        .is_some_and(|at| shared.clock.now() >= later(at, SUBSCRIPTION_PAYS));
    let is_sold = flavor
        .billing_plans
        .as_ref()
        .is_none_or(|sold| sold.iter().any(|plan| plan == PLAN_SAVING));
    if is_old && is_sold && member.label(own::BILLING_PLAN) == PLAN_ON_DEMAND {
        let prices = account.prices().await;
        let price = |plan: &str| prices.hourly(&Purchase { plan, ..purchase });
        savings.push((Way::SavingPlan, price(PLAN_ON_DEMAND) - price(PLAN_SAVING)));
    }
    let types = shared.types_of(class, account, None).await.ok()?;
    let same_size = selection::candidates(member.claim, &types, shared.rules())
        .into_iter()
        .filter(|candidate| {
            // Another plan or disk is another saving, or another machine.
            let is_bought_alike = [own::BILLING_PLAN, own::DISK_TYPE].iter().all(|key| {
                let offered = candidate.offering.requirements.get(key);
                offered.is_none_or(|own| own.has(member.label(key)))
            });
            let other = catalogue.flavor(&candidate.instance_type.name);
            is_bought_alike
                && other.is_some_and(|other| {
                    other.name != flavor.name && (other.vcpus, other.ram) == (flavor.vcpus, flavor.ram)
                })
        })
        .min_by(|a, b| a.offering.price.total_cmp(&b.offering.price));
    if let Some(cheaper) = same_size.filter(|candidate| candidate.offering.price < paid) {
        let other = catalogue.flavor(&cheaper.instance_type.name)?;
        let (from, to) = (flavor.name.clone(), other.name.clone());
        let way = if other.category() == flavor.category() {
            Way::Generation { from, to }
        } else {
            Way::Category { from, to }
        };
        savings.push((way, paid - cheaper.offering.price));
    }
    savings
        .into_iter()
        .filter(|(_, amount)| *amount > 0.0)
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

impl Member<'_> {
    /// What was paid at launch.
    pub(super) fn hourly_price(&self) -> f64 {
        instance::price_at_launch(self.claim).unwrap_or_default()
    }

    /// What that is counted in.
    pub(super) fn currency<'a>(&'a self, account: &'a Account) -> &'a str {
        instance::currency_at_launch(self.claim).unwrap_or(&account.currency)
    }

    fn stopped(&self) -> Option<&Server> {
        self.server
            .filter(|server| matches!(server.status.as_str(), "SHUTOFF" | "SUSPENDED"))
    }
}
