//! What can be launched now: NodePools with their instance types, interned for the engine and kept until either changes.

use std::sync::Arc;

use karpenter_api::conditions::{READY, StatusConditions};
use karpenter_api::hash::HASH_VERSION;
use karpenter_api::labels::LabelRules;
use karpenter_api::{NodePool, labels};
use karpenter_cloud::{CloudError, CloudProvider, ErrorKind, InstanceTypes};
use karpenter_engine::{Catalog, PoolTypes, convert, model};
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::context::Managed;
use crate::watch::Cache;

/// Builds catalogues, and reuses the last one while nothing changed.
#[derive(Debug)]
pub struct Catalogs {
    pools: Arc<Cache<NodePool>>,
    cloud: Arc<dyn CloudProvider>,
    managed: Managed,
    rules: Arc<LabelRules>,
    last: Mutex<Option<Built>>,
}

#[derive(Debug)]
struct Built {
    inputs: Vec<Input>,
    catalog: Arc<Catalog>,
}

#[derive(Clone, Debug)]
struct Input {
    pool: model::NodePool,
    types: InstanceTypes,
}

impl Catalogs {
    /// Over the NodePools of `pools` that are ours.
    pub fn new(
        pools: Arc<Cache<NodePool>>,
        cloud: Arc<dyn CloudProvider>,
        managed: Managed,
        rules: Arc<LabelRules>,
    ) -> Self {
        Self {
            pools,
            cloud,
            managed,
            rules,
            last: Mutex::new(None),
        }
    }

    /// The catalogue of every pool of ours. One that is not ready or is being deleted launches nothing, but its nodes are
    /// there, and what they are is known from it. A pool whose types cannot be had is left out of this one and logged.
    pub async fn current(&self) -> Arc<Catalog> {
        let mut pools: Vec<Arc<NodePool>> = self.pools.list();
        pools.retain(|pool| self.managed.pool(pool));
        pools.sort_by_key(|pool| pool.name_any());
        let fetched = futures::future::join_all(pools.iter().map(|pool| self.cloud.instance_types(pool))).await;
        let inputs = pools
            .iter()
            .zip(fetched)
            .filter_map(|(pool, types)| self.input(pool, types))
            .collect();
        self.build(inputs)
    }

    fn input(&self, pool: &NodePool, types: Result<InstanceTypes, CloudError>) -> Option<Input> {
        let name = pool.name_any();
        let types = match types {
            Ok(types) if types.is_empty() => {
                tracing::info!(nodepool = name, "skipping, no instance types are offered");
                return None;
            }
            Ok(types) => types,
            Err(error) if !is_usable(pool) => {
                tracing::debug!(nodepool = name, %error, "skipping a NodePool that is not ready");
                return None;
            }
            Err(error) if error.kind() == ErrorKind::Unevaluated => {
                tracing::debug!(nodepool = name, "skipping until its NodeOverlays are evaluated");
                return None;
            }
            Err(error) => {
                tracing::error!(nodepool = name, %error, "skipping, unable to resolve instance types");
                return None;
            }
        };
        match convert::node_pool(&self.rules, pool, pool.static_hash()) {
            Ok(mut converted) => {
                converted.seeds_claims &= is_usable(pool);
                converted
                    .annotations
                    .insert(labels::annotations::NODEPOOL_HASH.to_owned(), converted.hash.clone());
                converted.annotations.insert(
                    labels::annotations::NODEPOOL_HASH_VERSION.to_owned(),
                    HASH_VERSION.to_owned(),
                );
                Some(Input { pool: converted, types })
            }
            Err(error) => {
                tracing::error!(nodepool = name, %error, "skipping a NodePool that cannot be read");
                None
            }
        }
    }

    fn build(&self, inputs: Vec<Input>) -> Arc<Catalog> {
        let mut last = self.last.lock();
        if let Some(built) = last.as_ref().filter(|built| same(&built.inputs, &inputs)) {
            return built.catalog.clone();
        }
        let pools = inputs.iter().map(|input| PoolTypes {
            pool: Arc::new(input.pool.clone()),
            instance_types: input.types.to_vec(),
        });
        let catalog = Arc::new(Catalog::new(pools.collect(), (*self.rules).clone()));
        *last = Some(Built {
            inputs,
            catalog: catalog.clone(),
        });
        catalog
    }
}

/// Ready and not on its way out.
fn is_usable(pool: &NodePool) -> bool {
    pool.metadata.deletion_timestamp.is_none() && pool.is_true(READY)
}

fn same(old: &[Input], new: &[Input]) -> bool {
    old.len() == new.len()
        && old
            .iter()
            .zip(new)
            .all(|(old, new)| Arc::ptr_eq(&old.types, &new.types) && old.pool == new.pool)
}
