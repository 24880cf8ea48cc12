//! The CloudProvider over CloudStack's API.

mod diagnosis;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference, Secret};
use karpenter_api::{NodeClaim, NodePool, conditions::StatusConditions, labels::LabelRules};
use karpenter_cloud::{
    BackgroundTask, CloudError, CloudProvider, Deletion, Diagnosis, DriftReason, Instance, InstanceTypes,
    NodeClassKind, RebootOperation, RepairPolicy,
    cache::CacheMetrics,
    clock::Clock,
    error::CloudContext,
    events::{Announcement, EventWriter},
    webhook::WebhookOfProvider,
};
use kube::{Api, api::ListParams};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    affinity::Seats,
    bootstrap::{self, Secrets},
    catalogue::{self, Entry, Surroundings, discovered::DiscoveredMemory},
    client::{ApiError, Client, Priority, Request, jobs::Jobs, model::VirtualMachine},
    drift,
    fleet::Fleet,
    inventory::Inventory,
    labels,
    machine::{self, Known, Marks, View},
    node_class::{CloudStackNodeClass, PriceSource, bootstrap::SecretKeyRef},
    provider_id::{self, ProviderIdFormat},
    repair,
    resolve::{Problem, Resolution},
    settings::{ProviderSettings, Switch},
    tasks,
    termination::Destroying,
    unavailable::Unavailable,
};

/// Launches virtual machines at CloudStack.
#[derive(Clone)]
pub struct CloudStackProvider {
    pub(crate) shared: Arc<Shared>,
}

/// What calls and background tasks share.
pub(crate) struct Shared {
    pub(crate) settings: Arc<ProviderSettings>,
    pub(crate) clock: Clock,
    pub(crate) kube: kube::Client,
    pub(crate) client: Client,
    pub(crate) jobs: Jobs,
    pub(crate) fleet: Fleet,
    pub(crate) inventory: Inventory,
    pub(crate) unavailable: Unavailable,
    pub(crate) discovered: DiscoveredMemory,
    cache_metrics: CacheMetrics,
    pub(crate) rules: LabelRules,
    pub(crate) started_at: Timestamp,
    format: Mutex<Option<ProviderIdFormat>>,
    types: Mutex<HashMap<String, InstanceTypes>>,
    events: EventWriter,
    pub(crate) creating: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(crate) destroying: Mutex<HashMap<String, Destroying>>,
    pub(crate) expunge_denied: Mutex<Option<Timestamp>>,
    pub(crate) deploys: Semaphore,
    pub(crate) grouping: tokio::sync::Mutex<()>,
    pub(crate) seats: Seats,
    pub(crate) machines_per_network: Mutex<BTreeMap<String, usize>>,
    /// New keys that do not work, or are somebody else's.
    pub(crate) refused_keys: Mutex<Option<tasks::RefusedKeys>>,
    /// Data disks of ours that are on no machine, and since when.
    pub(crate) loose_disks: Mutex<BTreeMap<String, Timestamp>>,
    pub(crate) reboots: Mutex<std::collections::BTreeSet<String>>,
    /// Since when CloudStack does not answer, by class.
    pub(crate) outages: Mutex<HashMap<String, Timestamp>>,
    pub(crate) webhook: WebhookOfProvider,
}

/// Worker pools of management servers are small.
const DEPLOYS_AT_ONCE: usize = 50;
const WAIT_FOR_START: Duration = Duration::from_secs(120);
/// A probe may miss a few answers before the process counts as unready.
const UNREADY_AFTER: Duration = Duration::from_secs(120);

