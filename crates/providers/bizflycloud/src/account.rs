//! Accounts: a ProviderConfig and its Secret turned into a client, and turned anew when either changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use karpenter_api::duration::GoDuration;
use karpenter_cloud::{
    CloudError,
    batch::{BatchWindow, Batcher},
    cache::{CacheMetrics, Stale, TtlCache},
    clock::{Clock, later},
    error::CloudContext,
    http::{RateLimit, Redactor},
    ownership::short_hash,
};
use kube::{Api, Client, api::ListParams};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    billing::BillingApi,
    catalogue::CloudCatalogue,
    client::{
        ApiError, AuthMode, Bizfly, Connection, ErrorClass,
        wire::{BkeCluster, Firewall, NewServer, Nic, Server, Volume, Vpc},
    },
    credentials::SecretValues,
    images::ImageInventory,
    metrics::Metrics,
    prices::Prices,
    problem::Problem,
    provider_config::{
        CloudConfig, Coordination, DEFAULT_ENDPOINT, DEFAULT_NAME, DriftDetection, ImageConfig, Pricing,
        ProviderConfig, ProviderConfigSpec, Quota, SecretReference, Tagging,
    },
    region::RegionChoice,
    settings::Settings,
};

/// All accounts in use, by the name of their ProviderConfig.
pub(crate) struct Accounts {
    kube: Client,
    clock: Clock,
    settings: Arc<Settings>,
    redactor: Redactor,
    metrics: Metrics,
    cache_metrics: CacheMetrics,
    known: Mutex<BTreeMap<String, Known>>,
    /// Accounts whose credentials changed since somebody last asked.
    rotated: Mutex<BTreeSet<String>>,
    /// Accounts whose orders were refused until they are paid up: since when, and the API's words.
    unpaid: Mutex<BTreeMap<String, (Timestamp, String)>>,
}

#[derive(Clone, Debug)]
struct Known {
    account: Arc<Account>,
    checked_at: Timestamp,
}

/// One account in one region.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) region: RegionChoice,
    pub(crate) zone: Option<String>,
    pub(crate) tagging: Tagging,
    pub(crate) tag_prefixes: Vec<String>,
    /// `None` where the environment stands in for a ProviderConfig.
    pub(crate) image_config: Option<ImageConfig>,
    pub(crate) drift: DriftDetection,
    pub(crate) quota: Quota,
    pub(crate) coordination: Option<Coordination>,
    /// What the user wrote of them.
    told: Prices,
    /// What they are now.
    prices: Mutex<Arc<Prices>>,
    billing: Option<Arc<BillingApi>>,
    /// What the prices are counted in.
    pub(crate) currency: String,
    /// What is wrong with the ConfigMap of prices, if anything; older prices are in use then.
    pub(crate) price_problem: Option<String>,
    pub(crate) api: Bizfly,
    /// Orders at once.
    pub(crate) slots: Semaphore,
    /// Changes with everything that the account was made from.
    pub(crate) fingerprint: String,
    /// Changes with the credentials.
    credentials: String,
    orders: Batcher<NewServer, Ordered>,
    servers: TtlCache<(), Vec<Server>>,
    volumes: TtlCache<(), Vec<Volume>>,
    nics: TtlCache<(), Vec<Nic>>,
    catalogue: TtlCache<(), CloudCatalogue>,
    inventory: TtlCache<BkeInterest, Inventory>,
    clusters: TtlCache<String, BkeCluster>,
    clock: Clock,
    metrics: Metrics,
    /// When the catalogue was last read.
    catalogue_read_at: Mutex<Option<Timestamp>>,
}

/// The id of the task that makes a server, if the API told it.
type Ordered = Result<Option<String>, ApiError>;

/// What a NodeClass can refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) zones: Vec<String>,
    pub(crate) vpcs: Vec<Vpc>,
    pub(crate) firewalls: Vec<Firewall>,
    pub(crate) keypairs: Vec<String>,
    pub(crate) images: ImageInventory,
}

