//! Warns whoever writes a CloudStackNodeClass of what CloudStack does not have (cloudstack.md §5.4).
//!
//! The API server has checked the rules of the CRD before it asks here, so there is nothing to refuse: neither an outage of
//! CloudStack nor one of this process keeps anybody from writing a class. The same sentences are on the class later.

use std::net::SocketAddr;

use async_trait::async_trait;
use karpenter_cloud::webhook::{Judgement, Reviewer};
pub use karpenter_cloud::webhook::{WebhookError, WebhookSettings};
use serde_json::Value;

use crate::{
    node_class::CloudStackNodeClass,
    provider::{CloudStackProvider, Shared},
};

impl CloudStackProvider {
    /// Serves the webhook where the settings ask for it, in this process whether it leads or not; answers where.
    ///
    /// # Errors
    /// When its port is taken or its certificate cannot be used.
    pub async fn serve_webhook(&self) -> Result<Option<SocketAddr>, WebhookError> {
        let (shared, settings) = (&self.shared, self.shared.settings.webhook.as_ref());
        shared.webhook.serve(shared, shared.clock.clone(), settings).await
    }
}

#[async_trait]
impl Reviewer for Shared {
    async fn review(&self, request: &Value) -> Judgement {
        let class: Option<CloudStackNodeClass> = serde_json::from_value(request["object"].clone()).ok();
        let warnings = match class {
            Some(class) => warnings(self, &class).await,
            None => Vec::new(),
        };
        Judgement {
            warnings,
            ..Judgement::default()
        }
    }
}

/// What stands in the way of a class; nothing is said while CloudStack cannot be asked.
async fn warnings(shared: &Shared, class: &CloudStackNodeClass) -> Vec<String> {
    let mut warnings = Vec::new();
    match shared.inventory.resolve(class).await {
        Ok(resolution) => warnings.extend(resolution.problems.into_values().map(|problem| problem.message)),
        Err(error) => tracing::debug!(%error, "nobody is warned of what CloudStack does not have"),
    }
    warnings.extend(class.device_advice().map(str::to_owned));
    let secrets = shared.secrets(class).await;
    warnings.extend(secrets.err().map(|problem| problem.message));
    warnings
}
