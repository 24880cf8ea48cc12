//! A cloud in memory: launches, boots, lists and terminates machines, and fails when a test wants it to.
//!
//! The machines are what a real cloud would have: they outlive a dropped `create`, they are listed with the marks they were
//! made with, and a sold-out offering is refused by the cloud before it is known to be sold out.

mod catalogue;
mod faults;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use karpenter_api::{NodeClaim, NodePool, labels, labels::LabelRules};
use karpenter_engine::model::{InstanceType, Offering};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

pub use catalogue::{REGION, TypeBuilder, ZONES, default_types};
use faults::Faults;
pub use faults::{Method, Moment};

use crate::{
    clock::{Clock, later},
    error::CloudError,
    instance::{ADOPT_ANNOTATION, Adoption, ClaimMark, Instance, InstancePhase},
    node_class::{NodeClassKind, Readiness},
    ownership::short_hash,
    provider::{
        CloudProvider, Deletion, DriftReason, Finding, InstanceTypes, LaunchHints, RebootOperation, ReservationLabels,
        VolumeRequirements,
    },
    registration::RegistrationHook,
    repair::{ConditionStatus, RepairAction, RepairPolicy},
    selection::{self, Candidate},
    unavailable::{MarkBackoff, UnavailableOfferings},
};

/// The fake cloud and its provider. Cheap to clone; clones are the same cloud.
#[derive(Clone)]
pub struct FakeProvider {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    kind: NodeClassKind,
    unavailable: UnavailableOfferings<OfferingKey>,
    creating: Mutex<()>,
    state: Mutex<State>,
}

/// Instance type, zone, capacity type.
type OfferingKey = (String, String, String);
/// Told about a machine that booted or is gone.
type Listener = Arc<dyn Fn(&Machine) + Send + Sync>;
/// The answer of `instance_types` together with what it was made from.
type Published = (u64, InstanceTypes);

struct State {
    types: Vec<Arc<InstanceType>>,
    pool_types: BTreeMap<String, Vec<Arc<InstanceType>>>,
    broken_pools: BTreeSet<String>,
    published: BTreeMap<Option<String>, Published>,
    sold_out: BTreeSet<OfferingKey>,
    readiness: Readiness,
    machines: BTreeMap<String, Machine>,
    tasks: BTreeMap<String, AbortOnDropHandle<()>>,
    launches: u64,
    faults: Faults,
    calls: BTreeMap<Method, u64>,
    drifted: BTreeMap<String, DriftReason>,
    hints: LaunchHints,
    hooks: Vec<Arc<dyn RegistrationHook>>,
    findings: Vec<Finding>,
    volume_requirements: VolumeRequirements,
    adoptable: Vec<Adoption>,
    repair_policies: Vec<RepairPolicy>,
    boot_delay: Duration,
    termination_delay: Duration,
    on_boot: Option<Listener>,
    on_gone: Option<Listener>,
}

/// A machine at the fake cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub name: String,
    pub instance: Instance,
    /// Changes with every boot.
    pub boot_id: String,
    pub reboots: BTreeSet<RebootOperation>,
    /// Set once its termination was requested: when it will be gone.
    pub gone_at: Option<Timestamp>,
}

// === impl FakeProvider: what tests do to it ===

impl FakeProvider {
    pub fn new(clock: Clock) -> Self {
        let kind = NodeClassKind {
            group: "karpenter.test.sh".into(),
            version: "v1alpha1".into(),
            kind: "TestNodeClass".into(),
            plural: "testnodeclasses".into(),
        };
        Self::with_kind(clock, kind)
    }

    /// A fake that serves another NodeClass kind than `TestNodeClass`.
    pub fn with_kind(clock: Clock, kind: NodeClassKind) -> Self {
        let backoff = MarkBackoff::constant(Duration::from_secs(180));
        let state = State {
            types: default_types(),
            pool_types: BTreeMap::new(),
            broken_pools: BTreeSet::new(),
            published: BTreeMap::new(),
            sold_out: BTreeSet::new(),
            readiness: Readiness::Ready,
            machines: BTreeMap::new(),
            tasks: BTreeMap::new(),
            launches: 0,
            faults: Faults::default(),
            calls: BTreeMap::new(),
            drifted: BTreeMap::new(),
            hints: LaunchHints::default(),
            hooks: Vec::new(),
            findings: Vec::new(),
            volume_requirements: VolumeRequirements::default(),
            adoptable: Vec::new(),
            repair_policies: default_repair_policies(),
            boot_delay: Duration::ZERO,
            termination_delay: Duration::ZERO,
            on_boot: None,
            on_gone: None,
        };
        let unavailable = UnavailableOfferings::new(clock.clone(), backoff);
        Self {
            shared: Arc::new(Shared {
                clock,
                kind,
                unavailable,
                creating: Mutex::new(()),
                state: Mutex::new(state),
            }),
        }
    }

