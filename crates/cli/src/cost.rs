//! What a cluster's nodes at BizFly Cloud cost: its NodeClaims, and the page that the controller keeps.

mod report;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_api::NodeClaim;
use karpenter_bizflycloud::cost::{CONFIG_MAP, CostPage, PAGE};
use karpenter_bizflycloud::{BizflyCloudNodeClass, ProviderConfig, instance};
use karpenter_cloud::NodeClassKind;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::doctor::{self, Installation};
use crate::error::CliError;

pub(crate) use report::{write_json, write_text};

/// What is paid for.
#[derive(Debug)]
pub(crate) struct Bill {
    /// By name.
    pools: Vec<PoolCost>,
    /// What the controller stored, if it did.
    page: Option<CostPage>,
    /// Where that is, or would be.
    place: String,
    now: Timestamp,
}

#[derive(Debug, PartialEq)]
struct PoolCost {
    node_pool: String,
    currency: String,
    nodes: usize,
    per_hour: f64,
    /// `None` where nobody counted this month.
    month_to_date: Option<f64>,
}

const DEFAULT_CURRENCY: &str = "VND";

/// Asks the cluster.
///
/// # Errors
/// When it does not answer, or does not tell.
pub(crate) async fn read(namespace: Option<&str>, now: Timestamp) -> Result<Bill, CliError> {
    let (_, client) = doctor::connect()
        .await
        .map_err(|error| CliError::unreachable(format!("the cluster can't be reached: {error}")))?;
    let kind = NodeClassKind::of::<BizflyCloudNodeClass>();
    let mut claims = listed::<NodeClaim>(&client, "NodeClaims").await?;
    claims.retain(|claim| {
        let reference = &claim.spec.node_class_ref;
        kind.is_meant_by(&reference.group, &reference.kind) && claim.provider_id().is_some()
    });
    let currencies = match claims.as_slice() {
        [] => BTreeMap::new(),
        _ => currencies(&client).await?,
    };
    let namespace = Installation::find(&client, namespace).await.namespace;
    let page = stored(&client, &namespace).await?;
    Ok(Bill {
        pools: pools(&claims, &currencies, page.as_ref().filter(|page| page.is_of_month(now))),
        page,
        place: format!("{namespace}/{CONFIG_MAP}"),
        now,
    })
}

/// What NodePools have now, and what they had this month.
fn pools(claims: &[NodeClaim], currencies: &BTreeMap<String, String>, page: Option<&CostPage>) -> Vec<PoolCost> {
    let mut pools: BTreeMap<(&str, &str), PoolCost> = BTreeMap::new();
    let new = |node_pool: &str, currency: &str| PoolCost {
        node_pool: node_pool.to_owned(),
        currency: currency.to_owned(),
        nodes: 0,
        per_hour: 0.0,
        month_to_date: page.map(|_| 0.0),
    };
    for claim in claims {
        let node_pool = claim.node_pool().unwrap_or_default();
        let of_class = || currencies.get(&claim.spec.node_class_ref.name).map(String::as_str);
        let currency = instance::currency_at_launch(claim)
            .or_else(of_class)
            .unwrap_or(DEFAULT_CURRENCY);
        let pool = pools
            .entry((node_pool, currency))
            .or_insert_with(|| new(node_pool, currency));
        pool.nodes += 1;
        pool.per_hour += instance::price_at_launch(claim).unwrap_or_default();
    }
    for spent in page.iter().flat_map(|page| &page.node_pools) {
        let (node_pool, currency) = (spent.node_pool.as_str(), spent.currency.as_str());
        let pool = pools
            .entry((node_pool, currency))
            .or_insert_with(|| new(node_pool, currency));
        pool.month_to_date = Some(spent.amount);
    }
    pools.into_values().collect()
}