impl CloudStackProvider {
    pub fn new(
        kube: kube::Client,
        clock: Clock,
        settings: ProviderSettings,
        client: Client,
        caches: &CacheMetrics,
    ) -> Self {
        let settings = Arc::new(settings);
        let shared = Shared {
            jobs: Jobs::new(client.clone(), settings.longest_job_pause),
            fleet: Fleet::new(client.clone(), settings.clone()),
            inventory: Inventory::new(client.clone(), &clock, &settings, caches),
            unavailable: Unavailable::new(clock.clone(), settings.unavailable_for),
            discovered: DiscoveredMemory::new(clock.clone()),
            cache_metrics: caches.clone(),
            rules: labels::extend(LabelRules::default()),
            started_at: clock.now(),
            format: Mutex::new(settings.provider_id_format.clone()),
            types: Mutex::default(),
            events: EventWriter::new(kube.clone(), clock.clone()),
            creating: Mutex::default(),
            destroying: Mutex::default(),
            expunge_denied: Mutex::default(),
            deploys: Semaphore::new(DEPLOYS_AT_ONCE),
            grouping: tokio::sync::Mutex::default(),
            seats: Seats::default(),
            machines_per_network: Mutex::default(),
            refused_keys: Mutex::default(),
            loose_disks: Mutex::default(),
            reboots: Mutex::default(),
            outages: Mutex::default(),
            webhook: WebhookOfProvider::default(),
            kube,
            clock,
            client,
            settings,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Makes sure that CloudStack answers and finds out who we are, with patience.
    ///
    /// # Errors
    /// When it does not answer for two minutes, or refuses the keys.
    pub async fn verify(&self) -> Result<(), CloudError> {
        let shared = &self.shared;
        let deadline = karpenter_cloud::clock::later(shared.clock.now(), WAIT_FOR_START);
        let mut pause = Duration::from_secs(1);
        loop {
            match shared.inventory.capabilities().await {
                Ok(_) => break,
                Err(error) if error.is_outage() && shared.clock.now() < deadline => {
                    tracing::warn!(%error, "CloudStack does not answer yet");
                    shared.clock.sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(30));
                }
                Err(error) => return Err(CloudError::from(error)),
            }
        }
        shared.learn_role().await;
        if shared.format.lock().is_none() {
            let format = shared.format_of_nodes().await?;
            tracing::info!(?format, "provider IDs have the form of existing nodes");
            *shared.format.lock() = Some(format);
        }
        Ok(())
    }

    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Forgets every cached list.
    pub fn flush(&self) {
        self.shared.inventory.flush();
    }

    /// Brings the status of one class up to date, as the background task does.
    ///
    /// # Errors
    /// When the Kubernetes API refused.
    pub async fn reconcile_class(&self, name: &str) -> Result<(), CloudError> {
        tasks::class::reconcile_named(&self.shared, name).await
    }

    /// One round of garbage collection, as the background task does.
    ///
    /// # Errors
    /// When machines or claims could not be listed; nothing was deleted then.
    pub async fn collect_garbage(
        &self,
        collector: &mut karpenter_cloud::garbage_collection::GarbageCollector,
    ) -> Result<usize, CloudError> {
        tasks::garbage::round(&self.shared, collector).await
    }

    /// One look at every machine, as the background task does.
    ///
    /// # Errors
    /// When machines or claims could not be listed.
    pub async fn sweep(&self, memory: &mut tasks::sweep::Memory) -> Result<(), CloudError> {
        tasks::sweep::round(&self.shared, memory).await
    }

    /// Looks whether there are new keys, as the background task does.
    pub async fn look_at_keys(&self) {
        tasks::look_at_keys(&self.shared).await;
    }

    /// Learns from running Nodes how much memory they have, as the background task does.
    ///
    /// # Errors
    /// When Nodes could not be listed.
    pub async fn discover_memory(&self) -> Result<(), CloudError> {
        tasks::memory::round(&self.shared).await
    }

    /// One look at every Node, as the background task does.
    ///
    /// # Errors
    /// When Nodes, machines or claims could not be listed.
    pub async fn identify_nodes(&self) -> Result<(), CloudError> {
        tasks::identity::round(&self.shared).await
    }
}

impl Shared {
    pub(crate) fn format(&self) -> ProviderIdFormat {
        self.format.lock().clone().unwrap_or_default()
    }

    pub(crate) fn provider_id(&self, vm: &VirtualMachine) -> String {
        self.format().render(&vm.id, &vm.zonename)
    }

