//! A simulated CloudStack, a cluster's API server and a provider between them, on a clock that runs by itself.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloud::{
    CloudProvider,
    cache::CacheMetrics,
    clock::{Clock, ManualClock},
    conformance::{Environment, Fault as Wanted, Support},
    garbage_collection::GarbageCollector,
    http::{Redactor, Trust},
};
use karpenter_cloudstack::{
    CloudStackNodeClass, CloudStackProvider, ProviderSettings,
    client::{Client, Keys, metrics::ApiMetrics},
    sim::{Fault, FaultKind, Machine, MachineState, Seed, Simulator, seed},
    tasks,
};
use karpenter_sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) const CLUSTER: &str = "blue";
/// What passes with every turn of the runtime.
pub(crate) const STEP: Duration = Duration::from_secs(1);

pub(crate) struct Cloud {
    pub(crate) sandbox: Sandbox,
    pub(crate) simulator: Simulator,
    pub(crate) clock: ManualClock,
    pub(crate) provider: CloudStackProvider,
    pub(crate) settings: ProviderSettings,
    ticker: JoinHandle<()>,
}

/// Time that passes by itself: a little with every turn of the runtime, so that a busy machine does not make it race.
fn tick(clock: ManualClock, step: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.advance(step);
        }
    })
}

impl Cloud {
    pub(crate) async fn start() -> Self {
        Self::with(Seed::default(), json!({})).await
    }

    /// With this seed, and a class `default` that these fields are added to.
    pub(crate) async fn with(seed: Seed, spec: Value) -> Self {
        let cloud = Self::without_class(seed, STEP, |_| {}).await;
        cloud.apply_class(spec).await;
        cloud
    }

