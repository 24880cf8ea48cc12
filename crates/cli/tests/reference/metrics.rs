//! docs/reference/metrics.md: every metric, as the code registers it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use karpenter_core::clock::Clock;
use karpenter_core::metrics::Description;
use karpenter_core::operator::{Build, Operator, Setup};
use karpenter_core::options::{FeatureGates, Options};
use karpenter_kwok::{Catalogue, KwokProvider};
use karpenter_sandbox::Sandbox;
use regex::Regex;

use crate::sources::{provider_folders, sources, unescaped};
use crate::{cell, check_page};

/// A row of the page.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) name: String,
    kind: String,
    pub(crate) labels: Vec<String>,
    help: String,
}

impl From<Description> for Metric {
    fn from(described: Description) -> Self {
        Self {
            name: described.name,
            kind: described.kind.as_str().to_owned(),
            labels: described.labels,
            help: described.help,
        }
    }
}

#[test]
fn the_reference_of_metrics_is_current() {
    check_page("docs/reference/metrics.md", &page());
}

/// A name in the source that the page does not have would be a metric that nobody finds.
#[test]
fn every_metric_name_in_the_source_is_on_the_page() {
    let known: BTreeSet<String> = all().into_iter().map(|metric| metric.name).collect();
    let name = Regex::new(r#""(karpenter_[a-z0-9_]*[a-z0-9])""#).unwrap();
    let folders = provider_folders().into_iter().chain(["crates/core/src".to_owned()]);
    for (path, code) in folders.flat_map(|folder| sources(&folder)) {
        for found in name.captures_iter(&code) {
            assert!(
                known.contains(&found[1]),
                "{path}: {} is not registered with a name and a help text side by side",
                &found[1]
            );
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\nEvery metric on `/metrics` (port 8080), generated from the code. Names, labels and types are upstream's where \
         upstream has the metric. A histogram has `_bucket`, `_sum` and `_count`, a summary has quantiles, `_sum` and `_count`. The label that names a NodeClass \
         is the provider's own; the one shown is KWOK's.\n",
    );
    let mut groups: BTreeMap<String, Vec<Metric>> = BTreeMap::new();
    for metric in all() {
        groups.entry(group(&metric.name)).or_default().push(metric);
    }
    for (group, metrics) in groups {
        write!(
            page,
            "\n## {group}\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n"
        )
        .unwrap();
        for metric in metrics {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                metric.name,
                metric.kind,
                labels.join(", "),
                cell(&metric.help)
            )
            .unwrap();
        }
    }
    page
}

/// The part of the product that a metric is about.
fn group(name: &str) -> String {
    let subjects = [
        ("karpenter_nodeclaims_", "NodeClaims"),
        ("karpenter_nodepools_", "NodePools"),
        ("karpenter_nodes_", "Nodes"),
        ("karpenter_pods_", "Pods"),
        ("karpenter_scheduler_", "Scheduling"),
        ("karpenter_voluntary_disruption_", "Disruption"),
        ("karpenter_consolidation_", "Disruption"),
        ("karpenter_cloudprovider_", "Cloud provider"),
        ("karpenter_cloudstack_", "CloudStack"),
        ("karpenter_ovhcloud_", "OVHcloud"),
        ("karpenter_bizflycloud_", "BizFly Cloud"),
        ("karpenter_cluster_", "Cluster"),
        ("karpenter_", "Others"),
        ("operator_", "Status conditions"),
    ];
    let subject = subjects.iter().find(|(prefix, _)| name.starts_with(prefix));
    subject.map_or("Runtime", |(_, title)| title).to_owned()
}

/// Everything, by name: what core registers when all of it runs, then what the provider kit and the providers do.
pub(crate) fn all() -> Vec<Metric> {
    let mut metrics = of_core();
    metrics.extend(of_providers());
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    metrics.dedup_by(|a, b| a.name == b.name);
    metrics
}

fn of_core() -> Vec<Metric> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sandbox = Sandbox::builder().start();
        let client = sandbox.client();
        let clock = Clock::system();
        let options = Options {
            leader_election_namespace: "karpenter".to_owned(),
            feature_gates: FeatureGates {
                node_repair: true,
                node_overlay: true,
                static_capacity: true,
                capacity_buffer: true,
                terminate_first_drift: true,
                terminate_first_repair: true,
                pod_deletion_cost_management: true,
                ..FeatureGates::default()
            },
            ..Options::default()
        };
        let cloud = KwokProvider::new(client.clone(), clock.clone(), Catalogue::built_in());
        let operator = Operator::new(Setup {
            client: client.clone(),
            election_client: client,
            clock,
            options,
            cloud: Arc::new(cloud),
            build: Build::default(),
        })
        .unwrap();
        let _controllers = karpenter_core::controllers::all(operator.context());
        let registry = &operator.context().metrics.registry;
        registry.descriptions().into_iter().map(Metric::from).collect()
    })
}

/// Providers register with the Prometheus crate itself, which does not tell what it was given: the source does. A metric is a name
/// (whole, or what follows the prefix that the file states), a help text and, in brackets or as a constant, its labels, side by side.
fn of_providers() -> Vec<Metric> {
    let prefix = Regex::new(r#""(karpenter_[a-z]+_)[{"]"#).unwrap();
    let registration = Regex::new(r#""([a-z][a-z0-9_]+)",\s*"([A-Z](?:[^"\\]|\\(?s:.))*)""#).unwrap();
    let listed = Regex::new(r#"\[((?:\s*"[a-z_]+"\s*,?)*)\]"#).unwrap();
    let constant = Regex::new(r"&([A-Z][A-Z_]*)\b").unwrap();
    let label = Regex::new(r#""([a-z_]+)""#).unwrap();
    let kind = Regex::new(r"(?i)(counter|gauge|histogram)").unwrap();
    let mut metrics = Vec::new();
    for (_, code) in provider_folders().iter().flat_map(|folder| sources(folder)) {
        let prefix = prefix.captures(&code).map(|found| found[1].to_owned());
        for found in registration.captures_iter(&code) {
            let name = match (&prefix, found[1].starts_with("karpenter_")) {
                (_, true) => found[1].to_owned(),
                (Some(prefix), false) => format!("{prefix}{}", &found[1]),
                (None, false) => continue,
            };
            let whole = found.get(0).unwrap();
            let before = &code[floor(&code, whole.start().saturating_sub(160))..whole.start()];
            let rest = &code[whole.end()..];
            let after = &rest[..floor(rest, 300.min(rest.len()))];
            // The next registration's labels are not this one's.
            let after = &after[..registration.find(after).map_or(after.len(), |next| next.start())];
            let of_constant = || {
                let name = constant.captures(after)?[1].to_owned();
                let declared = code.split(&format!("const {name}: [&str;")).nth(1)?;
                Some(declared.split(';').next()?.to_owned())
            };
            let labels = listed
                .captures(after)
                .map(|list| list[1].to_owned())
                .or_else(of_constant);
            let labels = labels.unwrap_or_default();
            metrics.push(Metric {
                name,
                kind: kind
                    .find_iter(before)
                    .last()
                    .map_or_else(String::new, |word| word.as_str().to_lowercase()),
                labels: label.captures_iter(&labels).map(|name| name[1].to_owned()).collect(),
                help: unescaped(&found[2]),
            });
        }
    }
    metrics
}

/// The nearest character boundary at or before a byte.
fn floor(text: &str, mut byte: usize) -> usize {
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}
