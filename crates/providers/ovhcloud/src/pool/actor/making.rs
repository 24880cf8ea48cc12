//! Makes a pool when claims wait for it, and deletes it once it is empty.

use std::time::Duration;

use karpenter_cloud::{clock::later, events::Announcement};

use super::{Actor, Next, Outcome, Reading, Remembered};
use crate::{
    client::{
        ApiError, ApiErrorKind, KubeApi,
        model::{NodeClass, PoolClass},
    },
    metrics::Status,
    pool::{engine::Shared, key::PoolOwner},
};

impl Shared {
    /// Makes the pool if claims wait for it. `None` when there is one now.
    pub(super) async fn make(
        &self,
        api: &KubeApi,
        actor: &Actor,
        memory: &mut Remembered,
    ) -> Result<Option<Next>, ApiError> {
        let waiting: Vec<String> = self
            .ledger
            .of_pool(&actor.name, None)
            .into_iter()
            .filter(|claim| claim.node_id.is_none() && !claim.deleting)
            .map(|claim| claim.uid)
            .collect();
        if waiting.is_empty() {
            return Ok(Some(Next::Never));
        }
        // After a crash, the claim's next launch brings the design.
        let Some(design) = actor.design() else {
            return Ok(Some(Next::Soon));
        };
        let now = self.clock.now();
        if memory
            .doubt_since
            .is_some_and(|since| now < later(since, self.settings.cadence.post_doubt))
        {
            self.expire_inventory();
            return Ok(Some(Next::Soon));
        }
        let _creating = self.creating.lock().await;
        let pools = self.inventory(Duration::ZERO).await?;
        let of_that_name = pools.iter().filter(|pool| pool.name == actor.name);
        if let Some(found) = of_that_name.min_by_key(|pool| self.is_twin(&pool.id)) {
            if PoolOwner::of(found) == PoolOwner::Owned && design.key.is_of(found) {
                memory.pool_id = Some(found.id.clone());
                return Ok(None);
            }
            tracing::warn!(
                pool = actor.name,
                "a node pool of that name is somebody else's; another name is used"
            );
            for uid in waiting {
                if let Some(entry) = self.ledger.get(&uid) {
                    self.withdraw(&entry.claim).await;
                }
                actor.answer(&uid, &Outcome::Moved);
            }
            let message = format!(
                "a node pool of the name {} is there already and is not Karpenter's; another name is used",
                actor.name
            );
            let told = Announcement::warning("PoolNameConflict", message);
            self.events.on_class(&design.key.node_class, told).await;
            return Ok(Some(Next::Never));
        }
        if pools.len() as u32 >= self.limit() {
            let message = format!("the cluster has {} of {} node pools", pools.len(), self.limit());
            self.refuse_all(actor, &waiting, ApiErrorKind::PoolLimit, &message)
                .await;
            return Ok(Some(Next::Never));
        }
        let size = (waiting.len() as u32).min(design.cap);
        let mut request = design.request(&actor.name, size);
        if request.availability_zones.is_empty() {
            request.availability_zones = self.demanded_zone().into_iter().collect();
        }
        let result = {
            let _writing = self.writing().await;
            api.create_pool(&request).await
        };
        self.metrics.operation("create", Status::of(result.is_ok()));
        match result {
            Ok(pool) => {
                tracing::info!(pool = actor.name, id = pool.id, size, "node pool made");
                memory.pool_id = Some(pool.id.clone());
                memory.created_at = Some(now);
                memory.doubt_since = None;
                memory.plan.created(size, now);
                self.made_pool(pool);
                let message = format!("made node pool {} for {size} nodes", actor.name);
                let told = Announcement::normal("PoolCreated", message);
                self.events.on_class(&design.key.node_class, told).await;
                Ok(None)
            }
            Err(error) if error.is(ApiErrorKind::ZoneRequired) && request.availability_zones.is_empty() => {
                tracing::info!(pool = actor.name, "this cluster wants node pools to name their zone");
                self.demand_zone();
                Ok(None)
            }
            Err(error) if error.is_unknown_outcome() || error.is(ApiErrorKind::Conflict) => {
                memory.doubt_since = Some(now);
                self.expire_inventory();
                tracing::warn!(pool = actor.name, %error, "it is not known whether the node pool was made");
                Err(error)
            }
            Err(error) if self.is_refusal(&error) => {
                tracing::warn!(pool = actor.name, %error, "node pool is not made");
                if error.is(ApiErrorKind::PoolLimit) {
                    self.lower_limit(pools.len() as u32);
                }
                self.refuse(actor, &waiting, design.key.flavor.clone(), &error).await;
                Ok(Some(Next::Never))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the pool if it is empty and nobody has a place in it. Answers whether it was.
    pub(in crate::pool) async fn delete_if_empty(&self, actor: &Actor) -> Result<bool, ApiError> {
        let api = self.api()?;
        let _alone = actor.alone.lock().await;
        let mut memory = actor.memory.lock().await;
        if self.is_out_of_office(actor) {
            return Ok(false);
        }
        let Reading::Found(pool, nodes) = self.read(&api, actor, &mut memory).await? else {
            return Ok(false);
        };
        let is_empty = pool.desired_nodes == 0 && nodes.iter().all(|node| node.class() == NodeClass::Gone);
        if !is_empty || pool.class() == PoolClass::Gone {
            return Ok(false);
        }
        let is_unclaimed = match &actor.twin {
            Some(id) => self.ledger.of_twin(id).is_empty(),
            None => self.close(&actor.name),
        };
        if !is_unclaimed {
            return Ok(false);
        }
        let result = api.delete_pool(&pool.id).await;
        self.metrics.operation("delete", Status::of(result.is_ok()));
        match result {
            Ok(()) => {
                tracing::info!(pool = actor.name, "empty node pool deleted");
                memory.deleted = true;
                let message = format!("deleted node pool {}, which was empty", actor.name);
                let told = Announcement::normal("PoolDeleted", message);
                self.events.on_class(&memory.class, told).await;
                Ok(true)
            }
            Err(error) if error.is(ApiErrorKind::NotFound) => Ok(true),
            Err(error) => {
                if actor.twin.is_none() {
                    self.reopen(&actor.name);
                }
                Err(error)
            }
        }
    }
}
