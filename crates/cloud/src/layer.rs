//! A provider around a provider: it changes some calls and leaves the others to the one inside.

use std::sync::Arc;

use async_trait::async_trait;
use karpenter_api::{NodeClaim, NodePool, labels::LabelRules};

use crate::{
    background::BackgroundTask,
    diagnosis::Diagnosis,
    error::CloudError,
    instance::{Adoption, Instance},
    node_class::NodeClassKind,
    provider::{
        AnnotationNames, CloudProvider, Deletion, DriftReason, Finding, InstanceTypes, LaunchHints, RebootOperation,
        ReservationLabels, VolumeRequirements,
    },
    registration::RegistrationHook,
    repair::RepairPolicy,
};

/// What a layer does about the calls that reach the cloud: nothing, unless it says otherwise. Every layer is a [`CloudProvider`].
#[async_trait]
pub trait Layer: Send + Sync + 'static {
    /// The provider inside.
    fn inner(&self) -> &dyn CloudProvider;

    async fn on_create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        self.inner().create(claim).await
    }

    async fn on_abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.inner().abandon(claim).await
    }

    async fn on_delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.inner().delete(claim).await
    }

    async fn on_get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        self.inner().get(provider_id).await
    }

    async fn on_list(&self) -> Result<Vec<Instance>, CloudError> {
        self.inner().list().await
    }

    async fn on_instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.inner().instance_types(pool).await
    }

    async fn on_is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.inner().is_drifted(claim).await
    }

    async fn on_reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        self.inner().reboot(claim, operation).await
    }
}

#[async_trait]
impl<L: Layer> CloudProvider for L {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn supported_node_classes(&self) -> Vec<NodeClassKind> {
        self.inner().supported_node_classes()
    }

    fn extend_label_rules(&self, rules: LabelRules) -> LabelRules {
        self.inner().extend_label_rules(rules)
    }

    fn reservation_labels(&self) -> Option<ReservationLabels> {
        self.inner().reservation_labels()
    }

    fn volume_requirements(&self) -> VolumeRequirements {
        self.inner().volume_requirements()
    }

    fn annotation_names(&self) -> AnnotationNames {
        self.inner().annotation_names()
    }

    fn repair_policies(&self) -> Vec<RepairPolicy> {
        self.inner().repair_policies()
    }

    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        self.inner().registration_hooks()
    }

    fn background_tasks(&self) -> Vec<BackgroundTask> {
        self.inner().background_tasks()
    }

    fn register_metrics(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        self.inner().register_metrics(registry)
    }

    async fn create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        self.on_create(claim).await
    }

    async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.on_abandon(claim).await
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        self.on_delete(claim).await
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        self.on_get(provider_id).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        self.on_list().await
    }

    async fn instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.on_instance_types(pool).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.on_is_drifted(claim).await
    }

    async fn reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        self.on_reboot(claim, operation).await
    }

    async fn launch_hints(&self, claim: &NodeClaim) -> LaunchHints {
        self.inner().launch_hints(claim).await
    }

    async fn validate_node_pool(&self, pool: &NodePool) -> Result<Vec<Finding>, CloudError> {
        self.inner().validate_node_pool(pool).await
    }

    async fn adoptable(&self) -> Result<Vec<Adoption>, CloudError> {
        self.inner().adoptable().await
    }

    async fn readiness(&self) -> Result<(), String> {
        self.inner().readiness().await
    }

    async fn diagnose(&self) -> Vec<Diagnosis> {
        self.inner().diagnose().await
    }
}
