//! The cluster of the demo: sandbox, cloud and controllers, and what the story needs to know of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::{NodeClaim, NodePool, labels};
use karpenter_core::clock::{Clock, TimeSource};
use karpenter_core::logging::{Format, LogLayer, Output as LogOutput};
use karpenter_core::operator::{Operator, OperatorError, Setup};
use karpenter_core::options::{LogLevel, OptionFlags, Options};
use karpenter_sandbox::Sandbox;
use karpenter_sandbox::tcp::TcpServer;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::clouds::SimulatedCloud;
use crate::error::CliError;
use crate::providers::Provider;

/// Everything that runs. It ends with [`World::stop`].
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) clock: karpenter_sandbox::Clock,
    pub(crate) api_url: String,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) cloud: SimulatedCloud,
    stop: CancellationToken,
    operator: JoinHandle<Result<(), OperatorError>>,
    sandbox: Sandbox,
    _served: TcpServer,
    _directory: tempfile::TempDir,
}

/// The cluster at one moment, as the narrator tells it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scene {
    pub(crate) nodes: usize,
    pub(crate) claims: usize,
    pub(crate) running: usize,
    pub(crate) pending: usize,
    pub(crate) cost: f64,
    pub(crate) pods_by_zone: BTreeMap<String, usize>,
    pub(crate) node_names: Vec<String>,
}

/// The sandbox's time, for the controllers.
#[derive(Debug, Clone)]
struct SandboxTime(karpenter_sandbox::Clock);

impl TimeSource for SandboxTime {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(self.0.sleep_until(deadline))
    }
}

impl World {
    pub(crate) async fn start(settings: &Settings) -> Result<Self, CliError> {
        let directory = tempfile::tempdir()?;
        let log = directory.path().join("karpenter.log");
        log_to(&log)?;
        let clock = karpenter_sandbox::Clock::scaled(settings.speed);
        let sandbox = Sandbox::builder().clock(clock.clone()).start();
        let served = sandbox
            .serve_tcp(SocketAddr::from(([127, 0, 0, 1], settings.port)))
            .await
            .map_err(|error| CliError::usage(format!("--port {}: {error}", settings.port)))?;
        let kubeconfig = settings
            .kubeconfig
            .clone()
            .unwrap_or_else(|| directory.path().join("kubeconfig"));
        for crd in Provider::crds(Some(settings.provider)) {
            sandbox
                .apply(&crd.to_yaml())
                .map_err(|error| CliError::failed(error.to_string()))?;
        }
        // Last: whoever waits for the file finds a cluster that knows our kinds.
        served.write_kubeconfig(&kubeconfig)?;

        let client = sandbox.client();
        let time = Clock::from_source(SandboxTime(clock.clone()));
        let cloud = SimulatedCloud::start(settings.provider, &client, &time).await?;
        let options = Options::resolve(OptionFlags::default(), |_| None).expect("the defaults are valid");
        let mut options = Options {
            disable_leader_election: true,
            ..options
        };
        options.feature_gates.node_repair = !cloud.provider.repair_policies().is_empty();
        let operator = Operator::new(Setup {
            client: client.clone(),
            election_client: client.clone(),
            clock: time,
            options,
            cloud: cloud.provider.clone(),
            build: crate::commands::controller::build(),
        })
        .map_err(|error| CliError::failed(error.to_string()))?;
        let controllers = karpenter_core::controllers::all(operator.context());
        let stop = CancellationToken::new();
        let operator = tokio::spawn(operator.with_controllers(controllers).work(stop.clone()));
        Ok(Self {
            client,
            clock,
            api_url: served.url(),
            kubeconfig,
            log,
            cloud,
            stop,
            operator,
            sandbox,
            _served: served,
            _directory: directory,
        })
    }

    pub(crate) fn apply(&self, yaml: &str) -> Result<(), CliError> {
        self.sandbox
            .apply(yaml)
            .map_err(|error| CliError::failed(error.to_string()))
    }

