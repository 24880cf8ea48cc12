//! What can be had and what it costs: flavors, prices and marks, made into instance types and kept until something changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use karpenter_cloud::{CloudError, InstanceTypes, clock::Clock};
use parking_lot::Mutex;

use crate::{
    catalogue::{Billing, Learned, PriceList, TypeFacts, Zones},
    client::{ApiError, ApiErrorKind, Sending, model::Flavor},
    directory::Connection,
    metrics::Metrics,
    node_class::OvhNodeClass,
    pool::Engine,
    refreshed::Refreshed,
    settings::OvhSettings,
    unavailable::Unavailable,
};

#[derive(Debug)]
pub(crate) struct Supply {
    flavors: Refreshed<Vec<Flavor>>,
    prices: Refreshed<PriceList>,
    no_prices: Arc<PriceList>,
    unavailable: Arc<Unavailable>,
    metrics: Metrics,
    published: Mutex<BTreeMap<(String, String), Published>>,
}

/// Types, and what they were made from.
#[derive(Clone, Debug)]
struct Published {
    made_from: MadeFrom,
    types: InstanceTypes,
}

#[derive(Clone, Debug)]
struct MadeFrom {
    generation: Option<i64>,
    flavors: Arc<Vec<Flavor>>,
    prices: Arc<PriceList>,
    zones: Zones,
    versions: (u64, u64, u64),
    room: Option<BTreeSet<(String, String)>>,
}

const FLAVORS_TTL: Duration = Duration::from_secs(5 * 60);
const PRICES_TTL: Duration = Duration::from_secs(6 * 60 * 60);
const FLAVORS_RETRY: Duration = Duration::from_secs(30);
const PRICES_RETRY: Duration = Duration::from_secs(5 * 60);

impl Supply {
    pub(crate) fn new(clock: &Clock, unavailable: Arc<Unavailable>, metrics: Metrics) -> Self {
        Self {
            flavors: Refreshed::new(clock.clone(), FLAVORS_TTL, FLAVORS_RETRY),
            prices: Refreshed::new(clock.clone(), PRICES_TTL, PRICES_RETRY),
            no_prices: Arc::new(PriceList::unknown()),
            unavailable,
            metrics,
            published: Mutex::default(),
        }
    }

    pub(crate) fn marks(&self) -> Vec<(String, String, String)> {
        self.unavailable.marks()
    }

    /// The flavors of the cluster; those that only its region has count as unavailable.
    pub(crate) async fn flavors(&self, connection: &Connection) -> Result<Arc<Vec<Flavor>>, String> {
        let load = || async {
            let mut flavors = connection.api.flavors().await?;
            match connection.api.region_flavors(&connection.cluster.region).await {
                Ok(offered) => {
                    for mut flavor in offered {
                        if !flavors.iter().any(|own| own.name == flavor.name) {
                            flavor.state = "unavailable".to_owned();
                            flavors.push(flavor);
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "the region's flavors are not listed"),
            }
            if flavors.is_empty() {
                return Err(ApiError {
                    kind: ApiErrorKind::Server,
                    method: "GET".to_owned(),
                    path: "flavors".to_owned(),
                    message: "the cluster has no flavors".to_owned(),
                    query: None,
                    retry_after: None,
                    sending: Sending::Tried,
                });
            }
            Ok(flavors)
        };
        let loaded = self.flavors.get(load).await;
        loaded.ok_or_else(|| self.flavors.error().unwrap_or_default())
    }

    /// The price list, or one that only estimates.
    pub(crate) async fn prices(&self, connection: &Connection, subsidiary: &str) -> Arc<PriceList> {
        let load = || async {
            let catalog = connection.api.catalog(subsidiary).await?;
            self.metrics.prices_read();
            Ok::<_, ApiError>(PriceList::of(&catalog))
        };
        let loaded = self.prices.get(load).await;
        self.metrics.priced(loaded.is_some());
        loaded.unwrap_or_else(|| self.no_prices.clone())
    }

    pub(crate) fn prices_read_at(&self) -> Option<jiff::Timestamp> {
        self.prices.read_at()
    }

    pub(crate) fn prices_error(&self) -> Option<String> {
        self.prices.error()
    }

    pub(crate) async fn types(
        &self,
        class: &OvhNodeClass,
        node_pool: &str,
        connection: &Connection,
        learned: &Learned,
        settings: &OvhSettings,
        engine: &Engine,
    ) -> Result<InstanceTypes, CloudError> {
        let flavors = self.flavors(connection).await.map_err(CloudError::transient)?;
        engine.know_flavors(flavors.clone());
        let prices = self.prices(connection, &subsidiary(connection, settings)).await;
        let (stock, quota) = self.unavailable.version();
        let made_from = MadeFrom {
            generation: class.metadata.generation,
            flavors: flavors.clone(),
            prices: prices.clone(),
            zones: connection.zones.clone(),
            versions: (stock, quota, learned.version()),
            room: engine.room(node_pool, class),
        };
        let key = (class.name().to_owned(), node_pool.to_owned());
        let old = self.published.lock().get(&key).cloned();
        if let Some(old) = old.filter(|old| old.made_from.is(&made_from)) {
            return Ok(old.types);
        }
        let facts = TypeFacts {
            spec: &class.spec,
            flavors: &flavors,
            region: &connection.cluster.region,
            zones: &connection.zones,
            prices: &prices,
            learned,
            disks: &connection.probe.disks,
            memory_overhead: settings.memory_overhead,
        };
        let types = facts.types(|name, zone| self.is_free(name, zone, &made_from, connection));
        let billing = Billing::of(&class.spec).name();
        for own in types.iter() {
            for offering in &own.offerings {
                let zone = karpenter_cloud::selection::zone(offering).unwrap_or_default();
                self.metrics.price(&own.name, zone, billing, offering.price);
            }
        }
        let available = types
            .iter()
            .filter(|own| own.offerings.iter().any(|offering| offering.available));
        self.metrics.types_available(available.count());
        self.metrics.unavailable(&self.unavailable.marks());
        let published = Published {
            made_from,
            types: types.clone(),
        };
        self.published.lock().insert(key, published);
        Ok(types)
    }

    fn is_free(&self, name: &str, zone: &str, made_from: &MadeFrom, connection: &Connection) -> bool {
        let Some(flavor) = made_from.flavors.iter().find(|own| own.name == name) else {
            return false;
        };
        if connection.probe.sold_out.iter().any(|own| own == name) || self.unavailable.why(flavor, zone).is_some() {
            return false;
        }
        let fits_quota = connection.probe.quota.as_ref().is_none_or(|quota| {
            let cores = quota.max_cores.saturating_sub(quota.used_cores);
            let instances = quota.max_instances.saturating_sub(quota.used_instances);
            flavor.vcpus <= cores && instances > 0
        });
        let has_room = made_from
            .room
            .as_ref()
            .is_none_or(|room| room.contains(&(name.to_owned(), zone.to_owned())));
        fits_quota && has_room
    }
}

impl MadeFrom {
    fn is(&self, other: &Self) -> bool {
        self.generation == other.generation
            && Arc::ptr_eq(&self.flavors, &other.flavors)
            && Arc::ptr_eq(&self.prices, &other.prices)
            && self.zones == other.zones
            && self.versions == other.versions
            && self.room == other.room
    }
}

/// Whose price list applies.
pub(crate) fn subsidiary(connection: &Connection, settings: &OvhSettings) -> String {
    let default = || connection.api.client().endpoint().subsidiary().to_owned();
    settings.subsidiary.clone().unwrap_or_else(default)
}
