//! A sandbox, a simulated OVHcloud and the provider between them, on one clock that moves when nothing else does.

use std::{sync::LazyLock, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudProvider, Deletion, Instance,
    clock::{Clock, TimeSource},
    http::InFlight,
};
use karpenter_ovhcloud::{
    OvhNodeClass, OvhProvider, OvhSettings,
    sim::{APPLICATION_KEY, APPLICATION_SECRET, CONSUMER_KEY, KUBE_ID, SERVICE_NAME, SimState, SimulatedOvh, World},
};
use karpenter_sandbox::Sandbox;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The sandbox's clock as ours.
#[derive(Debug)]
pub(crate) struct SandboxTime(pub(crate) karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline).boxed()
    }
}

/// Moves the clock to its next timer whenever neither the cluster nor a request to the cloud is busy.
///
/// Everything runs on one thread, so whoever is awaited gets to run whenever this yields.
pub(crate) fn move_time(sandbox: Sandbox, in_flight: InFlight) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            while in_flight.count() > 0 {
                tokio::task::yield_now().await;
            }
            sandbox.settle().await;
            if in_flight.count() > 0 {
                continue;
            }
            if let Some(next) = sandbox.clock().next_timer() {
                sandbox.clock().advance_to(next);
            }
        }
    })
}

/// Everything a test needs.
pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
    pub(crate) sim: SimulatedOvh,
    pub(crate) clock: Clock,
    settings: OvhSettings,
    process: Mutex<Process>,
    time: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.time.abort();
    }
}

/// A running provider.
struct Process {
    provider: OvhProvider,
    stop: CancellationToken,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
        self.provider.engine().stop();
    }
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Made once: every test installs them.
static CRDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let own = karpenter_ovhcloud::node_class::crds();
    let crds = karpenter_api::crd::all().into_iter().chain(own);
    crds.map(|crd| crd.to_yaml()).collect()
});
/// Longer than anything takes that is waited for.
const PATIENCE: u32 = 2 * 3600;

