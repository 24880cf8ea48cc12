//! The examples of the repository do what they say: they validate, and their pods find nodes.

use std::path::Path;
use std::process::Command;

fn karpenter(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap()
}

#[test]
fn every_example_is_valid() {
    let output = karpenter(&["validate", "-f", "examples"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_command_of_the_readme_places_every_pod() {
    let output = karpenter(&[
        "simulate",
        "-f",
        "examples/kwok",
        "-f",
        "examples/workloads",
        "--disruption",
        "--fail-on-unschedulable",
        "-o",
        "json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let claims = report["newNodeClaims"].as_array().unwrap();
    let pods: usize = claims.iter().map(|claim| claim["pods"].as_array().unwrap().len()).sum();
    assert_eq!(pods, 32);
    assert_eq!(report["disruption"], serde_json::json!([]));
}
