//! Metrics of voluntary disruption (disruption.md §13).

use std::time::Duration;

use karpenter_engine::disruption::{Budgets, Command, Decision, Method};

use crate::metrics::{Counter, DURATION_BUCKETS, Gauge, Histogram, Registry};

#[derive(Debug)]
pub(super) struct DisruptionMetrics {
    evaluation: Histogram<2>,
    decisions: Counter<3>,
    decisions_by_pool: Counter<4>,
    terminate_first: Counter<3>,
    eligible: Gauge<1>,
    timeouts: Counter<1>,
    failed_validations: Counter<1>,
    queue_failures: Counter<3>,
    allowed: Gauge<2>,
    consuming: Gauge<2>,
    scores: Histogram<3>,
    moves: Counter<3>,
}

impl DisruptionMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let metrics = Self {
            evaluation: registry.histogram(
                "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
                "How long a disruption method took, its validation included.",
                ["reason", "consolidation_type"],
                DURATION_BUCKETS,
            ),
            decisions: registry.counter(
                "karpenter_voluntary_disruption_decisions_total",
                "Disruption commands that were started.",
                ["decision", "reason", "consolidation_type"],
            ),
            decisions_by_pool: registry.counter(
                "karpenter_voluntary_disruption_decisions_by_nodepool_total",
                "Disruption commands that were started, once for each NodePool that they touch.",
                ["nodepool", "decision", "reason", "consolidation_type"],
            ),
            terminate_first: registry.counter(
                "karpenter_voluntary_disruption_terminate_first_decisions_total",
                "Nodes that were let go before their replacement came, and why.",
                ["nodepool", "reason", "terminate_first_reason"],
            ),
            eligible: registry.gauge(
                "karpenter_voluntary_disruption_eligible_nodes",
                "Nodes that a disruption method could choose from.",
                ["reason"],
            ),
            timeouts: registry.counter(
                "karpenter_voluntary_disruption_consolidation_timeouts_total",
                "Consolidation searches that ran out of time.",
                ["consolidation_type"],
            ),
            failed_validations: registry.counter(
                "karpenter_voluntary_disruption_failed_validations_total",
                "Candidates whose command did not pass its validation.",
                ["consolidation_type"],
            ),
            queue_failures: registry.counter(
                "karpenter_voluntary_disruption_queue_failures_total",
                "Replacements that did not come up, so that their command was taken back.",
                ["decision", "reason", "consolidation_type"],
            ),
            allowed: registry.gauge(
                "karpenter_nodepools_allowed_disruptions",
                "Nodes of a NodePool that its budgets allow to be disrupted at once.",
                ["nodepool", "reason"],
            ),
            consuming: registry.gauge(
                "karpenter_nodepools_nodes_consuming_budgets",
                "Nodes of a NodePool that are being disrupted and so count against its budgets.",
                ["nodepool", "reason"],
            ),
            scores: registry.histogram(
                "karpenter_consolidation_score",
                "Share of the pool's cost that a move saves, over the share of its pods that it disturbs.",
                ["decision", "nodepool", "policy"],
                &[0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0],
            ),
            moves: registry.counter(
                "karpenter_consolidation_moves_total",
                "Consolidation moves that were found, by whether their score was good enough.",
                ["decision", "nodepool", "policy"],
            ),
        };
        for kind in ["multi", "single"] {
            metrics.timeouts.add([kind], 0);
        }
        metrics
    }

    pub(super) fn evaluated(&self, method: Method, took: Duration) {
        self.evaluation
            .observe([reason(method), method.consolidation_type()], took.as_secs_f64());
    }

    pub(super) fn eligible(&self, method: Method, nodes: usize) {
        self.eligible.set([reason(method)], nodes as f64);
    }

    pub(super) fn budgets(&self, budgets: &Budgets) {
        for (pool, budget) in budgets.iter() {
            self.allowed
                .set([pool, budgets.reason.as_str()], f64::from(budget.allowed));
            self.consuming
                .set([pool, budgets.reason.as_str()], f64::from(budget.disrupting));
        }
    }

    pub(super) fn started(&self, command: &Command) {
        let (decision, method) = (command.decision().as_str(), command.method);
        self.decisions
            .inc([decision, reason(method), method.consolidation_type()]);
        let pools: std::collections::BTreeSet<&str> = command
            .candidates
            .iter()
            .map(|candidate| candidate.pool.as_str())
            .collect();
        for pool in pools {
            self.decisions_by_pool
                .inc([pool, decision, reason(method), method.consolidation_type()]);
            if let Some(why) = command
                .terminate_first
                .filter(|_| command.decision() == Decision::TerminateFirst)
            {
                self.terminate_first.inc([pool, reason(method), why.as_str()]);
            }
        }
    }

    pub(super) fn timed_out(&self, method: Method) {
        self.timeouts.inc([method.consolidation_type()]);
    }

    pub(super) fn failed_validation(&self, method: Method, candidates: usize) {
        self.failed_validations
            .add([method.consolidation_type()], candidates as u64);
    }

    pub(super) fn queue_failed(&self, command: &Command, replacements: usize) {
        let labels = [
            command.decision().as_str(),
            reason(command.method),
            command.method.consolidation_type(),
        ];
        self.queue_failures.add(labels, replacements as u64);
    }

    /// A move was found that touches these pools; `policy` is the pool's own word for it.
    pub(super) fn moved<'a>(&self, command: &Command, policy: impl Fn(&str) -> &'a str) {
        self.judged("approved", command, policy);
    }

    /// A batch of nodes was found that is not worth it to a Balanced pool, and none other.
    pub(super) fn refused<'a>(&self, command: &Command, policy: impl Fn(&str) -> &'a str) {
        self.judged("rejected", command, policy);
    }

    fn judged<'a>(&self, decision: &str, command: &Command, policy: impl Fn(&str) -> &'a str) {
        let pools: std::collections::BTreeSet<&str> = command
            .candidates
            .iter()
            .map(|candidate| candidate.pool.as_str())
            .collect();
        for pool in pools {
            self.moves.inc([decision, pool, policy(pool)]);
        }
        for score in &command.scores {
            self.scores
                .observe([decision, &score.pool, policy(&score.pool)], score.value);
        }
    }

    /// A move was found that a Balanced pool does not think worth it.
    pub(super) fn not_worth_it(&self, pool: &str, policy: &str, score: f64) {
        self.moves.inc(["rejected", pool, policy]);
        self.scores.observe(["rejected", pool, policy], score);
    }
}

/// The metric's spelling of a reason: lower case.
pub(super) fn reason(method: Method) -> &'static str {
    match method {
        Method::Repair => "unhealthy",
        Method::Emptiness => "empty",
        Method::StaticDrift | Method::Drift => "drifted",
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => "underutilized",
    }
}
