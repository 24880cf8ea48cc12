//! A sandbox, a simulated BizFly Cloud and the provider between them, on one clock that moves when nothing else does.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, Node},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_bizflycloud::{
    BizflyCloudNodeClass, BizflyCloudProvider, Settings,
    client::{AuthMethod, AuthMode, Bizfly, Connection, Identity, words::Words},
    region::Region,
    settings::ProvisionerCompatibility,
    sim::{self, Fault as SimFault, Often, Operation, SimOptions, SimulatedBizfly},
};
use karpenter_cloud::{
    CloudProvider, Deletion,
    clock::{Clock, TimeSource},
    conformance::{Environment, Fault, Support},
    garbage_collection::{GarbageCollector, KnownClaims},
    http::{HttpSettings, InFlight, ProxyChoice, RateLimit, Redactor, Trust, Unobserved},
};
use karpenter_sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The sandbox's clock as ours.
#[derive(Debug)]
struct SandboxTime(karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline).boxed()
    }
}

pub(crate) struct World {
    pub(crate) sandbox: Sandbox,
    pub(crate) cloud: SimulatedBizfly,
    pub(crate) clock: Clock,
    pub(crate) provider: BizflyCloudProvider,
    pub(crate) in_flight: InFlight,
    time: JoinHandle<()>,
}

/// A second cluster.
pub(crate) struct Neighbour {
    pub(crate) sandbox: Sandbox,
    pub(crate) provider: BizflyCloudProvider,
}

/// What a cluster begins with besides its CRDs.
pub(crate) struct Setting {
    pub(crate) options: SimOptions,
    pub(crate) class: Option<Value>,
    pub(crate) settings: fn(Settings) -> Settings,
    pub(crate) sandbox: fn() -> Sandbox,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            options: SimOptions::default(),
            class: Some(json!({})),
            settings: |settings| settings,
            sandbox: || Sandbox::builder().api_server_only().start(),
        }
    }
}

