//! The arrows between crates that docs/architecture.md promises.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

fn cargo(arguments: &[&str]) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--offline")
        .current_dir(workspace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a crate links, as if it were built alone.
fn linked(package: &str) -> BTreeSet<String> {
    let tree = cargo(&[
        "tree", "-p", package, "-e", "normal", "--prefix", "none", "--format", "{p}",
    ]);
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The crates of this workspace that each crate of it depends on, tests aside.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours = |name: &str| name == "karpenter" || name.starts_with("karpenter-");
    let dependencies = |package: &serde_json::Value| {
        let normal = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"].is_null());
        normal
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|name| ours(name))
            .map(str::to_owned)
            .collect()
    };
    packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap().to_owned(), dependencies(package)))
        .collect()
}

#[test]
fn api_and_engine_know_no_runtime_no_http_and_no_cluster() {
    for package in ["karpenter-api", "karpenter-engine"] {
        let linked = linked(package);
        assert!(linked.contains("serde"), "cargo tree lists {package}'s dependencies");
        for forbidden in [
            "tokio",
            "hyper",
            "reqwest",
            "kube-client",
            "kube-runtime",
            "async-trait",
        ] {
            assert!(!linked.contains(forbidden), "{package} links {forbidden}");
        }
    }
}

#[test]
fn dependencies_point_one_way() {
    // Each crate may depend on those before it that its entry names.
    let allowed: BTreeMap<&str, &[&str]> = [
        ("karpenter-api", &[][..]),
        ("karpenter-engine", &["karpenter-api"]),
        ("karpenter-cloud", &["karpenter-api", "karpenter-engine"]),
        ("karpenter-sandbox", &["karpenter-api"]),
        (
            "karpenter-core",
            &["karpenter-api", "karpenter-engine", "karpenter-cloud"],
        ),
        // The behaviour suite runs on the real API server, too, and the simulated clouds give it nodes.
        (
            "karpenter-e2e",
            &[
                "karpenter-api",
                "karpenter-bizflycloud",
                "karpenter-cloud",
                "karpenter-cloudstack",
                "karpenter-ovhcloud",
                "karpenter-sandbox",
            ],
        ),
    ]
    .into();
    let provider: &[&str] = &["karpenter-api", "karpenter-engine", "karpenter-cloud"];
    for (package, dependencies) in arrows() {
        let allowed = match package.as_str() {
            "karpenter" | "karpenter-dashboard" => continue,
            known if allowed.contains_key(known) => allowed[known],
            _ => provider,
        };
        for dependency in dependencies {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{package} must not depend on {dependency}"
            );
        }
    }
}
