//! Starts and stops everything: endpoints, leader election, watches, controllers, in this order and back.

mod readiness;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use karpenter_cloud::repair::RepairPolicyError;
use karpenter_cloud::{CloudProvider, metrics::MeasuredProvider};
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{ClientMetrics, Guards};
use crate::clock::Clock;
use crate::context::Context;
use crate::disruption;
use crate::gate::{GatedProvider, WriteGate};
use crate::leader::{ElectionConfig, ElectionMetrics, Elector, Ended, identity};
use crate::metrics::{Metrics, register_build_info};
use crate::options::Options;
use crate::runner::{Runnable, current_controller};
use crate::server::{self, Profiling};

/// How long controllers may finish what they began after a stop was asked for.
const GRACE: Duration = Duration::from_secs(30);

/// What was built, for the user agent and the build info metric.
#[derive(Clone, Debug, Default)]
pub struct Build {
    /// Such as `0.1.0`.
    pub version: String,
    /// The compiler.
    pub toolchain: String,
    /// Seven characters of the revision; empty when unknown.
    pub commit: String,
}

/// What an operator is made of.
pub struct Setup {
    /// A plain client; the operator puts its guards around it.
    pub client: Client,
    /// A second one for leader election, which must not wait behind the first one's rate limit.
    pub election_client: Client,
    /// The time.
    pub clock: Clock,
    /// Options as resolved.
    pub options: Options,
    /// The cloud, undecorated.
    pub cloud: Arc<dyn CloudProvider>,
    /// What was built.
    pub build: Build,
}

/// Why the operator could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// A port is taken or not permitted.
    #[error("cannot listen on port {port} for {purpose}: {source}")]
    Listen {
        /// What the port is for.
        purpose: &'static str,
        /// Which one.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// Outside a cluster nobody says where the Lease belongs.
    #[error(
        "the namespace of the leader election Lease is unknown outside of a pod; \
         set --leader-election-namespace, or --disable-leader-election for a single replica"
    )]
    NoLeaseNamespace,
    /// Another replica took over, or the API server could not be reached for too long.
    #[error("leadership was lost; another replica takes over")]
    LeadershipLost,
    /// Node repair is on, and the provider does not say what is broken in a way that can be used.
    #[error("node repair cannot be used with this provider: {}", join(.0))]
    RepairPolicies(Vec<RepairPolicyError>),
    /// A loop that must not end did.
    #[error("{0} ended unexpectedly")]
    Ended(String),
}

/// A controller process, ready to run.
pub struct Operator {
    ctx: Context,
    gate: WriteGate,
    election: Option<Elector>,
    probe_client: Client,
    controllers: Vec<Runnable>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator")
            .field("election", &self.election)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("cloud", &self.cloud.name())
            .field("build", &self.build)
            .finish_non_exhaustive()
    }
}

impl Operator {
    /// Wires everything together; nothing runs yet.
    ///
    /// # Errors
    /// When leader election is on and nobody says in which namespace.
    pub fn new(setup: Setup) -> Result<Self, OperatorError> {
        let Setup {
            client,
            election_client,
            clock,
            options,
            cloud,
            build,
        } = setup;
        if !options.ignore_dra_requests {
            tracing::warn!(
                "pods with resource claims (DRA) are refused: --ignore-dra-requests=false is not supported yet"
            );
        }
        if disruption::repairs_nodes(&options) {
            disruption::Repairs::of(&*cloud).map_err(OperatorError::RepairPolicies)?;
        }
        let metrics = Metrics::new(clock.clone());
        register_build_info(&metrics.registry, &build.version, &build.toolchain, &build.commit);
        metrics.registry.register_process_metrics();
        let (gate, election) = if options.disable_leader_election {
            (WriteGate::always_open(clock.clone()), None)
        } else {
            let gate = WriteGate::shut(clock.clone());
            let config = ElectionConfig::new(
                lease_namespace(&options)?,
                options.leader_election_name.clone(),
                identity(),
            );
            let election_metrics = ElectionMetrics::register(&metrics.registry);
            let elector = Elector::new(election_client, clock.clone(), config, gate.clone(), election_metrics);
            (gate, Some(elector))
        };
        let guards = Guards::new(
            gate.clone(),
            Arc::new(ClientMetrics::register(&metrics.registry)),
            &build.version,
        )
        .with_rate_limit(options.kube_client_qps, options.kube_client_burst);
        cloud
            .register_metrics(metrics.registry.prometheus())
            .expect("the registry is new, so no provider's metrics are in it");
        let cloud: Arc<dyn CloudProvider> = Arc::new(GatedProvider::new(cloud, gate.clone()));
        let measured = MeasuredProvider::new(cloud, metrics.registry.prometheus(), current_controller)
            .expect("the registry is new, so nothing was measured before");
        let probe_client = client.clone();
        let ctx = Context::new(
            guards.around(client),
            clock,
            Arc::new(options),
            metrics,
            Arc::new(measured),
        );
        Ok(Self {
            ctx,
            gate,
            election,
            probe_client,
            controllers: Vec::new(),
        })
    }

    /// What controllers are built from.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// The gate that every write passes.
    pub fn gate(&self) -> &WriteGate {
        &self.gate
    }

    /// Adds controllers, to be started once this process leads.
    pub fn with_controllers(mut self, controllers: impl IntoIterator<Item = Runnable>) -> Self {
        self.controllers.extend(controllers);
        self
    }

