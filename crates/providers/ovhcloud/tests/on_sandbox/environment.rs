//! A sandbox, a simulated OVHcloud and the provider between them.

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use jiff::{SignedDuration, Timestamp};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudProvider, Instance,
    clock::{Clock, TimeSource},
    http::RetryPolicy,
};
use karpenter_ovhcloud::{
    OvhNodeClass, OvhProvider, OvhSettings,
    client::ClientSettings,
    pool::engine::Cadence,
    sim::{APPLICATION_KEY, APPLICATION_SECRET, CONSUMER_KEY, KUBE_ID, SERVICE_NAME, SimState, SimulatedOvh, World},
};
use karpenter_sandbox::Sandbox;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The wall clock, which a test can make jump.
#[derive(Clone, Debug)]
pub(crate) struct JumpClock(Arc<tokio::sync::watch::Sender<SignedDuration>>);

impl JumpClock {
    fn new() -> Self {
        Self(Arc::new(tokio::sync::watch::Sender::new(SignedDuration::ZERO)))
    }

    pub(crate) fn jump(&self, by: Duration) {
        let by = SignedDuration::try_from(by).expect("a short time");
        self.0.send_modify(|offset| *offset += by);
    }
}

impl TimeSource for JumpClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + *self.0.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        let own = self.clone();
        let mut jumps = self.0.subscribe();
        async move {
            loop {
                let left = Duration::try_from(deadline.duration_since(own.now())).unwrap_or_default();
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    jumped = jumps.changed() => jumped.expect("the clock lives"),
                }
            }
        }
        .boxed()
    }
}

/// Everything a test needs.
pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
    pub(crate) sim: SimulatedOvh,
    pub(crate) clock: JumpClock,
    settings: OvhSettings,
    process: Mutex<Process>,
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

/// Everything at once: tests do not wait for a real service.
fn settings(endpoint: String) -> OvhSettings {
    let mut settings = OvhSettings::of_project(SERVICE_NAME);
    settings.endpoint = endpoint;
    settings.kube_id = Some(KUBE_ID.to_owned());
    settings.client = ClientSettings {
        per_second: 100_000.0,
        retry: RetryPolicy {
            attempts: 2,
            first_delay: Duration::from_millis(1),
            ..ClientSettings::default().retry
        },
    };
    let millis = Duration::from_millis;
    settings.engine.cadence = Cadence {
        batch_idle: millis(3),
        batch_longest: millis(30),
        poll_soon: millis(15),
        poll_later: millis(1000),
        create_wait: Duration::from_secs(60),
        post_doubt: millis(40),
        fresh: Duration::ZERO,
        tidy: millis(500),
    };
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
        let sandbox = Sandbox::builder()
            .clock(karpenter_sandbox::Clock::real())
            .api_server_only()
            .start();
        let crds = karpenter_api::crd::all()
            .into_iter()
            .chain(karpenter_ovhcloud::node_class::crds());
        for crd in crds {
            sandbox.apply(&crd.to_yaml()).expect("the CRD is accepted");
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
        let clock = JumpClock::new();
        let sim = SimulatedOvh::start(Clock::from_source(clock.clone()), world)
            .await
            .expect("a socket");
        let mut settings = settings(sim.endpoint());
        tune(&mut settings);
        let process = Mutex::new(Process::start(&sandbox, &clock, &settings));
        Self {
            sandbox,
            sim,
            clock,
            settings,
            process,
        }
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

    /// Waits until something is so; false if it does not become so.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) -> bool {
        for _ in 0..3000 {
            if holds() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    /// Lets time pass, a step at a time, so that everybody notices.
    pub(crate) async fn pass(&self, duration: Duration, steps: u32) {
        for _ in 0..steps {
            self.clock.jump(duration / steps);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    pub(crate) fn sim<T>(&self, act: impl FnOnce(&mut SimState) -> T) -> T {
        self.sim.with(act)
    }

    /// A claim of the NodePool `default`, stored in the cluster.
    pub(crate) fn claim(&self, name: &str, requirements: Value) -> NodeClaim {
        self.claim_with(name, json!({"requirements": requirements}))
    }

    pub(crate) fn claim_with(&self, name: &str, spec: Value) -> NodeClaim {
        let mut claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name,
                "labels": {"karpenter.sh/nodepool": "default", "karpenter.ovhcloud.sh/ovhnodeclass": "default"},
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

    /// Deletes a claim as core does once its machine is gone.
    pub(crate) fn forget(&self, name: &str) {
        self.sandbox
            .objects()
            .delete::<NodeClaim>("", name, &Default::default())
            .expect("deleted");
    }

    pub(crate) async fn launch(&self, claim: &NodeClaim) -> NodeClaim {
        let instance = self.provider().create(claim).await.expect("launched");
        launched(claim, &instance)
    }
}

impl Process {
    fn start(sandbox: &Sandbox, clock: &JumpClock, settings: &OvhSettings) -> Self {
        let provider = OvhProvider::new(
            sandbox.client(),
            Clock::from_source(clock.clone()),
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