/// Why there is no account.
#[derive(Debug)]
pub(crate) enum AccountError {
    /// Something that a user has to fix.
    Problem(Problem),
    /// The cluster could not be asked.
    Cluster(CloudError),
}

/// How long a ProviderConfig and its Secret are believed to be unchanged.
const BELIEVED: Duration = Duration::from_secs(2);
/// Concurrent readers share one list.
const LIST_TTL: Duration = Duration::from_secs(2);
const CATALOGUE_TTL: Duration = Duration::from_secs(5 * 60);
const CATALOGUE_STALE: Duration = Duration::from_secs(55 * 60);
const INVENTORY_TTL: Duration = Duration::from_secs(60);
const BATCH: BatchWindow = BatchWindow {
    idle: Duration::from_millis(200),
    longest: Duration::from_millis(400),
    most: 20,
};
const PRICES_KEY: &str = "prices.json";
const DEFAULT_CURRENCY: &str = "VND";
/// After a refusal for lack of payment, an order is tried again no sooner.
const UNPAID: Duration = Duration::from_secs(5 * 60);

impl Accounts {
    pub(crate) fn new(
        kube: Client,
        clock: Clock,
        settings: Arc<Settings>,
        metrics: Metrics,
        cache_metrics: CacheMetrics,
    ) -> Self {
        let redactor = Redactor::default();
        for secret in [&settings.bke.token, &settings.bootstrap_token].into_iter().flatten() {
            redactor.add(secret);
        }
        Self {
            kube,
            clock,
            settings,
            redactor,
            metrics,
            cache_metrics,
            known: Mutex::default(),
            rotated: Mutex::default(),
            unpaid: Mutex::default(),
        }
    }

    /// Whether an account's credentials were replaced since this was last asked.
    pub(crate) fn take_rotation(&self, account: &str) -> bool {
        self.rotated.lock().remove(account)
    }

    /// An order was refused because the account must be paid up.
    pub(crate) fn must_pay(&self, account: &str, why: String) {
        self.unpaid.lock().insert(account.to_owned(), (self.clock.now(), why));
    }

    /// Why nothing may be ordered now, where an order was refused for that reason a moment ago.
    pub(crate) fn unpaid(&self, account: &str) -> Option<String> {
        let now = self.clock.now();
        let mut unpaid = self.unpaid.lock();
        unpaid.retain(|_, (since, _)| now < later(*since, UNPAID));
        unpaid.get(account).map(|(_, why)| why.clone())
    }

    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The account of a ProviderConfig; of the environment if there is no ProviderConfig `default`.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<Account>, AccountError> {
        let now = self.clock.now();
        if let Some(known) = self.known.lock().get(name)
            && now < later(known.checked_at, BELIEVED)
        {
            return Ok(known.account.clone());
        }
        let configs: Api<ProviderConfig> = Api::all(self.kube.clone());
        let config = configs
            .get_opt(name)
            .await
            .cloud_context(format!("reading ProviderConfig {name}"))
            .map_err(AccountError::Cluster)?;
        let source = match config {
            Some(config) => self.of_config(config).await?,
            None if name == DEFAULT_NAME && !self.settings.environment.values.is_empty() => self.of_environment(),
            None => {
                let message = format!("ProviderConfig {name} does not exist, and the environment has no credentials");
                return Err(AccountError::Problem(Problem::new("ProviderConfigNotFound", message)));
            }
        };
        let known = self.known.lock().get(name).map(|known| known.account.clone());
        let account = match known {
            Some(account) if account.fingerprint == source.fingerprint() => account,
            previous => {
                let account = Arc::new(
                    self.connect(name, source, previous.as_deref())
                        .map_err(AccountError::Problem)?,
                );
                if let Some(previous) = &previous {
                    tracing::info!(ProviderConfig = name, "the account's settings or credentials changed");
                    if previous.credentials != account.credentials {
                        self.rotated.lock().insert(name.to_owned());
                    }
                }
                account
            }
        };
        let known = Known {
            account: account.clone(),
            checked_at: now,
        };
        self.known.lock().insert(name.to_owned(), known);
        Ok(account)
    }