    /// The endpoints of the metrics port, and of the probe port.
    pub fn routers(&self) -> (Router, Router) {
        let profiling = if self.ctx.options.enable_profiling {
            Profiling::On
        } else {
            Profiling::Off
        };
        let metrics = server::metrics_router(self.ctx.metrics.registry.clone(), profiling);
        let probes = readiness::checks(
            self.ctx.watches.clone(),
            self.probe_client.clone(),
            self.ctx.cloud.clone(),
        )
        .router();
        (metrics, probes)
    }

    /// Serves the endpoints and works until `stop` is cancelled; then ends gracefully.
    ///
    /// # Errors
    /// When a port cannot be listened on, when leadership is lost, or when a controller's loop ends by itself.
    pub async fn run(self, stop: CancellationToken) -> Result<(), OperatorError> {
        let endpoints_stop = CancellationToken::new();
        let _stop_endpoints = endpoints_stop.clone().drop_guard();
        let (metrics, probes) = self.routers();
        let options = self.ctx.options.clone();
        let metrics_listener = listen("metrics", options.metrics_port).await?;
        let probes_listener = listen("probes", options.health_probe_port).await?;
        let mut endpoints = JoinSet::new();
        endpoints.spawn(server::serve(metrics_listener, metrics, endpoints_stop.clone()));
        endpoints.spawn(server::serve(probes_listener, probes, endpoints_stop));
        self.work(stop).await
    }

    /// Works until `stop` is cancelled, without serving any endpoint. For the demo and tests.
    ///
    /// # Errors
    /// As [`Operator::run`].
    pub async fn work(mut self, stop: CancellationToken) -> Result<(), OperatorError> {
        let early_watches = match (&self.election, self.ctx.options.disable_controller_warmup) {
            (Some(_), false) => Some(self.ctx.watch()),
            (Some(_), true) | (None, _) => None,
        };
        let Some(elector) = self.election.take() else {
            return self.lead(early_watches, stop, std::future::pending()).await;
        };
        if !elector.acquire(&stop).await {
            return Ok(());
        }
        // Renewal goes on until the last controller has ended, not only until a stop is asked for.
        let keep_stop = CancellationToken::new();
        let outcome = self.lead(early_watches, stop, elector.keep(&keep_stop)).await;
        if !matches!(outcome, Err(OperatorError::LeadershipLost)) {
            elector.release().await;
        }
        outcome
    }

    /// Runs watches and controllers. `leadership` resolves when it is lost.
    async fn lead(
        self,
        early_watches: Option<JoinSet<()>>,
        stop: CancellationToken,
        leadership: impl Future<Output = Ended>,
    ) -> Result<(), OperatorError> {
        let Self {
            ctx, controllers, gate, ..
        } = self;
        let mut leadership = std::pin::pin!(leadership);
        let mut watches = early_watches.unwrap_or_else(|| ctx.watch());
        let events_stop = CancellationToken::new();
        let events = tokio::spawn({
            let (recorder, client, stop) = (ctx.events.clone(), ctx.client.clone(), events_stop.clone());
            async move { recorder.deliver(client, stop).await }
        });
        tokio::select! {
            () = ctx.synced() => {}
            () = stop.cancelled() => return Ok(()),
            _ = &mut leadership => return Err(OperatorError::LeadershipLost),
            Some(_) = watches.join_next() => return Err(OperatorError::Ended("a watch".to_owned())),
        }
        tracing::info!(
            controllers = controllers.len(),
            "cluster state is complete, starting controllers"
        );
        let controllers_stop = CancellationToken::new();
        let mut running = JoinSet::new();
        for controller in controllers {
            let (name, stop) = (controller.name(), controllers_stop.clone());
            running.spawn(async move {
                controller.run(stop).await;
                name
            });
        }
        // These may end by themselves; the set ends the others when it is dropped.
        let mut background = JoinSet::new();
        for task in ctx.cloud.background_tasks() {
            background.spawn(gate.last_word().over(task.run(controllers_stop.clone())));
        }
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            _ = &mut leadership => Err(OperatorError::LeadershipLost),
            Some(ended) = running.join_next() => Err(ended_early(ended)),
            Some(_) = watches.join_next() => Err(OperatorError::Ended("a watch".to_owned())),
        };
        controllers_stop.cancel();
        if outcome.is_ok() {
            tracing::info!("stopping");
            tokio::select! {
                () = async { while running.join_next().await.is_some() {} } => {}
                _ = &mut leadership => return Err(OperatorError::LeadershipLost),
                () = tokio::time::sleep(GRACE) => tracing::warn!("controllers did not end in time"),
            }
        }
        running.abort_all();
        events_stop.cancel();
        // The recorder writes what is queued and ends; a hanging API server must not keep the process.
        let _ = tokio::time::timeout(Duration::from_secs(5), events).await;
        outcome
    }
}

fn join(errors: &[RepairPolicyError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn ended_early(ended: Result<&'static str, tokio::task::JoinError>) -> OperatorError {
    match ended {
        Ok(name) => OperatorError::Ended(format!("controller {name}")),
        Err(error) => OperatorError::Ended(format!("a controller ({error})")),
    }
}

async fn listen(purpose: &'static str, port: u16) -> Result<TcpListener, OperatorError> {
    server::listen(port)
        .await
        .map_err(|source| OperatorError::Listen { purpose, port, source })
}

/// The option, or the namespace of the pod that we run in.
fn lease_namespace(options: &Options) -> Result<String, OperatorError> {
    options.own_namespace().ok_or(OperatorError::NoLeaseNamespace)
}
