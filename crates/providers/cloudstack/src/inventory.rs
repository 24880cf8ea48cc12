//! What CloudStack has, asked for once in a while and kept (cloudstack.md §13).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use karpenter_cloud::{
    cache::{CacheMetrics, Stale, TtlCache},
    clock::Clock,
};

use crate::{
    client::{
        ApiError, Class, Client, Priority, Request,
        model::{
            Account, AffinityGroup, AffinityGroupType, Capabilities, Capacity, DiskOffering, Network, Project,
            RegisteredUserData, SecurityGroup, ServiceOffering, SshKeyPair, Tariff, Template, Zone,
        },
        unreadable,
    },
    node_class::CloudStackNodeClass,
    resolve::{self, Lists, Problem, Resolution},
    settings::{ProviderSettings, Scope},
};

/// Kept lists of everything that classes choose from.
pub struct Inventory {
    client: Client,
    scope: Scope,
    zones: TtlCache<(), Vec<Zone>>,
    offerings: TtlCache<Option<String>, Vec<ServiceOffering>>,
    hosted: TtlCache<OfTemplate, BTreeSet<String>>,
    disk_offerings: TtlCache<Option<String>, Vec<DiskOffering>>,
    templates: TtlCache<InZone, Vec<Template>>,
    networks: TtlCache<InZone, Vec<Network>>,
    affinity_groups: TtlCache<Option<String>, Vec<AffinityGroup>>,
    affinity_types: TtlCache<(), Vec<AffinityGroupType>>,
    security_groups: TtlCache<Option<String>, Vec<SecurityGroup>>,
    key_pairs: TtlCache<Option<String>, Vec<SshKeyPair>>,
    user_data: TtlCache<Option<String>, Vec<RegisteredUserData>>,
    projects: TtlCache<(), Vec<Project>>,
    capabilities: TtlCache<(), Capabilities>,
    quota: TtlCache<Option<String>, Option<Account>>,
    full_zones: TtlCache<(), BTreeSet<String>>,
    tariffs: TtlCache<(), Vec<Tariff>>,
    /// Zones that are asked for by id because they are not listed: disabled ones, and those that do not exist.
    unlisted_zones: TtlCache<String, Vec<Zone>>,
    /// That something was not found although everything was read anew.
    not_found: TtlCache<(), ()>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OfTemplate {
    template: String,
    project: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InZone {
    zone: String,
    project: Option<String>,
}

/// Percent of both cpu and memory from which on a zone takes no more machines.
const FULL: f64 = 99.5;

/// What was not found is believed for this long; then it is looked for in new lists, however young the kept ones are.
const NEGATIVE: Duration = Duration::from_secs(30);

/// A list that cannot be refreshed serves on for this long.
const STALE: Stale = Stale::ServeFor(Duration::from_secs(3600));

impl Inventory {
    pub fn new(client: Client, clock: &Clock, settings: &ProviderSettings, metrics: &CacheMetrics) -> Self {
        let lifetimes = settings.lifetimes;
        macro_rules! cache {
            ($name:literal, $ttl:expr, $stale:expr) => {
                TtlCache::new($name, clock.clone(), $ttl, $stale, metrics.clone())
            };
        }
        Self {
            client,
            scope: settings.scope.clone(),
            zones: cache!("zones", lifetimes.zones, STALE),
            offerings: cache!("offerings", lifetimes.offerings, STALE),
            hosted: cache!("offerings", lifetimes.offerings, STALE),
            disk_offerings: cache!("disk_offerings", lifetimes.offerings, STALE),
            templates: cache!("templates", lifetimes.templates, STALE),
            networks: cache!("networks", lifetimes.networks, STALE),
            affinity_groups: cache!("affinity_groups", Duration::from_secs(30), STALE),
            affinity_types: cache!("affinity_types", lifetimes.capabilities, STALE),
            security_groups: cache!("security_groups", lifetimes.networks, STALE),
            key_pairs: cache!("key_pairs", lifetimes.networks, STALE),
            user_data: cache!("user_data", lifetimes.networks, STALE),
            projects: cache!("projects", lifetimes.zones, STALE),
            capabilities: cache!("capabilities", lifetimes.capabilities, STALE),
            quota: cache!("quota", lifetimes.quota, Stale::Refuse),
            full_zones: cache!("capacity", lifetimes.quota, Stale::Refuse),
            tariffs: cache!("pricing", lifetimes.pricing, STALE),
            unlisted_zones: cache!("negative_lookups", NEGATIVE, STALE),
            not_found: cache!("negative_lookups", NEGATIVE, Stale::Refuse),
        }
    }

    /// What a class comes to, by what CloudStack has now or had lately.
    ///
    /// # Errors
    /// When something that the class needs was never read.
    pub async fn resolve(&self, class: &CloudStackNodeClass) -> Result<Resolution, ApiError> {
        let generation = self.zones.generation();
        let resolution = self.resolve_by_kept(class).await?;
        if !resolution.problems.values().any(Problem::is_absence) {
            return Ok(resolution);
        }
        // What is missing may have been made since the lists were read, and whoever made it waits for us to see it.
        let read_anew = || async {
            self.flush_choices();
            Ok::<_, ApiError>(())
        };
        self.not_found.get(&(), read_anew).await?;
        if self.zones.generation() == generation {
            return Ok(resolution);
        }
        self.resolve_by_kept(class).await
    }

    async fn resolve_by_kept(&self, class: &CloudStackNodeClass) -> Result<Resolution, ApiError> {
        let spec = &class.spec;
        let mut lists = Lists {
            zones: self.zones().await?,
            ..Lists::default()
        };
        let mut problems = BTreeMap::new();
        let mut known: Vec<Zone> = lists.zones.as_ref().clone();
        // A disabled zone is not listed for ordinary users, but can be read by id.
        for wanted in class.wanted_zones() {
            if !known.iter().any(|zone| zone.id == wanted || zone.name == wanted)
                && uuid::Uuid::parse_str(wanted).is_ok()
            {
                known.extend(self.unlisted_zone(wanted).await?.iter().cloned());
            }
        }
        let zones = resolve::zones(class, &known, &mut problems);
        let project = self.project(class).await?;
        if spec.project.is_some() {
            lists.projects = self.projects().await?;
        }
        lists.offerings = self.offerings(project.as_deref()).await?;
        let wanted = futures::future::try_join_all(zones.iter().map(|zone| async {
            let templates = self.templates(&zone.id, project.as_deref()).await?;
            let networks = self.networks(&zone.id, project.as_deref()).await?;
            Ok::<_, ApiError>((zone.id.clone(), templates, networks))
        }));
        for (zone, templates, networks) in wanted.await? {
            for id in resolve::wanting_hosts(&spec.template_selector_terms, &templates) {
                if !lists.hosted.contains_key(id) {
                    let hosted = self.hosted(id, project.as_deref()).await?;
                    lists.hosted.insert(id.to_owned(), hosted);
                }
            }
            lists.templates.insert(zone.clone(), templates);
            lists.networks.insert(zone, networks);
        }
        if spec.root_disk_offering.is_some() || spec.disk_offering.is_some() || spec.data_disks.is_some() {
            lists.disk_offerings = self.disk_offerings(project.as_deref()).await?;
        }
        if spec.data_disks.is_some() {
            lists.version = self.capabilities().await?.version();
        }
        if let Some(groups) = &spec.affinity_groups {
            if groups.selector_terms.is_some() {
                lists.affinity_groups = self.affinity_groups(project.as_deref()).await?;
            }
            if groups.managed.is_some() {
                lists.affinity_types = self.affinity_types().await?;
            }
        }
        if spec.security_group_selector_terms.is_some() {
            lists.security_groups = self.security_groups(project.as_deref()).await?;
        }
        if !class.ssh_key_pairs().is_empty() {
            lists.key_pairs = self.key_pairs(project.as_deref()).await?;
        }
        if spec.user_data_ref.as_ref().is_some_and(|own| own.registered.is_some()) {
            lists.user_data = self.user_data(project.as_deref()).await?;
        }
        Ok(resolve::resolve(class, zones, &lists, problems))
    }

    /// The id of the project that machines of a class belong to.
    ///
    /// # Errors
    /// When projects cannot be listed.
    pub async fn project(&self, class: &CloudStackNodeClass) -> Result<Option<String>, ApiError> {
        let Some(wanted) = class.spec.project.as_ref().or(self.scope.project.as_ref()) else {
            return Ok(None);
        };
        if uuid::Uuid::parse_str(wanted).is_ok() {
            return Ok(Some(wanted.clone()));
        }
        let projects = self.projects().await?;
        Ok(projects
            .iter()
            .find(|own| own.name == *wanted)
            .map(|own| own.id.clone()))
    }

    /// Forgets everything, so that the next ask is answered by CloudStack.
    pub fn flush(&self) {
        self.flush_choices();
        self.affinity_types.flush();
        self.capabilities.flush();
        self.quota.flush();
        self.full_zones.flush();
        self.tariffs.flush();
        self.unlisted_zones.flush();
        self.not_found.flush();
    }

    /// Forgets everything that selectors choose from.
    fn flush_choices(&self) {
        self.zones.flush();
        self.offerings.flush();
        self.hosted.flush();
        self.disk_offerings.flush();
        self.templates.flush();
        self.networks.flush();
        self.affinity_groups.flush();
        self.security_groups.flush();
        self.key_pairs.flush();
        self.user_data.flush();
        self.projects.flush();
    }

    pub fn flush_networks(&self) {
        self.networks.flush();
    }

    pub fn flush_affinity_groups(&self) {
        self.affinity_groups.flush();
    }

    pub fn flush_quota(&self) {
        self.quota.flush();
    }

    /// # Errors
    /// When CloudStack could not be asked and there is no recent answer; so do all below.
    pub async fn zones(&self) -> Result<Arc<Vec<Zone>>, ApiError> {
        let request = Request::new("listZones").with("available", "true");
        self.zones.get(&(), || self.list(request, "zone")).await
    }

    async fn unlisted_zone(&self, id: &str) -> Result<Arc<Vec<Zone>>, ApiError> {
        let load = || async {
            let request = Request::new("listZones").with("id", id);
            match self.list(request, "zone").await {
                Err(error) if error.class() == Some(&Class::NotFound) => Ok(Vec::new()),
                zones => zones,
            }
        };
        self.unlisted_zones.get(&id.to_owned(), load).await
    }

    pub async fn offerings(&self, project: Option<&str>) -> Result<Arc<Vec<ServiceOffering>>, ApiError> {
        let request = Request::new("listServiceOfferings").with_some("projectid", project);
        let key = project.map(str::to_owned);
        self.offerings.get(&key, || self.list(request, "serviceoffering")).await
    }

    /// Ids of the offerings whose hosts may run a template. Servers before 4.20 tell all: they do not know the question.
    async fn hosted(&self, template: &str, project: Option<&str>) -> Result<Arc<BTreeSet<String>>, ApiError> {
        let key = OfTemplate {
            template: template.to_owned(),
            project: project.map(str::to_owned),
        };
        let load = || async {
            let request = Request::new("listServiceOfferings")
                .with("templateid", template)
                .with_some("projectid", project);
            let listed: Vec<ServiceOffering> = self.list(request, "serviceoffering").await?;
            Ok(listed.into_iter().map(|own| own.id).collect())
        };
        self.hosted.get(&key, load).await
    }

    pub async fn disk_offerings(&self, project: Option<&str>) -> Result<Arc<Vec<DiskOffering>>, ApiError> {
        let request = Request::new("listDiskOfferings").with_some("projectid", project);
        let key = project.map(str::to_owned);
        self.disk_offerings
            .get(&key, || self.list(request, "diskoffering"))
            .await
    }

    pub async fn templates(&self, zone: &str, project: Option<&str>) -> Result<Arc<Vec<Template>>, ApiError> {
        let request = Request::new("listTemplates")
            .with("templatefilter", "executable")
            .with("zoneid", zone)
            .with_some("projectid", project);
        let key = InZone::new(zone, project);
        self.templates.get(&key, || self.list(request, "template")).await
    }

    pub async fn networks(&self, zone: &str, project: Option<&str>) -> Result<Arc<Vec<Network>>, ApiError> {
        let request = self.scoped(Request::new("listNetworks").with("zoneid", zone), project);
        let key = InZone::new(zone, project);
        self.networks.get(&key, || self.list(request, "network")).await
    }

    pub async fn affinity_groups(&self, project: Option<&str>) -> Result<Arc<Vec<AffinityGroup>>, ApiError> {
        let request = self.scoped(Request::new("listAffinityGroups"), project);
        let key = project.map(str::to_owned);
        self.affinity_groups
            .get(&key, || self.list(request, "affinitygroup"))
            .await
    }

    /// Empty where the role may not ask.
    pub async fn affinity_types(&self) -> Result<Arc<Vec<AffinityGroupType>>, ApiError> {
        let request = Request::new("listAffinityGroupTypes");
        let load = || async {
            match self.list(request, "affinityGroupType").await {
                Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => Ok(Vec::new()),
                types => types,
            }
        };
        self.affinity_types.get(&(), load).await
    }

    pub async fn security_groups(&self, project: Option<&str>) -> Result<Arc<Vec<SecurityGroup>>, ApiError> {
        let request = self.scoped(Request::new("listSecurityGroups"), project);
        let key = project.map(str::to_owned);
        self.security_groups
            .get(&key, || self.list(request, "securitygroup"))
            .await
    }

    pub async fn key_pairs(&self, project: Option<&str>) -> Result<Arc<Vec<SshKeyPair>>, ApiError> {
        let request = self.scoped(Request::new("listSSHKeyPairs"), project);
        let key = project.map(str::to_owned);
        self.key_pairs.get(&key, || self.list(request, "sshkeypair")).await
    }

    pub async fn user_data(&self, project: Option<&str>) -> Result<Arc<Vec<RegisteredUserData>>, ApiError> {
        let request = self.scoped(Request::new("listUserData"), project);
        let key = project.map(str::to_owned);
        self.user_data.get(&key, || self.list(request, "userdata")).await
    }

    pub async fn projects(&self) -> Result<Arc<Vec<Project>>, ApiError> {
        self.projects
            .get(&(), || self.list(Request::new("listProjects"), "project"))
            .await
    }

    pub async fn capabilities(&self) -> Result<Arc<Capabilities>, ApiError> {
        self.capabilities.get(&(), || self.client.capabilities()).await
    }

    /// What may still be used; `None` if the role may not ask.
    pub async fn quota(&self, project: Option<&str>) -> Result<Arc<Option<Account>>, ApiError> {
        let key = project.map(str::to_owned);
        let load = || async {
            let answer: Result<Vec<Account>, ApiError> = match project {
                Some(id) => self.list(Request::new("listProjects").with("id", id), "project").await,
                None => {
                    let request = Request::new("listAccounts")
                        .with_some("name", self.scope.account.as_deref())
                        .with_some("domainid", self.scope.domain_id.as_deref());
                    self.list(request, "account").await
                }
            };
            match answer {
                Ok(accounts) => Ok(accounts.into_iter().next()),
                Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.quota.get(&key, load).await
    }

    /// Zones whose hosts are full, by id; only administrators may ask. Zones with room may still be too fragmented.
    pub async fn full_zones(&self) -> Result<Arc<BTreeSet<String>>, ApiError> {
        let load = || async {
            let request = Request::new("listCapacity");
            let content = self.client.call(&request, Priority::Discovery).await?;
            let rows = content.page::<Capacity>("capacity");
            let rows = rows.map_err(|error| unreadable(&request, &error))?.items;
            let is_full = |zone: &str, kind: i64| {
                let mut own = rows.iter().filter(|row| row.zoneid == zone && row.kind == kind);
                own.any(|row| row.percent() >= FULL)
            };
            let zones = rows.iter().map(|row| row.zoneid.as_str());
            Ok(zones
                .filter(|zone| is_full(zone, Capacity::MEMORY) && is_full(zone, Capacity::CPU))
                .map(str::to_owned)
                .collect())
        };
        self.full_zones.get(&(), load).await
    }

    /// The tariffs of the quota service; empty where it is off.
    pub async fn tariffs(&self) -> Result<Arc<Vec<Tariff>>, ApiError> {
        let load = || async {
            let request = Request::new("quotaTariffList");
            match self.client.call(&request, Priority::Discovery).await {
                Ok(content) => match content.page::<Tariff>("quotatariff") {
                    Ok(page) => Ok(page.items),
                    Err(error) => Err(unreadable(&request, &error)),
                },
                Err(error) if matches!(error.class(), Some(Class::Forbidden | Class::Unsupported)) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        self.tariffs.get(&(), load).await
    }

    /// Adds whose resources are meant.
    pub fn scoped(&self, request: Request, project: Option<&str>) -> Request {
        match project {
            Some(project) => request.with("projectid", project),
            None => request
                .with_some("account", self.scope.account.as_deref())
                .with_some("domainid", self.scope.domain_id.as_deref()),
        }
    }

    async fn list<T>(&self, request: Request, object: &str) -> Result<Vec<T>, ApiError>
    where
        T: serde::de::DeserializeOwned + crate::client::Identified,
    {
        self.client.list(&request, object, Priority::Discovery).await
    }
}

impl InZone {
    fn new(zone: &str, project: Option<&str>) -> Self {
        Self {
            zone: zone.to_owned(),
            project: project.map(str::to_owned),
        }
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