    /// The names of all accounts that machines may be in.
    ///
    /// # Errors
    /// When ProviderConfigs can't be listed.
    pub(crate) async fn names(&self) -> Result<Vec<String>, CloudError> {
        let configs: Api<ProviderConfig> = Api::all(self.kube.clone());
        let listed = configs
            .list(&ListParams::default())
            .await
            .cloud_context("listing ProviderConfigs")?;
        let mut names: Vec<String> = listed
            .items
            .into_iter()
            .filter_map(|config| config.metadata.name)
            .collect();
        if !names.iter().any(|name| name == DEFAULT_NAME) && !self.settings.environment.values.is_empty() {
            names.push(DEFAULT_NAME.to_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Every account that machines may be in.
    ///
    /// # Errors
    /// When any of them cannot be used: an inventory without it would be incomplete.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Account>>, CloudError> {
        let mut accounts = Vec::new();
        for name in self.names().await? {
            accounts.push(self.get(&name).await?);
        }
        Ok(accounts)
    }

    async fn of_config(&self, config: ProviderConfig) -> Result<Source, AccountError> {
        let reference = &config.spec.secret_ref;
        let origin = format!("secret {}/{}", reference.namespace, reference.name);
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), &reference.namespace);
        let secret = secrets
            .get_opt(&reference.name)
            .await
            .cloud_context(format!("reading {origin}"))
            .map_err(AccountError::Cluster)?;
        let Some(secret) = secret else {
            let message = format!("{origin} does not exist");
            return Err(AccountError::Problem(Problem::new("SecretNotFound", message)));
        };
        let prices = match config.spec.pricing.as_ref().and_then(Pricing::config_map) {
            Some(reference) => self.prices_of(reference).await.map_err(AccountError::Cluster)?,
            None => None,
        };
        let mut prefixes = config.status.map(|status| status.tag_prefixes).unwrap_or_default();
        // As the status will have it: writing it down does not make another account.
        if !prefixes.contains(&config.spec.tagging.tag_prefix) {
            prefixes.push(config.spec.tagging.tag_prefix.clone());
        }
        Ok(Source {
            origin,
            spec: config.spec,
            values: SecretValues::of(&secret),
            prices,
            prefixes,
            has_config: true,
        })
    }

