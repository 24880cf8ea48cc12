//! Summaries: quantiles over the last ten minutes, which the Prometheus crate does not have.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType, Quantile};
use rustc_hash::FxHashMap;

use crate::clock::Clock;

const QUANTILES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];
const AGE_BUCKETS: usize = 5;
const SECONDS_PER_BUCKET: i64 = 10 * 60 / AGE_BUCKETS as i64;
/// More observations than this in two minutes are thinned out; the error of the quantiles stays far below 1 %.
const MOST_PER_BUCKET: usize = 4096;

/// A summary with `N` labels.
#[derive(Clone, Debug)]
pub struct Summary<const N: usize>(Arc<Inner<N>>);

#[derive(Debug)]
struct Inner<const N: usize> {
    desc: Desc,
    name: String,
    help: String,
    labels: [String; N],
    clock: Clock,
    series: Mutex<FxHashMap<[String; N], Window>>,
}

#[derive(Debug, Default)]
struct Window {
    count: u64,
    sum: f64,
    buckets: VecDeque<AgeBucket>,
}

#[derive(Debug)]
struct AgeBucket {
    /// The number of this stretch of time, counted from the epoch.
    period: i64,
    seen: u64,
    samples: Vec<f64>,
}

impl<const N: usize> Summary<N> {
    pub(super) fn new(name: &str, help: &str, labels: [&str; N], clock: Clock) -> Self {
        let labels = labels.map(str::to_owned);
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels.to_vec(), Default::default())
            .expect("metric and label names are valid");
        Self(Arc::new(Inner {
            desc,
            name: name.to_owned(),
            help: help.to_owned(),
            labels,
            clock,
            series: Mutex::default(),
        }))
    }

    /// Adds an observation.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        let now = self.0.clock.now();
        self.0
            .series
            .lock()
            .entry(labels.map(str::to_owned))
            .or_default()
            .observe(now, value);
    }

    /// How many observations there were, for tests.
    pub fn count(&self, labels: [&str; N]) -> u64 {
        self.0
            .series
            .lock()
            .get(&labels.map(str::to_owned))
            .map_or(0, |window| window.count)
    }
}

impl Window {
    fn observe(&mut self, now: Timestamp, value: f64) {
        self.count += 1;
        self.sum += value;
        let period = period(now);
        if self.buckets.back().is_none_or(|bucket| bucket.period != period) {
            self.buckets.push_back(AgeBucket {
                period,
                seen: 0,
                samples: Vec::new(),
            });
        }
        self.expire(period);
        let bucket = self.buckets.back_mut().expect("the current bucket was just made");
        bucket.seen += 1;
        if bucket.samples.len() < MOST_PER_BUCKET {
            bucket.samples.push(value);
        } else {
            // Overwrite at a stride that visits every slot: deterministic, and spread over the bucket's time.
            bucket.samples[(bucket.seen.wrapping_mul(2_654_435_761) % MOST_PER_BUCKET as u64) as usize] = value;
        }
    }

    fn expire(&mut self, current: i64) {
        while self
            .buckets
            .front()
            .is_some_and(|bucket| bucket.period <= current - AGE_BUCKETS as i64)
        {
            self.buckets.pop_front();
        }
    }

    fn quantiles(&mut self, now: Timestamp) -> Vec<Quantile> {
        self.expire(period(now));
        let mut samples: Vec<f64> = self
            .buckets
            .iter()
            .flat_map(|bucket| &bucket.samples)
            .copied()
            .collect();
        samples.sort_by(f64::total_cmp);
        QUANTILES
            .iter()
            .map(|quantile| {
                let mut shown = Quantile::default();
                shown.set_quantile(*quantile);
                shown.set_value(at(&samples, *quantile));
                shown
            })
            .collect()
    }
}

fn period(now: Timestamp) -> i64 {
    now.as_second().div_euclid(SECONDS_PER_BUCKET)
}

/// The smallest sample that is not below `quantile` of all of them; not a number when there is none.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

impl<const N: usize> Collector for Summary<N> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.0.clock.now();
        let mut family = MetricFamily::default();
        family.set_name(self.0.name.clone());
        family.set_help(self.0.help.clone());
        family.set_field_type(MetricType::SUMMARY);
        let mut metrics = Vec::new();
        for (values, window) in self.0.series.lock().iter_mut() {
            let mut summary = prometheus::proto::Summary::default();
            summary.set_sample_count(window.count);
            summary.set_sample_sum(window.sum);
            summary.set_quantile(window.quantiles(now));
            let pairs = self.0.labels.iter().zip(values).map(|(name, value)| {
                let mut pair = LabelPair::default();
                pair.set_name(name.clone());
                pair.set_value(value.clone());
                pair
            });
            let mut metric = Metric::from_label(pairs.collect());
            metric.set_summary(summary);
            metrics.push(metric);
        }
        family.set_metric(metrics);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::metrics::Registry;

    #[test]
    fn quantiles_cover_the_last_ten_minutes_and_sums_everything() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let registry = Registry::new(manual.clock());
        let summary = registry.summary("karpenter_nodes_termination_duration_seconds", "help", ["nodepool"]);
        for value in 1..=100 {
            summary.observe(["default"], f64::from(value));
        }
        let text = registry.encode();
        assert!(text.contains(r#"{nodepool="default",quantile="0.5"} 50"#), "{text}");
        assert!(text.contains(r#"{nodepool="default",quantile="0.99"} 99"#), "{text}");
        assert!(text.contains(r#"{nodepool="default",quantile="1"} 100"#), "{text}");
        manual.advance(Duration::from_secs(600));
        let text = registry.encode();
        assert!(text.contains(r#"quantile="0.5"} NaN"#), "{text}");
        assert!(text.contains(r#"_count{nodepool="default"} 100"#), "{text}");
    }
}
