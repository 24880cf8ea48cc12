//! The status of a ProviderConfig: credentials, region, billing.

use std::time::Duration;

use karpenter_api::{
    conditions::{READY, StatusConditions},
    validation,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};

use super::{Verdict, is_outdated, status_patch};
use crate::{
    account::{Account, AccountError},
    client::{ApiError, ErrorClass},
    problem::Problem,
    provider::Shared,
    provider_config::{
        self, Billing, ProviderConfig,
        conditions::{API_REACHABLE, BILLING_READY, CREDENTIALS_READY, REGION_READY},
    },
};

const MOST_TYPES: usize = 500;

pub(super) async fn reconcile(shared: &Shared, configs: &Api<ProviderConfig>, config: ProviderConfig) -> Verdict {
    let name = config.metadata.name.clone().unwrap_or_default();
    let before = config.status.clone().unwrap_or_default();
    let mut config = config;
    // Before the verdicts: what is false there makes the whole not ready.
    reachability(shared, &name, &mut config).await;
    judge(shared, &name, &mut config).await;
    tell(shared, &config).await;
    renewal(shared, &name, &config).await;
    config.status.get_or_insert_default().observed_generation = config.metadata.generation;
    let verdict = if config.is_ready() {
        Verdict::InOrder
    } else {
        Verdict::NotInOrder
    };
    let mut after = config.status.clone().unwrap_or_default();
    // `Ready` goes through other verdicts while it is summed up; only a change from before is a transition.
    let was = before.conditions.iter().find(|condition| condition.type_ == READY);
    let is = after.conditions.iter_mut().find(|condition| condition.type_ == READY);
    if let (Some(was), Some(is)) = (was, is)
        && was.status == is.status
    {
        is.last_transition_time = was.last_transition_time.clone();
    }
    after.last_updated = before.last_updated;
    if after != before {
        after.last_updated = Some(shared.clock.now());
    }
    let Some(patch) = status_patch(config.metadata.resource_version.as_ref(), &before, &after) else {
        return verdict;
    };
    match configs
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => verdict,
        Err(error) if is_outdated(&error) => Verdict::NotInOrder,
        Err(error) => {
            tracing::warn!(ProviderConfig = name, %error, "the status cannot be written");
            Verdict::NotInOrder
        }
    }
}

async fn judge(shared: &Shared, name: &str, config: &mut ProviderConfig) {
    let now = shared.clock.now();
    let account = match shared.accounts.get(name).await {
        Ok(account) => account,
        Err(AccountError::Problem(problem)) => {
            let condition = if problem.reason == "UnknownRegion" {
                REGION_READY
            } else {
                CREDENTIALS_READY
            };
            let _ = config.set_false(condition, problem.reason, &problem.message, now);
            return;
        }
        Err(AccountError::Cluster(error)) => {
            let _ = config.set_unknown(CREDENTIALS_READY, "ClusterUnavailable", &error.to_string(), now);
            return;
        }
    };
    let prefix = account.tagging.tag_prefix.clone();
    let prefixes = &mut config.status.get_or_insert_default().tag_prefixes;
    if !prefixes.contains(&prefix) {
        prefixes.push(prefix);
    }
    match account.api.authenticate().await {
        Ok(project) => {
            let _ = config.set_condition(
                CREDENTIALS_READY,
                karpenter_api::conditions::ConditionStatus::True,
                "ProviderReady",
                "",
                now,
            );
            config.status.get_or_insert_default().project_id = Some(project).filter(|project| !project.is_empty());
        }
        Err(error) => {
            let problem = credential_problem(&error);
            if error.is_about_credentials() {
                let _ = config.set_false(CREDENTIALS_READY, problem.reason, &problem.message, now);
            } else {
                let _ = config.set_unknown(CREDENTIALS_READY, problem.reason, &problem.message, now);
            }
            return;
        }
    }
    if let Some(expiry) = account.api.token_expires_at() {
        let left = Duration::try_from(expiry.duration_since(now)).unwrap_or_default();
        shared.metrics.token_expires_in(name, left.as_secs_f64());
    }
    region(&account, config, now).await;
    let findings = provider_config::validation::findings(&config.spec);
    let invalid = (!findings.is_empty()).then(|| Problem::new("InvalidSpec", validation::message(&findings)));
    if let Some(problem) = &invalid {
        shared.events.warn(config, problem.reason, &problem.message).await;
    }
    let blocked = billing(shared, &account, config, now).await.or(invalid);
    if let Ok(catalogue) = account.catalogue().await {
        let usable = catalogue.flavors.iter().filter(|flavor| flavor.is_usable());
        let mut names: Vec<String> = usable.map(|flavor| flavor.name.clone()).collect();
        names.truncate(MOST_TYPES);
        config.status.get_or_insert_default().instance_types = names;
    }
    if let Some(problem) = blocked {
        let _ = config.set_false(READY, problem.reason, &problem.message, now);
    }
}