    /// What every pool is offered.
    pub fn set_types(&self, types: Vec<Arc<InstanceType>>) {
        let mut state = self.shared.state.lock();
        state.types = types;
        state.published.clear();
    }

    /// What one pool is offered instead.
    pub fn set_pool_types(&self, pool: &str, types: Vec<Arc<InstanceType>>) {
        let mut state = self.shared.state.lock();
        state.pool_types.insert(pool.to_owned(), types);
        state.published.clear();
    }

    /// The types of one pool cannot be listed until [`FakeProvider::stop_failing`].
    pub fn break_types_of(&self, pool: &str) {
        self.shared.state.lock().broken_pools.insert(pool.to_owned());
    }

    /// The cloud has none of these left; only a refused launch finds that out.
    pub fn sell_out(&self, instance_type: &str, zone: &str, capacity_type: &str) {
        self.shared
            .state
            .lock()
            .sold_out
            .insert((instance_type.into(), zone.into(), capacity_type.into()));
    }

    pub fn restock(&self) {
        self.shared.state.lock().sold_out.clear();
        self.shared.unavailable.clear(|_, _| true);
    }

    /// What `create` finds the NodeClass to be.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.shared.state.lock().readiness = readiness;
    }

    /// The next call of `method` fails; several are used up in order.
    pub fn fail_next(&self, method: Method, moment: Moment, error: CloudError) {
        self.shared.state.lock().faults.push(method, moment, error);
    }

    /// Asks `judge` about every call from now on.
    pub fn fail_when(&self, judge: impl FnMut(Method) -> Option<(Moment, CloudError)> + Send + 'static) {
        self.shared.state.lock().faults.set_judge(Some(Box::new(judge)));
    }

    pub fn stop_failing(&self) {
        let mut state = self.shared.state.lock();
        state.faults = Faults::default();
        state.broken_pools.clear();
    }

    /// How long calls of `method` take on the clock.
    pub fn set_latency(&self, method: Method, latency: Duration) {
        self.shared.state.lock().faults.set_latency(method, latency);
    }

    /// From launch to the boot callback.
    pub fn set_boot_delay(&self, delay: Duration) {
        self.shared.state.lock().boot_delay = delay;
    }

    /// From the request to terminate until the machine is gone.
    pub fn set_termination_delay(&self, delay: Duration) {
        self.shared.state.lock().termination_delay = delay;
    }

    /// Called once for every machine that boots, e.g. to create its Node.
    pub fn on_boot(&self, listener: impl Fn(&Machine) + Send + Sync + 'static) {
        self.shared.state.lock().on_boot = Some(Arc::new(listener));
    }

    /// Called once for every machine that is gone, e.g. to stop its kubelet.
    pub fn on_gone(&self, listener: impl Fn(&Machine) + Send + Sync + 'static) {
        self.shared.state.lock().on_gone = Some(Arc::new(listener));
    }

    pub fn set_drifted(&self, provider_id: &str, reason: Option<DriftReason>) {
        let mut state = self.shared.state.lock();
        match reason {
            Some(reason) => state.drifted.insert(provider_id.to_owned(), reason),
            None => state.drifted.remove(provider_id),
        };
    }

    pub fn set_launch_hints(&self, hints: LaunchHints) {
        self.shared.state.lock().hints = hints;
    }

    pub fn set_registration_hooks(&self, hooks: Vec<Arc<dyn RegistrationHook>>) {
        self.shared.state.lock().hooks = hooks;
    }

    /// What PersistentVolumes ask of their nodes.
    pub fn set_volume_requirements(&self, requirements: VolumeRequirements) {
        self.shared.state.lock().volume_requirements = requirements;
    }

    pub fn set_findings(&self, findings: Vec<Finding>) {
        self.shared.state.lock().findings = findings;
    }

    pub fn set_repair_policies(&self, policies: Vec<RepairPolicy>) {
        self.shared.state.lock().repair_policies = policies;
    }

    /// Adds a machine that nobody asked this provider for.
    pub fn add_machine(&self, machine: Machine) {
        self.shared
            .state
            .lock()
            .machines
            .insert(machine.instance.provider_id.clone(), machine);
    }

    /// Offers a machine for adoption.
    pub fn offer_for_adoption(&self, adoption: Adoption) {
        self.shared.state.lock().adoptable.push(adoption);
    }

    /// The machine vanishes behind everybody's back.
    pub fn vanish(&self, provider_id: &str) {
        self.shared.remove(provider_id);
    }

    /// What the cloud has now, terminating machines included.
    pub fn machines(&self) -> Vec<Machine> {
        self.shared.reap();
        self.shared.state.lock().machines.values().cloned().collect()
    }

    /// How many machines were ever launched.
    pub fn launches(&self) -> u64 {
        self.shared.state.lock().launches
    }

    pub fn calls(&self, method: Method) -> u64 {
        self.shared.state.lock().calls.get(&method).copied().unwrap_or_default()
    }

    /// Waits out the latency of a call and answers its fault, if it fails before anything happened.
    async fn begin(&self, method: Method) -> Result<Option<CloudError>, CloudError> {
        let (latency, fault) = {
            let mut state = self.shared.state.lock();
            *state.calls.entry(method).or_default() += 1;
            (state.faults.latency(method), state.faults.take(method))
        };
        if !latency.is_zero() {
            self.shared.clock.sleep(latency).await;
        }
        self.shared.reap();
        match fault {
            Some((Moment::Before, error)) => Err(error),
            Some((Moment::After, error)) => Ok(Some(error)),
            None => Ok(None),
        }
    }
}