    pub(crate) async fn without_class(seed: Seed, step: Duration, change: impl FnOnce(&mut ProviderSettings)) -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a moment");
        let clock = ManualClock::starting_at(start);
        let sandbox = Sandbox::builder().api_server_only().start();
        let claims = karpenter_api::crd::all()
            .into_iter()
            .filter(|crd| crd.kind() == "NodeClaim");
        for crd in claims.chain(karpenter_cloudstack::node_class::crds()) {
            sandbox.apply(&crd.to_yaml()).expect("the CRD is accepted");
        }
        let simulator = Simulator::start(clock.clock(), seed).await.expect("a free port");
        let mut settings = ProviderSettings::new(CLUSTER);
        settings.http.rate.per_second = 1000.0;
        settings.http.rate.burst = 1000;
        change(&mut settings);
        let provider = provider(&sandbox, &simulator, clock.clock(), &settings).await;
        Self {
            ticker: tick(clock.clone(), step),
            sandbox,
            simulator,
            clock,
            provider,
            settings,
        }
    }

    /// Writes the class and lets it be resolved.
    pub(crate) async fn apply_class(&self, spec: Value) {
        self.sandbox
            .apply(&class(spec).to_string())
            .expect("the class is accepted");
        self.resolve().await;
    }

    pub(crate) async fn resolve(&self) {
        self.provider.flush();
        self.provider.reconcile_class("default").await.expect("reconciled");
    }

    pub(crate) fn class(&self) -> CloudStackNodeClass {
        self.sandbox.objects().get("", "default").expect("the class")
    }

    pub(crate) async fn new_provider(&self) -> CloudStackProvider {
        provider(&self.sandbox, &self.simulator, self.clock.clock(), &self.settings).await
    }

    /// A provider that reaches CloudStack in another way.
    pub(crate) fn provider_of(&self, keys: Keys, trust: Trust) -> CloudStackProvider {
        self.provider_with(keys, trust, self.settings.clone())
    }

    /// A provider with other settings.
    pub(crate) fn provider_with(&self, keys: Keys, trust: Trust, settings: ProviderSettings) -> CloudStackProvider {
        let mut settings = settings;
        settings.http.trust = trust;
        provider_of(&self.sandbox, keys, self.clock.clock(), &settings)
    }

    /// A provider whose requests to the Kubernetes API pass `gate` first, which sees method and path and may refuse.
    pub(crate) fn provider_behind(
        &self,
        gate: impl Fn(&http::Method, &str) -> Option<http::StatusCode> + Clone + Send + Sync + 'static,
    ) -> CloudStackProvider {
        let cluster = gated(self.sandbox.client(), gate);
        let keys = self.simulator.keys(seed::ACCOUNT);
        provider_in(cluster, keys, self.clock.clock(), &self.settings)
    }

    /// Names of the machines that live.
    pub(crate) fn live(&self) -> Vec<Machine> {
        self.simulator.machines().into_iter().filter(Machine::is_live).collect()
    }

    pub(crate) fn calls(&self, command: &str) -> usize {
        self.simulator
            .calls()
            .iter()
            .filter(|call| call.command == command)
            .count()
    }

    /// Stores a claim of the suite, whose UID the API server would not take, so that the provider sees it with that UID.
    pub(crate) fn store(&self, claim: &NodeClaim) {
        let mut value = serde_json::to_value(claim).expect("JSON");
        let uid = value["metadata"]["uid"].take();
        value["metadata"].as_object_mut().expect("metadata").remove("uid");
        value["metadata"]["annotations"][UID] = uid;
        self.sandbox.apply(&value.to_string()).expect("the claim is accepted");
    }

    /// A claim that exists in the cluster, with the UID that the API server gave it.
    pub(crate) fn stored(&self, claim: &NodeClaim) -> NodeClaim {
        let mut value = serde_json::to_value(claim).expect("JSON");
        value["metadata"].as_object_mut().expect("metadata").remove("uid");
        self.sandbox.apply(&value.to_string()).expect("the claim is accepted");
        self.sandbox
            .objects()
            .get("", claim.metadata.name.as_deref().expect("a name"))
            .expect("it is stored")
    }

    /// Launches a claim of the cluster and writes into it what core would.
    pub(crate) async fn launch(&self, claim: &NodeClaim) -> NodeClaim {
        let stored = self.stored(claim);
        let instance = self.provider.create(&stored).await.expect("launched");
        let objects = self.sandbox.objects();
        // The provider has written on it meanwhile.
        let name = claim.metadata.name.as_deref().expect("a name");
        let mut claim: NodeClaim = objects.get("", name).expect("it is stored");
        instance.apply_to(&mut claim);
        claim = {
            let status = claim.status.clone();
            let mut updated = objects.update(&claim).expect("accepted");
            updated.status = status;
            updated
        };
        objects.update_status(&claim).expect("accepted")
    }

    pub(crate) fn claim_exists(&self, name: &str) -> bool {
        let found: Option<NodeClaim> = self.sandbox.objects().get("", name);
        found.is_some()
    }

    /// Runs garbage collection for a few rounds.
    pub(crate) async fn collect(&self, provider: &CloudStackProvider, rounds: usize) {
        let mut collector = GarbageCollector::new(tasks::caution());
        for _ in 0..rounds {
            provider.collect_garbage(&mut collector).await.expect("a round");
            self.pass(Duration::from_secs(40)).await;
        }
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}

pub(crate) fn class(spec: Value) -> Value {
    let mut whole = json!({
        "zones": ["zone-1", "zone-2"],
        "networkSelectorTerms": [{"name": "nodes-zone-1"}, {"name": "nodes-zone-2"}],
        "serviceOfferingSelectorTerms": [{"nameRegex": ".*"}],
        "templateSelectorTerms": [{"name": "ubuntu-24.04-kube"}],
    });
    for (key, value) in spec.as_object().expect("an object") {
        if value.is_null() {
            whole.as_object_mut().expect("an object").remove(key);
        } else {
            whole[key] = value.clone();
        }
    }
    json!({
        "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "default"}, "spec": whole,
    })
}