/// The kinds that these tests use, made once: most of a test's time would go into making them.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    let of_core = karpenter_api::crd::all().into_iter();
    let used = of_core.filter(|crd| ["NodePool", "NodeClaim"].contains(&crd.kind()));
    let all = used.chain(karpenter_bizflycloud::node_class::crds());
    all.map(|crd| serde_json::from_value(crd.as_value().clone()).expect("a CRD"))
        .collect()
});

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Setting::default()).await
    }

    pub(crate) async fn with(setting: Setting) -> Self {
        let sandbox = (setting.sandbox)();
        for crd in CRDS.iter() {
            sandbox.objects().create(crd).expect("the CRD is accepted");
        }
        let clock = Clock::from_source(SandboxTime(sandbox.clock().clone()));
        let in_flight = InFlight::default();
        let time = move_time(sandbox.clone(), in_flight.clone());
        let cloud = SimulatedBizfly::start(clock.clone(), setting.options)
            .await
            .expect("a free port");
        let settings = (setting.settings)(settings(&in_flight));
        let provider = BizflyCloudProvider::new(sandbox.client(), clock.clone(), settings);
        let world = Self {
            sandbox,
            cloud,
            clock,
            provider,
            in_flight,
            time,
        };
        world.apply(&secret(sim::PASSWORD));
        world.apply(&world.config(json!({"region": "HN"})));
        if let Some(spec) = setting.class {
            world.apply(&class(spec));
            world.provider.reconcile_classes().await;
        }
        world
    }

    pub(crate) fn apply(&self, object: &Value) {
        if let Err(error) = self.sandbox.apply(&object.to_string()) {
            panic!("not accepted: {error}");
        }
    }

    /// A ProviderConfig `default` that leads to the simulated cloud.
    pub(crate) fn config(&self, mut spec: Value) -> Value {
        spec["secretRef"] = json!({"name": "bizflycloud-credentials", "namespace": "default"});
        spec["cloudConfig"]["apiEndpoint"] = json!(self.cloud.url());
        json!({
            "apiVersion": "bizflycloud.karpenter.sh/v1alpha1", "kind": "ProviderConfig", "metadata": {"name": "default"},
            "spec": spec,
        })
    }

    /// Another cluster of the same account, with an API server of its own.
    pub(crate) async fn neighbour(&self, name: &str, config: &Value) -> Neighbour {
        let clock = self.sandbox.clock().clone();
        let sandbox = Sandbox::builder().clock(clock).api_server_only().start();
        for crd in CRDS.iter() {
            sandbox.objects().create(crd).expect("the CRD is accepted");
        }
        for object in [&secret(sim::PASSWORD), config, &class(json!({}))] {
            sandbox.apply(&object.to_string()).expect("accepted");
        }
        let mut settings = settings(&self.in_flight);
        name.clone_into(&mut settings.cluster_name);
        let provider = BizflyCloudProvider::new(sandbox.client(), self.clock.clone(), settings);
        provider.reconcile_classes().await;
        Neighbour { sandbox, provider }
    }

    /// A provider with nothing in memory.
    pub(crate) fn new_provider(&self) -> BizflyCloudProvider {
        BizflyCloudProvider::new(self.sandbox.client(), self.clock.clone(), settings(&self.in_flight))
    }

    pub(crate) fn class(&self) -> BizflyCloudNodeClass {
        self.sandbox.objects().get("", "default").expect("the class exists")
    }

    pub(crate) fn condition(&self, type_: &str) -> (String, String, String) {
        self.condition_of("default", type_)
    }

    /// Status, reason and message of a condition of a class.
    pub(crate) fn condition_of(&self, class: &str, type_: &str) -> (String, String, String) {
        use karpenter_api::conditions::StatusConditions;
        let class: BizflyCloudNodeClass = self.sandbox.objects().get("", class).expect("the class exists");
        let found = class.condition(type_).unwrap_or_else(|| panic!("no condition {type_}"));
        (found.status.to_string(), found.reason.clone(), found.message.clone())
    }

    /// A client of the cloud's API alone.
    pub(crate) fn client(&self, change: impl FnOnce(&mut Connection)) -> Bizfly {
        let mut connection = Connection {
            endpoint: self.cloud.url().parse().expect("a URL"),
            region: Region::HaNoi,
            identity: Identity {
                method: AuthMethod::Password {
                    email: sim::EMAIL.to_owned(),
                    password: sim::PASSWORD.to_owned().into(),
                },
                project_id: None,
                project_name: None,
            },
            mode: AuthMode::Token,
            attempts: 5,
            first_delay: Duration::from_secs(1),
            timeout: Duration::from_secs(30),
            rate: RateLimit {
                per_second: 1000.0,
                burst: 1000,
            },
            words: Words::default(),
        };
        change(&mut connection);
        Bizfly::new(
            self.clock.clone(),
            connection,
            http(&self.in_flight),
            Redactor::default(),
            Unobserved,
        )
        .expect("a client")
    }

    /// A claim that exists in the cluster, with the UID that the API server gave it.
    pub(crate) fn stored(&self, claim: &NodeClaim) -> NodeClaim {
        let mut value = serde_json::to_value(claim).expect("JSON");
        value["metadata"].as_object_mut().expect("metadata").remove("uid");
        self.apply(&value);
        let name = claim.metadata.name.as_deref().expect("a name");
        self.sandbox.objects().get("", name).expect("it is stored")
    }

    /// A claim that is launched, and its Node, as core and the kubelet would write them.
    pub(crate) async fn launch(&self, number: u32, requirements: Value) -> NodeClaim {
        let mut claim = self.stored(&claim(number, requirements));
        let made = self.provider.create(&claim).await.expect("launched");
        made.apply_to(&mut claim);
        let name = claim.metadata.name.clone().expect("a name");
        let objects = self.sandbox.objects();
        let notes = json!({"metadata": {"labels": claim.metadata.labels, "annotations": claim.metadata.annotations}});
        objects.patch::<NodeClaim>("", &name, &notes).expect("accepted");
        let now = self.clock.now().to_string();
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": type_, "message": "", "lastTransitionTime": now});
        let mut status = serde_json::to_value(&claim.status).expect("JSON");
        status["conditions"] = json!([condition("Launched"), condition("Registered"), condition("Initialized")]);
        status["nodeName"] = json!(name);
        let status = json!({ "status": status });
        objects.patch_status::<NodeClaim>("", &name, &status).expect("accepted");
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"providerID": made.provider_id},
        }));
        let status = json!({"status": {
            "capacity": {"cpu": "4", "memory": "7900Mi", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "7Gi", "pods": "110"},
        }});
        objects.patch_status::<Node>("", &name, &status).expect("accepted");
        objects.get("", &name).expect("it exists")
    }

    /// Deletes a claim's server as core does, until it is gone.
    pub(crate) async fn terminate(&self, provider: &BizflyCloudProvider, claim: &NodeClaim) {
        for _ in 0..60 {
            match Deletion::settle(provider.delete(claim).await).expect("no faults") {
                Deletion::Gone => return,
                Deletion::InProgress => self.clock.sleep(Duration::from_secs(5)).await,
            }
        }
        panic!("it never goes");
    }

    /// The messages of all events of a reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<String> {
        let all = self.sandbox.objects().list::<Event>("default");
        let own = all.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        own.filter_map(|event| event.message).collect()
    }

    /// The Node condition that tells how its server is: its status and reason.
    pub(crate) fn server_health(&self, node: &str) -> Option<(String, String)> {
        let node: Node = self.sandbox.objects().get("", node)?;
        let conditions = node.status?.conditions?;
        let own = conditions
            .into_iter()
            .find(|condition| condition.type_ == "BizflyCloudServerHealthy")?;
        Some((own.status, own.reason.unwrap_or_default()))
    }

    /// The sum of a metric's series whose labels have all these values.
    pub(crate) fn metric(&self, name: &str, values: &[&str]) -> f64 {
        let registry = prometheus::Registry::new();
        // A registry that is thrown away: the provider's metrics count on.
        self.provider.metrics().register(&registry).expect("a new registry");
        let families = registry.gather();
        let name = format!("karpenter_bizflycloud_{name}");
        let own = families.iter().filter(|family| family.name() == name);
        own.flat_map(|family| family.get_metric())
            .filter(|metric| {
                values
                    .iter()
                    .all(|value| metric.get_label().iter().any(|label| label.value() == *value))
            })
            .map(|metric| {
                let histogram = metric.get_histogram().get_sample_count() as f64;
                metric.get_counter().get_value() + metric.get_gauge().get_value() + histogram
            })
            .sum()
    }

    /// Ids of servers that live.
    pub(crate) fn live(&self) -> Vec<String> {
        let all = self.cloud.servers().into_iter().filter(|server| !server.terminating);
        all.map(|server| server.id).collect()
    }

    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        let requests = self.cloud.requests();
        requests
            .iter()
            .filter(|request| request.method == method && request.path.ends_with(path))
            .count()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.time.abort();
        if !std::thread::panicking() {
            assert_eq!(
                self.violations(),
                Vec::<String>::new(),
                "what must hold after every test"
            );
        }
    }
}

