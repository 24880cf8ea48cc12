//! `karpenter crds`: prints the CRD documents that the chart ships.

use std::io::{self, Write};

use clap::Args;

use crate::error::CliError;
use crate::providers::Provider;

/// Print the CustomResourceDefinitions that a cluster needs.
///
/// The output is byte-equal to the files of charts/karpenter-crd, one after the other.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  karpenter crds | kubectl apply --server-side -f -")]
pub(crate) struct Crds {
    /// Print the NodeClass of this provider only; without it, of all providers.
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Provider>,
}

impl Crds {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let mut output = io::stdout().lock();
        for crd in Provider::crds(self.provider) {
            output.write_all(crd.to_yaml().as_bytes())?;
        }
        Ok(output.flush()?)
    }
}