/// A claim of the pool `default` that asks for this much cpu, with these further requirements.
pub(crate) fn claim(number: u32, cpu: &str, requirements: Value) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": format!("default-{number:05}"), "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "labels": {"karpenter.sh/nodepool": "default", "karpenter.k8s.cloudstack/cloudstacknodeclass": "default"},
        },
        "spec": {
            "requirements": requirements, "resources": {"requests": {"cpu": cpu}},
            "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"},
        },
    }))
    .expect("a claim")
}

pub(crate) fn pool() -> NodePool {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {
            "requirements": [],
            "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": "default"},
        }}},
    }))
    .expect("a NodePool")
}

async fn provider(
    sandbox: &Sandbox,
    simulator: &Simulator,
    clock: Clock,
    settings: &ProviderSettings,
) -> CloudStackProvider {
    provider_of(sandbox, simulator.keys(seed::ACCOUNT), clock, settings)
}

fn provider_of(sandbox: &Sandbox, keys: Keys, clock: Clock, settings: &ProviderSettings) -> CloudStackProvider {
    provider_in(with_uids(sandbox.client()), keys, clock, settings)
}

fn provider_in(cluster: kube::Client, keys: Keys, clock: Clock, settings: &ProviderSettings) -> CloudStackProvider {
    let client = Client::new(
        clock.clone(),
        settings.http.clone(),
        keys,
        Redactor::default(),
        ApiMetrics::new(),
    )
    .expect("a client");
    let caches = CacheMetrics::unregistered("cloudstack").expect("valid names");
    CloudStackProvider::new(cluster, clock, settings.clone(), client, &caches)
}

fn gated(
    inner: kube::Client,
    gate: impl Fn(&http::Method, &str) -> Option<http::StatusCode> + Clone + Send + Sync + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (inner, refused) = (inner.clone(), gate(request.method(), request.uri().path()));
        async move {
            let Some(code) = refused else {
                return inner.send(request).await;
            };
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16()});
            let mut answer = http::Response::new(kube::client::Body::from(status.to_string().into_bytes()));
            *answer.status_mut() = code;
            Ok::<_, kube::Error>(answer)
        }
    });
    kube::Client::new(service, "default")
}

/// On a claim: the UID that the provider shall see.
const UID: &str = "test.karpenter.sh/uid";

/// A client that shows claims with the UIDs that the suite gave them, and does not mind them when claims are written.
fn with_uids(inner: kube::Client) -> kube::Client {
    let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        let inner = inner.clone();
        async move {
            let is_list = request.method() == http::Method::GET && request.uri().path().ends_with("/nodeclaims");
            if request.method() == http::Method::PATCH && request.uri().path().contains("/nodeclaims/") {
                let bytes = std::mem::replace(request.body_mut(), kube::client::Body::empty())
                    .collect_bytes()
                    .await?;
                let mut patch: Value = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
                let metadata = patch.get_mut("metadata").and_then(Value::as_object_mut);
                metadata.and_then(|own| own.remove("uid"));
                *request.body_mut() = kube::client::Body::from(patch.to_string().into_bytes());
            }
            let answer = inner.send(request).await?;
            if !is_list {
                return Ok(answer);
            }
            let (parts, body) = answer.into_parts();
            let bytes = body.collect_bytes().await?;
            let mut list: Value = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
            for item in list["items"].as_array_mut().into_iter().flatten() {
                if let Some(uid) = item["metadata"]["annotations"].get(UID).cloned() {
                    item["metadata"]["uid"] = uid;
                }
            }
            let body = kube::client::Body::from(list.to_string().into_bytes());
            Ok::<_, kube::Error>(http::Response::from_parts(parts, body))
        }
    });
    kube::Client::new(service, "default")
}

