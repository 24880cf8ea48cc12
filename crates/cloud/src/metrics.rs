//! Measures every call of a provider: `karpenter_cloudprovider_duration_seconds` and `…_errors_total`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use karpenter_api::{NodeClaim, NodePool};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use crate::{
    error::CloudError,
    instance::Instance,
    layer::Layer,
    provider::{CloudProvider, Deletion, DriftReason, InstanceTypes, RebootOperation},
};

/// A provider whose calls are measured. Apply once, outermost.
#[derive(Debug)]
pub struct MeasuredProvider {
    inner: Arc<dyn CloudProvider>,
    /// Names the controller on whose behalf a call is made, "" if none.
    caller: fn() -> &'static str,
    duration: HistogramVec,
    errors: IntCounterVec,
}

/// Prometheus' default buckets, which upstream uses here.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

impl MeasuredProvider {
    /// # Errors
    /// When the metrics are registered already: a provider was measured twice.
    pub fn new(
        inner: Arc<dyn CloudProvider>,
        registry: &Registry,
        caller: fn() -> &'static str,
    ) -> Result<Self, prometheus::Error> {
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "karpenter_cloudprovider_duration_seconds",
                "How long calls of the cloud provider take, failed ones included.",
            )
            .buckets(BUCKETS.to_vec()),
            &["controller", "method", "provider"],
        )?;
        let errors = IntCounterVec::new(
            Opts::new(
                "karpenter_cloudprovider_errors_total",
                "Calls of the cloud provider that failed.",
            ),
            &["controller", "method", "provider", "error", "nodepool"],
        )?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        Ok(Self {
            inner,
            caller,
            duration,
            errors,
        })
    }

    async fn measure<T>(
        &self,
        method: &str,
        pool: Option<&str>,
        call: impl Future<Output = Result<T, CloudError>>,
    ) -> Result<T, CloudError> {
        let started = Instant::now();
        let result = call.await;
        self.observe(method, started.elapsed());
        if let Err(error) = &result {
            self.count(method, error.metric_label(), pool);
        }
        result
    }

    fn observe(&self, method: &str, took: Duration) {
        let labels = [(self.caller)(), method, self.inner.name()];
        self.duration.with_label_values(&labels).observe(took.as_secs_f64());
    }

    fn count(&self, method: &str, error: &str, pool: Option<&str>) {
        let labels = [
            (self.caller)(),
            method,
            self.inner.name(),
            error,
            pool.unwrap_or_default(),
        ];
        self.errors.with_label_values(&labels).inc();
    }
}

#[async_trait]
impl Layer for MeasuredProvider {
    fn inner(&self) -> &dyn CloudProvider {
        self.inner.as_ref()
    }

    async fn on_create(&self, claim: &NodeClaim) -> Result<Instance, CloudError> {
        self.measure("Create", claim.node_pool(), self.inner.create(claim))
            .await
    }

    /// "Gone" counts as a not-found error, as upstream's dashboards expect of the call that completes a deletion.
    async fn on_delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let answer = self
            .measure("Delete", claim.node_pool(), self.inner.delete(claim))
            .await;
        if matches!(answer, Ok(Deletion::Gone)) {
            self.count("Delete", CloudError::not_found("").metric_label(), claim.node_pool());
        }
        answer
    }

    async fn on_get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        self.measure("Get", None, self.inner.get(provider_id)).await
    }

    async fn on_list(&self) -> Result<Vec<Instance>, CloudError> {
        self.measure("List", None, self.inner.list()).await
    }

    async fn on_instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.measure(
            "GetInstanceTypes",
            pool.metadata.name.as_deref(),
            self.inner.instance_types(pool),
        )
        .await
    }

    async fn on_is_drifted(&self, claim: &NodeClaim) -> Result<Option<DriftReason>, CloudError> {
        self.measure("IsDrifted", claim.node_pool(), self.inner.is_drifted(claim))
            .await
    }

    async fn on_reboot(&self, claim: &NodeClaim, operation: &RebootOperation) -> Result<(), CloudError> {
        self.measure("Reboot", claim.node_pool(), self.inner.reboot(claim, operation))
            .await
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::{
        clock::ManualClock,
        fake::{FakeProvider, Method, Moment},
    };

    fn measured() -> (FakeProvider, MeasuredProvider) {
        let fake = FakeProvider::new(ManualClock::starting_at(Timestamp::UNIX_EPOCH).clock());
        let measured = MeasuredProvider::new(Arc::new(fake.clone()), &Registry::new(), || "nodeclaim.lifecycle");
        (fake, measured.expect("a new registry"))
    }

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "a", "uid": "u", "labels": {"karpenter.sh/nodepool": "blue"}},
            "spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
            },
            "status": {"providerID": "fake:///a"},
        }))
        .expect("a NodeClaim")
    }

    #[tokio::test]
    async fn every_call_is_timed_and_failures_are_counted_by_class() {
        let (fake, measured) = measured();
        fake.fail_next(
            Method::Create,
            Moment::Before,
            CloudError::insufficient_capacity("none").context("launching"),
        );
        measured.create(&claim()).await.expect_err("no capacity");
        measured.create(&claim()).await.expect("launched");
        let timed = measured
            .duration
            .with_label_values(&["nodeclaim.lifecycle", "Create", "fake"]);
        assert_eq!(timed.get_sample_count(), 2);
        let labels = [
            "nodeclaim.lifecycle",
            "Create",
            "fake",
            "InsufficientCapacityError",
            "blue",
        ];
        assert_eq!(measured.errors.with_label_values(&labels).get(), 1);
    }

    #[tokio::test]
    async fn the_delete_that_finds_the_instance_gone_counts_as_not_found() {
        let (_, measured) = measured();
        assert_eq!(measured.delete(&claim()).await.expect("gone"), Deletion::Gone);
        let labels = [
            "nodeclaim.lifecycle",
            "Delete",
            "fake",
            "NodeClaimNotFoundError",
            "blue",
        ];
        assert_eq!(measured.errors.with_label_values(&labels).get(), 1);
    }

    #[test]
    fn a_provider_is_not_measured_twice() {
        let fake = FakeProvider::new(ManualClock::starting_at(Timestamp::UNIX_EPOCH).clock());
        let registry = Registry::new();
        let once = MeasuredProvider::new(Arc::new(fake), &registry, || "").expect("a new registry");
        MeasuredProvider::new(Arc::new(once), &registry, || "").expect_err("registered already");
    }
}
