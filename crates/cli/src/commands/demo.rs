//! `karpenter demo`: everything embedded, and a story that a newcomer watches.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::demo;
use crate::error::CliError;
use crate::providers::Provider;
use crate::terminal::Terminal;

/// Start an embedded cluster with a simulated cloud and the autoscaler, and play a story on it.
///
/// Nothing outside this process is touched. The cluster is a test environment: its pods are records, not containers.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  karpenter demo --once")]
pub(crate) struct Demo {
    /// The simulated cloud.
    #[arg(long, value_name = "PROVIDER", default_value = "kwok")]
    provider: Provider,
    /// The story to play; `none` starts an empty cluster for you to play with.
    #[arg(long, value_name = "NAME", default_value = "tour")]
    story: Story,
    /// How much faster than real time the cluster lives.
    #[arg(long, value_name = "X", default_value_t = 20.0)]
    speed: f64,
    /// End after the story instead of waiting for Ctrl-C; exit code 1 when a step went wrong.
    #[arg(long)]
    once: bool,
    /// Where the cluster's API is served [default: a free port].
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Where the kubeconfig is written [default: a temporary file].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How the story is told.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Story {
    /// A workload comes, grows, shrinks and goes; nodes follow.
    Tour,
    /// No story.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

impl Demo {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        if !(self.speed.is_finite() && (0.1..=1000.0).contains(&self.speed)) {
            return Err(CliError::usage(format!(
                "--speed {} makes no sense; try a number from 0.1 to 1000",
                self.speed
            )));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(demo::run(
            demo::Settings {
                provider: self.provider,
                story: self.story,
                speed: self.speed,
                once: self.once,
                port: self.port,
                kubeconfig: self.kubeconfig,
                output: self.output,
            },
            terminal,
        ))
    }
}