#[async_trait]
impl Environment for Cloud {
    fn provider(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.provider.clone())
    }

    fn node_pool(&self) -> NodePool {
        pool()
    }

    async fn restart(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.new_provider().await)
    }

    async fn machines(&self) -> Vec<String> {
        self.live()
            .iter()
            .map(|own| format!("external-cloudstack://{}", own.id))
            .collect()
    }

    async fn pass(&self, duration: Duration) {
        // In steps, with the runtime turning in between.
        let step = Duration::from_secs(5).max(duration / 20);
        let mut left = duration;
        while !left.is_zero() {
            let now = step.min(left);
            self.clock.advance(now);
            left -= now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn inject(&self, fault: Wanted) -> Support {
        let inject = |fault: Fault| self.simulator.inject(fault);
        match fault {
            Wanted::LoseLaunchAnswer => inject(Fault::new("deployVirtualMachine", FaultKind::LoseAnswer).times(1)),
            Wanted::FailLaunch => {
                let text = "Internal error executing command, please contact your system administrator";
                inject(Fault::new("deployVirtualMachine", FaultKind::Refuse(530, text.to_owned())).times(1));
            }
            Wanted::SellOutEverything => self.simulator.operate(|operator| operator.settings().sold_out = true),
            Wanted::FailReads => {
                inject(Fault::new("listVirtualMachines", FaultKind::Page(503)));
            }
            Wanted::FailTerminations => inject(Fault::new("destroyVirtualMachine", FaultKind::Page(503))),
        }
        Support::Yes
    }

    async fn heal(&self) {
        self.simulator.heal();
    }

    async fn add_foreign_machine(&self) -> Option<String> {
        let id = "11111111-2222-4333-8444-555555555555".to_owned();
        let machine = foreign(&self.simulator, &id);
        self.simulator.operate(|operator| operator.add_machine(machine));
        Some(format!("external-cloudstack://{id}"))
    }

    async fn vanish(&self, provider_id: &str) -> Support {
        let id = provider_id.rsplit('/').next().unwrap_or_default().to_owned();
        self.simulator.operate(|operator| operator.expunge(&id));
        Support::Yes
    }

    async fn cause_drift(&self, _claim: &NodeClaim) -> Support {
        self.apply_class(json!({"userData": "#cloud-config\n{}\n"})).await;
        Support::Yes
    }

    async fn unready_node_class(&self) -> Support {
        self.apply_class(json!({"zones": ["no-such-zone"]})).await;
        Support::Yes
    }

    async fn collect_garbage(&self, claims: &[NodeClaim]) -> Support {
        for claim in claims {
            self.store(claim);
        }
        self.collect(&self.provider, 5).await;
        Support::Yes
    }
}

/// A machine that a person made, in our account.
pub(crate) fn foreign(simulator: &Simulator, id: &str) -> Machine {
    let now = simulator.clock().now();
    let (zone, template, offering) = simulator.operate(|operator| {
        let catalogue = operator.catalogue();
        let id = |object: &Value| object["id"].as_str().unwrap_or_default().to_owned();
        (
            id(&catalogue.zones[0]),
            id(&catalogue.templates[0]),
            id(&catalogue.offerings[0]),
        )
    });
    Machine {
        id: id.to_owned(),
        number: 1,
        name: "karpenter-by-hand".to_owned(),
        display_name: "made by hand".to_owned(),
        account: seed::ACCOUNT.to_owned(),
        project: None,
        zone,
        template,
        offering,
        cpu: 1,
        cpu_speed: 1000,
        memory: 1024,
        nics: Vec::new(),
        details: Default::default(),
        tags: vec![("karpenter.sh/managed-by".to_owned(), "karpenter".to_owned())],
        group: None,
        affinity_groups: Vec::new(),
        security_groups: Vec::new(),
        key_pairs: Vec::new(),
        user_data: None,
        registered_user_data: None,
        boot: None,
        state: MachineState::Running,
        created: now,
        updated: None,
        host: None,
        first_ran: None,
        delete_protection: false,
        lease_ends: None,
        removed: false,
    }
}