#[async_trait]
impl CloudProvider for FakeProvider {
    fn name(&self) -> &str {
        "fake"
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        vec![self.shared.kind.clone()]
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        rules.with_restricted_domain(self.shared.kind.group.clone())
    }

    fn reservation_labels(&self) -> Option<ReservationLabels> {
        None
    }

    fn volume_requirements(&self) -> VolumeRequirements {
        self.shared.state.lock().volume_requirements.clone()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.shared.state.lock().repair_policies.clone()
    }

    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        self.shared.state.lock().hooks.clone()
    }

    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let lost = self.begin(Method::Create).await?;
        let instance = self.shared.create(claim)?;
        lost.map_or(Ok(instance), Err)
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let lost = self.begin(Method::Abandon).await?;
        let mark = ClaimMark::of(claim);
        let made = self
            .shared
            .machine_of(&mark)
            .map(|machine| machine.instance.provider_id);
        let deletion = made.map_or(Deletion::Gone, |id| self.shared.terminate(&id));
        lost.map_or(Ok(deletion), Err)
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let lost = self.begin(Method::Delete).await?;
        let id = claim
            .provider_id()
            .ok_or_else(|| CloudError::invalid("the claim has no provider ID"))?;
        let deletion = self.shared.terminate(id);
        lost.map_or(Ok(deletion), Err)
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let lost = self.begin(Method::Get).await?;
        let state = self.shared.state.lock();
        let machine = state
            .machines
            .get(provider_id)
            .ok_or_else(|| CloudError::not_found(provider_id))?;
        lost.map_or(Ok(machine.instance.clone()), Err)
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let lost = self.begin(Method::List).await?;
        let state = self.shared.state.lock();
        let instances = state
            .machines
            .values()
            .map(|machine| machine.instance.clone())
            .collect();
        lost.map_or(Ok(instances), Err)
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        let lost = self.begin(Method::InstanceTypes).await?;
        let name = pool.metadata.name.as_deref();
        if name.is_some_and(|name| self.shared.state.lock().broken_pools.contains(name)) {
            return Err(CloudError::transient("the catalogue cannot be read"));
        }
        let types = self.shared.published(name);
        lost.map_or(Ok(types), Err)
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        let lost = self.begin(Method::IsDrifted).await?;
        let id = claim.provider_id().unwrap_or_default();
        let state = self.shared.state.lock();
        if !state.machines.contains_key(id) {
            return Err(CloudError::not_found(id));
        }
        lost.map_or(Ok(state.drifted.get(id).cloned()), Err)
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        let lost = self.begin(Method::Reboot).await?;
        let id = claim.provider_id().unwrap_or_default();
        let mut state = self.shared.state.lock();
        let machine = state.machines.get_mut(id).ok_or_else(|| CloudError::not_found(id))?;
        if machine.reboots.insert(operation.clone()) {
            machine.boot_id = format!("{}-{}", machine.name, machine.reboots.len());
        }
        lost.map_or(Ok(()), Err)
    }

    async fn launch_hints(&self, _claim: &NodeClaim) -> LaunchHints {
        self.shared.state.lock().hints
    }

    async fn validate_node_pool(&self, _pool: &NodePool) -> Result<Vec<Finding>, CloudError> {
        Ok(self.shared.state.lock().findings.clone())
    }

    async fn adoptable(&self) -> Result<Vec<Adoption>, CloudError> {
        let state = self.shared.state.lock();
        let unclaimed = |own: &&Adoption| {
            state
                .machines
                .get(&own.instance.provider_id)
                .is_some_and(|machine| machine.instance.claim.is_none())
        };
        Ok(state.adoptable.iter().filter(unclaimed).cloned().collect())
    }
}

