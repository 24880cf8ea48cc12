//! Ending a claim's machine, by name and never another.

use std::time::Duration;

use karpenter_api::{NodeClaim, conditions::StatusConditions, labels, node_claim::condition};
use karpenter_cloud::{ClaimMark, CloudError, Deletion, clock::later, events::Announcement};

use super::Shared;
use crate::{
    client::model::{NodeClass, Pool, PoolNode, instance_id},
    metrics::Status,
    names,
    pool::PoolOwner,
};

/// A machine on its way out whose Node is down is let go after this: MKS waits for the Node, core for the machine.
const DOWN_AFTER: Duration = Duration::from_secs(2 * 60);
/// Longer than MKS drains.
const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);

impl Shared {
    pub(super) async fn delete(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let Some(provider_id) = claim.provider_id().filter(|id| instance_id(id).is_some()) else {
            return Ok(Deletion::Gone);
        };
        self.any_connection().await?;
        let found = self.find(claim, provider_id).await?;
        let Some((pool, node)) = found else {
            return Ok(Deletion::Gone);
        };
        let result = self.end(&ClaimMark::of(claim), &pool, &node).await;
        self.metrics.deletion(Status::of(result.is_ok()));
        result.inspect_err(|error| self.suspect(error))
    }

    /// Whether the machine of a claim that is being deleted may be one that did not join in time.
    pub(super) fn may_be_late(&self, claim: &NodeClaim) -> bool {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        !claim.is_true(condition::REGISTERED) && !self.registrations.is_counted(uid)
    }

    /// Remembers a machine that core gave up because it did not join in time, measured as core does: from the last change of
    /// `Registered`, else from the claim's creation, until the claim was deleted.
    pub(super) fn count_if_late(&self, claim: &NodeClaim, patience: Duration) {
        let now = self.clock.now();
        let created = claim.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let changed = claim.condition(condition::REGISTERED);
        let since = changed.map(|own| own.last_transition_time.0).or(created);
        let given_up = claim.metadata.deletion_timestamp.as_ref().map_or(now, |at| at.0);
        let is_late = since.is_some_and(|since| later(since, patience) <= given_up);
        let label = |key: &str| claim.metadata.labels.as_ref()?.get(key).map(String::as_str);
        let (Some(flavor), Some(zone)) = (label(labels::INSTANCE_TYPE), label(labels::ZONE)) else {
            return;
        };
        if is_late {
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            self.registrations.late(uid, flavor, zone, now);
        }
    }

    /// A claim without a provider ID: its place is given back, or its machine ended.
    pub(super) async fn abandon(&self, claim: &NodeClaim) -> Result<Deletion, CloudError> {
        let mark = ClaimMark::of(claim);
        let ledger = self.engine.ledger();
        ledger.load().await?;
        ledger.read(&mark).await?;
        let entry = ledger.get(&mark.uid);
        let annotation = |key: &str| claim.metadata.annotations.as_ref()?.get(key).cloned();
        let (pool_id, node_id) = match &entry {
            Some(entry) => (entry.pool_id.clone(), entry.node_id.clone()),
            None => (annotation(names::POOL_ID), annotation(names::NODE_ID)),
        };
        let (Some(pool_id), Some(node_id)) = (pool_id, node_id) else {
            if let Some(entry) = entry {
                ledger.withdraw(&mark).await?;
                self.engine.kick(&entry.pool);
            }
            return Ok(Deletion::Gone);
        };
        self.any_connection().await?;
        let found = self.engine.pool(&pool_id).await?;
        let node = found.and_then(|(pool, nodes)| Some((pool, nodes.into_iter().find(|node| node.id == node_id)?)));
        match node {
            Some((pool, node)) => self.end(&mark, &pool, &node).await,
            None => Ok(Deletion::Gone),
        }
    }

    /// The claim's machine by its annotations, else among all of ours. `None` only after a complete read.
    async fn find(&self, claim: &NodeClaim, provider_id: &str) -> Result<Option<(Pool, PoolNode)>, CloudError> {
        let annotation = |key: &str| claim.metadata.annotations.as_ref()?.get(key);
        let is_it = |node: &PoolNode| node.provider_id().as_deref() == Some(provider_id);
        if let Some(pool_id) = annotation(names::POOL_ID) {
            let Some((pool, nodes)) = self.engine.pool(pool_id).await? else {
                return Ok(None);
            };
            if PoolOwner::of(&pool) == PoolOwner::Foreign {
                return Ok(None);
            }
            return Ok(nodes.into_iter().find(is_it).map(|node| (pool, node)));
        }
        let machines = self.machines().await?;
        let found = machines.iter().find(|machine| is_it(&machine.node));
        Ok(found.map(|machine| (machine.pool.clone(), machine.node.clone())))
    }

    async fn end(&self, claim: &ClaimMark, pool: &Pool, node: &PoolNode) -> Result<Deletion, CloudError> {
        let now = self.clock.now();
        if node.class() == NodeClass::Gone {
            self.ended(node);
            return Ok(Deletion::Gone);
        }
        if node.class() == NodeClass::Going {
            let since = *self.going.lock().entry(node.id.clone()).or_insert(now);
            if later(since, STUCK_AFTER) <= now {
                let message = format!(
                    "machine {} is being deleted for a quarter of an hour; its Node is released all the same",
                    node.name
                );
                let told = Announcement::warning("NodeDeletionStuck", message);
                self.events.on_claim(claim, &told).await;
                self.release(pool, node);
                return Ok(Deletion::Gone);
            }
            if later(since, DOWN_AFTER) <= now && self.is_down(&node.name).await? {
                self.release(pool, node);
                return Ok(Deletion::Gone);
            }
            return Ok(Deletion::InProgress);
        }
        match self.engine.remove(pool, &node.id).await? {
            Deletion::Gone => {
                self.ended(node);
                Ok(Deletion::Gone)
            }
            Deletion::InProgress => {
                self.going.lock().entry(node.id.clone()).or_insert(now);
                Ok(Deletion::InProgress)
            }
        }
    }

    /// Lets core forget a machine that is not gone yet. It is watched: should it come back, it goes again.
    fn release(&self, pool: &Pool, node: &PoolNode) {
        self.released.lock().insert(node.id.clone(), pool.id.clone());
        self.ended(node);
    }

    /// Removes released machines that came back, and forgets those that are gone.
    pub(crate) async fn watch_released(&self) {
        let released = self.released.lock().clone();
        for (node_id, pool_id) in released {
            let found = match self.engine.pool(&pool_id).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, node = node_id, "a released machine cannot be watched");
                    continue;
                }
            };
            let node = found.and_then(|(pool, nodes)| Some((pool, nodes.into_iter().find(|node| node.id == node_id)?)));
            match node {
                Some((_, node)) if node.class() == NodeClass::Going => {}
                Some((pool, node)) if node.class() != NodeClass::Gone => {
                    tracing::warn!(
                        node = node.name,
                        "a machine that was being deleted came back; it is removed again"
                    );
                    if let Err(error) = self.engine.remove(&pool, &node.id).await {
                        tracing::warn!(%error, node = node.name, "a machine that came back is not removed");
                    }
                }
                Some(_) | None => {
                    self.released.lock().remove(&node_id);
                }
            }
        }
    }

    fn ended(&self, node: &PoolNode) {
        if let Some(since) = self.going.lock().remove(&node.id) {
            self.metrics.deleted(self.clock.since(since).as_secs_f64());
        }
    }
}
