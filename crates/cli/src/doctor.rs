//! The examination behind `karpenter doctor`: what is looked at, in which order.

mod cloud;
mod cluster;
mod installation;
mod orphans;
mod pools;
mod report;
mod rights;

use karpenter_cloud::Diagnosis;
use karpenter_core::clock::Clock;
use kube::{Client, Config};

use crate::error::CliError;
use crate::providers::{Provider, ProviderFlags, Purpose};

pub(crate) use installation::Installation;
pub(crate) use orphans::{Orphans, look as look_for_orphans};
pub(crate) use report::Report;

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) provider: Option<Provider>,
    pub(crate) provider_flags: ProviderFlags,
    pub(crate) namespace: Option<String>,
    pub(crate) user: Option<String>,
}

/// The cluster, if it answers; why not is a finding.
async fn reach(report: &mut Report) -> Option<(Config, Client)> {
    let reached = async {
        let (config, client) = connect().await.map_err(|error| error.to_string())?;
        let version = cluster::version(&client, report).await;
        version.map_err(|error| error.to_string())?;
        Ok::<_, String>((config, client))
    };
    match reached.await {
        Ok(reached) => Some(reached),
        Err(error) => {
            report.unreachable(&error);
            None
        }
    }
}

/// Looks at everything. What can't be looked at is a finding, never an error.
pub(crate) async fn examine(request: &Request) -> Report {
    let mut report = Report::default();
    let Some((config, client)) = reach(&mut report).await else {
        return report;
    };
    cluster::clock(&client, &mut report).await;
    let installation = Installation::find(&client, request.namespace.as_deref()).await;
    installation.report(&client, &mut report).await;
    let pools = pools::list(&client).await;
    let provider = request
        .provider
        .or(installation.provider)
        .or_else(|| pools.as_ref().ok().and_then(|pools| pools::provider(pools)));
    cluster::crds(&client, provider, &mut report).await;
    rights::check(&config, request.user.as_deref(), &installation, provider, &mut report).await;
    pools::report(&client, provider, &pools, &mut report).await;
    let Some(provider) = provider else {
        report.add(Diagnosis::warn(
            "cloud",
            "no provider is known, so no cloud was looked at",
            "say which with --provider",
        ));
        return report;
    };
    match provider
        .start(client.clone(), Clock::system(), &request.provider_flags, Purpose::Ask)
        .await
    {
        Ok(cloud) => cloud::report(&*cloud, &client, &pools.unwrap_or_default(), &mut report).await,
        Err(error) => report.add(Diagnosis::fail(
            "cloud",
            format!("the provider does not start: {error}"),
            "set the variables that the controller has; docs/reference/settings.md lists them",
        )),
    }
    report
}

pub(crate) async fn connect() -> Result<(Config, Client), CliError> {
    let config = Config::infer()
        .await
        .map_err(|error| CliError::unreachable(error.to_string()))?;
    // kube's own client, which tries again when the API server is busy: nobody else does for a command.
    let client = Client::try_from(config.clone()).map_err(|error| CliError::unreachable(error.to_string()))?;
    Ok((config, client))
}
