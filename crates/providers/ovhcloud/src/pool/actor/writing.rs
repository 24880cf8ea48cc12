//! Carries out the one write of a plan, and keeps the books.

use karpenter_cloud::{Deletion, events::Announcement};

use super::{Actor, Remembered};
use crate::{
    client::{ApiError, ApiErrorKind, KubeApi, model::Pool},
    metrics::Status,
    names,
    pool::{
        engine::Shared,
        plan::{Plan, Write},
    },
};

impl Shared {
    pub(super) async fn write(
        &self,
        api: &KubeApi,
        actor: &Actor,
        memory: &mut Remembered,
        pool: &Pool,
        plan: &Plan,
        write: &Write,
    ) -> Result<(), ApiError> {
        let update = write.update();
        let result = {
            let _writing = self.writing().await;
            api.update_pool(&pool.id, &update).await
        };
        let status = Status::of(result.is_ok());
        self.metrics.operation(write.name(), status);
        match result {
            Ok(()) => {
                tracing::info!(
                    pool = actor.name, operation = write.name(), before = plan.sets.desired,
                    after = update.desired_nodes, removed = ?update.nodes_to_remove, "node pool changed"
                );
                memory.plan.accepted(write, self.clock.now());
                self.remember_size(&pool.id, update.desired_nodes);
                self.tell_of_write(pool, plan, write).await;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(pool = actor.name, operation = write.name(), %error, "node pool is not changed");
                if error.is_unknown_outcome() {
                    memory.plan.uncertain();
                }
                if let Write::Remove { nodes, .. } = write
                    && error.is(ApiErrorKind::Invalid)
                    && self.extras().deletes_nodes
                {
                    return self.remove_one_by_one(api, actor, memory, pool, plan, nodes).await;
                }
                if matches!(write, Write::Grow { .. }) && self.is_refusal(&error) {
                    self.refuse(actor, &plan.unserved, pool.flavor.clone(), &error).await;
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// For an API that does not know `nodesToRemove`: each machine is deleted, and takes its place from the pool with it.
    ///
    /// What was deleted before one could not be is written down all the same.
    async fn remove_one_by_one(
        &self,
        api: &KubeApi,
        actor: &Actor,
        memory: &mut Remembered,
        pool: &Pool,
        plan: &Plan,
        nodes: &[String],
    ) -> Result<(), ApiError> {
        let (mut deleted, mut vanished, mut failure) = (Vec::new(), Vec::new(), None);
        for node in nodes {
            let result = {
                let _writing = self.writing().await;
                api.delete_node(node).await
            };
            self.metrics.operation("delete_node", Status::of(result.is_ok()));
            match result {
                Ok(()) => deleted.push(node.clone()),
                Err(error) if error.is(ApiErrorKind::NotFound) => vanished.push(node.clone()),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let desired = plan.sets.desired.saturating_sub(deleted.len() as u32);
        // What vanished took its place along, but whether that is counted yet only a new read tells.
        let is_certain = vanished.is_empty() && !failure.as_ref().is_some_and(ApiError::is_unknown_outcome);
        let nodes: Vec<String> = deleted.into_iter().chain(vanished).collect();
        if !nodes.is_empty() {
            tracing::info!(
                pool = actor.name, operation = "delete_node", before = plan.sets.desired, after = desired,
                removed = ?nodes, "node pool changed"
            );
            let write = Write::Remove { desired, nodes };
            memory.plan.accepted(&write, self.clock.now());
            self.remember_size(&pool.id, Some(desired));
            self.tell_of_write(pool, plan, &write).await;
            if let Write::Remove { nodes, .. } = &write {
                for node in nodes {
                    actor.settle(&pool.id, node, Deletion::InProgress);
                }
            }
        }
        if !is_certain {
            memory.plan.uncertain();
        }
        failure.map_or(Ok(()), Err)
    }

    async fn tell_of_write(&self, pool: &Pool, plan: &Plan, write: &Write) {
        let class = pool.label(names::NODE_CLASS).unwrap_or_default();
        match write {
            Write::Settings(update) if update.autoscale.is_some() => {
                let message = format!(
                    "OVHcloud's own autoscaler was on for node pool {} and is off again: two autoscalers would undo each \
                     other's work",
                    pool.name
                );
                let told = Announcement::warning("PoolAutoscaleDisabled", message);
                self.events.on_class(class, told).await;
            }
            Write::Settings(_) | Write::Trim { .. } => {}
            Write::Remove { nodes, .. } => {
                let reclaimed = plan.reclaimed.iter().filter(|node| nodes.contains(node));
                let reclaimed: Vec<&str> = reclaimed.map(String::as_str).collect();
                self.metrics.reclaimed(reclaimed.len());
                if reclaimed.is_empty() {
                    return;
                }
                let message = format!(
                    "removed from node pool {} what nobody claimed: {}",
                    pool.name,
                    reclaimed.join(", ")
                );
                let node_pool = pool.label(karpenter_api::labels::NODEPOOL).unwrap_or_default();
                let told = Announcement::normal("SpareNodeReclaimed", message);
                self.events.on_node_pool(node_pool, told).await;
            }
            Write::Grow { desired } => {
                let before = plan.sets.desired;
                let claims = plan.unserved.iter().filter_map(|uid| self.ledger.get(uid));
                let claims: Vec<String> = claims.map(|entry| entry.claim.name).collect();
                let message = format!(
                    "node pool {}: +{} ({before} → {desired}) for {}",
                    pool.name,
                    desired.saturating_sub(before),
                    claims.join(", ")
                );
                let told = Announcement::normal("PoolScaled", message);
                self.events.on_class(class, told).await;
            }
        }
    }
}
