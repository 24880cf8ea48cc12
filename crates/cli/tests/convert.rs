//! `karpenter convert`: old manifests in, valid new ones out, and a sentence for what can't be carried over.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn karpenter(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_example_becomes_manifests_that_validate() {
    let converted = karpenter(&["convert", "-f", "examples/bizflycloud/v1alpha5/provisioner.yaml"], "");
    assert!(
        converted.status.success(),
        "{}",
        String::from_utf8_lossy(&converted.stderr)
    );
    let text = String::from_utf8(converted.stdout).unwrap();
    let expected = include_str!("../../providers/bizflycloud/testdata/converted.yaml");
    assert_eq!(text, expected, "to the letter");
    let validated = karpenter(&["validate", "-f", "-"], &text);
    let findings = String::from_utf8_lossy(&validated.stdout).into_owned();
    assert!(validated.status.success(), "{findings}");
}

#[test]
fn what_cannot_be_converted_is_named_with_its_place() {
    let broken = "
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: broken}
spec:
  providerRef: {name: default}
  ttlSecondsAfterEmpty: 30
  consolidation: {enabled: true}
";
    let output = karpenter(&["convert", "-f", "-"], broken);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("-:1: Provisioner/broken: spec.ttlSecondsAfterEmpty"),
        "{told}"
    );
}

#[test]
fn input_without_a_provisioner_is_a_mistake() {
    let output = karpenter(&["convert", "-f", "examples/kwok"], "");
    assert_eq!(output.status.code(), Some(2));
}
