//! Same decisions as upstream on recorded cases: the same pods left over, as many nodes (±1 where upstream itself varies),
//! and a price not above its dearest run; equal where constraints leave no choice.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{fixtures, run};

struct Verdict {
    nodes: usize,
    cost: f64,
    unschedulable: BTreeSet<String>,
}

fn ours(case: &str) -> Verdict {
    let (_, number) = case.rsplit_once('-').unwrap();
    let cluster = fixtures().join(case).join("cluster.json");
    let types = fixtures().join(format!("types-{number}.json"));
    let output = run(
        &[
            "-f",
            cluster.to_str().unwrap(),
            "--instance-types",
            types.to_str().unwrap(),
            "-o",
            "json",
        ],
        "",
    );
    assert!(
        output.status.success(),
        "{case}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let claims = report["newNodeClaims"].as_array().unwrap();
    let unschedulable = report["unschedulable"].as_array().unwrap();
    Verdict {
        nodes: claims.len(),
        cost: claims
            .iter()
            .map(|claim| claim["cheapest"]["price"].as_f64().unwrap())
            .sum(),
        unschedulable: unschedulable
            .iter()
            .map(|pod| pod["pod"].as_str().unwrap().to_owned())
            .collect(),
    }
}

fn upstream(case: &str) -> Vec<Verdict> {
    let text = std::fs::read_to_string(fixtures().join(case).join("upstream.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let runs = recorded["runs"].as_array().unwrap().iter().map(|run| Verdict {
        nodes: usize::try_from(run["nodes"].as_u64().unwrap()).unwrap(),
        cost: run["cost"].as_f64().unwrap(),
        unschedulable: run["unschedulable"]
            .as_array()
            .map(|pods| pods.iter().map(|pod| pod.as_str().unwrap().to_owned()).collect())
            .unwrap_or_default(),
    });
    runs.collect()
}

/// What differs from upstream, as sentences.
fn differences(case: &str) -> Vec<String> {
    const CENT_OF_A_CENT: f64 = 1e-4;
    let (ours, runs) = (ours(case), upstream(case));
    let mut found = Vec::new();
    if !runs.iter().any(|run| run.unschedulable == ours.unschedulable) {
        let upstream = &runs[0].unschedulable;
        found.push(format!(
            "{case}: unschedulable {:?}, upstream {upstream:?}",
            ours.unschedulable
        ));
    }
    let fewest = runs.iter().map(|run| run.nodes).min().unwrap();
    let most = runs.iter().map(|run| run.nodes).max().unwrap();
    let dearest = runs.iter().map(|run| run.cost).fold(0.0, f64::max);
    let exact = case.starts_with("generic") || case.starts_with("select");
    let slack = if exact { 0 } else { 1 };
    if ours.nodes + slack < fewest || ours.nodes > most + slack {
        found.push(format!("{case}: {} nodes, upstream {fewest} to {most}", ours.nodes));
    }
    if ours.cost > dearest + CENT_OF_A_CENT || exact && (ours.cost - dearest).abs() > CENT_OF_A_CENT {
        found.push(format!("{case}: cost {:.6}, upstream at most {dearest:.6}", ours.cost));
    }
    found
}

/// Cases by the first word of their name.
fn check(family: &str) {
    let directory = std::fs::read_dir(fixtures()).unwrap();
    let mut cases: Vec<String> = directory
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.split('-').next() == Some(family) && fixtures().join(name).is_dir())
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    let found: Vec<String> = cases.iter().flat_map(|case| differences(case)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn plain_pods_are_packed_as_upstream_packs_them() {
    check("generic");
}

#[test]
fn selectors_and_tolerations_are_decided_as_upstream_does() {
    check("select");
}

#[test]
fn topology_spread_is_decided_as_upstream_does() {
    check("spread");
}

#[test]
fn mixed_constraints_are_decided_as_upstream_does() {
    check("diverse");
}

#[test]
fn preferences_are_decided_as_upstream_does() {
    check("prefer");
}

#[test]
fn everything_together_is_decided_as_upstream_does() {
    check("all");
}
