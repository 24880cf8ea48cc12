//! Stops a rollout that does not work: drift of a NodePool whose replacements keep failing (opt-in, by annotation).

use std::collections::BTreeMap;

use karpenter_api::NodePool;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::context::Context;

/// How many replacements of drifted nodes failed in a row, per NodePool. Memory only: after a restart it is tried again.
#[derive(Debug, Default)]
pub(super) struct Rollouts(Mutex<BTreeMap<String, Failures>>);

#[derive(Debug)]
struct Failures {
    of: Version,
    count: u32,
}

/// What new nodes are made from. Another version is another rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Version {
    pool: i64,
    class: i64,
}

impl Rollouts {
    /// A replacement of a drifted node did not come up.
    pub(super) fn failed(&self, ctx: &Context, pool: &str) {
        let Some(object) = ctx.pools.named(pool) else { return };
        let version = version(ctx, &object);
        let mut failures = self.0.lock();
        let entry = failures
            .entry(pool.to_owned())
            .or_insert(Failures { of: version, count: 0 });
        if entry.of != version {
            *entry = Failures { of: version, count: 0 };
        }
        entry.count += 1;
    }

    /// A replacement came up: what is rolled out works.
    pub(super) fn succeeded(&self, pool: &str) {
        self.0.lock().remove(pool);
    }

    /// Whether so many failed in a row since the NodePool or its NodeClass last changed.
    pub(super) fn is_halted(&self, ctx: &Context, pool: &NodePool, after: u32) -> bool {
        let failures = self.0.lock();
        let failed = failures.get(&pool.name_any());
        failed.is_some_and(|failed| failed.count >= after && failed.of == version(ctx, pool))
    }
}

fn version(ctx: &Context, pool: &NodePool) -> Version {
    let class = ctx.node_classes.get(&pool.spec.template.spec.node_class_ref);
    Version {
        pool: pool.metadata.generation.unwrap_or_default(),
        class: class.map_or(0, |class| class.generation),
    }
}
