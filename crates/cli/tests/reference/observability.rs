//! The chart's dashboards and alerts ask for metrics and labels that exist, and every alert has a page that explains it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use regex::Regex;
use serde_json::Value;

use crate::metrics::{Metric, all};
use crate::{read, repository};

/// Labels that Prometheus adds by itself.
const ADDED: [&str; 7] = ["le", "quantile", "job", "namespace", "pod", "instance", "service"];

#[test]
fn dashboards_ask_for_metrics_and_labels_that_exist() {
    let metrics = by_name();
    let files = files("charts/karpenter/files/dashboards");
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    for wanted in ["cost", "disruption", "overview", "provider-api", "provisioning"] {
        assert!(
            names.contains(&format!("{wanted}.json").as_str()),
            "no dashboard {wanted}"
        );
    }
    let mut ids = BTreeSet::new();
    for (file, text) in files {
        let dashboard: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            ids.insert(dashboard["uid"].as_str().unwrap().to_owned()),
            "{file}: uid is not unique"
        );
        let mut queries = Vec::new();
        expressions(&dashboard, &mut queries);
        assert!(!queries.is_empty(), "{file} asks for nothing");
        for query in queries {
            check_query(&file, &query, &metrics);
        }
    }
}

#[test]
fn alerts_ask_for_metrics_and_labels_that_exist() {
    let metrics = by_name();
    for (file, text) in files("charts/karpenter/files/alerts") {
        // Alerts about a provider mean something once the provider measures.
        let subject = format!("{}_", file.trim_end_matches(".yaml"));
        let has_metrics = |name: &String| name.starts_with(&format!("karpenter_{subject}"));
        if file != "karpenter.yaml" && !metrics.keys().any(has_metrics) {
            continue;
        }
        for (_, rule) in rules(&text) {
            check_query(&file, rule["expr"].as_str().unwrap(), &metrics);
        }
    }
}

#[test]
fn every_alert_says_how_grave_it_is_and_where_it_is_explained() {
    let page = read("docs/troubleshooting.md");
    let mut seen = BTreeSet::new();
    for (file, text) in files("charts/karpenter/files/alerts") {
        for (name, rule) in rules(&text) {
            assert!(seen.insert(name.clone()), "{file}: {name} is there twice");
            let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
            assert!(
                ["critical", "warning"].contains(&severity),
                "{file}: {name} has no severity"
            );
            for annotation in ["summary", "description"] {
                assert!(
                    rule["annotations"][annotation].is_string(),
                    "{file}: {name} has no {annotation}"
                );
            }
            assert!(
                page.contains(&format!("### {name}\n")),
                "docs/troubleshooting.md does not explain {name}"
            );
        }
    }
    assert!(!seen.is_empty());
}

fn by_name() -> BTreeMap<String, Metric> {
    all().into_iter().map(|metric| (metric.name.clone(), metric)).collect()
}

fn files(folder: &str) -> BTreeMap<String, String> {
    fs::read_dir(repository(folder))
        .unwrap_or_else(|error| panic!("{folder}: {error}"))
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

/// The alerts of a file with their names.
fn rules(text: &str) -> Vec<(String, Value)> {
    let groups: Value = serde_norway::from_str(text).unwrap();
    let rules = groups
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone()))
        .collect()
}

/// Every `expr`, and every query of a variable, anywhere in a dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(children) => {
            for (key, child) in children {
                match child.as_str() {
                    Some(text) if key == "expr" || key == "definition" => found.push(text.to_owned()),
                    _ => expressions(child, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

fn check_query(file: &str, query: &str, metrics: &BTreeMap<String, Metric>) {
    let name = Regex::new(
        r"\b(?:karpenter|operator|controller_runtime|workqueue|client_go|process|leader_election)_[a-z0-9_]+",
    )
    .unwrap();
    let mut labels: BTreeSet<&str> = ADDED.into();
    let mut asked = 0;
    for found in name.find_iter(query) {
        let bare = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| metrics.get(found.as_str().strip_suffix(suffix)?));
        let metric = metrics.get(found.as_str()).or(bare);
        let metric = metric.unwrap_or_else(|| panic!("{file}: {} is no metric of ours: {query}", found.as_str()));
        labels.extend(metric.labels.iter().map(String::as_str));
        asked += 1;
    }
    assert!(asked > 0, "{file}: no metric in {query}");
    let grouped = Regex::new(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)").unwrap();
    let selected = Regex::new(r"\{([^}]*)\}").unwrap();
    let matcher = Regex::new(r#"([a-z_]+)\s*(?:=~|!~|!=|=)\s*""#).unwrap();
    let of_groups = grouped.captures_iter(query).flat_map(|found| {
        found
            .get(1)
            .unwrap()
            .as_str()
            .split(',')
            .map(str::trim)
            .collect::<Vec<_>>()
    });
    let of_selectors = selected.captures_iter(query).flat_map(|found| {
        let selector = found.get(1).unwrap().as_str();
        matcher
            .captures_iter(selector)
            .map(|label| label.get(1).unwrap().as_str())
            .collect::<Vec<_>>()
    });
    for label in of_groups.chain(of_selectors).filter(|label| !label.is_empty()) {
        assert!(
            labels.contains(label),
            "{file}: no metric of the query has the label {label}: {query}"
        );
    }
}
