//! The `Balanced` policy: a move must save at least half as large a share of the pool's cost as it disturbs of its pods.

use std::collections::BTreeMap;

use karpenter_api::node_pool::ConsolidationPolicy;

use super::candidate::Candidate;
use super::cost;
use super::fleet::Fleet;

/// A move is approved from this score on: 1/k with k = 2.
pub const THRESHOLD: f64 = 0.5;

/// What a whole pool costs and how much there is to disturb, taken once per method run (disruption.md §3.7).
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pools: BTreeMap<String, Total>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    cost: f64,
    disruption: f64,
}

/// How a command did in one Balanced pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    pub pool: String,
    pub value: f64,
}

impl Totals {
    /// Over every node of the pools that have a candidate: nodes that can't be disturbed now still count.
    pub fn of(fleet: &Fleet, candidates: &[Candidate]) -> Totals {
        let mut pools: BTreeMap<String, Total> = BTreeMap::new();
        for candidate in candidates {
            pools.entry(candidate.pool.clone()).or_default().cost += candidate.price;
        }
        for (name, total) in &mut pools {
            let tracked = fleet.pools.get(name).map_or(0.0, |policy| policy.tracked_cost);
            if tracked > 0.0 {
                total.cost = tracked;
            }
        }
        for member in fleet.members.iter() {
            if let Some(total) = member.pool().and_then(|pool| pools.get_mut(pool)) {
                total.disruption += cost::rescheduling(&member.node, fleet.gates.deletion_cost);
            }
        }
        Totals { pools }
    }

    /// Scores of the Balanced pools that a move touches; an empty answer means that no pool has a say.
    pub fn score(&self, fleet: &Fleet, candidates: &[&Candidate], savings: f64) -> Vec<Score> {
        let mut shares: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for candidate in candidates {
            let (price, disruption) = shares.entry(candidate.pool.as_str()).or_default();
            *price += candidate.price;
            *disruption += candidate.rescheduling_cost;
        }
        let touches_one = shares.len() == 1;
        let prices: f64 = shares.values().map(|(price, _)| price).sum();
        shares
            .into_iter()
            .filter(|(pool, _)| is_balanced(fleet, pool))
            .map(|(pool, (price, disruption))| {
                let share = if touches_one || prices <= 0.0 {
                    savings
                } else {
                    savings * price / prices
                };
                Score {
                    pool: pool.to_owned(),
                    value: self.value(pool, share, disruption),
                }
            })
            .collect()
    }

    /// The score that deleting this node outright would have, the best that could happen to it; `None` when the pool is
    /// not Balanced, or when there is nothing to compare with.
    pub fn best_score(&self, fleet: &Fleet, candidate: &Candidate) -> Option<f64> {
        let is_known = self.pools.get(&candidate.pool).is_some_and(|total| total.cost > 0.0);
        (is_known && is_balanced(fleet, &candidate.pool))
            .then(|| self.value(&candidate.pool, candidate.price, candidate.rescheduling_cost))
    }

    fn value(&self, pool: &str, savings: f64, disruption: f64) -> f64 {
        let Some(total) = self.pools.get(pool) else { return 0.0 };
        if total.cost <= 0.0 || total.disruption <= 0.0 || savings <= 0.0 {
            return 0.0;
        }
        let disturbed = disruption / total.disruption;
        if disturbed <= 0.0 {
            return f64::INFINITY;
        }
        (savings / total.cost) / disturbed
    }
}

fn is_balanced(fleet: &Fleet, pool: &str) -> bool {
    fleet
        .pools
        .get(pool)
        .is_some_and(|policy| policy.consolidation_policy == ConsolidationPolicy::Balanced)
}
