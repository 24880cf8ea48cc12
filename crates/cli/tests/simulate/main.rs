//! `karpenter simulate` from the outside: its contract, and parity with what upstream decided.

mod contract;
mod determinism;
mod docs;
mod inputs;
mod parity;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/scheduling")
}

/// Runs `karpenter simulate` with arguments and stdin.
fn run(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("simulate")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The JSON answer for manifests on stdin.
fn simulate(manifests: &str, arguments: &[&str]) -> Value {
    let output = run(&[&["-f", "-", "-o", "json"], arguments].concat(), manifests);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// A NodePool that allows everything.
const POOL: &str = "
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: default }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default }
      requirements:
      - { key: kubernetes.io/os, operator: In, values: [linux] }
";

/// A pod with a cpu request and further fields of its spec, as YAML flow entries.
fn pod(name: &str, cpu: &str, more: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{ name: {name}, labels: {{ app: {name} }} }}
spec: {{ containers: [{{ name: c, image: x, resources: {{ requests: {{ cpu: '{cpu}', memory: 128Mi }} }} }}]{more} }}
"
    )
}

fn pods_of(claim: &Value) -> Vec<&str> {
    claim["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod.as_str().unwrap())
        .collect()
}

fn claims(report: &Value) -> &[Value] {
    report["newNodeClaims"].as_array().unwrap()
}

fn without_timing(mut report: Value) -> Value {
    report["timing"] = json!(null);
    report
}
