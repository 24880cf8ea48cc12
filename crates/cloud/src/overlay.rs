//! Shows a provider's instance types as the NodeOverlays leave them.
//!
//! The overlay controller evaluates all overlays against the *undecorated* provider and publishes what it accepted here; the
//! decorator applies that to whatever the provider offers at the moment. A pool that was not evaluated yet is an error, so
//! that nothing is launched at a price that an overlay was about to change (lifecycle.md §8.2).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use karpenter_api::{NodeOverlay, NodePool, labels::LabelRules};
use karpenter_engine::{PoolTypes, convert, overlay};
use parking_lot::Mutex;

use crate::{
    error::{CloudContext, CloudError},
    layer::Layer,
    provider::{CloudProvider, InstanceTypes},
};

/// The overlays in force. Shared between the controller that evaluates and the decorator that applies.
#[derive(Debug, Default)]
pub struct OverlayStore {
    accepted: ArcSwapOption<Accepted>,
}

/// The outcome of one evaluation.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    /// Those that are valid and without conflict.
    pub overlays: Vec<NodeOverlay>,
    /// The names of the pools whose instance types could be listed.
    pub evaluated_pools: BTreeSet<String>,
}

/// A provider seen through the NodeOverlays.
#[derive(Debug)]
pub struct OverlaidProvider {
    inner: Arc<dyn CloudProvider>,
    store: Arc<OverlayStore>,
    rules: LabelRules,
    applied: Mutex<BTreeMap<String, Applied>>,
}

/// What was made for a pool, and from what.
#[derive(Debug)]
struct Applied {
    raw: InstanceTypes,
    accepted: Arc<Accepted>,
    labels: BTreeMap<String, String>,
    types: InstanceTypes,
}

impl OverlayStore {
    /// Puts a new evaluation in force, at once and as a whole.
    pub fn publish(&self, accepted: Accepted) {
        self.accepted.store(Some(Arc::new(accepted)));
    }

    pub fn accepted(&self) -> Option<Arc<Accepted>> {
        self.accepted.load_full()
    }
}

impl OverlaidProvider {
    /// `rules` are those of the operator, with the provider's labels.
    pub fn new(inner: Arc<dyn CloudProvider>, store: Arc<OverlayStore>, rules: LabelRules) -> Self {
        Self {
            inner,
            store,
            rules,
            applied: Mutex::default(),
        }
    }

    fn overlaid(&self, pool: &NodePool, raw: InstanceTypes) -> Result<InstanceTypes, CloudError> {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let accepted = self
            .store
            .accepted()
            .filter(|accepted| accepted.evaluated_pools.contains(&name));
        let Some(accepted) = accepted else {
            return Err(CloudError::Unevaluated { node_pool: name });
        };
        if accepted.overlays.is_empty() {
            return Ok(raw);
        }
        // All of a pool that overlays look at, besides its name.
        let labels = pool.spec.template.metadata.labels.clone().unwrap_or_default();
        let mut applied = self.applied.lock();
        if let Some(known) = applied.get(&name)
            && Arc::ptr_eq(&known.raw, &raw)
            && Arc::ptr_eq(&known.accepted, &accepted)
            && known.labels == labels
        {
            return Ok(known.types.clone());
        }
        let model = convert::node_pool(&self.rules, pool, String::new())
            .cloud_context(format!("applying overlays to node pool {name}"))?;
        let pools = vec![PoolTypes {
            pool: Arc::new(model),
            instance_types: raw.to_vec(),
        }];
        let overlaid = overlay::apply(&accepted.overlays, pools, &self.rules);
        let types: InstanceTypes = overlaid
            .pools
            .into_iter()
            .flat_map(|pool| pool.instance_types)
            .collect();
        applied.insert(
            name,
            Applied {
                raw,
                accepted,
                labels,
                types: types.clone(),
            },
        );
        Ok(types)
    }
}

#[async_trait]
impl Layer for OverlaidProvider {
    fn inner(&self) -> &dyn CloudProvider {
        self.inner.as_ref()
    }

    async fn on_instance_types(&self, pool: &NodePool) -> Result<InstanceTypes, CloudError> {
        self.overlaid(pool, self.inner.instance_types(pool).await?)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::{clock::ManualClock, error::ErrorKind, fake::FakeProvider, selection};

    struct Probe {
        fake: FakeProvider,
        store: Arc<OverlayStore>,
        overlaid: OverlaidProvider,
    }

    fn probe() -> Probe {
        let fake = FakeProvider::new(ManualClock::starting_at(Timestamp::UNIX_EPOCH).clock());
        let store = Arc::new(OverlayStore::default());
        let rules = fake.extend_label_rules(LabelRules::default());
        let overlaid = OverlaidProvider::new(Arc::new(fake.clone()), store.clone(), rules);
        Probe { fake, store, overlaid }
    }

    fn pool() -> NodePool {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {"template": {"spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
            }}},
        }))
        .expect("a NodePool")
    }

    fn accepted(overlays: &[serde_json::Value]) -> Accepted {
        let overlay = |spec: &serde_json::Value| {
            let object = json!({
                "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "o"}, "spec": spec,
            });
            serde_json::from_value(object).expect("a NodeOverlay")
        };
        Accepted {
            overlays: overlays.iter().map(overlay).collect(),
            evaluated_pools: [String::from("default")].into(),
        }
    }

    fn spot_price(types: &InstanceTypes) -> f64 {
        selection::running_price(&types[0], "test-zone-1", "spot").expect("spot is sold")
    }

    #[tokio::test]
    async fn a_pool_that_was_not_evaluated_is_refused() {
        let probe = probe();
        let error = probe
            .overlaid
            .instance_types(&pool())
            .await
            .expect_err("nothing was evaluated");
        assert_eq!(error.kind(), ErrorKind::Unevaluated);
        probe.store.publish(Accepted::default());
        probe
            .overlaid
            .instance_types(&pool())
            .await
            .expect_err("this pool was not");
    }

    #[tokio::test]
    async fn prices_are_those_of_the_overlays_and_the_providers_own_types_stay_as_they_are() {
        let probe = probe();
        let raw = probe.fake.instance_types(&pool()).await.expect("types");
        let spot = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]);
        probe
            .store
            .publish(accepted(&[json!({"requirements": spot, "priceAdjustment": "+100%"})]));
        let types = probe.overlaid.instance_types(&pool()).await.expect("types");
        assert!((spot_price(&types) - spot_price(&raw) * 2.0).abs() < 1e-12);
        assert!(types[0].offerings.iter().any(|offering| offering.price_overlaid));
        let again = probe.overlaid.instance_types(&pool()).await.expect("types");
        assert!(Arc::ptr_eq(&types, &again), "nothing changed");
    }

    #[tokio::test]
    async fn a_new_evaluation_or_a_change_at_the_cloud_shows_at_once() {
        let probe = probe();
        probe.store.publish(accepted(&[
            json!({"requirements": [], "capacity": {"example.com/fpga": "1"}}),
        ]));
        let first = probe.overlaid.instance_types(&pool()).await.expect("types");
        assert!(first[0].capacity_overlaid);
        probe.fake.set_types(crate::fake::default_types()[..1].to_vec());
        assert_eq!(probe.overlaid.instance_types(&pool()).await.expect("types").len(), 1);
        probe.store.publish(accepted(&[]));
        assert!(!probe.overlaid.instance_types(&pool()).await.expect("types")[0].capacity_overlaid);
    }
}
