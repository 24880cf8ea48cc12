//! The commands of the binary; each is a module with its arguments and its `run`.

mod crds;
mod validate;

use clap::Subcommand;

use crate::error::CliError;
use crate::terminal::Terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the CustomResourceDefinitions that a cluster needs.
    Crds(crds::Crds),
    /// Check manifests against Karpenter's CRDs and its runtime rules, without a cluster.
    Validate(validate::Validate),
}

impl Command {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        match self {
            Self::Crds(crds) => crds.run(),
            Self::Validate(validate) => validate.run(terminal),
        }
    }
}
