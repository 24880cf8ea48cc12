//! The CloudProvider over BizFly Cloud's API.

mod diagnosis;
mod drift;
mod launch;
pub mod orphans;
mod termination;
mod types;
mod warm;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::{
    NodeClaim, NodePool,
    conditions::StatusConditions,
    labels::{LabelRules, NODEPOOL},
};
use karpenter_cloud::{
    AnnotationNames, BackgroundTask, ClaimMark, CloudError, CloudProvider, Deletion, Diagnosis, DriftReason, Finding,
    Instance, InstanceTypes, LaunchHints, NodeClassKind, RebootOperation, RepairPolicy, UnregisteredTaint,
    VolumeRequirements,
    cache::CacheMetrics,
    clock::{Clock, later},
    error::CloudContext,
    garbage_collection::{Caution, GarbageCollector, KnownClaims},
    webhook::WebhookOfProvider,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    account::{Account, AccountError, Accounts},
    catalogue::ClassFacts,
    client::{ApiError, ErrorClass, wire::Server},
    compat,
    events::Events,
    fleet::{self, Costs, Firewalls, FleetMemory, Usage},
    garbage_collection, instance,
    labels::{self, annotations},
    ledger::Ledger,
    metrics::Metrics,
    node_class::BizflyCloudNodeClass,
    pool_advice,
    quota::Reservations,
    readiness,
    refusals::Refusals,
    repair,
    resolution::{self, JoinMode},
    settings::{ProvisionerCompatibility, Settings},
    sharing::{self, Peers},
    tags::{self, Ownership},
    volume_plans::{self, VolumePlans},
};
use drift::DriftMemory;
use launch::{Order, UidLocks};
use types::TypesMemory;

/// Launches servers of BizFly Cloud. Cheap to clone; clones are one provider.
#[derive(Clone)]
pub struct BizflyCloudProvider {
    pub(crate) shared: Arc<Shared>,
}

/// Everything the calls and the background tasks share.
pub(crate) struct Shared {
    pub(crate) kube: Client,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) accounts: Accounts,
    pub(crate) metrics: Metrics,
    cache_metrics: CacheMetrics,
    rules: LabelRules,
    pub(crate) events: Events,
    pub(crate) ledger: Ledger,
    pub(crate) fleet: FleetMemory,
    pub(crate) costs: Costs,
    pub(crate) firewalls: Firewalls,
    pub(crate) refusals: Refusals,
    types: Mutex<TypesMemory>,
    /// One launch at a time per claim.
    launching: UidLocks,
    /// Orders that were placed by this process and whose server is not known yet, by claim UID.
    orders: Mutex<BTreeMap<String, Order>>,
    pub(crate) reservations: Reservations,
    pub(crate) peers: Peers,
    pub(crate) volume_plans: VolumePlans,
    drift: Mutex<BTreeMap<String, DriftMemory>>,
    /// When a server's deletion was first asked for, by server id.
    deletions: Mutex<BTreeMap<String, Timestamp>>,
    /// How often a server refused its deletion, by server id.
    refused_deletions: Mutex<BTreeMap<String, u32>>,
    reboots: Mutex<BTreeMap<RebootOperation, Timestamp>>,
    pub(crate) webhook: WebhookOfProvider,
}

pub const NAME: &str = "bizflycloud";
/// As core's metrics have it: that of the earlier provider, whose dashboards are in use.
const METRIC_NAME: &str = "karpenter.bizflycloud.com";
/// A reboot with the same operation is not sent again within this time.
const REBOOT_MEMORY: Duration = Duration::from_secs(10 * 60);
/// How many claims are looked up before an empty list is believed.
const DOUBTED: usize = 3;

