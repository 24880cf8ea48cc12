//! A whole cluster: scheduler, workloads and kubelets, the simulated CloudStack whose machines join it, the provider with
//! its background tasks, and core.

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_api::NodeClaim;
use karpenter_cloud::{
    CloudProvider,
    cache::CacheMetrics,
    clock::{Clock, TimeSource},
    http::{InFlight, Redactor},
};
use karpenter_cloudstack::{
    CloudStackProvider, ProviderSettings,
    client::{Client, metrics::ApiMetrics},
    sim::{Seed, Simulator, kubelets::Kubelets, seed},
};
use karpenter_core::{context::Context, controllers, metrics::Metrics, options::Options};
use karpenter_sandbox::{Sandbox, Timing};
use kube::ResourceExt;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::environment::CLUSTER;

/// Everything; time moves on whenever nobody is busy.
pub(crate) struct Whole {
    pub(crate) sandbox: Sandbox,
    pub(crate) simulator: Simulator,
    pub(crate) clock: Clock,
    time: JoinHandle<()>,
    _kubelets: Kubelets,
    _tasks: JoinSet<()>,
    _stop: DropGuard,
}

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

/// Moves the clock to its next timer whenever neither the cluster nor a request to CloudStack is busy.
fn move_time(sandbox: Sandbox, in_flight: InFlight) -> JoinHandle<()> {
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

impl Whole {
    pub(crate) async fn start(seed: Seed, change: impl FnOnce(&mut ProviderSettings)) -> Self {
        let sandbox = Sandbox::builder().timing(Timing::instant()).start();
        let crds = karpenter_api::crd::all();
        for crd in crds.into_iter().chain(karpenter_cloudstack::node_class::crds()) {
            sandbox.apply(&crd.to_yaml()).expect("the CRD is accepted");
        }
        let clock = Clock::from_source(SandboxTime(sandbox.clock().clone()));
        let simulator = Simulator::start(clock.clone(), seed).await.expect("a free port");
        let in_flight = InFlight::default();
        let mut settings = ProviderSettings::new(CLUSTER);
        settings.http.in_flight = in_flight.clone();
        settings.http.rate.per_second = 1000.0;
        settings.http.rate.burst = 1000;
        change(&mut settings);
        let client = Client::new(
            clock.clone(),
            settings.http.clone(),
            simulator.keys(seed::ACCOUNT),
            Redactor::default(),
            ApiMetrics::new(),
        )
        .expect("a client");
        let caches = CacheMetrics::unregistered("cloudstack").expect("valid names");
        let provider = CloudStackProvider::new(sandbox.client(), clock.clone(), settings, client, &caches);
        let time = move_time(sandbox.clone(), in_flight);
        provider.verify().await.expect("it answers");
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for task in provider.background_tasks() {
            tasks.spawn(task.run(stop.clone()));
        }
        let ctx = Context::new(
            sandbox.client_as("karpenter"),
            clock.clone(),
            Arc::new(Options::default()),
            Metrics::new(clock.clone()),
            Arc::new(provider),
        );
        let mut watches = ctx.watch();
        ctx.synced().await;
        tasks.spawn(async move { while watches.join_next().await.is_some() {} });
        let (recorder, cluster, ended) = (ctx.events.clone(), ctx.client.clone(), stop.clone());
        tasks.spawn(async move { recorder.deliver(cluster, ended).await });
        for controller in controllers::all(&ctx) {
            tasks.spawn(controller.run(stop.clone()));
        }
        Self {
            _kubelets: Kubelets::attach(simulator.clone(), sandbox.client()),
            sandbox,
            simulator,
            clock,
            time,
            _tasks: tasks,
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn apply(&self, manifests: &str) {
        self.sandbox.apply(manifests).expect("accepted as they are");
    }

    /// Waits until something is so, for at most half an hour of the cluster's time.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..900 {
            if holds(self) {
                return;
            }
            self.clock.sleep(Duration::from_secs(2)).await;
        }
        let classes: Vec<karpenter_cloudstack::CloudStackNodeClass> = self.sandbox.objects().list("");
        panic!(
            "never: {what}\n{:#?}\n{:#?}\n{:#?}",
            self.told(),
            self.claims(),
            classes.into_iter().map(|class| class.status).collect::<Vec<_>>()
        );
    }

    /// The pods that run, each with its Node.
    pub(crate) fn running(&self) -> Vec<(String, String)> {
        let pods: Vec<Pod> = self.sandbox.objects().list("default");
        let is_running = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        let pods = pods.iter().filter(is_running);
        pods.filter_map(|pod| Some((pod.name_any(), pod.spec.as_ref()?.node_name.clone()?)))
            .collect()
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        self.sandbox.objects().list("")
    }

    pub(crate) fn claims(&self) -> Vec<NodeClaim> {
        self.sandbox.objects().list("")
    }

    /// Every event, as kind and name of its object, reason and message.
    pub(crate) fn told(&self) -> Vec<String> {
        let events: Vec<Event> = self.sandbox.objects().list("");
        let of = |event: Event| {
            let about = event.involved_object;
            format!(
                "{}/{} {}: {}",
                about.kind.unwrap_or_default(),
                about.name.unwrap_or_default(),
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default()
            )
        };
        events.into_iter().map(of).collect()
    }

    /// Deploys so far, by the service offering that each asked for.
    pub(crate) fn deploys(&self) -> Vec<(String, String)> {
        let calls = self.simulator.calls().into_iter();
        let deploys = calls.filter(|call| call.command == "deployVirtualMachine");
        let of = |call: karpenter_cloudstack::sim::Call| {
            let get = |name: &str| call.params.get(name).cloned().unwrap_or_default();
            (get("details[0].karpenter.nodeclaim.uid"), get("serviceofferingid"))
        };
        deploys.map(of).collect()
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.time.abort();
    }
}
