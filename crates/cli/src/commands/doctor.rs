//! `karpenter doctor`: checks an installation from the outside.

use clap::{Args, ValueEnum};

use crate::doctor::{self, Orphans};
use crate::error::CliError;
use crate::providers::{Provider, ProviderFlags};
use crate::terminal::Terminal;

/// Check an installation and its cloud from the outside: one line a check, with what to do.
///
/// Nothing is changed but by --delete. Uses the current kubeconfig, and for the cloud the environment variables that the controller uses. Exits with 1
/// if a check fails, with 3 if the cluster can't be reached.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter doctor\n  karpenter doctor --provider kwok -o json\n  karpenter doctor --provider bizflycloud \
                        --orphan-volumes\n  karpenter doctor --provider bizflycloud --orphan-volumes --delete=7d0c8a52-1f6e-4b7e-9c55-0a3f5d2b9e41"
)]
pub(crate) struct Doctor {
    /// The cloud [default: that of the installed controller, else that of the NodePools].
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Provider>,
    /// Namespace of the controller [default: where its Deployment is found].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Whose rights to check, such as system:serviceaccount:karpenter:karpenter [default: the controller's ServiceAccount, else yours].
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// BizFly Cloud: only list root disks that no server has, such as the earlier provider left behind.
    #[arg(long)]
    orphan_volumes: bool,
    /// Delete the root disks that are listed, or only those with these IDs. They may be somebody's: list them first.
    #[arg(
        long,
        value_name = "ID,...",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        requires = "orphan_volumes"
    )]
    delete: Option<Vec<String>>,
    /// How the findings are written.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
    #[command(flatten)]
    provider_flags: ProviderFlags,
}

/// How findings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Doctor {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = match self.orphans()? {
            Some(orphans) => runtime.block_on(doctor::look_for_orphans(orphans, &self.provider_flags)),
            None => runtime.block_on(doctor::examine(&doctor::Request {
                provider: self.provider,
                provider_flags: self.provider_flags,
                namespace: self.namespace,
                user: self.user,
            })),
        };
        match self.output {
            Format::Text => report.write_text(terminal.style())?,
            Format::Json => report.write_json()?,
        }
        report.outcome()
    }

    /// What is to be done about orphan volumes, if they are what is asked about.
    fn orphans(&self) -> Result<Option<Orphans>, CliError> {
        if !self.orphan_volumes {
            return Ok(None);
        }
        if self.provider != Some(Provider::BizflyCloud) {
            return Err(CliError::usage("--orphan-volumes needs --provider bizflycloud"));
        }
        Ok(Some(match &self.delete {
            None => Orphans::List,
            Some(ids) if ids.is_empty() => Orphans::DeleteAll,
            Some(ids) => Orphans::Delete(ids.clone()),
        }))
    }
}
