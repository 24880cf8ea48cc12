//! `karpenter ovhcloud`: makes and checks the API key that the OVHcloud provider works with.

use std::io::{self, Write};
use std::sync::Arc;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::credentials::Credentials;
use karpenter_cloud::http::Redactor;
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::OvhProvider;
use karpenter_ovhcloud::client::auth;
use karpenter_ovhcloud::client::new_key;
use karpenter_ovhcloud::client::{ApiEndpoint, ApiError, AuthMethod, ClientSettings, KubeApi, OvhClient};
use karpenter_ovhcloud::metrics::Metrics;
use karpenter_ovhcloud::rights;
use kube::{Api, Client};

use crate::doctor::Report;
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
    Credentials(Box<KeyRequest>),
}

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
struct KeyRequest {
    /// ovh-eu, ovh-ca, ovh-us, or a base URL [default: the Secret's, else OVH_ENDPOINT's, else ovh-eu].
    // Not clap's to read from the environment: a flag goes before the Secret, the environment after it.
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: Option<String>,
    /// The Public Cloud project.
    #[arg(long, value_name = "ID", env = "OVH_SERVICE_NAME")]
    service_name: String,
    /// The cluster.
    #[arg(long, value_name = "ID", env = "OVH_KUBE_ID")]
    kube_id: String,
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

const DEFAULT_ENDPOINT: &str = "ovh-eu";

impl Ovhcloud {
    pub(crate) fn run(self, terminal: &Terminal) -> Result<(), CliError> {
        let OvhCommand::Credentials(request) = self.command;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            if request.check {
                request.check(terminal).await
            } else {
                request.ask().await
            }
        })
    }
}

impl KeyRequest {
    fn endpoint(&self, of_secret: Option<&str>) -> Result<ApiEndpoint, CliError> {
        let of_environment = variable("OVH_ENDPOINT");
        let named = [
            ("--endpoint", self.endpoint.as_deref()),
            ("the Secret's endpoint", of_secret),
            ("OVH_ENDPOINT", of_environment.as_deref()),
        ];
        let named = named.into_iter().find_map(|(place, value)| Some((place, value?)));
        let (place, endpoint) = named.unwrap_or(("--endpoint", DEFAULT_ENDPOINT));
        ApiEndpoint::parse(endpoint, variable("OVH_OAUTH2_TOKEN_URL").as_deref())
            .map_err(|error| CliError::usage(format!("{place}: {error}")))
    }

    async fn ask(&self) -> Result<(), CliError> {
        let endpoint = self.endpoint(None)?;
        let Some(application_key) = &self.application_key.clone().or_else(|| variable("OVH_APPLICATION_KEY")) else {
            return Err(CliError::usage("--application-key is needed to ask for a key"));
        };
        let mut rules = rights::minimum(&self.service_name, &self.kube_id);
        if self.optional {
            rules.extend(rights::optional(&self.service_name, &self.kube_id));
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
        let (credentials, of_secret) = self.credentials().await?;
        let method = AuthMethod::of(&credentials).map_err(|error| CliError::failed(error.to_string()))?;
        let redactor = Redactor::default();
        let secrets = auth::ENVIRONMENT.iter().filter_map(|(key, _)| credentials.get(key));
        secrets.for_each(|secret| redactor.add(secret));
        let client = OvhClient::new(
            Clock::system(),
            self.endpoint(of_secret.as_deref())?,
            method,
            &ClientSettings::default(),
            redactor,
            Metrics::default(),
        )
        .map_err(|error| CliError::usage(error.to_string()))?;
        let api = KubeApi::new(Arc::new(client), self.service_name.clone(), self.kube_id.clone());
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

    /// The credentials to check, and the endpoint that they are for if they say so.
    async fn credentials(&self) -> Result<(Credentials, Option<String>), CliError> {
        let Some(place) = &self.secret else {
            let lookup = |name: &str| match name {
                "OVH_APPLICATION_KEY" => self.application_key.clone().or_else(|| variable(name)),
                _ => variable(name),
            };
            return Ok((OvhProvider::environment(lookup), None));
        };
        let Some((namespace, name)) = place.split_once('/') else {
            return Err(CliError::usage(format!("--secret {place:?} must be NAMESPACE/NAME")));
        };
        let client = Client::try_default()
            .await
            .map_err(|error| CliError::unreachable(format!("the cluster can't be reached: {error}")))?;
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let secret = secrets.get(name).await.map_err(|error| unreadable(place, error))?;
        let data = secret.data.into_iter().flatten();
        let values: Vec<(String, String)> = data
            .filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)))
            .collect();
        let endpoint = values.iter().find(|(key, _)| key == auth::ENDPOINT);
        let endpoint = endpoint.map(|(_, value)| value.trim().to_owned());
        Ok((Credentials::new(values), endpoint.filter(|value| !value.is_empty())))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A cluster that answers is reached: that the Secret is not there, or not for us, is about what was named.
fn unreadable(secret: &str, error: kube::Error) -> CliError {
    match &error {
        kube::Error::Api(status) if status.code == 404 => {
            CliError::usage(format!("--secret: there is no Secret {secret} in this cluster"))
        }
        kube::Error::Api(status) if status.code == 403 => {
            CliError::usage(format!("--secret: Secret {secret} may not be read: {}", status.message))
        }
        _ => CliError::unreachable(format!("Secret {secret} can't be read: {error}")),
    }
}

/// No answer at all is not the same as a refusal, and neither is a question that could not be asked.
fn refused(error: ApiError) -> CliError {
    if error.is_unanswered() {
        CliError::unreachable(error.to_string())
    } else if error.is_unsendable() {
        CliError::usage(error.to_string())
    } else {
        CliError::failed(error.to_string())
    }
}
