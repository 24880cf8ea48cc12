//! What nodes have, use and cost, and what could be saved, as metrics (§6.1, §6.5).

use std::{collections::BTreeMap, time::Duration};

use karpenter_api::{
    Quantity,
    conditions::StatusConditions,
    labels::{INSTANCE_TYPE, ZONE},
    node_claim::condition::CONSOLIDATABLE,
};
use karpenter_cloud::{clock::later, selection};

use super::{Member, Usage};
use crate::{
    account::Account,
    catalogue::{CloudCatalogue, PLAN_ON_DEMAND, PLAN_SAVING},
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
/// A stopped server costs this part of its price.
const STOPPED_SHARE: f64 = 0.3;

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
        let hourly = member.hourly_price();
        report.costs.push(NodeCost {
            node_pool: member.claim.node_pool().unwrap_or_default().to_owned(),
            instance_type: member.label(INSTANCE_TYPE).to_owned(),
            zone: member.label(ZONE).to_owned(),
            billing_plan: member.label(own::BILLING_PLAN).to_owned(),
            currency: account.currency.clone(),
            hourly,
            since: member.server.and_then(Server::created_at),
        });
        let class = classes.get(&member.claim.spec.node_class_ref.name);
        if let Some(class) = class
            && let Ok(catalogue) = account.catalogue().await
            && let Some((way, hourly)) = saving(shared, member, account, class, &catalogue).await
        {
            report.savings.push(Saving {
                node_pool: member.claim.node_pool().unwrap_or_default().to_owned(),
                way,
                currency: account.currency.clone(),
                hourly,
            });
        }
    }
    report
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
    catalogue: &CloudCatalogue,
) -> Option<(Way, f64)> {
    let server = member.server?;
    let paid = member.hourly_price();
    if server.status == "SHUTOFF" {
        let server = server.id.clone();
        return Some((Way::StoppedServer { server }, paid * STOPPED_SHARE));
    }
    let flavor = catalogue.flavor(instance::canonical_flavor(server, catalogue))?;
    let facts = shared.facts(class, account);
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
        let price = |plan: &str| {
            prices.hourly(&Purchase {
                flavor,
                zone: server.zone(),
                plan,
                disk_type: member.label(own::DISK_TYPE),
                disk_gib: facts.disk_gib(),
            })
        };
        savings.push((Way::SavingPlan, price(PLAN_ON_DEMAND) - price(PLAN_SAVING)));
    }
    let types = shared.types_of(class, account, None).await.ok()?;
    let same_size = selection::candidates(member.claim, &types, shared.rules())
        .into_iter()
        .filter(|candidate| {
            let other = catalogue.flavor(&candidate.instance_type.name);
            other.is_some_and(|other| {
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
}