    async fn format_of_nodes(&self) -> Result<ProviderIdFormat, CloudError> {
        let nodes: Api<Node> = Api::all(self.kube.clone());
        let nodes = nodes
            .list(&ListParams::default())
            .await
            .cloud_context("listing nodes")?;
        let ids = nodes
            .items
            .iter()
            .filter_map(|node| node.spec.as_ref()?.provider_id.as_deref());
        Ok(ProviderIdFormat::most_used(ids))
    }

    pub(crate) async fn class_by_name(&self, name: &str) -> Result<Option<CloudStackNodeClass>, CloudError> {
        let classes: Api<CloudStackNodeClass> = Api::all(self.kube.clone());
        classes
            .get_opt(name)
            .await
            .cloud_context(format!("reading CloudStackNodeClass {name}"))
    }

    /// The class of a claim, if machines may be made with it.
    pub(crate) async fn ready_class(&self, claim: &NodeClaim) -> Result<CloudStackNodeClass, CloudError> {
        let name = &claim.spec.node_class_ref.name;
        let Some(class) = self.class_by_name(name).await? else {
            return Err(CloudError::insufficient_capacity(format!(
                "CloudStackNodeClass {name} does not exist"
            )));
        };
        if class.metadata.deletion_timestamp.is_some() {
            return Err(CloudError::insufficient_capacity(format!(
                "CloudStackNodeClass {name} is being deleted"
            )));
        }
        let ready = class.condition(karpenter_api::conditions::READY);
        let is_current = ready.is_some_and(|own| {
            own.observed_generation
                .is_none_or(|seen| Some(seen) == class.metadata.generation)
        });
        match ready {
            Some(own) if is_current && own.is_true() => Ok(class),
            Some(own) if is_current && own.is_false() => Err(CloudError::node_class_not_ready(name, &own.message)),
            Some(_) if !is_current => Err(CloudError::node_class_not_ready(
                name,
                "its latest change was not looked at yet",
            )),
            Some(_) | None => Err(CloudError::create(
                "NodeClassReadinessUnknown",
                format!("it is not known yet whether CloudStackNodeClass {name} can be used"),
            )),
        }
    }

    /// Finds out whether the key is a root administrator's; an account that may not be read is not.
    pub(crate) async fn learn_role(&self) {
        match self.inventory.quota(None).await {
            Ok(account) => {
                if let Some(account) = account.as_ref() {
                    self.fleet
                        .set_sees_everything(account.roletype.as_deref() == Some("Admin"));
                }
            }
            Err(error) => tracing::debug!(%error, "the role of the API key is unknown"),
        }
    }

    /// Pins to infrastructure are for root administrators only.
    pub(crate) async fn placement_problem(&self, class: &CloudStackNodeClass) -> Option<Problem> {
        class.spec.placement.as_ref()?;
        self.learn_role().await;
        (!self.fleet.is_of_root()).then(|| Problem {
            reason: "Forbidden",
            message: "placement needs the key of a root administrator; remove it, or use such a key".to_owned(),
        })
    }

    /// The Secrets that a class refers to.
    pub(crate) async fn secrets(&self, class: &CloudStackNodeClass) -> Result<Secrets, Problem> {
        let mut secrets = Secrets::default();
        let spec = &class.spec;
        if let Some(reference) = spec.user_data_ref.as_ref().and_then(|own| own.secret_ref.as_ref()) {
            secrets.all = self.secret(reference).await?;
            secrets.user_data = Some(key_of(&secrets.all, reference)?);
        }
        if let Some(bootstrap) = &spec.bootstrap {
            if let Some(reference) = &bootstrap.token_secret_ref {
                secrets.token = Some(key_of(&self.secret(reference).await?, reference)?);
            }
            if let Some(reference) = &bootstrap.machine_config_secret_ref {
                secrets.machine_config = Some(key_of(&self.secret(reference).await?, reference)?);
            }
        }
        if bootstrap::needs_cluster_info(class, &secrets) {
            secrets.cluster_info = Some(self.cluster_info().await?);
        }
        Ok(secrets)
    }

