//! `karpenter validate` as scripts use it: exit codes, sources, one line per finding.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const GOOD: &str = "
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: good}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]
";

fn validate(arguments: &[&str], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("validate")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn check(content: &str, exit_code: i32, expected: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("f.yaml"), content).unwrap();
    let output = validate(&["-f", "f.yaml"], directory.path());
    assert_eq!(
        (output.status.code(), stdout(&output).trim_end()),
        (Some(exit_code), expected),
        "{}",
        stderr(&output)
    );
    stderr(&output)
}

#[test]
fn a_good_manifest_is_silent() {
    assert_eq!(check(GOOD, 0, ""), "");
}

#[test]
fn a_finding_names_file_document_object_and_field() {
    let bad = GOOD.replace("kind: KWOKNodeClass", "kind: ''");
    check(
        &format!("{GOOD}---{bad}"),
        1,
        "f.yaml:2: NodePool/good: spec.template.spec.nodeClassRef.kind: Invalid value: \"\": kind may not be empty",
    );
}

#[test]
fn a_pattern_comes_with_words() {
    let bad = GOOD.replace("      requirements", "      expireAfter: 1hr\n      requirements");
    check(
        &bad,
        1,
        "f.yaml:1: NodePool/good: spec.template.spec.expireAfter: Invalid value: \"1hr\": spec.template.spec.expireAfter in body \
         should match '^(([0-9]+(s|m|h))+|Never)$'; use a duration such as 30s, 5m or 1h30m, or Never",
    );
}

#[test]
fn runtime_validation_speaks_where_the_schema_is_silent() {
    let bad = GOOD.replace(
        "kubernetes.io/arch, operator: In, values: [amd64]",
        "karpenter.sh/capacity-type, operator: In, values: [cheap]",
    );
    check(
        &bad,
        1,
        "f.yaml:1: NodePool/good: spec.template.spec.requirements[0].values: none of the values is possible for \
         karpenter.sh/capacity-type; use on-demand, reserved, spot",
    );
}

#[test]
fn the_labels_of_the_pools_own_provider_count() {
    let known = GOOD.replace(
        "kubernetes.io/arch, operator: In, values: [amd64]",
        "karpenter.kwok.sh/instance-cpu, operator: In, values: ['4']",
    );
    check(&known, 0, "");
    let reserved = known.replace("instance-cpu", "colour");
    let line = check_first_line(&reserved);
    assert!(line.contains("is in the reserved domain karpenter.kwok.sh"), "{line}");
}

#[test]
fn a_node_class_is_checked_too() {
    check(
        "apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: a}\nspec: {nodeRegistrationDelay: 5s}\n",
        0,
        "",
    );
    let line = check_first_line(
        "apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: a}\nspec: {nodeRegistrationDelay: soon}\n",
    );
    assert!(
        line.starts_with("f.yaml:1: KWOKNodeClass/a: spec.nodeRegistrationDelay: "),
        "{line}"
    );
}

#[test]
fn unknown_fields_are_findings_as_kubectl_makes_them_errors() {
    let bad = GOOD.replace("  template:", "  tempalte: {}\n  template:");
    check(
        &bad,
        1,
        "f.yaml:1: NodePool/good: spec.tempalte: is not a field of this kind; remove it",
    );
}

#[test]
fn a_version_that_is_not_served_is_a_finding() {
    let bad = GOOD.replace("karpenter.sh/v1", "karpenter.sh/v1beta1");
    check(
        &bad,
        1,
        "f.yaml:1: NodePool/good: apiVersion: karpenter.sh/v1beta1 is not served; use karpenter.sh/v1",
    );
}

#[test]
fn an_object_needs_a_proper_name() {
    let nameless = GOOD.replace("{name: good}", "{}");
    check(
        &nameless,
        1,
        "f.yaml:1: NodePool/<no name>: metadata.name: is required; give the object a name",
    );
    let shouting = GOOD.replace("{name: good}", "{name: GOOD}");
    let output = check_first_line(&shouting);
    assert!(
        output.starts_with("f.yaml:1: NodePool/GOOD: metadata.name: \"GOOD\" must be a DNS subdomain"),
        "{output}"
    );
}

