//! What other programs rely on: the shape of the JSON, exit codes, errors of one line.

use serde_json::{Value, json};

use super::{POOL, claims, pod, pods_of, run, simulate};

#[test]
fn the_answer_has_the_documented_shape() {
    let report = simulate(&format!("{POOL}{}", pod("web", "3", "")), &[]);
    assert_eq!(report["apiVersion"], "karpenter-rs/simulate/v1");
    let claim = &claims(&report)[0];
    assert_eq!(claim["nodePool"], "default");
    assert_eq!(pods_of(claim), ["default/web"]);
    assert_eq!(claim["requests"]["cpu"], "3");
    assert_eq!(claim["cheapest"]["capacityType"], "spot");
    assert!(claim["cheapest"]["price"].as_f64().unwrap() > 0.0);
    assert_eq!(claim["instanceTypes"][0], claim["cheapest"]["instanceType"]);
    let os = json!({ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] });
    assert!(claim["requirements"].as_array().unwrap().contains(&os), "{claim}");
    assert_eq!(report["existingNodes"], json!([]));
    assert_eq!(report["unschedulable"], json!([]));
    assert_eq!(report["cost"]["currentPerHour"].as_f64(), Some(0.0));
    assert_eq!(report["cost"]["afterPerHour"], claim["cheapest"]["price"]);
    for figure in ["solveMillis", "loadMillis", "podsPerSecond"] {
        assert!(report["timing"][figure].is_number(), "{figure}");
    }
    assert!(report.get("disruption").is_none());
}

#[test]
fn instance_types_are_listed_by_price_then_name() {
    let report = simulate(&format!("{POOL}{}", pod("web", "3", "")), &[]);
    let types: Vec<&str> = claims(&report)[0]["instanceTypes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(types[..2], ["c-4x-amd64-linux", "c-4x-arm64-linux"]);
    assert!(types.len() > 20);
}

#[test]
fn a_pod_without_a_place_has_a_reason_and_codes() {
    let report = simulate(&format!("{POOL}{}", pod("huge", "1000", "")), &[]);
    let refused = &report["unschedulable"][0];
    assert_eq!(refused["pod"], "default/huge");
    assert_eq!(refused["codes"], json!(["NoInstanceTypeFits"]));
    assert!(refused["reason"].as_str().unwrap().contains("cpu"), "{refused}");
}

#[test]
fn a_pod_that_breaks_a_rule_says_which() {
    let selector = ", nodeSelector: { karpenter.sh/custom: x }";
    let report = simulate(&format!("{POOL}{}", pod("odd", "1", selector)), &[]);
    assert_eq!(report["unschedulable"][0]["codes"], json!(["InvalidRequirement"]));
}

#[test]
fn an_unschedulable_pod_fails_the_command_only_when_asked() {
    let input = format!("{POOL}{}", pod("huge", "1000", ""));
    assert_eq!(run(&["-f", "-"], &input).status.code(), Some(0));
    assert_eq!(
        run(&["-f", "-", "--fail-on-unschedulable"], &input).status.code(),
        Some(1)
    );
    let fits = format!("{POOL}{}", pod("small", "1", ""));
    assert_eq!(
        run(&["-f", "-", "--fail-on-unschedulable"], &fits).status.code(),
        Some(0)
    );
}

fn fails(arguments: &[&str], stdin: &str, parts: &[&str]) {
    let output = run(arguments, stdin);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty());
    let line = errors
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_else(|| panic!("{errors}"));
    assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
    for part in parts {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn unusable_input_is_one_line_and_exit_code_2() {
    fails(&["-f", "/does/not/exist"], "", &["/does/not/exist"]);
    fails(&["-f", "-"], "apiVersion: v1\nkind: Pod\nmetadata: [", &["-:1"]);
    fails(
        &["-f", "-"],
        "apiVersion: v1\nkind: Pod\nmetadata: { name: x }\nspec: { containers: 3 }",
        &["-:1", "Pod/x"],
    );
    let quantity = pod("x", "lots", "");
    fails(&["-f", "-"], &quantity, &["Pod/x", "lots"]);
    let twice = format!("{}{}", pod("x", "1", ""), pod("x", "1", ""));
    fails(&["-f", "-"], &twice, &["Pod/x", "given before"]);
    fails(
        &["-f", "-", "--instance-types", "/does/not/exist"],
        POOL,
        &["/does/not/exist"],
    );
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), "{}").unwrap();
    fails(
        &["-f", "-", "--instance-types", broken.path().to_str().unwrap()],
        POOL,
        &["not a JSON array"],
    );
}

#[test]
fn kinds_without_effect_are_noted_on_stderr() {
    let input = format!("{POOL}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: x }}\n");
    let output = run(&["-f", "-", "-o", "json"], &input);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("ConfigMap (1)"));
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
}

#[test]
fn nothing_at_all_is_an_answer_too() {
    for input in ["", "---\n", POOL] {
        let report = simulate(input, &[]);
        assert!(claims(&report).is_empty());
    }
    let report = simulate(&pod("lonely", "1", ""), &[]);
    assert_eq!(report["unschedulable"][0]["codes"], json!(["NoNodePool"]));
}

#[test]
fn odd_inputs_do_not_panic() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(empty.path(), "[]").unwrap();
    let catalogue = empty.path().to_str().unwrap().to_owned();
    let report = simulate(
        &format!("{POOL}{}", pod("web", "1", "")),
        &["--instance-types", &catalogue],
    );
    assert_eq!(report["unschedulable"].as_array().unwrap().len(), 1);

    let zero = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        zero.path(),
        r#"[{"name":"zero","architecture":"amd64","operatingSystems":["linux"],"resources":{"cpu":"0","memory":"0"},"offerings":[]}]"#,
    )
    .unwrap();
    let catalogue = zero.path().to_str().unwrap().to_owned();
    simulate(
        &format!("{POOL}{}", pod("web", "1", "")),
        &["--instance-types", &catalogue],
    );

    for cpu in ["0", "1e18", "9223372036854775807", "1n", "-1"] {
        simulate(&format!("{POOL}{}", pod("web", cpu, "")), &[]);
    }
    let labels: Vec<String> = (0..10_000).map(|i| format!("l{i}: v")).collect();
    let many = format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{ name: many, labels: {{ {} }} }}\nspec: {{ containers: [] }}\n",
        labels.join(", ")
    );
    simulate(&format!("{POOL}{many}"), &[]);
    let contradiction = ", nodeSelector: { kubernetes.io/arch: amd64 }, affinity: { nodeAffinity: { \
        requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchExpressions: [{ key: kubernetes.io/arch, \
        operator: NotIn, values: [amd64] }] }] } } }";
    let report = simulate(&format!("{POOL}{}", pod("torn", "1", contradiction)), &[]);
    assert_eq!(report["unschedulable"][0]["pod"], "default/torn");
}