/// Whether the API is left alone because it kept failing.
async fn reachability(shared: &Shared, name: &str, config: &mut ProviderConfig) {
    let Ok(account) = shared.accounts.get(name).await else {
        return;
    };
    let now = shared.clock.now();
    match account.api.left_alone_until() {
        Some(until) => {
            let message = format!("the API kept failing and is left alone until {until}");
            let _ = config.set_false(API_REACHABLE, "CircuitOpen", &message, now);
        }
        None => {
            let _ = config.set_true(API_REACHABLE, now);
        }
    }
    if shared.accounts.take_rotation(name) {
        let message = "the credentials were replaced and are in use";
        shared.events.tell(config, "CredentialsRotated", message).await;
    }
    if let Some(problem) = &account.price_problem {
        let message = format!("the previous prices stay in use: {problem}");
        shared.events.warn(config, "InvalidPrices", &message).await;
    }
    account.refresh_prices().await;
    if let Some(problem) = account.billing_problem() {
        let message = format!("prices that were read before, or estimates, are in use: {problem}");
        shared.events.warn(config, "BillingAPIUnavailable", &message).await;
    }
}

/// A token that can't be renewed is news before it ends.
async fn renewal(shared: &Shared, name: &str, config: &ProviderConfig) {
    let Ok(account) = shared.accounts.get(name).await else {
        return;
    };
    if let Some(problem) = account.api.token_not_renewed() {
        let message = format!("the token could not be renewed and serves until it ends: {problem}");
        shared.events.warn(config, "TokenRefreshFailed", &message).await;
    }
}

/// Conditions that are false are events too.
async fn tell(shared: &Shared, config: &ProviderConfig) {
    for condition in config.conditions() {
        let is_news = match condition.type_.as_str() {
            API_REACHABLE | REGION_READY | BILLING_READY => condition.is_false(),
            // Where credentials could not be tried, the API is the problem.
            CREDENTIALS_READY => condition.is_false() || condition.is_unknown(),
            _ => false,
        };
        if !is_news || condition.message.is_empty() {
            continue;
        }
        let reason = match (condition.type_.as_str(), condition.reason.as_str()) {
            (API_REACHABLE, _) | (CREDENTIALS_READY, "APIUnreachable") => "APIUnreachable",
            (CREDENTIALS_READY, "Unauthorized" | "Forbidden" | "ProjectMismatch") => "AuthenticationFailed",
            (_, reason) => reason,
        };
        shared.events.warn(config, reason, &condition.message).await;
    }
}

