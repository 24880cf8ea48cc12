//! Says on each NodePool whether it can be used as it is written (`ValidationSucceeded`).

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::NodePool;
use karpenter_api::conditions::StatusConditions;
use karpenter_api::labels::LabelRules;
use karpenter_api::node_pool::VALIDATION_SUCCEEDED;
use karpenter_api::validation;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Result;
use crate::events::{self, Regarding};
use crate::runner::{Controller, Next, Reconcile, Runnable};

const CONCURRENCY: usize = 10;

/// Sets the condition by what the rules find.
pub fn judge(pool: &mut NodePool, rules: &LabelRules, now: Timestamp) {
    let findings = pool.validate(rules);
    let _ = if findings.is_empty() {
        pool.set_true(VALIDATION_SUCCEEDED, now)
    } else {
        pool.set_false(
            VALIDATION_SUCCEEDED,
            "NodePoolValidationFailed",
            &validation::message(&findings),
            now,
        )
    };
}

/// The `nodepool.validation` controller.
pub fn controller(ctx: &Context) -> Runnable {
    Controller::new(&ctx.runner, "nodepool.validation")
        .about("karpenter.sh", "NodePool")
        .concurrency(CONCURRENCY)
        .runs(&ctx.pools, ctx.manages_pool(), Validation { ctx: ctx.clone() })
}

struct Validation {
    ctx: Context,
}

impl Reconcile<NodePool> for Validation {
    async fn reconcile(&self, pool: Arc<NodePool>) -> Result<Next> {
        for note in pool.validation_notes(&self.ctx.rules) {
            tracing::info!(NodePool = pool.name_any(), %note, "nodepool will not do all it says");
        }
        let mut changed = (*pool).clone();
        judge(&mut changed, &self.ctx.rules, self.ctx.clock.now());
        self.ctx.pool_writer.write(&pool, &changed).await?;
        self.publish_doubts(&pool).await;
        Ok(Next::Wait)
    }
}

impl Validation {
    /// What the provider finds questionable about the pool; it keeps nobody from using it.
    async fn publish_doubts(&self, pool: &NodePool) {
        match self.ctx.cloud.validate_node_pool(pool).await {
            Ok(doubts) => {
                let doubt = |doubt: karpenter_cloud::provider::Finding| {
                    events::node_pool_doubt(Regarding::of(pool), &doubt.reason, &doubt.message)
                };
                self.ctx.events.publish_all(doubts.into_iter().map(doubt));
            }
            Err(error) => {
                tracing::debug!(NodePool = pool.name_any(), %error, "the provider could not judge the nodepool");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(capacity_types: &str, status: &str) {
        let mut pool: NodePool = serde_norway::from_str(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: p}}, spec: {{template: {{spec: {{requirements: \
             [{{key: karpenter.sh/capacity-type, operator: In, values: {capacity_types}}}], \
             nodeClassRef: {{group: g, kind: K, name: n}}}}}}}}}}"
        ))
        .unwrap();
        judge(&mut pool, &LabelRules::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(
            pool.condition(VALIDATION_SUCCEEDED).unwrap().status.as_str(),
            status,
            "{capacity_types}"
        );
    }

    #[test]
    fn one_known_capacity_type_is_enough() {
        check("[bad]", "False");
        check("[bad, spot]", "True");
    }
}