    async fn prices_of(&self, reference: &SecretReference) -> Result<Option<String>, CloudError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.kube.clone(), &reference.namespace);
        let map = maps
            .get_opt(&reference.name)
            .await
            .cloud_context(format!("reading ConfigMap {}/{}", reference.namespace, reference.name))?;
        let Some(map) = map else {
            tracing::warn!(
                namespace = reference.namespace,
                name = reference.name,
                "the ConfigMap with prices does not exist; prices are estimated"
            );
            return Ok(None);
        };
        Ok(map.data.unwrap_or_default().remove(PRICES_KEY))
    }

    fn of_environment(&self) -> Source {
        let environment = &self.settings.environment;
        Source {
            origin: "the environment".to_owned(),
            spec: ProviderConfigSpec {
                region: environment.values.text("region").unwrap_or("HN").to_owned(),
                zone: environment.zone.clone(),
                secret_ref: SecretReference::default(),
                tagging: Tagging::default(),
                cloud_config: CloudConfig::default(),
                image_config: ImageConfig::default(),
                drift_detection: DriftDetection::default(),
                pricing: None,
                quota: None,
                coordination: None,
            },
            values: environment.values.clone(),
            prices: None,
            prefixes: Vec::new(),
            has_config: false,
        }
    }

    fn connect(&self, name: &str, source: Source, previous: Option<&Account>) -> Result<Account, Problem> {
        let fingerprint = source.fingerprint();
        let credentials = source.values.fingerprint();
        let spec = source.spec;
        let region =
            RegionChoice::parse(&spec.region).map_err(|error| Problem::new("UnknownRegion", error.to_string()))?;
        let identity = source
            .values
            .identity(&source.origin)
            .map_err(|error| Problem::new("SecretIncomplete", error.to_string()))?;
        let endpoint = match source.values.text("api-url") {
            Some(url) if spec.cloud_config.api_endpoint == DEFAULT_ENDPOINT => url,
            _ => spec.cloud_config.api_endpoint.as_str(),
        };
        let endpoint = endpoint
            .parse()
            .map_err(|error| Problem::new("InvalidEndpoint", format!("\"{endpoint}\" is not a URL: {error}")))?;
        let connection = Connection {
            endpoint,
            region: region.region,
            identity,
            mode: if spec.cloud_config.auth_mode == "Header" {
                AuthMode::Header
            } else {
                AuthMode::Token
            },
            attempts: spec.cloud_config.retry_max_attempts,
            first_delay: duration(spec.cloud_config.retry_initial_delay),
            timeout: duration(spec.cloud_config.timeout),
            rate: RateLimit {
                // The API server compares whole numbers with the bound cut to a whole number: it lets 0 pass.
                per_second: spec.cloud_config.qps.max(0.1),
                burst: spec.cloud_config.burst,
            },
            words: self.settings.words.clone(),
        };
        let observer = self.metrics.observer();
        let api = Bizfly::new(
            self.clock.clone(),
            connection,
            self.settings.http.clone(),
            self.redactor.clone(),
            observer,
        )
        .map_err(|error| Problem::new("InvalidEndpoint", error.to_string()))?;
        let mut price_problem = None;
        let prices = match source.prices.as_deref().map(Prices::parse) {
            None => Prices::default(),
            Some(Ok(prices)) => prices,
            Some(Err(error)) => {
                tracing::warn!(ProviderConfig = name, %error, "the previous prices stay in use");
                price_problem = Some(error.to_string());
                previous.map(|account| account.told.clone()).unwrap_or_default()
            }
        };
        let billing = match spec.pricing.as_ref().and_then(Pricing::billing_url) {
            Some(url) => Some(self.billing(url, previous)?),
            None => None,
        };
        let listed = billing.as_ref().map(|own| own.listed()).unwrap_or_default();
        let currency = spec.pricing.as_ref().and_then(|own| own.currency.clone());
        let mut tag_prefixes = source.prefixes;
        if !tag_prefixes.contains(&spec.tagging.tag_prefix) {
            tag_prefixes.push(spec.tagging.tag_prefix.clone());
        }
        let ordering = api.clone();
        let cache = self.cache_metrics.clone();
        Ok(Account {
            name: name.to_owned(),
            region,
            zone: spec.zone,
            tagging: spec.tagging,
            tag_prefixes,
            image_config: source.has_config.then_some(spec.image_config),
            drift: spec.drift_detection,
            quota: spec.quota.unwrap_or_default(),
            coordination: spec.coordination,
            prices: Mutex::new(Arc::new(prices.with_listed(listed))),
            told: prices,
            billing,
            currency: currency.unwrap_or_else(|| DEFAULT_CURRENCY.to_owned()),
            price_problem,
            slots: Semaphore::new(self.settings.max_inflight_creates),
            fingerprint,
            credentials,
            orders: Batcher::new(self.clock.clone(), BATCH, move |orders| {
                order(ordering.clone(), orders).boxed()
            }),
            servers: TtlCache::new("servers", self.clock.clone(), LIST_TTL, Stale::Refuse, cache.clone()),
            volumes: TtlCache::new("volumes", self.clock.clone(), LIST_TTL, Stale::Refuse, cache.clone()),
            nics: TtlCache::new(
                "network_interfaces",
                self.clock.clone(),
                INVENTORY_TTL,
                Stale::Refuse,
                cache.clone(),
            ),
            catalogue: TtlCache::new(
                "catalogue",
                self.clock.clone(),
                CATALOGUE_TTL,
                Stale::ServeFor(CATALOGUE_STALE),
                cache.clone(),
            ),
            inventory: TtlCache::new(
                "inventory",
                self.clock.clone(),
                INVENTORY_TTL,
                Stale::Refuse,
                cache.clone(),
            ),
            clusters: TtlCache::new("bke", self.clock.clone(), INVENTORY_TTL, Stale::Refuse, cache),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            catalogue_read_at: Mutex::new(None),
            api,
        })
    }
}

