//! `karpenter controller`: runs the autoscaler in a cluster.

use std::sync::Arc;

use clap::Args;
use karpenter_cloud::CloudProvider;
use karpenter_core::clock::Clock;
use karpenter_core::logging::{Format, LogLayer, Output};
use karpenter_core::operator::{Build, Operator, Setup};
use karpenter_core::options::{OptionFlags, Options};
use kube::{Client, Config};
use tokio_util::sync::CancellationToken;

use crate::error::CliError;
use crate::providers::{Provider, ProviderFlags, Purpose};

/// Controllers wait far more than they work: a second thread would mostly wake the first, for a fifth more CPU time.
/// What computes for long moves aside by itself, and the Lease is renewed meanwhile.
const RUNTIME_THREADS: usize = 1;

/// Requests of the provider to the API server that may be under way at once.
const MOST_PROVIDER_REQUESTS: usize = 8;

/// Run the autoscaler against the cluster of the current kubeconfig, or of the pod that it runs in.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  karpenter controller --provider kwok --leader-election-namespace kube-system")]
pub(crate) struct Controller {
    /// Which cloud makes the machines.
    #[arg(long, value_name = "PROVIDER", env = "KARPENTER_PROVIDER")]
    provider: Provider,
    /// Log lines for people instead of JSON.
    #[arg(long)]
    console: bool,
    #[command(flatten)]
    flags: OptionFlags,
    #[command(flatten)]
    provider_flags: ProviderFlags,
}

impl Controller {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let options = Options::resolve(self.flags, |name| std::env::var(name).ok())
            .map_err(|error| CliError::usage(error.to_string()))?;
        refuse_what_is_missing(&options)?;
        let output = Output::open(&options.log_output_paths)
            .map_err(|error| CliError::usage(format!("--log-output-paths: {error}")))?;
        let format = if self.console { Format::Console } else { Format::Json };
        let build = build();
        let commit = (!build.commit.is_empty()).then(|| build.commit.clone());
        let layer = LogLayer::new(format, options.log_level, commit, Arc::new(output));
        tracing::subscriber::set_global_default(layer.into_subscriber())
            .expect("nothing else sets a subscriber in this process");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()?;
        // On the worker's thread as everything else is: memory that one thread frees does not serve another.
        let running = runtime.spawn(async move {
            let client = connect().await?;
            let clock = Clock::system();
            // KWOK makes a Node for every NodeClaim of a burst at once.
            let limited = karpenter_core::client::limited(client.clone(), MOST_PROVIDER_REQUESTS);
            let cloud = self
                .provider
                .start(limited, clock.clone(), &self.provider_flags, Purpose::Run)
                .await?;
            run(client, connect().await?, clock, options, cloud, build).await
        });
        runtime
            .block_on(running)
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

/// What upstream has and this version has not: better not to start than to leave a cluster without what was asked for.
fn refuse_what_is_missing(options: &Options) -> Result<(), CliError> {
    if options.ignore_dra_requests {
        return Ok(());
    }
    Err(CliError::usage(
        "--ignore-dra-requests=false is not part of this version yet; leave it at its default",
    ))
}

async fn run(
    client: Client,
    election_client: Client,
    clock: Clock,
    options: Options,
    cloud: Arc<dyn CloudProvider>,
    build: Build,
) -> Result<(), CliError> {
    let operator = Operator::new(Setup {
        client,
        election_client,
        clock,
        options,
        cloud,
        build,
    })
    .map_err(|error| CliError::usage(error.to_string()))?;
    let controllers = karpenter_core::controllers::all(operator.context());
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    operator
        .with_controllers(controllers)
        .run(stop)
        .await
        .map_err(|error| CliError::failed(error.to_string()))
}

/// What this binary was built from.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        toolchain: concat!("rust ", env!("CARGO_PKG_RUST_VERSION")).to_owned(),
        commit: env!("KARPENTER_COMMIT").to_owned(),
    }
}

async fn connect() -> Result<Client, CliError> {
    let config = Config::infer()
        .await
        .map_err(|error| CliError::unreachable(format!("no cluster to talk to: {error}")))?;
    karpenter_core::client::connect(config).map_err(|error| CliError::unreachable(error.to_string()))
}

/// Kubernetes ends a pod with SIGTERM, people end a process with Ctrl-C.
pub(crate) async fn stop_on_signal(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(flags: OptionFlags) -> Option<String> {
        let options = Options::resolve(flags, |_| None).unwrap();
        refuse_what_is_missing(&options).err().map(|error| error.to_string())
    }

    #[test]
    fn a_feature_that_is_missing_is_refused_by_name() {
        let every_gate = "SpotToSpotConsolidation=true,StaticCapacity=true,ReservedCapacity=true,NodeRepair=true,\
             TerminateFirstDrift=true,TerminateFirstRepair=true,PodDeletionCostManagement=true,NodeOverlay=true,CapacityBuffer=true";
        let gates = OptionFlags {
            feature_gates: Some(every_gate.to_owned()),
            ..OptionFlags::default()
        };
        assert_eq!(refusal(gates), None);
        let dynamic_resources = OptionFlags {
            ignore_dra_requests: Some(false),
            ..OptionFlags::default()
        };
        assert!(
            refusal(dynamic_resources)
                .unwrap()
                .contains("--ignore-dra-requests=false")
        );
    }
}
