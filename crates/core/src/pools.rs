//! The one place that changes NodePools.

use karpenter_api::NodePool;
use kube::api::Api;
use kube::{Client, ResourceExt};

use crate::error::Result;
use crate::patch::{self, Written};

/// How often a status change is tried against a pool that others write at the same time.
const ATTEMPTS: usize = 4;

/// Writes NodePools.
#[derive(Debug, Clone)]
pub struct Pools {
    api: Api<NodePool>,
}

impl Pools {
    /// A writer.
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Writes what differs between `before` and `after`.
    ///
    /// # Errors
    /// With a conflict if the pool has changed since `before` was read.
    pub async fn write(&self, before: &NodePool, after: &NodePool) -> Result<Written<NodePool>> {
        patch::both(&self.api, before, after).await
    }

    /// Applies `change` to the pool's status, starting from `pool`; on a conflict it is read again and changed again.
    /// A pool that is gone, or another under its name, is left alone.
    ///
    /// For changes that come from elsewhere (a claim of the pool registered) and would be lost with the attempt.
    ///
    /// # Errors
    /// With a conflict when others wrote it four times meanwhile, or with what the API server says.
    pub async fn update_status(&self, pool: &NodePool, change: impl Fn(&mut NodePool)) -> Result<()> {
        self.update(pool, change, patch::status).await
    }

    /// Like [`Pools::update_status`], for annotations.
    ///
    /// # Errors
    /// As [`Pools::update_status`].
    pub async fn update_metadata(&self, pool: &NodePool, change: impl Fn(&mut NodePool)) -> Result<()> {
        self.update(pool, change, patch::object).await
    }

    async fn update(
        &self,
        pool: &NodePool,
        change: impl Fn(&mut NodePool),
        write: impl AsyncFn(&Api<NodePool>, &NodePool, &NodePool) -> Result<Written<NodePool>>,
    ) -> Result<()> {
        let mut current = pool.clone();
        let mut attempt = 1;
        loop {
            let mut changed = current.clone();
            change(&mut changed);
            match write(&self.api, &current, &changed).await {
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                result => return result.map(|_| ()),
            }
            match self.api.get_opt(&pool.name_any()).await? {
                Some(fresh) if fresh.uid() == pool.uid() => current = fresh,
                Some(_) | None => return Ok(()),
            }
        }
    }
}