/// What prices are counted in, by class, for claims that don't tell.
async fn currencies(client: &Client) -> Result<BTreeMap<String, String>, CliError> {
    let configs = listed::<ProviderConfig>(client, "ProviderConfigs").await?;
    let of_config: BTreeMap<String, String> = configs
        .into_iter()
        .filter_map(|config| Some((config.name_any(), config.spec.pricing?.currency?)))
        .collect();
    let classes = listed::<BizflyCloudNodeClass>(client, "BizflyCloudNodeClasses").await?;
    let of_class = classes.into_iter().filter_map(|class| {
        let currency = of_config.get(class.spec.provider_config())?;
        Some((class.name_any(), currency.clone()))
    });
    Ok(of_class.collect())
}

/// The page, if the controller has stored one.
async fn stored(client: &Client, namespace: &str) -> Result<Option<CostPage>, CliError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let what = format!("ConfigMap {namespace}/{CONFIG_MAP}");
    let found = maps
        .get_opt(CONFIG_MAP)
        .await
        .map_err(|error| unreadable(&what, &error))?;
    let Some(text) = found.and_then(|map| map.data?.remove(PAGE)) else {
        return Ok(None);
    };
    let page = serde_json::from_str(&text).map_err(|error| {
        CliError::failed(format!(
            "{what}: {PAGE} is not understood: {error}; use the version of the controller"
        ))
    })?;
    Ok(Some(page))
}

async fn listed<K>(client: &Client, what: &str) -> Result<Vec<K>, CliError>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) => Err(unreadable(what, &error)),
    }
}

/// A cluster that answers is reached: that something is not there, or not for us, is another matter.
fn unreadable(what: &str, error: &kube::Error) -> CliError {
    match error {
        kube::Error::Api(status) if status.code == 404 => CliError::failed(format!(
            "the cluster does not know {what}; install the CRDs: karpenter crds | kubectl apply --server-side -f -"
        )),
        kube::Error::Api(status) => CliError::failed(format!("{what} can't be read: {}", status.message)),
        _ => CliError::unreachable(format!("the cluster can't be reached: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(pool: &str, class: &str, price: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "one", "labels": {"karpenter.sh/nodepool": pool},
                "annotations": {"karpenter.bizflycloud.com/hourly-price": price},
            },
            "spec": {"requirements": [], "nodeClassRef": {
                "group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": class,
            }},
        }))
        .unwrap()
    }

    fn pool(node_pool: &str, currency: &str, nodes: usize, per_hour: f64, month_to_date: Option<f64>) -> PoolCost {
        PoolCost {
            node_pool: node_pool.to_owned(),
            currency: currency.to_owned(),
            nodes,
            per_hour,
            month_to_date,
        }
    }

    #[test]
    fn pools_are_what_they_have_and_what_they_had() {
        let mut earlier = claim("web", "foreign", "3");
        let notes = earlier.metadata.annotations.get_or_insert_default();
        notes.insert("karpenter.bizflycloud.com/hourly-currency".to_owned(), "VND".to_owned());
        let claims = [
            claim("web", "default", "10.5"),
            claim("web", "default", "2"),
            claim("web", "foreign", "1"),
            claim("db", "default", "NaN"),
            earlier,
        ];
        let currencies = BTreeMap::from([("foreign".to_owned(), "USD".to_owned())]);
        let page: CostPage = serde_json::from_value(json!({
            "month": "2026-11", "since": "2026-11-01T00:00:00Z", "at": "2026-11-02T00:00:00Z", "unwatchedSeconds": 0,
            "nodePools": [
                {"nodePool": "gone", "currency": "VND", "amount": 7.0},
                {"nodePool": "web", "currency": "VND", "amount": 300.0},
            ],
            "recommendedAt": null, "recommendations": [],
        }))
        .unwrap();
        assert_eq!(
            pools(&claims, &currencies, Some(&page)),
            [
                pool("db", "VND", 1, 0.0, Some(0.0)),
                pool("gone", "VND", 0, 0.0, Some(7.0)),
                pool("web", "USD", 1, 1.0, Some(0.0)),
                pool("web", "VND", 3, 15.5, Some(300.0)),
            ]
        );
        let uncounted = pools(&claims[..1], &currencies, None);
        assert_eq!(uncounted, [pool("web", "VND", 1, 10.5, None)]);
    }
}
