//! The CloudProvider over node pools.

mod deletion;
mod diagnosis;
mod drift;
mod launch;
mod supply;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use karpenter_api::{
    NodeClaim, NodePool,
    conditions::StatusConditions,
    labels::{self, LabelRules},
};
use karpenter_cloud::{
    BackgroundTask, CloudError, CloudProvider, Deletion, DriftReason, Finding, Instance, InstancePhase, InstanceTypes,
    LaunchHints, NodeClassKind, RepairPolicy, UnregisteredTaint,
    clock::{Clock, later},
    credentials::Credentials,
    diagnosis::Diagnosis,
    error::CloudContext,
    http::Redactor,
    instance::Adoption,
    selection::{self, Candidate},
};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    catalogue::Learned,
    client::{
        auth,
        model::{NodeClass, Pool, PoolNode, instance_id},
    },
    directory::{Connection, Directory, Problem},
    events::Events,
    metrics::Metrics,
    names,
    node_class::{HASH_VERSION, OvhNodeClass},
    nodes,
    pool::{Engine, engine::Machine},
    readiness,
    registrations::Registrations,
    repair,
    settings::OvhSettings,
    tidying,
    unavailable::Unavailable,
    workload::{Workloads, is_ready},
};
use supply::Supply;
pub(crate) use supply::subsidiary;

/// Launches nodes of an OVHcloud Managed Kubernetes cluster. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct OvhProvider {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) settings: OvhSettings,
    pub(crate) directory: Directory,
    pub(crate) engine: Engine,
    pub(crate) supply: Supply,
    pub(crate) learned: Learned,
    pub(crate) registrations: Registrations,
    pub(crate) metrics: Metrics,
    pub(crate) events: Arc<Events>,
    pub(crate) workloads: Workloads,
    /// Something happened that NodeClasses should be looked at for.
    pub(crate) suspicion: Notify,
    rules: LabelRules,
    /// Since when a machine is on its way out.
    going: Mutex<BTreeMap<String, Timestamp>>,
    /// Machines whose Node was released although they were not gone: to be removed again should they come back.
    released: Mutex<BTreeMap<String, String>>,
    seen: Mutex<Option<(Timestamp, Arc<Vec<Machine>>)>>,
}