    /// What kubeadm tells everyone who wants to join.
    async fn cluster_info(&self) -> Result<String, Problem> {
        let api: Api<ConfigMap> = Api::namespaced(self.kube.clone(), "kube-public");
        let found = api.get_opt("cluster-info").await;
        let text = found
            .map_err(|error| error.to_string())
            .and_then(|found| found.ok_or_else(|| "it does not exist".to_owned()))
            .and_then(|found| {
                let text = found.data.and_then(|mut data| data.remove("kubeconfig"));
                text.ok_or_else(|| "it has no key kubeconfig".to_owned())
            });
        text.map_err(|why| Problem {
            reason: "SecretNotFound",
            message: format!("ConfigMap kube-public/cluster-info cannot be used: {why}; give caCertHashes instead"),
        })
    }

    async fn secret(&self, reference: &SecretKeyRef) -> Result<BTreeMap<String, String>, Problem> {
        let SecretKeyRef { name, namespace, .. } = reference;
        let not_found = |message: String| Problem {
            reason: "SecretNotFound",
            message,
        };
        let found = self
            .secret_data(reference)
            .await
            .map_err(|error| not_found(format!("Secret {namespace}/{name} cannot be read: {error}")))?;
        found.ok_or_else(|| not_found(format!("Secret {namespace}/{name} does not exist")))
    }

    /// All that is text in a Secret; `None` if there is no such Secret.
    ///
    /// # Errors
    /// When it could not be read.
    pub(crate) async fn secret_data(
        &self,
        reference: &SecretKeyRef,
    ) -> Result<Option<BTreeMap<String, String>>, kube::Error> {
        let api: Api<Secret> = Api::namespaced(self.kube.clone(), &reference.namespace);
        let Some(found) = api.get_opt(&reference.name).await? else {
            return Ok(None);
        };
        let data = found.data.unwrap_or_default().into_iter();
        let texts = data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
        Ok(Some(texts.collect()))
    }

    /// Every instance type of a class.
    pub(crate) async fn entries(
        &self,
        class: &CloudStackNodeClass,
        resolution: &Resolution,
    ) -> Result<Vec<Entry>, ApiError> {
        let uses_tariffs = class.spec.pricing.as_ref().and_then(|own| own.source) == Some(PriceSource::Quota);
        let tariffs = if uses_tariffs {
            self.inventory.tariffs().await?
        } else {
            Arc::default()
        };
        let quota = match self.settings.quota_preflight {
            Switch::On => {
                let project = self.inventory.project(class).await?;
                // A preflight that cannot be made is no reason to stop.
                let quota = self.inventory.quota(project.as_deref()).await;
                quota
                    .inspect_err(|error| tracing::debug!(%error, "what the account may still use is unknown"))
                    .ok()
            }
            Switch::Off => None,
        };
        let quota = quota.as_deref().and_then(Option::as_ref);
        if let Some(account) = quota {
            self.client.metrics().show_quota(account);
        }
        let full_zones = match self.settings.quota_preflight {
            Switch::On if self.fleet.is_of_root() => {
                let full = self.inventory.full_zones().await;
                full.inspect_err(|error| tracing::debug!(%error, "which zones are full is unknown"))
                    .unwrap_or_default()
            }
            Switch::On | Switch::Off => Arc::default(),
        };
        let entries = catalogue::entries(
            class,
            resolution,
            &Surroundings {
                settings: &self.settings,
                unavailable: &self.unavailable,
                discovered: &self.discovered,
                quota,
                full_zones: &full_zones,
                tariffs: &tariffs,
                now: self.clock.now(),
            },
        );
        let types = entries.iter().map(|own| own.instance_type.as_ref());
        self.client.metrics().show_offerings(types);
        Ok(entries)
    }

    /// An event on a claim that users should read.
    pub(crate) async fn tell_claim(&self, claim: &NodeClaim, reason: &'static str, message: &str) {
        self.tell(kube::Resource::object_ref(claim, &()), reason, message).await;
    }