impl Accounts {
    /// The billing API at an address; what it said to the account before is kept.
    fn billing(&self, url: &str, previous: Option<&Account>) -> Result<Arc<BillingApi>, Problem> {
        let known = previous.and_then(|account| account.billing.clone());
        if let Some(known) = known.filter(|known| known.url() == url) {
            return Ok(known);
        }
        let made = BillingApi::new(
            self.clock.clone(),
            self.settings.http.clone(),
            self.redactor.clone(),
            self.metrics.observer(),
            url,
        );
        made.map(Arc::new)
            .map_err(|error| Problem::new("InvalidEndpoint", error.to_string()))
    }
}

/// Sends a batch of orders. One bad order must not fail the others: a refused batch is repeated one by one.
async fn order(api: Bizfly, orders: Vec<NewServer>) -> Vec<Result<Ordered, CloudError>> {
    match api.create_servers(&orders).await {
        Ok(tasks) if tasks.len() == orders.len() => tasks.into_iter().map(|task| Ok(Ok(Some(task)))).collect(),
        // Taken, but which task is whose is not told: the servers' marks will tell.
        Ok(_) => orders.iter().map(|_| Ok(Ok(None))).collect(),
        Err(error) if orders.len() > 1 && is_about_one_order(error.class) => {
            let mut answers = Vec::new();
            for order in orders {
                let answer = api.create_servers(std::slice::from_ref(&order)).await;
                answers.push(Ok(answer.map(|tasks| tasks.into_iter().next())));
            }
            answers
        }
        Err(error) => orders.iter().map(|_| Ok(Err(error.clone()))).collect(),
    }
}

fn is_about_one_order(class: ErrorClass) -> bool {
    matches!(
        class,
        ErrorClass::Invalid | ErrorClass::Stock | ErrorClass::Quota | ErrorClass::Conflict | ErrorClass::NotFound
    )
}

impl Account {
    /// Orders a server, together with others that are ordered at about the same time.
    pub(crate) async fn order(&self, server: NewServer) -> Ordered {
        let answer = match self.orders.ask(server).await {
            Ok(answer) => answer,
            Err(error) => Err(ApiError::new("create_server", ErrorClass::Ambiguous, error.to_string())),
        };
        self.changed();
        answer
    }

    /// The servers of the account, read at most a moment ago.
    pub(crate) async fn servers(&self) -> Result<Arc<Vec<Server>>, ApiError> {
        self.servers.get(&(), || self.api.servers()).await
    }

    pub(crate) async fn volumes(&self) -> Result<Arc<Vec<Volume>>, ApiError> {
        self.volumes.get(&(), || self.api.volumes()).await
    }

    /// What things cost. A billing API that was never asked is asked first; after that it is asked in the background only.
    pub(crate) async fn prices(&self) -> Arc<Prices> {
        if self.billing.as_ref().is_some_and(|billing| !billing.was_asked()) {
            self.refresh_prices().await;
        }
        self.prices.lock().clone()
    }

    /// Reads the billing API's prices anew where they are old.
    pub(crate) async fn refresh_prices(&self) {
        let Some(billing) = &self.billing else { return };
        billing.refresh().await;
        let now = self.told.with_listed(billing.listed());
        let mut prices = self.prices.lock();
        if **prices != now {
            *prices = Arc::new(now);
        }
    }