/// The region is one that exists and that the account may use.
async fn region(account: &Account, config: &mut ProviderConfig, now: jiff::Timestamp) {
    let ours = account.region.region;
    let regions = match account.api.regions().await {
        Ok(regions) => regions,
        Err(error) => {
            let problem = credential_problem(&error);
            if error.class == ErrorClass::ServiceNotInCatalog {
                let _ = config.set_false(REGION_READY, problem.reason, &problem.message, now);
            } else {
                let _ = config.set_unknown(REGION_READY, problem.reason, &problem.message, now);
            }
            return;
        }
    };
    let status = config.status.get_or_insert_default();
    status.regions = regions
        .iter()
        .filter(|region| region.active)
        .map(|region| region.short_name.clone())
        .collect();
    let found = regions
        .iter()
        .find(|region| ours.is(&region.short_name) && region.active);
    status.zones = found
        .map(|region| &region.zones[..])
        .unwrap_or_default()
        .iter()
        .filter(|zone| zone.active)
        .map(|zone| zone.short_name.clone())
        .collect();
    let allowed = match account.api.user().await {
        Ok(user) => {
            user.user_regions.is_empty()
                || user
                    .user_regions
                    .iter()
                    .any(|own| ours.is(&own.short_name) || ours.is(&own.code))
        }
        // Not every credential may read the account; then the region list decides.
        Err(_) => true,
    };
    if found.is_some() && allowed {
        let _ = config.set_true(REGION_READY, now);
    } else {
        let there = config
            .status
            .as_ref()
            .map(|status| status.regions.join(", "))
            .unwrap_or_default();
        let message = format!("the account may not use region {ours}; it may use {there}");
        let _ = config.set_false(REGION_READY, "RegionNotAllowed", &message, now);
    }
}

/// An account that has to be paid up launches nothing; one that can't be read about does.
async fn billing(
    shared: &Shared,
    account: &Account,
    config: &mut ProviderConfig,
    now: jiff::Timestamp,
) -> Option<Problem> {
    if let Some(why) = shared.accounts.unpaid(&account.name) {
        let problem = Problem::new("PaymentRequired", format!("an order was refused: {why}"));
        let _ = config.set_false(BILLING_READY, problem.reason, &problem.message, now);
        return Some(problem);
    }
    let user = match account.api.user().await {
        Ok(user) => user,
        Err(error) if error.class == ErrorClass::Payment => {
            let problem = Problem::new("PaymentRequired", error.to_string());
            let _ = config.set_false(BILLING_READY, problem.reason, &problem.message, now);
            return Some(problem);
        }
        Err(error) => {
            let _ = config.set_unknown(BILLING_READY, "NotReadable", &error.to_string(), now);
            return None;
        }
    };
    config.status.get_or_insert_default().billing = Some(Billing {
        balance: user.billing_balance,
        negative: user.negative_balance,
        expired_invoice: user.has_expired_invoice,
    });
    let problem = if user.negative_balance {
        Some(Problem::new(
            "NegativeBalance",
            format!(
                "the account's balance is {} VND; nothing is launched until it is paid up",
                user.billing_balance
            ),
        ))
    } else if user.has_expired_invoice {
        Some(Problem::new(
            "ExpiredInvoice",
            "an invoice of the account is overdue; nothing is launched until it is paid",
        ))
    } else {
        None
    };
    shared
        .metrics
        .balance(&account.name, user.billing_balance, problem.is_none());
    match &problem {
        Some(problem) => {
            let _ = config.set_false(BILLING_READY, problem.reason, &problem.message, now);
        }
        None => {
            let _ = config.set_true(BILLING_READY, now);
        }
    }
    problem
}

/// The reason of a condition for an error of the API.
pub(super) fn credential_problem(error: &ApiError) -> Problem {
    let reason = match error.class {
        ErrorClass::Auth => "Unauthorized",
        ErrorClass::Forbidden => "Forbidden",
        ErrorClass::ProjectMismatch => "ProjectMismatch",
        ErrorClass::ServiceNotInCatalog => "ServiceNotInCatalog",
        ErrorClass::Payment => "PaymentRequired",
        ErrorClass::Transient
        | ErrorClass::Unreachable
        | ErrorClass::Ambiguous
        | ErrorClass::RateLimited
        | ErrorClass::Conflict
        | ErrorClass::NotFound
        | ErrorClass::Invalid
        | ErrorClass::Quota
        | ErrorClass::Stock => "APIUnreachable",
    };
    Problem::new(reason, error.to_string())
}