    pub(crate) async fn tell(&self, about: ObjectReference, reason: &'static str, message: &str) {
        self.events.write(&about, &Announcement::warning(reason, message)).await;
    }

    async fn get(&self, asked: &str) -> Result<Instance, CloudError> {
        let not_found = || CloudError::not_found(asked);
        let id = provider_id::machine_id(asked).map_err(|_| not_found())?;
        let vm = self.fleet.read(&id).await?.ok_or_else(not_found)?;
        let marks = Marks::of(&vm, &self.settings);
        let is_there = !matches!(View::of(&vm, self.clock.now()), View::Gone | View::Failed);
        if !marks.is_ours() || !is_there {
            return Err(not_found());
        }
        let mut classes = Classes::default();
        self.instance(&vm, asked.to_owned(), &mut classes).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let vms = self.fleet.list(Priority::Discovery).await?;
        self.note_networks(&vms);
        let claims = tasks::claims(&self.kube).await?;
        // The string that a claim has is the one that core compares with, whatever the form is today.
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        for claim in &claims {
            if let Some(own) = claim.provider_id()
                && let Ok(id) = provider_id::machine_id(own)
            {
                known.insert(id, own.to_owned());
            }
        }
        let mut classes = Classes::default();
        let mut instances = Vec::new();
        for vm in &vms {
            if View::of(vm, self.clock.now()) == View::Gone {
                continue;
            }
            let provider_id = known
                .get(&vm.id.to_lowercase())
                .cloned()
                .unwrap_or_else(|| self.provider_id(vm));
            instances.push(self.instance(vm, provider_id, &mut classes).await?);
        }
        Ok(instances)
    }

    pub(crate) fn note_networks(&self, vms: &[VirtualMachine]) {
        let mut per_network = BTreeMap::new();
        for nic in vms.iter().filter_map(VirtualMachine::default_nic) {
            *per_network.entry(nic.networkid.clone()).or_default() += 1;
        }
        *self.machines_per_network.lock() = per_network;
    }

    async fn instance(
        &self,
        vm: &VirtualMachine,
        provider_id: String,
        classes: &mut Classes,
    ) -> Result<Instance, CloudError> {
        let name = Marks::of(vm, &self.settings).node_class.unwrap_or_default();
        if !classes.0.contains_key(&name) {
            let known = match self.class_by_name(&name).await? {
                Some(class) => self.known(&class).await,
                None => None,
            };
            classes.0.insert(name.clone(), known);
        }
        let known = classes.0.get(&name).and_then(Option::as_ref);
        let known = known.map(|(resolution, entries)| Known { resolution, entries });
        Ok(machine::instance(
            vm,
            provider_id,
            known,
            &self.settings,
            self.clock.now(),
        ))
    }