    pub(crate) async fn scene(&self) -> Result<Scene, CliError> {
        let everything = ListParams::default();
        let nodes = Api::<Node>::all(self.client.clone())
            .list(&everything)
            .await
            .map_err(failed)?;
        let claims = Api::<NodeClaim>::all(self.client.clone())
            .list(&everything)
            .await
            .map_err(failed)?;
        let pods = Api::<Pod>::all(self.client.clone())
            .list(&everything)
            .await
            .map_err(failed)?;
        let mut scene = Scene {
            nodes: nodes.items.len(),
            claims: claims.items.len(),
            ..Scene::default()
        };
        let mut zones: BTreeMap<String, String> = BTreeMap::new();
        for node in &nodes {
            let zone = node.labels().get(labels::ZONE).cloned().unwrap_or_default();
            zones.insert(node.name_any(), zone);
            scene.node_names.push(node.name_any());
        }
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
                Some("Running") => scene.running += 1,
                Some("Pending") => scene.pending += 1,
                _ => {}
            }
            if let Some(zone) = pod.spec.as_ref().and_then(|spec| zones.get(spec.node_name.as_ref()?)) {
                *scene.pods_by_zone.entry(zone.clone()).or_default() += 1;
            }
        }
        scene.cost = self.cost(&claims.items).await?;
        Ok(scene)
    }

    /// What the launched machines cost per hour, by the provider's own price list.
    async fn cost(&self, claims: &[NodeClaim]) -> Result<f64, CliError> {
        let pools = Api::<NodePool>::all(self.client.clone())
            .list(&ListParams::default())
            .await
            .map_err(failed)?;
        let mut cost = 0.0;
        let rules = self.cloud.provider.extend_label_rules(labels::LabelRules::default());
        for pool in &pools {
            let types = self
                .cloud
                .provider
                .instance_types(pool)
                .await
                .map_err(|error| CliError::failed(error.to_string()))?;
            for claim in claims
                .iter()
                .filter(|claim| claim.node_pool() == Some(pool.name_any().as_str()))
            {
                let name = claim.labels().get(labels::INSTANCE_TYPE);
                let listed = types.iter().find(|listed| Some(&listed.name) == name);
                cost += listed
                    .and_then(|listed| karpenter_engine::disruption::price::of_node(&rules, listed, claim.labels()))
                    .unwrap_or(0.0);
            }
        }
        Ok(cost)
    }

    /// Waits until the scene satisfies `holds`, for at most `limit` of the cluster's time, or a minute if that is longer: on a
    /// busy machine the cluster's clock runs on while nothing gets done.
    pub(crate) async fn until(&self, limit: Duration, holds: impl Fn(&Scene) -> bool) -> Result<Scene, Scene> {
        let deadline = self.clock.now() + limit;
        let soonest = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let scene = self.scene().await.unwrap_or_default();
            if holds(&scene) {
                return Ok(scene);
            }
            let too_late = self.clock.now() >= deadline && tokio::time::Instant::now() >= soonest;
            if too_late || self.operator.is_finished() {
                return Err(scene);
            }
            // Watched rather than measured: a look every twentieth of a second is plenty for a reader.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the controllers, then everything else.
    pub(crate) async fn stop(self) -> Result<(), CliError> {
        self.stop.cancel();
        match self.operator.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(CliError::failed(error.to_string())),
            Err(error) => Err(CliError::failed(format!("the controllers ended badly: {error}"))),
        }
    }
}

/// The controllers log into a file: the story is what people read.
fn log_to(file: &Path) -> Result<(), CliError> {
    let output = LogOutput::open(&[file.to_string_lossy().into_owned()])
        .map_err(|error| CliError::failed(format!("cannot log to {}: {error}", file.display())))?;
    let layer = LogLayer::new(Format::Console, LogLevel::Info, None, Arc::new(output));
    // A second subscriber can only exist in tests, where losing the log is no loss.
    let _ = tracing::subscriber::set_global_default(layer.into_subscriber());
    Ok(())
}

fn failed(error: kube::Error) -> CliError {
    CliError::failed(error.to_string())
}
