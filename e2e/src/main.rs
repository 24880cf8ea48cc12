//! Runs karpenter-rs on a real control plane: `karpenter-e2e [FILTER]`.

// A test runner talks to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod audit;
mod controlplane;
mod helm;
mod installation;
mod ports;
mod runner;
mod suites;
mod world;

use std::path::PathBuf;

use clap::Parser;

/// Runs the e2e tier: starts a real control plane for each suite, runs its cases, prints `N passed, N failed`.
#[derive(Debug, Parser)]
#[command(after_help = "Example: karpenter-e2e crds")]
struct Arguments {
    /// Run only cases whose `suite/case` name contains this text
    filter: Option<String>,
    /// Print the names of the cases and stop
    #[arg(long)]
    list: bool,
    /// Where logs of all processes are kept
    #[arg(long, default_value = "e2e/logs")]
    logs: PathBuf,
    /// The karpenter binary under test
    #[arg(long, default_value = "target/release/karpenter")]
    karpenter: PathBuf,
    /// Upstream's KWOK controller (hack/build-upstream makes one): the scale suite measures it too, under the same loads
    #[arg(long)]
    upstream: Option<PathBuf>,
    /// How many suites run at a time, each on a control plane of its own
    #[arg(long, default_value_t = 12)]
    jobs: usize,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    // Two crypto providers could be linked in; saying which one is used keeps the choice ours.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let suites = suites::all();
    if arguments.list {
        runner::list(&suites, arguments.filter.as_deref());
        return std::process::ExitCode::SUCCESS;
    }
    let settings = runner::Settings {
        filter: arguments.filter,
        logs: arguments.logs,
        karpenter: arguments.karpenter,
        upstream: arguments.upstream,
        jobs: arguments.jobs,
    };
    let run = runner::run(suites, settings);
    let outcome = tokio::select! {
        outcome = run => outcome,
        // Dropping the run drops its processes, which ends them.
        () = interrupted() => {
            eprintln!("interrupted");
            return std::process::ExitCode::from(130);
        }
    };
    match outcome {
        Ok(runner::Outcome::Passed) => std::process::ExitCode::SUCCESS,
        Ok(runner::Outcome::Failed) => std::process::ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}

/// Ctrl-C, or a CI runner that has had enough.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
