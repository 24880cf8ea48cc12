//! Forgets how a NodePool's launches went (`NodeRegistrationHealthy`) when an edit may have fixed the cause.
//!
//! The condition becomes True or False where claims register or time out (see [`crate::lifecycle`]).

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::NodePool;
use karpenter_api::conditions::{AWAITING_RECONCILIATION, StatusConditions};
use karpenter_api::node_pool::NODE_REGISTRATION_HEALTHY;
use karpenter_cloud::node_class::NodeClassState;

use crate::context::Context;
use crate::error::Result;
use crate::nodepool::health::{Health, PoolHealth};
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

/// Brings the pool's condition and memory in line with what they are about: this generation of the pool and its class.
pub fn refresh(pool: &mut NodePool, class: &NodeClassState, memory: &PoolHealth, now: Timestamp) {
    let uid = pool.metadata.uid.clone().unwrap_or_default();
    let condition = pool.condition(NODE_REGISTRATION_HEALTHY);
    if memory.health(&uid) == Health::Unknown {
        // After a restart the condition is all that is left of the memory.
        match condition {
            Some(condition) if condition.is_true() => memory.seed(&uid, Health::Healthy),
            Some(condition) if condition.is_false() => memory.seed(&uid, Health::Unhealthy),
            Some(_) | None => {}
        }
    }
    let observed_class = pool
        .status
        .as_ref()
        .and_then(|status| status.node_class_observed_generation);
    let outdated = match condition {
        None => true,
        Some(condition) => {
            observed_class != Some(class.generation) || condition.observed_generation != pool.metadata.generation
        }
    };
    if outdated {
        let message = "object is awaiting reconciliation";
        let _ = pool.set_unknown(NODE_REGISTRATION_HEALTHY, AWAITING_RECONCILIATION, message, now);
        memory.seed(&uid, Health::Unknown);
    }
    pool.status.get_or_insert_default().node_class_observed_generation = Some(class.generation);
}

/// The `nodepool.registrationhealth` controller.
pub fn controller(ctx: &Context) -> Runnable {
    ctx.node_classes
        .wake_pools(Controller::new(&ctx.runner, "nodepool.registrationhealth"), &ctx.pools)
        .about("karpenter.sh", "NodePool")
        .concurrency(linear(ctx.options.cores(), 10, 1000))
        .runs(&ctx.pools, ctx.manages_pool(), RegistrationHealth { ctx: ctx.clone() })
}

struct RegistrationHealth {
    ctx: Context,
}

impl Reconcile<NodePool> for RegistrationHealth {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let Some(class) = self.ctx.node_classes.get(&pool.spec.template.spec.node_class_ref) else {
            return Ok(Next::Wait);
        };
        let mut changed = (*pool).clone();
        refresh(&mut changed, &class, &self.ctx.pool_health, self.ctx.clock.now());
        self.ctx.pool_writer.write(&pool, &changed).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(generation: i64) -> NodeClassState {
        NodeClassState {
            hash: None,
            name: "n".to_owned(),
            generation,
            deleted_at: None,
            conditions: Vec::new(),
        }
    }

    /// A pool of generation 3 that has seen generation 7 of its class, with the condition `status` at `observed`.
    fn pool(status: &str, observed: i64) -> NodePool {
        serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: p, uid: u, generation: 3}}, \
             spec: {{template: {{spec: {{requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}}}}}, \
             status: {{nodeClassObservedGeneration: 7, conditions: [{{type: NodeRegistrationHealthy, status: '{status}', \
             reason: R, message: m, observedGeneration: {observed}, lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}}}"
        ))
        .unwrap()
    }

    fn check(mut pool: NodePool, class: &NodeClassState, status: &str, health: Health) {
        let memory = PoolHealth::default();
        refresh(&mut pool, class, &memory, Timestamp::UNIX_EPOCH);
        assert_eq!(
            pool.condition(NODE_REGISTRATION_HEALTHY).unwrap().status.as_str(),
            status
        );
        assert_eq!(memory.health("u"), health);
        assert_eq!(
            pool.status.unwrap().node_class_observed_generation,
            Some(class.generation)
        );
    }

    #[test]
    fn a_restart_remembers_what_the_condition_says() {
        check(pool("False", 3), &class(7), "False", Health::Unhealthy);
        check(pool("True", 3), &class(7), "True", Health::Healthy);
        check(pool("Unknown", 3), &class(7), "Unknown", Health::Unknown);
    }

    #[test]
    fn an_edit_of_pool_or_class_forgets_the_history() {
        check(pool("False", 3), &class(8), "Unknown", Health::Unknown);
        check(pool("False", 2), &class(7), "Unknown", Health::Unknown);
    }

    #[test]
    fn a_new_pool_starts_as_unknown() {
        let mut fresh = pool("True", 3);
        fresh.status = None;
        check(fresh, &class(1), "Unknown", Health::Unknown);
    }
}
