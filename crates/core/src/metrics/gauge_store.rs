//! Gauges that describe objects: when an object's series change or it goes away, the old ones disappear.

use parking_lot::Mutex;
use prometheus::GaugeVec;
use rustc_hash::FxHashMap;

/// One gauge value with its label values, in the order of the gauge's labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Label values.
    pub labels: Vec<String>,
    /// The value to show.
    pub value: f64,
}

/// A gauge whose series belong to keys (an object's name, usually).
#[derive(Debug)]
pub struct GaugeStore {
    gauge: GaugeVec,
    by_key: Mutex<FxHashMap<String, Vec<Vec<String>>>>,
}

impl GaugeStore {
    pub(super) fn new(gauge: GaugeVec) -> Self {
        Self {
            gauge,
            by_key: Mutex::default(),
        }
    }

    /// Shows exactly `series` for `key`; what `key` showed before and no longer does is removed.
    pub fn update(&self, key: &str, series: Vec<Series>) {
        let mut by_key = self.by_key.lock();
        let before = by_key.remove(key).unwrap_or_default();
        for labels in before {
            if !series.iter().any(|series| series.labels == labels) {
                self.remove(&labels);
            }
        }
        for Series { labels, value } in &series {
            self.gauge.with_label_values(labels).set(*value);
        }
        if !series.is_empty() {
            by_key.insert(key.to_owned(), series.into_iter().map(|series| series.labels).collect());
        }
    }

    /// Removes all series of `key`.
    pub fn delete(&self, key: &str) {
        self.update(key, Vec::new());
    }

    fn remove(&self, labels: &[String]) {
        // Removing what another key's identical series already removed is no error.
        let _ = self.gauge.remove_label_values(labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Registry;

    fn series(label: &str, value: f64) -> Series {
        Series {
            labels: vec![label.to_owned()],
            value,
        }
    }

    #[test]
    fn a_changed_label_set_replaces_the_old_one_and_deleted_keys_go() {
        let registry = Registry::new(Clock::system());
        let store = registry.gauge_store("karpenter_pods_state", "help", &["phase".to_owned()]);
        store.update("a", vec![series("Pending", 1.0)]);
        store.update("a", vec![series("Running", 1.0)]);
        let text = registry.encode();
        assert!(
            text.contains(r#"phase="Running""#) && !text.contains("Pending"),
            "{text}"
        );
        store.update("b", vec![series("Failed", 2.0)]);
        store.delete("a");
        let text = registry.encode();
        assert!(
            text.contains(r#"phase="Failed"} 2"#) && !text.contains("Running"),
            "{text}"
        );
    }
}
