//! What upstream's disruption methods decided on recorded clusters, and what ours decide on the same.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use karpenter_engine::disruption::{Command, Method, forecast};
use karpenter_engine::model::Options;
use serde_json::Value;

use super::{Market, Timestamps, read};
use crate::manifests::Sources;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    sources: Sources,
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/disruption");
    let mut cases: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("upstream.json").exists());
    cases.sort();
    cases
}

fn decide(case: &Path, method: Method) -> Option<Command> {
    let market = Market::load(Some(&case.join("types.json"))).unwrap();
    let arguments = Arguments::parse_from(["test", "-f", case.join("cluster").to_str().unwrap()]);
    let now = "2026-11-15T12:00:00Z".parse().unwrap();
    let cluster = read(
        &arguments.sources,
        &market,
        Options {
            now,
            ..Options::default()
        },
    )
    .unwrap();
    let fleet = cluster.disruption.fleet(&cluster.snapshot, Timestamps::Count);
    forecast::attempt(&fleet, method).ok()
}

/// Decision, nodes and the price of the replacement, as one text.
fn ours(command: Option<&Command>) -> String {
    let Some(command) = command else {
        return "nothing".to_owned();
    };
    let mut nodes: Vec<&str> = command.candidates.iter().map(|candidate| candidate.name()).collect();
    nodes.sort_unstable();
    let price = command
        .replacements
        .first()
        .and_then(|claim| claim.cheapest.as_ref())
        .map(|cheapest| cheapest.price);
    describe(command.decision().as_str(), &nodes, price)
}

fn upstream(command: Option<&Value>) -> String {
    let Some(command) = command else {
        return "nothing".to_owned();
    };
    let mut nodes: Vec<&str> = command["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node.as_str().unwrap())
        .collect();
    nodes.sort_unstable();
    let price = command["replacements"]
        .get(0)
        .and_then(|replacement| replacement["price"].as_f64());
    describe(command["decision"].as_str().unwrap(), &nodes, price)
}

fn describe(decision: &str, nodes: &[&str], price: Option<f64>) -> String {
    let price = price.map(|price| format!(" for {price:.5}")).unwrap_or_default();
    format!("{decision} {}{price}", nodes.join(","))
}

#[test]
fn each_method_decides_first_what_upstream_decides() {
    let methods = [
        Method::Emptiness,
        Method::MultiNodeConsolidation,
        Method::SingleNodeConsolidation,
    ];
    let mut differences = Vec::new();
    let cases = cases();
    assert!(!cases.is_empty());
    for case in &cases {
        let recorded: Value = serde_json::from_slice(&fs::read(case.join("upstream.json")).unwrap()).unwrap();
        for method in methods {
            // Upstream breaks ties by chance: any of its runs will do.
            let accepted: Vec<String> = recorded["runs"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|run| run.as_array().unwrap())
                .filter(|entry| entry["method"] == method.as_str())
                .map(|entry| upstream(entry["commands"].get(0)))
                .collect();
            let decided = ours(decide(case, method).as_ref());
            if !accepted.contains(&decided) {
                let name = case.file_name().unwrap().to_string_lossy();
                differences.push(format!(
                    "{name} {}: {decided}; upstream: {}",
                    method.as_str(),
                    accepted[0]
                ));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