// === impl Shared: the cloud itself ===

impl Shared {
    /// One at a time: the same claim never gets two machines.
    fn create(self: &Arc<Self>, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let _creating = self.creating.lock();
        let mark = ClaimMark::of(claim);
        if let Some(made) = self.machine_of(&mark) {
            return Ok(made.instance);
        }
        let annotations = claim.metadata.annotations.as_ref();
        if let Some(id) = annotations.and_then(|own| own.get(ADOPT_ANNOTATION)) {
            return self.adopt(id, mark);
        }
        let class = &claim.spec.node_class_ref.name;
        match self.state.lock().readiness.clone() {
            Readiness::Ready => {}
            Readiness::NotReady { message, .. } => return Err(CloudError::node_class_not_ready(class, message)),
            Readiness::Terminating => return Err(CloudError::node_class_not_ready(class, "it is being deleted")),
            Readiness::Unknown => {
                return Err(CloudError::create(
                    "NodeClassReadinessUnknown",
                    "the node class has no verdict yet",
                ));
            }
        }
        let rules = LabelRules::default();
        let types = self.published(claim.node_pool());
        for candidate in selection::candidates(claim, &types, &rules) {
            let key = key(&candidate.instance_type, &candidate.offering);
            if self.state.lock().sold_out.contains(&key) {
                self.unavailable.mark(key, "sold out");
                continue;
            }
            return Ok(self.launch(claim, mark, &candidate));
        }
        Err(CloudError::insufficient_capacity(
            "all requested instance types were unavailable during launch",
        ))
    }

    fn launch(self: &Arc<Self>, claim: &NodeClaim, mark: ClaimMark, candidate: &Candidate) -> Instance {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.launches += 1;
        let name = format!("{}-{}-{}", mark.name, short_hash(&mark.uid), state.launches);
        let mut labels = selection::single_valued_labels(candidate);
        if let Some(pool) = claim.node_pool() {
            labels.insert(labels::NODEPOOL.to_owned(), pool.to_owned());
        }
        let overrides = &candidate.offering.overrides;
        let instance = Instance {
            provider_id: format!("fake:///{name}"),
            image_id: Some("fake-image".to_owned()),
            labels,
            annotations: BTreeMap::new(),
            capacity: selection::capacity(&candidate.instance_type, overrides),
            allocatable: selection::allocatable(&candidate.instance_type, overrides),
            created_at: Some(now),
            phase: InstancePhase::Live,
            claim: Some(mark),
        };
        let machine = Machine {
            boot_id: format!("{name}-0"),
            name,
            instance: instance.clone(),
            reboots: BTreeSet::new(),
            gone_at: None,
        };
        let id = instance.provider_id.clone();
        state.machines.insert(id.clone(), machine);
        if let Some(listener) = state.on_boot.clone() {
            let boot = self.clone().boot(id.clone(), state.boot_delay, listener);
            state.tasks.insert(id, AbortOnDropHandle::new(tokio::spawn(boot)));
        }
        instance
    }

    async fn boot(self: Arc<Self>, id: String, delay: Duration, listener: Listener) {
        self.clock.sleep(delay).await;
        let machine = self.state.lock().machines.get(&id).cloned();
        if let Some(machine) = machine.filter(|machine| machine.gone_at.is_none()) {
            listener(&machine);
        }
    }