impl World {
    /// What no test may lead to: a pod's disk deleted, a call by nobody, a server of two claims.
    fn violations(&self) -> Vec<String> {
        let is_pods = |id: &str| id.starts_with("vol-");
        let mut violations = Vec::new();
        for request in self.cloud.requests() {
            let (method, path) = (&request.method, &request.path);
            let listed = request.body["delete_volume"].as_array().into_iter().flatten();
            let mut deleted: Vec<&str> = listed.filter_map(Value::as_str).collect();
            deleted.extend(path.rsplit_once("/volumes/").map(|(_, id)| id));
            if method == "DELETE" && deleted.into_iter().any(is_pods) {
                violations.push(format!("{method} {path} deletes a pod's disk"));
            }
            let is_service = ["/iaas-cloud/", "/api/account/", "/api/kubernetes-engine/"]
                .iter()
                .any(|service| path.starts_with(service));
            let has = |header: &str| request.headers.contains_key(header);
            if is_service && !has("x-auth-token") && !has("x-app-credential-secret") {
                violations.push(format!("{method} {path} is nobody's"));
            }
        }
        let claims = self.sandbox.objects().list::<NodeClaim>("");
        let mut servers: Vec<&str> = claims.iter().filter_map(NodeClaim::provider_id).collect();
        let all = servers.len();
        servers.sort_unstable();
        servers.dedup();
        if servers.len() < all {
            violations.push("two claims have one server".to_owned());
        }
        violations
    }
}

/// Moves the clock to its next timer whenever neither the cluster nor a request to the cloud is busy.
fn move_time(sandbox: Sandbox, in_flight: InFlight) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            sandbox.settle().await;
            if in_flight.count() > 0 {
                in_flight.next_answer().await;
                continue;
            }
            match sandbox.clock().next_timer() {
                Some(next) => sandbox.clock().advance_to(next),
                None => sandbox.clock().timer_set().await,
            }
        }
    })
}

fn http(in_flight: &InFlight) -> HttpSettings {
    HttpSettings {
        in_flight: in_flight.clone(),
        proxy: ProxyChoice::Direct,
        // The simulated cloud speaks plain HTTP; reading the system's certificates takes long.
        trust: Trust::Anything,
        ..HttpSettings::default()
    }
}

