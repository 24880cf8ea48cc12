//! Checks one class from its credentials to its prices, and fills in its status on the way.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::StatusConditions;
use karpenter_cloud::events::Announcement;

use crate::{
    catalogue::PriceList,
    client::model::{ClusterClass, Flavor},
    directory::{Connection, Problem},
    node_class::{ClusterStatus, CredentialStatus, OvhNodeClass, PoolsStatus, PricingStatus, condition},
    provider::{Shared, subsidiary},
};

const AN_HOUR: Duration = Duration::from_secs(60 * 60);
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All that is wrong with a class; later checks are left out when earlier ones fail.
pub(super) async fn check(shared: &Shared, class: &mut OvhNodeClass) -> Vec<Problem> {
    let connection = match shared.connect(class).await {
        Ok(connection) => connection,
        Err(problem) => return vec![problem],
    };
    if connection.cluster.class() == ClusterClass::Transient {
        shared.engine.unquiet();
    }
    describe(class, &connection);
    warn(shared, class, &connection).await;
    if let Some(tag) = class.spec.forbidden_tag() {
        return vec![invalid(
            "InvalidTags",
            format!("tag {tag} is a label of another's domain; use another key"),
        )];
    }
    if class.spec.has_floating_ips() && !connection.cluster.is_standard() {
        let message = "floating addresses need a cluster of the Standard plan; remove spec.attachFloatingIps";
        return vec![invalid("FloatingIPsNotSupported", message)];
    }
    // Needed for launches and deletions: a missing right shows here and not at the first launch.
    if let Err(error) = shared.engine.pools(std::time::Duration::ZERO).await {
        return vec![Problem::of(error, condition::CLUSTER_READY, "ClusterNotFound")];
    }
    let flavors = match shared.supply.flavors(&connection).await {
        Ok(flavors) => flavors,
        Err(message) => {
            return vec![Problem {
                condition: condition::FLAVORS_READY,
                reason: "ListFailed",
                message,
                temporary: false,
            }];
        }
    };
    let prices = price(shared, class, &connection).await;
    pools(shared, class).await;
    let status = class.status.get_or_insert_default();
    status.discovered_flavors = discovered(&flavors);
    if class.spec.is_monthly()
        && !flavors
            .iter()
            .any(|own| own.is_available() && prices.sells_monthly(&own.name))
    {
        let message = "the cluster has no flavor that can be billed by the month (families b2, c2, d2 and r2)";
        return vec![invalid("NoFlavorForMonthlyBilling", message)];
    }
    Vec::new()
}

fn invalid(reason: &'static str, message: impl Into<String>) -> Problem {
    Problem {
        condition: condition::VALIDATION_SUCCEEDED,
        reason,
        message: message.into(),
        temporary: false,
    }
}

fn discovered(flavors: &[Flavor]) -> Vec<String> {
    let available = flavors.iter().filter(|own| own.is_available());
    let mut names: Vec<String> = available.map(|own| own.name.clone()).collect();
    names.sort();
    names
}

/// Days before a key's end on which that is said.
const EXPIRY_DAYS: [i64; 4] = [1, 3, 7, 14];

/// Tells of what is not wrong yet.
async fn warn(shared: &Shared, class: &OvhNodeClass, connection: &Connection) {
    let expiry = connection.probe.credential.as_ref().and_then(|own| own.expiration);
    let due = expiry.and_then(|expiry| expiring(expiry, shared.clock.now()).map(|days| (expiry, days)));
    if let Some((expiry, days)) = due {
        let message = format!("the API key ends within {days} days, at {expiry}; write a new one into the Secret");
        let told = Announcement::warning("CredentialExpiring", message).quiet_for(A_DAY * 30);
        shared.events.on_class(class.name(), told).await;
    }
}

/// The smallest of the days on which an expiry is told that has come.
fn expiring(expiry: Timestamp, now: Timestamp) -> Option<i64> {
    let left = expiry.duration_since(now);
    let days = EXPIRY_DAYS.into_iter();
    days.into_iter()
        .find(|days| left <= SignedDuration::from_hours(days * 24))
}