    fn adopt(&self, id: &str, mark: ClaimMark) -> Result<Instance, CloudError> {
        let mut state = self.state.lock();
        let machine = state.machines.get_mut(id).ok_or_else(|| CloudError::not_found(id))?;
        match &machine.instance.claim {
            Some(other) if *other != mark => Err(CloudError::create(
                "AlreadyOwned",
                format!("machine {id} belongs to claim {}", other.name),
            )),
            Some(_) | None => {
                machine.instance.claim = Some(mark);
                Ok(machine.instance.clone())
            }
        }
    }

    fn machine_of(&self, mark: &ClaimMark) -> Option<Machine> {
        let state = self.state.lock();
        let is_its = |machine: &&Machine| machine.instance.claim.as_ref().is_some_and(|own| own.uid == mark.uid);
        state
            .machines
            .values()
            .filter(is_its)
            .find(|machine| machine.gone_at.is_none())
            .cloned()
    }

    fn terminate(&self, id: &str) -> Deletion {
        let now = self.clock.now();
        let gone_at = {
            let mut state = self.state.lock();
            let delay = state.termination_delay;
            let Some(machine) = state.machines.get_mut(id) else {
                return Deletion::Gone;
            };
            machine.instance.phase = InstancePhase::Terminating;
            *machine.gone_at.get_or_insert(later(now, delay))
        };
        if gone_at <= now {
            self.remove(id);
        }
        // Even an instant termination is accepted first; the next call finds it gone.
        Deletion::InProgress
    }

    /// Removes the machines whose termination is over.
    fn reap(&self) {
        let now = self.clock.now();
        let over: Vec<String> = {
            let state = self.state.lock();
            let is_over = |machine: &Machine| machine.gone_at.is_some_and(|at| at <= now);
            let over = state.machines.iter().filter(|(_, machine)| is_over(machine));
            over.map(|(id, _)| id.clone()).collect()
        };
        for id in over {
            self.remove(&id);
        }
    }

    fn remove(&self, id: &str) {
        let (gone, listener) = {
            let mut state = self.state.lock();
            state.tasks.remove(id);
            state.drifted.remove(id);
            (state.machines.remove(id), state.on_gone.clone())
        };
        if let (Some(machine), Some(listener)) = (gone, listener) {
            listener(&machine);
        }
    }

    /// The same `Arc` until types or marks change.
    fn published(&self, pool: Option<&str>) -> InstanceTypes {
        let version = self.unavailable.version();
        let mut state = self.state.lock();
        let pool = pool
            .filter(|pool| state.pool_types.contains_key(*pool))
            .map(str::to_owned);
        if let Some((made_from, types)) = state.published.get(&pool)
            && *made_from == version
        {
            return types.clone();
        }
        let source = pool.as_ref().map_or(&state.types, |pool| &state.pool_types[pool]);
        let types: InstanceTypes = source.iter().map(|own| self.with_availability(own)).collect();
        state.published.insert(pool, (version, types.clone()));
        types
    }

    fn with_availability(&self, own: &Arc<InstanceType>) -> Arc<InstanceType> {
        let is_marked = |offering: &Offering| self.unavailable.get(&key(own, offering)).is_some();
        if !own.offerings.iter().any(is_marked) {
            return own.clone();
        }
        let mut changed = (**own).clone();
        for offering in &mut changed.offerings {
            offering.available &= self.unavailable.get(&key(own, offering)).is_none();
        }
        Arc::new(changed)
    }
}

impl fmt::Debug for FakeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeProvider")
            .field("machines", &self.shared.state.lock().machines)
            .finish_non_exhaustive()
    }
}

fn key(own: &InstanceType, offering: &Offering) -> OfferingKey {
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    (
        own.name.clone(),
        text(selection::zone(offering)),
        text(selection::capacity_type(offering)),
    )
}

fn default_repair_policies() -> Vec<RepairPolicy> {
    let policy = |condition_type: &str, condition_status, reason_regex: &str| RepairPolicy {
        condition_type: condition_type.to_owned(),
        condition_status,
        reason_regex: reason_regex.to_owned(),
        toleration: Duration::from_secs(30 * 60),
        termination_grace_period: None,
        priority: 50,
        action: RepairAction::ReplaceNode,
    };
    vec![
        policy("Ready", ConditionStatus::False, ""),
        policy("Ready", ConditionStatus::Unknown, ".*"),
    ]
}
