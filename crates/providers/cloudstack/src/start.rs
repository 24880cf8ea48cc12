//! Starts the provider of a process: settings, keys, client, and a first word with CloudStack.

use karpenter_cloud::{
    CloudError,
    cache::CacheMetrics,
    clock::Clock,
    http::{HttpSettingsError, Redactor},
};
use thiserror::Error;

use crate::{
    client::{Client, metrics::ApiMetrics},
    credentials,
    provider::CloudStackProvider,
    settings::{ProviderSettings, SettingsError},
};

/// Why the provider cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the settings of the CloudStack provider are not complete: {0}")]
    Settings(#[from] SettingsError),
    #[error("the connection to CloudStack cannot be set up: {0}")]
    Http(#[from] HttpSettingsError),
    #[error("CloudStack cannot be used: {0}")]
    Cloud(#[from] CloudError),
}

impl CloudStackProvider {
    /// With settings from the environment.
    ///
    /// # Errors
    /// When something is missing or wrong, or CloudStack does not answer for two minutes.
    pub async fn from_env(kube: kube::Client, clock: Clock) -> Result<Self, StartError> {
        let provider = Self::start(kube, clock, ProviderSettings::from_env()?).await?;
        provider.verify().await?;
        Ok(provider)
    }

    /// With these settings; CloudStack is not asked yet.
    ///
    /// # Errors
    /// When keys are missing or a setting cannot be used.
    pub async fn start(kube: kube::Client, clock: Clock, settings: ProviderSettings) -> Result<Self, StartError> {
        let keys = credentials::read(&settings, &kube).await?;
        let redactor = Redactor::default();
        let client = Client::new(clock.clone(), settings.http.clone(), keys, redactor, ApiMetrics::new())?;
        let caches = CacheMetrics::unregistered("cloudstack").expect("the name is valid");
        Ok(Self::new(kube, clock, settings, client, &caches))
    }
}
