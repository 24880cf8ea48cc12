//! What a metric is called and means, for the reference page and for checks of dashboards and alerts.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::proto::MetricType;

/// One metric, whether or not it has a series yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The full name, such as `karpenter_nodes_created_total`.
    pub name: String,
    /// How its values are to be read.
    pub kind: Kind,
    /// The labels of each series, in the order in which they were declared.
    pub labels: Vec<String>,
    /// A sentence.
    pub help: String,
}

/// The Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
    /// Keeps quantiles of observations.
    Summary,
    /// Has no type.
    Untyped,
}

impl Kind {
    /// The word that Prometheus uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }
}

impl Description {
    /// The metrics of a collector. Its families say their type even while they have no series.
    pub(super) fn of(collector: &dyn Collector) -> Vec<Self> {
        let kinds: BTreeMap<String, Kind> = collector
            .collect()
            .iter()
            .map(|family| {
                let kind = match family.get_field_type() {
                    MetricType::COUNTER => Kind::Counter,
                    MetricType::GAUGE => Kind::Gauge,
                    MetricType::HISTOGRAM => Kind::Histogram,
                    MetricType::SUMMARY => Kind::Summary,
                    MetricType::UNTYPED => Kind::Untyped,
                };
                (family.name().to_owned(), kind)
            })
            .collect();
        let describe = |desc: &&prometheus::core::Desc| Self {
            name: desc.fq_name.clone(),
            kind: kinds.get(&desc.fq_name).copied().unwrap_or(Kind::Untyped),
            labels: desc.variable_labels.clone(),
            help: desc.help.clone(),
        };
        collector.desc().iter().map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::Clock;
    use crate::metrics::{Kind, Registry};

    #[test]
    fn metrics_are_described_before_they_have_a_series() {
        let registry = Registry::new(Clock::system());
        registry.counter("karpenter_b_total", "Things.", ["zone"]);
        registry.summary("karpenter_a_seconds", "Times.", ["nodepool"]);
        registry.view("karpenter_c_seconds", "Ages.", &["name".to_owned()], |_| ());
        registry.histogram("karpenter_d_seconds", "Buckets.", [], &[1.0]);
        let found: Vec<(String, Kind, Vec<String>)> = registry
            .descriptions()
            .into_iter()
            .map(|described| (described.name, described.kind, described.labels))
            .collect();
        let expected = [
            ("karpenter_a_seconds", Kind::Summary, vec!["nodepool"]),
            ("karpenter_b_total", Kind::Counter, vec!["zone"]),
            ("karpenter_c_seconds", Kind::Gauge, vec!["name"]),
            ("karpenter_d_seconds", Kind::Histogram, vec![]),
        ]
        .map(|(name, kind, labels)| {
            (
                name.to_owned(),
                kind,
                labels.into_iter().map(str::to_owned).collect::<Vec<_>>(),
            )
        });
        assert_eq!(found, expected);
    }
}