/// A BKE cluster.
pub(crate) fn settings(in_flight: &InFlight) -> Settings {
    let variables = [
        ("CLUSTER_NAME", "prod"),
        ("LEADER_ELECTION_NAMESPACE", "default"),
        ("BKE_CLUSTER_ID", sim::BKE_CLUSTER),
        ("BKE_CLUSTER_TOKEN", sim::BKE_TOKEN),
        ("BKE_JOIN_ENDPOINT", "https://bke/engine/cluster_join/1"),
    ];
    let settings = Settings::from_lookup(|name| {
        let found = variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    Settings {
        http: http(in_flight),
        ..settings
    }
}

pub(crate) fn with_provisioners(settings: Settings) -> Settings {
    Settings {
        provisioners: ProvisionerCompatibility::On,
        ..settings
    }
}

pub(crate) fn secret(password: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bizflycloud-credentials", "namespace": "default"},
        "stringData": {"email": sim::EMAIL, "password": password},
    })
}

pub(crate) fn class(spec: Value) -> Value {
    json!({
        "apiVersion": "karpenter.bizflycloud.com/v1", "kind": "BizflyCloudNodeClass", "metadata": {"name": "default"},
        "spec": spec,
    })
}

pub(crate) fn pool(requirements: Value) -> NodePool {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {
            "requirements": requirements,
            "nodeClassRef": {
                "group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": "default",
            },
        }}},
    }))
    .expect("a NodePool")
}

pub(crate) fn claim(number: u32, requirements: Value) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": format!("default-{number:05}"), "uid": format!("10000000-0000-4000-8000-{number:012}"),
            "labels": {"karpenter.sh/nodepool": "default"},
        },
        "spec": {
            "requirements": requirements, "resources": {"requests": {"cpu": "1"}},
            "nodeClassRef": {
                "group": "karpenter.bizflycloud.com", "kind": "BizflyCloudNodeClass", "name": "default",
            },
        },
    }))
    .expect("a NodeClaim")
}

#[async_trait]
impl Environment for World {
    fn provider(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.provider.clone())
    }

    fn node_pool(&self) -> NodePool {
        pool(json!([]))
    }

    async fn restart(&self) -> Arc<dyn CloudProvider> {
        Arc::new(self.new_provider())
    }

    async fn machines(&self) -> Vec<String> {
        let live = self.cloud.servers().into_iter().filter(|server| !server.terminating);
        live.map(|server| format!("bizflycloud://{}", server.id)).collect()
    }

    async fn pass(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    async fn inject(&self, fault: Fault) -> Support {
        let fails = |operation, often| {
            let fault = SimFault::Http {
                operation,
                status: 503,
                body: "<html>busy</html>".to_owned(),
                retry_after: None,
            };
            self.cloud.inject(fault, often);
        };
        match fault {
            Fault::LoseLaunchAnswer => self
                .cloud
                .inject(SimFault::LoseAnswer(Operation::CreateServers), Often::Times(1)),
            Fault::FailLaunch => fails(Operation::CreateServers, Often::Times(1)),
            Fault::SellOutEverything => {
                let everything = SimFault::SoldOut {
                    flavor: None,
                    zone: None,
                };
                self.cloud.inject(everything, Often::Always);
            }
            Fault::FailReads => fails(Operation::Read, Often::Always),
            Fault::FailTerminations => fails(Operation::DeleteServer, Often::Always),
        }
        Support::Yes
    }

    async fn heal(&self) {
        self.cloud.heal();
        // A client that failed too often tries again only after a pause.
        self.clock.sleep(Duration::from_secs(31)).await;
    }

    async fn add_foreign_machine(&self) -> Option<String> {
        Some(format!(
            "bizflycloud://{}",
            self.cloud.add_foreign_server("somebody-elses")
        ))
    }

    async fn vanish(&self, provider_id: &str) -> Support {
        self.cloud
            .vanish(provider_id.strip_prefix("bizflycloud://").expect("one of ours"));
        Support::Yes
    }

    async fn cause_drift(&self, _claim: &NodeClaim) -> Support {
        let patch = json!({"spec": {"rootDiskSize": 80}});
        let objects = self.sandbox.objects();
        objects
            .patch::<BizflyCloudNodeClass>("", "default", &patch)
            .expect("accepted");
        Support::Yes
    }

    async fn unready_node_class(&self) -> Support {
        let status = json!({"status": {"conditions": [{
            "type": "Ready", "status": "False", "reason": "OutOfService", "message": "taken out of service",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let objects = self.sandbox.objects();
        objects
            .patch_status::<BizflyCloudNodeClass>("", "default", &status)
            .expect("accepted");
        Support::Yes
    }

    async fn collect_garbage(&self, claims: &[NodeClaim]) -> Support {
        let provider = self.new_provider();
        let mut collector = GarbageCollector::new(provider.caution());
        for _ in 0..3 {
            let known = KnownClaims::of(claims);
            provider
                .collect_garbage(&mut collector, &known)
                .await
                .expect("no faults");
            self.clock.sleep(Duration::from_secs(60)).await;
        }
        Support::Yes
    }
}