/// A list of machines this old will do to find one that is there.
const SEEN_FRESH: Duration = Duration::from_secs(10);
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl OvhProvider {
    /// Credentials that no Secret has come from `environment`.
    pub fn new(client: Client, clock: Clock, settings: OvhSettings, environment: Credentials) -> Self {
        let (metrics, redactor) = (Metrics::default(), Redactor::default());
        for (key, _) in auth::ENVIRONMENT {
            if let Some(value) = environment.get(key) {
                redactor.add(value);
            }
        }
        let unavailable = Arc::new(Unavailable::new(&clock));
        let events = Arc::new(Events::new(client.clone(), clock.clone()));
        let engine = Engine::new(
            client.clone(),
            clock.clone(),
            settings.engine.clone(),
            unavailable.clone(),
            metrics.clone(),
            events.clone(),
        );
        let directory = Directory::new(
            client.clone(),
            clock.clone(),
            settings.clone(),
            environment,
            redactor,
            metrics.clone(),
        );
        let shared = Shared {
            registrations: Registrations::new(unavailable.clone()),
            supply: Supply::new(&clock, unavailable, metrics.clone()),
            workloads: Workloads::new(client.clone()),
            events,
            client,
            clock,
            settings,
            directory,
            engine,
            learned: Learned::default(),
            metrics,
            suspicion: Notify::new(),
            rules: names::rules(),
            going: Mutex::default(),
            released: Mutex::default(),
            seen: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Credentials of the process's environment.
    pub fn environment(lookup: impl Fn(&str) -> Option<String>) -> Credentials {
        let values = auth::ENVIRONMENT
            .iter()
            .filter_map(|(key, variable)| Some(((*key).to_owned(), lookup(variable)?)));
        Credentials::new(values)
    }

    /// The pools behind this provider.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) async fn class(&self, name: &str) -> Result<Option<OvhNodeClass>, CloudError> {
        // Pools of another provider's making name no class.
        if name.is_empty() {
            return Ok(None);
        }
        let classes: Api<OvhNodeClass> = Api::all(self.client.clone());
        classes
            .get_opt(name)
            .await
            .cloud_context(format!("reading OVHNodeClass {name}"))
    }

    /// A class's way to its cluster, found before or now.
    pub(crate) async fn connection(&self, class: &OvhNodeClass) -> Result<Arc<Connection>, Problem> {
        match self.directory.known(class.name()) {
            Some(known) => Ok(known),
            None => self.connect(class).await,
        }
    }

    /// Checks a class's way to its cluster anew.
    pub(crate) async fn connect(&self, class: &OvhNodeClass) -> Result<Arc<Connection>, Problem> {
        let connection = self.directory.resolve(class).await?;
        self.engine.connect(
            connection.api.clone(),
            connection.zone_if_demanded(),
            connection.probe.extras(),
        );
        Ok(connection)
    }

    async fn types(&self, class: &OvhNodeClass, node_pool: &str) -> Result<InstanceTypes, CloudError> {
        let connection = self.connection(class).await?;
        self.supply
            .types(
                class,
                node_pool,
                &connection,
                &self.learned,
                &self.settings,
                &self.engine,
            )
            .await
    }

    /// All machines; remembered for a moment.
    async fn machines(&self) -> Result<Arc<Vec<Machine>>, CloudError> {
        let asked_at = self.clock.now();
        self.any_connection().await?;
        let machines = Arc::new(self.engine.machines().await.inspect_err(|error| self.suspect(error))?);
        *self.seen.lock() = Some((asked_at, machines.clone()));
        Ok(machines)
    }

    /// Makes sure that the cluster can be reached through some class.
    async fn any_connection(&self) -> Result<(), CloudError> {
        if self.engine.is_connected() {
            return Ok(());
        }
        let classes: Api<OvhNodeClass> = Api::all(self.client.clone());
        let classes = classes
            .list(&Default::default())
            .await
            .cloud_context("listing OVHNodeClasses")?;
        let mut problem = None;
        for class in &classes.items {
            match self.connect(class).await {
                Ok(_) => return Ok(()),
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(problem) => Err(problem.into()),
            None => Err(CloudError::transient(
                "there is no OVHNodeClass to reach the cluster with",
            )),
        }
    }

    /// An error that the NodeClass's conditions should tell of soon.
    fn suspect(&self, error: &CloudError) {
        if error.kind() == karpenter_cloud::ErrorKind::Auth {
            self.suspicion.notify_one();
        }
    }

    /// A machine as core knows it; `None` while it has no provider ID.
    async fn instance(&self, machine: &Machine) -> Result<Option<Instance>, CloudError> {
        let Some(provider_id) = machine.node.provider_id() else {
            return Ok(None);
        };
        let class_name = machine.pool.label(names::NODE_CLASS).unwrap_or_default();
        let class = match self.class(class_name).await? {
            Some(class) => class,
            // The machine outlived its class, or another provider made it.
            None => self.some_class().await?,
        };
        let node_pool = machine.pool.label(labels::NODEPOOL).unwrap_or_default();
        let connection = self.connection(&class).await?;
        let types = self.types(&class, node_pool).await?;
        let zone = zone_of(&machine.pool, &connection);
        let own = types
            .iter()
            .find(|own| own.name == machine.node.flavor || own.name == machine.pool.flavor);
        let mut instance = Instance {
            provider_id,
            annotations: annotations(&machine.pool, &machine.node),
            created_at: machine.node.created_at,
            phase: match machine.node.class() {
                NodeClass::Going => InstancePhase::Terminating,
                _ => InstancePhase::Live,
            },
            claim: machine.claim.clone(),
            ..Instance::default()
        };
        if let Some(own) = own {
            let offering = own
                .offerings
                .iter()
                .find(|offering| selection::zone(offering) == Some(&zone));
            let offering = offering.or(own.offerings.first()).cloned();
            if let Some(offering) = offering {
                instance.capacity = selection::capacity(own, &offering.overrides);
                instance.allocatable = selection::allocatable(own, &offering.overrides);
                instance.labels = selection::single_valued_labels(&Candidate {
                    instance_type: own.clone(),
                    offering,
                });
            }
        }
        instance
            .labels
            .insert(labels::INSTANCE_TYPE.to_owned(), machine.pool.flavor.clone());
        instance.labels.insert(labels::ZONE.to_owned(), zone);
        instance
            .labels
            .insert(names::POOL_ID.to_owned(), machine.pool.id.clone());
        instance
            .labels
            .insert(names::POOL_NAME.to_owned(), machine.pool.name.clone());
        if !node_pool.is_empty() {
            instance
                .labels
                .insert(labels::NODEPOOL.to_owned(), node_pool.to_owned());
        }
        Ok(Some(instance))
    }

    async fn some_class(&self) -> Result<OvhNodeClass, CloudError> {
        let classes: Api<OvhNodeClass> = Api::all(self.client.clone());
        let classes = classes
            .list(&Default::default())
            .await
            .cloud_context("listing OVHNodeClasses")?;
        let first = classes.items.into_iter().next();
        first.ok_or_else(|| CloudError::transient("there is no OVHNodeClass to reach the cluster with"))
    }
}

/// Where a pool's machines are.
fn zone_of(pool: &Pool, connection: &Connection) -> String {
    let listed = pool
        .zone()
        .filter(|zone| connection.zones.names.iter().any(|own| own == zone));
    // Restricting a class's zones does not move the machines that are elsewhere.
    let several = connection.zones.kind == crate::catalogue::types::ZoneKind::Several;
    let own = listed.or(pool.zone().filter(|_| several));
    let first = connection.zones.names.first().map(String::as_str);
    own.or(first).unwrap_or_default().to_owned()
}

fn annotations(pool: &Pool, node: &PoolNode) -> BTreeMap<String, String> {
    [
        (names::POOL_ID, &pool.id),
        (names::POOL_NAME, &pool.name),
        (names::NODE_ID, &node.id),
        (names::NODE_NAME, &node.name),
    ]
    .map(|(key, value)| (key.to_owned(), value.clone()))
    .into()
}

#[async_trait]
impl CloudProvider for OvhProvider {
    fn name(&self) -> &str {
        "ovhcloud"
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        vec![NodeClassKind::of::<OvhNodeClass>()]
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        names::extend(rules)
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        repair::policies()
    }

    fn background_tasks(&self) -> Vec<BackgroundTask> {
        let (classes, claims, pools, nodes) = (
            self.shared.clone(),
            self.shared.clone(),
            self.shared.clone(),
            self.shared.clone(),
        );
        vec![
            BackgroundTask::new("ovhcloud.nodeclass", |stop| readiness::keep(classes, stop)),
            BackgroundTask::new("ovhcloud.claims", |stop| async move {
                let engine = claims.engine.clone();
                claims.engine.ledger().follow(stop, |pool| engine.kick(pool)).await;
            }),
            BackgroundTask::new("ovhcloud.pools", |stop| tidying::keep(pools, stop)),
            BackgroundTask::new("ovhcloud.nodes", |stop| nodes::keep(nodes, stop)),
        ]
    }

    fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.shared.metrics.register(registry)
    }

    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let launched = self.shared.launch(claim).await;
        launched.inspect_err(|error| self.shared.suspect(error))
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.shared.abandon(claim).await
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        if self.shared.may_be_late(claim) {
            let patience = self.launch_hints(claim).await.registration_timeout;
            self.shared.count_if_late(claim, patience);
        }
        self.shared.delete(claim).await
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let not_found = || CloudError::not_found(provider_id);
        instance_id(provider_id).ok_or_else(not_found)?;
        let is_it = |machine: &&Machine| machine.node.provider_id().as_deref() == Some(provider_id);
        let seen = self.shared.seen.lock().clone();
        let fresh = seen.filter(|(at, _)| self.shared.clock.now() < later(*at, SEEN_FRESH));
        let known = fresh.and_then(|(_, machines)| {
            let live = |machine: &&Machine| machine.node.class() != NodeClass::Going;
            machines.iter().find(is_it).filter(live).cloned()
        });
        let machine = match known {
            Some(machine) => machine,
            None => {
                let machines = self.shared.machines().await?;
                machines.iter().find(is_it).cloned().ok_or_else(not_found)?
            }
        };
        self.shared.instance(&machine).await?.ok_or_else(not_found)
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let machines = self.shared.machines().await?;
        let mut instances = Vec::new();
        for machine in machines
            .iter()
            .filter(|machine| machine.node.class() != NodeClass::Gone)
        {
            instances.extend(self.shared.instance(machine).await?);
        }
        Ok(instances)
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let class = self.shared.class(name).await?;
        let class = class.ok_or_else(|| CloudError::node_class_not_ready(name, "it does not exist"))?;
        let pool = pool.metadata.name.as_deref().unwrap_or_default();
        self.shared.types(&class, pool).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        let drifted = self.shared.drift(claim).await?;
        if let Some(reason) = &drifted {
            self.shared.metrics.drifted(&reason.0);
        }
        Ok(drifted)
    }

    async fn launch_hints(&self, claim: &NodeClaim) -> LaunchHints {
        let label = |key: &str| {
            claim
                .metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(key))
        };
        let asks = claim.spec.resources.requests.as_ref();
        let has_gpu = label(names::GPU_COUNT) || asks.is_some_and(|asks| asks.contains_key(names::GPU_RESOURCE));
        // Without the class, its default is as good a guess as any.
        let class = self.shared.class(&claim.spec.node_class_ref.name).await.ok().flatten();
        let spec = class.map(|class| class.spec).unwrap_or_default();
        LaunchHints {
            launch_timeout: LAUNCH_TIMEOUT,
            registration_timeout: spec.registration_timeout(has_gpu),
            unregistered_taint: UnregisteredTaint::NotExpected,
        }
    }

    async fn adoptable(&self) -> Result<Vec<Adoption>, CloudError> {
        let mut adoptions = Vec::new();
        for machine in self.shared.engine.adoptable().await? {
            let Some(node_pool) = machine.pool.label(labels::NODEPOOL).map(str::to_owned) else {
                continue;
            };
            if let Some(instance) = self.shared.instance(&machine).await? {
                adoptions.push(Adoption { node_pool, instance });
            }
        }
        Ok(adoptions)
    }

    async fn diagnose(&self) -> Vec<Diagnosis> {
        self.shared.diagnose().await
    }

    async fn validate_node_pool(&self, pool: &NodePool) -> Result<Vec<Finding>, CloudError> {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let Some(class) = self.shared.class(name).await? else {
            return Ok(Vec::new());
        };
        Ok(drift::findings(pool, &class, &self.shared.rules))
    }
}

