//! `karpenter ovhcloud`: makes and checks the API key that the OVHcloud provider works with, and asks the service what nobody wrote down.

mod connection;
mod credentials;
mod probe;

use clap::{Args, Subcommand};

use crate::error::CliError;
use crate::terminal::Terminal;

/// Tools for the OVHcloud provider.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter ovhcloud credentials --service-name <project> --kube-id <cluster> --application-key <key>"
)]
pub(crate) struct Ovhcloud {
    #[command(subcommand)]
    command: OvhCommand,
}

#[derive(Debug, Subcommand)]
enum OvhCommand {
    /// Ask for an API key with exactly the rights that are needed, or check one.
    Credentials(Box<credentials::KeyRequest>),
    /// Ask a real cluster how it behaves where the documentation is silent.
    Probe(Box<probe::Probe>),
}

impl Ovhcloud {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                OvhCommand::Credentials(request) => request.run(terminal).await,
                OvhCommand::Probe(probe) => probe.run(terminal).await,
            }
        })
    }
}
