//! Which cluster of which project is meant, where its API is, and with which credentials.

use std::sync::Arc;

use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::credentials::Credentials;
use karpenter_cloud::http::Redactor;
use karpenter_core::clock::Clock;
use karpenter_ovhcloud::OvhProvider;
use karpenter_ovhcloud::client::auth;
use karpenter_ovhcloud::client::{ApiEndpoint, ApiError, AuthMethod, ClientSettings, KubeApi, OvhClient};
use karpenter_ovhcloud::metrics::Metrics;
use kube::{Api, Client};

use crate::error::CliError;

#[derive(Debug, Args)]
pub(super) struct Place {
    /// ovh-eu, ovh-ca, ovh-us, or a base URL [default: the Secret's, else OVH_ENDPOINT's, else ovh-eu].
    // Not clap's to read from the environment: a flag goes before the Secret, the environment after it.
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: Option<String>,
    /// The Public Cloud project.
    #[arg(long, value_name = "ID", env = "OVH_SERVICE_NAME")]
    pub(super) service_name: String,
    /// The cluster.
    #[arg(long, value_name = "ID", env = "OVH_KUBE_ID")]
    pub(super) kube_id: String,
}

const DEFAULT_ENDPOINT: &str = "ovh-eu";

impl Place {
    pub(super) fn endpoint(&self, of_secret: Option<&str>) -> Result<ApiEndpoint, CliError> {
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

    /// The cluster's API with the Secret's credentials, or else the environment's, of which the application key may be another.
    pub(super) async fn connect(
        &self,
        secret: Option<&str>,
        application_key: Option<&str>,
    ) -> Result<KubeApi, CliError> {
        let (credentials, of_secret) = match secret {
            Some(secret) => stored(secret).await?,
            None => {
                let lookup = |name: &str| match name {
                    "OVH_APPLICATION_KEY" => application_key.map(str::to_owned).or_else(|| variable(name)),
                    _ => variable(name),
                };
                (OvhProvider::environment(lookup), None)
            }
        };
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
        Ok(KubeApi::new(
            Arc::new(client),
            self.service_name.clone(),
            self.kube_id.clone(),
        ))
    }
}

/// The credentials of a Secret, and the endpoint that they are for if it says so.
async fn stored(place: &str) -> Result<(Credentials, Option<String>), CliError> {
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

pub(super) fn variable(name: &str) -> Option<String> {
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
pub(super) fn refused(error: ApiError) -> CliError {
    if error.is_unanswered() {
        CliError::unreachable(error.to_string())
    } else if error.is_unsendable() {
        CliError::usage(error.to_string())
    } else {
        CliError::failed(error.to_string())
    }
}