/// The hash annotations of a claim launched with a class.
fn hash_annotations(class: &OvhNodeClass) -> [(String, String); 2] {
    [
        (names::CLASS_HASH.to_owned(), class.spec.static_hash()),
        (names::CLASS_HASH_VERSION.to_owned(), HASH_VERSION.to_owned()),
    ]
}

/// Whether a class may be launched with; the sentence says why not.
fn readiness_of(class: &OvhNodeClass) -> Result<(), String> {
    if class.metadata.deletion_timestamp.is_some() {
        return Err("it is being deleted".to_owned());
    }
    let ready = class.condition("Ready");
    match ready {
        None => Err("it has not been checked yet".to_owned()),
        Some(ready)
            if ready
                .observed_generation
                .is_some_and(|own| Some(own) != class.metadata.generation) =>
        {
            Err("its latest change has not been checked yet".to_owned())
        }
        Some(ready) if ready.is_true() => Ok(()),
        Some(ready) => Err(format!("{}: {}", ready.reason, ready.message)),
    }
}

impl Shared {
    /// Whether a Node is known to be not ready, or is gone.
    async fn is_down(&self, name: &str) -> Result<bool, CloudError> {
        let node = self.workloads.node(name).await;
        let node = node.cloud_context(format!("reading node {name}"))?;
        Ok(node.is_none_or(|node| !is_ready(&node)))
    }
}
