//! What nodes have cost this month, and what could be saved: the page that the controller keeps in its ledger, and that
//! `karpenter cost` reads (§6.5).
//!
//! The month is the sum of what was seen: nodes are looked at once a minute, and each is paid for from the last look, or from
//! its server's beginning if that is later. Time that nobody watched is not paid for but told.

mod advice;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use advice::Recommendation;
pub(crate) use advice::{Saving, Way, recommendations};

/// The ConfigMap beside the controller that has the page, and its key there.
pub const CONFIG_MAP: &str = crate::ledger::NAME;
pub const PAGE: &str = "cost.json";

/// What a month has cost so far, and what could be saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostPage {
    /// The month that is counted, in UTC: `2026-11`.
    pub month: String,
    /// The first moment that is counted: the month's, or the first look's.
    pub since: Timestamp,
    /// The last look.
    pub at: Timestamp,
    /// How much of the time in between nobody watched. It is not counted.
    pub unwatched_seconds: u64,
    /// By name.
    pub node_pools: Vec<Spent>,
    pub recommended_at: Option<Timestamp>,
    /// The largest first.
    pub recommendations: Vec<Recommendation>,
}

/// What a NodePool has cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    pub node_pool: String,
    pub currency: String,
    pub amount: f64,
}

/// A node that is paid for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paid<'a> {
    pub(crate) node_pool: &'a str,
    pub(crate) currency: &'a str,
    pub(crate) hourly: f64,
    /// When its server began to cost, if that is known.
    pub(crate) since: Option<Timestamp>,
}

/// Looks that are further apart leave time in between that nobody watched; a restart takes less.
pub const LONGEST_GAP: Duration = Duration::from_secs(15 * 60);
/// A ConfigMap holds 1 MiB, and has other pages too.
const MOST_POOLS: usize = 200;
/// What the least of too many NodePools are summed up under; no NodePool can have this name.
const OTHERS: &str = "(others)";

impl CostPage {
    /// A page that begins now.
    pub(crate) fn begin(now: Timestamp) -> Self {
        Self {
            month: month(now),
            since: now,
            at: now,
            unwatched_seconds: 0,
            node_pools: Vec::new(),
            recommended_at: None,
            recommendations: Vec::new(),
        }
    }

    /// Whether the page is about the month of a moment.
    pub fn is_of_month(&self, now: Timestamp) -> bool {
        self.month == month(now)
    }

    /// Counts what nodes cost since the last look.
    pub(crate) fn count<'a>(&mut self, now: Timestamp, nodes: impl IntoIterator<Item = Paid<'a>>) {
        let longest = SignedDuration::try_from(LONGEST_GAP).expect("a few minutes");
        let apart = now.duration_since(self.at);
        if !self.is_of_month(now) {
            // A clock that is set right at the turn of the month: the new one comes back in a moment.
            if apart.is_negative() && -apart <= longest {
                return;
            }
            let was_watched = !apart.is_negative() && apart <= longest;
            *self = Self {
                recommended_at: self.recommended_at,
                recommendations: std::mem::take(&mut self.recommendations),
                ..Self::begin(if was_watched { first_moment(now) } else { now })
            };
        }
        let last = std::mem::replace(&mut self.at, now);
        self.since = self.since.min(now);
        let apart = now.duration_since(last);
        if apart > longest {
            self.unwatched_seconds += apart.as_secs().unsigned_abs();
        }
        let is_watched = !apart.is_negative() && apart <= longest;
        let mut spent: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for node in nodes {
            let from = node.since.map_or(last, |since| since.max(last));
            let hours = now.duration_since(from).as_secs_f64() / 3600.0;
            let amount = spent.entry((node.node_pool, node.currency)).or_default();
            if is_watched && hours > 0.0 {
                *amount += hours * node.hourly;
            }
        }
        for ((node_pool, currency), amount) in spent {
            self.add(node_pool, currency, amount);
        }
        self.sum_up_the_least();
        self.node_pools
            .sort_by(|a, b| (&a.node_pool, &a.currency).cmp(&(&b.node_pool, &b.currency)));
    }

    fn add(&mut self, node_pool: &str, currency: &str, amount: f64) {
        let is_own = |own: &&mut Spent| own.node_pool == node_pool && own.currency == currency;
        match self.node_pools.iter_mut().find(is_own) {
            Some(own) => own.amount += amount,
            None => self.node_pools.push(Spent {
                node_pool: node_pool.to_owned(),
                currency: currency.to_owned(),
                amount,
            }),
        }
    }

    fn sum_up_the_least(&mut self) {
        if self.node_pools.len() <= MOST_POOLS {
            return;
        }
        let weight = |own: &Spent| if own.node_pool == OTHERS { f64::MAX } else { own.amount };
        self.node_pools.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for least in self.node_pools.split_off(MOST_POOLS - 1) {
            self.add(OTHERS, &least.currency, least.amount);
        }
    }
}

fn month(at: Timestamp) -> String {
    at.strftime("%Y-%m").to_string()
}

fn first_moment(now: Timestamp) -> Timestamp {
    let first = format!("{}-01T00:00:00Z", month(now));
    first.parse().expect("every month has a first day")
}

#[cfg(test)]
mod tests;
