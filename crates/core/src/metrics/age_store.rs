//! Gauges that show how long something has lasted: they grow by themselves, so nobody has to keep updating them.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};
use rustc_hash::FxHashMap;

use crate::clock::Clock;

/// Since when something holds, with label values in the order of the gauge's labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// Label values.
    pub labels: Vec<String>,
    /// The moment that the gauge counts from.
    pub since: Timestamp,
}

/// A gauge of seconds whose series belong to keys (an object's name, usually).
#[derive(Clone)]
pub struct AgeStore(Arc<Inner>);

struct Inner {
    desc: Desc,
    name: String,
    help: String,
    labels: Vec<String>,
    clock: Clock,
    by_key: Mutex<FxHashMap<String, Vec<Since>>>,
}

impl AgeStore {
    pub(super) fn new(name: &str, help: &str, labels: &[String], clock: Clock) -> Self {
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels.to_vec(), Default::default())
            .expect("metric and label names are valid");
        Self(Arc::new(Inner {
            desc,
            name: name.to_owned(),
            help: help.to_owned(),
            labels: labels.to_vec(),
            clock,
            by_key: Mutex::default(),
        }))
    }

    /// Shows exactly `series` for `key`.
    pub fn update(&self, key: &str, series: Vec<Since>) {
        let mut by_key = self.0.by_key.lock();
        if series.is_empty() {
            by_key.remove(key);
        } else {
            by_key.insert(key.to_owned(), series);
        }
    }

    /// Removes all series of `key`.
    pub fn delete(&self, key: &str) {
        self.0.by_key.lock().remove(key);
    }
}

impl Collector for AgeStore {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.0.clock.now();
        let by_key = self.0.by_key.lock();
        let metrics: Vec<Metric> = by_key
            .values()
            .flatten()
            .map(|series| self.0.metric(series, now))
            .collect();
        let mut family = MetricFamily::default();
        family.set_name(self.0.name.clone());
        family.set_help(self.0.help.clone());
        family.set_field_type(MetricType::GAUGE);
        family.set_metric(metrics);
        vec![family]
    }
}

impl Inner {
    fn metric(&self, series: &Since, now: Timestamp) -> Metric {
        let pair = |(name, value): (&String, &String)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.clone());
            pair
        };
        let pairs: Vec<LabelPair> = self.labels.iter().zip(&series.labels).map(pair).collect();
        let mut gauge = Gauge::default();
        gauge.set_value(now.duration_since(series.since).as_secs_f64());
        let mut metric = Metric::from_label(pairs);
        metric.set_gauge(gauge);
        metric
    }
}

impl fmt::Debug for AgeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgeStore")
            .field("name", &self.0.name)
            .field("keys", &self.0.by_key.lock().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::metrics::Registry;

    #[test]
    fn an_age_grows_without_being_updated_and_goes_with_its_key() {
        let manual = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
        let registry = Registry::new(manual.clock());
        let ages = registry.age_store("karpenter_pods_unbound_time_seconds", "help", &["name".to_owned()]);
        ages.update(
            "web",
            vec![Since {
                labels: vec!["web".to_owned()],
                since: Timestamp::UNIX_EPOCH,
            }],
        );
        manual.advance(Duration::from_secs(90));
        assert!(
            registry
                .encode()
                .contains("karpenter_pods_unbound_time_seconds{name=\"web\"} 90")
        );
        ages.delete("web");
        assert!(!registry.encode().contains("web"));
    }
}