impl BizflyCloudProvider {
    pub fn new(client: Client, clock: Clock, settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let metrics = Metrics::new();
        let cache_metrics = CacheMetrics::unregistered(NAME).expect("a constant name is valid");
        let accounts = Accounts::new(
            client.clone(),
            clock.clone(),
            settings.clone(),
            metrics.clone(),
            cache_metrics.clone(),
        );
        let namespace = settings.namespace.clone();
        Self {
            shared: Arc::new(Shared {
                events: Events::new(client.clone(), clock.clone(), accounts.redactor().clone()),
                ledger: Ledger::new(client.clone(), clock.clone(), namespace),
                fleet: FleetMemory::default(),
                costs: Costs::default(),
                firewalls: Firewalls::default(),
                refused_deletions: Mutex::default(),
                kube: client,
                refusals: Refusals::new(clock.clone()),
                clock,
                settings,
                accounts,
                metrics,
                cache_metrics,
                rules: labels::rules(),
                types: Mutex::default(),
                launching: UidLocks::default(),
                orders: Mutex::default(),
                reservations: Reservations::default(),
                peers: Peers::default(),
                volume_plans: VolumePlans::default(),
                drift: Mutex::default(),
                deletions: Mutex::default(),
                reboots: Mutex::default(),
                webhook: WebhookOfProvider::default(),
            }),
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Judges every ProviderConfig and BizflyCloudNodeClass once, as the background task does again and again.
    pub async fn reconcile_classes(&self) {
        readiness::reconcile_all(&self.shared).await;
    }

    /// One round of garbage collection for a cluster with these claims, with what earlier rounds saw in `collector`.
    ///
    /// # Errors
    /// When servers could not be listed; nothing is collected then.
    pub async fn collect_garbage(
        &self,
        collector: &mut GarbageCollector,
        claims: &KnownClaims,
    ) -> Result<(), CloudError> {
        let known = || async { Ok(claims.clone()) }.boxed();
        garbage_collection::round(&self.shared, collector, &known).await
    }

    /// One round of collecting disks that outlived their servers.
    ///
    /// # Errors
    /// When the cluster or the cloud could not be asked.
    pub async fn collect_disks(&self) -> Result<(), CloudError> {
        garbage_collection::collect_disks(&self.shared).await
    }

    /// How careful its garbage collection is.
    pub fn caution(&self) -> Caution {
        garbage_collection::caution(&self.shared)
    }

    /// Looks at the servers of all claims once, as the background task does again and again.
    ///
    /// # Errors
    /// When the cluster or the cloud could not be asked.
    pub async fn look_at_fleet(&self) -> Result<(), CloudError> {
        let pods: Api<Pod> = Api::all(self.shared.kube.clone());
        let pods = pods.list(&ListParams::default()).await.cloud_context("listing Pods")?;
        fleet::round(&self.shared, &Usage::of(&pods.items)).await
    }

    /// Brings warm pools to their size once, as the background task does again and again.
    ///
    /// # Errors
    /// When the cluster or the cloud could not be asked.
    pub async fn keep_warm(&self) -> Result<(), CloudError> {
        self.shared.keep_warm().await
    }

    /// Looks at the billing plans of volumes once, as the background task does again and again.
    ///
    /// # Errors
    /// When the cluster or the cloud could not be asked.
    pub async fn look_at_volumes(&self) -> Result<(), CloudError> {
        volume_plans::round(&self.shared).await
    }

    /// Tells other clusters once what this one uses, and hears what they do, as the background task does again and again.
    ///
    /// # Errors
    /// When the hub or the cloud could not be asked.
    pub async fn share(&self) -> Result<(), CloudError> {
        sharing::round(&self.shared).await
    }

    /// Carries out every Provisioner once, as the background task does again and again.
    ///
    /// # Errors
    /// When Provisioners could not be listed.
    pub async fn reconcile_provisioners(&self) -> Result<(), CloudError> {
        compat::reconcile_all(&self.shared).await
    }
}

impl Shared {
    pub(crate) async fn node_class(&self, name: &str) -> Result<Option<BizflyCloudNodeClass>, CloudError> {
        let classes: Api<BizflyCloudNodeClass> = Api::all(self.kube.clone());
        classes
            .get_opt(name)
            .await
            .cloud_context(format!("reading BizflyCloudNodeClass {name}"))
    }

    /// Whether this process has an order out whose server this may be.
    pub(crate) fn is_launching(&self, account: &Account, server: &Server) -> bool {
        let owner = self.ownership(account, server);
        // An order that nobody asks about any more is no reason to keep its server.
        let longest = self.settings.create_timeout + launch::LOST_ANSWER;
        let now = self.clock.now();
        let orders = self.orders.lock();
        let order = owner.claim().and_then(|claim| orders.get(&claim.uid));
        order.is_some_and(|order| now < later(order.placed_at(), longest))
    }

    /// The class and account of a claim.
    async fn ground(&self, claim: &NodeClaim) -> Result<(BizflyCloudNodeClass, Arc<Account>), CloudError> {
        let name = &claim.spec.node_class_ref.name;
        let class = self.node_class(name).await?;
        let class =
            class.ok_or_else(|| CloudError::node_class_not_ready(name, "this BizflyCloudNodeClass does not exist"))?;
        match self.accounts.get(class.spec.provider_config()).await {
            Ok(account) => Ok((class, account)),
            Err(AccountError::Problem(problem)) => Err(CloudError::node_class_not_ready(name, problem.message)),
            Err(AccountError::Cluster(error)) => Err(error),
        }
    }

    /// What of a class its instance types and instances depend on.
    pub(crate) fn facts(&self, class: &BizflyCloudNodeClass, account: &Account) -> ClassFacts {
        let status = class.status.clone().unwrap_or_default();
        let images: Vec<&str> = status.images.iter().map(|image| image.id.as_str()).collect();
        ClassFacts {
            name: class.metadata.name.clone().unwrap_or_default(),
            region_label: self.region_label(account),
            zones: status.zones.clone(),
            spec: class.spec.clone(),
            images: status.images.clone(),
            root_disk_gib: resolution::root_disk(&class.spec, account),
            vm_memory_overhead: self.settings.vm_memory_overhead,
            learned_memory: self.ledger.memory(&images),
            spot_plan_names: self.settings.spot_plan_names.clone(),
            plans: None,
        }
    }

    fn region_label(&self, account: &Account) -> String {
        let configured = self.settings.region_label.clone();
        configured.unwrap_or_else(|| account.region.region.short().to_owned())
    }

    /// Notes on a claim what a restarted controller should know. Where that fails, it is found out in another way.
    async fn note(&self, claim: &NodeClaim, key: &str, value: &str) {
        let Some(name) = &claim.metadata.name else { return };
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let written = claims.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if let Err(error) = written {
            tracing::debug!(NodeClaim = name, key, value, %error, "this could not be noted on the claim");
        }
    }

    /// Whose a server is.
    pub(crate) fn ownership(&self, account: &Account, server: &Server) -> Ownership {
        let cluster = &self.settings.cluster_name;
        if let Some(mark) = tags::warm_mark(server, cluster, &account.tag_prefixes) {
            return match self.ledger.warm_claim(&server.id) {
                Some(claim) => Ownership::Ours(claim),
                None => Ownership::Warm(mark),
            };
        }
        let bke = self.settings.bke.cluster_id.as_deref();
        tags::ownership(server, cluster, &account.tag_prefixes, bke)
    }

    pub(crate) fn rules(&self) -> &LabelRules {
        &self.rules
    }

    /// A server of ours as an instance; the class that made it is found by its tag.
    async fn instance_of(
        &self,
        account: &Account,
        server: &Server,
        owner: &Ownership,
        classes: &BTreeMap<String, BizflyCloudNodeClass>,
    ) -> Result<Instance, CloudError> {
        let catalogue = account.catalogue().await?;
        let class = tags::node_class(server, &account.tag_prefixes).and_then(|name| classes.get(name));
        let facts = class.map(|class| self.facts(class, account));
        Ok(instance::instance(
            server,
            owner.claim(),
            facts.as_ref(),
            &catalogue,
            &self.region_label(account),
        ))
    }

    pub(crate) async fn classes(&self) -> Result<BTreeMap<String, BizflyCloudNodeClass>, CloudError> {
        let classes: Api<BizflyCloudNodeClass> = Api::all(self.kube.clone());
        let listed = classes
            .list(&ListParams::default())
            .await
            .cloud_context("listing BizflyCloudNodeClasses")?;
        let named = listed
            .items
            .into_iter()
            .filter_map(|class| Some((class.metadata.name.clone()?, class)));
        Ok(named.collect())
    }

    /// The account that a server is in, and the server.
    pub(crate) async fn find_server(&self, id: &str) -> Result<Option<(Arc<Account>, Server)>, CloudError> {
        for account in self.accounts.all().await? {
            match account.api.server(id).await {
                Ok(server) => return Ok(Some((account, server))),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Claims with a provider ID whose server must be somewhere.
    async fn launched_claims(&self) -> Result<Vec<String>, CloudError> {
        let claims: Api<NodeClaim> = Api::all(self.kube.clone());
        let listed = claims
            .list(&ListParams::default())
            .await
            .cloud_context("listing NodeClaims")?;
        let kind = NodeClassKind::of::<BizflyCloudNodeClass>();
        let ours = listed.items.iter().filter(|claim| {
            let reference = &claim.spec.node_class_ref;
            kind.is_meant_by(&reference.group, &reference.kind) && claim.metadata.deletion_timestamp.is_none()
        });
        Ok(ours
            .filter_map(|claim| claim.provider_id().map(str::to_owned))
            .collect())
    }

    /// A changed cluster name or tag prefix must not look as if all servers were gone: core would delete every claim.
    async fn doubt_empty_list(&self) -> Result<(), CloudError> {
        for id in self.launched_claims().await?.iter().take(DOUBTED) {
            let Some(server) = instance::server_id(id) else {
                continue;
            };
            if self
                .find_server(server)
                .await?
                .is_some_and(|(_, server)| !server.is_terminating())
            {
                return Err(CloudError::invalid(format!(
                    "OwnershipTagMismatch: server {server} of a NodeClaim exists but does not carry the marks of cluster {}; \
                     was the cluster name or the tag prefix changed?",
                    self.settings.cluster_name
                )));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl CloudProvider for BizflyCloudProvider {
    fn name(&self) -> &str {
        METRIC_NAME
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        vec![NodeClassKind::of::<BizflyCloudNodeClass>()]
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        let rules = labels::extend(rules);
        match self.shared.settings.provisioners {
            // Workloads of converted Provisioners still select by the old label, which our nodes then carry too.
            ProvisionerCompatibility::On => rules.with_alias(labels::PROVISIONER_NAME, NODEPOOL),
            ProvisionerCompatibility::Off => rules,
        }
    }

    fn volume_requirements(&self) -> VolumeRequirements {
        self.shared.volume_plans.required()
    }

    fn annotation_names(&self) -> AnnotationNames {
        match self.shared.settings.provisioners {
            ProvisionerCompatibility::On => AnnotationNames::AlsoV1alpha5,
            ProvisionerCompatibility::Off => AnnotationNames::Current,
        }
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        repair::policies()
    }

    fn background_tasks(&self) -> Vec<BackgroundTask> {
        let (classes, garbage) = (self.shared.clone(), self.shared.clone());
        let (fleet, warm) = (self.shared.clone(), self.shared.clone());
        let (volumes, peers) = (self.shared.clone(), self.shared.clone());
        let mut tasks = vec![
            BackgroundTask::new("bizflycloud.nodeclass", |stop| readiness::keep(classes, stop)),
            BackgroundTask::new("bizflycloud.garbagecollection", |stop| {
                garbage_collection::keep(garbage, stop)
            }),
            BackgroundTask::new("bizflycloud.fleet", |stop| fleet::keep(fleet, stop)),
            BackgroundTask::new("bizflycloud.warmpool", |stop| warm::keep(warm, stop)),
            BackgroundTask::new("bizflycloud.volumeplans", |stop| volume_plans::keep(volumes, stop)),
            BackgroundTask::new("bizflycloud.sharing", |stop| sharing::keep(peers, stop)),
        ];
        if self.shared.settings.provisioners == ProvisionerCompatibility::On {
            let provisioners = self.shared.clone();
            tasks.push(BackgroundTask::new("bizflycloud.provisioner", |stop| {
                compat::keep(provisioners, stop)
            }));
        }
        tasks
    }

    fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.shared.metrics.register(registry)?;
        self.shared.cache_metrics.register_into(registry)
    }

    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        self.shared.create(claim).await
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.shared.abandon(claim).await
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.shared.delete(claim).await
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let not_found = || CloudError::not_found(provider_id);
        let id = instance::server_id(provider_id).ok_or_else(not_found)?;
        let (account, server) = self.shared.find_server(id).await?.ok_or_else(not_found)?;
        let one = std::slice::from_ref(&server);
        self.shared.open_ledger_for(&account, one).await?;
        let owner = self.shared.ownership(&account, &server);
        if !owner.is_a_nodes() {
            return Err(not_found());
        }
        let classes = self.shared.classes().await?;
        self.shared.instance_of(&account, &server, &owner, &classes).await
    }

    /// All or nothing: one account that cannot be read fails the list, because core deletes claims that it lacks.
    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let classes = self.shared.classes().await?;
        let mut instances = Vec::new();
        for account in self.shared.accounts.all().await? {
            let servers = account.servers().await.map_err(CloudError::from)?;
            self.shared.open_ledger_for(&account, &servers).await?;
            for server in servers.iter() {
                let owner = self.shared.ownership(&account, server);
                if !owner.is_a_nodes() {
                    continue;
                }
                instances.push(self.shared.instance_of(&account, server, &owner, &classes).await?);
            }
        }
        if instances.is_empty() {
            self.shared.doubt_empty_list().await?;
        }
        Ok(instances)
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.shared.instance_types(pool).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.shared.is_drifted(claim).await
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        {
            let mut reboots = shared.reboots.lock();
            reboots.retain(|_, at| now < later(*at, REBOOT_MEMORY));
            if reboots.contains_key(operation) {
                return Ok(());
            }
        }
        // An earlier process may have sent it.
        let notes = claim.metadata.annotations.as_ref();
        if notes.and_then(|notes| notes.get(annotations::REBOOT_OPERATION)) == Some(&operation.0) {
            return Ok(());
        }
        let provider_id = claim.provider_id().unwrap_or_default();
        let not_found = || CloudError::not_found(provider_id);
        let id = instance::server_id(provider_id).ok_or_else(not_found)?;
        let (account, server) = shared.find_server(id).await?.ok_or_else(not_found)?;
        shared.open_ledger_for(&account, std::slice::from_ref(&server)).await?;
        if !shared.ownership(&account, &server).is_a_nodes() {
            return Err(not_found());
        }
        let action = match server.status.as_str() {
            "SHUTOFF" => "start",
            "REBOOT" | "HARD_REBOOT" | "BUILD" => return Ok(()),
            _ => "hard_reboot",
        };
        match account.api.act_on_server(id, action).await {
            Ok(()) => {
                shared.reboots.lock().insert(operation.clone(), now);
                shared.note(claim, annotations::REBOOT_OPERATION, &operation.0).await;
                Ok(())
            }
            Err(error) if error.class == ErrorClass::Forbidden => Err(CloudError::reboot_failed(error.to_string())),
            Err(error) if error.is_not_found() => Err(not_found()),
            Err(error) => Err(error.into()),
        }
    }

    /// BKE's kubelets are configured by BKE, which knows nothing of Karpenter's taint.
    async fn launch_hints(&self, claim: &NodeClaim) -> LaunchHints {
        let class = self.shared.node_class(&claim.spec.node_class_ref.name).await;
        let on_bke = match class {
            Ok(Some(class)) => JoinMode::of(&class.spec, &self.shared.settings) == JoinMode::Bke,
            Ok(None) | Err(_) => false,
        };
        LaunchHints {
            unregistered_taint: if on_bke {
                UnregisteredTaint::NotExpected
            } else {
                UnregisteredTaint::Expected
            },
            ..LaunchHints::default()
        }
    }

    async fn diagnose(&self) -> Vec<Diagnosis> {
        self.shared.diagnose().await
    }

    async fn validate_node_pool(&self, pool: &NodePool) -> Result<Vec<Finding>, CloudError> {
        let reference = &pool.spec.template.spec.node_class_ref;
        let Some(class) = self.shared.node_class(&reference.name).await? else {
            return Ok(Vec::new());
        };
        let account = self.shared.accounts.get(class.spec.provider_config()).await?;
        let catalogue = account.catalogue().await.map_err(CloudError::from)?;
        Ok(pool_advice::findings(pool, &catalogue, account.region.region))
    }
}

/// Whether claims may be launched with a class.
fn ready(class: &BizflyCloudNodeClass) -> Result<(), CloudError> {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    if class.metadata.deletion_timestamp.is_some() {
        return Err(CloudError::node_class_not_ready(name, "it is being deleted"));
    }
    match class.condition("Ready") {
        Some(ready) if ready.is_true() => Ok(()),
        Some(ready) if ready.is_false() => Err(CloudError::node_class_not_ready(name, &ready.message)),
        Some(_) | None => Err(CloudError::node_class_not_ready(name, "it was not looked at yet")),
    }
}

/// What an API error means for a launch, with the reason that users read on the claim.
fn launch_error(error: ApiError) -> CloudError {
    let message = error.to_string();
    match error.class {
        ErrorClass::Invalid | ErrorClass::NotFound | ErrorClass::ServiceNotInCatalog => {
            CloudError::create("InvalidRequest", message)
        }
        ErrorClass::Auth | ErrorClass::Forbidden | ErrorClass::ProjectMismatch => {
            CloudError::create("AuthenticationFailed", message)
        }
        ErrorClass::Payment => CloudError::create("PaymentRequired", message),
        ErrorClass::Transient | ErrorClass::Unreachable | ErrorClass::Ambiguous | ErrorClass::Conflict => {
            CloudError::create("APIUnavailable", message)
        }
        ErrorClass::Quota | ErrorClass::Stock | ErrorClass::RateLimited => error.into(),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for BizflyCloudProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BizflyCloudProvider")
            .field("cluster", &self.shared.settings.cluster_name)
            .finish_non_exhaustive()
    }
}

/// The claim behind a launch, for logs.
fn mark_of(claim: &NodeClaim) -> ClaimMark {
    ClaimMark::of(claim)
}
