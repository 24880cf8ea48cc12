//! The chart ships exactly what `karpenter crds` prints. `UPDATE_CRDS=1 cargo test -p karpenter --test crds` rewrites the files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/karpenter-crd/templates")
}

fn printed() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("crds")
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// File name → content, as the printed documents name themselves.
fn expected() -> BTreeMap<String, String> {
    let printed = printed();
    let documents = printed.split("---\n").filter(|document| !document.is_empty());
    let named = documents.map(|document| {
        let crd: serde_json::Value = serde_norway::from_str(document).unwrap();
        let (plural, group) = crd["metadata"]["name"].as_str().unwrap().split_once('.').unwrap();
        (format!("{group}_{plural}.yaml"), format!("---\n{document}"))
    });
    named.collect()
}

#[test]
fn the_chart_ships_the_crds_that_the_types_describe() {
    let expected = expected();
    if std::env::var_os("UPDATE_CRDS").is_some() {
        for (name, content) in &expected {
            fs::write(templates().join(name), content).unwrap();
        }
    }
    let shipped: BTreeMap<String, String> = fs::read_dir(templates())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read_to_string(entry.path()).unwrap(),
            )
        })
        .collect();
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&shipped),
        names(&expected),
        "run UPDATE_CRDS=1 cargo test -p karpenter --test crds"
    );
    for (name, content) in &expected {
        assert!(
            shipped[name] == *content,
            "{name} is out of date; run UPDATE_CRDS=1 cargo test -p karpenter --test crds"
        );
    }
}

#[test]
fn the_chart_version_is_the_workspace_version() {
    let chart = fs::read_to_string(templates().join("../Chart.yaml")).unwrap();
    let chart: serde_json::Value = serde_norway::from_str(&chart).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}