fn check_first_line(content: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("f.yaml"), content).unwrap();
    stdout(&validate(&["-f", "f.yaml"], directory.path()))
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn kinds_of_others_are_skipped_with_a_note() {
    let notes = check(
        &format!("{GOOD}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n"),
        0,
        "",
    );
    assert_eq!(notes, "note: skipped 1 of kind v1 Pod, which is not Karpenter's\n");
}

#[test]
fn a_budget_that_can_not_be_read_is_a_note_because_the_pool_still_works() {
    let notes = check(
        &format!("{GOOD}  disruption: {{budgets: [{{nodes: '1', schedule: '@dailyfoo', duration: 1h}}]}}\n"),
        0,
        "",
    );
    assert!(
        notes.contains("NodePool/good: spec.disruption.budgets[0]: schedule \"@dailyfoo\""),
        "{notes}"
    );
}

#[test]
fn unreadable_input_exits_with_2_and_says_where() {
    let error = check("a: [1", 2, "");
    assert!(error.starts_with("error: f.yaml:1: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let error = check("just some text", 2, "");
    assert_eq!(
        error,
        "error: f.yaml:1: this is not a Kubernetes object; it needs apiVersion and kind\n"
    );
    let directory = tempfile::tempdir().unwrap();
    let output = validate(&["-f", "missing.yaml"], directory.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).starts_with("error: missing.yaml: can't be read: "),
        "{}",
        stderr(&output)
    );
    let output = validate(&["-f", "."], directory.path());
    assert_eq!(
        (output.status.code(), stderr(&output).contains("no .yaml")),
        (Some(2), true)
    );
    assert_eq!(validate(&[], directory.path()).status.code(), Some(2));
}

#[test]
fn directories_are_read_recursively_and_several_sources_together() {
    let directory = tempfile::tempdir().unwrap();
    let bad = GOOD.replace("name: default", "name: ''");
    fs::create_dir_all(directory.path().join("a/b")).unwrap();
    fs::write(directory.path().join("a/b/one.yml"), &bad).unwrap();
    fs::write(
        directory.path().join("a/two.json"),
        r#"{"apiVersion":"v1","kind":"List","items":[]}"#,
    )
    .unwrap();
    fs::write(directory.path().join("a/notes.txt"), "not a manifest").unwrap();
    fs::write(directory.path().join("three.yaml"), &bad).unwrap();
    let output = validate(&["-f", "a", "-f", "three.yaml"], directory.path());
    let lines: Vec<String> = stdout(&output)
        .lines()
        .map(|line| line.split(": ").next().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["a/b/one.yml:1", "three.yaml:1"]);
}

#[test]
fn stdin_is_a_source() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .args(["validate", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(GOOD.replace("name: default", "name: ''").as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).starts_with("-:1: NodePool/good: "),
        "{}",
        stdout(&output)
    );
}

#[test]
fn the_version_names_the_commit() {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("--version")
        .output()
        .unwrap();
    let printed = stdout(&output);
    let commit = printed
        .strip_prefix(&format!("karpenter {} (", env!("CARGO_PKG_VERSION")))
        .and_then(|rest| rest.strip_suffix(")\n"));
    assert!(commit.is_some_and(|commit| !commit.is_empty()), "{printed}");
}

#[test]
fn a_missing_field_comes_with_what_it_is_for() {
    let bad = GOOD.replace("kind: KWOKNodeClass, ", "");
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("f.yaml"), bad).unwrap();
    let output = validate(&["-f", "f.yaml"], directory.path());
    let finding = stdout(&output);
    let expected = "f.yaml:1: NodePool/good: spec.template.spec.nodeClassRef.kind: Required value; add kind: ";
    assert!(finding.starts_with(expected), "{finding}");
}

#[test]
fn a_kind_that_a_group_of_ours_lacks_is_a_finding() {
    check(
        &GOOD.replace("kind: NodePool", "kind: NodePol"),
        1,
        "f.yaml:1: NodePol/good: kind: karpenter.sh has no kind NodePol; use NodeClaim or NodeOverlay or NodePool or Provisioner",
    );
}
