//! Waits before pods are disturbed to save money, and has the planner look again (disruption.md §5).

use std::collections::BTreeSet;
use std::time::Duration;

use karpenter_engine::disruption::validation::{self, Invalid, Verdict};
use karpenter_engine::disruption::{Budgets, Command};

use super::{Memories, fleet, metrics::DisruptionMetrics, report};
use crate::context::Context;
use crate::provisioning::without_blocking;

/// Long enough for pods that were being scheduled to land, short enough not to hold up savings.
const DELAY: Duration = Duration::from_secs(15);

/// Waits, looks again, and leaves in the command what may still be done.
pub(super) async fn validate(
    ctx: &Context,
    metrics: &DisruptionMetrics,
    queued: &BTreeSet<String>,
    memories: &Memories,
    command: &mut Command,
) -> Result<(), Invalid> {
    ctx.clock.sleep(DELAY).await;
    let now = fleet::build(ctx, queued, memories).await;
    let budgets = Budgets::of(&now, command.method.reason());
    metrics.budgets(&budgets);
    report::exhausted_budgets(ctx, &budgets);
    let mut verdict = without_blocking(|| validation::validate(&now, command));
    if verdict.outcome.is_ok() {
        // The simulation took its time; pods may have arrived meanwhile.
        let now = fleet::build(ctx, queued, memories).await;
        let again = validation::revalidate(&now, command);
        verdict = Verdict {
            failed: verdict.failed + again.failed,
            ..again
        };
    }
    metrics.failed_validation(command.method, verdict.failed);
    verdict.outcome
}
