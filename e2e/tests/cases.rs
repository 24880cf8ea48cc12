//! What the runner says of itself, without a control plane.
//!
//! That there is such a test also has `cargo test --workspace` build the runner, from what it compiles anyway; alone it would be
//! built with fewer features, and most of its dependencies once more.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn listed(arguments: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter-e2e"))
        .arg("--list")
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn suites() -> BTreeSet<String> {
    let names = listed(&[]).into_iter();
    names
        .filter_map(|name| Some(name.split_once('/')?.0.to_owned()))
        .collect()
}

#[test]
fn no_two_cases_have_the_same_name() {
    let names = listed(&[]);
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert!(names.len() > 100, "{} cases", names.len());
    assert_eq!(distinct.len(), names.len());
}

#[test]
fn a_filter_chooses_cases_by_any_part_of_their_name() {
    let chosen = listed(&["zone_spread"]);
    assert!(chosen.len() >= 4, "KWOK and three clouds: {chosen:?}");
    assert!(chosen.iter().all(|name| name.contains("zone_spread")), "{chosen:?}");
    assert!(listed(&["no such case"]).is_empty());
}

#[test]
fn the_page_about_testing_tells_of_every_suite() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/testing.md");
    let page = std::fs::read_to_string(page).unwrap();
    // The suites of a provider share a row.
    let suites = suites();
    let missing: Vec<&str> = suites
        .iter()
        .filter_map(|suite| suite.split('-').next())
        .filter(|suite| {
            !page
                .lines()
                .any(|line| line.starts_with('|') && line.contains(&format!("`{suite}`")))
        })
        .collect();
    assert!(missing.is_empty(), "docs/testing.md does not tell of {missing:?}");
}
