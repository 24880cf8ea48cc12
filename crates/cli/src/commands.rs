//! The commands of the binary; each is a module with its arguments and its `run`.

mod crds;
mod simulate;
mod validate;

use clap::Subcommand;

use crate::error::CliError;
use crate::terminal::Terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the CustomResourceDefinitions that a cluster needs.
    Crds(crds::Crds),
    /// Work out offline which nodes would be launched, where pods would land, and what it would cost.
    Simulate(simulate::Simulate),
    /// Check manifests against Karpenter's CRDs and its runtime rules, without a cluster.
    Validate(validate::Validate),
}

impl Command {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        match self {
            Self::Crds(crds) => crds.run(),
            Self::Simulate(simulate) => simulate.run(terminal),
            Self::Validate(validate) => validate.run(terminal),
        }
    }
}
