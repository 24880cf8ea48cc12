//! `karpenter ovhcloud credentials`: a key with the rights that are needed, and no more.

use std::io::{self, Write};

use clap::Args;
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::client::new_key;
use karpenter_ovhcloud::rights;

use super::connection::{Place, refused, variable};
use crate::doctor::Report;
use crate::error::CliError;
use crate::terminal::Terminal;

/// Ask OVHcloud for a consumer key, and print where to agree to its rules and how to store it. Nothing is stored.
///
/// With --check it looks at credentials instead: whether they are accepted, which rights they lack, and when they end. Exits with 1 if
/// something is refused or lacking, with 2 if an argument can't be used or the Secret can't be read, with 3 if OVHcloud or the cluster
/// can't be reached.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  karpenter ovhcloud credentials --service-name <project> --kube-id <cluster> --application-key <key>\n  \
                        karpenter ovhcloud credentials --service-name <project> --kube-id <cluster> --check --secret karpenter/ovh-credentials"
)]
pub(super) struct KeyRequest {
    #[command(flatten)]
    place: Place,
    /// The application that asks, or that the checked key is of; make one on the endpoint's createApp page
    /// [default: OVH_APPLICATION_KEY's].
    #[arg(long, value_name = "KEY", conflicts_with = "secret")]
    application_key: Option<String>,
    /// Address or network that the key may be used from; repeatable [default: any].
    #[arg(long = "allowed-ip", value_name = "CIDR")]
    allowed_ips: Vec<String>,
    /// Ask for the rights that are useful but not needed as well.
    #[arg(long)]
    optional: bool,
    /// Check credentials instead of asking for a key.
    #[arg(long, conflicts_with_all = ["optional", "allowed_ips"])]
    check: bool,
    /// With --check: the Secret that has them, as NAMESPACE/NAME [default: the environment's OVH_… variables].
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "check")]
    secret: Option<String>,
}

impl KeyRequest {
    pub(super) async fn run(&self, terminal: &Terminal) -> Result<(), CliError> {
        if self.check {
            self.check(terminal).await
        } else {
            self.ask().await
        }
    }

    async fn ask(&self) -> Result<(), CliError> {
        let endpoint = self.place.endpoint(None)?;
        let application_key = self.application_key.clone();
        let Some(application_key) = &application_key.or_else(|| variable("OVH_APPLICATION_KEY")) else {
            return Err(CliError::usage("--application-key is needed to ask for a key"));
        };
        let mut rules = rights::minimum(&self.place.service_name, &self.place.kube_id);
        if self.optional {
            rules.extend(rights::optional(&self.place.service_name, &self.place.kube_id));
        }
        let pending = new_key::request_key(Clock::system(), &endpoint, application_key, &rules, &self.allowed_ips)
            .await
            .map_err(refused)?;
        let mut output = io::stdout().lock();
        writeln!(output, "Asked for a key with these rules:")?;
        for rule in &rules {
            writeln!(output, "  {:<6} {}", rule.method, rule.path)?;
        }
        writeln!(
            output,
            "\nOpen this address, choose the validity (it proposes one day: choose \"Unlimited\", or the day on which you will\n\
             rotate the key), and agree:\n  {}\n\n\
             Then store it; the application's secret is the one that was shown with its key:\n  \
             kubectl create secret generic ovh-credentials --namespace karpenter \\\n    \
             --from-literal=applicationKey={application_key} --from-literal=applicationSecret=\"$OVH_APPLICATION_SECRET\" \\\n    \
             --from-literal=consumerKey={}",
            pending.validation_url,
            pending.consumer_key(),
        )?;
        Ok(output.flush()?)
    }

    async fn check(&self, terminal: &Terminal) -> Result<(), CliError> {
        let (secret, application_key) = (self.secret.as_deref(), self.application_key.as_deref());
        let api = self.place.connect(secret, application_key).await?;
        let checked = rights::check(&api).await;
        let mut report = Report::default();
        for finding in checked.findings {
            report.add(finding);
        }
        report.write_text(terminal.style())?;
        match checked.unanswered {
            // Whether it can be reached at all is another answer than what it says.
            Some(error) => Err(refused(error)),
            None => report.outcome(),
        }
    }
}
