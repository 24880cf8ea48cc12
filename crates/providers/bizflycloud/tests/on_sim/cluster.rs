//! A cluster in which core's controllers, this provider and the simulated cloud are at work.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_api::NodeClaim;
use karpenter_bizflycloud::{
    Settings,
    sim::{SimOptions, run_nodes},
};
use karpenter_cloud::CloudProvider;
use karpenter_core::{context::Context, controllers, metrics::Metrics, options::Options};
use karpenter_sandbox::{Sandbox, Timing};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::environment::{Setting, World, with_provisioners};

/// A cluster in which everything is at work.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) tasks: JoinSet<()>,
}

pub(crate) async fn cluster(class: Option<Value>) -> Cluster {
    cluster_with(class, with_provisioners).await
}

pub(crate) async fn cluster_with(class: Option<Value>, settings: fn(Settings) -> Settings) -> Cluster {
    start(class, settings, Options::default()).await
}

/// One that repairs its nodes too.
pub(crate) async fn repaired_cluster(class: Value) -> Cluster {
    let mut options = Options::default();
    options.feature_gates.node_repair = true;
    start(Some(class), |settings| settings, options).await
}

async fn start(class: Option<Value>, settings: fn(Settings) -> Settings, options: Options) -> Cluster {
    let world = World::with(Setting {
        options: SimOptions {
            volume_delay: Some(Duration::from_secs(3)),
            build_delay: Some(Duration::from_secs(3)),
            boot_delay: Duration::from_secs(5),
            deletion_delay: Duration::from_secs(3),
            ..SimOptions::default()
        },
        class,
        settings,
        sandbox: || Sandbox::builder().timing(Timing::instant()).start(),
    })
    .await;
    for crd in karpenter_api::crd::all() {
        // Those that are there already stay as they are.
        let _ = world.sandbox.apply(&crd.to_yaml());
    }
    let (clock, client) = (world.clock.clone(), world.sandbox.client_as("karpenter"));
    let ctx = Context::new(
        client.clone(),
        clock.clone(),
        Arc::new(options),
        Metrics::new(clock.clone()),
        Arc::new(world.provider.clone()),
    );
    let mut tasks = ctx.watch();
    ctx.synced().await;
    let stop = CancellationToken::new();
    for controller in controllers::all(&ctx) {
        tasks.spawn(controller.run(stop.clone()));
    }
    let (events, deliverer, told) = (ctx.events.clone(), client.clone(), stop.clone());
    tasks.spawn(async move { events.deliver(deliverer, told).await });
    for task in world.provider.background_tasks() {
        tasks.spawn(task.run(stop.clone()));
    }
    tasks.spawn(run_nodes(world.cloud.clone(), client, clock, stop));
    Cluster { world, tasks }
}

impl Cluster {
    /// Lets time pass until something holds, for at most half an hour of the cluster's time.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..900 {
            if holds(&self.world) {
                return;
            }
            self.world.clock.sleep(Duration::from_secs(2)).await;
        }
        let pods = self.world.sandbox.objects().list::<Pod>("default");
        let claims = self.world.sandbox.objects().list::<NodeClaim>("");
        let events = self.world.sandbox.objects().list::<Event>("default").into_iter();
        let told: Vec<_> = events
            .map(|event| (event.involved_object.name, event.reason, event.message))
            .collect();
        panic!(
            "never: {what}\n{pods:#?}\n{claims:#?}\n{told:#?}\n{:?}",
            self.world.cloud.leaks()
        );
    }

    pub(crate) fn pod(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["containers"] =
            json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        });
        self.world.apply(&pod);
    }
}

pub(crate) fn running(world: &World) -> usize {
    let pods = world.sandbox.objects().list::<Pod>("default").into_iter();
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    pods.filter(runs).count()
}

pub(crate) fn nodes(world: &World) -> Vec<Node> {
    world.sandbox.objects().list("")
}