    /// Why the billing API's prices are not the current ones, if so.
    pub(crate) fn billing_problem(&self) -> Option<String> {
        self.billing.as_ref()?.problem()
    }

    /// What was listed before is out of date now.
    pub(crate) fn changed(&self) {
        self.servers.flush();
        self.volumes.flush();
    }

    /// The network interfaces of all servers.
    pub(crate) async fn nics(&self) -> Result<Arc<Vec<Nic>>, ApiError> {
        self.nics.get(&(), || self.api.nics()).await
    }

    /// Network interfaces were changed.
    pub(crate) fn forget_nics(&self) {
        self.nics.flush();
    }

    pub(crate) async fn catalogue(&self) -> Result<Arc<CloudCatalogue>, ApiError> {
        let answer = self
            .catalogue
            .get(&(), || async {
                let flavors = self.api.flavors().await?;
                let volume_types = self.api.volume_types().await?;
                *self.catalogue_read_at.lock() = Some(self.clock.now());
                Ok::<_, ApiError>(CloudCatalogue { flavors, volume_types })
            })
            .await;
        let read_at = *self.catalogue_read_at.lock();
        if let Some(read_at) = read_at {
            let age = Duration::try_from(self.clock.since(read_at)).unwrap_or_default();
            self.metrics
                .catalogue_is_stale_for(&self.name, age.saturating_sub(CATALOGUE_TTL).as_secs_f64());
        }
        answer
    }

    /// What a NodeClass can refer to. Not every account has BKE, so its versions are only read where they are needed.
    pub(crate) async fn inventory(&self, bke: BkeInterest) -> Result<Arc<Inventory>, ApiError> {
        self.inventory
            .get(&bke, || async {
                let regions = self.api.regions().await?;
                let ours = regions.iter().find(|own| self.region.region.is(&own.short_name));
                let zones = ours
                    .filter(|own| own.active)
                    .map(|own| &own.zones[..])
                    .unwrap_or_default();
                let versions = match bke {
                    BkeInterest::Needed => self.api.kubernetes_versions().await?,
                    BkeInterest::None => Vec::new(),
                };
                Ok::<_, ApiError>(Inventory {
                    zones: zones
                        .iter()
                        .filter(|zone| zone.active)
                        .map(|zone| zone.short_name.clone())
                        .collect(),
                    vpcs: self.api.vpcs().await?,
                    firewalls: self.api.firewalls().await?,
                    keypairs: self.api.keypairs().await?,
                    images: ImageInventory {
                        os_images: self.api.os_images().await?,
                        custom_images: self.api.custom_images().await?,
                        versions,
                    },
                })
            })
            .await
    }

    pub(crate) async fn bke_cluster(&self, id: &str) -> Result<Arc<BkeCluster>, ApiError> {
        self.clusters.get(&id.to_owned(), || self.api.bke_cluster(id)).await
    }

    /// The next look at what NodeClasses refer to reads anew.
    pub(crate) fn forget_inventory(&self) {
        self.inventory.flush();
    }
}

/// Whether BKE's versions are read with the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BkeInterest {
    Needed,
    None,
}

/// Everything an account is made from.
struct Source {
    origin: String,
    spec: ProviderConfigSpec,
    values: SecretValues,
    prices: Option<String>,
    prefixes: Vec<String>,
    has_config: bool,
}

impl Source {
    fn fingerprint(&self) -> String {
        let spec = serde_json::to_string(&self.spec).unwrap_or_default();
        let prices = self.prices.as_deref().unwrap_or_default();
        let prefixes = self.prefixes.join(",");
        short_hash(&format!("{spec}|{}|{prices}|{prefixes}", self.values.fingerprint()))
    }
}

fn duration(text: GoDuration) -> Duration {
    Duration::try_from(text.as_signed()).unwrap_or_default()
}

impl From<AccountError> for CloudError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Problem(problem) => Self::auth(problem.message),
            AccountError::Cluster(error) => error,
        }
    }
}
