//! `karpenter cost`: what nodes cost, and what could be saved.

use std::io;

use clap::Args;
use jiff::Timestamp;

use super::doctor::Format;
use crate::cost;
use crate::error::CliError;
use crate::terminal::Terminal;

/// Tell what nodes at BizFly Cloud cost, by NodePool: per hour, since the 1st of the month (UTC), and what could be saved.
///
/// Reads NodeClaims and what the controller stored last, with the current kubeconfig; nothing is changed. Prices are those at launch. Exits
/// with 3 if the cluster can't be reached, with 1 if something in it can't be read.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter cost\n  karpenter cost -o json | jq '.recommendations[] | [.perMonth, .sentence]'"
)]
pub(crate) struct Cost {
    /// Namespace of the controller [default: where its Deployment is found].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// How the answer is written.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

impl Cost {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let bill = runtime.block_on(cost::read(self.namespace.as_deref(), Timestamp::now()))?;
        let mut output = io::stdout().lock();
        match self.output {
            Format::Text => cost::write_text(&bill, terminal.style(), &mut output)?,
            Format::Json => cost::write_json(&bill, &mut output)?,
        }
        Ok(())
    }
}