fn describe(class: &mut OvhNodeClass, connection: &Connection) {
    let cluster = &connection.cluster;
    let credential = connection.probe.credential.as_ref();
    let status = class.status.get_or_insert_default();
    status.cluster = Some(ClusterStatus {
        kube_id: connection.api.kube_id().to_owned(),
        name: cluster.name.clone(),
        region: cluster.region.clone(),
        plan: cluster.plan.clone().unwrap_or_else(|| "free".to_owned()),
        version: cluster.version.clone(),
        status: cluster.status.clone(),
        update_policy: cluster.update_policy.clone(),
    });
    status.zones = connection.zones.names.clone();
    status.optional_rights = connection.probe.rights.clone();
    status.credential = Some(CredentialStatus {
        method: connection.api.client().method().name().to_owned(),
        expires_at: credential.and_then(|own| own.expiration).map(|at| at.to_string()),
        allowed_ips: credential.map(|own| own.allowed_ips.clone()).unwrap_or_default(),
    });
}

async fn price(shared: &Shared, class: &mut OvhNodeClass, connection: &Connection) -> std::sync::Arc<PriceList> {
    let subsidiary = subsidiary(connection, &shared.settings);
    let prices = shared.supply.prices(connection, &subsidiary).await;
    let now = shared.clock.now();
    let read_at = shared.supply.prices_read_at().map(|at| at.to_string());
    class.status.get_or_insert_default().pricing = Some(PricingStatus {
        subsidiary,
        currency: Some(prices.currency.clone()).filter(|currency| !currency.is_empty()),
        refreshed_at: read_at,
        source: if prices.is_known() { "Catalog" } else { "Estimate" }.to_owned(),
    });
    let _ = match shared.supply.prices_error() {
        _ if prices.is_known() => class.set_true(condition::PRICING_READY, now),
        Some(error) => {
            let message = format!("prices are estimated until the catalogue can be read: {error}");
            class.set_false(condition::PRICING_READY, "CatalogUnavailable", &message, now)
        }
        None => {
            let message = "the catalogue has no prices of flavors; they are estimated";
            class.set_false(condition::PRICING_READY, "EstimatedPrices", message, now)
        }
    };
    prices
}

async fn pools(shared: &Shared, class: &mut OvhNodeClass) {
    let counts = shared.engine.counts();
    let used = counts.owned + counts.legacy + counts.foreign;
    let now = shared.clock.now();
    let advice = if class.spec.is_anti_affine() {
        "; node pools with antiAffinity hold 5 nodes each and use the limit up fast"
    } else {
        ""
    };
    let message = format!(
        "{used} of {} node pools are in use ({} of them not Karpenter's); use fewer NodePools or flavors{advice}",
        counts.limit, counts.foreign
    );
    let reason = if used >= counts.limit {
        Some("PoolLimitReached")
    } else if f64::from(used) >= f64::from(counts.limit) * 0.9 {
        Some("PoolLimitNear")
    } else {
        None
    };
    match reason {
        Some(reason) => {
            let _ = class.set_false(condition::POOL_CAPACITY_AVAILABLE, reason, &message, now);
            let told = Announcement::warning(reason, message).quiet_for(AN_HOUR);
            shared.events.on_class(class.name(), told).await;
        }
        None => drop(class.set_true(condition::POOL_CAPACITY_AVAILABLE, now)),
    }
    let autoscaled = shared.engine.foreign_autoscaled();
    if !autoscaled.is_empty() {
        let message = format!(
            "OVHcloud's own autoscaler runs for {}: both may answer the same pending pods; switch it off, or keep its pods \
             away by taints",
            autoscaled.join(", ")
        );
        let told = Announcement::warning("ForeignAutoscaler", message).quiet_for(A_DAY);
        shared.events.on_class(class.name(), told).await;
    }
    class.status.get_or_insert_default().pools = Some(PoolsStatus {
        owned: counts.owned,
        foreign: counts.foreign + counts.legacy,
        limit: counts.limit,
        nodes: counts.nodes,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_told_on_fixed_days() {
        let now = Timestamp::UNIX_EPOCH;
        let check = |days: i64, expected: Option<i64>| {
            let expiry = now + SignedDuration::from_hours(days * 24);
            assert_eq!(expiring(expiry, now), expected, "{days} days");
        };
        check(15, None);
        check(14, Some(14));
        check(5, Some(7));
        check(2, Some(3));
        check(0, Some(1));
    }
}