/// The settings of production, but for the rate of calls: what waits for it only makes tests longer.
fn settings(endpoint: String, in_flight: &InFlight) -> OvhSettings {
    let mut settings = OvhSettings::of_project(SERVICE_NAME);
    settings.endpoint = endpoint;
    settings.kube_id = Some(KUBE_ID.to_owned());
    settings.client.in_flight = in_flight.clone();
    settings.client.per_second = 500.0;
    settings
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(World::default(), |_| (), json!({})).await
    }

    pub(crate) async fn of(world: World) -> Self {
        Self::with(world, |_| (), json!({})).await
    }

    /// A cluster with the OVHNodeClass `default`, which is ready.
    pub(crate) async fn with(world: World, tune: impl FnOnce(&mut OvhSettings), spec: Value) -> Self {
        let cluster = Self::unready(world, tune, spec).await;
        cluster.until_ready().await;
        cluster
    }

    pub(crate) async fn unready(world: World, tune: impl FnOnce(&mut OvhSettings), spec: Value) -> Self {
        Self::on(Sandbox::builder().api_server_only().start(), world, tune, spec).await
    }

    /// On a sandbox that may have more than an API server.
    pub(crate) async fn on(sandbox: Sandbox, world: World, tune: impl FnOnce(&mut OvhSettings), spec: Value) -> Self {
        for crd in CRDS.iter() {
            sandbox.apply(crd).expect("the CRD is accepted");
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpenter"}});
        sandbox.apply(&namespace.to_string()).expect("accepted");
        sandbox
            .apply(&secret(CONSUMER_KEY).to_string())
            .expect("the secret is accepted");
        let class = json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
            "metadata": {"name": "default"}, "spec": spec,
        });
        sandbox.apply(&class.to_string()).expect("the class is accepted");
        sandbox.apply(&node_pool().to_string()).expect("the pool is accepted");
        let clock = Clock::from_source(SandboxTime(sandbox.clock().clone()));
        let in_flight = InFlight::default();
        let sim = SimulatedOvh::start(clock.clone(), world).await.expect("a socket");
        let mut settings = settings(sim.endpoint(), &in_flight);
        tune(&mut settings);
        let process = Mutex::new(Process::start(&sandbox, &clock, &settings));
        Self {
            time: move_time(sandbox.clone(), in_flight),
            sandbox,
            sim,
            clock,
            settings,
            process,
        }
    }

    /// Counts what is under way to the cloud; time stands still meanwhile.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.settings.client.in_flight.clone()
    }

    pub(crate) fn provider(&self) -> OvhProvider {
        self.process.lock().provider.clone()
    }

    /// The process dies here and now, and another starts.
    pub(crate) fn crash(&self) -> OvhProvider {
        let mut process = self.process.lock();
        process.stop.cancel();
        process.provider.engine().stop();
        *process = Process::start(&self.sandbox, &self.clock, &self.settings);
        process.provider.clone()
    }

    pub(crate) fn class(&self) -> OvhNodeClass {
        self.sandbox.objects().get("", "default").expect("the class is there")
    }

    pub(crate) fn condition(&self, type_: &str) -> (String, String, String) {
        use karpenter_api::conditions::StatusConditions;
        let class = self.class();
        let found = class.condition(type_).cloned();
        found.map_or_else(Default::default, |own| {
            (own.status.to_string(), own.reason, own.message)
        })
    }

    pub(crate) fn patch_class(&self, patch: &Value) {
        self.sandbox
            .objects()
            .patch::<OvhNodeClass>("", "default", patch)
            .expect("accepted");
    }

    pub(crate) async fn until_ready(&self) {
        use karpenter_api::conditions::StatusConditions;
        let is_ready = || {
            let class = self.class();
            let ready = class.condition("Ready");
            class.is_ready() && ready.is_some_and(|own| own.observed_generation == class.metadata.generation)
        };
        let ready = self.until(is_ready).await;
        assert!(ready, "not ready: {:#?}", self.class().status);
    }

    /// Waits until something is so; false if it does not become so within hours.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) -> bool {
        for _ in 0..PATIENCE {
            if holds() {
                return true;
            }
            self.clock.sleep(SECOND).await;
        }
        false
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    /// Ends a claim's machine as core does, and then the claim.
    pub(crate) async fn terminate(&self, claim: &NodeClaim) {
        let provider = self.provider();
        for _ in 0..PATIENCE {
            if Deletion::settle(provider.delete(claim).await).expect("no faults") == Deletion::Gone {
                self.forget(claim.metadata.name.as_deref().expect("a name"));
                return;
            }
            self.pass(SECOND * 5).await;
        }
        panic!("not gone");
    }

    /// Reasons and messages of the events about an object.
    pub(crate) fn events(&self, name: &str) -> Vec<String> {
        let events = self.sandbox.objects().list::<Event>("").into_iter();
        let about = events.filter(|event| event.involved_object.name.as_deref() == Some(name));
        about
            .map(|event| {
                format!(
                    "{}: {}",
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default()
                )
            })
            .collect()
    }

    /// Whether an object has an event for a reason.
    pub(crate) fn was_told(&self, name: &str, reason: &str) -> bool {
        self.events(name)
            .iter()
            .any(|event| event.starts_with(&format!("{reason}: ")))
    }

    pub(crate) fn sim<T>(&self, act: impl FnOnce(&mut SimState) -> T) -> T {
        self.sim.with(act)
    }

    /// A claim of the NodePool `default`, stored in the cluster.
    pub(crate) fn claim(&self, name: &str, requirements: Value) -> NodeClaim {
        self.claim_with(name, json!({"requirements": requirements}))
    }

    /// A claim of another NodePool.
    pub(crate) fn claim_of(&self, node_pool: &str, name: &str, requirements: Value) -> NodeClaim {
        self.stored_claim(node_pool, name, json!({"requirements": requirements}))
    }

    pub(crate) fn claim_with(&self, name: &str, spec: Value) -> NodeClaim {
        self.stored_claim("default", name, spec)
    }

    fn stored_claim(&self, node_pool: &str, name: &str, spec: Value) -> NodeClaim {
        let mut claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name,
                "labels": {"karpenter.sh/nodepool": node_pool, "karpenter.ovhcloud.sh/ovhnodeclass": "default"},
            },
            "spec": {
                "requirements": [],
                "resources": {"requests": {"cpu": "500m"}},
                "nodeClassRef": {"group": "karpenter.ovhcloud.sh", "kind": "OVHNodeClass", "name": "default"},
            },
        });
        for (key, value) in spec.as_object().expect("an object") {
            claim["spec"][key] = value.clone();
        }
        let claim: NodeClaim = serde_json::from_value(claim).expect("a claim");
        self.sandbox.objects().create(&claim).expect("accepted")
    }

    pub(crate) fn stored(&self, name: &str) -> Option<NodeClaim> {
        self.sandbox.objects().get("", name)
    }

    /// Deletes a claim as core does once its machine is gone, unless that has happened.
    pub(crate) fn forget(&self, name: &str) {
        let objects = self.sandbox.objects();
        if objects.get::<NodeClaim>("", name).is_some() {
            objects
                .delete::<NodeClaim>("", name, &Default::default())
                .expect("deleted");
        }
    }

    pub(crate) async fn launch(&self, claim: &NodeClaim) -> NodeClaim {
        let instance = self.provider().create(claim).await.expect("launched");
        launched(claim, &instance)
    }
}

impl Process {
    fn start(sandbox: &Sandbox, clock: &Clock, settings: &OvhSettings) -> Self {
        let provider = OvhProvider::new(
            sandbox.client(),
            clock.clone(),
            settings.clone(),
            OvhProvider::environment(|_| None),
        );
        let stop = CancellationToken::new();
        for task in provider.background_tasks() {
            tokio::spawn(task.run(stop.clone()));
        }
        Self { provider, stop }
    }
}

/// The claim as core has it after the launch.
pub(crate) fn launched(claim: &NodeClaim, instance: &Instance) -> NodeClaim {
    let mut claim = claim.clone();
    instance.apply_to(&mut claim);
    claim
}

pub(crate) fn secret(consumer_key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ovh-credentials", "namespace": "karpenter"},
        "stringData": {
            "applicationKey": APPLICATION_KEY, "applicationSecret": APPLICATION_SECRET, "consumerKey": consumer_key,
        },
    })
}

pub(crate) fn node_pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {
            "requirements": [],
            "nodeClassRef": {"group": "karpenter.ovhcloud.sh", "kind": "OVHNodeClass", "name": "default"},
        }}},
    })
}

pub(crate) fn parsed_node_pool() -> NodePool {
    serde_json::from_value(node_pool()).expect("a NodePool")
}

/// A requirement of one flavor in one zone.
pub(crate) fn only(flavor: &str, zone: &str) -> Value {
    json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [flavor]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
    ])
}
