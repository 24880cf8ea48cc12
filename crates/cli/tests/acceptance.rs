//! Every rule of the CRDs accepts and rejects what it should, offline: by the schema itself and by `karpenter validate`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use karpenter_api::acceptance::{Case, Verdict, cases};
use karpenter_api::crd;
use karpenter_sandbox::crd::Definition;
use serde_json::json;

fn definitions() -> BTreeMap<String, Definition> {
    crd::all()
        .iter()
        .map(|crd| (crd.kind().to_owned(), Definition::parse(crd.as_value()).unwrap()))
        .collect()
}

/// What the API server would say, as text; empty when it admits the object.
fn admission(definitions: &BTreeMap<String, Definition>, case: &Case) -> String {
    let schema = &definitions[case.object["kind"].as_str().unwrap()].versions[0].schema;
    let old = case.old.clone().map(|mut old| {
        schema
            .admit(&mut old, None)
            .expect("the object before an update is valid");
        old
    });
    match schema.admit(&mut case.object.clone(), old.as_ref()) {
        Ok(_) => String::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

#[test]
fn the_crds_admit_what_they_should() {
    let definitions = definitions();
    for case in cases() {
        let refusal = admission(&definitions, &case);
        let admitted = refusal.is_empty();
        let expected = case.verdict != Verdict::Rejected;
        assert_eq!(admitted, expected, "{}: {} {refusal}", case.rule, case.object);
    }
}

#[test]
fn validate_gives_the_same_verdicts_one_line_per_finding() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects.json");
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.old.is_none()).collect();
    let objects: Vec<_> = cases.iter().map(|case| &case.object).collect();
    fs::write(
        &file,
        json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string(),
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("validate")
        .arg("-f")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stdout).unwrap();
    let prefix = format!("{}:1: ", file.display());
    let named: BTreeSet<&str> = printed
        .lines()
        .map(|line| {
            let subject = line
                .strip_prefix(&prefix)
                .unwrap_or_else(|| panic!("{line} does not begin with {prefix}"));
            let (_, name) = subject.split_once(": ").unwrap().0.split_once('/').unwrap();
            name
        })
        .collect();
    for case in &cases {
        let name = case.object["metadata"]["name"].as_str().unwrap();
        let expected = case.verdict != Verdict::Accepted;
        assert_eq!(named.contains(name), expected, "{}: {}", case.rule, case.object);
    }
}

#[test]
fn every_kind_has_examples_on_both_sides() {
    let mut verdicts: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for case in cases() {
        let kind = case.object["kind"].as_str().unwrap().to_owned();
        verdicts
            .entry(kind)
            .or_default()
            .insert(case.verdict == Verdict::Accepted);
    }
    assert_eq!(verdicts.len(), 4);
    assert!(verdicts.values().all(|sides| sides.len() == 2));
}

#[test]
fn what_is_left_out_is_defaulted() {
    let definitions = definitions();
    let admit = |kind: &str| {
        let case = cases()
            .into_iter()
            .find(|case| case.object["kind"] == kind && case.verdict == Verdict::Accepted);
        let mut object = case.unwrap().object;
        definitions[kind].versions[0].schema.admit(&mut object, None).unwrap();
        object
    };
    let pool = admit("NodePool");
    assert_eq!(
        pool["spec"]["disruption"],
        json!({ "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{ "nodes": "10%" }] })
    );
    assert_eq!(pool["spec"]["template"]["spec"]["expireAfter"], "720h");
    assert_eq!(admit("NodeClaim")["spec"]["expireAfter"], "720h");
    assert_eq!(
        admit("CapacityBuffer")["spec"]["provisioningStrategy"],
        "buffer.x-k8s.io/active-capacity"
    );
}