    /// What is known about a class; a list of machines does not fail because a catalogue cannot be read.
    pub(crate) async fn known(&self, class: &CloudStackNodeClass) -> Option<(Resolution, Vec<Entry>)> {
        let known = async {
            let resolution = self.inventory.resolve(class).await?;
            let entries = self.entries(class, &resolution).await?;
            Ok::<_, ApiError>((resolution, entries))
        };
        let known = known.await;
        known
            .inspect_err(|error| tracing::debug!(node_class = class.name(), %error, "the catalogue is unknown"))
            .ok()
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let class = self.class_by_name(name).await?;
        let Some(class) = class.filter(|class| class.metadata.deletion_timestamp.is_none()) else {
            let message = format!(
                "CloudStackNodeClass {name} does not exist or is being deleted; the pool launches nothing until it is there"
            );
            self.tell(kube::Resource::object_ref(pool, &()), "NodeClassNotFound", &message)
                .await;
            return Ok(InstanceTypes::from(Vec::new()));
        };
        let resolution = self.inventory.resolve(&class).await?;
        let entries = self.entries(&class, &resolution).await?;
        let fresh: Vec<_> = entries.into_iter().map(|own| own.instance_type).collect();
        let mut types = self.types.lock();
        if let Some(known) = types.get(name)
            && known[..] == fresh[..]
        {
            return Ok(known.clone());
        }
        let fresh = InstanceTypes::from(fresh);
        types.insert(name.clone(), fresh.clone());
        Ok(fresh)
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        let Some(class) = self.class_by_name(&claim.spec.node_class_ref.name).await? else {
            return Ok(None);
        };
        let id = claim.provider_id().unwrap_or_default();
        let id = provider_id::machine_id(id).map_err(|_| CloudError::not_found(id))?;
        let vm = self.fleet.read(&id).await?.ok_or_else(|| CloudError::not_found(&id))?;
        let resolution = self.inventory.resolve(&class).await?;
        let secrets = self
            .secrets(&class)
            .await
            .map_err(|problem| CloudError::transient(problem.message))?;
        let hash = class.static_hash(secrets.user_data.as_deref());
        let reason = drift::reason(claim, &vm, &class, &resolution, &hash);
        Ok(reason.map(|reason| DriftReason(reason.to_owned())))
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        if !self.reboots.lock().insert(operation.0.clone()) {
            return Ok(());
        }
        let id = claim.provider_id().unwrap_or_default();
        let id = provider_id::machine_id(id).map_err(|_| CloudError::not_found(id))?;
        let vm = self
            .fleet
            .read_now(&id, Priority::Termination)
            .await?
            .ok_or_else(|| CloudError::not_found(&id))?;
        if !Marks::of(&vm, &self.settings).is_ours() {
            return Err(CloudError::not_found(&id));
        }
        let request = Request::new("rebootVirtualMachine").with("id", id);
        let sent = self.client.call(&request, Priority::Termination).await;
        if let Err(error) = sent {
            self.reboots.lock().remove(&operation.0);
            return Err(error.into());
        }
        Ok(())
    }
}

impl Shared {
    /// Whether CloudStack did anything for us lately; asks it if it was not asked for a while.
    async fn readiness(&self) -> Result<(), String> {
        let is_within = |time: Duration| {
            let answered = self.client.answered_at();
            answered.is_some_and(|at| karpenter_cloud::clock::later(at, time) > self.clock.now())
        };
        if is_within(tasks::PROBE) {
            return Ok(());
        }
        match self.client.capabilities().await {
            Err(error) if !is_within(UNREADY_AFTER) => {
                Err(format!("CloudStack has not answered for two minutes: {error}"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// What is known about classes, read once per call.
#[derive(Default)]
struct Classes(HashMap<String, Option<(Resolution, Vec<Entry>)>>);

fn key_of(all: &BTreeMap<String, String>, reference: &SecretKeyRef) -> Result<String, Problem> {
    all.get(&reference.key).cloned().ok_or_else(|| Problem {
        reason: "SecretNotFound",
        message: format!(
            "Secret {}/{} has no key {}",
            reference.namespace, reference.name, reference.key
        ),
    })
}

#[async_trait]
impl CloudProvider for CloudStackProvider {
    fn name(&self) -> &str {
        "cloudstack"
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        vec![NodeClassKind::of::<CloudStackNodeClass>()]
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        labels::extend(rules)
    }

    fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.shared.client.metrics().register(registry)?;
        self.shared.cache_metrics.register_into(registry)
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        repair::policies()
    }

    fn background_tasks(&self) -> Vec<BackgroundTask> {
        tasks::all(&self.shared)
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
        self.shared.get(provider_id).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        self.shared.list().await
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.shared.instance_types(pool).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.shared.is_drifted(claim).await
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        self.shared.reboot(claim, operation).await
    }

    async fn readiness(&self) -> Result<(), String> {
        self.shared.readiness().await
    }

    async fn diagnose(&self) -> Vec<Diagnosis> {
        self.shared.diagnose().await
    }
}

impl std::fmt::Debug for CloudStackProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudStackProvider")
            .field("cluster", &self.shared.settings.cluster_name)
            .finish_non_exhaustive()
    }
}
