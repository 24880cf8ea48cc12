//! Says on each NodePool whether its NodeClass can be used (`NodeClassReady`).

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::NodePool;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::node_pool::NODE_CLASS_READY;
use karpenter_cloud::node_class::{NodeClassState, Readiness};

use crate::context::Context;
use crate::error::Result;
use crate::runner::{Controller, Next, Reconcile, Runnable, linear};

/// Sets the condition by what became of the NodeClass.
pub fn judge(pool: &mut NodePool, class: Option<&NodeClassState>, now: Timestamp) {
    let mut not_ready = |reason: &str, message: &str| pool.set_false(NODE_CLASS_READY, reason, message, now);
    let _ = match class.map(NodeClassState::readiness) {
        None => not_ready("NodeClassNotFound", "NodeClass not found on cluster"),
        Some(Readiness::Terminating) => not_ready("NodeClassTerminating", "NodeClass is terminating"),
        Some(Readiness::Unknown) => not_ready("NodeClassReadinessUnknown", "Node Class Readiness Unknown"),
        Some(Readiness::NotReady { reason, message }) => not_ready(&reason, &message),
        Some(Readiness::Ready) => pool.set_true(NODE_CLASS_READY, now),
    };
}

/// The `nodepool.readiness` controller.
pub fn controller(ctx: &Context) -> Runnable {
    ctx.node_classes
        .wake_pools(Controller::new(&ctx.runner, "nodepool.readiness"), &ctx.pools)
        .about("karpenter.sh", "NodePool")
        .concurrency(linear(ctx.options.cores(), 10, 1000))
        .runs(&ctx.pools, ctx.manages_pool(), ClassReadiness { ctx: ctx.clone() })
}

struct ClassReadiness {
    ctx: Context,
}

impl Reconcile<NodePool> for ClassReadiness {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        let class = self.ctx.node_classes.get(&pool.spec.template.spec.node_class_ref);
        let mut changed = (*pool).clone();
        judge(&mut changed, class.as_deref(), self.ctx.clock.now());
        self.ctx.pool_writer.write(&pool, &changed).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    fn pool() -> NodePool {
        serde_norway::from_str(
            "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: p}, spec: {template: {spec: \
             {requirements: [], nodeClassRef: {group: g, kind: K, name: n}}}}}",
        )
        .unwrap()
    }

    fn class(ready: Option<&str>) -> NodeClassState {
        let condition = |status: &str| Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: "NoImage".to_owned(),
            message: "no image matches".to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        };
        NodeClassState {
            hash: None,
            name: "n".to_owned(),
            generation: 1,
            deleted_at: None,
            conditions: ready.map(condition).into_iter().collect(),
        }
    }

    fn check(class: Option<&NodeClassState>, status: &str, reason: &str) {
        let mut pool = pool();
        judge(&mut pool, class, Timestamp::UNIX_EPOCH);
        let condition = pool.condition(NODE_CLASS_READY).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), (status, reason));
    }

    #[test]
    fn a_pool_is_as_ready_as_its_node_class() {
        check(None, "False", "NodeClassNotFound");
        check(Some(&class(None)), "False", "NodeClassReadinessUnknown");
        check(Some(&class(Some("Unknown"))), "False", "NodeClassReadinessUnknown");
        check(Some(&class(Some("False"))), "False", "NoImage");
        check(Some(&class(Some("True"))), "True", "NodeClassReady");
        check(
            Some(&NodeClassState {
                deleted_at: Some(Timestamp::UNIX_EPOCH),
                ..class(Some("True"))
            }),
            "False",
            "NodeClassTerminating",
        );
    }
}
