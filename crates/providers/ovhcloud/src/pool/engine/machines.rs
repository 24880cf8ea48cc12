//! Reads the machines of all our pools: all of them, or an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use karpenter_cloud::{ClaimMark, CloudError};

use super::Engine;
use crate::{
    client::{
        ApiError, ApiErrorKind,
        model::{Pool, PoolNode},
    },
    pool::key::PoolOwner,
};

/// A machine with the pool it is in.
#[derive(Clone, Debug)]
pub struct Machine {
    pub pool: Pool,
    pub node: PoolNode,
    pub claim: Option<ClaimMark>,
}

const READERS: usize = 8;

impl Engine {
    /// Every machine of our pools. All of them, or an error.
    ///
    /// # Errors
    /// When any pool could not be read.
    pub async fn machines(&self) -> Result<Vec<Machine>, CloudError> {
        self.shared.ledger.load().await?;
        let api = self.shared.api()?;
        let pools = self.shared.inventory(Duration::ZERO).await?;
        let ours = pools
            .into_iter()
            .filter(|pool| PoolOwner::of(pool) != PoolOwner::Foreign);
        let ours: Vec<Pool> = ours.collect();
        if self.shared.extras().lists_nodes {
            match api.all_nodes().await {
                Ok(nodes) => return Ok(self.claimed(ours, nodes)),
                // The right was taken back: pool by pool, then.
                Err(error) if error.is(ApiErrorKind::NotGranted) => {
                    self.shared.facts.lock().extras.lists_nodes = false;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let read = |pool: Pool| {
            let api = api.clone();
            async move {
                let nodes = match api.nodes(&pool.id).await {
                    Ok(nodes) => nodes,
                    Err(error) if error.is(ApiErrorKind::NotFound) => {
                        // Made a moment ago or deleted since the list was made: either way there is nothing in it,
                        // unless the pool is still there.
                        match api.pool(&pool.id).await {
                            Ok(_) => return Err(error),
                            Err(gone) if gone.is(ApiErrorKind::NotFound) => Vec::new(),
                            Err(error) => return Err(error),
                        }
                    }
                    Err(error) => return Err(error),
                };
                Ok((pool, nodes))
            }
        };
        let read: Vec<(Pool, Vec<PoolNode>)> = futures::stream::iter(ours.into_iter().map(read))
            .buffer_unordered(READERS)
            .try_collect()
            .await?;
        let (mut pools, mut all) = (Vec::new(), Vec::new());
        for (pool, nodes) in read {
            all.extend(nodes.into_iter().map(|node| PoolNode {
                node_pool_id: pool.id.clone(),
                ..node
            }));
            pools.push(pool);
        }
        Ok(self.claimed(pools, all))
    }

    /// Each machine with its pool and its claim; machines of other pools are left out.
    fn claimed(&self, pools: Vec<Pool>, nodes: Vec<PoolNode>) -> Vec<Machine> {
        let pools: BTreeMap<String, Pool> = pools.into_iter().map(|pool| (pool.id.clone(), pool)).collect();
        let machine = |node: PoolNode| {
            Some(Machine {
                pool: pools.get(&node.node_pool_id)?.clone(),
                claim: self.shared.ledger.holder(&node),
                node,
            })
        };
        let mut machines: Vec<Machine> = nodes.into_iter().filter_map(machine).collect();
        machines.sort_by(|a, b| a.node.id.cmp(&b.node.id));
        machines
    }

    /// Machines that MKS made by itself and that a new claim should take over.
    ///
    /// # Errors
    /// When any pool could not be read.
    pub async fn adoptable(&self) -> Result<Vec<Machine>, CloudError> {
        let offered: BTreeSet<String> = {
            let facts = self.shared.facts.lock();
            facts.adoptable.values().flatten().cloned().collect()
        };
        if offered.is_empty() {
            return Ok(Vec::new());
        }
        let mut machines = self.machines().await?;
        machines.retain(|machine| offered.contains(&machine.node.id) && machine.claim.is_none());
        Ok(machines)
    }

    /// The nodes of one pool and the pool; `None` if it is gone.
    ///
    /// # Errors
    /// When they could not be read.
    pub async fn pool(&self, id: &str) -> Result<Option<(Pool, Vec<PoolNode>)>, ApiError> {
        let api = self.shared.api()?;
        let read = async { Ok((api.pool(id).await?, api.nodes(id).await?)) };
        match read.await {
            Ok(found) => Ok(Some(found)),
            Err(ApiError {
                kind: ApiErrorKind::NotFound,
                ..
            }) if !self.shared.was_made_recently(id) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
